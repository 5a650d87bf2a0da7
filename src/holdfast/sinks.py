"""Base classes of sinks that you write yourself."""

from holdfast.api.sinks import (
    CommitRequest,
    Committer,
    Sink,
    SinkWriter,
    StagedRows,
    WriterContext,
)
from holdfast.api.two_phase_commit import (
    TwoPhaseCommitSinkFunction,
)

__all__ = [
    "CommitRequest",
    "Committer",
    "Sink",
    "SinkWriter",
    "StagedRows",
    "TwoPhaseCommitSinkFunction",
    "WriterContext",
]
