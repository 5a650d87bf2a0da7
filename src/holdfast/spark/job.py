"""The client of a running job: waits for it, watches it, rescales it, takes savepoints."""

from __future__ import annotations

import threading
import uuid
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING

from pyspark import InheritableThread

from holdfast.checkpoint.savepoint.requests import (
    CheckpointRequest,
    SavepointRequest,
    decide,
)
from holdfast.config.checkpoint_options import SavepointFormatType
from holdfast.config.options import timeout_seconds
from holdfast.errors import ConfigurationError, JobExecutionError
from holdfast.job.model import JobExecutionResult
from holdfast.job.statistics import JobFailure, JobStatistics, JobStatus
from holdfast.job.threads import Turns, start_thread
from holdfast.spark.failures import summary
from holdfast.spark.supervisor import Rescale

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql.streaming.query import StreamingQuery

    from holdfast.config.options import PathLike, TimeoutLike
    from holdfast.job.model import JobPlan
    from holdfast.spark.job_attempt import JobAttempt
    from holdfast.spark.supervisor import Supervisor

LOOK_AGAIN = 0.1
"""Seconds between two checks whether a job that is rescaled has ended."""
RESCALES = "only a running job is rescaled"
SAVES = "a savepoint is taken of a running job"
CHECKPOINTS = "a checkpoint is taken of a running job"


class JobClient:
    """A started job: wait for it, watch it, cancel it, rescale it, or take savepoints."""

    def __init__(self, supervisor: Supervisor) -> None:
        """Create the client of the job that `supervisor` runs; `execute_async` calls this."""
        self._supervisor = supervisor
        self._name = supervisor.order.name
        self._turns = Turns()

    @property
    def job_id(self) -> str:
        """The job's id."""
        return self._supervisor.order.job_id

    @property
    def name(self) -> str:
        """The job's name."""
        return self._name

    @property
    def lasting_id(self) -> bool:
        """Whether the program or the user chose the id, so that another start finds the job."""
        return self._supervisor.order.lasting_id

    @property
    def checkpoint_directory(self) -> str | None:
        """Where the job's checkpoints are; None if they do not outlive the driver."""
        return self._supervisor.checkpointing.directory

    @property
    def final_savepoint(self) -> str | None:
        """The savepoint that the job was stopped with, or None."""
        return self._supervisor.savepoint

    @property
    def cancelled(self) -> bool:
        """Whether the job was cancelled or suspended."""
        return self._supervisor.cancelled.is_set()

    @property
    def query(self) -> StreamingQuery:
        """The job's current Spark query; a job in one pass has none."""
        job_attempt = self._supervisor.job_attempt
        query = None if job_attempt is None else job_attempt.query
        if query is None:
            raise JobExecutionError(f"job {self._name!r} runs in one pass, without a query")
        return query

    @property
    def configuration(self) -> Mapping[str, object]:
        """The options that were set for the job, and those of its backend and restarts, by key."""
        return self._supervisor.order.configuration

    @property
    def job_parameters(self) -> Mapping[str, str]:
        """The parameters that the job's functions can read."""
        return self._supervisor.order.job_parameters

    @property
    def start_time(self) -> int:
        """When the job was started, in milliseconds since 1970."""
        return self._supervisor.start_time

    @property
    def end_time(self) -> int | None:
        """When the job ended, in milliseconds since 1970; None while it runs."""
        return self._supervisor.end_time

    @property
    def failure(self) -> str | None:
        """Why the job has ended, if a failure has ended it."""
        failure = self._supervisor.failure
        return None if failure is None else self._failure_message(failure)

    def failures(self) -> tuple[JobFailure, ...]:
        """The newest failures of the job, oldest first; the job was restarted after all others."""
        return tuple(self._supervisor.failures)

    @property
    def parallelism(self) -> int:
        """Number of subtasks of the operators that do not set their own."""
        return self._supervisor.parallelism

    def status(self) -> JobStatus:
        """The job's status."""
        return self._supervisor.status

    def statistics(self) -> JobStatistics:
        """The job's statistics so far."""
        return self._supervisor.statistics()

    def suspend(self) -> None:
        """Stop the job, and keep everything that another start under its id needs to continue.

        Returns as `cancel` does.
        """
        self._supervisor.suspends = True
        self.cancel()

    def interrupt(self) -> None:
        """Stop the job as Ctrl-C does.

        A job with a fixed id is suspended. Any other is cancelled, since no start could find it
        again.
        """
        if self._supervisor.order.lasting_id:
            self.suspend()
        else:
            self.cancel()

    def cancel(self) -> None:
        """Stop the job; returns when it has ended, or at once in a thread of the job itself.

        A sink or listener that hangs gets `task.cancellation.timeout`. Output that it has not
        published is published by the next start under the same job id.

        Raises:
            JobExecutionError: The job has not ended long after that.
        """
        supervisor = self._supervisor
        supervisor.cancelled.set()
        time_limits = supervisor.checkpointing.time_limits
        start_thread(f"stopping {self._name}", supervisor.stop)
        start_thread(f"end of {self._name}", partial(time_limits.limit_end, supervisor.ended))
        if not self._is_own_thread():
            time_limits.wait_for_end(self._name, supervisor.ended)

    def _is_own_thread(self) -> bool:
        """Whether the job itself runs in this thread, which then cannot wait for it."""
        job_attempt = self._supervisor.job_attempt
        in_epoch = None if job_attempt is None else job_attempt.epoch_thread
        calling = self._supervisor.checkpointing.time_limits.is_calling()
        return threading.get_ident() == in_epoch or calling

    def trigger_savepoint(
        self,
        directory: PathLike | None = None,
        format_type: SavepointFormatType = SavepointFormatType.CANONICAL,
        timeout: TimeoutLike | None = None,
    ) -> str:
        """Take a savepoint while the job runs, and return its path once it is complete.

        Args:
            directory: Path or URL below which the savepoint gets a new directory; by default
                `execution.checkpointing.savepoint-dir`.
            format_type: Tables that any tool reads, or the files of the state backend.
            timeout: Time to wait: seconds, "10 s" or a `timedelta`. After that a TimeoutError is
                raised, and the savepoint continues.

        Raises:
            CheckpointError: The savepoint failed; the job continues.
            JobExecutionError: The job does not run, or has ended: only a running job has state
                to take a savepoint of.
            ConfigurationError: There is no directory.
        """
        seconds = timeout_seconds(timeout)
        request = self._savepoint_request(directory, format_type)
        self._in_background(request, lambda job_attempt: job_attempt.take_savepoint(request))
        return request.result(seconds)

    def stop_with_savepoint(
        self,
        directory: PathLike | None = None,
        *,
        drain: bool = False,
        format_type: SavepointFormatType = SavepointFormatType.CANONICAL,
    ) -> str:
        """Take a savepoint of all that was read, finish the job, and return the path.

        If the savepoint fails, the job continues.

        Args:
            directory: As for `trigger_savepoint`.
            drain: Whether to advance event time to its end first, so that all timers fire and
                all windows close; for jobs that are not resumed.
            format_type: As for `trigger_savepoint`.

        Raises:
            CheckpointError: The savepoint failed.
            JobExecutionError: The job does not run, or has ended.
            ConfigurationError: There is no directory.
        """
        return self._end_with_savepoint(directory, format_type, drain=drain, cancel=False)

    def cancel_with_savepoint(
        self,
        directory: PathLike | None = None,
        format_type: SavepointFormatType = SavepointFormatType.CANONICAL,
    ) -> str:
        """Take a savepoint, cancel the job, and return the path; see `stop_with_savepoint`."""
        return self._end_with_savepoint(directory, format_type, drain=False, cancel=True)

    def trigger_checkpoint(self, timeout: TimeoutLike | None = None) -> int:
        """Take a checkpoint now, and return its id once it is complete and published.

        It is a checkpoint like those of the interval, and counts as one of them. It begins with
        the next epoch, when fewer than the maximum of concurrent checkpoints are in progress. A
        job that has not processed any input yet takes it after its first epoch.

        Args:
            timeout: Time to wait: seconds, "10 s" or a `timedelta`. After that a TimeoutError is
                raised, and the checkpoint continues.

        Raises:
            CheckpointError: The checkpoint failed; the job continues, or restarts.
            JobExecutionError: The job does not run, or takes no checkpoints.
        """
        seconds = timeout_seconds(timeout)
        self._check_running(CHECKPOINTS)
        self._check_thread("a checkpoint")
        try:
            with self._turns.together():
                self._check_running(CHECKPOINTS)
                return self._supervisor.checkpointing.request_checkpoint().result(seconds)
        except TimeoutError:
            raise TimeoutError(
                f"job {self._name!r}: the checkpoint is not complete after {seconds} s; it "
                "continues"
            ) from None

    def _end_with_savepoint(
        self, directory: PathLike | None, form: SavepointFormatType, *, drain: bool, cancel: bool
    ) -> str:
        request = self._savepoint_request(directory, form)

        def complete() -> None:
            self._supervisor.savepoint = request.files.root
            if cancel:
                self._supervisor.cancelled.set()

        def finish(job_attempt: JobAttempt) -> None:
            job_attempt.finish_with_savepoint(request, drain=drain, on_complete=complete)

        self._in_background(request, finish)
        path = request.result()
        self._supervisor.checkpointing.time_limits.wait_for_end(self._name, self._supervisor.ended)
        return path

    def _savepoint_request(
        self, directory: PathLike | None, form: SavepointFormatType
    ) -> SavepointRequest:
        if self._supervisor.order.trigger.one_pass:
            raise JobExecutionError(
                f"job {self._name!r} runs in one pass and keeps no state, so there is nothing to "
                "take a savepoint of; set the runtime mode to STREAMING"
            )
        where = directory or self._supervisor.order.savepoint_dir
        return SavepointRequest.at(where, self.job_id, form)

    def _in_background(self, request: SavepointRequest, work: Callable[[JobAttempt], None]) -> None:
        """Let the current job attempt take a savepoint, in another thread."""
        self._check_running(SAVES)
        self._check_thread("a savepoint")

        def take() -> None:
            # The attempt that runs now may be about to end, for another parallelism.
            self._check_running(SAVES)
            assert self._supervisor.job_attempt is not None
            work(self._supervisor.job_attempt)

        def take_in_turn() -> None:
            with self._turns.together():
                decide(request, take)
                request.wait()

        InheritableThread(target=take_in_turn, daemon=True).start()

    def _check_running(self, why: str) -> None:
        """Raise JobExecutionError unless the job runs, or soon does so on other subtasks."""
        supervisor = self._supervisor
        restarts = supervisor.status is JobStatus.RESTARTING and self._turns.is_wanted_alone
        runs = supervisor.status is JobStatus.RUNNING and supervisor.job_attempt is not None
        if not runs and not restarts:
            raise supervisor.does_not_run(why)

    def _check_thread(self, what: str) -> None:
        """Raise JobExecutionError if the job waits for this thread."""
        if self._is_own_thread():
            raise JobExecutionError(
                f"job {self._name!r}: {what} waits for the end of an epoch and for output to "
                "be published, so neither may wait for it; request it from another thread"
            )

    def rescale(self, parallelism: int, timeout: TimeoutLike | None = None) -> None:
        """Continue the running job on another number of subtasks; returns when it runs again.

        The job takes a checkpoint at the end of an epoch, and goes on from it, so that nothing is
        processed or published twice. It keeps its id, its listeners and its statistics. This is no
        failure for the restart strategy. Meanwhile the status is RESTARTING.

        Operators that set a parallelism of their own keep it. All others get the new one. It holds
        until the job ends: another start has the parallelism that the program says. If the job has
        this parallelism already, nothing happens.

        Args:
            parallelism: New number of subtasks, at most the max parallelism of every operator that
                gets it.
            timeout: Time to wait: seconds, "10 s" or a `timedelta`. After that a TimeoutError is
                raised, and the rescale continues.

        Raises:
            CheckpointError: The checkpoint failed; the job continues as it was.
            ConfigurationError: An operator cannot have so many subtasks; the job continues.
            JobExecutionError: The job does not run, runs in one pass, or takes no checkpoints. Or
                it has ended meanwhile.
        """
        seconds = timeout_seconds(timeout)
        self._check_running(RESCALES)
        self._rescaled_plan(parallelism)
        if parallelism == self.parallelism and not self._turns.is_wanted_alone:
            return
        self._check_thread("a rescale")
        done: Future[None] = Future()

        def rescale() -> None:
            try:
                with self._turns.alone():
                    self._rescale(parallelism)
                done.set_result(None)
            except BaseException as failure:
                done.set_exception(failure)

        InheritableThread(target=rescale, daemon=True).start()
        try:
            done.result(seconds)
        except TimeoutError:
            if done.done():
                raise
            raise TimeoutError(
                f"job {self._name!r} does not run with parallelism {parallelism} after {seconds} "
                "s; the rescale continues"
            ) from None

    def _rescale(self, parallelism: int) -> None:
        """End the job attempt with a checkpoint, and wait for the next one."""
        supervisor = self._supervisor
        rescale = Rescale(parallelism, self._rescaled_plan(parallelism))
        if parallelism == supervisor.parallelism:
            return
        job_attempt = supervisor.job_attempt
        if supervisor.status is not JobStatus.RUNNING or job_attempt is None:
            raise supervisor.does_not_run(RESCALES)
        request = CheckpointRequest(f"job {self._name!r}: the checkpoint to rescale it from")
        finish = partial(
            job_attempt.finish_with_savepoint,
            request,
            drain=False,
            on_complete=partial(supervisor.hand_over, rescale),
        )
        decide(request, finish)
        request.result()
        while not rescale.running.wait(LOOK_AGAIN):
            if supervisor.ended.is_set():
                why = f"it ended before it ran with parallelism {parallelism}"
                raise supervisor.does_not_run(why)

    def _rescaled_plan(self, parallelism: int) -> JobPlan:
        """The job for another parallelism.

        Raises:
            ConfigurationError: An operator cannot have so many subtasks.
            JobExecutionError: The job takes no checkpoints.
        """
        supervisor = self._supervisor
        recompile = supervisor.order.recompile
        what = f"job {self._name!r} cannot be rescaled while it runs, since it"
        if supervisor.order.trigger.one_pass or recompile is None:
            raise JobExecutionError(
                f"{what} runs in one pass and keeps no state; start it again with another "
                "parallelism, or set the runtime mode to STREAMING"
            )
        if not supervisor.checkpointing.periodic:
            raise JobExecutionError(
                f"{what} takes no checkpoints; call enable_checkpointing before its start, or stop "
                "it with a savepoint and start it from there with another parallelism"
            )
        if not isinstance(parallelism, int) or isinstance(parallelism, bool):
            raise ConfigurationError(
                f"job {self._name!r} is not rescaled: expected an integer as parallelism, got "
                f"{parallelism!r}"
            )
        try:
            return recompile(supervisor.plan, parallelism)
        except ConfigurationError as error:
            raise ConfigurationError(
                f"job {self._name!r} is not rescaled, and runs on with parallelism "
                f"{supervisor.parallelism}: {error}"
            ) from error

    def result(self, timeout: TimeoutLike | None = None) -> JobExecutionResult:
        """Wait for the end; raises `JobExecutionError` if the job failed.

        Args:
            timeout: Time to wait before a TimeoutError is raised: seconds, "10 s" or a `timedelta`.
        """
        seconds = timeout_seconds(timeout)
        if not self._supervisor.ended.wait(seconds):
            raise TimeoutError(f"job {self._name!r} is still running after {seconds} s")
        failure = self._supervisor.failure
        if failure is not None:
            raise JobExecutionError(self._failure_message(failure)) from failure
        return JobExecutionResult(
            self.job_id, self._name, self._supervisor.runtime_ms, self.statistics()
        )

    def _failure_message(self, failure: BaseException) -> str:
        why = summary(failure)
        if self._supervisor.status is not JobStatus.SUSPENDED:
            return f"job {self._name!r} failed: {why}"
        return (
            f"job {self._name!r} is suspended, since its Spark session or query has ended ({why}). "
            f"Nothing was deleted: start it again under job id {self.job_id!r}, and it continues "
            "from its newest checkpoint"
        )


def new_job_id() -> str:
    """A new, unique job id."""
    return uuid.uuid4().hex
