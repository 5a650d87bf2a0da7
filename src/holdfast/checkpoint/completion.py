"""Executes the coordinator's instructions: completes, publishes, aborts and deletes checkpoints.

One thread completes checkpoints, one after the other: it writes the metadata, publishes the
output and notifies the listeners. The next checkpoint waits in a queue, so its metadata never
lists output that is just being published. A recovery waits, with a time limit, until that queue is
empty. No lock is held while storage, sinks or listeners are called.
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
    Completed,
    DiscardCheckpoint,
    FailJob,
    FailureReason,
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
    from holdfast.checkpoint.files.job_files import JobStorage
    from holdfast.checkpoint.files.metadata import CheckpointMetadata
    from holdfast.checkpoint.instructions import Instruction
    from holdfast.checkpoint.listeners import CheckpointNotifier, RequestedCheckpoints
    from holdfast.checkpoint.pending import PendingCheckpoint
    from holdfast.checkpoint.savepoint.requests import Savepoints
    from holdfast.checkpoint.source_positions import SourceCommits
    from holdfast.checkpoint.statistics import CheckpointStatisticsKeeper
    from holdfast.checkpoint.tracker import CheckpointTracker
    from holdfast.checkpoint.uploads import Uploads
    from holdfast.clock import Clock
    from holdfast.job.threads import TimeLimits

logger = logging.getLogger("holdfast")


class Completion:
    """Completes, aborts and deletes the checkpoints of one job."""

    def __init__(
        self,
        tracker: CheckpointTracker,
        storage: JobStorage,
        uploads: Uploads,
        commits: CommitService,
        source_commits: SourceCommits,
        savepoints: Savepoints,
        notifier: CheckpointNotifier,
        requested: RequestedCheckpoints,
        statistics: CheckpointStatisticsKeeper,
        clock: Clock,
        time_limits: TimeLimits,
        fail_job: Callable[[HoldfastError], None],
    ) -> None:
        """Create a completion with nothing to do."""
        self._tracker = tracker
        self._storage = storage
        self._uploads = uploads
        self._commits = commits
        self._source_commits = source_commits
        self._savepoints = savepoints
        self._notifier = notifier
        self._requested = requested
        self._statistics = statistics
        self._clock = clock
        self._time_limits = time_limits
        self._fail_job = fail_job
        self._lock = threading.Lock()
        self._queue: deque[int] = deque()
        """Ids of checkpoints that all tasks have acknowledged, in the order they came."""
        self._idle = threading.Event()
        self._idle.set()

    def execute(self, instructions: list[Instruction]) -> None:
        """Execute the coordinator's instructions in order; the caller holds no lock.

        No instruction leads to another one here. `Finalize` is handed to the thread that
        completes checkpoints, which executes the coordinator's answer itself.
        """
        aborted: list[PendingCheckpoint] = []
        try:
            for instruction in instructions:
                if isinstance(instruction, Aborted):
                    pending = self._tracker.aborted(instruction.id)
                    aborted += [] if pending is None else [pending]
                self._execute(instruction)
        finally:
            # Last of all: whoever waits for these then looks whether the job has failed.
            for pending in aborted:
                pending.ended.set()

    def _execute(self, instruction: Instruction) -> None:
        match instruction:
            case Finalize(checkpoint_id):
                self._enqueue(checkpoint_id)
            case Completed(checkpoint_id) if self._savepoints.alone:
                self._finish_savepoint(checkpoint_id)
            case Completed(checkpoint_id):
                self._finish_checkpoint(checkpoint_id)
            case Aborted(checkpoint_id, reason, detail):
                self._aborted(checkpoint_id, reason, detail)
                self._uploads.cancel(checkpoint_id)
            case DiscardCheckpoint(checkpoint_id):
                self._delete(checkpoint_id, aborted=True)
            case Retire(checkpoint_id):
                self._delete(checkpoint_id, aborted=False)
            case FailJob(reason):
                self._fail_job(CheckpointError(reason))
            case _:
                assert_never(instruction)

    def wait(self, seconds: float) -> bool:
        """Wait until no checkpoint is being completed; False after `seconds`."""
        return self._time_limits.wait(self._idle, seconds)

    # The thread that completes checkpoints

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
                # The next one is completed all the same.
                logger.exception("checkpoint %d was not completed", checkpoint_id)

    def _complete(self, checkpoint_id: int) -> None:
        pending = self._tracker.pending(checkpoint_id)
        assert pending is not None, "it is kept until the coordinator has an answer"
        try:
            instructions = self._store(pending)
            self.execute(instructions)
            completed = any(isinstance(one, Completed) for one in instructions)
            # While it is in storage, another driver may restore it, and publish under its id.
            if not completed and self._storage.is_gone(checkpoint_id):
                pending.pending_committables.unlist(checkpoint_id)
        except BaseException as error:
            pending.error = error
            why = f"completing checkpoint {checkpoint_id} failed: {type(error).__name__}: {error}"
            self._fail_job(error if isinstance(error, HoldfastError) else CheckpointError(why))
        finally:
            try:
                self._savepoints.tidy(checkpoint_id)
            finally:
                pending.ended.set()

    def _store(self, pending: PendingCheckpoint) -> list[Instruction]:
        """Write the metadata, and return the coordinator's answer to the outcome."""
        tracker, checkpoint_id = self._tracker, pending.id
        if not tracker.is_pending(checkpoint_id):
            return tracker.store_failed(checkpoint_id, "it was aborted before")
        write = self._write_savepoint if self._savepoints.alone else self._write_checkpoint
        try:
            fault_point("before-metadata", checkpoint=checkpoint_id)
            metadata = write(pending, self._clock.now_ms())
            fault_point("after-metadata", checkpoint=checkpoint_id)
        except FencedError as error:
            self._fail_job(error)
            return tracker.store_failed(checkpoint_id, str(error))
        except Exception as error:
            return tracker.store_failed(checkpoint_id, f"{type(error).__name__}: {error}")
        return tracker.stored(checkpoint_id, metadata)

    def _write_checkpoint(self, pending: PendingCheckpoint, now: int) -> CheckpointMetadata:
        storage = self._storage
        sources = source_snapshots(
            pending.position, pending.base.metadata, storage.files, pending.id, pending.inline_below
        )
        metadata = pending.metadata(sources, storage.fence.number, now)
        storage.complete(metadata)
        return metadata

    def _write_savepoint(self, pending: PendingCheckpoint, now: int) -> CheckpointMetadata:
        """Write the savepoint alone: the job keeps no checkpoints."""
        metadata = pending.metadata([], self._storage.fence.number, now)
        return self._savepoints.store(pending, metadata, pending.position)

    # After the metadata

    def _finish_savepoint(self, checkpoint_id: int) -> None:
        self._tracker.forget(checkpoint_id)
        self._tracker.local_snapshots.completed(checkpoint_id, {})
        self._record_completed(checkpoint_id)
        self._savepoints.complete(checkpoint_id)

    def _finish_checkpoint(self, checkpoint_id: int) -> None:
        pending = self._tracker.complete(checkpoint_id)
        assert pending.stored is not None
        path = self._record_completed(checkpoint_id)
        self._savepoints.checkpoint_completed(checkpoint_id, path)
        logger.info("checkpoint %d is complete: %s", checkpoint_id, path)
        published = self._publish(pending, pending.stored)
        savepoint = self._savepoints.add(pending, self._storage.files)
        if savepoint is not None:
            self._statistics.savepoint_completed(checkpoint_id, savepoint)
        if published:
            self._release_claimed()
            self._requested.completed(checkpoint_id)
        self.retry_deletions()
        if self._tracker.has_unfinished:
            self.delete_unfinished()
        release(self._tracker.unneeded_channel_state(pending.stored), self._storage)
        self._notifier.completed(checkpoint_id)

    def _record_completed(self, checkpoint_id: int) -> str:
        path = self._storage.path_of(checkpoint_id)
        self._statistics.completed(checkpoint_id, Moment.of(self._clock), path)
        return path

    def _publish(self, pending: PendingCheckpoint, metadata: CheckpointMetadata) -> bool:
        """Publish the output of a completed checkpoint; False if any of it is left."""
        begun = self._clock.monotonic_ms()
        try:
            self._storage.keep_staged(metadata)
            self._commits.publish(metadata, pending.pending_committables, self._storage)
            self._statistics.published(pending.id, self._clock.monotonic_ms() - begun)
            self._source_commits.completed(metadata)
        except Exception as error:
            what = f"publishing the output of checkpoint {pending.id} failed"
            why = f"{what}: {type(error).__name__}: {error}"
            self._savepoints.fail(pending.id, why)
            self._requested.failed(pending.id, why)
            self._fail_job(error if isinstance(error, HoldfastError) else CheckpointError(why))
            return False
        return True

    def _release_claimed(self) -> None:
        # Only after publishing, which checks the fence: another driver may restore the snapshot.
        claimed = self._tracker.take_claimed()
        if claimed is not None:
            claimed.release()

    def _aborted(self, checkpoint_id: int, reason: FailureReason, detail: str) -> None:
        why = reason.value + (f" ({detail})" if detail else "")
        self._statistics.failed(checkpoint_id, Moment.of(self._clock), why)
        level = logging.INFO if reason is FailureReason.JOB_STOPPED else logging.WARNING
        logger.log(level, "checkpoint %d failed: %s", checkpoint_id, why)
        self._savepoints.fail(checkpoint_id, why)
        self._requested.failed(checkpoint_id, why)
        if not self._savepoints.alone:
            self._notifier.aborted(checkpoint_id)

    # Deleting

    def delete_unfinished(self) -> None:
        """Delete the files that failed checkpoints have left in storage."""
        below = self._tracker.begin_deleting_unfinished()
        try:
            self._storage.delete_unfinished(below)
        except HoldfastError as error:
            self._tracker.delete_unfinished_failed()
            logger.warning(
                "files of failed checkpoints were not deleted; trying again later: %s", error
            )

    def retry_deletions(self) -> None:
        """Delete the checkpoints that storage failed to delete before."""
        for checkpoint_id, aborted in self._tracker.undeleted().items():
            self._delete(checkpoint_id, aborted=aborted)

    def _delete(self, checkpoint_id: int, *, aborted: bool) -> None:
        self._tracker.forget(checkpoint_id)
        try:
            self._storage.delete(checkpoint_id)
            self._tracker.deleted(checkpoint_id)
            self._statistics.discarded(checkpoint_id)
        except FencedError as error:
            self._fail_job(error)
        except HoldfastError as error:
            self._tracker.delete_failed(checkpoint_id, aborted=aborted)
            logger.warning(
                "checkpoint %d was not deleted; trying again later: %s", checkpoint_id, error
            )
