"""Runs a job until it ends: starts job attempts, restarts them after failures, and cleans up.

When a job attempt fails, the restart strategy decides whether and when the next one begins. It
begins from the newest complete checkpoint. A job that is rescaled ends its attempt with a
checkpoint, and the next one begins with another plan.
"""

from __future__ import annotations

import logging
import shutil
import threading
from collections import deque
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from py4j.protocol import Py4JJavaError
from pyspark import InheritableThread

from holdfast._faults import fault_point
from holdfast.checkpoint.files.endings import JobEnding
from holdfast.checkpoint.restore.checks import SCRATCH, check_static_rows
from holdfast.clock import SystemClock, monotonic
from holdfast.errors import (
    ConfigurationError,
    FencedError,
    HoldfastError,
    JobExecutionError,
    JobGraphError,
    RestoreError,
    SinkError,
)
from holdfast.job.epoch_listeners import EpochListeners
from holdfast.job.model import JobIdentity
from holdfast.job.restart import restart_tracker
from holdfast.job.statistics import EpochStatistics, JobFailure, JobStatistics, JobStatus
from holdfast.job.statistics_keeper import StatisticsKeeper
from holdfast.job.timer_schedule import warn_of_held_time
from holdfast.spark.epoch_runner import EpochRunner
from holdfast.spark.failures import QueryStoppedError, original_error, summary
from holdfast.spark.job_attempt import JobAttempt
from holdfast.spark.outputs import publish_frame
from holdfast.spark.placement.executor_calls import ExecutorCalls
from holdfast.spark.placement.executors import ExecutorWatch
from holdfast.spark.placement.local_state import (
    delete_local_state,
    local_state_root,
    scratch_directory,
)
from holdfast.spark.placement.pinning import Pinning
from holdfast.spark.session import QUERY_SETTINGS, is_alive, settings
from holdfast.spark.sources.gates import Gate, Gates
from holdfast.spark.sources.query_log import capture, lay_out, source_leaves, with_rows_read
from holdfast.spark.sources.source import SourcePlace, in_one_pass

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from holdfast.checkpoint.restore.restorer import RestoredJob
    from holdfast.checkpoint.service import CheckpointService
    from holdfast.config.restart import RestartStrategy
    from holdfast.job.model import EpochResult, JobPlan, QueryPosition, SourcePlan
    from holdfast.job.trigger import JobTrigger

logger = logging.getLogger("holdfast")

HOPELESS = (ConfigurationError, FencedError, JobGraphError, RestoreError)
"""Failures that a restart would only repeat."""
SESSION_ENDS = 2.0
"""Seconds to wait for the end of the session after Spark has failed the job."""
LOOK_AGAIN = 0.1
FAILURES = 16
"""Number of failures that are kept, as in Flink."""
PASSING = (JobExecutionError, Py4JJavaError, SinkError)
"""Failures of a start that a restart may resolve."""


@dataclass(frozen=True)
class JobOrder:
    """The settings that a job is started with."""

    name: str
    job_id: str
    plan: JobPlan
    trigger: JobTrigger
    restarts: RestartStrategy
    lasting_id: bool = False
    """Whether other runs of the job have the same id."""
    local_dir: str | None = None
    savepoint_dir: str | None = None
    """Directory of savepoints, unless a request names another."""
    listeners: tuple[Callable[[EpochStatistics], None], ...] = ()
    configuration: Mapping[str, object] = field(default_factory=dict)
    """The options that were set, by their keys, and those of its backend and restarts."""
    job_parameters: Mapping[str, str] = field(default_factory=dict)
    parallelism: int = 1
    """Default parallelism of operators at the start."""
    recompile: Callable[[JobPlan, int], JobPlan] | None = None
    """Compiles the job again for another default parallelism."""


@dataclass(frozen=True)
class Rescale:
    """Another parallelism for a job that runs."""

    parallelism: int
    plan: JobPlan
    running: threading.Event = field(default_factory=threading.Event)
    """Set when a job attempt with the plan runs."""


class Supervisor:
    """Starts a job, restarts it, and cleans up when it ends."""

    def __init__(
        self, spark: SparkSession, order: JobOrder, checkpointing: CheckpointService
    ) -> None:
        """Create the supervisor of a job that is not started yet."""
        self._spark = spark
        self.order = order
        self.plan = order.plan
        self.parallelism = order.parallelism
        """Default parallelism of operators."""
        self._most_tasks = max(order.plan.stage_parallelism, default=1)
        """Most tasks that a stage ever had."""
        self._rescale: Rescale | None = None
        """What the next job attempt changes."""
        self._name = order.name
        self.checkpointing = checkpointing
        root = local_state_root(spark, order.local_dir)
        self._job = JobIdentity(order.job_id, order.name, root)
        self._pinning = Pinning(spark)
        self._calls = ExecutorCalls(spark, self._pinning)
        self._statistics = StatisticsKeeper(order.plan)
        self._listeners = EpochListeners(order.listeners, checkpointing.time_limits)
        self._restarts = restart_tracker(order.restarts)
        self._scratch = scratch_directory()
        self._gates = Gates(
            {
                uid: Gate(str(self._scratch / f"gate-{number}"))
                for number, uid in enumerate(sorted(order.plan.time.aligned))
                # One pass reads everything at once.
                if not order.trigger.one_pass
            }
        )
        self.job_attempt: JobAttempt | None = None
        """The job attempt that runs now."""
        self._runner: EpochRunner | None = None
        self._begun = 0
        self._prepared = False
        self._ran = False
        """Whether any job attempt has begun."""
        self.status = JobStatus.RUNNING
        self.failure: BaseException | None = None
        """The error that the job has failed with."""
        self.cancelled = threading.Event()
        """Set when the job must end early."""
        self.suspends = False
        """Whether the job ends early so that another start continues it."""
        self.savepoint: str | None = None
        """Path of the savepoint that the job was stopped with."""
        self.ended = threading.Event()
        self.failures: deque[JobFailure] = deque(maxlen=FAILURES)
        """The newest failures, oldest first."""
        self.start_time = SystemClock().now_ms()
        self.end_time: int | None = None
        self._started = monotonic()
        self.runtime_ms = 0

    def statistics(self) -> JobStatistics:
        """The job's statistics so far."""
        figures = self._statistics.snapshot(self.order.job_id, self._name, self.status)
        return replace(figures, checkpoints=self.checkpointing.statistics())

    def stop(self) -> None:
        """Stop the job attempt that runs now."""
        if self.job_attempt is not None:
            self.job_attempt.stop()

    def hand_over(self, rescale: Rescale) -> None:
        """Begin the next job attempt with another plan; the one that runs now has finished."""
        self._rescale, self.status = rescale, JobStatus.RESTARTING

    def does_not_run(self, why: str) -> JobExecutionError:
        """The error for a request that the job cannot meet now."""
        return JobExecutionError(f"job {self._name!r} is {self.status.name}; {why}")

    def start(self) -> None:
        """Start the job in the background.

        A program that cannot run is refused here. A failure of Spark or storage counts as the
        job's first failure: the restart strategy decides.
        """
        failure: BaseException | None = None
        try:
            if self._has_finished():
                return
            self._begin()
        except BaseException as raised:
            failure = original_error(raised)
            if not isinstance(failure, PASSING):
                self.failure, self.status = raised, JobStatus.FAILED
                self._end()
                raise
        InheritableThread(target=self._supervise, args=(failure,), daemon=True).start()

    def _has_finished(self) -> bool:
        """Whether a run under the same job id has processed all input, so that none is left."""
        when = self.checkpointing.finished() if self.order.lasting_id else None
        if when is None:
            return False
        logger.warning(
            "job %r with job id %r finished %s, so nothing is left to do. To run it again from the "
            "beginning, start it under another job id, or delete %s",
            self._name,
            self.order.job_id,
            when,
            self.checkpointing.finished_note,
        )
        self.status = JobStatus.FINISHED
        self._end()
        return True

    def _prepare(self) -> None:
        """Prepare what all job attempts share."""
        self._pinning.anchor(self.plan.stage_parallelism)
        self.checkpointing.open(
            self.plan, self._calls, partial(publish_frame, self._spark), self._break_off
        )
        self._job = self.checkpointing.owned(self._job)
        self._frames = [self._frame(source) for source in self.plan.sources]
        self._watch = ExecutorWatch(self._spark, self._pinning, self._break_off)
        warn_of_held_time(self._name, self.plan)
        self._prepared = True

    def _frame(self, source: SourcePlan) -> DataFrame:
        if self.order.trigger.one_pass:
            return in_one_pass(source.node.function)
        place = SourcePlace(self._source_directory(source), self._gates.get(source.uid))
        frame: DataFrame = source.node.function.streaming(place)
        return frame

    def _source_directory(self, source: SourcePlan) -> str:
        kept = self.checkpointing.source_directory(source.uid)
        return kept or (self._scratch / f"{SCRATCH}{source.node.id}").as_uri()

    def _begin(self) -> None:
        """Begin the next job attempt, from the newest checkpoint if there is one."""
        if not self._prepared:
            self._prepare()
        self._close_runner()
        if self._rescale is not None and self._rescale.plan is not self.plan:
            self._use(self._rescale)
        self._begun += 1
        job = replace(self._job, job_attempt=self.checkpointing.job_attempt(self._begun))
        shutil.rmtree(self._query_dir(self._begun - 1), ignore_errors=True)
        query_dir = self._query_dir(self._begun)
        self._calls.forget()
        restored = self.checkpointing.restore(job)
        job = restored.job or job
        leaves = self._source_leaves()
        if restored.position is not None:
            self._lay_out_query(query_dir, restored, restored.position, leaves)
        self._gates.reset()
        self._runner = self._new_runner(job, restored)
        self.checkpointing.begin(job, restored, partial(capture, query_dir, leaves))
        self._watch.note()
        self.job_attempt = self._new_attempt(job, self._runner, query_dir, restored.batch_id)
        self.job_attempt.start()
        self._ran = True

    def _use(self, rescale: Rescale) -> None:
        """Go on with another plan; can be repeated."""
        plan = rescale.plan
        fault_point("before-rescale", parallelism=rescale.parallelism)
        self._pinning.anchor(plan.stage_parallelism)
        self.checkpointing.replan(plan)
        self._statistics.replan(plan)
        self.plan, self.parallelism = plan, rescale.parallelism
        self._most_tasks = max([self._most_tasks, *plan.stage_parallelism])

    def _lay_out_query(
        self,
        query_dir: Path,
        restored: RestoredJob,
        position: QueryPosition,
        leaves: dict[str, tuple[int, ...]],
    ) -> None:
        """Write the query's log, so that its sources continue from the restored position."""
        if restored.base is None:
            check_static_rows(position, self.plan, one_pass=self.order.trigger.one_pass)
            directories = {one.uid: self._source_directory(one) for one in self.plan.sources}
            position = with_rows_read(position, self.plan, directories, self._spark)
        with settings(self._spark, QUERY_SETTINGS):
            lay_out(query_dir, position, leaves)

    def _new_runner(self, job: JobIdentity, restored: RestoredJob) -> EpochRunner:
        return EpochRunner(
            self._spark,
            self.plan,
            job,
            self._statistics,
            self._pinning,
            restored.start,
            self.checkpointing.delivery,
            self.order.trigger.interval_ms,
            self._gates,
        )

    def _new_attempt(
        self, job: JobIdentity, runner: EpochRunner, query_dir: Path, batch_id: int | None
    ) -> JobAttempt:
        return JobAttempt(
            self._spark,
            f"{self._name}-{self.order.job_id[:8]}-{job.job_attempt}",
            self.order.trigger,
            runner,
            self.checkpointing,
            self._frames,
            query_dir,
            self._end_epoch,
            batch_id,
            self.checkpointing.time_limits,
        )

    def _source_leaves(self) -> dict[str, tuple[int, ...]]:
        """Indexes of Spark's sources, by the uid of the job's source."""
        if not self.checkpointing.keeps_positions:
            return {}
        uids = (source.uid for source in self.plan.sources)
        return source_leaves(dict(zip(uids, self._frames, strict=True)))

    def _query_dir(self, job_attempt: int) -> Path:
        """Directory of a job attempt's query log."""
        return self._scratch / f"query-{job_attempt}"

    def _supervise(self, failure: BaseException | None) -> None:
        try:
            self.failure = self._run_to_the_end(failure)
        except BaseException as failure:
            self.failure = failure
            self._note(failure)
        finally:
            self.status = self._final_status()
            self.runtime_ms = int((monotonic() - self._started) * 1000)
            self._end()

    def _final_status(self) -> JobStatus:
        if self.cancelled.is_set():
            self.failure = None
            return JobStatus.SUSPENDED if self.suspends else JobStatus.CANCELED
        if self.failure is None and self._ended_by_itself():
            return JobStatus.FINISHED
        if self.failure is None:
            self.failure = QueryStoppedError("its query ended without an error")
        return JobStatus.SUSPENDED if self._has_lost_session(self.failure) else JobStatus.FAILED

    def _ended_by_itself(self) -> bool:
        """Whether a job without a failure has ended on purpose, and not with its session."""
        trigger = self.order.trigger
        is_certain = trigger.one_pass or trigger.confirms_end or self.savepoint is not None
        return is_certain or is_alive(self._spark)

    def _has_lost_session(self, failure: BaseException) -> bool:
        """Whether the Spark session has ended, or ends within a moment."""
        if isinstance(failure, QueryStoppedError):
            return True
        may_follow = isinstance(failure, PASSING) or not isinstance(failure, HoldfastError)
        # When a cluster drops the application, its tasks fail before the session ends.
        until = monotonic() + (0 if self._pinning.local or not may_follow else SESSION_ENDS)
        while is_alive(self._spark):
            if monotonic() >= until:
                return False
            self.cancelled.wait(LOOK_AGAIN)
        return True

    def _run_to_the_end(self, failure: BaseException | None) -> BaseException | None:
        """Run job attempts until the job ends; returns the last failure, or None.

        Args:
            failure: Why the first job attempt could not begin, if it could not.
        """
        if failure is None:
            assert self.job_attempt is not None
            failure = self.job_attempt.wait()
        while not self.cancelled.is_set():
            if failure is None and self._rescale is None:
                return None
            if failure is None:
                # The job attempt has ended with a checkpoint, for another parallelism.
                failure = self._begin_and_wait()
                continue
            delay_ms = None
            self._note(failure)
            if not isinstance(failure, (*HOPELESS, QueryStoppedError)) and is_alive(self._spark):
                delay_ms = self._restarts.failed(SystemClock().monotonic_ms())
            if delay_ms is None:
                return failure
            logger.warning(
                "job %r failed and restarts in %.1f s: %s",
                self._name,
                delay_ms / 1000,
                summary(failure),
            )
            self.status = JobStatus.RESTARTING
            self._statistics.restarted()
            self.cancelled.wait(delay_ms / 1000)
            failure = self._begin_and_wait()
        return failure

    def _note(self, failure: BaseException) -> None:
        now = SystemClock().now_ms()
        self.failures.append(JobFailure(now, type(failure).__name__, summary(failure)))

    def _begin_and_wait(self) -> BaseException | None:
        if self.cancelled.is_set():
            return None
        try:
            self._begin()
        except BaseException as failure:
            return original_error(failure)
        self.status = JobStatus.RUNNING
        if self._rescale is not None:
            self._rescale.running.set()
            self._rescale = None
        if self.cancelled.is_set():
            # Cancelled in between: the previous job attempt was stopped instead.
            self.stop()
        assert self.job_attempt is not None
        return self.job_attempt.wait()

    def _break_off(self, failure: BaseException) -> None:
        """Fail the job attempt that runs now."""
        if self.job_attempt is not None:
            self.job_attempt.break_off(failure)

    def _end(self) -> None:
        """Clean up, and wake those who wait for the end, whatever fails."""
        try:
            self._clean_up()
        finally:
            self.end_time = SystemClock().now_ms()
            self.ended.set()

    def _clean_up(self) -> None:
        steps: list[Callable[[], None]] = [
            self._close_checkpoints,
            self._stop_watch,
            self._close_runner,
            self._pinning.close,
            self._delete_local_state,
        ]
        shutil.rmtree(self._scratch, ignore_errors=True)
        for step in steps:
            try:
                step()
            except BaseException as error:
                # Sinks may raise anything.
                what = f"{type(error).__name__}: {error}"
                logger.warning("job %r left something behind: %s", self._name, what)

    def _close_checkpoints(self) -> None:
        # Another driver may have taken the job over. A program that does not match its
        # checkpoints, or did not start, is fixed and started again.
        kept = not self._ran or isinstance(self.failure, FencedError | RestoreError)
        if kept or self.status is JobStatus.SUSPENDED:
            self.checkpointing.close(None)
            return
        order = self.order
        ending = JobEnding(self.status, order.lasting_id, not order.trigger.ends, self.savepoint)
        self.checkpointing.close(ending)

    def _close_runner(self) -> None:
        if self._runner is not None:
            self._runner.close()
            self._runner = None

    def _stop_watch(self) -> None:
        watch = getattr(self, "_watch", None)
        if watch is not None:
            watch.stop()

    def _delete_local_state(self) -> None:
        delete_local_state(self._spark, self._job, self._most_tasks)

    def _end_epoch(self, result: EpochResult) -> None:
        assert self._runner is not None
        for text in self._runner.take_warnings():
            logger.warning("job %r: %s", self._name, text)
        self._listeners.tell(result.statistics)
