"""Takes a job's checkpoints, from the trigger to the last upload.

An epoch carries the barrier, and its tasks leave local snapshots. A thread uploads them while the
next epochs run. When all parts are uploaded, the checkpoint is [completed](completion.py).
"""

from __future__ import annotations

import logging
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

from holdfast.checkpoint.completion import Completion
from holdfast.checkpoint.files.job_files import JobStorage
from holdfast.checkpoint.instructions import (
    CheckpointKind,
    DiscardCheckpoint,
    FailureReason,
    Finalize,
)
from holdfast.checkpoint.listeners import CheckpointNotifier, RequestedCheckpoints
from holdfast.checkpoint.pending import PendingCheckpoint
from holdfast.checkpoint.savepoint.requests import SavepointRequest
from holdfast.checkpoint.source_positions import SourceCommits, end_of
from holdfast.checkpoint.statistics import SAMPLE, CheckpointStatisticsKeeper
from holdfast.checkpoint.tracker import CheckpointTracker
from holdfast.checkpoint.uploads import Uploads
from holdfast.clock import Moment, SystemClock, monotonic
from holdfast.errors import CheckpointError
from holdfast.job.model import EpochOrder
from holdfast.job.threads import LOOK, TimeLimits, start_thread
from holdfast.runtime.plan import CheckpointOrder
from holdfast.storage.files import MOST_INLINE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from holdfast.checkpoint.commit.service import CommitService
    from holdfast.checkpoint.files.fence import Fence
    from holdfast.checkpoint.files.metadata import CheckpointMetadata
    from holdfast.checkpoint.instructions import Instruction
    from holdfast.checkpoint.pending import CheckpointBase
    from holdfast.checkpoint.savepoint.requests import CheckpointRequest, Savepoints
    from holdfast.checkpoint.subtask_upload import Uploaded
    from holdfast.checkpoint.worker_calls import WorkerCalls
    from holdfast.clock import Clock
    from holdfast.config.checkpointing import CheckpointSettings
    from holdfast.errors import HoldfastError
    from holdfast.job.model import EpochResult, JobPlan
    from holdfast.storage.files import JobCheckpointFiles


logger = logging.getLogger("holdfast")


LEAST_WORK_MS = 100
"""Least time that a task spends on channel state, even when a checkpoint is due."""
MOST_HANGING = 4
"""Uploads of aborted checkpoints that may hang at a time; with more, no new upload begins."""


class Checkpointer:
    """Takes the checkpoints of one job, over all its job attempts.

    A job without periodic checkpoints takes savepoints alone (`Savepoints.alone`).
    """

    def __init__(
        self,
        plan: JobPlan,
        settings: CheckpointSettings,
        files: JobCheckpointFiles,
        fence: Fence,
        calls: WorkerCalls,
        completed: list[CheckpointMetadata],
        next_id: int,
        on_failure: Callable[[HoldfastError], None],
        commits: CommitService,
        listeners: Iterable[Any] = (),
        *,
        savepoints: Savepoints,
        clock: Clock | None = None,
        time_limits: TimeLimits | None = None,
        most_inline: int = MOST_INLINE,
        most_hanging: int = MOST_HANGING,
        sample: int = SAMPLE,
    ) -> None:
        """Create a checkpointer without pending checkpoints.

        Args:
            plan: The compiled job.
            settings: How and where checkpoints are taken.
            files: The job's files in checkpoint storage.
            fence: This driver's right to write there.
            calls: Reaches the executors that hold the local snapshots.
            completed: Checkpoints that are complete already, oldest first.
            next_id: Id of the first new checkpoint.
            on_failure: Called from any thread when no more checkpoints can be taken.
            commits: Publishes output when its checkpoint is complete.
            listeners: Objects that are notified on the driver when checkpoints end.
            savepoints: The savepoints that are requested.
            clock: Decides when checkpoints are due and when they expire; the system's by default.
            time_limits: How long to wait for listeners, sources and calls that hang.
            most_inline: Most bytes of state inside the metadata of a checkpoint.
            most_hanging: Most uploads of aborted checkpoints that may hang.
            sample: Number of completed checkpoints that statistics take percentiles over.
        """
        self._most_inline = most_inline
        self._most_hanging = most_hanging
        self._plan = plan
        self._settings = settings
        self._storage = JobStorage(files, fence, completed)
        self._uploads = Uploads(plan, calls, files)
        self._on_failure = on_failure
        self._commits = commits
        self._time_limits = time_limits or TimeLimits()
        self._notifier = CheckpointNotifier(listeners, self._fail_job, self._time_limits)
        self._savepoints = savepoints
        self.requested = RequestedCheckpoints()
        self._clock = clock or SystemClock()
        self.tracker = CheckpointTracker(
            settings, self._clock, [metadata.checkpoint_id for metadata in completed], next_id
        )
        self.statistics = CheckpointStatisticsKeeper(sample)
        self._completion = Completion(
            self.tracker,
            self._storage,
            self._uploads,
            commits,
            SourceCommits(plan, self._time_limits),
            savepoints,
            self._notifier,
            self.requested,
            self.statistics,
            self._clock,
            self._time_limits,
            self._fail_job,
        )
        self._epoch_ms = 0
        self._uploading: dict[int, threading.Event] = {}
        """One event for each upload that runs, set at its end; the checkpoint may be aborted."""

    # Job attempts

    def end_attempt(self) -> frozenset[int]:
        """Abort the pending checkpoints of the last job attempt.

        Returns the ids that may still look complete in storage, and must not be restored.
        """
        self.tracker.end_attempt()
        self.requested.give_up(FailureReason.JOB_RESTARTING.value)
        self._execute(self.tracker.abort_all(FailureReason.JOB_RESTARTING))
        self._completion.retry_deletions()
        return self.tracker.in_doubt

    def wait_for_completion(self) -> None:
        """Wait until nothing of the last job attempt is published any more.

        Raises:
            CheckpointError: A publication takes too long.
        """
        seconds = self._commits.longest
        if not self._completion.wait(seconds):
            raise CheckpointError(
                f"{self._storage.files.root}: a checkpoint that the job was completing when it "
                f"failed has not ended within {seconds:.0f} s, so the job cannot be restored yet; "
                "check that checkpoint storage responds"
            )

    def replan(self, plan: JobPlan) -> None:
        """Go on with another plan of the same job; no job attempt runs."""
        self._plan = plan
        self._uploads.replan(plan)

    def begin_attempt(self, base: CheckpointBase) -> None:
        """Begin another job attempt."""
        if base.metadata is not None:
            self._storage.adopt(base.metadata)
        self.tracker.begin_attempt(base)

    # Epochs

    def next_epoch(
        self,
        *,
        idle: bool,
        last: bool = False,
        plain: bool = False,
        request: CheckpointRequest | None = None,
    ) -> EpochOrder | None:
        """The order for the next epoch, as `CheckpointService.next_epoch` says."""
        self.expire()
        self._storage.check_fence_sometimes(self._clock.monotonic_ms())
        tracker = self.tracker
        with tracker.lock:
            now = self._clock.monotonic_ms()
            tracker.raise_failure()
            coordinator = tracker.coordinator
            wanted = tracker.has_uncovered_epochs and (last or coordinator.due(now))
            requested = self.requested.is_waiting and not (plain or coordinator.is_full)
            wanted = wanted or requested
            if idle and request is None and not wanted:
                return None
            # An epoch also carries a checkpoint that becomes due while it runs. The length of the
            # last epoch is the estimate.
            due_by = now if idle else now + self._epoch_ms
            due = coordinator.next_due(now)
            # The next interval begins when this one is due, however long the epoch takes.
            start = due if due is not None and due <= due_by else now
            next_id = coordinator.next_id
            kind = CheckpointKind.FORCED if last else CheckpointKind.PERIODIC
            if request is not None:
                kind = self._savepoints.kind
            begun = None if plain else coordinator.trigger(start, self._plan.tasks, kind=kind)
            if begun is None and requested:
                begun = coordinator.trigger(now, self._plan.tasks, kind=CheckpointKind.FORCED)
            checkpoint = None if begun is None else self._begin(begun, request)
            base = tracker.base
            assert base is not None, "a job attempt has begun"
        # An epoch with a savepoint, or the last one before a rescale, processes all its input.
        cut = None if idle or request is not None else self._settings.cut_after(now, due)
        completed, aborted = self._notifier.take()
        return EpochOrder(
            checkpoint,
            next_id,
            completed,
            aborted,
            idle=idle,
            cut_at=None if cut is None else self._clock.now_ms() + cut,
            cut_within_ms=cut or 0,
            least_work_ms=max(LEAST_WORK_MS, (self._settings.interval_ms or 0) // 4),
            kept_snapshots=tracker.local_snapshots.order(next_id),
            held={} if not checkpoint or (request and request.is_savepoint) else base.versions(),
            staging=self._commits.staging(),
            job_attempt=base.job.job_attempt,
        )

    def _begin(self, checkpoint_id: int, request: CheckpointRequest | None) -> CheckpointOrder:
        """Record a new checkpoint, and return its order."""
        now = Moment.of(self._clock)
        self._uploads.begin(checkpoint_id)
        self.tracker.local_snapshots.begun(checkpoint_id)
        self.requested.begun(checkpoint_id)
        tasks = len(self._plan.tasks)
        is_savepoint = isinstance(request, SavepointRequest)
        self.statistics.begun(checkpoint_id, now, tasks, is_savepoint=is_savepoint)
        if request is not None:
            self._savepoints.begin(checkpoint_id, request)
        return CheckpointOrder(checkpoint_id, now.wall_ms)

    def expire(self) -> None:
        """Abort the checkpoints that have reached their timeout."""
        self._execute(self.tracker.expire())

    def epoch_completed(self, order: EpochOrder, result: EpochResult, batch_id: int) -> None:
        """Record an epoch, and start the upload of the checkpoint that it carried."""
        checkpoint = order.checkpoint
        wanted = checkpoint is not None and self.tracker.is_pending(checkpoint.id)
        if checkpoint is not None and not wanted:
            # It was aborted while the epoch ran.
            self._savepoints.leave_unwritten(checkpoint.id)
        if not self.tracker.is_running(order.job_attempt):
            return
        self._epoch_ms = result.statistics.duration_ms
        self._uploads.record_locations(result.reports)
        self.tracker.epoch_completed(result.channel_rows, covered=wanted)
        if checkpoint is None or not wanted:
            return
        pending = self._new_pending(checkpoint, result, batch_id)
        if not self.tracker.add(pending):
            self._savepoints.leave_unwritten(checkpoint.id)
            # It was discarded before the files of its base were kept for it.
            self._execute([DiscardCheckpoint(checkpoint.id)])
            return
        self.statistics.epoch_ended(
            checkpoint.id,
            Moment.of(self._clock),
            result.statistics.epoch,
            pending.persisted_size,
        )
        self._start_upload(pending)
        if not self._settings.asynchronous:
            self._wait_for(pending)
            if pending.error is not None:
                raise pending.error
            self.tracker.raise_failure()

    def await_final_checkpoint(self) -> bool:
        """Wait for the checkpoint taken last; whether it covers all epochs."""
        pending = self.tracker.newest
        if pending is not None:
            self._wait_for(pending)
        return not self.tracker.has_uncovered_epochs

    def epoch_failed(self, order: EpochOrder, problem: str | None = "") -> None:
        """Abort the checkpoint that a failed epoch carried.

        Args:
            order: The epoch.
            problem: Why it failed; None if someone has stopped the job.
        """
        if order.checkpoint is not None:
            stopped = problem is None
            reason = FailureReason.JOB_STOPPED if stopped else FailureReason.EPOCH_FAILED
            self._fail(order.checkpoint.id, reason, problem or "")
            self._savepoints.leave_unwritten(order.checkpoint.id)

    def close(self) -> None:
        """Abort all pending checkpoints, wait for running work, and delete their files.

        Work that hangs is left alone. It can do no harm: it publishes nothing, and its checkpoint
        is aborted.
        """
        self.requested.give_up(FailureReason.JOB_STOPPED.value)
        self._execute(self.tracker.abort_all(FailureReason.JOB_STOPPED))
        ended = self._wait_for_all(self._time_limits.end)
        if not ended:
            self._time_limits.stop_waiting()
            ended = self._wait_for_all(self._time_limits.end)
        self.tracker.close()
        self.requested.close(FailureReason.JOB_STOPPED.value)
        if ended:
            self._completion.retry_deletions()
            self._completion.delete_unfinished()
            return
        self._commits.abandon()
        logger.error(
            "%s: the upload of an aborted checkpoint hangs, so the job's checkpoints are kept; "
            "check that checkpoint storage responds",
            self._storage.files.root,
        )

    def drop_staged(self) -> None:
        """Delete staged rows that no checkpoint will publish: the job has ended."""
        # A checkpoint in doubt may still look complete, and lists staged rows.
        if not self.tracker.in_doubt:
            self._storage.delete_unlisted(None)

    def _wait_for(self, pending: PendingCheckpoint) -> None:
        """Wait until a checkpoint has ended, or the job has stopped waiting.

        Raises:
            CheckpointError: It has not ended long after its timeout.
        """
        limit = self._settings.timeout_ms / 1000 + self._commits.longest
        until = monotonic() + limit
        while not self._time_limits.wait(pending.ended, LOOK) and not self._time_limits.has_stopped:
            self.expire()
            if monotonic() >= until:
                raise CheckpointError(
                    f"{self._storage.files.root}: a checkpoint has not ended within "
                    f"{limit:.0f} s; check that checkpoint storage responds"
                )

    def _wait_for_all(self, seconds: float) -> bool:
        """Wait until no checkpoint is uploaded or completed; False after `seconds`."""
        until = monotonic() + seconds
        for ended in tuple(self._uploading.values()):
            self._time_limits.wait(ended, until - monotonic())
        return self._completion.wait(until - monotonic()) and not self._uploading

    def _new_pending(
        self, checkpoint: CheckpointOrder, result: EpochResult, batch_id: int
    ) -> PendingCheckpoint:
        with self.tracker.lock:
            base = self.tracker.base
            assert base is not None
            # Under the lock: otherwise the files of the base could be released in between.
            self._storage.build_upon(checkpoint.id, base.metadata)
        position = base.capture(batch_id, None if base.metadata is None else end_of(base.metadata))
        return PendingCheckpoint(
            self._plan,
            self._settings,
            checkpoint,
            result,
            base,
            position,
            self._commits.pending_committables,
            self._savepoints.target(checkpoint.id),
            most_inline=self._most_inline,
        )

    # The asynchronous phase

    def _start_upload(self, pending: PendingCheckpoint) -> None:
        # Every upload of an aborted checkpoint may hang, so their number is limited.
        if len(self._uploading) >= self._settings.max_concurrent + self._most_hanging:
            why = (
                f"{len(self._uploading)} uploads of earlier checkpoints have not ended; "
                "check that checkpoint storage responds"
            )
            self._fail(pending.id, FailureReason.CHECKPOINT_ASYNC_EXCEPTION, why)
            self._savepoints.leave_unwritten(pending.id)
            return
        self._savepoints.write(pending.id)
        self._uploading[pending.id] = threading.Event()
        start_thread(f"upload of checkpoint {pending.id}", partial(self._upload, pending))

    def _upload(self, pending: PendingCheckpoint) -> None:
        finalizing = False
        try:
            for task, stores in self._uploads.run(pending):
                finalizing |= self._acknowledge(pending, task, stores)
        except BaseException as error:
            self._fail(
                pending.id,
                FailureReason.CHECKPOINT_ASYNC_EXCEPTION,
                f"{type(error).__name__}: {error}",
            )
        finally:
            ended = self._uploading.pop(pending.id)
            try:
                if not finalizing:
                    self._savepoints.tidy(pending.id)
            finally:
                ended.set()

    def _acknowledge(
        self, pending: PendingCheckpoint, task: tuple[int, int], stores: list[Uploaded]
    ) -> bool:
        """Acknowledge a task's part; whether it was the last one."""
        now = Moment.of(self._clock)
        figures = [pending.figures(store, now.wall_ms) for store in stores]
        self.statistics.acknowledged(pending.id, now, figures)
        instructions = self.tracker.acknowledge(pending.id, task)
        self._execute(instructions)
        return any(isinstance(one, Finalize) for one in instructions)

    def _fail(self, checkpoint_id: int, reason: FailureReason, detail: str) -> None:
        self._execute(self.tracker.fail(checkpoint_id, reason, detail))

    def _execute(self, instructions: list[Instruction]) -> None:
        self._completion.execute(instructions)

    def _fail_job(self, error: HoldfastError) -> None:
        if self.tracker.record_failure(error):
            self._on_failure(error)
