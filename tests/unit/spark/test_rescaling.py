"""Rescaling a running job: which requests are met, in which order, and by which job attempt."""

from __future__ import annotations

import threading
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from holdfast import JobClient, JobStatus
from holdfast.config.restart import RestartStrategies
from holdfast.errors import CheckpointError, ConfigurationError, JobExecutionError, SinkError
from holdfast.job.compiler import compile_rescaled
from holdfast.job.threads import TimeLimits
from holdfast.job.trigger import JobTrigger
from holdfast.spark.supervisor import JobOrder, Supervisor
from tests.support.programs import Program
from tests.support.task_epochs import ROWS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from holdfast.checkpoint.savepoint.requests import CheckpointRequest
    from holdfast.job.model import JobPlan

WAIT = 30


class CheckpointService:
    """Notes which plans it is told."""

    def __init__(self) -> None:
        self.time_limits = TimeLimits()
        self.periodic = True
        self.plans: list[JobPlan] = []

    def replan(self, plan: JobPlan) -> None:
        self.plans.append(plan)

    def statistics(self) -> None:
        return None

    def close(self, _: Any) -> None:
        return None


class Attempt:
    """A job attempt that runs until it is told otherwise."""

    query = None
    epoch_thread: int | None = None

    def __init__(self, job: Job) -> None:
        self._job = job
        self.failure: BaseException | None = None
        self._ended = threading.Event()

    def wait(self) -> BaseException | None:
        assert self._ended.wait(WAIT)
        return self.failure

    def stop(self) -> None:
        self._ended.set()

    def fail(self, failure: BaseException) -> None:
        self.failure = failure
        self._ended.set()

    def take_savepoint(self, request: CheckpointRequest) -> None:
        self._job.noted(f"savepoint of {self._job.client.parallelism}")
        # The epoch is over, and the files are uploaded.
        self._job.uploads.append(request)

    def finish_with_savepoint(
        self, request: CheckpointRequest, *, drain: bool, on_complete: Any
    ) -> None:
        assert not drain
        self._job.noted(f"checkpoint of {self._job.client.parallelism}")
        assert self._job.may_complete.wait(WAIT)
        if self._job.problem is not None:
            request.fail(self._job.problem)
            return
        request.checkpoint = "/chk-1"
        request.complete()
        if request.is_complete:
            on_complete()
            self._job.statuses.append(self._job.client.status())
            self._ended.set()


class Job:
    """A job whose attempts are made by hand."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        program = Program(parallelism=2)
        counted = program.source(ROWS).uid("events").rebalance().map(str, "string")
        program.collect(counted.uid("mapped").set_max_parallelism(8))
        java = SimpleNamespace(sc=lambda: SimpleNamespace(isStopped=lambda: False))
        spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(master="local[2]", _jsc=java))
        self.checkpoints = CheckpointService()
        checkpointing: Any = self.checkpoints
        order = JobOrder(
            "Job",
            "job",
            program.compile(),
            JobTrigger(0, False, False),
            RestartStrategies.fixed_delay_restart(2, 0),
            local_dir=str(tmp_path),
            savepoint_dir=str(tmp_path / "savepoints"),
            parallelism=2,
            recompile=partial(compile_rescaled, program.graph, program.settings),
        )
        monkeypatch.setattr(Supervisor, "_begin", lambda _: self._begin())
        self.supervisor = Supervisor(spark, order, checkpointing)
        self.client = JobClient(self.supervisor)
        self.log: list[str] = []
        self._logged = threading.Condition()
        self.attempts: list[Attempt] = []
        self.begins: list[BaseException | None] = []
        """Errors with which the next attempts begin."""
        self.in_begin = threading.Event()
        self.may_begin = threading.Event()
        self.may_complete = threading.Event()
        self.may_begin.set()
        self.may_complete.set()
        self.problem: str | None = None
        self.uploads: list[CheckpointRequest] = []
        self.statuses: list[JobStatus] = []
        self.supervisor.start()
        self.threads: list[threading.Thread] = []
        self.raised: list[BaseException] = []

    def _begin(self) -> None:
        supervisor = self.supervisor
        self.in_begin.set()
        assert self.may_begin.wait(WAIT)
        rescale = supervisor._rescale
        if rescale is not None and rescale.plan is not supervisor.plan:
            supervisor._use(rescale)
        if self.begins and (error := self.begins.pop(0)) is not None:
            raise error
        self.attempts.append(Attempt(self))
        supervisor.job_attempt = self.attempts[-1]  # type: ignore[assignment]
        self.noted(f"attempt of {supervisor.parallelism}")

    def noted(self, what: str) -> None:
        with self._logged:
            self.log.append(what)
            self._logged.notify_all()

    def wait_for(self, what: str, times: int = 1) -> None:
        with self._logged:
            assert self._logged.wait_for(lambda: self.log.count(what) >= times, WAIT), self.log

    def ask(self, call: Any, *arguments: Any) -> threading.Thread:
        """Make a request in a thread of its own."""

        def run() -> None:
            try:
                call(*arguments)
            except BaseException as error:
                self.raised.append(error)

        self.threads.append(threading.Thread(target=run))
        self.threads[-1].start()
        return self.threads[-1]

    def upload(self) -> None:
        """Complete the savepoints whose epochs have ended."""
        while self.uploads:
            self.uploads.pop().complete()

    def close(self) -> None:
        self.may_begin.set()
        self.may_complete.set()
        if not self.supervisor.ended.is_set():
            self.client.cancel()
        self.upload()
        for thread in self.threads:
            thread.join(WAIT)


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    made = Job(tmp_path, monkeypatch)
    yield made
    made.close()


def test_a_rescaled_job_goes_on_in_another_attempt_with_another_plan(job: Job) -> None:
    job.client.rescale(5)
    assert job.log == ["attempt of 2", "checkpoint of 2", "attempt of 5"]
    assert (job.client.parallelism, job.client.status()) == (5, JobStatus.RUNNING)
    assert job.statuses == [JobStatus.RESTARTING]
    [plan] = job.checkpoints.plans
    assert plan is job.supervisor.plan
    assert plan.stage_parallelism == (5,)
    job.client.rescale(1)
    assert job.log[3:] == ["checkpoint of 5", "attempt of 1"]
    assert job.client.statistics().restarts == 0


def test_a_job_that_has_the_parallelism_already_does_not_restart(job: Job) -> None:
    job.client.rescale(2)
    assert job.log == ["attempt of 2"]


@pytest.mark.parametrize(
    ("parallelism", "said"),
    [
        (0, "runs on with parallelism 2: .*parallelism must be at least 1, not 0"),
        (-3, "must be at least 1, not -3"),
        (9, r"runs on with parallelism 2: operator .*mapped.* 9 is above max parallelism 8; lower"),
        ("3", "expected an integer as parallelism, got '3'"),
        (True, "expected an integer as parallelism, got True"),
    ],
)
def test_a_parallelism_that_an_operator_cannot_have_is_refused(
    job: Job, parallelism: Any, said: str
) -> None:
    with pytest.raises(ConfigurationError, match=said):
        job.client.rescale(parallelism)
    assert job.log == ["attempt of 2"]
    assert job.client.status() is JobStatus.RUNNING


def test_a_job_in_one_pass_is_not_rescaled(job: Job) -> None:
    one_pass = JobTrigger(0, True, True)
    job.supervisor.order = replace(job.supervisor.order, trigger=one_pass)
    with pytest.raises(JobExecutionError, match=r"runs in one pass .* set the runtime mode"):
        job.client.rescale(5)
    assert job.log == ["attempt of 2"]


def test_a_job_without_checkpoints_is_not_rescaled(job: Job) -> None:
    job.checkpoints.periodic = False
    with pytest.raises(JobExecutionError, match="takes no checkpoints; call enable_checkpointing"):
        job.client.rescale(5)
    assert job.log == ["attempt of 2"]


def test_a_job_that_has_ended_is_not_rescaled(job: Job) -> None:
    job.client.cancel()
    with pytest.raises(JobExecutionError, match="'Job' is CANCELED; only a running job"):
        job.client.rescale(5)


def test_an_epoch_does_not_wait_for_a_rescale_that_waits_for_its_end(job: Job) -> None:
    job.attempts[0].epoch_thread = threading.get_ident()
    with pytest.raises(JobExecutionError, match="a rescale waits for the end of an epoch"):
        job.client.rescale(5)
    job.attempts[0].epoch_thread = None


def test_a_job_whose_checkpoint_fails_goes_on_as_it_was(job: Job) -> None:
    job.problem = "no room"
    with pytest.raises(CheckpointError, match="checkpoint to rescale it from was not taken: no ro"):
        job.client.rescale(5)
    assert job.log == ["attempt of 2", "checkpoint of 2"]
    assert (job.client.parallelism, job.client.status()) == (2, JobStatus.RUNNING)
    job.problem = None
    job.client.rescale(5)
    assert job.client.parallelism == 5


def test_a_rescale_that_takes_longer_than_its_caller_waits_continues(job: Job) -> None:
    job.may_complete.clear()
    with pytest.raises(TimeoutError, match=r"parallelism 5 after 0.01 s; the rescale continues"):
        job.client.rescale(5, 0.01)
    job.may_complete.set()
    job.wait_for("attempt of 5")


@pytest.mark.parametrize("failures", [1, 2])
def test_an_attempt_that_does_not_begin_is_restarted_with_the_new_parallelism(
    job: Job, failures: int
) -> None:
    job.begins = [SinkError("no connection")] * failures
    job.client.rescale(5)
    assert job.log == ["attempt of 2", "checkpoint of 2", "attempt of 5"]
    assert job.client.statistics().restarts == failures
    assert len(job.checkpoints.plans) == 1


def test_a_failure_after_a_rescale_restarts_the_job_with_the_new_parallelism(job: Job) -> None:
    job.client.rescale(5)
    job.attempts[-1].fail(SinkError("no connection"))
    job.wait_for("attempt of 5", 2)
    assert job.client.statistics().restarts == 1


def test_a_job_that_cannot_begin_again_fails_and_so_does_the_rescale(job: Job) -> None:
    job.begins = [SinkError("no connection")] * 3
    with pytest.raises(JobExecutionError, match="'Job' is FAILED; it ended before it ran with par"):
        job.client.rescale(5)
    assert isinstance(job.supervisor.failure, SinkError)


def test_a_job_that_is_cancelled_before_its_next_attempt_ends(job: Job) -> None:
    job.in_begin.clear()
    job.may_begin.clear()
    asking = job.ask(job.client.rescale, 5)
    assert job.in_begin.wait(WAIT)
    cancelling = job.ask(job.client.cancel)
    assert job.supervisor.cancelled.wait(WAIT)
    job.may_begin.set()
    cancelling.join(WAIT)
    asking.join(WAIT)
    assert not asking.is_alive()
    assert job.client.status() is JobStatus.CANCELED


def test_a_job_that_is_cancelled_before_its_checkpoint_ends_without_another_attempt(
    job: Job,
) -> None:
    job.may_complete.clear()
    asking = job.ask(job.client.rescale, 5)
    job.wait_for("checkpoint of 2")
    job.problem = "the job has ended"
    cancelling = job.ask(job.client.cancel)
    assert job.supervisor.cancelled.wait(WAIT)
    job.may_complete.set()
    cancelling.join(WAIT)
    asking.join(WAIT)
    [error] = job.raised
    assert "was not taken: the job has ended" in str(error)
    assert job.log == ["attempt of 2", "checkpoint of 2"]


def test_a_savepoint_that_is_under_way_is_complete_before_a_rescale(job: Job) -> None:
    saving = job.ask(job.client.trigger_savepoint)
    job.wait_for("savepoint of 2")
    asking = job.ask(job.client.rescale, 5)
    asking.join(0.05)
    assert job.log == ["attempt of 2", "savepoint of 2"]
    job.upload()
    saving.join(WAIT)
    asking.join(WAIT)
    assert job.log[2:] == ["checkpoint of 2", "attempt of 5"]
    assert job.raised == []


@pytest.mark.parametrize("hold", ["may_complete", "may_begin"])
def test_a_savepoint_that_is_requested_meanwhile_is_taken_afterwards(job: Job, hold: str) -> None:
    gate = getattr(job, hold)
    gate.clear()
    job.in_begin.clear()
    asking = job.ask(job.client.rescale, 5)
    job.wait_for("checkpoint of 2")
    if hold == "may_begin":
        assert job.in_begin.wait(WAIT)
        assert job.client.status() is JobStatus.RESTARTING
    saving = job.ask(job.client.trigger_savepoint)
    saving.join(0.05)
    gate.set()
    job.wait_for("savepoint of 5")
    job.upload()
    saving.join(WAIT)
    asking.join(WAIT)
    assert job.raised == []


def test_a_savepoint_that_waits_for_a_job_that_ends_fails(job: Job) -> None:
    job.may_begin.clear()
    job.in_begin.clear()
    job.ask(job.client.rescale, 5)
    assert job.in_begin.wait(WAIT)
    saving = job.ask(job.client.trigger_savepoint)
    saving.join(0.05)
    job.begins = [ConfigurationError("gone")]
    job.may_begin.set()
    saving.join(WAIT)
    assert not saving.is_alive()
    assert any("is FAILED; a savepoint is taken of a running job" in str(e) for e in job.raised)


def test_two_rescales_follow_one_another(job: Job) -> None:
    job.may_complete.clear()
    first = job.ask(job.client.rescale, 5)
    job.wait_for("checkpoint of 2")
    # As many as there are now, but not when its turn comes.
    second = job.ask(job.client.rescale, 2)
    second.join(0.05)
    assert second.is_alive()
    job.may_complete.set()
    first.join(WAIT)
    second.join(WAIT)
    assert job.log[2:] == ["attempt of 5", "checkpoint of 5", "attempt of 2"]
    assert job.raised == []


def test_local_state_is_deleted_wherever_a_subtask_ever_was(job: Job) -> None:
    for parallelism in (5, 1):
        job.client.rescale(parallelism)
    assert job.supervisor._most_tasks == 5
