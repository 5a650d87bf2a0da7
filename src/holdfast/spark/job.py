"""A running job: one Structured Streaming query, or one pass over bounded data."""

from __future__ import annotations

import logging
import shutil
import tempfile
import threading
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark import InheritableThread

from holdfast.clock import monotonic
from holdfast.errors import JobExecutionError
from holdfast.spark.epochs import EpochRunner, JobIdentity
from holdfast.spark.failures import original_error
from holdfast.spark.local_state import delete_local_state, local_state_root
from holdfast.spark.session import QUERY_SETTINGS, one_pass_settings, settings
from holdfast.spark.statistics import EpochStatistics, JobStatistics, JobStatus
from holdfast.spark.types import spark_schema

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from holdfast.spark.compiler import JobPlan
    from holdfast.spark.source import Source


logger = logging.getLogger("holdfast")

CANCEL_AGAIN = 0.1
"""Seconds between two tries to cancel a job that runs in one pass."""


@dataclass(frozen=True)
class Pace:
    """When epochs run and when the job ends."""

    interval_ms: int
    available_now: bool
    """Whether the job ends when it has processed all there is."""
    one_pass: bool
    """Whether all data is processed as one epoch, without a streaming query."""


@dataclass(frozen=True)
class JobExecutionResult:
    """How a job ended that ended well."""

    job_id: str
    name: str
    runtime_ms: int
    statistics: JobStatistics


class JobClient:
    """A job that was started, for those who wait for it, watch it or cancel it."""

    def __init__(
        self,
        spark: SparkSession,
        plan: JobPlan,
        name: str,
        pace: Pace,
        local_dir: str | None,
        listeners: list[Callable[[EpochStatistics], None]],
    ) -> None:
        """A job that is not started yet."""
        self._spark = spark
        self._plan = plan
        self._name = name
        self._pace = pace
        self._listeners = listeners
        self._job = JobIdentity(uuid.uuid4().hex, name, local_state_root(spark, local_dir))
        self._runner = EpochRunner(spark, plan, self._job)
        self._scratch = tempfile.mkdtemp(prefix="holdfast-query-")
        self._query: StreamingQuery | None = None
        self._status = JobStatus.RUNNING
        self._failure: BaseException | None = None
        self._epoch_failure: BaseException | None = None
        self._cancelled = threading.Event()
        self._ended = threading.Event()
        self._started = monotonic()
        self._runtime_ms = 0
        self._last_start: float | None = None
        self._epoch_thread: int | None = None

    @property
    def job_id(self) -> str:
        """The job's id, 32 hexadecimal digits."""
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
        """The Spark query that runs the job; a job in one pass has none."""
        if self._query is None:
            raise JobExecutionError(f"job {self._name!r} runs in one pass, without a query")
        return self._query

    def status(self) -> JobStatus:
        """Where the job stands."""
        return self._status

    def statistics(self) -> JobStatistics:
        """What the job has done so far."""
        return self._runner.statistics.snapshot(self.job_id, self._name, self._status)

    def cancel(self) -> None:
        """Stop the job; returns when it has ended, or at once within an epoch of its own."""
        self._cancelled.set()
        stopping = InheritableThread(target=self._stop, daemon=True)
        stopping.start()
        if threading.get_ident() != self._epoch_thread:
            stopping.join()
            self._ended.wait()

    def _stop(self) -> None:
        if self._query is not None:
            self._query.stop()
            return
        # Between two Spark jobs there is nothing to cancel: try until the end has come.
        while not self._ended.wait(CANCEL_AGAIN):
            self._spark.sparkContext.cancelJobGroup(self.job_id)

    def result(self, timeout: float | None = None) -> JobExecutionResult:
        """Wait for the end; raises `JobExecutionError` if the job failed.

        Args:
            timeout: Seconds to wait at most; a TimeoutError is raised after that.
        """
        if not self._ended.wait(timeout):
            raise TimeoutError(f"job {self._name!r} is still running after {timeout} s")
        if self._failure is not None:
            raise JobExecutionError(
                f"job {self._name!r} failed: {self._failure}"
            ) from self._failure
        return JobExecutionResult(self.job_id, self._name, self._runtime_ms, self.statistics())

    def start(self) -> JobClient:
        """Start the job in the background."""
        watcher = self._run_one_pass
        try:
            self._runner.start()
            if not self._pace.one_pass:
                with settings(self._spark, QUERY_SETTINGS):
                    self._query = self._start_query()
                watcher = self._watch_query
        except BaseException as failure:
            self._failure, self._status = failure, JobStatus.FAILED
            self._clean_up()
            self._ended.set()
            raise
        InheritableThread(target=self._guarded, args=(watcher,), daemon=True).start()
        return self

    def _guarded(self, run: Callable[[], None]) -> None:
        try:
            run()
            self._status = JobStatus.CANCELED if self._cancelled.is_set() else JobStatus.FINISHED
        except BaseException as failure:
            if self._cancelled.is_set():
                self._status = JobStatus.CANCELED
            else:
                self._failure = original_error(self._epoch_failure or failure)
                self._status = JobStatus.FAILED
        finally:
            self._runtime_ms = int((monotonic() - self._started) * 1000)
            self._clean_up()
            self._ended.set()

    def _clean_up(self) -> None:
        shutil.rmtree(self._scratch, ignore_errors=True)
        try:
            self._runner.close()
            tasks = max(self._plan.level_parallelism, default=1)
            delete_local_state(self._spark, self._job.local_dir, self.job_id, tasks)
        except Exception as error:
            logger.warning("job %r left something behind: %s", self._name, error)

    def _start_query(self) -> StreamingQuery:
        rows = self._first_rows(_streaming_frame)
        writer = rows.writeStream.foreachBatch(self._run_epoch).queryName(
            f"{self._name}-{self.job_id[:8]}"
        )
        # By URI: without a scheme Spark would look for it in its default file system.
        writer = writer.option("checkpointLocation", Path(self._scratch, "query").as_uri())
        if self._pace.available_now:
            writer = writer.trigger(availableNow=True)
        elif self._pace.interval_ms:
            writer = writer.trigger(processingTime=f"{self._pace.interval_ms} milliseconds")
        return writer.start()

    def _watch_query(self) -> None:
        assert self._query is not None
        self._query.awaitTermination()

    def _run_one_pass(self) -> None:
        self._spark.sparkContext.setJobGroup(self.job_id, self._name, interruptOnCancel=True)
        with settings(self._spark, one_pass_settings(self._spark)):
            self._run_epoch(self._first_rows(_static_frame), 0)

    def _run_epoch(self, batch: DataFrame, _: int) -> None:
        self._epoch_thread = threading.get_ident()
        try:
            self._keep_interval()
            if self._cancelled.is_set():
                raise JobExecutionError(f"job {self._name!r} was cancelled")
            self._end_epoch(self._runner.run(batch))
        except BaseException as failure:
            self._epoch_failure = failure
            raise
        finally:
            self._epoch_thread = None

    def _end_epoch(self, epoch: EpochStatistics) -> None:
        for text in self._runner.take_warnings():
            logger.warning("job %r: %s", self._name, text)
        for listener in self._listeners:
            try:
                listener(epoch)
            except Exception as error:
                raise JobExecutionError(
                    f"an epoch listener raised after epoch {epoch.epoch}: "
                    f"{type(error).__name__}: {error}"
                ) from error

    def _keep_interval(self) -> None:
        """Space epochs out where the trigger does not."""
        if self._pace.available_now and self._last_start is not None:
            pause = self._last_start + self._pace.interval_ms / 1000 - monotonic()
            self._cancelled.wait(max(0.0, pause))
        self._last_start = monotonic()

    def _first_rows(self, frame_of: Callable[[Source, str], DataFrame]) -> DataFrame:
        frames = [
            frame_of(source.node.function, Path(self._scratch, f"source-{source.node.id}").as_uri())
            for source in self._plan.sources
        ]
        return self._runner.first_rows(frames)


def _streaming_frame(source: Source, scratch: str) -> DataFrame:
    return source.streaming(scratch)


def _static_frame(source: Source, _: str) -> DataFrame:
    assert source.static is not None, f"{source.description} has no end"
    return source.static()


def preview_rows(spark: SparkSession, plan: JobPlan) -> DataFrame:
    """The plan of an epoch, over empty DataFrames in place of the sources'."""
    runner = EpochRunner(spark, plan, JobIdentity("preview", "preview", None))
    schemas = [spark_schema(source.node.output.schema) for source in plan.sources]
    with settings(spark, QUERY_SETTINGS):
        rows = runner.rows(runner.first_rows([spark.createDataFrame([], s) for s in schemas]))
        # Planned here, while the settings are in force.
        rows._jdf.queryExecution().executedPlan()
        return rows
