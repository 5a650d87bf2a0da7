"""A running job, for those who wait for it, watch it or cancel it.

A job is a row of incarnations: when one breaks, the restart strategy decides whether and
when the next begins, from the newest complete checkpoint.
"""

from __future__ import annotations

import logging
import shutil
import threading
import uuid
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from py4j.protocol import Py4JJavaError
from pyspark import InheritableThread

from holdfast.api.checkpoint_options import SavepointFormatType
from holdfast.checkpoint.restart import RestartTracker
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
from holdfast.spark.checkpointing import JobEnding
from holdfast.spark.epochs import EpochRunner, JobIdentity
from holdfast.spark.executors import ExecutorWatch
from holdfast.spark.failures import original_error, summary
from holdfast.spark.incarnation import Incarnation
from holdfast.spark.kept_rows import SCRATCH, check_kept_rows, with_rows_read
from holdfast.spark.local_state import delete_local_state, local_state_root, scratch_directory
from holdfast.spark.pinned_calls import PinnedCalls
from holdfast.spark.pinning import Pinning
from holdfast.spark.query_log import lay_out
from holdfast.spark.savepoints import SavepointRequest, decide
from holdfast.spark.session import QUERY_SETTINGS, is_alive, settings
from holdfast.spark.source import in_one_pass
from holdfast.spark.statistics import EpochStatistics, JobStatistics, JobStatus, StatisticsKeeper
from holdfast.spark.threads import start_thread
from holdfast.spark.time_keeper import warn_of_held_time

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from holdfast.api.restart_strategies import RestartStrategy
    from holdfast.spark.checkpointing import Checkpointing
    from holdfast.spark.compiler import JobPlan, SourcePlan
    from holdfast.spark.epochs import EpochResult
    from holdfast.spark.incarnation import Pace

logger = logging.getLogger("holdfast")

HOPELESS = (ConfigurationError, FencedError, JobGraphError, RestoreError)
"""Failures that another start would only repeat."""
SESSION_ENDS = 2.0
"""Seconds for which a job that Spark has failed looks whether the session ends."""
LOOK_AGAIN = 0.1
PASSING = (JobExecutionError, Py4JJavaError, SinkError)
"""Failures of a start that have to do with the moment, not with the program."""


@dataclass(frozen=True)
class JobExecutionResult:
    """How a job ended that ended well."""

    job_id: str
    name: str
    runtime_ms: int
    statistics: JobStatistics


@dataclass(frozen=True)
class JobOrder:
    """What a job is started with."""

    name: str
    job_id: str
    plan: JobPlan
    pace: Pace
    restarts: RestartStrategy
    lasting_id: bool = False
    """Whether other runs of the job have the same id."""
    local_dir: str | None = None
    savepoint_dir: str | None = None
    """Directory of savepoints for which none is named."""
    listeners: tuple[Callable[[EpochStatistics], None], ...] = ()


class JobClient:
    """A job that was started, for those who wait for it, watch it or cancel it."""

    def __init__(self, spark: SparkSession, order: JobOrder, checkpointing: Checkpointing) -> None:
        """A job that is not started yet."""
        self._spark = spark
        self._order = order
        self._plan = order.plan
        self._name = order.name
        self._checkpointing = checkpointing
        root = local_state_root(spark, order.local_dir)
        self._job = JobIdentity(order.job_id, order.name, root)
        self._pinning = Pinning(spark)
        self._calls = PinnedCalls(spark, self._pinning)
        self._statistics = StatisticsKeeper(order.plan)
        self._restarts = RestartTracker(order.restarts)
        self._scratch = scratch_directory()
        self._incarnation: Incarnation | None = None
        self._runner: EpochRunner | None = None
        self._begun = 0
        self._prepared = False
        self._ran = False
        """Whether an incarnation has ever begun."""
        self._status = JobStatus.RUNNING
        self._failure: BaseException | None = None
        self._cancelled = threading.Event()
        self._suspending = False
        """Whether the job was told to end so that another start goes on with it."""
        self._savepoint: str | None = None
        """What the job was ended with, and goes on from."""
        self._ended = threading.Event()
        self._started = monotonic()
        self._runtime_ms = 0

    @property
    def job_id(self) -> str:
        """The job's id."""
        return self._job.job_id

    @property
    def name(self) -> str:
        """The job's name."""
        return self._name

    @property
    def cancelled(self) -> bool:
        """Whether the job was told to end early."""
        return self._cancelled.is_set()

    @property
    def query(self) -> StreamingQuery:
        """The Spark query that runs the job now; a job in one pass has none."""
        query = None if self._incarnation is None else self._incarnation.query
        if query is None:
            raise JobExecutionError(f"job {self._name!r} runs in one pass, without a query")
        return query

    def status(self) -> JobStatus:
        """Where the job stands."""
        return self._status

    def statistics(self) -> JobStatistics:
        """What the job has done so far."""
        figures = self._statistics.snapshot(self.job_id, self._name, self._status)
        return replace(figures, checkpoints=self._checkpointing.statistics())

    def suspend(self) -> None:
        """Stop the job, and delete nothing that another start under its id needs to go on.

        Returns as `cancel` does.
        """
        self._suspending = True
        self.cancel()

    def interrupt(self) -> None:
        """Stop the job as an interrupt from the keyboard does.

        A job with an id of its own is suspended. Another one is cancelled, since no start
        would ever find it again.
        """
        if self._order.lasting_id:
            self.suspend()
        else:
            self.cancel()

    def cancel(self) -> None:
        """Stop the job; returns when it has ended, or at once in a thread of the job itself."""
        self._cancelled.set()
        patience = self._checkpointing.patience
        start_thread(f"stopping {self._name}", self._stop)
        start_thread(f"end of {self._name}", partial(patience.see_to_the_end, self._ended))
        if not self._is_own_thread():
            patience.wait_for_end(self._name, self._ended)

    def _is_own_thread(self) -> bool:
        """Whether this is a thread in which the job itself works, and which cannot wait for it."""
        in_epoch = None if self._incarnation is None else self._incarnation.epoch_thread
        return threading.get_ident() == in_epoch or self._checkpointing.patience.is_calling()

    def _stop(self) -> None:
        if self._incarnation is not None:
            self._incarnation.stop()

    def trigger_savepoint(
        self,
        directory: str | None = None,
        format_type: SavepointFormatType = SavepointFormatType.CANONICAL,
        timeout: float | None = None,
    ) -> str:
        """Take a savepoint while the job goes on; where it is, once it is complete.

        Args:
            directory: Path or URL below which it gets a directory of its own; what
                `execution.checkpointing.savepoint-dir` says if not given.
            format_type: Tables that any tool reads, or the files of the state backend.
            timeout: Seconds to wait at most; a TimeoutError is raised after that, and the
                savepoint goes on.

        Raises:
            CheckpointError: The savepoint failed; the job goes on.
        """
        request = self._savepoint_request(directory, format_type)
        self._in_background(request, partial(Incarnation.take_savepoint, request=request))
        return request.result(timeout)

    def stop_with_savepoint(
        self,
        directory: str | None = None,
        *,
        drain: bool = False,
        format_type: SavepointFormatType = SavepointFormatType.CANONICAL,
    ) -> str:
        """Take a savepoint of all that was read, and end the job well; where it is.

        If the savepoint fails, the job goes on as if nothing had been asked for.

        Args:
            directory: As for `trigger_savepoint`.
            drain: Whether event time comes to its end first, so that all its timers fire and
                windows close: for jobs that are not to be resumed.
            format_type: As for `trigger_savepoint`.

        Raises:
            CheckpointError: The savepoint failed.
        """
        return self._end_with_savepoint(directory, format_type, drain=drain, cancel=False)

    def cancel_with_savepoint(
        self,
        directory: str | None = None,
        format_type: SavepointFormatType = SavepointFormatType.CANONICAL,
    ) -> str:
        """Take a savepoint and cancel the job; as `stop_with_savepoint`, but it is cancelled."""
        return self._end_with_savepoint(directory, format_type, drain=False, cancel=True)

    def _end_with_savepoint(
        self, directory: str | None, form: SavepointFormatType, *, drain: bool, cancel: bool
    ) -> str:
        request = self._savepoint_request(directory, form)

        def complete() -> None:
            self._savepoint = request.files.root
            if cancel:
                self._cancelled.set()

        self._in_background(
            request,
            partial(
                Incarnation.finish_with_savepoint,
                request=request,
                drain=drain,
                on_complete=complete,
            ),
        )
        path = request.result()
        self._checkpointing.patience.wait_for_end(self._name, self._ended)
        return path

    def _savepoint_request(
        self, directory: str | None, form: SavepointFormatType
    ) -> SavepointRequest:
        if self._order.pace.one_pass:
            raise JobExecutionError(
                f"job {self._name!r} runs in one pass and keeps no state, so there is nothing to "
                "take a savepoint of; set the runtime mode to STREAMING"
            )
        return SavepointRequest.at(directory or self._order.savepoint_dir, self.job_id, form)

    def _in_background(
        self, request: SavepointRequest, work: Callable[[Incarnation], None]
    ) -> None:
        """Let the incarnation that runs now do something between two epochs."""
        incarnation = self._incarnation
        if self._status is not JobStatus.RUNNING or incarnation is None:
            raise JobExecutionError(
                f"job {self._name!r} is {self._status.name}; a savepoint is taken of a running job"
            )
        if self._is_own_thread():
            raise JobExecutionError(
                f"job {self._name!r}: a savepoint waits for the end of an epoch and for output to "
                "be published, and one that waits for it does not end; ask for it from another "
                "thread"
            )
        take = partial(decide, request, partial(work, incarnation))
        InheritableThread(target=take, daemon=True).start()

    def result(self, timeout: float | None = None) -> JobExecutionResult:
        """Wait for the end; raises `JobExecutionError` if the job failed.

        Args:
            timeout: Seconds to wait at most; a TimeoutError is raised after that.
        """
        if not self._ended.wait(timeout):
            raise TimeoutError(f"job {self._name!r} is still running after {timeout} s")
        if self._failure is not None:
            raise JobExecutionError(self._told()) from self._failure
        return JobExecutionResult(self.job_id, self._name, self._runtime_ms, self.statistics())

    def _told(self) -> str:
        assert self._failure is not None
        why = summary(self._failure)
        if self._status is not JobStatus.SUSPENDED:
            return f"job {self._name!r} failed: {why}"
        return (
            f"job {self._name!r} is suspended, since its Spark session has ended ({why}). Nothing "
            f"was deleted: start it under job id {self.job_id!r}, in another session, and it goes "
            "on from its newest checkpoint"
        )

    def start(self) -> JobClient:
        """Start the job in the background.

        A program that cannot run is refused here. Where Spark or storage failed meanwhile,
        the job has failed for the first time, and is restarted like any other.
        """
        failure: BaseException | None = None
        try:
            if self._has_finished():
                return self
            self._begin()
        except BaseException as raised:
            failure = original_error(raised)
            if not isinstance(failure, PASSING):
                self._failure, self._status = raised, JobStatus.FAILED
                self._clean_up()
                self._ended.set()
                raise
        InheritableThread(target=self._supervise, args=(failure,), daemon=True).start()
        return self

    def _has_finished(self) -> bool:
        """Whether a run under the same job id has processed all input; then so has this one."""
        when = self._checkpointing.finished() if self._order.lasting_id else None
        if when is None:
            return False
        logger.warning(
            "job %r with job id %r finished %s, so nothing is left to do. To run it again from the "
            "beginning, start it under another job id, or delete %s",
            self._name,
            self.job_id,
            when,
            self._checkpointing.finished_note,
        )
        self._status = JobStatus.FINISHED
        self._clean_up()
        self._ended.set()
        return True

    def _prepare(self) -> None:
        """Do what is done once for all incarnations."""
        self._pinning.anchor(self._plan.level_parallelism)
        self._checkpointing.open(self._spark, self._plan, self._calls, self._break_off)
        self._job = self._checkpointing.owned(self._job)
        self._frames = [self._frame(source) for source in self._plan.sources]
        self._watch = ExecutorWatch(self._spark, self._pinning, self._break_off)
        warn_of_held_time(self._name, self._plan)
        self._prepared = True

    def _frame(self, source: SourcePlan) -> DataFrame:
        if self._order.pace.one_pass:
            return in_one_pass(source.node.function)
        frame: DataFrame = source.node.function.streaming(self._source_directory(source))
        return frame

    def _source_directory(self, source: SourcePlan) -> str:
        kept = self._checkpointing.source_directory(source.uid)
        return kept or (self._scratch / f"{SCRATCH}{source.node.id}").as_uri()

    def _begin(self) -> None:
        """Begin the next incarnation, from the newest checkpoint if there is one."""
        if not self._prepared:
            self._prepare()
        self._close_runner()
        self._begun += 1
        job = replace(self._job, incarnation=self._checkpointing.incarnation(self._begun))
        query_dir = self._scratch / f"query-{self._begun}"
        restored = self._checkpointing.restore(job)
        job = restored.job or job
        leaves = self._checkpointing.leaves(self._plan, self._frames)
        position = restored.position
        if position is not None:
            if restored.base is None:
                check_kept_rows(position, self._plan, one_pass=self._order.pace.one_pass)
                directories = {one.uid: self._source_directory(one) for one in self._plan.sources}
                position = with_rows_read(position, self._plan, directories, self._spark)
            with settings(self._spark, QUERY_SETTINGS):
                lay_out(query_dir, position, leaves)
        runner = EpochRunner(
            self._spark,
            self._plan,
            job,
            self._statistics,
            self._pinning,
            restored.start,
            self._checkpointing.delivery,
            self._order.pace.interval_ms,
        )
        self._runner = runner
        self._checkpointing.begin(job, restored, query_dir, leaves)
        self._watch.note()
        self._incarnation = Incarnation(
            self._spark,
            f"{self._name}-{self.job_id[:8]}-{job.incarnation}",
            self._order.pace,
            runner,
            self._checkpointing,
            self._frames,
            query_dir,
            self._end_epoch,
            restored.batch_id,
            self._checkpointing.patience,
        )
        self._incarnation.start()
        self._ran = True

    def _supervise(self, failure: BaseException | None) -> None:
        try:
            self._failure = self._run_to_the_end(failure)
        except BaseException as failure:
            self._failure = failure
        finally:
            self._status = self._final_status()
            self._runtime_ms = int((monotonic() - self._started) * 1000)
            self._clean_up()
            self._ended.set()

    def _final_status(self) -> JobStatus:
        if self._cancelled.is_set():
            self._failure = None
            return JobStatus.SUSPENDED if self._suspending else JobStatus.CANCELED
        if self._failure is None:
            return JobStatus.FINISHED
        return JobStatus.SUSPENDED if self._has_lost_session(self._failure) else JobStatus.FAILED

    def _has_lost_session(self, failure: BaseException) -> bool:
        """Whether the session has ended, or does so within a moment, which explains the failure."""
        may_follow = isinstance(failure, PASSING) or not isinstance(failure, HoldfastError)
        # A cluster's master that drops the application fails its tasks first.
        until = monotonic() + (0 if self._pinning.local or not may_follow else SESSION_ENDS)
        while is_alive(self._spark):
            if monotonic() >= until:
                return False
            self._cancelled.wait(LOOK_AGAIN)
        return True

    def _run_to_the_end(self, failure: BaseException | None) -> BaseException | None:
        """Run incarnation after incarnation; what broke the last one, or None.

        Args:
            failure: What kept the first one from beginning, if something did.
        """
        if failure is None:
            assert self._incarnation is not None
            failure = self._incarnation.wait()
        while failure is not None and not self._cancelled.is_set():
            decision = None
            if not isinstance(failure, HOPELESS) and is_alive(self._spark):
                decision = self._restarts.failed(SystemClock().monotonic_ms())
            if decision is None:
                return failure
            logger.warning(
                "job %r failed and restarts in %.1f s: %s",
                self._name,
                decision.delay_ms / 1000,
                summary(failure),
            )
            self._status = JobStatus.RESTARTING
            self._statistics.restarted()
            self._cancelled.wait(decision.delay_ms / 1000)
            failure = self._begin_and_wait()
        return failure

    def _begin_and_wait(self) -> BaseException | None:
        if self._cancelled.is_set():
            return None
        try:
            self._begin()
        except Exception as failure:
            return original_error(failure)
        self._status = JobStatus.RUNNING
        if self._cancelled.is_set():
            # Cancelled in between: the stop went to the incarnation before.
            self._stop()
        assert self._incarnation is not None
        return self._incarnation.wait()

    def _break_off(self, failure: BaseException) -> None:
        """Let the incarnation that runs now fail."""
        if self._incarnation is not None:
            self._incarnation.break_off(failure)

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
            except Exception as error:
                logger.warning("job %r left something behind: %s", self._name, error)

    def _close_checkpoints(self) -> None:
        # What another driver has taken over is no longer this one's to delete; and a program
        # that does not fit its checkpoints, or did not start, is corrected and started again.
        kept = not self._ran or isinstance(self._failure, FencedError | RestoreError)
        if kept or self._status is JobStatus.SUSPENDED:
            self._checkpointing.close(None)
            return
        order = self._order
        ending = JobEnding(
            self._name, self._status, order.lasting_id, not order.pace.ends, self._savepoint
        )
        self._checkpointing.close(ending)

    def _close_runner(self) -> None:
        if self._runner is not None:
            self._runner.close()
            self._runner = None

    def _stop_watch(self) -> None:
        watch = getattr(self, "_watch", None)
        if watch is not None:
            watch.stop()

    def _delete_local_state(self) -> None:
        tasks = max(self._plan.level_parallelism, default=1)
        delete_local_state(self._spark, self._job, tasks)

    def _end_epoch(self, result: EpochResult) -> None:
        epoch = result.statistics
        assert self._runner is not None
        for text in self._runner.take_warnings():
            logger.warning("job %r: %s", self._name, text)
        for listener in self._order.listeners:
            try:
                listener(epoch)
            except Exception as error:
                raise JobExecutionError(
                    f"an epoch listener raised after epoch {epoch.epoch}: "
                    f"{type(error).__name__}: {error}"
                ) from error


def new_job_id() -> str:
    """An id that no other job has."""
    return uuid.uuid4().hex
