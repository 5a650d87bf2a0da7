"""Taking a job's checkpoints: carries out what the coordinator decides.

An epoch carries the barrier; its tasks leave local snapshots behind. From there on the
epochs go on, and a thread uploads the snapshots, writes the metadata and tells those
who wait for it. One lock guards the coordinator and all that hangs on it.
"""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from holdfast import faults
from holdfast.checkpoint.coordinator import Coordinator
from holdfast.checkpoint.failures import FailureReason
from holdfast.checkpoint.instructions import (
    Aborted,
    Begin,
    CancelUpload,
    CheckpointKind,
    Completed,
    DiscardCheckpoint,
    FailJob,
    Finalize,
    Retire,
)
from holdfast.checkpoint.job_storage import JobStorage
from holdfast.checkpoint.policy import CoordinatorPolicy
from holdfast.checkpoint.statistics import CheckpointStatisticsKeeper
from holdfast.clock import SystemClock
from holdfast.errors import CheckpointError, FencedError, HoldfastError
from holdfast.runtime.plan import CheckpointOrder
from holdfast.spark.checkpoint_draft import CheckpointDraft, held_by
from holdfast.spark.epochs import EpochOrder
from holdfast.spark.left_over import LeftOver, release
from holdfast.spark.notices import Notices
from holdfast.spark.query_log import capture
from holdfast.spark.source_commits import SourceCommits
from holdfast.spark.source_snapshots import end_of, source_snapshots
from holdfast.spark.uploads import Uploads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from holdfast.api.checkpoint_settings import CheckpointSettings
    from holdfast.checkpoint.claim import ClaimedSnapshot
    from holdfast.checkpoint.fence import Fence
    from holdfast.checkpoint.instructions import Instruction
    from holdfast.checkpoint.metadata import CheckpointMetadata
    from holdfast.checkpoint.storage import JobCheckpointFiles
    from holdfast.clock import Clock
    from holdfast.spark.compiler import JobPlan
    from holdfast.spark.epochs import EpochResult, JobIdentity
    from holdfast.spark.pinned_calls import PinnedCalls
    from holdfast.spark.publication import Publication
    from holdfast.spark.savepoints import SavepointRequest, Savepoints
    from holdfast.spark.snapshot_transfer import Upload, Uploaded

logger = logging.getLogger("holdfast")

LEAST_WORK_MS = 100
"""Time that a task gets at least for input left over before, be checkpoints due or not."""


class Checkpointer:
    """Takes the checkpoints of one job, over all its incarnations."""

    def __init__(
        self,
        plan: JobPlan,
        settings: CheckpointSettings,
        files: JobCheckpointFiles,
        fence: Fence,
        calls: PinnedCalls,
        completed: list[CheckpointMetadata],
        next_id: int,
        on_failure: Callable[[HoldfastError], None],
        publication: Publication,
        listeners: Iterable[Any] = (),
        *,
        savepoints: Savepoints,
        clock: Clock | None = None,
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
            publication: Brings output out when its checkpoint is complete.
            listeners: Objects that are told on the driver how checkpoints end.
            savepoints: Those under way.
            clock: Tells when they are due and when they expire; the system's if not given.
        """
        self._plan = plan
        self._settings = settings
        self._storage = JobStorage(files, fence, completed)
        self._uploads = Uploads(plan, calls, files)
        self._on_failure = on_failure
        self._publication = publication
        self._notices = Notices(listeners, self._fail_job)
        self._source_commits = SourceCommits(plan)
        self._savepoints = savepoints
        self._clock = clock or SystemClock()
        self._lock = threading.RLock()
        self._coordinator = Coordinator(
            CoordinatorPolicy.of(settings),
            now=self._clock.now_ms(),
            next_id=next_id,
            completed=[metadata.checkpoint_id for metadata in completed],
        )
        self._pool = ThreadPoolExecutor(settings.max_concurrent + 1, "holdfast-checkpoint")
        self._drafts: dict[int, CheckpointDraft] = {}
        self._failure: HoldfastError | None = None
        self._epoch_ms = 0
        self._changed = False
        """Whether there is an epoch that no checkpoint contains."""
        self._uploading: Future[None] | None = None
        self._obsolete: dict[tuple[str, int], str] = {}
        self._left_over = LeftOver()
        self._litter = False
        """Whether a checkpoint has failed that may have left files behind."""
        self.claimed: ClaimedSnapshot | None = None
        """What the job was started from, to be deleted when enough checkpoints are there."""
        self.statistics = CheckpointStatisticsKeeper()
        self.local_copies: dict[tuple[str, int], str] = {}
        """Local snapshots of the newest completed checkpoint, by uid and subtask."""

    # What an incarnation is told and tells

    def end_incarnation(self) -> frozenset[int]:
        """Give up what the incarnation before has begun.

        Returns the checkpoints that may still turn up in storage, and are no longer wanted.
        """
        now = self._clock.now_ms()
        with self._lock:
            self._carry_out(self._coordinator.abort_all(now, FailureReason.JOB_RESTARTING))
            return frozenset(self._coordinator.in_doubt)

    def begin_incarnation(
        self,
        job: JobIdentity,
        base: CheckpointMetadata | None,
        inherited: frozenset[tuple[str, int]],
        query_dir: Path,
        leaves: Mapping[str, tuple[int, ...]],
        origin: str = "",
    ) -> None:
        """Go on with another incarnation, which was restored from `base`.

        Args:
            job: Names it.
            base: The checkpoint of the job itself that it was restored from, if it was.
            inherited: Stores that took over the files of `base` as they are.
            query_dir: Directory of Spark's query.
            leaves: Which of Spark's sources are whose.
            origin: Names the snapshot that the job's first checkpoint began from.
        """
        with self._lock:
            if base is not None:
                self._coordinator.resume_after(base.checkpoint_id)
                self._storage.adopt(base)
            self._job = job
            self._base = base
            self._inherited = inherited
            self._query_dir = query_dir
            self._leaves = leaves
            self._origin = origin
            self._failure = None
            self._changed = False
            self._left_over = LeftOver()

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
        with self._lock:
            self.expire()
            now = self._clock.now_ms()
            self._storage.check_fence_sometimes(now)
            if self._failure is not None:
                raise self._failure
            wanted = self._changed and (last or self._coordinator.due(now))
            if idle and savepoint is None and not wanted:
                return None
            # An epoch carries the checkpoint that becomes due while it runs, so that one starts at
            # the first end of an epoch after it is due; how long it takes, the last one tells.
            due_by = now if idle else now + self._epoch_ms
            due = self._coordinator.next_due(now)
            # No later than it is due: the next interval begins there, however long epochs take.
            start = due if due is not None and due <= due_by else now
            participants = self._plan.tasks
            checkpoint = None
            next_id = self._coordinator.next_id
            kind = CheckpointKind.FORCED if last else CheckpointKind.PERIODIC
            if savepoint is not None:
                kind = self._savepoints.kind
            begun = [] if plain else self._coordinator.trigger(start, participants, kind=kind)
            for instruction in begun:
                if isinstance(instruction, Begin):
                    checkpoint = CheckpointOrder(instruction.id, now)
                    self._uploads.begin(instruction.id)
                    self.statistics.begun(instruction.id, now, len(participants))
                    if savepoint is not None:
                        self._savepoints.begin(instruction.id, savepoint)
            completed, aborted = self._notices.take()
            return EpochOrder(
                checkpoint,
                next_id,
                completed,
                aborted,
                idle=idle,
                # Nothing is left over where a savepoint is taken.
                cut_at=None if idle or savepoint is not None else self._settings.cut_at(now, due),
                least_work_ms=max(LEAST_WORK_MS, (self._settings.interval_ms or 0) // 4),
                held={} if savepoint or not checkpoint else held_by(self._base, self._job),
                staging=self._publication.staging(),
            )

    def expire(self) -> None:
        """Give up checkpoints that have taken too long."""
        with self._lock:
            self._carry_out(self._coordinator.expire(self._clock.now_ms()))

    def taken(self, order: EpochOrder, result: EpochResult, batch_id: int) -> None:
        """An epoch has ended well; if it carried a checkpoint, upload that."""
        if order.checkpoint is not None and order.checkpoint.id not in self._coordinator.pending:
            # It was given up while the epoch ran, with the incarnation that the epoch belongs to.
            return
        self._changed = True
        self._epoch_ms = result.statistics.duration_ms
        self._uploads.learn(result.reports)
        self._left_over.taken(result.channel_rows)
        if order.checkpoint is None:
            return
        checkpoint_id = order.checkpoint.id
        self._changed = False
        with self._lock:
            base = self._base
            position = capture(
                self._query_dir, batch_id, self._leaves, None if base is None else end_of(base)
            )
            draft = CheckpointDraft(
                self._plan,
                self._job,
                self._settings,
                order.checkpoint,
                result,
                position,
                base,
                self._publication.outbox,
                self._savepoints.target(checkpoint_id),
                self._origin,
            )
            self._drafts[checkpoint_id] = draft
            uploads = list(draft.uploads(self._inherited, self._obsolete))
            self._storage.build_upon(checkpoint_id, base)
            self.statistics.epoch_ended(
                checkpoint_id,
                self._clock.now_ms(),
                result.statistics.epoch,
                draft.persisted_size,
            )
        if self._settings.asynchronous:
            self._uploading = self._pool.submit(self._upload, checkpoint_id, uploads)
        else:
            self._upload(checkpoint_id, uploads)
            if self._failure is not None:
                raise self._failure

    def settle(self) -> bool:
        """Wait for the end of the checkpoint taken last; whether it contains everything."""
        if self._uploading is not None:
            self._uploading.result()
        return not self._changed

    def missed(self, order: EpochOrder) -> None:
        """An epoch has failed, and with it the checkpoint it carried."""
        if order.checkpoint is not None:
            self._fail(order.checkpoint.id, FailureReason.EPOCH_FAILED, "")

    def close(self, reason: FailureReason = FailureReason.JOB_STOPPED) -> None:
        """Abort what is pending, wait for what is at work, and sweep up."""
        with self._lock:
            self._carry_out(self._coordinator.abort_all(self._clock.now_ms(), reason))
        self._pool.shutdown(wait=True)
        self._sweep()

    def drop_staged(self) -> None:
        """Remove rows that wait for a checkpoint which does not come: the job has ended."""
        # What is in doubt may still be found complete, and lists rows that were staged.
        if not self._coordinator.in_doubt:
            self._storage.sweep_staged(None)

    def _sweep(self) -> None:
        """Remove what failed checkpoints have left in storage."""
        with self._lock:
            self._litter = False
            below = min([*self._coordinator.pending, self._coordinator.next_id])
        try:
            self._storage.sweep(below)
        except HoldfastError as error:
            logger.warning("checkpoint storage was not swept: %s", error)

    @property
    def retained(self) -> tuple[int, ...]:
        """Ids of the complete checkpoints that are kept, oldest first."""
        with self._lock:
            return self._coordinator.retained

    # The asynchronous phase

    def _upload(self, checkpoint_id: int, uploads: list[Upload]) -> None:
        try:
            draft = self._drafts[checkpoint_id]
            for task, stores in self._uploads.run(checkpoint_id, draft, uploads):
                self._acknowledge(checkpoint_id, task, stores)
        except Exception as error:
            self._fail(
                checkpoint_id,
                FailureReason.CHECKPOINT_ASYNC_EXCEPTION,
                f"{type(error).__name__}: {error}",
            )
        finally:
            self._savepoints.tidy(checkpoint_id)

    def _acknowledge(
        self, checkpoint_id: int, task: tuple[int, int], stores: list[Uploaded]
    ) -> None:
        now = self._clock.now_ms()
        with self._lock:
            draft = self._drafts.get(checkpoint_id)
            if draft is not None:
                self.statistics.acknowledged(
                    checkpoint_id, now, [draft.figures(store, now) for store in stores]
                )
            instructions = self._coordinator.acknowledge(checkpoint_id, task, now, stores)
        self._carry_out(instructions)

    def _fail(self, checkpoint_id: int, reason: FailureReason, detail: str) -> None:
        now = self._clock.now_ms()
        with self._lock:
            instructions = self._coordinator.fail(checkpoint_id, reason, now, detail)
        self._carry_out(instructions)

    def _carry_out(self, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case Finalize():
                    self._finalize(instruction)
                case Completed(checkpoint_id):
                    self._completed(checkpoint_id)
                case Aborted(checkpoint_id, reason, timestamp, detail):
                    self._aborted(checkpoint_id, reason, timestamp, detail)
                case CancelUpload(checkpoint_id):
                    self._uploads.cancel(checkpoint_id)
                case DiscardCheckpoint(checkpoint_id, _) | Retire(checkpoint_id):
                    self._delete(checkpoint_id)
                case FailJob(reason):
                    self._fail_job(CheckpointError(reason))

    def _finalize(self, order: Finalize) -> None:
        checkpoint_id = order.id
        with self._lock:
            draft = self._drafts[checkpoint_id]
        with self._publication.held():
            instructions = self._store(checkpoint_id, draft)
            self._carry_out(instructions)
            completed = any(isinstance(one, Completed) for one in instructions)
            # Another driver may go on from one that is still there, and publish under its id.
            if not completed and self._storage.is_gone(checkpoint_id):
                draft.outbox.unlist(checkpoint_id)

    def _store(self, checkpoint_id: int, draft: CheckpointDraft) -> list[Instruction]:
        """Write the metadata; what the coordinator says to that."""
        now = self._clock.now_ms()
        try:
            faults.reach("before-metadata", checkpoint=checkpoint_id)
            metadata = self._write_metadata(checkpoint_id, draft, now)
            faults.reach("after-metadata", checkpoint=checkpoint_id)
        except FencedError as error:
            self._fail_job(error)
            return self._coordinator_store_failed(checkpoint_id, str(error))
        except Exception as error:
            return self._coordinator_store_failed(checkpoint_id, f"{type(error).__name__}: {error}")
        with self._lock:
            draft.stored = metadata
            return self._coordinator.stored(checkpoint_id, self._clock.now_ms())

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

    def _coordinator_store_failed(self, checkpoint_id: int, why: str) -> list[Instruction]:
        with self._lock:
            return self._coordinator.store_failed(checkpoint_id, self._clock.now_ms(), why)

    def _completed(self, checkpoint_id: int) -> None:
        now = self._clock.now_ms()
        path = self._storage.path_of(checkpoint_id)
        with self._lock:
            draft = self._drafts.pop(checkpoint_id)
            assert draft.stored is not None
            if draft.stored.incarnation == self._job.incarnation:
                self._base = draft.stored
                self._inherited = frozenset(draft.versions)
            self._replace_local_copies(draft)
            self.statistics.completed(checkpoint_id, now, path)
        logger.info("checkpoint %d is complete: %s", checkpoint_id, path)
        try:
            self._storage.keep_staged(draft.stored)
            self._publication.publish(draft.stored, draft.outbox, self._storage)
            self.statistics.published(checkpoint_id, self._clock.now_ms() - now)
            self._source_commits.completed(draft.stored)
        except Exception as error:
            what = f"publishing the output of checkpoint {checkpoint_id} failed"
            why = f"{what}: {type(error).__name__}: {error}"
            self._savepoints.fail(checkpoint_id, why)
            self._fail_job(error if isinstance(error, HoldfastError) else CheckpointError(why))
        self._savepoints.add(checkpoint_id, draft, self._storage.files)
        self._release_claimed()
        if self._litter:
            self._sweep()
        if draft.stored.incarnation == self._job.incarnation:
            with self._lock:
                done = self._left_over.done(draft.stored)
            release(done, self._storage)
        self._notices.completed(checkpoint_id)

    def _release_claimed(self) -> None:
        if self.claimed is not None and len(self.retained) >= self._settings.num_retained:
            self.claimed.release()
            self.claimed = None

    def _replace_local_copies(self, draft: CheckpointDraft) -> None:
        if self._settings.local_backup:
            # The next upload, which goes to where they are, takes the old ones away.
            old, self.local_copies = self.local_copies, draft.local_copies_after(self.local_copies)
            self._obsolete |= {where: old[where] for where in draft.local_copies if where in old}

    def _aborted(
        self, checkpoint_id: int, reason: FailureReason, timestamp: int, detail: str
    ) -> None:
        why = reason.value + (f" ({detail})" if detail else "")
        with self._lock:
            self._litter = True
            self._changed = True
            self.statistics.failed(checkpoint_id, timestamp, why)
        logger.warning("checkpoint %d failed: %s", checkpoint_id, why)
        self._savepoints.fail(checkpoint_id, why)
        if not self._savepoints.alone:
            self._notices.aborted(checkpoint_id)

    def _delete(self, checkpoint_id: int) -> None:
        with self._lock:
            self._drafts.pop(checkpoint_id, None)
        try:
            self._storage.delete(checkpoint_id)
            self.statistics.discarded(checkpoint_id)
        except FencedError as error:
            self._fail_job(error)
        except HoldfastError as error:
            # It is left for a sweep; nothing depends on its being gone.
            logger.warning("checkpoint %d was not deleted: %s", checkpoint_id, error)

    def _fail_job(self, error: HoldfastError) -> None:
        with self._lock:
            if self._failure is not None:
                return
            self._failure = error
        self._on_failure(error)
