"""The instructions that the coordinator gives.

Instructions are executed in the order given. Those that delete (`DiscardCheckpoint`, `Retire`) can
be repeated or lost: no restore depends on them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

Participant: TypeAlias = tuple[str | int, int]
"""Who acknowledges: uid of an operator or number of a stage, and the subtask."""


class FailureReason(Enum):
    """Why a checkpoint was aborted; the value completes "checkpoint 7 failed: ..."."""

    CHECKPOINT_ASYNC_EXCEPTION = "a snapshot could not be uploaded"
    CHECKPOINT_EXPIRED = "it was not complete within its timeout"
    FINALIZE_CHECKPOINT_FAILURE = "its metadata could not be written"
    EPOCH_FAILED = "the epoch that carried it failed"
    SUBSUMED = "a newer checkpoint was complete before it"
    JOB_RESTARTING = "the job is restarting"
    JOB_STOPPED = "the job has been stopped"

    @property
    def counted(self) -> bool:
        """Whether it counts as a tolerated failure."""
        return self in (
            FailureReason.CHECKPOINT_ASYNC_EXCEPTION,
            FailureReason.CHECKPOINT_EXPIRED,
            FailureReason.FINALIZE_CHECKPOINT_FAILURE,
        )


class CheckpointKind(Enum):
    """Why a checkpoint is taken, which decides the rules it follows."""

    PERIODIC = "periodic"
    """Taken by the clock: follows the interval, the minimum pause and the maximum number."""
    FORCED = "forced"
    """Requested: follows none of these rules, otherwise like a periodic one."""
    WITH_SAVEPOINT = "with savepoint"
    """Taken together with a savepoint, or to rescale the job: like a forced one, but no periodic
    one begins until it has ended, and its failure is not counted."""
    SAVEPOINT = "savepoint"
    """Requested and owned by the user: never retired, never subsumed, subsumes nothing."""


@dataclass(frozen=True, slots=True)
class Finalize:
    """Write the metadata: all participants have acknowledged.

    The answer is always `stored` or `store_failed`, even if the checkpoint is aborted meanwhile:
    its files may be deleted only after that.
    """

    id: int


@dataclass(frozen=True, slots=True)
class Completed:
    """Publish the output of the checkpoint, which is complete."""

    id: int


@dataclass(frozen=True, slots=True)
class Aborted:
    """Record that the checkpoint will never complete, and cancel its uploads."""

    id: int
    reason: FailureReason
    detail: str = ""
    """The error message."""


@dataclass(frozen=True, slots=True)
class DiscardCheckpoint:
    """Delete the files of an aborted checkpoint."""

    id: int


@dataclass(frozen=True, slots=True)
class Retire:
    """Delete a completed checkpoint that newer ones replace."""

    id: int


@dataclass(frozen=True, slots=True)
class FailJob:
    """Fail the job; the restart strategy decides what follows."""

    reason: str


Instruction: TypeAlias = Finalize | Completed | Aborted | DiscardCheckpoint | Retire | FailJob
"""Any instruction of the coordinator."""
