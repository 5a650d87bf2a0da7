"""Why checkpoints fail, and how many consecutive failures a job tolerates."""

from __future__ import annotations

from enum import Enum


class FailureReason(Enum):
    """Why a checkpoint was aborted; the value completes "checkpoint 7 failed: ..."."""

    IO_EXCEPTION = "its data could not be read or written"
    CHECKPOINT_ASYNC_EXCEPTION = "a snapshot could not be uploaded"
    CHECKPOINT_EXPIRED = "it was not complete within its timeout"
    FINALIZE_CHECKPOINT_FAILURE = "its metadata could not be written"
    SYNCHRONOUS_FAILURE = "a subtask could not take its local snapshot"
    EPOCH_FAILED = "the epoch that carried it failed"
    SUBSUMED = "a newer checkpoint was complete before it"
    JOB_RESTARTING = "the job is restarting"
    JOB_STOPPED = "the job has been stopped"

    @property
    def counted(self) -> bool:
        """Whether it counts as a tolerated failure."""
        return self in _COUNTED


_COUNTED = frozenset(
    {
        FailureReason.IO_EXCEPTION,
        FailureReason.CHECKPOINT_ASYNC_EXCEPTION,
        FailureReason.CHECKPOINT_EXPIRED,
        FailureReason.FINALIZE_CHECKPOINT_FAILURE,
    }
)


class FailureCounter:
    """Counts consecutive failures; the caller reports each checkpoint at most once.

    Attributes:
        consecutive: Failures since the last success, or since the job last failed because of
            them.
    """

    def __init__(self, tolerable: int, *, last_success: int = 0) -> None:
        self.consecutive = 0
        self._tolerable = tolerable
        self._last_success = last_success

    def succeeded(self, checkpoint_id: int) -> None:
        """Reset the count, unless a newer checkpoint has succeeded already."""
        if checkpoint_id > self._last_success:
            self._last_success = checkpoint_id
            self.consecutive = 0

    def failed(
        self, checkpoint_id: int, reason: FailureReason, detail: str, *, savepoint: bool
    ) -> str | None:
        """Why the job has to fail now, or None if it continues.

        It fails if a local snapshot could not be taken, or after more consecutive failures than
        tolerated. Savepoints and checkpoints older than the last success are not counted.
        """
        what = f"checkpoint {checkpoint_id} failed: {reason.value}"
        what += f" ({detail})" if detail else ""
        if reason is FailureReason.SYNCHRONOUS_FAILURE:
            return f"{what}; the job has to restart from its last complete checkpoint"
        if savepoint or not reason.counted or checkpoint_id <= self._last_success:
            return None
        self.consecutive += 1
        if self.consecutive <= self._tolerable:
            return None
        # The job restarts now, with its full tolerance.
        self.consecutive = 0
        return (
            f"{what}; that is one consecutive failure more than the {self._tolerable} tolerated. "
            "Remove the cause, or raise execution.checkpointing.tolerable-failed-checkpoints"
        )
