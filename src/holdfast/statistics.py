"""The statistics of jobs, epochs and checkpoints."""

from holdfast.job.statistics import (
    CheckpointingStatistics,
    CheckpointStatistics,
    CheckpointStatus,
    EpochStatistics,
    JobStatistics,
    OperatorStatistics,
)

__all__ = [
    "CheckpointStatistics",
    "CheckpointStatus",
    "CheckpointingStatistics",
    "EpochStatistics",
    "JobStatistics",
    "OperatorStatistics",
]
