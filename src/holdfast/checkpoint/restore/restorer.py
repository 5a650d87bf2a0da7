"""Restores a job: finds the newest usable checkpoint, and builds the stores from it."""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from holdfast.checkpoint.commit.committables import staged_rows
from holdfast.checkpoint.files.channel_state import FileStaging
from holdfast.checkpoint.files.completed import (
    completed_checkpoints,
    load,
    lost_reason,
    verify_handles,
    written_ids,
)
from holdfast.checkpoint.files.endings import check_not_ended
from holdfast.checkpoint.files.fence import still_valid
from holdfast.checkpoint.files.layout import checkpoint_directory
from holdfast.checkpoint.files.ledger import claimed_by, lost_checkpoint, recorded_checkpoints
from holdfast.checkpoint.files.metadata import identity_of
from holdfast.checkpoint.files.used import highest_used
from holdfast.checkpoint.local_state import tidy_local_state
from holdfast.checkpoint.restore.assignment import assign_state
from holdfast.checkpoint.restore.checks import check_static_rows
from holdfast.checkpoint.restore.download import RestoreTarget, restore_one
from holdfast.checkpoint.restore.event_times import event_times_of
from holdfast.checkpoint.restore.pointer import find_snapshot, names_a_job
from holdfast.checkpoint.savepoint.requests import drained_reason
from holdfast.checkpoint.source_positions import position_of
from holdfast.clock import SystemClock, monotonic
from holdfast.config.checkpoint_options import ACCEPT_DUPLICATES
from holdfast.errors import CorruptCheckpointError, HoldfastError, KeyTypeError, RestoreError
from holdfast.job.model import StartingPoint
from holdfast.job.statistics import RestoreStatistics
from holdfast.runtime.plan import ChannelRows
from holdfast.state.store.process import ProcessIdentity
from holdfast.state.timers.table import KIND as TIMERS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from holdfast.checkpoint.files.metadata import CheckpointMetadata, OperatorSnapshot
    from holdfast.checkpoint.restore.download import Restore, Restored
    from holdfast.checkpoint.worker_calls import WorkerCalls
    from holdfast.config.backends import StateBackend
    from holdfast.job.model import JobIdentity, JobPlan, QueryPosition
    from holdfast.storage.files import JobCheckpointFiles

logger = logging.getLogger("holdfast")

LISTINGS = 5
"""How often storage is listed while another driver still retires checkpoints."""


@dataclass(frozen=True)
class RestoredJob:
    """The state that a job attempt starts from."""

    start: StartingPoint
    job: JobIdentity | None = None
    """The job attempt whose stores were built; it has another name after a fallback."""
    position: QueryPosition | None = None
    metadata: CheckpointMetadata | None = None
    """The checkpoint that was restored."""
    files: JobCheckpointFiles | None = None
    """The files of the checkpoint."""
    base: CheckpointMetadata | None = None
    """The checkpoint, if later ones may build on its files."""
    inherited: frozenset[tuple[str, int]] = frozenset()
    """Stores that use its files unchanged."""
    origin: str = ""
    """Names the snapshot that the job's first checkpoint began from."""
    statistics: RestoreStatistics | None = None

    @property
    def batch_id(self) -> int | None:
        """Last micro-batch that the state contains, or None."""
        return None if self.position is None else self.position.batch_id


FRESH = RestoredJob(StartingPoint())
"""A start without a checkpoint."""


class Restorer:
    """Restores the job attempts of one job."""

    def __init__(
        self,
        files: JobCheckpointFiles,
        pointer: str | None,
        *,
        ignore_unclaimed: bool,
        job_id: str = "",
    ) -> None:
        """Restore from the job's checkpoints or, if there are none, from `pointer`."""
        self._files = files
        self._job_id = job_id
        self._pointer = pointer
        self._ignore_unclaimed = ignore_unclaimed
        self._clock = SystemClock()
        self.publishes = False
        """Whether output was published with every complete checkpoint."""
        self.accepts_duplicates = False
        """Whether output may be published again."""

    def completed(self) -> list[CheckpointMetadata]:
        """The job's readable complete checkpoints, oldest first."""
        found = []
        for _, checkpoint_id in reversed(completed_checkpoints(self._files)):
            try:
                found.append(load(self._files, checkpoint_id))
            except (CorruptCheckpointError, RestoreError) as error:
                logger.warning("checkpoint %d cannot be used: %s", checkpoint_id, error)
        return sorted(found, key=lambda metadata: metadata.checkpoint_id)

    def next_id(self) -> int:
        """The first checkpoint id above all that were used."""
        best = (metadata.checkpoint_id for metadata in self._best())
        return max([highest_used(self._files)[1], *best]) + 1

    def max_parallelism(self) -> dict[str, int]:
        """Max parallelism of every operator in the checkpoint that will be restored, by uid."""
        operators = [op for metadata in self._best() for op in metadata.operators]
        return {operator.uid: operator.max_parallelism for operator in operators}

    def restore(
        self,
        plan: JobPlan,
        job: JobIdentity,
        backend: StateBackend,
        calls: WorkerCalls,
        local_copies: Mapping[tuple[str, int], str],
        unwanted: frozenset[int] = frozenset(),
    ) -> RestoredJob:
        """Build the local stores of a job attempt from the newest usable checkpoint.

        Args:
            plan: The compiled job.
            job: Names the job attempt.
            backend: Where local state is kept.
            calls: Reaches the executors on which the stores are built.
            local_copies: Local snapshots to use instead of a download, by uid and subtask.
            unwanted: Aborted checkpoints that may still look complete in storage.

        Raises:
            RestoreError: The checkpoint does not fit the program, or none can be used.
        """
        target = RestoreTarget(job, ProcessIdentity.current(job.run), backend)
        passed_over: dict[int, str] = {}
        for attempt, (files, metadata) in enumerate(self._candidates(passed_over, unwanted)):
            if self.publishes and passed_over:
                self._fall_back(metadata, *max(passed_over.items()))
            # The failed try may have left stores.
            if attempt:
                another = replace(job, job_attempt=f"{job.job_attempt}-{attempt}")
                target = replace(target, job=another)
            if metadata.drained is True:
                self._check_drained(files, metadata)
            try:
                verify_handles(metadata, files)
                restored = self._restore(metadata, files, plan, target, calls, local_copies)
                tidy_local_state(plan, target.job, calls, local_copies.values())
                return restored
            except CorruptCheckpointError as error:
                if files is not self._files:
                    raise RestoreError(f"{self._pointer} cannot be restored: {error}") from error
                passed_over[metadata.checkpoint_id] = str(error)
                logger.warning(
                    "checkpoint %d cannot be restored, falling back to the one before it: %s",
                    metadata.checkpoint_id,
                    error,
                )
        if passed_over or written_ids(self._files) - unwanted:
            why = "; ".join(passed_over.values()) or "the log says why"
            claimed = any(claimed_by(self._files, one) is not None for one in passed_over)
            raise RestoreError(
                f"{self._files.root}: none of the job's checkpoints can be restored ({why}). "
                + ("" if claimed else "Restore them from a backup. ")
                + f"No older one is left, so {ACCEPT_DUPLICATES.key} does not help. Start from a "
                "savepoint, or start from scratch, under another job id or after deleting the "
                "job's directory: output that was published since will be repeated"
            )
        check_not_ended(self._files, self._job_id)
        tidy_local_state(plan, job, calls, local_copies.values())
        return FRESH

    def _candidates(
        self,
        passed_over: dict[int, str] | None = None,
        unwanted: frozenset[int] = frozenset(),
        tries: int = LISTINGS,
    ) -> Iterator[tuple[JobCheckpointFiles, CheckpointMetadata]]:
        """Yield the checkpoints to try, the best first; records lost and unreadable ones.

        Without a valid checkpoint, the snapshot at the pointer is tried. A driver that is being
        replaced may still complete and retire checkpoints: then storage is listed again.
        """
        # Read before the checkpoints: one that completes meanwhile is not lost.
        records = recorded_checkpoints(self._files)
        complete = completed_checkpoints(self._files)
        valid = [one for one in still_valid(self._files, complete) if one[1] not in unwanted]
        ordered = [checkpoint_id for _, checkpoint_id in valid]
        written = written_ids(self._files)
        if tries > 1 and not {checkpoint_id for _, checkpoint_id in complete} <= written:
            yield from self._candidates(passed_over, unwanted, tries - 1)
            return
        unreadable = written - unwanted - {checkpoint_id for _, checkpoint_id in complete}
        if records:
            # Without a record nothing was published, and older ones do not matter.
            newest = max(valid, default=(0, 0))
            unreadable &= {one[1] for one in records if one > newest}
        lost = lost_checkpoint(self._files, records, valid, written, unwanted)
        if lost is not None and passed_over is not None:
            passed_over[lost] = lost_reason(self._files, lost)
            logger.warning("checkpoint %d cannot be used: %s", lost, passed_over[lost])
        for checkpoint_id in [*sorted(unreadable, reverse=True), *ordered]:
            try:
                metadata = load(self._files, checkpoint_id)
            except RestoreError:
                if tries == 1:
                    raise
                yield from self._candidates(passed_over, unwanted, tries - 1)
                return
            except CorruptCheckpointError as error:
                logger.warning("checkpoint %d cannot be used: %s", checkpoint_id, error)
                if passed_over is not None:
                    passed_over[checkpoint_id] = str(error)
                continue
            self._check_origin(metadata)
            yield self._files, metadata
        if not ordered and not unreadable and lost is None and self._pointer is not None:
            # Whoever only looks, before the start, need not decide.
            accepts_older = passed_over is None or self.accepts_duplicates
            files, start = find_snapshot(self._pointer, accepts_older=accepts_older)
            check_not_ended(self._files, self._job_id, start)
            yield files, start

    def _check_origin(self, metadata: CheckpointMetadata) -> None:
        """Refuse a savepoint if the job has checkpoints that did not begin from it."""
        if self._pointer is None:
            return
        try:
            _, given = find_snapshot(self._pointer)
        except HoldfastError:
            # It was claimed, disposed of or damaged: the job continues from its own checkpoints.
            return
        began = (metadata.origin, identity_of(metadata))
        if given.is_savepoint and identity_of(given) not in began:
            raise RestoreError(
                f"{self._pointer}: the job cannot start from this savepoint: it has checkpoints "
                f"that did not begin from it, up to {metadata.checkpoint_id}: "
                f"{self._files.root}. Start it under another job id, or without the savepoint to "
                "continue from its own checkpoints"
            )

    def _check_drained(self, files: JobCheckpointFiles, metadata: CheckpointMetadata) -> None:
        """Refuse a checkpoint that a drained job was to end with, unless the user names it.

        A savepoint has the identity of the checkpoint that it was taken with.
        """
        if self._pointer is not None and not names_a_job(self._pointer):
            with suppress(HoldfastError):
                if identity_of(find_snapshot(self._pointer)[1]) == identity_of(metadata):
                    return
        directory = checkpoint_directory(metadata.checkpoint_id)
        raise RestoreError(drained_reason(f"{files.root}/{directory}"))

    def _best(self) -> list[CheckpointMetadata]:
        """The checkpoint to try first, if there is any."""
        return [metadata for _, metadata in islice(self._candidates(), 1)]

    def _restore(
        self,
        metadata: CheckpointMetadata,
        files: JobCheckpointFiles,
        plan: JobPlan,
        target: RestoreTarget,
        calls: WorkerCalls,
        local_copies: Mapping[tuple[str, int], str],
    ) -> RestoredJob:
        start = monotonic()
        position = position_of(metadata, files)
        if files is not self._files:
            check_static_rows(position, plan)
        ignore = self._ignore_unclaimed
        wanted = list(
            assign_state(metadata, plan, target, files, local_copies, ignore_unclaimed=ignore)
        )
        done = _build_stores(wanted, files, plan, target, calls)
        path = files.root
        if not metadata.is_savepoint:
            path = f"{path}/{checkpoint_directory(metadata.checkpoint_id)}"
        self._log_restored(metadata, done, path)
        return RestoredJob(
            start=StartingPoint(
                metadata.epoch,
                {(one.uid, one.subtask): one.version for one in done},
                metadata.checkpoint_id,
                self._channel_rows(metadata, files, target.job),
                frozenset(operator.uid for operator in metadata.operators if _had_timers(operator)),
                {one.uid: one.key for one in metadata.operators if one.key is not None},
                event_times_of(metadata, plan),
            ),
            job=target.job,
            position=position if position.batch_id >= 0 else None,
            metadata=metadata,
            files=files,
            # Another job may delete its files at any time: nothing may build on them.
            base=metadata if files is self._files else None,
            inherited=frozenset((one.uid, one.subtask) for one in wanted if one.whole),
            origin=(metadata.origin or "") if files is self._files else identity_of(metadata),
            statistics=RestoreStatistics(
                checkpoint_id=metadata.checkpoint_id,
                timestamp=self._clock.now_ms(),
                duration_ms=int((monotonic() - start) * 1000),
                external_path=path,
                downloaded_size=sum(one.downloaded for one in done),
                local_stores=sum(one.local for one in done),
                stores=len(done),
            ),
        )

    def _log_restored(
        self, metadata: CheckpointMetadata, stores: list[Restored], path: str
    ) -> None:
        for store in stores:
            for why in store.distrusted:
                logger.warning(
                    "operator %r, subtask %d: a local copy is not used, and its state comes from "
                    "storage: %s",
                    store.uid,
                    store.subtask,
                    why,
                )
        logger.warning(
            "restored from %s %d of epoch %d, completed %.1f s ago: %s",
            "savepoint" if metadata.is_savepoint else "checkpoint",
            metadata.checkpoint_id,
            metadata.epoch,
            (self._clock.now_ms() - metadata.completed_ms) / 1000,
            path,
        )

    def _fall_back(self, metadata: CheckpointMetadata, lost: int, why: str) -> None:
        """Refuse to publish output again by an older checkpoint, unless that is accepted."""
        if not self.accepts_duplicates:
            raise RestoreError(
                f"{self._files.root}: checkpoint {lost} cannot be restored, and its output was "
                f"published: going back to checkpoint {metadata.checkpoint_id} would publish it a "
                f"second time ({why}). Restore the checkpoint's files, or accept duplicates by "
                f"setting {ACCEPT_DUPLICATES.key} to true"
            )
        logger.warning(
            "the output of checkpoint %d is published again: the job is restored from "
            "checkpoint %d",
            lost,
            metadata.checkpoint_id,
        )

    def _channel_rows(
        self, metadata: CheckpointMetadata, files: JobCheckpointFiles, job: JobIdentity
    ) -> tuple[ChannelRows, ...]:
        """The checkpoint's channel state; copied from another job, which may delete its files."""
        found = []
        for left in metadata.channel_state:
            rows = staged_rows(left.rows)
            if files is not self._files:
                batches = list(FileStaging(files).get(rows))
                name = f"{job.job_attempt}-{metadata.epoch}-{left.subtask}-0-input"
                rows = FileStaging(self._files).put(name, batches, batches[0].schema)
            found.append(
                ChannelRows(
                    uid=left.uid,
                    input=left.input,
                    subtask=left.subtask,
                    parallelism=left.parallelism,
                    max_parallelism=left.max_parallelism,
                    rows=rows,
                )
            )
        return tuple(found)


def _build_stores(
    wanted: list[Restore],
    files: JobCheckpointFiles,
    plan: JobPlan,
    target: RestoreTarget,
    calls: WorkerCalls,
) -> list[Restored]:
    """Build all stores, on the executors of their subtasks."""
    tasks = plan.operator_tasks
    items = [(one.subtask, tasks[one.uid], one) for one in wanted]
    group = f"holdfast-restore-{target.job.job_attempt}"
    try:
        return list(calls.map(partial(restore_one, files=files), items, group))
    except KeyTypeError as error:
        # Another try would fail as well.
        raise RestoreError(f"{files.root}: {error}") from error


def _had_timers(operator: OperatorSnapshot) -> bool:
    return any(state["kind"] == TIMERS for state in operator.states)
