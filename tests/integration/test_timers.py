"""Timers on real Spark: without data, through failures, on other subtasks; each fires once."""

from __future__ import annotations

import copy
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow.dataset as ds
import pytest

from holdfast import FileSink, KeyedProcessFunction, ValueStateDescriptor, WatermarkStrategy
from holdfast.errors import JobExecutionError, UserFunctionError
from holdfast.spark import job_attempt as job_attempt
from tests.support.recovery_jobs import HASHMAP, ROCKSDB, TIMEOUT, Ledger
from tests.support.recovery_tools import Faults, figures, wait_for
from tests.support.time_jobs import (
    ADDED,
    RETAIN,
    WINDOW,
    Drop,
    Totals,
    Windows,
    environment,
    windows,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from holdfast import JobClient, StreamExecutionEnvironment
    from holdfast.statistics import JobStatistics

JOB = "timed-job"
TOLD = "what string, k string, times bigint"
ELEMENTS = "k string, at bigint, i bigint"
RELEASED = {"mode": "AT_LEAST_ONCE"}
"""`Ledger` is to see epochs as they end, and takes them back itself."""


slow = pytest.mark.slow
pytestmark = pytest.mark.usefixtures("no_faults")


class Reminders(KeyedProcessFunction):
    """Reminds of the one element of every key after some time; counts how often it did."""

    def __init__(self, after: int, broken: Path | None = None) -> None:
        self.after = after
        self.broken = broken

    def open(self, ctx: Any) -> None:
        self.times = ctx.get_state(ValueStateDescriptor("times", int))

    def process_element(self, value: Any, ctx: Any) -> Iterator[tuple[str, str, int]]:
        timers = ctx.timer_service()
        timers.register_processing_time_timer(timers.current_processing_time() + self.after)
        yield "set", value.k, 0

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[tuple[str, str, int]]:
        assert timestamp <= ctx.timer_service().current_processing_time()
        if self.broken is not None and not self.broken.exists():
            self.broken.touch()
            raise ValueError("no luck with a timer")
        self.times.update((self.times.value() or 0) + 1)
        yield "fired", ctx.get_current_key(), self.times.value()


class Reminding:
    """A job of reminders, fed by hand."""

    def __init__(self, env: StreamExecutionEnvironment, told: Ledger | None = None) -> None:
        self.env = env.set_job_id(JOB)
        self.told = told or Ledger()

    def start(self, drop: Drop, function: Reminders) -> JobClient:
        rows = self.env.from_dataframe(drop.stream()).uid("source")
        rows.key_by("k").process(function, TOLD).uid("remind").foreach_batch(self.told)
        self.client = self.env.execute_async("reminding")
        return self.client

    def of(self, what: str) -> list[str]:
        """Keys that were given out, having checked that none was counted twice."""
        assert {times for kind, _, times in self.told.rows if kind == "fired"} <= {1}
        return sorted(key for kind, key, _ in self.told.rows if kind == what)

    def wait(self, what: str, keys: list[str]) -> None:
        def there() -> bool:
            assert not self.client.status().is_terminal, self.client.result()
            return self.of(what) == keys

        wait_for(there, f"{what}: {keys}")

    def wait_for_checkpoint(self) -> int:
        """Wait for a checkpoint of all that was given out; returns its epoch."""

        def held() -> bool:
            newest = figures(self.client).latest_completed
            return newest is not None and (newest.epoch or 0) >= self.told.last_epoch

        wait_for(held, "a checkpoint of everything")
        newest = figures(self.client).latest_completed
        assert newest is not None
        assert newest.epoch is not None
        return newest.epoch

    def epochs_of(self, what: str) -> set[int]:
        return {e for e, rows in self.told._epochs.items() if any(r[0] == what for r in rows)}


# By the clock


@pytest.mark.versions
@pytest.mark.parametrize("backend", [HASHMAP, ROCKSDB])
def test_the_clock_fires_timers_without_data_and_checkpoints_contain_that(
    spark: SparkSession, tmp_path: Path, injected: Faults, backend: str
) -> None:
    drop = Drop(spark, tmp_path / "in", ELEMENTS).add(*((f"k{i}", 0, i) for i in range(6)))
    job = Reminding(environment(spark, tmp_path / "chk", backend=backend, settings=RELEASED))
    client = job.start(drop, Reminders(500))
    keys = [f"k{i}" for i in range(6)]
    job.wait("fired", keys)
    [data] = job.epochs_of("set")
    ticks = job.epochs_of("fired")
    assert min(ticks) > data
    assert job.wait_for_checkpoint() >= max(ticks)
    # The next epoch fails in the driver: it is taken back, what has fired is not.
    [struck] = injected.plan(tmp_path, {"point": "epoch-released", "action": "raise"})
    drop.add(("late", 0, 0))
    job.wait("fired", [*keys, "late"])
    job.wait_for_checkpoint()
    assert struck.exists()
    statistics = client.statistics()
    assert statistics.restarts == 1
    assert statistics.checkpoints
    assert statistics.checkpoints.latest_restored
    client.cancel()
    assert job.of("set") == job.of("fired") == [*keys, "late"]
    assert ticks <= job.epochs_of("fired")


def test_an_epoch_of_timers_that_is_taken_back_fires_them_again(
    spark: SparkSession, tmp_path: Path, injected: Faults
) -> None:
    # The first epoch sets timers and carries a checkpoint, the second fires them and fails.
    [struck] = injected.plan(tmp_path, {"point": "epoch-released", "action": "raise", "epoch": 2})
    drop = Drop(spark, tmp_path / "in", ELEMENTS).add(*((f"k{i}", 0, i) for i in range(6)))
    job = Reminding(environment(spark, tmp_path / "chk", settings=RELEASED))
    client = job.start(drop, Reminders(500))
    wait_for(struck.exists, "the fault")
    wait_for(lambda: client.statistics().restarts == 1, "a restart")
    job.wait("fired", [f"k{i}" for i in range(6)])
    job.wait_for_checkpoint()
    client.cancel()
    assert job.of("fired") == [f"k{i}" for i in range(6)]


@pytest.mark.parametrize("restarts", [0, 1])
def test_a_timer_that_fails_without_data_fails_the_job_like_any_function(
    spark: SparkSession, tmp_path: Path, restarts: int
) -> None:
    drop = Drop(spark, tmp_path / "in", ELEMENTS).add(("k", 0, 0))
    env = environment(spark, tmp_path / "chk", restarts=restarts, settings=RELEASED)
    job = Reminding(env)
    client = job.start(drop, Reminders(300, broken=tmp_path / "broken"))
    if restarts:
        job.wait("fired", ["k"])
        assert client.statistics().restarts == 1
        client.cancel()
        return
    with pytest.raises(JobExecutionError, match="no luck with a timer") as caught:
        client.result(TIMEOUT)
    assert isinstance(caught.value.__cause__, UserFunctionError)
    assert "on_timer" in str(caught.value.__cause__)


@pytest.mark.parametrize("backend", [pytest.param(HASHMAP, marks=slow), ROCKSDB])
def test_overdue_timers_fire_after_a_restore_though_no_data_comes(
    spark: SparkSession, tmp_path: Path, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {**RELEASED, **RETAIN}
    drop = Drop(spark, tmp_path / "in", ELEMENTS).add(*((f"k{i}", 0, i) for i in range(6)))
    first = Reminding(environment(spark, tmp_path / "chk", backend=backend, settings=settings))
    with monkeypatch.context() as patch:
        # The first job does not look at the clock while there is no data.
        patch.setattr(job_attempt, "LOOK_AROUND", 3600.0)
        client = first.start(drop, Reminders(3000))
        keys = [f"k{i}" for i in range(6)]
        first.wait("set", keys)
        first.wait_for_checkpoint()
        client.cancel()
    assert first.of("fired") == []
    due = time.time() + 3
    wait_for(lambda: time.time() > due, "the timers to be due")
    env = environment(spark, tmp_path / "chk", backend=backend, parallelism=3, settings=settings)
    second = Reminding(env, copy.deepcopy(first.told))
    client = second.start(drop, Reminders(3000))
    second.wait("fired", keys)
    statistics = client.statistics()
    client.cancel()
    assert statistics.events == 0
    assert statistics.checkpoints
    assert statistics.checkpoints.latest_restored
    assert second.of("set") == keys


# Through failures


class Element(NamedTuple):
    """One element of the source."""

    k: str
    at: int
    i: int


def element(i: int) -> Element:
    return Element(f"k{i % 7}", 5 * i, i)


class Numbered:
    """A sink on the driver that may be handed a number again, with the same rows."""

    def __init__(self) -> None:
        self._calls: dict[int, list[Any]] = {}

    def __call__(self, df: DataFrame, number: int) -> None:
        rows = sorted(tuple(row) for row in df.collect())
        assert self._calls.setdefault(number, rows) == rows, f"other rows for {number}"

    @property
    def rows(self) -> list[Any]:
        return sorted(row for rows in self._calls.values() for row in rows)


class TimedJob:
    """Windows over windows, into files and a sink on the driver, both exactly once."""

    def __init__(self, place: Path, count: int = 240, per_epoch: int | None = 40) -> None:
        self.place = place
        self.count = count
        self.per_epoch = per_epoch
        self.totals = Numbered()

    def run(self, spark: SparkSession, backend: str) -> JobStatistics:
        settings = {"asynchronous": "false"}
        env = environment(spark, self.place / "chk", backend=backend, settings=settings)
        if self.per_epoch is not None:
            env.set_max_events_per_epoch(self.per_epoch)
        rows = env.from_generator(element, count=self.count).set_parallelism(1).uid("source")
        strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("at")
        rows = rows.assign_timestamps_and_watermarks(strategy).uid("time")
        sums = rows.key_by("k").process(Windows(), ADDED).uid("sums")
        sums.sink_to(FileSink(self.place / "files", "parquet")).uid("files")
        totals = sums.key_by("k").process(Totals(), ADDED).uid("totals")
        totals.foreach_batch(self.totals).uid("calls")
        return env.execute_async("timed").result(TIMEOUT).statistics

    def check(self) -> None:
        elements = [(e.k, e.at, e.i) for e in map(element, range(self.count))]
        written = ds.dataset(self.place / "files").to_table().to_pylist()
        assert sorted(tuple(row.values()) for row in written) == windows(elements)
        assert self.totals.rows == windows(elements, 2 * WINDOW)


@pytest.mark.parametrize(
    ("point", "uid", "backend"),
    [
        ("before-commit", "sums", HASHMAP),
        ("after-commit", "sums", ROCKSDB),
        ("after-snapshot", "totals", HASHMAP),
        pytest.param("before-commit", "totals", ROCKSDB, marks=slow),
        pytest.param("after-commit", "totals", HASHMAP, marks=slow),
        pytest.param("after-snapshot", "sums", ROCKSDB, marks=slow),
    ],
)
def test_a_worker_killed_while_timers_fire_costs_nothing_but_time(
    spark: SparkSession, tmp_path: Path, injected: Faults, point: str, uid: str, backend: str
) -> None:
    fault = {"point": point, "action": "kill", "epoch": 4, "uid": uid}
    [struck] = injected.plan(tmp_path, fault)
    job = TimedJob(tmp_path)
    statistics = job.run(spark, backend)
    assert struck.exists()
    assert statistics.restarts == 1
    job.check()


@pytest.mark.parametrize("backend", [HASHMAP, pytest.param(ROCKSDB, marks=slow)])
def test_a_worker_killed_while_time_ends_costs_nothing_but_time(
    spark: SparkSession, tmp_path: Path, injected: Faults, backend: str
) -> None:
    # After the one epoch of data: one for what it has reached, if there is time, and the last.
    faults = [
        {"point": "after-commit", "action": "kill", "epoch": epoch, "uid": "totals"}
        for epoch in (2, 3)
    ]
    struck = injected.plan(tmp_path, *faults)
    job = TimedJob(tmp_path, per_epoch=None)
    statistics = job.run(spark, backend)
    assert statistics.restarts == sum(marker.exists() for marker in struck) >= 1
    job.check()


# On other subtasks


class Rescaled:
    """A job with timers of both kinds that is started again and again under one id."""

    def __init__(self, spark: SparkSession, place: Path, backend: str) -> None:
        self._spark = spark
        self._place = place
        self._backend = backend
        self._drop = Drop(spark, place / "in", ELEMENTS)
        self._windows, self._told = Ledger(), Ledger()
        self.elements: list[tuple[str, int, int]] = []
        self._added = 0

    def run(self, parallelism: int, elements: list[tuple[str, int, int]], fired: int) -> None:
        """Process more on so many subtasks, until so many windows were given out in all."""
        settings = {**RELEASED, **RETAIN}
        place = self._place / "chk"
        env = environment(
            self._spark, place, backend=self._backend, parallelism=parallelism, settings=settings
        ).set_job_id(JOB)
        strategy = WatermarkStrategy.for_bounded_out_of_orderness("1 s")
        rows = env.from_dataframe(self._drop.add(*elements).stream()).uid("source")
        rows = rows.assign_timestamps_and_watermarks(strategy.with_timestamp_assigner("at"))
        keyed = rows.uid("time").key_by("k")
        keyed.process(Windows(), ADDED).uid("sums").foreach_batch(self._windows)
        keyed.process(Reminders(4000), TOLD).uid("remind").foreach_batch(self._told)
        self.elements += elements
        client = env.execute_async("rescaled")

        def settled() -> bool:
            assert not client.status().is_terminal, client.result()
            newest = figures(client).latest_completed
            last = max(self._windows.last_epoch, self._told.last_epoch)
            done = len(self._set()) == len(self.elements) and len(self._windows.rows) == fired
            return done and newest is not None and (newest.epoch or 0) >= last

        wait_for(settled, f"{fired} windows of {len(self.elements)} elements")
        if parallelism == 2:
            wait_for(lambda: len(self.reminders()) >= len(self.elements), "all reminders")
        client.cancel()

    def _set(self) -> list[str]:
        return [key for what, key, _ in self._told.rows if what == "set"]

    def reminders(self) -> list[tuple[str, int]]:
        return sorted((key, times) for what, key, times in self._told.rows if what == "fired")

    def windows(self) -> list[tuple[Any, ...]]:
        return sorted(self._windows.rows)


@pytest.mark.parametrize("backend", [HASHMAP, pytest.param(ROCKSDB, marks=slow)])
def test_every_timer_fires_once_on_any_number_of_subtasks(
    spark: SparkSession, tmp_path: Path, backend: str
) -> None:
    def elements(start: int, end: int) -> list[tuple[str, int, int]]:
        return [(f"k{i}", 10 * i, i) for i in range(start, end)]

    job = Rescaled(spark, tmp_path, backend)
    job.run(1, elements(0, 100), fired=0)
    job.run(3, elements(100, 150), fired=40)
    # The last happens at 1990 ms: with it, all up to 989 ms has come.
    job.run(2, [*elements(150, 200), ("end", 9000, 0)], fired=200)
    assert job.windows() == [w for w in windows(job.elements) if w[0] != "end"]
    assert job.reminders() == sorted((key, 1) for key, _, _ in job.elements)


# Epochs that are cut


class Slow(Windows):
    """The same, for a backlog."""

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        time.sleep(0.002)
        yield from super().process_element(value, ctx)


def jumbled(i: int) -> Element:
    """Elements that lag behind the latest by up to 40 ms."""
    return Element(f"k{i % 7}", 5 * i - (i * 7 % 9) * 5, i)


@pytest.mark.parametrize(
    ("unaligned", "backend", "fault"),
    [
        ("false", HASHMAP, None),
        ("true", HASHMAP, None),
        ("true", ROCKSDB, "after-commit"),
        pytest.param("true", ROCKSDB, None, marks=slow),
        pytest.param("true", HASHMAP, "after-commit", marks=slow),
    ],
)
def test_no_element_comes_late_because_an_epoch_was_cut(
    spark: SparkSession,
    tmp_path: Path,
    injected: Faults,
    unaligned: str,
    backend: str,
    fault: str | None,
) -> None:
    if fault is not None:
        injected.plan(tmp_path, {"point": fault, "action": "kill", "epoch": 4, "uid": "sums"})
    settings = {"asynchronous": "false", "unaligned.enabled": unaligned, "interval": "50 ms"}
    env = environment(spark, tmp_path / "chk", backend=backend, settings=settings)
    env.set_max_events_per_epoch(200)
    rows = env.from_generator(jumbled, count=600).set_parallelism(1).uid("source")
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(40).with_timestamp_assigner("at")
    rows = rows.assign_timestamps_and_watermarks(strategy).uid("time")
    sums = rows.key_by("k").process(Slow(), ADDED).uid("sums")
    sums.sink_to(FileSink(tmp_path / "files", "parquet")).uid("files")
    totals = Numbered()
    sums.key_by("k").process(Totals(), ADDED).uid("totals").foreach_batch(totals)
    statistics = env.execute_async("cut").result(TIMEOUT).statistics
    assert statistics.restarts == (fault is not None)
    assert statistics.checkpoints
    cut = any(one.persisted_size for one in statistics.checkpoints.history)
    assert cut is (unaligned == "true")
    elements = [(e.k, e.at, e.i) for e in map(jumbled, range(600))]
    written = ds.dataset(tmp_path / "files").to_table().to_pylist()
    results = sorted(tuple(row.values()) for row in written)
    assert [row for row in results if row[2] < 0] == []
    assert results == windows(elements)
    assert totals.rows == windows(elements, 2 * WINDOW)


class Parked(KeyedProcessFunction):
    """Sets a timer for every element; takes its time until a certain file is there."""

    def __init__(self, hurry: Path) -> None:
        self.hurry = hurry

    def process_element(self, value: Any, ctx: Any) -> Iterator[tuple[str, int]]:
        if not self.hurry.exists():
            time.sleep(0.02)
        ctx.timer_service().register_event_time_timer(value.at)
        yield "row", value.at

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[tuple[str, int]]:
        yield "timer", timestamp


def test_elements_that_a_checkpoint_holds_count_for_the_watermark_after_a_restore(
    spark: SparkSession, tmp_path: Path
) -> None:
    drop = Drop(spark, tmp_path / "in", ELEMENTS).add(*(element(i) for i in range(200)))
    settings = {**RETAIN, "unaligned.enabled": "true", "interval": "50 ms"}
    hurry = tmp_path / "hurry"

    def start(told: list[Any]) -> JobClient:
        env = environment(spark, tmp_path / "chk", settings=settings).set_job_id(JOB)
        strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("at")
        rows = env.from_dataframe(drop.stream()).uid("source")
        rows = rows.assign_timestamps_and_watermarks(strategy).uid("time")
        parked = rows.key_by("k").process(Parked(hurry), "what string, at bigint").uid("parked")
        parked.foreach_batch(lambda df, _: told.extend(map(tuple, df.collect())))
        return env.execute_async("parked")

    def holds_input(client: JobClient) -> bool:
        newest = figures(client).latest_completed
        return newest is not None and newest.persisted_size > 0

    first: list[Any] = []
    client = start(first)
    wait_for(lambda: holds_input(client), "a checkpoint that holds input")
    client.cancel()
    hurry.touch()
    second: list[Any] = []
    client = start(second)
    rows = [("row", element(i).at) for i in range(200)]
    wait_for(lambda: set(rows) <= {*first, *second}, "all elements")
    try:
        # The last of them happens at 995 ms, and no other source says how far time has come.
        wait_for(lambda: client.statistics().watermarks.get("time") == 994, "time", seconds=10)
        wait_for(lambda: ("timer", 990) in second, "the timers", seconds=10)
    finally:
        client.cancel()
