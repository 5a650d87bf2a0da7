"""All that checkpoints add to a job, behind one object; nothing where there are none."""

from __future__ import annotations

import logging
import uuid
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from holdfast._faults import fault_point
from holdfast.api.streams.graph import OperatorKind
from holdfast.checkpoint.checkpointer import Checkpointer
from holdfast.checkpoint.commit.publisher import Publisher
from holdfast.checkpoint.commit.service import CommitService
from holdfast.checkpoint.files.cleanup import delete_job
from holdfast.checkpoint.files.endings import (
    FINISHED,
    delete_finished,
    finished_at,
    forget_ending,
    note_finished,
    note_stopped,
)
from holdfast.checkpoint.files.fence import take_fence
from holdfast.checkpoint.files.job_files import open_files
from holdfast.checkpoint.files.layout import TASK_OWNED
from holdfast.checkpoint.local_state import tidy_local_state
from holdfast.checkpoint.pending import inline_below
from holdfast.checkpoint.restore.restorer import FRESH, Restorer
from holdfast.checkpoint.savepoint.ownership import ClaimedSnapshot
from holdfast.checkpoint.savepoint.requests import Savepoints
from holdfast.clock import SystemClock
from holdfast.config.checkpoint_options import (
    CLAIM_MODE,
    IGNORE_UNCLAIMED_STATE,
    RECOVERY_PATH,
    CheckpointingMode,
    ExternalizedCheckpointRetention,
    RecoveryClaimMode,
)
from holdfast.config.storage import FileSystemCheckpointStorage, JobManagerCheckpointStorage
from holdfast.errors import HoldfastError
from holdfast.job.model import EpochOrder
from holdfast.job.statistics import CheckpointingStatistics, JobStatus
from holdfast.job.threads import Patience
from holdfast.state.store.directories import file_name
from holdfast.storage.object_store import FileSystemFiles

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.checkpoint.commit.publisher import FramePublisher
    from holdfast.checkpoint.pending import Capture
    from holdfast.checkpoint.restore.restorer import RestoredJob
    from holdfast.checkpoint.savepoint.requests import SavepointRequest
    from holdfast.checkpoint.worker_calls import WorkerCalls
    from holdfast.config.backends import StateBackend
    from holdfast.config.checkpointing import CheckpointSettings
    from holdfast.config.configuration import Configuration
    from holdfast.job.model import Delivery, EpochResult, JobIdentity, JobPlan

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


@dataclass(frozen=True)
class JobEnding:
    """How a job has ended that no driver runs any more."""

    status: JobStatus
    lasting_id: bool
    """Whether another start finds its checkpoints by its id."""
    more_input: bool = False
    """Whether there may be more input than it has processed."""
    savepoint: str | None = None
    """The savepoint that it was ended with."""

    def deletes(self, retention: ExternalizedCheckpointRetention) -> bool:
        """Whether its checkpoints go with it."""
        match self.status:
            case JobStatus.FINISHED:
                return not (self.lasting_id and self.more_input and self.savepoint is None)
            case JobStatus.CANCELED:
                return retention is not ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION
            case _:
                # What failed may be mended, and a start under the same id goes on.
                never = ExternalizedCheckpointRetention.NO_EXTERNALIZED_CHECKPOINTS
                return not self.lasting_id and retention is never


class CheckpointService:
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
        self._job_id = job_id
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
                self._files,
                recovery.path,
                ignore_unclaimed=recovery.ignore_unclaimed,
                job_id=job_id,
            )
        self._checkpointer: Checkpointer | None = None
        self._commits: CommitService | None = None

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
        assert self._commits is not None
        return self._commits.delivery

    def finished(self) -> str | None:
        """When a run under the same job id processed all input, if one did.

        What that run did not come to delete is deleted now.
        """
        when = finished_at(self._files, self._job_id) if self._outlives_driver else None
        if when is not None:
            # What is left over harms nobody: the note alone decides.
            with suppress(HoldfastError):
                delete_finished(self._files)
        return when

    @property
    def finished_note(self) -> str:
        """Where the note is that the job has finished."""
        return f"{self._files.root}/{FINISHED}"

    @property
    def _outlives_driver(self) -> bool:
        """Whether another driver could find the job's checkpoints."""
        storage = None if self._settings is None else self._settings.storage
        return self.periodic and storage is not None and storage.checkpoint_path is not None

    def max_parallelism(self) -> dict[str, int]:
        """Number of key groups that stored state prescribes, by uid."""
        return {} if self._restorer is None else self._restorer.max_parallelism()

    def open(
        self,
        plan: JobPlan,
        calls: WorkerCalls,
        publish_frame: FramePublisher,
        on_failure: Callable[[BaseException], None],
    ) -> None:
        """Become the one driver that writes checkpoints of the job.

        Args:
            plan: The compiled job.
            calls: Reaches the executors.
            publish_frame: Publishes rows on the driver, as a DataFrame.
            on_failure: Told of what makes the job fail.
        """
        self._plan = plan
        self._calls = calls
        settings = self._settings
        publisher = Publisher(plan, calls, publish_frame)
        self._commits = CommitService(
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
        calls.threads = settings.transfer_threads
        if self.exactly_once:
            _warn_of_repetition(plan)
        restorer = self._restorer
        self._fence = take_fence(self._files)
        completed = [] if restorer is None else restorer.completed()
        self._commits.inherit(completed)
        self._checkpointer = Checkpointer(
            plan,
            settings,
            self._files,
            self._fence,
            calls,
            completed,
            1 if restorer is None else restorer.next_id(),
            on_failure,
            self._commits,
            self._listeners,
            savepoints=Savepoints(self._backend, alone=not self.periodic),
            patience=self.patience,
        )

    def owned(self, job: JobIdentity) -> JobIdentity:
        """The job as this driver runs it, and nobody else: its local state goes by that."""
        if self._checkpointer is None:
            return replace(job, run=uuid.uuid4().hex)
        return replace(job, run=self._fence.run, replaced=self._fence.replaced())

    def job_attempt(self, number: int) -> str:
        """A name for the next job attempt that none has ever had."""
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

    @property
    def keeps_positions(self) -> bool:
        """Whether positions of sources are stored, or come from what is stored."""
        return self._settings is not None or self._restorer is not None

    def restore(self, job: JobIdentity) -> RestoredJob:
        """Build the stores of a job attempt, from the newest checkpoint if there is one."""
        if self._restorer is None:
            tidy_local_state(self._plan, job, self._calls)
            return FRESH
        keeper = self._checkpointer
        unwanted: frozenset[int] = frozenset()
        if keeper is not None:
            unwanted = keeper.end_attempt()
            keeper.wait_for_completion()
        local = {} if keeper is None else keeper.local_snapshots.copies
        restored = self._restorer.restore(
            self._plan, job, self._backend, self._calls, local, unwanted
        )
        if restored.statistics is not None and keeper is not None:
            keeper.statistics.restored(restored.statistics)
        if restored.metadata is not None:
            assert restored.files is not None
            assert self._commits is not None
            if keeper is not None:
                # The checkpoint may be that of a driver which has taken over, and publishes.
                self._fence.check()
                if restored.files is self._files:
                    metadata = restored.metadata
                    self._fence.going_back(metadata.fence, metadata.checkpoint_id)
            self._commits.recover(restored.metadata, restored.files)
            if keeper is not None and self._claims and restored.files is not self._files:
                assert isinstance(restored.files, FileSystemFiles)
                keeper.claim(ClaimedSnapshot(restored.files, restored.metadata))
        return restored

    def begin(
        self,
        job: JobIdentity,
        restored: RestoredJob,
        capture: Capture,
    ) -> None:
        """A job attempt begins; `capture` tells how far its sources have been read."""
        assert self._commits is not None
        self._commits.begin(job)
        if self._checkpointer is not None:
            self._checkpointer.begin_attempt(
                job, restored.base, restored.inherited, capture, restored.origin
            )

    def next_epoch(
        self,
        *,
        idle: bool,
        last: bool = False,
        plain: bool = False,
        savepoint: SavepointRequest | None = None,
    ) -> EpochOrder | None:
        """The order for the next epoch; None if an idle epoch is not needed.

        Args:
            idle: The epoch has no input, and would run for a checkpoint alone.
            last: All input is processed: take a checkpoint of it before the job ends.
            plain: The epoch carries no checkpoint, even if one is due.
            savepoint: A savepoint that the epoch carries.
        """
        if self._checkpointer is None:
            return None if idle else _NOTHING_SPECIAL
        assert self._settings is not None
        if last and not (self.periodic and self._settings.after_tasks_finish):
            return None
        return self._checkpointer.next_epoch(idle=idle, last=last, plain=plain, savepoint=savepoint)

    def expire(self) -> None:
        """Abort the checkpoints that have reached their timeout."""
        if self._checkpointer is not None:
            self._checkpointer.expire()

    def await_final_checkpoint(self) -> bool:
        """Wait for the checkpoint taken last; whether it covers all epochs, or need not."""
        if self._checkpointer is None:
            return True
        return self._checkpointer.await_final_checkpoint() or not self.periodic

    def epoch_completed(self, order: EpochOrder, result: EpochResult, batch_id: int) -> None:
        """Release or keep the epoch's output, and take the checkpoint that it carried."""
        assert self._commits is not None
        self._commits.epoch_completed(result)
        fault_point("epoch-released", epoch=result.statistics.epoch)
        if self._checkpointer is not None:
            self._checkpointer.epoch_completed(order, result, batch_id)

    def epoch_failed(self, order: EpochOrder) -> None:
        """Abort the checkpoint that a failed epoch carried."""
        if self._checkpointer is not None:
            self._checkpointer.epoch_failed(order)

    def statistics(self) -> CheckpointingStatistics | None:
        """The figures now; None if the job takes no checkpoints."""
        if not self.periodic:
            return None
        if self._checkpointer is None:
            return CheckpointingStatistics()
        return self._checkpointer.statistics.snapshot()

    def close(self, ending: JobEnding | None) -> None:
        """The job has ended; None if another run, or another driver, goes on with it."""
        if self._checkpointer is not None:
            self._checkpointer.close()
            if ending is not None and not self._holds_fence():
                ending = None
        doubtful = self._checkpointer is not None and self._checkpointer.is_in_doubt
        if self._commits is not None:
            self._commits.close(ended=ending is not None and not doubtful)
        if self._checkpointer is None or ending is None or not self.periodic:
            return
        assert self._settings is not None
        assert self._commits is not None
        if self._commits.owes or doubtful:
            logger.warning(
                "the newest checkpoint may have output that is not published, so checkpoints stay; "
                "start the job again under the same job id to publish it: %s",
                self._files.root,
            )
        elif ending.deletes(self._settings.retention):
            # The notes of what is open go with the job.
            self._commits.abort_left_open(self._fence.check)
            # Sinks may have taken long, and another driver may run the job by now.
            self._fence.check()
            self._note(ending)
            delete_job(self._files)
        else:
            self._checkpointer.drop_staged()

    def _note(self, ending: JobEnding) -> None:
        """Leave a note of how the job ended, before its checkpoints go."""
        if ending.lasting_id and ending.savepoint is not None:
            note_stopped(self._files, self._job_id, ending.savepoint)
        elif ending.lasting_id and ending.status is JobStatus.FINISHED and self._outlives_driver:
            now = SystemClock().now_ms()
            note_finished(self._files, self._job_id, self._fence.number, now)
        else:
            forget_ending(self._files)

    def _holds_fence(self) -> bool:
        """Whether what the job has staged and stored is certainly this driver's to delete."""
        try:
            self._fence.check()
        except HoldfastError as error:
            logger.warning("what the job has staged and stored stays as it is: %s", error)
            return False
        return True


def _warn_of_repetition(plan: JobPlan) -> None:
    """Name the sinks that cannot take part in exactly once."""
    names = [sink.name for output in plan.outputs for sink in output.sinks]
    names += [
        operator.name
        for source in plan.sources
        for operator in source.stage.operators
        if operator.kind is OperatorKind.SINK_FUNCTION
    ]
    names += [
        operator.name
        for stage in plan.stages
        for operator in stage.operators
        if operator.kind is OperatorKind.SINK_FUNCTION
    ]
    if names:
        logger.warning(
            "output of %s is released at once, and may be repeated after a recovery; "
            "FileSink, PostgresSink, foreach_batch and TwoPhaseCommitSinkFunction publish it with "
            "its checkpoint",
            ", ".join(map(repr, dict.fromkeys(names))),
        )
