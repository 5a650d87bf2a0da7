"""The end of a job, and those who are told of its epochs: nobody waits for ever."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from holdfast import JobStatus
from holdfast.config.restart import RestartStrategies
from holdfast.errors import JobExecutionError
from holdfast.job.statistics import EpochStatistics
from holdfast.job.threads import TimeLimits
from holdfast.job.trigger import JobTrigger
from holdfast.spark.supervisor import JobOrder, Supervisor
from tests.support.programs import Program
from tests.support.task_epochs import ROWS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

WAIT = 30
SOON = 0.1


class CheckpointService:
    """Checkpoints whose end can raise anything."""

    def __init__(self) -> None:
        self.time_limits = TimeLimits(answer=SOON)
        self.at_the_end: BaseException | None = None

    def close(self, _: Any) -> None:
        if self.at_the_end is not None:
            raise self.at_the_end


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Supervisor]:
    def made(*listeners: Callable[[EpochStatistics], None]) -> Supervisor:
        program = Program()
        program.collect(program.source(ROWS).uid("events"))
        java = SimpleNamespace(sc=lambda: SimpleNamespace(isStopped=lambda: False))
        context = SimpleNamespace(master="local[2]", _jsc=java)
        spark: Any = SimpleNamespace(sparkContext=context)
        checkpointing: Any = CheckpointService()
        order = JobOrder(
            "Job",
            "job",
            program.compile(),
            JobTrigger(0, False, False),
            RestartStrategies.no_restart(),
            local_dir=str(tmp_path),
            listeners=listeners,
        )
        supervisor = Supervisor(spark, order, checkpointing)
        runner: Any = SimpleNamespace(take_warnings=list, close=lambda: None)
        supervisor._runner = runner
        return supervisor

    return made


def end_epoch(supervisor: Supervisor, number: int = 3) -> None:
    result: Any = SimpleNamespace(statistics=EpochStatistics(number, 0, 0))
    supervisor._end_epoch(result)


# The end


@pytest.mark.parametrize("raised", [SystemExit(1), asyncio.CancelledError(), OSError("no room")])
def test_a_job_ends_whatever_cleaning_up_raises(
    make: Callable[..., Supervisor], raised: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    supervisor = make()
    checkpointing: Any = supervisor.checkpointing
    checkpointing.at_the_end = raised
    closed: list[str] = []
    runner: Any = supervisor._runner
    runner.close = lambda: closed.append("runner")
    supervisor._supervise(JobExecutionError("it broke"))
    assert supervisor.ended.is_set()
    assert supervisor.status is JobStatus.FAILED
    assert closed == ["runner"], "what follows is cleaned up all the same"
    assert f"left something behind: {type(raised).__name__}" in caplog.text


def test_a_start_that_is_refused_ends_the_job_whatever_cleaning_up_raises(
    make: Callable[..., Supervisor], monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor = make()

    def fail(self: Supervisor) -> None:
        raise SystemExit(1)

    monkeypatch.setattr(Supervisor, "_begin", lambda self: 1 / 0)
    monkeypatch.setattr(Supervisor, "_clean_up", fail)
    with pytest.raises((SystemExit, ZeroDivisionError)):
        supervisor.start()
    assert supervisor.ended.is_set()


def test_a_restart_that_ends_with_no_exception_is_a_failure_as_any_other(
    make: Callable[..., Supervisor], monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor = make()
    left = SystemExit("a sink has left")

    def begin(self: Supervisor) -> None:
        raise left

    monkeypatch.setattr(Supervisor, "_begin", begin)
    assert supervisor._begin_and_wait() is left


@pytest.mark.parametrize(
    ("trigger", "savepoint", "alive", "status"),
    [
        (JobTrigger(0, False, False), None, True, JobStatus.FINISHED),
        (JobTrigger(0, False, False), None, False, JobStatus.SUSPENDED),
        (JobTrigger(0, True, False), None, False, JobStatus.SUSPENDED),
        (JobTrigger(0, False, False), "/savepoint", False, JobStatus.FINISHED),
        (JobTrigger(0, True, True, ends=True), None, False, JobStatus.FINISHED),
        (JobTrigger(0, True, False, True, confirms_end=True), None, False, JobStatus.FINISHED),
    ],
)
def test_a_job_whose_session_ends_quietly_is_suspended(
    make: Callable[..., Supervisor],
    trigger: JobTrigger,
    savepoint: str | None,
    alive: bool,
    status: JobStatus,
) -> None:
    """Its query ends without an error, though there may be more input."""
    supervisor = make()
    supervisor.order = replace(supervisor.order, trigger=trigger)
    supervisor.savepoint = savepoint
    context: Any = supervisor._spark.sparkContext
    context._jsc.sc = lambda: SimpleNamespace(isStopped=lambda: not alive)
    ended: Any = SimpleNamespace(wait=lambda: None)
    supervisor.job_attempt = ended
    supervisor._supervise(None)
    assert supervisor.status is status
    assert (supervisor.failure is None) is (status is JobStatus.FINISHED)


# Epoch listeners


def test_epoch_listeners_are_told_in_order_before_the_epoch_is_over(
    make: Callable[..., Supervisor],
) -> None:
    heard: list[tuple[str, int]] = []
    supervisor = make(
        lambda epoch: heard.append(("first", epoch.epoch)),
        lambda epoch: heard.append(("second", epoch.epoch)),
    )
    end_epoch(supervisor, 1)
    assert heard == [("first", 1), ("second", 1)]
    end_epoch(supervisor, 2)
    assert heard[2:] == [("first", 2), ("second", 2)]


def test_an_epoch_listener_that_hangs_fails_its_epoch(make: Callable[..., Supervisor]) -> None:
    gate, failures = threading.Event(), list[BaseException]()

    def dashboard(_: EpochStatistics) -> None:
        assert gate.wait(WAIT)

    supervisor = make(dashboard)

    def run() -> None:
        try:
            end_epoch(supervisor)
        except JobExecutionError as error:
            failures.append(error)

    running = threading.Thread(target=run)
    running.start()
    running.join(5)
    gate.set()
    running.join(WAIT)
    (failure,) = failures
    assert "dashboard hangs after epoch 3: no answer for" in str(failure)
    assert "sink.committer.timeout" in str(failure)


@pytest.mark.parametrize("raised", [SystemExit(1), LookupError("nobody there")])
def test_an_epoch_listener_that_raises_fails_its_epoch(
    make: Callable[..., Supervisor], raised: BaseException
) -> None:
    def careless(_: EpochStatistics) -> None:
        raise raised

    said = rf"an epoch listener raised after epoch 3: .*{type(raised).__name__}: {raised}"
    with pytest.raises(JobExecutionError, match=said):
        end_epoch(make(careless))


def test_a_job_without_epoch_listeners_starts_no_threads_for_them(
    make: Callable[..., Supervisor], monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor = make()
    monkeypatch.setattr(threading.Thread, "start", lambda self: 1 / 0)
    end_epoch(supervisor)
