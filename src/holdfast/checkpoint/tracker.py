"""The checkpoints of a job: pending ones, retained ones, and those that storage must still delete.

Every decision is made here, under one lock. Nothing here calls storage, sinks or listeners: a
decision comes out as a list of instructions, and the caller executes them without the lock.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING

from holdfast.checkpoint.coordinator import Coordinator
from holdfast.checkpoint.local_state import LocalSnapshots

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.checkpoint.files.metadata import CheckpointMetadata
    from holdfast.checkpoint.instructions import FailureReason, Instruction
    from holdfast.checkpoint.pending import CheckpointBase, PendingCheckpoint
    from holdfast.checkpoint.savepoint.ownership import ClaimedSnapshot
    from holdfast.clock import Clock
    from holdfast.config.checkpointing import CheckpointSettings
    from holdfast.errors import HoldfastError
    from holdfast.runtime.plan import ChannelRows


class CheckpointTracker:
    """Tracks the checkpoints of one job, over all its job attempts; thread-safe."""

    def __init__(
        self,
        settings: CheckpointSettings,
        clock: Clock,
        completed: Iterable[int],
        next_id: int,
    ) -> None:
        """Create a tracker without pending checkpoints.

        Args:
            settings: When checkpoints are taken, and how many are kept.
            clock: Decides when they are due and when they expire.
            completed: Ids of the checkpoints that are complete already.
            next_id: Id of the first new one.
        """
        self.lock = threading.Lock()
        self._settings = settings
        self._clock = clock
        self.coordinator = Coordinator(
            settings, now=clock.monotonic_ms(), next_id=next_id, completed=completed
        )
        self.base: CheckpointBase | None = None
        """Replaced as a whole, under the lock."""
        self._running: str | None = None
        """The job attempt that runs now, if any."""
        self._pending: dict[int, PendingCheckpoint] = {}
        self.newest: PendingCheckpoint | None = None
        """The checkpoint taken last, complete or not."""
        self._failure: HoldfastError | None = None
        self.has_uncovered_epochs = False
        """Whether an epoch has completed that no checkpoint contains."""
        self.has_unfinished = False
        """Whether failed checkpoints may have left files in storage."""
        self._closed = False
        self._undeleted: dict[int, bool] = {}
        """Ids that storage has not deleted yet, and whether each was aborted."""
        self.local_snapshots = LocalSnapshots(keep=settings.local_backup)
        self._claimed: ClaimedSnapshot | None = None

    # Job attempts

    def begin_attempt(self, base: CheckpointBase) -> None:
        """Start tracking another job attempt."""
        with self.lock:
            if base.metadata is not None:
                # It is needed again, should storage have failed to delete it before.
                self._undeleted.pop(base.metadata.checkpoint_id, None)
                self.coordinator.resume_after(base.metadata.checkpoint_id)
            self.base = base
            self._running = base.job.job_attempt
            self._failure = None
            self.has_uncovered_epochs = False

    def end_attempt(self) -> None:
        """End the job attempt: results of its epochs are ignored from now on."""
        with self.lock:
            self._running = None

    def is_running(self, job_attempt: str) -> bool:
        """Whether this job attempt runs now."""
        with self.lock:
            return job_attempt == self._running

    def claim(self, snapshot: ClaimedSnapshot) -> None:
        """Keep a claimed snapshot until the job has enough checkpoints without it."""
        with self.lock:
            self._claimed = snapshot

    def close(self) -> None:
        """Report no further failures: the job has ended."""
        with self.lock:
            self._closed = True

    def record_failure(self, error: HoldfastError) -> bool:
        """Record that no more checkpoints can be taken; False if that was known, or is too late."""
        with self.lock:
            if self._failure is not None or self._closed:
                return False
            self._failure = error
            return True

    def raise_failure(self) -> None:
        """Raise the recorded failure, if there is one."""
        if self._failure is not None:
            raise self._failure

    @property
    def in_doubt(self) -> frozenset[int]:
        """Ids of aborted checkpoints that may still look complete in storage."""
        with self.lock:
            undeleted = (one for one, aborted in self._undeleted.items() if aborted)
            return frozenset([*self.coordinator.in_doubt, *undeleted])

    # The life of a checkpoint

    def is_pending(self, checkpoint_id: int) -> bool:
        """Whether the checkpoint was triggered, and neither completed nor aborted."""
        with self.lock:
            return checkpoint_id in self.coordinator.pending

    def epoch_completed(self, channel_rows: Iterable[ChannelRows], *, covered: bool) -> None:
        """Record an epoch, its channel state, and whether a checkpoint is about to cover it."""
        with self.lock:
            self.has_uncovered_epochs = not covered
            assert self.base is not None
            self.base.channel_state.taken(channel_rows)

    def add(self, pending: PendingCheckpoint) -> bool:
        """Add a checkpoint whose epoch has ended; False if it was aborted meanwhile."""
        with self.lock:
            if pending.id not in self.coordinator.pending:
                self.has_uncovered_epochs = True
                return False
            self._pending[pending.id] = self.newest = pending
            return True

    def pending(self, checkpoint_id: int) -> PendingCheckpoint | None:
        """The pending checkpoint with this id, once its epoch has ended."""
        with self.lock:
            return self._pending.get(checkpoint_id)

    def acknowledge(self, checkpoint_id: int, task: tuple[int, int]) -> list[Instruction]:
        """Record that a task's part is uploaded."""
        with self.lock:
            return self.coordinator.acknowledge(checkpoint_id, task)

    def fail(self, checkpoint_id: int, reason: FailureReason, detail: str) -> list[Instruction]:
        """Abort a checkpoint."""
        with self.lock:
            return self.coordinator.fail(checkpoint_id, reason, detail)

    def expire(self) -> list[Instruction]:
        """Abort the checkpoints that have reached their timeout."""
        with self.lock:
            return self.coordinator.expire(self._clock.monotonic_ms())

    def abort_all(self, reason: FailureReason) -> list[Instruction]:
        """Abort all pending checkpoints."""
        with self.lock:
            return self.coordinator.abort_all(reason)

    def stored(self, checkpoint_id: int, metadata: CheckpointMetadata) -> list[Instruction]:
        """Record that the metadata of a checkpoint is written."""
        with self.lock:
            self._pending[checkpoint_id].stored = metadata
            return self.coordinator.stored(checkpoint_id, self._clock.monotonic_ms())

    def store_failed(self, checkpoint_id: int, why: str) -> list[Instruction]:
        """Record that the metadata was not written, or is no longer needed."""
        with self.lock:
            return self.coordinator.store_failed(checkpoint_id, why)

    def complete(self, checkpoint_id: int) -> PendingCheckpoint:
        """Make a completed checkpoint the base of the next one, and return it."""
        with self.lock:
            pending = self._pending.pop(checkpoint_id)
            if pending.stored is not None and self._is_of_this_attempt(pending.stored):
                assert self.base is not None
                self.base = replace(
                    self.base, metadata=pending.stored, inherited=frozenset(pending.versions)
                )
            self.local_snapshots.completed(checkpoint_id, pending.local_copies, pending.unchanged)
            return pending

    def aborted(self, checkpoint_id: int) -> PendingCheckpoint | None:
        """Record that a checkpoint is aborted; returns it if its epoch had ended."""
        with self.lock:
            self.has_unfinished = True
            self.has_uncovered_epochs = True
            self.local_snapshots.aborted(checkpoint_id)
            return self._pending.get(checkpoint_id)

    def forget(self, checkpoint_id: int) -> None:
        """Drop a pending checkpoint that nothing works on any more."""
        with self.lock:
            self._pending.pop(checkpoint_id, None)

    # Deleting

    def undeleted(self) -> dict[int, bool]:
        """Checkpoints that storage has not deleted yet, and whether each was aborted."""
        with self.lock:
            return dict(self._undeleted)

    def deleted(self, checkpoint_id: int) -> None:
        """Record that a checkpoint is gone from storage."""
        with self.lock:
            self._undeleted.pop(checkpoint_id, None)

    def delete_failed(self, checkpoint_id: int, *, aborted: bool) -> None:
        """Record that storage did not delete a checkpoint, so that it is tried again."""
        with self.lock:
            self._undeleted[checkpoint_id] = aborted
            self.has_unfinished = True

    def unneeded_channel_state(self, metadata: CheckpointMetadata) -> set[str]:
        """Channel-state files that no checkpoint needs, now that this one is complete."""
        with self.lock:
            if self.base is None or not self._is_of_this_attempt(metadata):
                return set()
            needed = (path for one in self._pending.values() for path in one.channel_files)
            return self.base.channel_state.done(metadata, needed)

    def take_claimed(self) -> ClaimedSnapshot | None:
        """The claimed snapshot, once, when the job no longer needs it."""
        with self.lock:
            if len(self.coordinator.retained) < self._settings.num_retained:
                return None
            claimed, self._claimed = self._claimed, None
            return claimed

    def begin_deleting_unfinished(self) -> int:
        """Begin to delete unfinished checkpoints; those below the returned id may go."""
        with self.lock:
            self.has_unfinished = False
            return min([*self.coordinator.pending, self.coordinator.next_id])

    def delete_unfinished_failed(self) -> None:
        """Record that storage failed to delete unfinished checkpoints; it is tried again."""
        with self.lock:
            self.has_unfinished = True

    def _is_of_this_attempt(self, metadata: CheckpointMetadata) -> bool:
        return self.base is not None and metadata.job_attempt == self.base.job.job_attempt
