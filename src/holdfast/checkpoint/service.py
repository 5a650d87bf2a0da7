"""The one entry of a running job to its checkpoints, savepoints and recovery."""

from __future__ import annotations

import logging
import os
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
    JobEnding,
    delete_finished,
    finished_at,
    forget_ending,
    note_finished,
    note_stopped,
)
from holdfast.checkpoint.files.fence import take_fence
from holdfast.checkpoint.files.job_files import open_files
from holdfast.checkpoint.files.layout import TASK_OWNED
from holdfast.checkpoint.files.ledger import record_completed
from holdfast.checkpoint.files.used import highest_used
from holdfast.checkpoint.local_state import tidy_local_state
from holdfast.checkpoint.pending import CheckpointBase, inline_below
from holdfast.checkpoint.restore.restorer import FRESH, Restorer
from holdfast.checkpoint.savepoint.ownership import ClaimedSnapshot
from holdfast.checkpoint.savepoint.requests import Savepoints
from holdfast.clock import SystemClock
from holdfast.config.checkpoint_options import (
    CHECKPOINT_INTERVAL,
    CLAIM_MODE,
    IGNORE_UNCLAIMED_STATE,
    RECOVERY_PATH,
    CheckpointingMode,
    RecoveryClaimMode,
)
from holdfast.config.storage import FileSystemCheckpointStorage, JobManagerCheckpointStorage
from holdfast.errors import HoldfastError, JobExecutionError
from holdfast.job.model import EpochOrder
from holdfast.job.statistics import CheckpointingStatistics, JobStatus
from holdfast.job.threads import TimeLimits
from holdfast.state.store.directories import file_name
from holdfast.storage.file_system import FileSystemFiles

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from holdfast.checkpoint.commit.publisher import FramePublisher
    from holdfast.checkpoint.files.metadata import CheckpointMetadata
    from holdfast.checkpoint.pending import Capture
    from holdfast.checkpoint.restore.restorer import RestoredJob
    from holdfast.checkpoint.savepoint.requests import CheckpointRequest
    from holdfast.checkpoint.worker_calls import WorkerCalls
    from holdfast.config.backends import StateBackend
    from holdfast.config.checkpointing import CheckpointSettings
    from holdfast.config.configuration import Configuration
    from holdfast.config.options import PathLike
    from holdfast.job.model import Delivery, EpochResult, JobIdentity, JobPlan
    from holdfast.storage.files import JobCheckpointFiles

logger = logging.getLogger("holdfast")

_PLAIN_ORDER: Final = EpochOrder()


@dataclass(frozen=True)
class RecoveryOrder:
    """The snapshot that a job starts from."""

    path: str | None = None
    """A checkpoint or savepoint to start from if the job has no checkpoint yet."""
    ignore_unclaimed: bool = False
    """Whether to drop state that no operator of the program claims."""
    claims: bool = False
    """Whether the job deletes the snapshot once it has checkpoints."""


def recovery_order(
    configuration: Configuration,
    path: PathLike | None = None,
    ignore_unclaimed: bool | None = None,
    claim_mode: RecoveryClaimMode | None = None,
) -> RecoveryOrder:
    """The snapshot that a job starts from: the arguments, or else the configuration."""
    given = configuration.get
    if ignore_unclaimed is None:
        ignore_unclaimed = given(IGNORE_UNCLAIMED_STATE)
    return RecoveryOrder(
        given(RECOVERY_PATH) if path is None else os.fspath(path),
        ignore_unclaimed,
        claims=(claim_mode or given(CLAIM_MODE)) is RecoveryClaimMode.CLAIM,
    )


class CheckpointService:
    """Takes, restores and deletes the checkpoints of one job."""

    def __init__(
        self,
        job_id: str,
        backend: StateBackend,
        settings: CheckpointSettings | None,
        recovery: RecoveryOrder,
        listeners: tuple[Any, ...] = (),
        time_limits: TimeLimits | None = None,
    ) -> None:
        """Create the service of the job with id `job_id`.

        Args:
            job_id: The job.
            backend: Where local state is kept.
            settings: How checkpoints are taken; None for a job that runs in one pass, which
                takes neither checkpoints nor savepoints.
            recovery: The snapshot that the job starts from.
            listeners: Objects that are notified on the driver when checkpoints end.
            time_limits: How long to wait for sinks and listeners.
        """
        self.time_limits = time_limits or TimeLimits()
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
        self._former: JobPlan | None = None
        """The plan before the last rescale, until what it left on executors is deleted."""

    @property
    def periodic(self) -> bool:
        """Whether the job takes periodic checkpoints; otherwise it takes savepoints alone."""
        return self._settings is not None and self._settings.interval_ms is not None

    @property
    def unaligned(self) -> bool:
        """Whether epochs may be cut for a checkpoint."""
        return self.periodic and self._settings is not None and self._settings.unaligned

    @property
    def exactly_once(self) -> bool:
        """Whether output is published with its checkpoint, if its sink supports that."""
        settings = self._settings
        exact = settings is not None and settings.mode is CheckpointingMode.EXACTLY_ONCE
        return self.periodic and exact

    @property
    def delivery(self) -> Delivery:
        """How tasks deliver output."""
        assert self._commits is not None
        return self._commits.delivery

    def finished(self) -> str | None:
        """When a run under the same job id finished, or None.

        Deletes what that run has left behind.
        """
        when = finished_at(self._files, self._job_id) if self._outlives_driver else None
        if when is not None:
            # Files that stay do no harm: the note alone decides.
            with suppress(HoldfastError):
                delete_finished(self._files)
        return when

    @property
    def finished_note(self) -> str:
        """Path of the note that the job has finished."""
        return f"{self._files.root}/{FINISHED}"

    @property
    def directory(self) -> str | None:
        """Where the job's checkpoints are; None if another driver cannot find them."""
        return self._files.root if self._outlives_driver else None

    @property
    def _outlives_driver(self) -> bool:
        """Whether another driver can find the job's checkpoints."""
        storage = None if self._settings is None else self._settings.storage
        return self.periodic and storage is not None and storage.checkpoint_path is not None

    def max_parallelism(self) -> dict[str, int]:
        """Max parallelism of the operators whose state is stored, by uid."""
        return {} if self._restorer is None else self._restorer.max_parallelism()

    def open(
        self,
        plan: JobPlan,
        calls: WorkerCalls,
        publish_frame: FramePublisher,
        on_failure: Callable[[BaseException], None],
    ) -> None:
        """Become the only driver that writes checkpoints of the job.

        Args:
            plan: The compiled job.
            calls: Reaches the executors.
            publish_frame: Publishes rows on the driver, as a DataFrame.
            on_failure: Called with an error that makes the job fail.
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
            time_limits=self.time_limits,
        )
        if self._restorer is not None:
            self._restorer.publishes = self.exactly_once and publisher.sinks > 0
            self._restorer.accepts_duplicates = settings is not None and settings.accept_duplicates
        if settings is None:
            return
        calls.threads = settings.transfer_threads
        if self.exactly_once:
            _warn_of_repetition(plan)
        restorer = self._restorer
        self._fence = take_fence(self._files, highest_used(self._files)[0])
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
            time_limits=self.time_limits,
        )

    def replan(self, plan: JobPlan) -> None:
        """Go on with another plan of the same job: it is rescaled, and no job attempt runs."""
        assert self._commits is not None
        assert self._checkpointer is not None
        self._commits.replan(plan)
        self._checkpointer.replan(plan)
        self._former, self._plan = self._plan, plan

    def owned(self, job: JobIdentity) -> JobIdentity:
        """The job with the run of this driver, which names its local state."""
        if self._checkpointer is None:
            return replace(job, run=uuid.uuid4().hex)
        return replace(job, run=self._fence.run, replaced=self._fence.replaced())

    def job_attempt(self, number: int) -> str:
        """A unique name for the next job attempt."""
        if self._checkpointer is None:
            return f"{number}-{uuid.uuid4().hex[:8]}"
        return f"{self._fence.number}-{number}-{uuid.uuid4().hex[:8]}"

    def source_directory(self, uid: str) -> str | None:
        """URL of a directory where a source may keep files as long as checkpoints exist."""
        if self._settings is None or not isinstance(
            self._settings.storage, FileSystemCheckpointStorage
        ):
            return None
        root = self._files.root
        return f"{root if '://' in root else f'file://{root}'}/{TASK_OWNED}/{file_name(uid)}"

    @property
    def keeps_positions(self) -> bool:
        """Whether positions of sources are stored or restored."""
        return self._settings is not None or self._restorer is not None

    def restore(self, job: JobIdentity) -> RestoredJob:
        """Build the stores of a job attempt, from the newest checkpoint if there is one."""
        if self._restorer is None:
            tidy_local_state(self._plan, job, self._calls)
            return FRESH
        restored = self._restore_stores(self._restorer, job)
        if restored.metadata is not None:
            assert restored.files is not None
            self._take_over(restored.metadata, restored.files)
        return restored

    def _restore_stores(self, restorer: Restorer, job: JobIdentity) -> RestoredJob:
        checkpointer = self._checkpointer
        unwanted: frozenset[int] = frozenset()
        local: dict[tuple[str, int], str] = {}
        if checkpointer is not None:
            unwanted = checkpointer.end_attempt()
            checkpointer.wait_for_completion()
            local = checkpointer.tracker.local_snapshots.copies
        restored = restorer.restore(self._plan, job, self._backend, self._calls, local, unwanted)
        if checkpointer is not None and self._former is not None:
            # Some executors may have no subtask any more.
            tidy_local_state(self._former, restored.job or job, self._calls)
            checkpointer.tracker.local_snapshots.forget()
            self._former = None
        if restored.statistics is not None and checkpointer is not None:
            checkpointer.statistics.restored(restored.statistics)
        return restored

    def _take_over(self, metadata: CheckpointMetadata, files: JobCheckpointFiles) -> None:
        """Publish the output that the restored checkpoint lists, and claim the checkpoint."""
        assert self._commits is not None
        if self._checkpointer is not None:
            # Another driver may have taken over, completed the checkpoint, and publish it now.
            self._fence.check()
            if files is self._files:
                self._fence.going_back(metadata.fence, metadata.checkpoint_id)
                # Its driver may have died before the record, and from now on its output is out.
                record_completed(files, metadata)
        self._commits.recover(metadata, files)
        if self._checkpointer is not None and self._claims and files is not self._files:
            assert isinstance(files, FileSystemFiles)
            self._checkpointer.tracker.claim(ClaimedSnapshot(files, metadata, self._job_id))

    def begin(self, job: JobIdentity, restored: RestoredJob, capture: Capture) -> None:
        """Begin a job attempt; `capture` returns how far its sources were read."""
        assert self._commits is not None
        self._commits.begin(job)
        if self._checkpointer is not None:
            self._checkpointer.begin_attempt(
                CheckpointBase(job, restored.base, restored.inherited, capture, restored.origin)
            )

    def next_epoch(
        self,
        *,
        idle: bool,
        last: bool = False,
        plain: bool = False,
        request: CheckpointRequest | None = None,
    ) -> EpochOrder | None:
        """The order for the next epoch; None if an idle epoch is not needed.

        Args:
            idle: The epoch has no input, and would run for a checkpoint alone.
            last: All input is processed: take a checkpoint of it before the job ends.
            plain: The epoch carries no checkpoint, even if one is due.
            request: A savepoint or a checkpoint that was requested, which the epoch carries.
        """
        if self._checkpointer is None:
            return None if idle else _PLAIN_ORDER
        assert self._settings is not None
        if last and not (self.periodic and self._settings.after_tasks_finish):
            return None
        return self._checkpointer.next_epoch(idle=idle, last=last, plain=plain, request=request)

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

    def epoch_failed(self, order: EpochOrder, problem: str | None) -> None:
        """Abort the checkpoint that a failed epoch carried; see `Checkpointer.epoch_failed`."""
        if self._checkpointer is not None:
            self._checkpointer.epoch_failed(order, problem)

    def request_checkpoint(self) -> Future[int]:
        """Request a checkpoint; the result is its id, once it is complete and published.

        Raises:
            JobExecutionError: The job takes no checkpoints, or has ended.
        """
        if not self.periodic or self._checkpointer is None:
            raise JobExecutionError(
                f"the job takes no checkpoints; set {CHECKPOINT_INTERVAL.key}, or take a savepoint"
            )
        return self._checkpointer.requested.request()

    def statistics(self) -> CheckpointingStatistics | None:
        """Statistics of the checkpoints; None if the job takes none."""
        if not self.periodic:
            return None
        if self._checkpointer is None:
            return CheckpointingStatistics()
        return self._checkpointer.statistics.snapshot()

    def close(self, ending: JobEnding | None) -> None:
        """End checkpointing, and delete what the job's ending says.

        Args:
            ending: How the job has ended; None if another run or another driver continues it.
        """
        checkpointer, commits = self._checkpointer, self._commits
        in_doubt = False
        if checkpointer is not None:
            checkpointer.close()
            if ending is not None and not self._holds_fence():
                ending = None
            in_doubt = bool(checkpointer.tracker.in_doubt)
        if commits is None:
            return
        ended = ending is not None and not in_doubt
        commits.close(ended=ended, check_fence=self._check_fence)
        if checkpointer is None or ending is None or not self.periodic:
            return
        assert self._settings is not None
        if commits.owes or in_doubt:
            logger.warning(
                "the newest checkpoint may have output that is not published, so checkpoints stay; "
                "start the job again under the same job id to publish it: %s",
                self._files.root,
            )
        elif ending.deletes(self._settings.retention):
            self._delete_job(commits, ending)
        else:
            checkpointer.drop_staged()

    def _delete_job(self, commits: CommitService, ending: JobEnding) -> None:
        # First, since the notes about open transactions are deleted with the job.
        commits.abort_left_open(self._fence.check)
        # Sinks may have taken long, and another driver may run the job by now.
        self._fence.check()
        self._note(ending)
        delete_job(self._files, runs_again=ending.lasting_id and self._outlives_driver)

    def _note(self, ending: JobEnding) -> None:
        """Leave a note of how the job ended, before its checkpoints are deleted."""
        if ending.lasting_id and ending.savepoint is not None:
            note_stopped(self._files, self._job_id, ending.savepoint)
        elif ending.lasting_id and ending.status is JobStatus.FINISHED and self._outlives_driver:
            now = SystemClock().now_ms()
            note_finished(self._files, self._job_id, self._fence.number, now)
        else:
            forget_ending(self._files)

    def _check_fence(self) -> None:
        """Raise FencedError if another driver has taken over; without checkpoints, none can."""
        if self._checkpointer is not None:
            self._fence.check()

    def _holds_fence(self) -> bool:
        """Whether this driver may still delete the job's files."""
        try:
            self._fence.check()
        except HoldfastError as error:
            logger.warning("the job's staged output and checkpoints are kept: %s", error)
            return False
        return True


def _warn_of_repetition(plan: JobPlan) -> None:
    """Warn of sinks that do not support exactly once."""
    names = [sink.name for output in plan.outputs for sink in output.sinks]
    stages = [*(source.stage for source in plan.sources), *plan.stages]
    names += [
        operator.name
        for stage in stages
        for operator in stage.operators
        if operator.kind is OperatorKind.SINK_FUNCTION
    ]
    if names:
        logger.warning(
            "the output of %s is published at once, and may be repeated after a recovery; "
            "FileSink, PostgresSink, foreach_batch and TwoPhaseCommitSinkFunction publish output "
            "with its checkpoint",
            ", ".join(map(repr, dict.fromkeys(names))),
        )
