"""All that checkpoints add to a job, behind one object; nothing where there are none."""

from __future__ import annotations

import logging
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from holdfast import faults
from holdfast.api.checkpoint_options import (
    CLAIM_MODE,
    IGNORE_UNCLAIMED_STATE,
    RECOVERY_PATH,
    CheckpointingMode,
    ExternalizedCheckpointRetention,
    RecoveryClaimMode,
)
from holdfast.api.checkpoint_storage import FileSystemCheckpointStorage, JobManagerCheckpointStorage
from holdfast.api.graph import Kind
from holdfast.checkpoint.claim import ClaimedSnapshot
from holdfast.checkpoint.fence import take_fence
from holdfast.checkpoint.files import FileSystemFiles
from holdfast.checkpoint.open_files import open_files
from holdfast.checkpoint.storage import TASK_OWNED
from holdfast.checkpoint.sweep import delete_job
from holdfast.spark.checkpoint_draft import inline_below
from holdfast.spark.checkpointer import Checkpointer
from holdfast.spark.epochs import EpochOrder
from holdfast.spark.patience import Patience
from holdfast.spark.publication import Publication
from holdfast.spark.publisher import Publisher
from holdfast.spark.query_log import source_leaves
from holdfast.spark.restorer import FRESH, Restorer
from holdfast.spark.savepoint_taker import SavepointTaker
from holdfast.spark.savepoints import Savepoints
from holdfast.spark.statistics import JobStatus
from holdfast.state.directories import file_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from holdfast.api.backends import StateBackend
    from holdfast.api.checkpoint_settings import CheckpointSettings
    from holdfast.api.configuration import Configuration
    from holdfast.checkpoint.statistics import CheckpointingStatistics
    from holdfast.spark.compiler import JobPlan
    from holdfast.spark.epochs import Delivery, EpochResult, JobIdentity
    from holdfast.spark.pinned_calls import PinnedCalls
    from holdfast.spark.restorer import RestoredJob
    from holdfast.spark.savepoints import SavepointRequest

logger = logging.getLogger("holdfast")

_NOTHING_SPECIAL: Final = EpochOrder()


@dataclass(frozen=True)
class RecoveryOrder:
    """Where a job begins that does not begin anew."""

    path: str | None = None
    """A checkpoint that the job starts from if it has none of its own."""
    ignore_unclaimed: bool = False
    """Whether state that no operator of the program claims is dropped."""
    claims: bool = False
    """Whether the checkpoint is the job's to delete, once it has some of its own."""


def recovery_order(
    configuration: Configuration,
    path: str | None = None,
    ignore_unclaimed: bool | None = None,
    claim_mode: RecoveryClaimMode | None = None,
) -> RecoveryOrder:
    """Where a job begins: what is given, else what is configured."""
    given = configuration.get
    if ignore_unclaimed is None:
        ignore_unclaimed = given(IGNORE_UNCLAIMED_STATE)
    return RecoveryOrder(
        path or given(RECOVERY_PATH),
        ignore_unclaimed,
        claims=(claim_mode or given(CLAIM_MODE)) is RecoveryClaimMode.CLAIM,
    )


class Checkpointing:
    """The checkpoints of one job: taking them, going back to them, removing them."""

    def __init__(
        self,
        job_id: str,
        backend: StateBackend,
        settings: CheckpointSettings | None,
        recovery: RecoveryOrder,
        listeners: tuple[Any, ...] = (),
        patience: Patience | None = None,
    ) -> None:
        """Checkpoints of the job under `job_id`.

        Args:
            job_id: The job.
            backend: Where local state is kept.
            settings: How they are taken; None for a job that runs in one pass, of which
                there can be none, nor savepoints.
            recovery: Where the job begins.
            listeners: Objects that are told on the driver how checkpoints end.
            patience: How long sinks and listeners are waited for.
        """
        self.patience = patience or Patience()
        self._backend = backend
        self._settings = settings
        self._claims = recovery.claims
        self._listeners = listeners
        storage = settings.storage if settings is not None else JobManagerCheckpointStorage()
        subdirectory = settings is None or settings.create_subdir
        self._files = open_files(storage, job_id, subdirectory)
        self._restorer: Restorer | None = None
        if self.periodic or recovery.path is not None:
            self._restorer = Restorer(
                self._files, recovery.path, ignore_unclaimed=recovery.ignore_unclaimed
            )
        self._checkpointer: Checkpointer | None = None
        self._publication: Publication | None = None

    @property
    def periodic(self) -> bool:
        """Whether checkpoints are taken by the clock; if not, there are savepoints alone."""
        return self._settings is not None and self._settings.interval_ms is not None

    @property
    def exactly_once(self) -> bool:
        """Whether output waits for checkpoints where its sink allows that."""
        settings = self._settings
        return (
            settings is not None
            and settings.interval_ms is not None
            and settings.mode is CheckpointingMode.EXACTLY_ONCE
        )

    @property
    def delivery(self) -> Delivery:
        """What the tasks are told about output."""
        assert self._publication is not None
        return self._publication.delivery

    def max_parallelism(self) -> dict[str, int]:
        """Number of key groups that stored state prescribes, by uid."""
        return {} if self._restorer is None else self._restorer.max_parallelism()

    def open(
        self,
        spark: SparkSession,
        plan: JobPlan,
        calls: PinnedCalls,
        on_failure: Callable[[BaseException], None],
    ) -> None:
        """Become the one driver that writes checkpoints of the job."""
        self._plan = plan
        self._calls = calls
        settings = self._settings
        publisher = Publisher(spark, plan, calls)
        self._publication = Publication(
            publisher,
            self._files,
            exactly_once=self.exactly_once,
            inline_below=0 if settings is None else inline_below(settings),
            patience=self.patience,
        )
        if self._restorer is not None:
            self._restorer.publishes = self.exactly_once and publisher.has_sinks
            self._restorer.accepts_duplicates = settings is not None and settings.accept_duplicates
        if settings is None:
            return
        if self.exactly_once:
            _warn_of_repetition(plan)
        restorer = self._restorer
        self._fence = take_fence(self._files)
        taker = Checkpointer if self.periodic else SavepointTaker
        self._checkpointer = taker(
            plan,
            settings,
            self._files,
            self._fence,
            calls,
            [] if restorer is None else restorer.completed(),
            1 if restorer is None else restorer.next_id(),
            on_failure,
            self._publication,
            self._listeners,
            savepoints=Savepoints(self._backend, alone=not self.periodic),
            patience=self.patience,
        )

    def incarnation(self, number: int) -> str:
        """A name for the next incarnation that none has ever had."""
        if self._checkpointer is None:
            return f"{number}-{uuid.uuid4().hex[:8]}"
        return f"{self._fence.number}-{number}-{uuid.uuid4().hex[:8]}"

    def source_directory(self, uid: str) -> str | None:
        """Where a source may keep files for as long as there are checkpoints, as a URL."""
        if self._settings is None or not isinstance(
            self._settings.storage, FileSystemCheckpointStorage
        ):
            return None
        root = self._files.root
        return f"{root if '://' in root else f'file://{root}'}/{TASK_OWNED}/{file_name(uid)}"

    def leaves(self, plan: JobPlan, frames: list[DataFrame]) -> dict[str, tuple[int, ...]]:
        """Which of Spark's sources are whose."""
        if self._settings is None and self._restorer is None:
            return {}
        uids = (source.uid for source in plan.sources)
        return source_leaves(dict(zip(uids, frames, strict=True)))

    def restore(self, job: JobIdentity) -> RestoredJob:
        """Build the stores of an incarnation, from the newest checkpoint if there is one."""
        if self._restorer is None:
            return FRESH
        keeper = self._checkpointer
        unwanted: frozenset[int] = frozenset()
        if keeper is not None:
            unwanted = keeper.end_incarnation()
            keeper.wait_for_completion()
        local = {} if keeper is None else keeper.local_copies
        restored = self._restorer.restore(
            self._plan, job, self._backend, self._calls, local, unwanted
        )
        if restored.statistics is not None and keeper is not None:
            keeper.statistics.restored(restored.statistics)
        if restored.metadata is not None:
            assert restored.files is not None
            assert self._publication is not None
            if keeper is not None:
                # The checkpoint may be that of a driver which has taken over, and publishes.
                self._fence.check()
                if restored.files is self._files:
                    metadata = restored.metadata
                    self._fence.going_back(metadata.fence, metadata.checkpoint_id)
            self._publication.recover(restored.metadata, restored.files)
            if keeper is not None and self._claims and restored.files is not self._files:
                assert isinstance(restored.files, FileSystemFiles)
                keeper.claim(ClaimedSnapshot(restored.files, restored.metadata))
        return restored

    def begin(
        self,
        job: JobIdentity,
        restored: RestoredJob,
        query_dir: Path,
        leaves: Mapping[str, tuple[int, ...]],
    ) -> None:
        """An incarnation begins."""
        assert self._publication is not None
        self._publication.begin(job)
        if self._checkpointer is not None:
            self._checkpointer.begin_incarnation(
                job, restored.base, restored.inherited, query_dir, leaves, restored.origin
            )

    def order(
        self,
        *,
        idle: bool,
        last: bool = False,
        plain: bool = False,
        savepoint: SavepointRequest | None = None,
    ) -> EpochOrder | None:
        """See `Barriers.order`."""
        if self._checkpointer is None:
            return None if idle else _NOTHING_SPECIAL
        assert self._settings is not None
        if last and not (self.periodic and self._settings.after_tasks_finish):
            return None
        return self._checkpointer.order(idle=idle, last=last, plain=plain, savepoint=savepoint)

    def expire(self) -> None:
        """See `Barriers.expire`."""
        if self._checkpointer is not None:
            self._checkpointer.expire()

    def settle(self) -> bool:
        """See `Barriers.settle`."""
        return self._checkpointer is None or self._checkpointer.settle() or not self.periodic

    def taken(self, order: EpochOrder, result: EpochResult, batch_id: int) -> None:
        """See `Barriers.taken`."""
        assert self._publication is not None
        self._publication.taken(result)
        faults.reach("epoch-released", epoch=result.statistics.epoch)
        if self._checkpointer is not None:
            self._checkpointer.taken(order, result, batch_id)

    def missed(self, order: EpochOrder) -> None:
        """See `Barriers.missed`."""
        if self._checkpointer is not None:
            self._checkpointer.missed(order)

    def statistics(self) -> CheckpointingStatistics | None:
        """The figures now; None if the job takes no checkpoints."""
        if self._checkpointer is None or not self.periodic:
            return None
        return self._checkpointer.statistics.snapshot()

    def close(
        self, status: JobStatus | None, *, goes_on: bool = False, savepoint: str | None = None
    ) -> None:
        """The job has ended so; None if another driver has taken it over.

        Args:
            status: How it has ended.
            goes_on: Whether another run goes on from here, with input that is yet to come.
            savepoint: The savepoint that it was ended with, if another run may look for it.
        """
        if self._checkpointer is not None:
            self._checkpointer.close()
        if self._publication is not None:
            self._publication.close(ended=status is not None)
        if self._checkpointer is None or status is None or not self.periodic:
            return
        assert self._settings is not None
        assert self._publication is not None
        if self._publication.owes:
            logger.warning(
                "the newest checkpoint has output that is not published, so checkpoints stay; "
                "start the job again under the same job id to publish it: %s",
                self._files.root,
            )
        elif status is JobStatus.FINISHED and goes_on:
            self._checkpointer.drop_staged()
        elif _is_deleted(status, self._settings.retention):
            self._fence.check()
            delete_job(self._files, savepoint=savepoint)
        else:
            self._checkpointer.drop_staged()


def _warn_of_repetition(plan: JobPlan) -> None:
    """Name the sinks that cannot take part in exactly once."""
    names = [sink.name for output in plan.outputs for sink in output.sinks]
    names += [
        operator.name
        for source in plan.sources
        for operator in source.level.operators
        if operator.kind is Kind.SINK_FUNCTION
    ]
    names += [
        operator.name
        for level in plan.levels
        for operator in level.operators
        if operator.kind is Kind.SINK_FUNCTION
    ]
    if names:
        logger.warning(
            "output of %s is released at once, and may be repeated after a recovery; "
            "FileSink, JdbcSink, foreach_batch and TwoPhaseCommitSinkFunction publish it with its "
            "checkpoint",
            ", ".join(map(repr, dict.fromkeys(names))),
        )


def _is_deleted(status: JobStatus, retention: ExternalizedCheckpointRetention) -> bool:
    """Whether the checkpoints of a job that has ended go with it."""
    match status:
        case JobStatus.FINISHED:
            return True
        case JobStatus.CANCELED:
            return retention is not ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION
        case _:
            return retention is ExternalizedCheckpointRetention.NO_EXTERNALIZED_CHECKPOINTS
