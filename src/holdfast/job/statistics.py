"""Statistics of a job and of its checkpoints, as detailed as Flink's."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from holdfast.api.metrics import MetricValues


class JobStatus(Enum):
    """The status of a job."""

    RUNNING = "RUNNING"
    RESTARTING = "RESTARTING"
    FINISHED = "FINISHED"
    CANCELED = "CANCELED"
    FAILED = "FAILED"
    SUSPENDED = "SUSPENDED"
    """It has ended, and another start continues it: nothing that it needs was deleted."""

    @property
    def is_terminal(self) -> bool:
        """Whether the job has ended."""
        return self not in (JobStatus.RUNNING, JobStatus.RESTARTING)


@dataclass(frozen=True, slots=True)
class JobFailure:
    """A failure of a job, after which it was restarted or ended."""

    timestamp: int
    """When, in milliseconds since 1970."""
    error: str
    """Name of the error's class."""
    message: str


@dataclass(frozen=True, slots=True)
class EpochStatistics:
    """Statistics of one epoch."""

    epoch: int
    events: int
    """Rows read from the sources, each once, however many operators read it."""
    duration_ms: int


@dataclass(slots=True)
class OperatorStatistics:
    """Statistics of one operator, over all subtasks and epochs."""

    name: str
    uid: str
    records_in: int = 0
    """Rows that the operator has taken in, from sources or from other operators."""
    records_out: int = 0
    skipped: int = 0
    functions_opened: int = 0
    """Times that its function was opened: once per worker, subtask and job attempt if all fit."""
    state_entries: int = 0
    """Entries of its local stores."""
    state_bytes: int = 0
    """Size of its local stores on disk."""
    expired_removed: int = 0
    """Expired entries that were removed from its local stores."""
    watermark: int | None = None
    """The operator's watermark; None if it has none yet."""
    metrics: MetricValues = field(default_factory=MetricValues)


@dataclass(frozen=True, slots=True)
class JobStatistics:
    """Statistics of a job at one moment."""

    job_id: str
    name: str
    status: JobStatus
    epochs: int
    events: int
    """Rows read from the sources, each once, however many operators read it."""
    duration_ms: int
    """Time spent in epochs."""
    last_epoch: EpochStatistics | None
    operators: dict[str, OperatorStatistics]
    """By uid."""
    restarts: int = 0
    watermarks: dict[str, int] = field(default_factory=dict)
    """Watermarks, by uid of an operator or of a node that assigns timestamps."""
    checkpoints: CheckpointingStatistics | None = None
    """None if the job takes no checkpoints."""
    workers: WorkerStatistics | None = None
    """None before the first epoch."""
    paused_sources: tuple[str, ...] = ()
    """Uids of the sources that wait for others of their alignment group."""


@dataclass(frozen=True, slots=True)
class WorkerStatistics:
    """Statistics of the Python workers that ran the last epoch."""

    workers: int
    """Processes that ran its tasks."""
    max_memory: int
    """Memory of the largest of them, in bytes."""
    kept_tasks: int
    """Tasks of the job that they keep for later epochs, with open functions and cached state."""


class CheckpointStatus(Enum):
    """The status of a checkpoint."""

    IN_PROGRESS = "IN_PROGRESS"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"


@dataclass(frozen=True, slots=True)
class SubtaskCheckpoint:
    """Statistics of one subtask's part in a checkpoint."""

    uid: str
    subtask: int
    ack_timestamp: int
    sync_duration_ms: int
    """Time that the local snapshot took within the epoch."""
    async_duration_ms: int
    """Time that the upload took."""
    state_size: int
    checkpointed_size: int
    alignment_ms: int = 0
    """Always 0: all inputs are aligned at the end of an epoch."""


@dataclass(slots=True)
class CheckpointStatistics:
    """Statistics of one checkpoint."""

    id: int
    trigger_timestamp: int
    num_subtasks: int
    status: CheckpointStatus = CheckpointStatus.IN_PROGRESS
    is_savepoint: bool = False
    """Whether it is taken together with a savepoint."""
    savepoint_path: str | None = None
    """Path of that savepoint, once it is complete."""
    epoch: int | None = None
    latest_ack_timestamp: int | None = None
    num_acknowledged_subtasks: int = 0
    state_size: int = 0
    """Bytes of the whole state."""
    checkpointed_size: int = 0
    """Bytes that were uploaded for this checkpoint."""
    persisted_size: int = 0
    """Bytes of channel state."""
    epoch_duration_ms: int = 0
    """From the trigger to the end of the epoch; Flink's alignment."""
    sync_duration_ms: int = 0
    """Longest local snapshot."""
    async_duration_ms: int = 0
    """From the end of the epoch to the last upload."""
    finalize_duration_ms: int = 0
    """Writing the metadata."""
    end_to_end_duration_ms: int = 0
    publish_duration_ms: int | None = None
    """Publishing its output after its completion; None until that has succeeded."""
    external_path: str | None = None
    discarded: bool = False
    failure_timestamp: int | None = None
    failure_message: str | None = None
    subtasks: list[SubtaskCheckpoint] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class RestoreStatistics:
    """Statistics of the last restore."""

    checkpoint_id: int
    timestamp: int
    duration_ms: int
    external_path: str
    downloaded_size: int
    local_stores: int
    """Stores that were built from a local copy, without a download."""
    stores: int


@dataclass(frozen=True, slots=True)
class Spread:
    """Minimum, maximum and average of a figure, and percentiles of its newest values."""

    min: int = 0
    max: int = 0
    avg: int = 0
    p50: int = 0
    p90: int = 0
    p95: int = 0
    p99: int = 0
    p999: int = 0


@dataclass(frozen=True, slots=True)
class CheckpointSummary:
    """Statistics over all completed checkpoints of a job."""

    state_size: Spread = Spread()
    checkpointed_size: Spread = Spread()
    end_to_end_duration_ms: Spread = Spread()
    persisted_size: Spread = Spread()


@dataclass(frozen=True, slots=True)
class CheckpointingStatistics:
    """Statistics of all checkpoints of a job, at one moment."""

    total: int = 0
    in_progress: int = 0
    completed: int = 0
    failed: int = 0
    restored: int = 0
    latest_completed: CheckpointStatistics | None = None
    latest_savepoint: CheckpointStatistics | None = None
    """The checkpoint of the newest savepoint."""
    latest_failed: CheckpointStatistics | None = None
    latest_restored: RestoreStatistics | None = None
    summary: CheckpointSummary = CheckpointSummary()
    history: tuple[CheckpointStatistics, ...] = ()
    """The newest checkpoints, oldest first."""
