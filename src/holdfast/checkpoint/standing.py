"""Where the checkpoints of a job stand: the coordinator, and all that hangs on it.

Everything here is decided under one lock, at once. Nobody calls storage, sinks or listeners
while it is held: what is to be done comes out as instructions, which are carried out outside.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from holdfast.checkpoint.coordinator import Coordinator
from holdfast.checkpoint.files.channel_state import ChannelStateFiles
from holdfast.checkpoint.local_state import LocalSnapshots

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from holdfast.checkpoint.failures import FailureReason
    from holdfast.checkpoint.files.metadata import CheckpointMetadata
    from holdfast.checkpoint.instructions import Instruction
    from holdfast.checkpoint.pending import CheckpointDraft
    from holdfast.checkpoint.savepoint.ownership import ClaimedSnapshot
    from holdfast.clock import Clock
    from holdfast.config.checkpointing import CheckpointSettings
    from holdfast.errors import HoldfastError
    from holdfast.job.model import JobIdentity, QueryPosition
    from holdfast.runtime.plan import ChannelRows

    Store = tuple[str, int]
    """Uid and subtask."""
    Capture = Callable[[int, QueryPosition | None], QueryPosition]
    """The position of the sources when a micro-batch is done.

    Given the micro-batch, and the position in the newest checkpoint: of logs, only what is new
    since then is read.
    """


@dataclass
class Footing:
    """What the next checkpoint of a job attempt builds upon."""

    job: JobIdentity
    base: CheckpointMetadata | None
    """The newest complete checkpoint of the job, unless the job attempt began before any."""
    inherited: frozenset[Store]
    """Stores that took over the files of the base as they are."""
    capture: Capture
    """Tells how far the sources have been read."""
    origin: str = ""
    """Names the snapshot that the job's first checkpoint began from."""
    channel_state: ChannelStateFiles = field(default_factory=ChannelStateFiles)


class Standing:
    """The checkpoints of one job, over all its job attempts; serves any thread."""

    def __init__(
        self,
        settings: CheckpointSettings,
        clock: Clock,
        completed: Iterable[int],
        next_id: int,
    ) -> None:
        """No checkpoint is under way.

        Args:
            settings: How they are taken.
            clock: Tells when they are due and when they expire.
            completed: Ids of those that are complete already.
            next_id: Id of the first one.
        """
        self.lock = threading.Lock()
        self._settings = settings
        self._clock = clock
        self.coordinator = Coordinator(
            settings,
            now=clock.monotonic_ms(),
            next_id=next_id,
            completed=completed,
        )
        self.footing: Footing | None = None
        self._running: str | None = None
        """The job attempt that runs now, if one does."""
        self._drafts: dict[int, CheckpointDraft] = {}
        self._newest: CheckpointDraft | None = None
        self._failure: HoldfastError | None = None
        self._changed = False
        """Whether there is an epoch that no checkpoint contains."""
        self._litter = False
        """Whether a checkpoint has failed that may have left files behind."""
        self._closed = False
        self._undeleted: dict[int, bool] = {}
        """Checkpoints that storage has not deleted yet; whether they look complete, and are not."""
        self.local_snapshots = LocalSnapshots(keep=settings.local_backup)
        self._claimed: ClaimedSnapshot | None = None

    # Incarnations

    def begin(self, footing: Footing) -> None:
        """Another job attempt begins."""
        with self.lock:
            if footing.base is not None:
                self.coordinator.resume_after(footing.base.checkpoint_id)
            self.footing = footing
            self._running = footing.job.job_attempt
            self._failure = None
            self._changed = False

    def end(self) -> None:
        """The job attempt has ended: what its epochs still come to counts for nothing."""
        with self.lock:
            self._running = None

    def runs(self, job_attempt: str) -> bool:
        """Whether it is this job attempt that runs now."""
        with self.lock:
            return job_attempt == self._running

    def claim(self, snapshot: ClaimedSnapshot) -> None:
        """Let go of a snapshot when enough checkpoints are there."""
        with self.lock:
            self._claimed = snapshot

    def close(self) -> None:
        """The job has ended: nobody is to be told of a failure."""
        with self.lock:
            self._closed = True

    def failed(self, error: HoldfastError) -> bool:
        """Checkpoints can no longer be taken; whether that is news to anybody."""
        with self.lock:
            if self._failure is not None or self._closed:
                return False
            self._failure = error
            return True

    def raise_failure(self) -> None:
        """Raise what keeps checkpoints from being taken, if something does."""
        if self._failure is not None:
            raise self._failure

    @property
    def changed(self) -> bool:
        """Whether there is an epoch that no checkpoint contains."""
        return self._changed

    @property
    def retained(self) -> tuple[int, ...]:
        """Ids of the complete checkpoints that are kept, oldest first."""
        with self.lock:
            return self.coordinator.retained

    @property
    def in_doubt(self) -> frozenset[int]:
        """Ids of those that were given up, and may still turn up in storage."""
        with self.lock:
            given_up = (one for one, doubtful in self._undeleted.items() if doubtful)
            return frozenset([*self.coordinator.in_doubt, *given_up])

    def undeleted(self) -> dict[int, bool]:
        """Those that storage has not deleted yet; whether they were given up."""
        with self.lock:
            return dict(self._undeleted)

    def deleted(self, checkpoint_id: int) -> None:
        """It is gone from storage."""
        with self.lock:
            self._undeleted.pop(checkpoint_id, None)

    def not_deleted(self, checkpoint_id: int, *, given_up: bool) -> None:
        """Storage has not deleted it, which is to be tried again."""
        with self.lock:
            self._undeleted[checkpoint_id] = given_up
            self._litter = True

    @property
    def newest(self) -> CheckpointDraft | None:
        """The checkpoint that was taken last, if one was."""
        return self._newest

    # The life of a checkpoint

    def is_pending(self, checkpoint_id: int) -> bool:
        """Whether it was begun, and has neither been completed nor given up."""
        with self.lock:
            return checkpoint_id in self.coordinator.pending

    def epoch_taken(self, channel_rows: Iterable[ChannelRows], *, contained: bool) -> None:
        """An epoch has ended well, and a checkpoint of it is about to be made, or not."""
        with self.lock:
            self._changed = not contained
            assert self.footing is not None
            self.footing.channel_state.taken(channel_rows)

    def add(self, checkpoint_id: int, draft: CheckpointDraft) -> bool:
        """Its epoch has ended; whether it is still wanted, or was given up."""
        with self.lock:
            if checkpoint_id not in self.coordinator.pending:
                self._changed = True
                return False
            self._drafts[checkpoint_id] = self._newest = draft
            return True

    def draft(self, checkpoint_id: int) -> CheckpointDraft | None:
        """What it is made of, while it is under way."""
        with self.lock:
            return self._drafts.get(checkpoint_id)

    def acknowledge(self, checkpoint_id: int, task: tuple[int, int]) -> list[Instruction]:
        """A task has handed in its part."""
        with self.lock:
            now = self._clock.monotonic_ms()
            return self.coordinator.acknowledge(checkpoint_id, task, now)

    def fail(self, checkpoint_id: int, reason: FailureReason, detail: str) -> list[Instruction]:
        """Give it up."""
        with self.lock:
            now = self._clock.monotonic_ms()
            return self.coordinator.fail(checkpoint_id, reason, now, detail)

    def expire(self) -> list[Instruction]:
        """Give up those that have taken too long."""
        with self.lock:
            return self.coordinator.expire(self._clock.monotonic_ms())

    def abort_all(self, reason: FailureReason) -> list[Instruction]:
        """Give up all that are under way."""
        with self.lock:
            return self.coordinator.abort_all(self._clock.monotonic_ms(), reason)

    def stored(self, checkpoint_id: int, metadata: CheckpointMetadata) -> list[Instruction]:
        """Its metadata is written."""
        with self.lock:
            self._drafts[checkpoint_id].stored = metadata
            return self.coordinator.stored(checkpoint_id, self._clock.monotonic_ms())

    def store_failed(self, checkpoint_id: int, why: str) -> list[Instruction]:
        """Its metadata could not be written, or was not wanted any more."""
        with self.lock:
            now = self._clock.monotonic_ms()
            return self.coordinator.store_failed(checkpoint_id, now, why)

    def complete(self, checkpoint_id: int) -> CheckpointDraft:
        """It is complete: the next one builds upon it."""
        with self.lock:
            draft = self._drafts.pop(checkpoint_id)
            footing = self.footing
            if footing is not None and draft.stored is not None and self._is_mine(draft.stored):
                footing.base = draft.stored
                footing.inherited = frozenset(draft.versions)
            self.local_snapshots.completed(checkpoint_id, draft.local_copies, draft.unchanged)
            return draft

    def aborted(self, checkpoint_id: int) -> CheckpointDraft | None:
        """It will never be complete; what it was made of, if its epoch had ended."""
        with self.lock:
            self._litter = True
            self._changed = True
            self.local_snapshots.aborted(checkpoint_id)
            return self._drafts.get(checkpoint_id)

    def forget(self, checkpoint_id: int) -> None:
        """Nothing is at work for it any more."""
        with self.lock:
            self._drafts.pop(checkpoint_id, None)

    # What may go

    def processed(self, metadata: CheckpointMetadata) -> set[str]:
        """Files with input that nobody needs, now that this checkpoint is complete."""
        with self.lock:
            footing = self.footing
            if footing is None or not self._is_mine(metadata):
                return set()
            under_way = (path for draft in self._drafts.values() for path in draft.channel_files)
            return footing.channel_state.done(metadata, under_way)

    def unclaimed(self) -> ClaimedSnapshot | None:
        """A snapshot that was claimed, and that the job needs no longer."""
        with self.lock:
            if len(self.coordinator.retained) < self._settings.num_retained:
                return None
            claimed, self._claimed = self._claimed, None
            return claimed

    def swept_below(self) -> int:
        """Below which id nothing is under way, so that what was left there may go."""
        with self.lock:
            self._litter = False
            return min([*self.coordinator.pending, self.coordinator.next_id])

    def not_swept(self) -> None:
        """Storage has failed a sweep, so that something may still be there."""
        with self.lock:
            self._litter = True

    @property
    def litter(self) -> bool:
        """Whether a checkpoint has failed that may have left files behind."""
        return self._litter

    def _is_mine(self, metadata: CheckpointMetadata) -> bool:
        """Whether a checkpoint was taken in the job attempt that runs now."""
        return self.footing is not None and metadata.job_attempt == self.footing.job.job_attempt
