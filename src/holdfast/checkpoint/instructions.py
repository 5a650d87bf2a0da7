"""The instructions that the coordinator gives.

Instructions are executed in the order given. Those that delete (`DiscardCheckpoint`, `Retire`) can
be repeated or lost: no restore depends on them. Timestamps are those of the coordinator's
monotonic clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from holdfast.checkpoint.failures import FailureReason

Participant: TypeAlias = tuple[str | int, int]
"""Who acknowledges: the uid of an operator or the number of a stage, and the subtask."""


class CheckpointKind(Enum):
    """What a checkpoint is taken for, hence which rules bind it."""

    PERIODIC = "periodic"
    """Taken by the clock: bound by interval, minimum pause and number in flight."""
    FORCED = "forced"
    """Asked for: bound by none of them, otherwise like a periodic one."""
    WITH_SAVEPOINT = "with savepoint"
    """Taken for a savepoint beside it: like a forced one, but none is begun until it has ended,
    and its failure counts for nothing."""
    SAVEPOINT = "savepoint"
    """Asked for and owned by the user: neither retired nor subsumed, nor does it subsume."""


@dataclass(frozen=True, slots=True)
class Finalize:
    """All have acknowledged: write the metadata.

    The answer is `stored` or `store_failed`, always, even if the checkpoint is
    aborted meanwhile: only then is it known that its files may be deleted.
    """

    id: int
    timestamp: int
    """When the last acknowledgement came in."""


@dataclass(frozen=True, slots=True)
class Completed:
    """The checkpoint can be restored from; publish what waited for it."""

    id: int
    timestamp: int


@dataclass(frozen=True, slots=True)
class Aborted:
    """The checkpoint will never complete."""

    id: int
    reason: FailureReason
    timestamp: int
    detail: str = ""
    """What went wrong, in the words of whoever reported it."""


@dataclass(frozen=True, slots=True)
class CancelUpload:
    """Stop whatever is still at work for an aborted checkpoint."""

    id: int


@dataclass(frozen=True, slots=True)
class DiscardCheckpoint:
    """Delete the files of a checkpoint that was aborted."""

    id: int


@dataclass(frozen=True, slots=True)
class Retire:
    """Delete a complete checkpoint that newer ones have pushed out."""

    id: int


@dataclass(frozen=True, slots=True)
class FailJob:
    """Fail the job; the restart strategy decides what follows."""

    reason: str


Instruction: TypeAlias = (
    Finalize | Completed | Aborted | CancelUpload | DiscardCheckpoint | Retire | FailJob
)
"""Anything that the coordinator may ask for."""
