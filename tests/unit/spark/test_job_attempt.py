"""The epochs of one start of a job: none runs that nobody wants any more."""

from __future__ import annotations

import threading
from contextlib import contextmanager, suppress
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from holdfast import SavepointFormatType
from holdfast.checkpoint.savepoint.requests import SavepointRequest, decide
from holdfast.errors import CheckpointError, JobExecutionError, SinkError
from holdfast.job.model import EpochOrder, EpochResult
from holdfast.job.statistics import EpochStatistics
from holdfast.job.threads import TimeLimits
from holdfast.job.trigger import JobTrigger
from holdfast.spark import job_attempt as module
from holdfast.spark.job_attempt import JobAttempt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

WAIT = 30


class Checkpoints:
    """Notes what it is told; the release of an epoch's output can fail, or hang."""

    def __init__(self) -> None:
        self.completed_epochs: list[int] = []
        self.failed_epochs = 0
        self.problem: str | None = ""
        self.in_release: Callable[[int], None] = lambda epoch: None
        self.due = False
        self.contains_all = True

    def next_epoch(self, *, idle: bool, **_: Any) -> EpochOrder | None:
        if idle and not self.due:
            return None
        return EpochOrder(idle=idle)

    def epoch_completed(self, order: EpochOrder, result: EpochResult, batch_id: int) -> None:
        self.in_release(result.statistics.epoch)
        self.completed_epochs.append(result.statistics.epoch)

    def epoch_failed(self, order: EpochOrder, problem: str | None) -> None:
        self.failed_epochs += 1
        self.problem = problem

    def expire(self) -> None:
        return None

    def await_final_checkpoint(self) -> bool:
        return self.contains_all


class Runner:
    """Counts epochs; one can be held up."""

    channel_rows = ()
    has_pending_timers = False

    def __init__(self) -> None:
        self.epoch = 0
        self.in_epoch: Callable[[], None] = lambda: None

    def run(self, batch: Any, order: EpochOrder) -> EpochResult:
        self.epoch += 1
        self.in_epoch()
        return EpochResult(EpochStatistics(self.epoch, 0, 0), [])

    def has_timers_due(self, *, event_time: bool) -> bool:
        return False


class Query:
    """A query that ends when it is stopped, and can hang in that."""

    def __init__(self) -> None:
        self.stopped, self.gate = threading.Event(), threading.Event()
        self.gate.set()

    def stop(self) -> None:
        assert self.gate.wait(WAIT)
        self.stopped.set()

    def awaitTermination(self) -> None:
        assert self.stopped.wait(WAIT)


@contextmanager
def _nothing_set(*_: Any) -> Iterator[None]:
    yield


class Bench:
    """A job attempt whose query runs by hand."""

    def __init__(self, tmp_path: Path, end: float = WAIT) -> None:
        self.checkpoints, self.runner, self.query = Checkpoints(), Runner(), Query()
        self.grouped = 0
        context = SimpleNamespace(setJobGroup=self._set_group, cancelJobGroup=lambda group: None)
        self.group_fails: Exception | None = None
        runner, checkpoints = self.runner, self.checkpoints
        self.job_attempt = JobAttempt(
            SimpleNamespace(sparkContext=context),  # type: ignore[arg-type]
            "job",
            JobTrigger(0, False, False),
            runner,  # type: ignore[arg-type]
            checkpoints,  # type: ignore[arg-type]
            [],
            tmp_path,
            lambda result: None,
            time_limits=TimeLimits(end=end),
        )
        self.job_attempt.query = self.query  # type: ignore[assignment]

    def _set_group(self, *_: Any, **__: Any) -> None:
        self.grouped += 1
        if self.group_fails is not None:
            raise self.group_fails

    def batch(self, number: int = 0) -> None:
        self.job_attempt._run_batch(None, number)  # type: ignore[arg-type]


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr(module, "settings", _nothing_set)
    return Bench(tmp_path)


def refuse(epoch: int) -> None:
    raise SinkError("no connection")


def test_no_epoch_follows_one_whose_output_was_not_released(bench: Bench) -> None:
    """Another one's checkpoint would contain it, and its output would be lost."""
    bench.batch(0)
    bench.checkpoints.in_release = refuse
    with pytest.raises(SinkError):
        bench.batch(1)
    bench.checkpoints.in_release = lambda epoch: None
    with pytest.raises(JobExecutionError, match="was stopped"):
        bench.batch(2)
    assert (bench.runner.epoch, bench.checkpoints.completed_epochs) == (2, [1])


def test_no_epoch_follows_a_failed_release_though_the_query_has_yet_to_stop(bench: Bench) -> None:
    """The release fails between two batches, and stopping the query takes its time."""
    bench.query.gate.clear()
    bench.batch(0)
    bench.checkpoints.due, bench.checkpoints.in_release = True, refuse
    looking = threading.Thread(target=bench.job_attempt._look_around)
    looking.start()
    looking.join(WAIT)
    bench.checkpoints.due, bench.checkpoints.in_release = False, lambda epoch: None
    with pytest.raises(JobExecutionError, match="was stopped"):
        bench.batch(1)
    assert bench.runner.epoch == 2
    bench.query.gate.set()
    failure = bench.job_attempt.wait()
    assert isinstance(failure, SinkError)
    assert bench.runner.epoch == 2


@pytest.mark.parametrize("last", [True, False])
def test_a_job_that_ends_takes_no_last_checkpoint_after_a_failed_release(
    bench: Bench, last: bool
) -> None:
    bench.batch(0)
    bench.checkpoints.in_release = refuse
    if last:
        bench.job_attempt._stopping.set()
    with pytest.raises((SinkError, JobExecutionError)):
        bench.batch(1)
    ran = bench.runner.epoch
    bench.checkpoints.due, bench.checkpoints.contains_all = True, False
    bench.query.stop()
    bench.job_attempt.wait()
    assert bench.runner.epoch == ran


def test_an_epoch_that_hangs_is_not_waited_for_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "settings", _nothing_set)
    bench = Bench(tmp_path, end=0.1)
    bench.batch(0)
    reached, gate = threading.Event(), threading.Event()

    def hang() -> None:
        reached.set()
        assert gate.wait(WAIT)

    bench.checkpoints.due, bench.runner.in_epoch = True, hang
    looking = threading.Thread(target=bench.job_attempt._look_around)
    looking.start()
    assert reached.wait(WAIT)
    bench.job_attempt._stopping.set()
    bench.query.stop()
    monkeypatch.setattr(bench.job_attempt, "_finish", lambda: None)
    failure = bench.job_attempt.wait()
    assert "an epoch has not ended within 0 s" in str(failure)
    gate.set()
    looking.join(WAIT)
    assert bench.checkpoints.completed_epochs == [1], "what comes back late is not taken"
    assert bench.checkpoints.failed_epochs == 1


def test_a_job_does_not_go_on_without_the_thread_that_takes_checkpoints(bench: Bench) -> None:
    bench.group_fails = ConnectionError("Java is away")
    bench.job_attempt._look_around()
    failure = bench.job_attempt.wait()
    assert isinstance(failure, ConnectionError)


def test_a_failure_while_the_query_starts_stops_the_query(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_attempt, failure = bench.job_attempt, CheckpointError("too many have failed")
    job_attempt.query = None
    cancelled = threading.Event()
    context = job_attempt._spark.sparkContext
    monkeypatch.setattr(context, "cancelJobGroup", lambda group: cancelled.set())

    def start() -> Query:
        job_attempt.break_off(failure)
        assert cancelled.wait(WAIT), "somebody tries to stop what is not there yet"
        return bench.query

    monkeypatch.setattr(job_attempt, "_start_query", start)
    monkeypatch.setattr(job_attempt, "_look_around", lambda: None)
    job_attempt.start()
    assert bench.query.stopped.wait(WAIT)
    assert job_attempt.wait() is failure


def test_nobody_tries_to_stop_a_query_that_did_not_start(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_attempt = bench.job_attempt
    job_attempt.query = None
    stopping = threading.Thread(target=job_attempt.stop, daemon=True)

    def start() -> Query:
        stopping.start()
        raise JobExecutionError("no such table")

    monkeypatch.setattr(job_attempt, "_start_query", start)
    with pytest.raises(JobExecutionError, match="no such table"):
        job_attempt.start()
    stopping.join(5)
    assert not stopping.is_alive()


class HungEpoch:
    """A job whose epoch hangs until the end of the test, and has ended all the same."""

    def __init__(self, tmp_path: Path) -> None:
        self.bench = Bench(tmp_path, end=0.1)
        self.request = SavepointRequest.at(str(tmp_path), "job", SavepointFormatType.CANONICAL)
        self.gate, self.reached = threading.Event(), threading.Event()
        self.bench.runner.in_epoch = self._hang
        self.threads: list[threading.Thread] = []

    def _hang(self) -> None:
        self.reached.set()
        assert self.gate.wait(WAIT)

    def start(self, work: Callable[[], None]) -> threading.Thread:
        self.threads.append(threading.Thread(target=partial(quietly, work)))
        self.threads[-1].start()
        return self.threads[-1]

    def ask(self, *, drain: bool = False) -> threading.Thread:
        finish = self.bench.job_attempt.finish_with_savepoint
        work = partial(finish, self.request, drain=drain, on_complete=lambda: None)
        return self.start(partial(decide, self.request, work))

    def end(self) -> None:
        self.bench.query.stop()
        # As when Spark has broken the query: it does not wait for the epoch of another thread.
        self.bench.job_attempt._failure = SinkError("no connection")
        self.bench.job_attempt._finish = lambda: None  # type: ignore[method-assign]
        assert self.bench.job_attempt.wait() is not None

    def close(self) -> None:
        self.gate.set()
        for thread in self.threads:
            thread.join(WAIT)


def quietly(work: Callable[[], None]) -> None:
    with suppress(JobExecutionError):
        work()


@pytest.fixture
def hung(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HungEpoch]:
    monkeypatch.setattr(module, "settings", _nothing_set)
    made = HungEpoch(tmp_path)
    yield made
    made.close()


def test_a_savepoint_does_not_wait_for_an_epoch_that_hangs_in_a_job_that_has_ended(
    hung: HungEpoch,
) -> None:
    hung.start(hung.bench.batch)
    assert hung.reached.wait(WAIT)
    asking = hung.ask()
    hung.end()
    with pytest.raises(CheckpointError, match="was not taken"):
        hung.request.result(5)
    asking.join(5)
    assert not asking.is_alive(), "nobody polls for the end of the epoch"


def test_a_savepoint_asked_for_after_the_end_does_not_wait_for_an_epoch_that_hangs(
    hung: HungEpoch,
) -> None:
    hung.start(hung.bench.batch)
    assert hung.reached.wait(WAIT)
    hung.end()
    hung.ask()
    with pytest.raises(CheckpointError, match="an epoch hangs"):
        hung.request.result(5)


def test_a_savepoint_whose_own_epochs_hang_fails_with_its_job_attempt(hung: HungEpoch) -> None:
    """Event time comes to its end first, when no checkpoint is begun for the savepoint yet."""
    bench = hung.bench
    bench.job_attempt._last_batch = 0
    bench.runner.has_pending_timers = True
    hung.ask(drain=True)
    assert hung.reached.wait(WAIT)
    hung.end()
    with pytest.raises(CheckpointError, match="an earlier epoch hangs"):
        hung.request.result(5)


def test_a_checkpoint_is_told_why_its_epoch_failed(bench: Bench) -> None:
    def fail() -> None:
        raise RuntimeError(
            "Job aborted due to stage failure: Task 1 in stage 3.0 failed\n"
            "holdfast.errors.StoreFullError: operator 'count' (uid 'c'), subtask 1/2: "
            "/disk/state-1.mdb: no room on the disk (No space left on device)\n  row: 7\n\n"
            "\tat org.apache.spark.api.python.BasePythonRunner\n"
        )

    bench.runner.in_epoch = fail
    with pytest.raises(RuntimeError):
        bench.batch()
    assert bench.checkpoints.problem == (
        "operator 'count' (uid 'c'), subtask 1/2: /disk/state-1.mdb: no room on the disk "
        "(No space left on device)"
    )


def test_a_checkpoint_of_a_job_that_was_stopped_has_no_problem(bench: Bench) -> None:
    def stopped() -> None:
        bench.job_attempt._stopping.set()
        raise RuntimeError("Job 3 cancelled")

    bench.runner.in_epoch = stopped
    with pytest.raises(RuntimeError):
        bench.batch()
    assert bench.checkpoints.problem is None
