"""Taking a job's checkpoints, from the order of an epoch to the last upload.

An epoch carries the barrier; its tasks leave local snapshots behind. From there on the
epochs go on, and a thread uploads the snapshots. When all parts are there, the checkpoint is
[completed](completion.py).
"""

from __future__ import annotations

import logging
import threading
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from holdfast.checkpoint.completion import Completion
from holdfast.checkpoint.failures import FailureReason
from holdfast.checkpoint.files.job_files import JobStorage
from holdfast.checkpoint.instructions import CheckpointKind, Finalize
from holdfast.checkpoint.listeners import CheckpointNotifier
from holdfast.checkpoint.pending import CheckpointDraft, held_by
from holdfast.checkpoint.source_positions import SourceCommits, end_of
from holdfast.checkpoint.standing import Footing, Standing
from holdfast.checkpoint.statistics import CheckpointStatisticsKeeper
from holdfast.checkpoint.uploads import Uploads
from holdfast.clock import Moment, SystemClock, monotonic
from holdfast.errors import CheckpointError
from holdfast.job.model import EpochOrder
from holdfast.job.threads import LOOK, Patience, start_thread
from holdfast.runtime.plan import CheckpointOrder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from holdfast.checkpoint.commit.service import CommitService
    from holdfast.checkpoint.files.fence import Fence
    from holdfast.checkpoint.files.metadata import CheckpointMetadata
    from holdfast.checkpoint.instructions import Instruction
    from holdfast.checkpoint.local_state import LocalSnapshots
    from holdfast.checkpoint.savepoint.ownership import ClaimedSnapshot
    from holdfast.checkpoint.savepoint.requests import SavepointRequest, Savepoints
    from holdfast.checkpoint.standing import Capture
    from holdfast.checkpoint.subtask_upload import Upload, Uploaded
    from holdfast.checkpoint.worker_calls import WorkerCalls
    from holdfast.clock import Clock
    from holdfast.config.checkpointing import CheckpointSettings
    from holdfast.errors import HoldfastError
    from holdfast.job.model import EpochResult, JobIdentity, JobPlan
    from holdfast.storage.files import JobCheckpointFiles


logger = logging.getLogger("holdfast")


LEAST_WORK_MS = 100


"""Time that a task gets at least for input left over before, be checkpoints due or not."""

MOST_HANGING = 4


"""Uploads of checkpoints that were given up, and hang; with more of them, no other begins."""


class Checkpointer:
    """Takes the checkpoints of one job, over all its job attempts."""

    completion: ClassVar[type[Completion]] = Completion
    """How they are completed."""

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
        patience: Patience | None = None,
    ) -> None:
        """No checkpoint is under way.

        Args:
            plan: The compiled job.
            settings: How and where checkpoints are taken.
            files: The job's files in checkpoint storage.
            fence: This driver's right to write there.
            calls: Reaches the executors that hold the local snapshots.
            completed: Complete checkpoints that are there already, oldest first.
            next_id: Id of the first checkpoint.
            on_failure: Told, from any thread, when checkpoints can no longer be taken.
            commits: Brings output out when its checkpoint is complete.
            listeners: Objects that are told on the driver how checkpoints end.
            savepoints: Those under way.
            clock: Tells when they are due and when they expire; the system's if not given.
            patience: How long listeners, sources, and all that hangs are waited for.
        """
        self._plan = plan
        self._settings = settings
        self._storage = JobStorage(files, fence, completed)
        self._uploads = Uploads(plan, calls, files)
        self._on_failure = on_failure
        self._commits = commits
        self._patience = patience or Patience()
        self._notifier = CheckpointNotifier(listeners, self._fail_job, self._patience)
        self._savepoints = savepoints
        self._clock = clock or SystemClock()
        self._standing = Standing(
            settings, self._clock, [metadata.checkpoint_id for metadata in completed], next_id
        )
        self.statistics = CheckpointStatisticsKeeper()
        self._completion = self.completion(
            self._standing,
            self._storage,
            self._uploads,
            commits,
            SourceCommits(plan, self._patience),
            savepoints,
            self._notifier,
            self.statistics,
            self._clock,
            self._patience,
            self._fail_job,
        )
        self._epoch_ms = 0
        self._uploading: dict[int, threading.Event] = {}
        """Uploads under way, given up or not: what is set when they have ended."""

    # What a job attempt is told and tells

    def end_attempt(self) -> frozenset[int]:
        """Give up what the job attempt before has begun.

        Returns the checkpoints that may still turn up in storage, and are no longer wanted.
        """
        self._standing.end()
        self._execute(self._standing.abort_all(FailureReason.JOB_RESTARTING))
        self._completion.delete_again()
        return self._standing.in_doubt

    def wait_for_completion(self) -> None:
        """Wait until nothing is published of the job attempt before, and nothing will be.

        Raises:
            CheckpointError: Something has been for too long.
        """
        seconds = self._commits.longest
        if not self._completion.wait(seconds):
            raise CheckpointError(
                f"{self._storage.files.root}: a checkpoint that the job was completing when it "
                f"failed has not come to its end within {seconds:.0f} s, so the job cannot go "
                "back to one yet; look whether checkpoint storage answers"
            )

    def begin_attempt(
        self,
        job: JobIdentity,
        base: CheckpointMetadata | None,
        inherited: frozenset[tuple[str, int]],
        capture: Capture,
        origin: str = "",
    ) -> None:
        """Go on with another job attempt, which was restored from `base`.

        Args:
            job: Names it.
            base: The checkpoint of the job itself that it was restored from, if it was.
            inherited: Stores that took over the files of `base` as they are.
            capture: Tells how far the sources have been read.
            origin: Names the snapshot that the job's first checkpoint began from.
        """
        if base is not None:
            self._storage.adopt(base)
        self._standing.begin(Footing(job, base, inherited, capture, origin))

    def claim(self, snapshot: ClaimedSnapshot) -> None:
        """Delete a snapshot that the job was started from, when enough checkpoints are there."""
        self._standing.claim(snapshot)

    def order(
        self,
        *,
        idle: bool,
        last: bool = False,
        plain: bool = False,
        savepoint: SavepointRequest | None = None,
    ) -> EpochOrder | None:
        """What the next epoch is told; for one without input, None if it need not run.

        Args:
            idle: Whether the epoch has no input, and would run for the checkpoint alone.
            last: Whether all input is processed, so that it need not be due.
            plain: Whether it carries no checkpoint, be it due or not.
            savepoint: A savepoint that the epoch is to carry.
        """
        self.expire()
        self._storage.check_fence_sometimes(self._clock.monotonic_ms())
        standing = self._standing
        with standing.lock:
            now = self._clock.monotonic_ms()
            standing.raise_failure()
            coordinator = standing.coordinator
            wanted = standing.changed and (last or coordinator.due(now))
            if idle and savepoint is None and not wanted:
                return None
            # An epoch carries the checkpoint that becomes due while it runs, so that one starts at
            # the first end of an epoch after it is due; how long it takes, the last one tells.
            due_by = now if idle else now + self._epoch_ms
            due = coordinator.next_due(now)
            # No later than it is due: the next interval begins there, however long epochs take.
            start = due if due is not None and due <= due_by else now
            next_id = coordinator.next_id
            kind = CheckpointKind.FORCED if last else CheckpointKind.PERIODIC
            if savepoint is not None:
                kind = self._savepoints.kind
            begun = None if plain else coordinator.trigger(start, self._plan.tasks, kind=kind)
            checkpoint = None if begun is None else self._begin(begun, savepoint)
            footing = standing.footing
            assert footing is not None, "a job attempt has begun"
            base = footing.base
        # Nothing is left over where a savepoint is taken.
        cut = None if idle or savepoint is not None else self._settings.cut_after(now, due)
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
            kept_snapshots=standing.local_snapshots.order(next_id),
            held={} if savepoint or not checkpoint else held_by(base, footing.job),
            staging=self._commits.staging(),
            job_attempt=footing.job.job_attempt,
        )

    def _begin(self, checkpoint_id: int, savepoint: SavepointRequest | None) -> CheckpointOrder:
        """Record a checkpoint that begins; returns what its epoch is told of it."""
        now = Moment.of(self._clock)
        self._uploads.begin(checkpoint_id)
        self._standing.local_snapshots.begun(checkpoint_id)
        self.statistics.begun(checkpoint_id, now, len(self._plan.tasks))
        if savepoint is not None:
            self._savepoints.begin(checkpoint_id, savepoint)
        return CheckpointOrder(checkpoint_id, now.wall_ms)

    def expire(self) -> None:
        """Give up checkpoints that have taken too long."""
        self._execute(self._standing.expire())

    def taken(self, order: EpochOrder, result: EpochResult, batch_id: int) -> None:
        """An epoch has ended well; if it carried a checkpoint, upload that."""
        checkpoint = order.checkpoint
        wanted = checkpoint is not None and self._standing.is_pending(checkpoint.id)
        if checkpoint is not None and not wanted:
            # It was given up while the epoch ran.
            self._savepoints.leave_unwritten(checkpoint.id)
        if not self._standing.runs(order.job_attempt):
            return
        self._epoch_ms = result.statistics.duration_ms
        self._uploads.learn(result.reports)
        self._standing.epoch_taken(result.channel_rows, contained=wanted)
        if checkpoint is None or not wanted:
            return
        draft, inherited = self._draft(checkpoint, result, batch_id)
        if not self._standing.add(checkpoint.id, draft):
            self._savepoints.leave_unwritten(checkpoint.id)
            return
        uploads = list(draft.uploads(inherited))
        self.statistics.epoch_ended(
            checkpoint.id,
            Moment.of(self._clock),
            result.statistics.epoch,
            draft.persisted_size,
        )
        self._start_upload(checkpoint.id, draft, uploads)
        if not self._settings.asynchronous:
            self._wait_for(draft)
            if draft.broken is not None:
                raise draft.broken
            self._standing.raise_failure()

    def settle(self) -> bool:
        """Wait for the end of the checkpoint taken last; whether it contains everything."""
        draft = self._standing.newest
        if draft is not None:
            self._wait_for(draft)
        return not self._standing.changed

    def missed(self, order: EpochOrder) -> None:
        """An epoch has failed, and with it the checkpoint it carried."""
        if order.checkpoint is not None:
            self._fail(order.checkpoint.id, FailureReason.EPOCH_FAILED, "")
            self._savepoints.leave_unwritten(order.checkpoint.id)

    def close(self, reason: FailureReason = FailureReason.JOB_STOPPED) -> None:
        """Abort what is pending, wait for what is at work, and sweep up.

        What does not come to its end is left alone. It can do no harm any more: it publishes
        nothing, and what it has begun was given up.
        """
        self._execute(self._standing.abort_all(reason))
        ended = self._wait_for_all(self._patience.end)
        if not ended:
            self._patience.lose()
            ended = self._wait_for_all(self._patience.end)
        self._standing.close()
        if ended:
            self._completion.delete_again()
            self._completion.sweep()
            return
        self._commits.abandon()
        logger.error(
            "%s: a checkpoint that was given up is still being written, and does not come to its "
            "end; the job's checkpoints stay. Look whether checkpoint storage answers",
            self._storage.files.root,
        )

    def drop_staged(self) -> None:
        """Remove rows that wait for a checkpoint which does not come: the job has ended."""
        # What is in doubt may still be found complete, and lists rows that were staged.
        if not self._standing.in_doubt:
            self._storage.sweep_staged(None)

    @property
    def is_in_doubt(self) -> bool:
        """Whether a checkpoint that was given up may still be found complete."""
        return bool(self._standing.in_doubt)

    @property
    def retained(self) -> tuple[int, ...]:
        """Ids of the complete checkpoints that are kept, oldest first."""
        return self._standing.retained

    @property
    def local_snapshots(self) -> LocalSnapshots:
        """Which local snapshots are still wanted."""
        return self._standing.local_snapshots

    def _wait_for(self, draft: CheckpointDraft) -> None:
        """Wait until a checkpoint has ended; unless the job has lost its patience.

        Raises:
            CheckpointError: It has not, though it should have been given up long ago.
        """
        limit = self._settings.timeout_ms / 1000 + self._commits.longest
        until = monotonic() + limit
        while not self._patience.wait(draft.over, LOOK) and not self._patience.is_lost:
            self.expire()
            if monotonic() >= until:
                raise CheckpointError(
                    f"{self._storage.files.root}: a checkpoint has not come to its end within "
                    f"{limit:.0f} s; look whether checkpoint storage answers"
                )

    def _wait_for_all(self, seconds: float) -> bool:
        """Wait until nothing is at work for any checkpoint, at most so long; whether nothing is."""
        until = monotonic() + seconds
        for ended in tuple(self._uploading.values()):
            self._patience.wait(ended, until - monotonic())
        return self._completion.wait(until - monotonic()) and not self._uploading

    def _draft(
        self, checkpoint: CheckpointOrder, result: EpochResult, batch_id: int
    ) -> tuple[CheckpointDraft, frozenset[tuple[str, int]]]:
        """A draft of what the epoch has left, and the stores that build upon its base."""
        with self._standing.lock:
            footing = self._standing.footing
            assert footing is not None
            base, inherited = footing.base, footing.inherited
            # With the lock: the files of the base must not be given free in between.
            self._storage.build_upon(checkpoint.id, base)
        position = footing.capture(batch_id, None if base is None else end_of(base))
        draft = CheckpointDraft(
            self._plan,
            footing.job,
            self._settings,
            checkpoint,
            result,
            position,
            base,
            self._commits.pending_committables,
            self._savepoints.target(checkpoint.id),
            footing.origin,
        )
        return draft, inherited

    # The asynchronous phase

    def _start_upload(
        self, checkpoint_id: int, draft: CheckpointDraft, uploads: list[Upload]
    ) -> None:
        # Of one checkpoint that is given up after another, an upload may hang each time.
        if len(self._uploading) >= self._settings.max_concurrent + MOST_HANGING:
            why = (
                f"{len(self._uploading)} uploads of earlier checkpoints have not come to an end; "
                "look whether checkpoint storage answers"
            )
            self._fail(checkpoint_id, FailureReason.CHECKPOINT_ASYNC_EXCEPTION, why)
            self._savepoints.leave_unwritten(checkpoint_id)
            return
        self._savepoints.write(checkpoint_id)
        self._uploading[checkpoint_id] = threading.Event()
        work = partial(self._upload, checkpoint_id, draft, uploads)
        start_thread(f"upload of checkpoint {checkpoint_id}", work)

    def _upload(self, checkpoint_id: int, draft: CheckpointDraft, uploads: list[Upload]) -> None:
        handed_over = False
        try:
            for task, stores in self._uploads.run(checkpoint_id, draft, uploads):
                handed_over |= self._acknowledge(checkpoint_id, draft, task, stores)
        except BaseException as error:
            self._fail(
                checkpoint_id,
                FailureReason.CHECKPOINT_ASYNC_EXCEPTION,
                f"{type(error).__name__}: {error}",
            )
        finally:
            ended = self._uploading.pop(checkpoint_id)
            try:
                if not handed_over:
                    self._savepoints.tidy(checkpoint_id)
            finally:
                ended.set()

    def _acknowledge(
        self,
        checkpoint_id: int,
        draft: CheckpointDraft,
        task: tuple[int, int],
        stores: list[Uploaded],
    ) -> bool:
        """Hand in a task's part; whether that was the last, so that others go on from here."""
        now = Moment.of(self._clock)
        figures = [draft.figures(store, now.wall_ms) for store in stores]
        self.statistics.acknowledged(checkpoint_id, now, figures)
        instructions = self._standing.acknowledge(checkpoint_id, task)
        self._execute(instructions)
        return any(isinstance(one, Finalize) for one in instructions)

    def _fail(self, checkpoint_id: int, reason: FailureReason, detail: str) -> None:
        self._execute(self._standing.fail(checkpoint_id, reason, detail))

    def _execute(self, instructions: list[Instruction]) -> None:
        self._completion.execute(instructions)

    def _fail_job(self, error: HoldfastError) -> None:
        if self._standing.failed(error):
            self._on_failure(error)


class SavepointCompletion(Completion):
    """Completes savepoints; of the checkpoint itself, nothing is kept."""

    def _write_metadata(
        self, checkpoint_id: int, draft: CheckpointDraft, now: int
    ) -> CheckpointMetadata:
        metadata = draft.metadata([], self._storage.fence_number, now)
        return self._savepoints.store(checkpoint_id, draft, metadata, draft.position)

    def _completed(self, checkpoint_id: int) -> None:
        self._standing.forget(checkpoint_id)
        self._standing.local_snapshots.completed(checkpoint_id, {})
        path = self._storage.path_of(checkpoint_id)
        self._statistics.completed(checkpoint_id, Moment.of(self._clock), path)
        self._savepoints.complete(checkpoint_id)


class SavepointTaker(Checkpointer):
    """Takes savepoints as a `Checkpointer` does."""

    completion = SavepointCompletion
