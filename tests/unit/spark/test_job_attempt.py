"""The epochs of one start of a job: none runs that nobody wants any more."""

from __future__ import annotations

import threading
from contextlib import contextmanager, suppress
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from holdfast import SavepointFormatType
from holdfast.checkpoint.savepoint.requests import CheckpointRequest, SavepointRequest, decide
from holdfast.errors import CheckpointError, JobExecutionError, SinkError
from holdfast.job.model import EpochOrder, EpochResult
from holdfast.job.statistics import EpochStatistics
from holdfast.job.threads import TimeLimits
from holdfast.job.trigger import JobTrigger
from holdfast.spark import idle_epochs
from holdfast.spark import job_attempt as module
from holdfast.spark.failures import QueryStoppedError
from holdfast.spark.job_attempt import JobAttempt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

WAIT = 30


class Checkpoints:
    """Notes what it is told; the release of an epoch's output can fail, or hang."""

    unaligned = False

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

    has_pending_timers = False

    def __init__(self) -> None:
        self.epoch = 0
        self.in_epoch: Callable[[], None] = lambda: None
        self.channel_rows: tuple[str, ...] = ()
        self.due: set[str] = set()
        """Which timers wait: by "clock" or "event time"."""
        self.can_be_idle = False
        self.looks = 0
        self.ran: list[str] = []

    def run(self, batch: Any, order: EpochOrder) -> EpochResult:
        self.epoch += 1
        self.in_epoch()
        kind = "tick by the clock" if order.keeps_watermarks else "tick by event time"
        self.ran.append("rows" if batch else "rows left over" if self.channel_rows else kind)
        if not self.channel_rows:
            self.due -= {"clock"} if order.keeps_watermarks else {"clock", "event time"}
        self.channel_rows = ()
        return EpochResult(EpochStatistics(self.epoch, 0, 0), [])

    def has_timers_due(self, *, event_time: bool) -> bool:
        return ("event time" if event_time else "clock") in self.due

    def found_nothing(self) -> None:
        self.looks += 1

    def align(self) -> None:
        self.aligned += 1
        self.paused_sources = self.pauses

    def sources_that_wait(self) -> frozenset[str]:
        return self.waiting

    def let_all_read(self) -> None:
        self.waiting = self.paused_sources = self.pauses = frozenset()

    aligned = 0
    waiting: frozenset[str] = frozenset()
    """Sources that were told to wait when the query last asked them."""
    pauses: frozenset[str] = frozenset()
    """Those that must still wait."""
    paused_sources: frozenset[str] = frozenset()


class Query:
    """A query that ends when it is stopped, and can hang in that."""

    def __init__(self) -> None:
        self.stopped, self.gate = threading.Event(), threading.Event()
        self.gate.set()
        self.status = {"message": "Initializing sources", "isDataAvailable": False}

        self.isActive = True
        self.refusals = 0

    def stop(self) -> None:
        assert self.gate.wait(WAIT)
        if self.refusals:
            self.refusals -= 1
            raise TimeoutError("the query did not stop in time")
        self.stopped.set()

    def awaitTermination(self) -> None:
        assert self.stopped.wait(WAIT)


class Conf(dict[str, str]):
    """The settings of a session."""

    set = dict.__setitem__

    def unset(self, name: str) -> None:
        self.pop(name, None)


class Writer:
    """Notes how a query is started."""

    def __init__(self, conf: Conf) -> None:
        self.conf, self.triggers = conf, list[dict[str, Any]]()
        self.started_with: Conf | None = None

    def trigger(self, **trigger: Any) -> Writer:
        self.triggers.append(trigger)
        return self

    def start(self) -> None:
        self.started_with = Conf(self.conf)


class Clock:
    """A monotonic clock that passes when somebody waits for a job to stop."""

    def __init__(self) -> None:
        self.now, self.waits = 100.0, list[float]()

    def __call__(self) -> float:
        return self.now

    def wait(self, seconds: float) -> bool:
        self.waits.append(seconds)
        self.now += seconds
        return False


@contextmanager
def _nothing_set(*_: Any) -> Iterator[None]:
    yield


class Bench:
    """A job attempt whose query runs by hand."""

    def __init__(
        self,
        tmp_path: Path,
        end: float = WAIT,
        trigger: JobTrigger | None = None,
        restored_batch: int | None = None,
    ) -> None:
        self.checkpoints, self.runner, self.query = Checkpoints(), Runner(), Query()
        self.grouped = 0
        context = SimpleNamespace(setJobGroup=self._set_group, cancelJobGroup=lambda group: None)
        self.group_fails: Exception | None = None
        runner, checkpoints = self.runner, self.checkpoints
        self.job_attempt = JobAttempt(
            SimpleNamespace(sparkContext=context, conf=Conf()),  # type: ignore[arg-type]
            "job",
            trigger or JobTrigger(0, False, False),
            runner,  # type: ignore[arg-type]
            checkpoints,  # type: ignore[arg-type]
            [],
            tmp_path,
            lambda result: None,
            restored_batch,
            time_limits=TimeLimits(end=end),
        )
        self.job_attempt.query = self.query  # type: ignore[assignment]

    def _set_group(self, *_: Any, **__: Any) -> None:
        self.grouped += 1
        if self.group_fails is not None:
            raise self.group_fails

    def batch(self, number: int = 0) -> None:
        self.job_attempt._run_batch("rows", number)  # type: ignore[arg-type]

    def look_around(self) -> None:
        """Do once what the thread does again and again."""
        self.job_attempt._run_what_is_due()


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


def test_a_query_that_does_not_stop_is_stopped_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise it would go on without checkpoints."""
    monkeypatch.setattr(module, "TRY_AGAIN", 0)
    bench.query.refusals = 2
    failure = CheckpointError("too many have failed")
    bench.job_attempt.break_off(failure)
    assert bench.job_attempt.wait() is failure
    assert caplog.text.count("did not stop, which is tried again") == 2


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
    bench.job_attempt._idle.last_batch = 0
    bench.runner.has_pending_timers = True
    hung.ask(drain=True)
    assert hung.reached.wait(WAIT)
    hung.end()
    with pytest.raises(CheckpointError, match="an earlier epoch hangs"):
        hung.request.result(5)


# Time passes in ticks

NOTHING_CAME = {"message": "Waiting for data to arrive", "isDataAvailable": False}


@pytest.fixture
def recovered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A job attempt that was restored after the first batch, and has read nothing yet."""
    monkeypatch.setattr(module, "settings", _nothing_set)
    monkeypatch.setattr(idle_epochs, "QUIET", 0)
    return Bench(tmp_path, restored_batch=0)


def test_event_time_does_not_advance_between_a_recovery_and_the_first_batch(
    recovered: Bench,
) -> None:
    """Without the failure the batch had followed at once."""
    recovered.runner.due = {"clock", "event time"}
    recovered.look_around()
    recovered.look_around()
    recovered.batch(1)
    assert recovered.runner.ran == ["tick by the clock", "rows"]


def test_event_time_advances_after_a_recovery_once_the_query_has_found_nothing_to_read(
    recovered: Bench,
) -> None:
    recovered.runner.due = {"event time"}
    recovered.look_around()
    recovered.query.status = NOTHING_CAME
    recovered.look_around()
    assert (recovered.runner.ran, recovered.runner.looks) == (["tick by event time"], 1)


@pytest.mark.parametrize(
    "status",
    [
        {"message": "Getting offsets from FileStreamSource", "isDataAvailable": False},
        {"message": "Waiting for next trigger", "isDataAvailable": True},
    ],
)
def test_a_query_that_still_looks_or_has_found_rows_is_not_silent(
    recovered: Bench, status: dict[str, Any]
) -> None:
    recovered.runner.can_be_idle = True
    recovered.query.status = status
    recovered.look_around()
    assert recovered.runner.looks == 0


def test_looks_without_rows_count_where_sources_can_become_idle(bench: Bench) -> None:
    bench.batch(0)
    bench.query.status = NOTHING_CAME
    bench.look_around()
    assert bench.runner.looks == 0
    bench.runner.can_be_idle = True
    bench.look_around()
    bench.look_around()
    assert bench.runner.looks == 2


@pytest.mark.parametrize("by", ["batch", "look around"])
def test_rows_left_over_and_timers_behind_them_go_before_the_first_batch(
    recovered: Bench, by: str
) -> None:
    """They follow an epoch that may be cut, with a failure as without."""
    recovered.checkpoints.unaligned = True
    recovered.runner.channel_rows = ("row",)
    recovered.runner.due = {"clock", "event time"}
    if by == "look around":
        recovered.look_around()
    recovered.batch(1)
    recovered.batch(2)
    ticks = ["tick by the clock", "tick by event time"]
    assert recovered.runner.ran == ["rows left over", *ticks, "rows", "rows"]


def test_a_query_that_ends_fires_the_timers_that_it_has_only_found(recovered: Bench) -> None:
    recovered.runner.due = {"clock"}
    recovered.runner.in_epoch = lambda: recovered.runner.due.add("event time")
    recovered.query.stop()
    recovered.job_attempt.wait()
    assert recovered.runner.ran == ["tick by the clock", "tick by event time"]


# The interval between epochs


POLLING = "spark.sql.streaming.pollingDelay"


@pytest.mark.parametrize("interval_ms", [0, 10_000])
@pytest.mark.parametrize("setting", [None, "20ms"])
def test_spark_is_given_no_interval_to_keep_by_the_wall_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interval_ms: int, setting: str | None
) -> None:
    """Its trigger waits for a time of day: set back by an hour, there is no epoch for an hour."""
    bench = Bench(tmp_path, trigger=JobTrigger(interval_ms, False, False))
    conf: Any = bench.job_attempt._spark.conf
    if setting is not None:
        conf[POLLING] = setting
    before = dict(conf)
    writer = Writer(conf)
    monkeypatch.setattr(bench.job_attempt, "_writer", lambda *_: writer)
    bench.job_attempt._start_query()
    assert writer.triggers == []
    assert writer.started_with is not None
    # It looks for data no more often than that.
    assert writer.started_with.get(POLLING) == (f"{interval_ms}ms" if interval_ms else setting)
    assert conf == before


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "monotonic", clock)
    return clock


def timed(tmp_path: Path, clock: Clock, *, available_now: bool) -> tuple[Bench, list[float]]:
    """A job with an interval of 10 s, whose epochs take 3 s, and their starts."""
    bench = Bench(tmp_path, trigger=JobTrigger(10_000, available_now, False))
    bench.job_attempt._stopping = SimpleNamespace(  # type: ignore[assignment]
        is_set=lambda: False, wait=clock.wait
    )
    starts: list[float] = []

    def run() -> None:
        starts.append(clock.now)
        clock.now += 3

    bench.runner.in_epoch = run
    return bench, starts


@pytest.mark.parametrize(("available_now", "ended"), [(False, 130), (True, 123)])
def test_epochs_keep_their_interval_on_a_monotonic_clock(
    tmp_path: Path, clock: Clock, available_now: bool, ended: float
) -> None:
    """Before Spark decides what the next batch contains, unless that is decided."""
    bench, starts = timed(tmp_path, clock, available_now=available_now)
    for number in range(3):
        bench.batch(number)
    assert starts == [100, 110, 120]
    assert clock.now == ended


def test_a_query_that_somebody_else_stops_is_not_kept_waiting(tmp_path: Path, clock: Clock) -> None:
    bench, _ = timed(tmp_path, clock, available_now=False)
    bench.query.isActive = False
    bench.batch(0)
    assert clock.now == 103.5


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


# Sources that wait for others


def ended_query() -> Query:
    query = Query()
    query.stopped.set()
    return query


@pytest.fixture
def drained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A job that ends when there is nothing new; its first query has ended."""
    monkeypatch.setattr(module, "settings", _nothing_set)
    bench = Bench(tmp_path, trigger=JobTrigger(0, True, False, ends=True))
    bench.query.stopped.set()
    bench.job_attempt._run_batch("rows", 0)  # type: ignore[arg-type]
    return bench


def test_a_query_that_ended_while_a_source_waited_is_started_again(
    drained: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever has opened the gate."""
    started: list[Query] = []

    def start() -> Query:
        started.append(ended_query())
        # The second query has read all.
        drained.runner.waiting = frozenset({"slow"} if len(started) < 2 else ())
        return started[-1]

    monkeypatch.setattr(drained.job_attempt, "_start_query", start)
    drained.runner.waiting = frozenset({"fast"})
    assert drained.job_attempt.wait() is None
    assert len(started) == 2
    assert id(drained.job_attempt.query) == id(started[-1])


def test_a_query_that_ends_while_nobody_waits_is_not_started_again(
    drained: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drained.job_attempt, "_start_query", lambda: pytest.fail("started"))
    assert drained.job_attempt.wait() is None


def test_a_query_that_is_stopped_while_a_source_must_wait_has_not_read_all(
    drained: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drained.job_attempt, "_start_query", lambda: pytest.fail("started"))
    drained.runner.waiting = drained.runner.pauses = frozenset({"fast"})
    failure = drained.job_attempt.wait()
    assert isinstance(failure, QueryStoppedError)
    assert "before it had read all input" in str(failure)


def test_a_batch_that_a_query_has_not_noted_does_not_run_twice(
    drained: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start() -> Query:
        drained.runner.waiting = frozenset()
        for batch in (0, 1):
            drained.batch(batch)
        return ended_query()

    monkeypatch.setattr(drained.job_attempt, "_start_query", start)
    drained.runner.waiting = frozenset({"fast"})
    assert drained.job_attempt.wait() is None
    assert drained.runner.ran == ["rows", "rows"]


def test_a_job_that_is_stopped_while_its_query_starts_again_stops_that_one(
    drained: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    again = Query()

    def start() -> Query:
        drained.job_attempt._stopping.set()
        return again

    monkeypatch.setattr(drained.job_attempt, "_start_query", start)
    drained.runner.waiting = frozenset({"fast"})
    assert drained.job_attempt.wait() is None
    assert again.stopped.is_set()


def test_a_query_that_cannot_be_started_again_fails_the_job_attempt(
    drained: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start() -> Query:
        raise ConnectionError("Java is away")

    monkeypatch.setattr(drained.job_attempt, "_start_query", start)
    drained.runner.waiting = frozenset({"fast"})
    assert isinstance(drained.job_attempt.wait(), ConnectionError)


# The last checkpoint before a rescale


class Finished:
    """A checkpoint that ends a job attempt, and completes with its epoch."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.request = CheckpointRequest("the last checkpoint")
        self.request.checkpoint = "/chk-1"
        self.told: list[str] = []
        bench.checkpoints.due = True
        bench.batch(0)
        bench.runner.in_epoch = self.request.complete

    def ask(self) -> None:
        self.bench.job_attempt.finish_with_savepoint(
            self.request, drain=False, on_complete=lambda: self.told.append("complete")
        )


def test_no_epoch_follows_the_checkpoint_that_a_rescale_takes(bench: Bench) -> None:
    finished = Finished(bench)
    finished.ask()
    assert finished.told == ["complete"]
    assert bench.query.stopped.is_set()
    ran = bench.runner.epoch
    # Spark may have read it already; the next attempt reads it again.
    bench.batch(1)
    assert bench.job_attempt.wait() is None
    assert bench.runner.epoch == ran


def test_rows_left_over_are_processed_before_a_rescale(bench: Bench) -> None:
    finished = Finished(bench)
    bench.runner.channel_rows = ("row",)
    finished.ask()
    assert bench.runner.ran[-1] == "rows left over"
    assert not bench.runner.channel_rows


def test_a_query_that_does_not_stop_for_a_rescale_is_stopped_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TRY_AGAIN", 0)
    finished = Finished(bench)
    bench.query.refusals = 2
    finished.ask()
    assert bench.query.stopped.is_set()
    assert bench.job_attempt.wait() is None


def test_a_job_attempt_goes_on_after_a_checkpoint_that_failed(bench: Bench) -> None:
    finished = Finished(bench)
    bench.runner.in_epoch = lambda: finished.request.fail("no room")
    finished.ask()
    assert finished.told == []
    bench.batch(1)
    assert bench.checkpoints.completed_epochs == list(range(1, bench.runner.epoch + 1))
    assert not bench.query.stopped.is_set()


def test_a_job_attempt_that_was_stopped_takes_no_last_checkpoint(bench: Bench) -> None:
    finished = Finished(bench)
    bench.job_attempt.stop()
    ran = bench.runner.epoch
    finished.ask()
    with pytest.raises(CheckpointError, match="was not taken: the job has ended, or is about to"):
        finished.request.result(0)
    assert (finished.told, bench.runner.epoch) == ([], ran)
