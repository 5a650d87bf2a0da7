"""How checkpoints end: carries out what the coordinator has decided, with no lock held.

Checkpoints are completed one after the other, in a thread of their own: the metadata is
written, the output published, and those who wait are told. Another one waits in line
meanwhile, so its metadata never lists what is just being published. Whoever has to know that
nothing is being published, a recovery, waits until the line is empty; with a limit, as
everybody who waits here.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from typing import TYPE_CHECKING, assert_never

from holdfast._faults import fault_point
from holdfast.checkpoint.files.channel_state import release
from holdfast.checkpoint.instructions import (
    Aborted,
    CancelUpload,
    Completed,
    DiscardCheckpoint,
    FailJob,
    Finalize,
    Retire,
)
from holdfast.checkpoint.source_positions import source_snapshots
from holdfast.clock import Moment
from holdfast.errors import CheckpointError, FencedError, HoldfastError
from holdfast.job.threads import start_thread

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.checkpoint.commit.service import CommitService
    from holdfast.checkpoint.failures import FailureReason
    from holdfast.checkpoint.files.job_files import JobStorage
    from holdfast.checkpoint.files.metadata import CheckpointMetadata
    from holdfast.checkpoint.instructions import Instruction
    from holdfast.checkpoint.listeners import CheckpointNotifier
    from holdfast.checkpoint.pending import CheckpointDraft
    from holdfast.checkpoint.savepoint.requests import Savepoints
    from holdfast.checkpoint.source_positions import SourceCommits
    from holdfast.checkpoint.standing import Standing
    from holdfast.checkpoint.statistics import CheckpointStatisticsKeeper
    from holdfast.checkpoint.uploads import Uploads
    from holdfast.clock import Clock
    from holdfast.job.threads import Patience

logger = logging.getLogger("holdfast")


class Completion:
    """Completes, gives up and removes the checkpoints of one job."""

    def __init__(
        self,
        standing: Standing,
        storage: JobStorage,
        uploads: Uploads,
        commits: CommitService,
        source_commits: SourceCommits,
        savepoints: Savepoints,
        notifier: CheckpointNotifier,
        statistics: CheckpointStatisticsKeeper,
        clock: Clock,
        patience: Patience,
        fail_job: Callable[[HoldfastError], None],
    ) -> None:
        """Nothing is to be done yet."""
        self._standing = standing
        self._storage = storage
        self._uploads = uploads
        self._commits = commits
        self._source_commits = source_commits
        self._savepoints = savepoints
        self._notifier = notifier
        self._statistics = statistics
        self._clock = clock
        self._patience = patience
        self._fail_job = fail_job
        self._lock = threading.Lock()
        self._queue: deque[int] = deque()
        """Ids of checkpoints that all tasks have acknowledged, in the order they came."""
        self._idle = threading.Event()
        self._idle.set()

    def execute(self, instructions: list[Instruction]) -> None:
        """Execute what was decided, in order; the caller holds no lock.

        No instruction leads to another one here. `Finalize` is handed to the thread that
        completes checkpoints, which executes the coordinator's answer itself.
        """
        given_up: list[CheckpointDraft] = []
        try:
            for instruction in instructions:
                if isinstance(instruction, Aborted):
                    draft = self._standing.aborted(instruction.id)
                    given_up += [] if draft is None else [draft]
                self._execute(instruction)
        finally:
            # Last of all: whoever waits for them looks whether that has failed the job.
            for draft in given_up:
                draft.over.set()

    def _execute(self, instruction: Instruction) -> None:
        match instruction:
            case Finalize(checkpoint_id):
                self._enqueue(checkpoint_id)
            case Completed(checkpoint_id):
                self._completed(checkpoint_id)
            case Aborted(checkpoint_id, reason, _, detail):
                self._aborted(checkpoint_id, reason, detail)
            case CancelUpload(checkpoint_id):
                self._uploads.cancel(checkpoint_id)
            case DiscardCheckpoint(checkpoint_id):
                self._delete(checkpoint_id, given_up=True)
            case Retire(checkpoint_id):
                self._delete(checkpoint_id, given_up=False)
            case FailJob(reason):
                self._fail_job(CheckpointError(reason))
            case _:
                assert_never(instruction)

    def wait(self, seconds: float) -> bool:
        """Wait until no checkpoint is being completed, at most so long; whether none is."""
        return self._patience.wait(self._idle, seconds)

    def sweep(self) -> None:
        """Remove what failed checkpoints have left in storage."""
        below = self._standing.swept_below()
        try:
            self._storage.sweep(below)
        except HoldfastError as error:
            self._standing.not_swept()
            logger.warning("checkpoint storage was not swept: %s", error)

    # One after the other

    def _enqueue(self, checkpoint_id: int) -> None:
        with self._lock:
            self._queue.append(checkpoint_id)
            if not self._idle.is_set():
                return
            self._idle.clear()
        try:
            start_thread("completion of checkpoints", self._work)
        except BaseException:
            with self._lock:
                self._queue.clear()
                self._idle.set()
            raise

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._queue:
                    self._idle.set()
                    return
                checkpoint_id = self._queue.popleft()
            try:
                self._complete(checkpoint_id)
            except BaseException:
                # The next one follows, whatever has become of one of them.
                logger.exception("checkpoint %d was not completed", checkpoint_id)

    def _complete(self, checkpoint_id: int) -> None:
        draft = self._standing.draft(checkpoint_id)
        assert draft is not None, "it is kept until the coordinator has an answer"
        try:
            instructions = self._store(checkpoint_id, draft)
            self.execute(instructions)
            completed = any(isinstance(one, Completed) for one in instructions)
            # Another driver may go on from one that is still there, and publish under its id.
            if not completed and self._storage.is_gone(checkpoint_id):
                draft.pending_committables.unlist(checkpoint_id)
        except BaseException as error:
            draft.broken = error
            why = f"completing checkpoint {checkpoint_id} failed: {type(error).__name__}: {error}"
            self._fail_job(error if isinstance(error, HoldfastError) else CheckpointError(why))
        finally:
            try:
                self._savepoints.tidy(checkpoint_id)
            finally:
                draft.over.set()

    def _store(self, checkpoint_id: int, draft: CheckpointDraft) -> list[Instruction]:
        """Write the metadata; what the coordinator says to that."""
        standing = self._standing
        if not standing.is_pending(checkpoint_id):
            return standing.store_failed(checkpoint_id, "it was given up before")
        try:
            fault_point("before-metadata", checkpoint=checkpoint_id)
            metadata = self._write_metadata(checkpoint_id, draft, self._clock.now_ms())
            fault_point("after-metadata", checkpoint=checkpoint_id)
        except FencedError as error:
            self._fail_job(error)
            return standing.store_failed(checkpoint_id, str(error))
        except Exception as error:
            return standing.store_failed(checkpoint_id, f"{type(error).__name__}: {error}")
        return standing.stored(checkpoint_id, metadata)

    def _write_metadata(
        self, checkpoint_id: int, draft: CheckpointDraft, now: int
    ) -> CheckpointMetadata:
        storage = self._storage
        sources = source_snapshots(
            draft.position, draft.base, storage.files, checkpoint_id, draft.inline_below
        )
        metadata = draft.metadata(sources, storage.fence_number, now)
        storage.complete(metadata)
        return metadata

    def _completed(self, checkpoint_id: int) -> None:
        path = self._storage.path_of(checkpoint_id)
        draft = self._standing.complete(checkpoint_id)
        assert draft.stored is not None
        self._statistics.completed(checkpoint_id, Moment.of(self._clock), path)
        logger.info("checkpoint %d is complete: %s", checkpoint_id, path)
        published = self._publish(checkpoint_id, draft.stored, draft)
        self._savepoints.add(checkpoint_id, draft, self._storage.files)
        # A driver that has taken over may just be starting from it.
        claimed = self._standing.unclaimed() if published else None
        if claimed is not None:
            claimed.release()
        self.delete_again()
        if self._standing.litter:
            self.sweep()
        release(self._standing.processed(draft.stored), self._storage)
        self._notifier.completed(checkpoint_id)

    def _publish(
        self, checkpoint_id: int, metadata: CheckpointMetadata, draft: CheckpointDraft
    ) -> bool:
        """Publish the output of a checkpoint that is complete; whether all of it is out."""
        begun = self._clock.monotonic_ms()
        try:
            self._storage.keep_staged(metadata)
            self._commits.publish(metadata, draft.pending_committables, self._storage)
            self._statistics.published(checkpoint_id, self._clock.monotonic_ms() - begun)
            self._source_commits.completed(metadata)
        except Exception as error:
            what = f"publishing the output of checkpoint {checkpoint_id} failed"
            why = f"{what}: {type(error).__name__}: {error}"
            self._savepoints.fail(checkpoint_id, why)
            self._fail_job(error if isinstance(error, HoldfastError) else CheckpointError(why))
            return False
        return True

    # Whoever decided it does it

    def _aborted(self, checkpoint_id: int, reason: FailureReason, detail: str) -> None:
        why = reason.value + (f" ({detail})" if detail else "")
        self._statistics.failed(checkpoint_id, Moment.of(self._clock), why)
        logger.warning("checkpoint %d failed: %s", checkpoint_id, why)
        self._savepoints.fail(checkpoint_id, why)
        if not self._savepoints.alone:
            self._notifier.aborted(checkpoint_id)

    def delete_again(self) -> None:
        """Delete checkpoints that storage has not deleted when it was asked to."""
        for checkpoint_id, given_up in self._standing.undeleted().items():
            self._delete(checkpoint_id, given_up=given_up)

    def _delete(self, checkpoint_id: int, *, given_up: bool) -> None:
        self._standing.forget(checkpoint_id)
        try:
            self._storage.delete(checkpoint_id)
            self._standing.deleted(checkpoint_id)
            self._statistics.discarded(checkpoint_id)
        except FencedError as error:
            self._fail_job(error)
        except HoldfastError as error:
            self._standing.not_deleted(checkpoint_id, given_up=given_up)
            logger.warning(
                "checkpoint %d was not deleted, which is tried again: %s", checkpoint_id, error
            )
