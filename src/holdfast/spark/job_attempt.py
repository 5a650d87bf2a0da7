"""One job attempt: a Spark query and its epochs, until the query ends or fails.

A restart begins a new job attempt, with another query, another query directory and other local
stores. Nothing of an older job attempt is written again.
"""

from __future__ import annotations

import logging
import threading
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark import InheritableThread

from holdfast.clock import monotonic
from holdfast.errors import JobExecutionError
from holdfast.job.threads import TimeLimits, guarded, held_weakly, start_thread
from holdfast.spark.failures import (
    INTERRUPTED,
    EpochInterrupted,
    headline,
    original_error,
    stopped_early,
    summary,
)
from holdfast.spark.idle_epochs import IdleEpochs
from holdfast.spark.session import QUERY_SETTINGS, one_pass_settings, polling_every, settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from holdfast.checkpoint.savepoint.requests import CheckpointRequest
    from holdfast.checkpoint.service import CheckpointService
    from holdfast.job.model import EpochOrder, EpochResult
    from holdfast.job.trigger import JobTrigger
    from holdfast.spark.epoch_runner import EpochRunner

logger = logging.getLogger("holdfast")

LOOK_AROUND = 0.05
"""Seconds between two checks whether a checkpoint or timer is due while no data comes."""
LOOK_OUT = 0.5
"""Seconds between two checks whether the query still runs, while the job keeps its interval."""
TRY_AGAIN = 0.5
"""Seconds before a failed final checkpoint, or stopping a query, is tried again."""
CANCEL_AGAIN = 0.1
"""Seconds between two attempts to cancel a job that runs in one pass."""


class JobAttempt:
    """One query of a job, and its epochs."""

    def __init__(
        self,
        spark: SparkSession,
        name: str,
        trigger: JobTrigger,
        runner: EpochRunner,
        checkpoints: CheckpointService,
        frames: list[DataFrame],
        query_dir: Path,
        on_epoch: Callable[[EpochResult], None],
        restored_batch: int | None = None,
        time_limits: TimeLimits | None = None,
    ) -> None:
        """Create a job attempt that is not started yet.

        Args:
            spark: The session.
            name: Name of the query in Spark's UI.
            trigger: When epochs run.
            runner: Runs the epochs.
            checkpoints: Decides which epochs carry a checkpoint, and takes it.
            frames: DataFrames of the plan's sources, in their order.
            query_dir: Directory of the query's log; it has content if the job was restored.
            on_epoch: Called after every epoch.
            restored_batch: Last micro-batch that the restored state contains.
            time_limits: How long to wait for an epoch after the query has ended.
        """
        self._time_limits = time_limits or TimeLimits()
        self._spark = spark
        self._name = name
        self._trigger = trigger
        self._runner = runner
        self._checkpoints = checkpoints
        self._frames = frames
        self._query_dir = query_dir
        self._on_epoch = on_epoch
        self.query: StreamingQuery | None = None
        self._idle_group = f"{name}-idle"
        self._failure: BaseException | None = None
        self._is_finished = False
        """Whether the job is stopped with a savepoint, so that no epoch may follow."""
        self._stopping = threading.Event()
        self._ended = threading.Event()
        self._lock = threading.Lock()
        """Held while an epoch runs, with or without input."""
        self._savepoints: list[CheckpointRequest] = []
        """Those whose epochs have not ended."""
        self._idle = IdleEpochs(runner, checkpoints, self._run_idle, self._is_ending)
        self._idle.last_batch = restored_batch
        self._idle.resumed = restored_batch is None
        self._last_start: float | None = None
        self._read_before: int | None = None
        """Last batch before the query was started again; None if it was not."""
        self.epoch_thread: int | None = None
        """The thread that runs an epoch now."""
        self._runs_idle_epoch = False
        """Whether an epoch without input runs, whose Spark jobs are not the query's."""

    def start(self) -> None:
        """Start the query; a job in one pass starts when it is waited for."""
        if not self._trigger.one_pass:
            try:
                with settings(self._spark, QUERY_SETTINGS):
                    self.query = self._start_query()
            except BaseException:
                # `wait` is never called, so `stop` must not wait for a query.
                self._ended.set()
                raise
            look_around = guarded(f"looking around for {self._name}", self._look_around)
            InheritableThread(target=look_around, daemon=True).start()

    def wait(self) -> BaseException | None:
        """Wait for the end; returns the failure, or None if it finished or was stopped."""
        try:
            if self.query is None:
                self._run_one_pass()
            else:
                self.query.awaitTermination()
                self._read_on()
                self._finish()
        except BaseException as failure:
            if self._failure is None and not self._stopping.is_set():
                self._failure = failure
        finally:
            self._ended.set()
            self._wait_for_epoch()
            self._give_up_savepoints()
        if self._failure is None or self._is_finished:
            # A failure after the final savepoint does not restart the job.
            return None
        return original_error(self._failure)

    def _read_on(self) -> None:
        """Continue a query that ended while sources waited for others.

        Spark ends it when no source has anything new. The sources that others waited for have
        ended then, so that these may read.

        Raises:
            QueryStoppedError: They have not, so somebody else has stopped the query.
        """
        while self._trigger.available_now and not self._is_ending():
            with self._between_two_epochs():
                waiting = self._runner.sources_that_wait()
                self._runner.align()
            if not waiting:
                return
            if waiting <= set(self._runner.paused_sources):
                raise stopped_early(self._name)
            self._read_before = self._idle.last_batch
            with settings(self._spark, QUERY_SETTINGS):
                self.query = self._start_query()
            if self._stopping.is_set():
                self.query.stop()
            self.query.awaitTermination()

    def _wait_for_epoch(self) -> None:
        """Wait for an idle epoch that may still run; no other begins.

        One that hangs is left alone: its result is ignored.
        """
        self._cancel_idle_jobs()
        if self._lock.acquire(timeout=self._time_limits.end):
            self._lock.release()
        elif self._failure is None:
            self._failure = JobExecutionError(
                f"job {self._name!r}: an epoch has not ended within {self._time_limits.end:.0f} s "
                "after the query; check that Spark and checkpoint storage respond"
            )

    def _give_up_savepoints(self) -> None:
        """Fail the savepoints whose epochs hang, or wait for one that hangs."""
        for request in tuple(self._savepoints):
            request.fail("the job has ended or restarts, and an earlier epoch hangs")

    def stop(self) -> None:
        """Stop early; returns when the query has stopped."""
        self._stopping.set()
        # The query may just be starting. In one pass there is nothing to cancel between two
        # Spark jobs, so repeat until the end.
        while (query := self.query) is None:
            if self._ended.wait(CANCEL_AGAIN):
                return
            with suppress(Exception):
                self._spark.sparkContext.cancelJobGroup(self._name)
        self._cancel_idle_jobs()
        query.stop()

    def _cancel_idle_jobs(self) -> None:
        if not self._runs_idle_epoch:
            # Spark would warn that there is nothing to cancel.
            return
        with suppress(Exception):
            # A session that was stopped has no jobs.
            self._spark.sparkContext.cancelJobGroup(self._idle_group)

    @contextmanager
    def _between_two_epochs(self) -> Iterator[None]:
        """Wait for the running epoch, and hold the lock.

        Raises:
            JobExecutionError: The epoch hangs, or the job attempt has ended.
        """
        while not self._lock.acquire(timeout=LOOK_AROUND):
            if self._time_limits.has_stopped or self._ended.is_set():
                raise JobExecutionError(f"job {self._name!r}: an epoch hangs")
        try:
            yield
        finally:
            self._lock.release()

    def take_savepoint(self, request: CheckpointRequest) -> None:
        """Run an epoch that carries a savepoint; returns at the end of the epoch."""
        self._between_epochs(request, partial(self._run_savepoint_epoch, request))

    def finish_with_savepoint(
        self, request: CheckpointRequest, *, drain: bool, on_complete: Callable[[], None]
    ) -> None:
        """Take a savepoint, or a checkpoint alone, of all that was read, and end.

        If that fails, the job continues. If it was drained, it continues from its last
        checkpoint, as after any failure; or it ends, if that is the one of the savepoint.

        Args:
            request: The savepoint or checkpoint.
            drain: Whether to advance event time to its end first, so that all timers fire.
            on_complete: Called when it is complete, before the end.
        """

        def finish() -> None:
            if drain:
                request.required = True
                self._idle.drain()
                self._idle.drain_event_time()
            self._run_savepoint_epoch(request)
            # Still under the lock: the savepoint must contain every epoch.
            if self._wait_for(request):
                on_complete()
                self._is_finished = True
                self._stopping.set()
            elif drain:
                raise request.failed_drained()

        self._between_epochs(request, finish)
        if self._stopping.is_set():
            self._stop_at_last()

    def _between_epochs(self, request: CheckpointRequest, work: Callable[[], None]) -> None:
        """Do some work for a savepoint between two epochs."""
        self._join_idle_group()
        self._savepoints.append(request)
        try:
            with self._between_two_epochs():
                if self._is_ending():
                    request.fail("the job has ended, or is about to")
                    return
                try:
                    work()
                except BaseException as failure:
                    request.fail(str(original_error(failure)))
                    self.break_off(failure)
        finally:
            self._savepoints.remove(request)

    def _wait_for(self, request: CheckpointRequest) -> bool:
        """Wait for a savepoint, unless the job ends first; whether it is complete."""
        while not request.is_decided:
            self._checkpoints.expire()
            if self._stopping.wait(LOOK_AROUND) or self._failure is not None:
                request.fail("the job has ended")
        return request.is_complete

    def _run_savepoint_epoch(self, request: CheckpointRequest) -> None:
        # Channel state is processed first.
        idle = not self._runner.channel_rows
        self._idle.run(self._checkpoints.next_epoch(idle=idle, request=request))

    def break_off(self, failure: BaseException) -> None:
        """Fail for a reason outside of the epochs."""
        if self._failure is None:
            self._failure = failure
        # In another thread: the query may wait for this one before it stops.
        start_thread(f"stopping {self._name}", self._stop_at_last)

    def _stop_at_last(self) -> None:
        """Stop, and try again as long as that fails and the job attempt has not ended."""
        while not self._ended.is_set():
            try:
                self.stop()
                return
            except Exception as error:
                what = f"the query {self._name!r} did not stop, which is tried again"
                logger.warning("%s: %s", what, summary(error))
                self._ended.wait(TRY_AGAIN)

    def _writer(self, on_batch: Callable[[DataFrame, int], None], name: str) -> DataStreamWriter:
        rows = self._runner.first_rows(self._frames)
        writer = rows.writeStream.foreachBatch(on_batch).queryName(name)
        # As a URI: without a scheme Spark would use its default file system.
        return writer.option("checkpointLocation", self._query_dir.as_uri())

    def _start_query(self) -> StreamingQuery:
        writer = self._writer(held_weakly(self._run_batch_of_query), self._name)
        if self._trigger.available_now:
            return writer.trigger(availableNow=True).start()
        # Without an interval, which Spark would keep by the wall clock.
        with polling_every(self._spark, self._trigger.interval_ms):
            return writer.start()

    def _run_one_pass(self) -> None:
        self._spark.sparkContext.setJobGroup(self._name, self._name, interruptOnCancel=True)
        with settings(self._spark, one_pass_settings(self._spark)):
            self._run_batch(self._runner.first_rows(self._frames), 0)

    def _run_batch_of_query(self, batch: DataFrame, batch_id: int) -> None:
        try:
            self._run_batch(batch, batch_id)
        except BaseException:
            if self._stopping.is_set():
                raise EpochInterrupted(INTERRUPTED) from None
            raise

    def _run_batch(self, batch: DataFrame, batch_id: int) -> None:
        if self._trigger.available_now:
            # Spark knows all batches from the beginning, and the last one has no successor.
            self._keep_interval()
        self._last_start = monotonic()
        self._process(batch, batch_id)
        if not self._trigger.available_now:
            # Before Spark decides what the next batch contains.
            self._keep_interval()

    def _process(self, batch: DataFrame, batch_id: int) -> None:
        with self._lock:
            if self._is_finished:
                # A job that continues from the savepoint reads it again.
                return
            if self._read_before is not None and batch_id <= self._read_before:
                # The query was stopped before it had noted the batch, and was started again.
                return
            self._idle.has_looked = True
            self._idle.resume()
            order = self._checkpoints.next_epoch(idle=False)
            assert order is not None
            self._run_epoch(batch, replace(order, last=self._trigger.one_pass), batch_id)
            # Only now: a checkpoint must not claim a batch that is not processed.
            self._idle.last_batch = batch_id
            # A checkpoint may be due if the epoch took longer than estimated.
            self._idle.run_for_checkpoint()
            # Before Spark reads more: channel state never exceeds one batch.
            self._idle.drain()
            if order.cut_at is not None:
                # An epoch that may be cut does not advance the watermark; a later one does.
                self._idle.run_timers(event_time=True)

    def _run_idle(self, order: EpochOrder, batch_id: int) -> None:
        with settings(self._spark, QUERY_SETTINGS):
            self._run_epoch(None, order, batch_id)

    def _run_epoch(self, batch: DataFrame | None, order: EpochOrder, batch_id: int) -> None:
        self.epoch_thread = threading.get_ident()
        # Before it is refused: `stop` looks in the other order.
        self._runs_idle_epoch = batch is None
        try:
            # Also after a failure: a checkpoint must not contain a half-done epoch.
            self._refuse_to_go_on()
            result = self._runner.run(batch, order)
            if self._ended.is_set():
                # It hung, and another job attempt may have begun.
                self._refuse_to_go_on()
            self._checkpoints.epoch_completed(order, result, batch_id)
            self._on_epoch(result)
        except BaseException as failure:
            stopped = self._stopping.is_set()
            self._checkpoints.epoch_failed(order, None if stopped else headline(failure))
            if self._failure is None and not stopped:
                self._failure = failure
            raise
        finally:
            self.epoch_thread = None
            self._runs_idle_epoch = False
            self._idle.last_end = monotonic()

    def _look_around(self) -> None:
        """Take checkpoints and fire timers that become due while no data comes."""
        try:
            self._join_idle_group()
            while not self._ended.wait(LOOK_AROUND):
                if self._idle.last_batch is None:
                    self._checkpoints.expire()
                elif self._lock.acquire(blocking=False):
                    try:
                        self._run_what_is_due()
                    finally:
                        self._lock.release()
        except BaseException as failure:
            # Without this thread no checkpoints are taken, so the job must fail.
            self.break_off(failure)

    def _run_what_is_due(self) -> None:
        try:
            self._idle.run_what_is_due(self._query_status)
        except BaseException as failure:
            # Still under the lock: no epoch may follow.
            self.break_off(failure)
            raise

    def _query_status(self) -> dict[str, Any]:
        """Status of the query; empty if it has none."""
        with suppress(Exception):
            # Whether the query has ended is not decided here.
            return {} if self.query is None else self.query.status
        return {}

    def _is_ending(self) -> bool:
        return self._stopping.is_set() or self._ended.is_set() or self._failure is not None

    def _refuse_to_go_on(self) -> None:
        if self._is_ending():
            raise JobExecutionError(f"job {self._name!r} was stopped")

    def _join_idle_group(self) -> None:
        """Let `stop` cancel the Spark jobs of this thread, which are not the query's."""
        self._spark.sparkContext.setJobGroup(
            self._idle_group, f"{self._name}: checkpoint", interruptOnCancel=True
        )

    def _finish(self) -> None:
        """Take the final checkpoint, which covers all that was processed."""
        self._join_idle_group()
        with self._between_two_epochs():
            self._idle.drain()
            self._confirm_end()
            self._idle.run_timers(event_time=False)
            self._idle.run_timers(event_time=True)
            if self._trigger.ends:
                self._idle.end_time()
            self._take_final_checkpoint()
            # Still under the lock: no epoch may follow the final checkpoint.
            self._ended.set()

    def _confirm_end(self) -> None:
        """Check that the query has read all input.

        Raises:
            QueryStoppedError: It was stopped from outside before that.
        """
        if not self._trigger.confirms_end or self._is_ending():
            return
        more = threading.Event()
        self._runner.let_all_read()
        with settings(self._spark, QUERY_SETTINGS):
            writer = self._writer(lambda batch, number: more.set(), f"{self._name}-end")
            rest = writer.trigger(availableNow=True).start()
        while rest.isActive and not more.is_set() and not self._is_ending():
            self._stopping.wait(LOOK_AROUND)
        rest.stop()
        if more.is_set():
            raise stopped_early(self._name)

    def _take_final_checkpoint(self) -> None:
        """Take checkpoints until one covers all epochs."""
        pause = 0.0
        while self._idle.last_batch is not None and not self._checkpoints.await_final_checkpoint():
            self._stopping.wait(pause)
            pause = TRY_AGAIN
            if not self._idle.run_for_checkpoint(last=True):
                return

    def _keep_interval(self) -> None:
        """Wait until the interval has passed since the last epoch began, or the query ends."""
        if self._last_start is None or not self._trigger.interval_ms:
            return
        until = self._last_start + self._trigger.interval_ms / 1000
        while (pause := until - monotonic()) > 0 and not self._stopping.wait(min(pause, LOOK_OUT)):
            # Somebody else may have stopped it, and waits for this thread.
            if self.query is not None and not self.query.isActive:
                return
