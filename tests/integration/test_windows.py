"""Windows and state with a time to live on real Spark: through kills, and on other subtasks."""

from __future__ import annotations

import sys
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow.dataset as ds
import pytest
from pyspark import cloudpickle

from holdfast import (
    FileSink,
    KeyedProcessFunction,
    OutputTag,
    StateTtlConfig,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from holdfast.spark import idle_epochs
from holdfast.windows import (
    CoGroupFunction,
    EventTimeSessionWindows,
    ProcessWindowFunction,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
)
from tests.support.recovery_jobs import HASHMAP, ROCKSDB, TIMEOUT, Ledger
from tests.support.recovery_tools import Faults, wait_for
from tests.support.time_jobs import RETAIN, Drop, environment

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

    from holdfast import DataStream
    from holdfast.statistics import JobStatistics

# Workers cannot import this module everywhere, and need its sources.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

SUMS = "k string, first bigint, last bigint, total bigint"
ELEMENTS = "k string, at bigint, i bigint"
LENGTH = 100
slow = pytest.mark.slow
pytestmark = pytest.mark.usefixtures("no_faults")


class Element(NamedTuple):
    """One element of the source."""

    k: str
    at: int
    i: int


def element(i: int) -> Element:
    """Elements that lag behind the latest by up to 40 ms."""
    return Element(f"k{i % 7}", 5 * i - (i * 7 % 9) * 5, i)


def gap(value: Any) -> int:
    """How long a session waits after an element: sometimes long enough for the next one."""
    return 20 + int(value.i) % 5 * 10


def add(one: Any, other: Any) -> Any:
    return other._replace(i=one.i + other.i, k=one.k, at=one.at)


def total(key: Any, window: Any, elements: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    yield key, window.start, window.end, elements[0].i


class Total(ProcessWindowFunction):
    """The same of elements that were all kept."""

    def process(self, key: Any, context: Any, elements: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
        window = context.window()
        yield key, window.start, window.end, sum(one.i for one in elements)


class Distinct(KeyedProcessFunction):
    """Lets the first element of every key pass."""

    def open(self, ctx: Any) -> None:
        ttl = StateTtlConfig.new_builder("1 h").build()
        self.seen = ctx.get_state(ValueStateDescriptor("seen", bool, ttl=ttl))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        if not self.seen.value():
            self.seen.update(True)
            yield value


def windows(elements: Iterable[Element], length: int, slide: int | None = None) -> list[Any]:
    """Sums over windows of a length, of which one begins every slide."""
    sums: Counter[tuple[str, int]] = Counter()
    slide = slide or length
    for one in elements:
        for start in range(one.at // slide * slide, one.at - length, -slide):
            sums[one.k, start] += one.i
    return sorted((k, start, start + length, value) for (k, start), value in sums.items())


def sessions(elements: Iterable[Element]) -> list[Any]:
    """Sums over sessions."""
    found: list[tuple[str, int, int, int]] = []
    for one in sorted(elements, key=lambda e: (e.k, e.at)):
        end = one.at + gap(one)
        if found and found[-1][0] == one.k and found[-1][2] >= one.at:
            k, first, last, value = found[-1]
            found[-1] = (k, first, max(last, end), value + one.i)
        else:
            found.append((one.k, one.at, end, one.i))
    return sorted(found)


def timed(rows: DataStream, lag: str = "40 ms") -> DataStream:
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(lag)
    return rows.assign_timestamps_and_watermarks(strategy.with_timestamp_assigner("at"))


class WindowJob:
    """Windows of several kinds, and elements that are let pass once, into files."""

    def __init__(self, place: Path, count: int = 240) -> None:
        self.place = place
        self.count = count

    def run(self, spark: SparkSession, backend: str) -> JobStatistics:
        settings = {"asynchronous": "false"}
        env = environment(spark, self.place / "chk", backend=backend, settings=settings)
        env.set_max_events_per_epoch(40)
        rows = env.from_generator(element, count=self.count).set_parallelism(1).uid("source")
        keyed = timed(rows).uid("time").key_by("k")
        results = {
            "sums": keyed.window(TumblingEventTimeWindows.of(LENGTH)).reduce(add, total, SUMS),
            "slid": keyed.window(SlidingEventTimeWindows.of(LENGTH, 40)).process(Total(), SUMS),
            "sessions": keyed.window(EventTimeSessionWindows.with_dynamic_gap(gap)).reduce(
                add, total, SUMS
            ),
            "distinct": keyed.process(Distinct(), ELEMENTS),
        }
        for name, stream in results.items():
            stream.uid(name).sink_to(FileSink(self.place / name, "parquet")).uid(f"{name}-files")
        return env.execute_async("windows").result(TIMEOUT).statistics

    def check(self) -> None:
        elements = [element(i) for i in range(self.count)]
        assert self._written("sums") == windows(elements, LENGTH)
        assert self._written("slid") == windows(elements, LENGTH, 40)
        assert self._written("sessions") == sessions(elements)
        firsts = {one.k: one for one in reversed(elements)}
        assert self._written("distinct") == sorted(map(tuple, firsts.values()))

    def _written(self, name: str) -> list[Any]:
        rows = ds.dataset(self.place / name).to_table().to_pylist()
        return sorted(tuple(row.values()) for row in rows)


@pytest.mark.versions
@pytest.mark.parametrize(
    ("point", "uid", "epoch", "backend"),
    [
        ("before-commit", "sessions", 4, HASHMAP),
        ("after-commit", "sums", 3, ROCKSDB),
        pytest.param("after-snapshot", "slid", 4, HASHMAP, marks=slow),
        # After epoch 1 the operator "distinct" has seen every key, and commits nothing.
        pytest.param("before-commit", "distinct", 1, ROCKSDB, marks=slow),
        pytest.param("after-commit", "sessions", 5, ROCKSDB, marks=slow),
        pytest.param("after-commit", "distinct", 1, HASHMAP, marks=slow),
    ],
)
def test_a_worker_killed_while_windows_fire_costs_nothing_but_time(
    spark: SparkSession,
    tmp_path: Path,
    injected: Faults,
    point: str,
    uid: str,
    epoch: int,
    backend: str,
) -> None:
    fault = {"point": point, "action": "kill", "epoch": epoch, "uid": uid}
    [struck] = injected.plan(tmp_path, fault)
    job = WindowJob(tmp_path)
    statistics = job.run(spark, backend)
    assert struck.exists()
    assert statistics.restarts == 1
    job.check()


def straggler(i: int) -> Element:
    """Elements of which one in seven lags so far behind that it is late, and some too late."""
    one = element(i)
    return one._replace(at=one.at - 200 * (i % 5)) if i % 7 == 0 else one


class Relay(KeyedProcessFunction):
    """Lets elements pass, and has timers that fire only in the end."""

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        ctx.timer_service().register_event_time_timer(10**9)
        yield value


class LateJob(WindowJob):
    """Windows with a lateness, and what is too late for them, into files."""

    def __init__(self, place: Path, *, relayed: bool = False) -> None:
        super().__init__(place)
        self.relayed = relayed

    def run(self, spark: SparkSession, backend: str) -> JobStatistics:
        settings = {"asynchronous": "false"}
        env = environment(spark, self.place / "chk", backend=backend, settings=settings)
        env.set_max_events_per_epoch(40)
        rows = env.from_generator(straggler, count=self.count).set_parallelism(1).uid("source")
        keyed = timed(rows, "5 ms").uid("time").key_by("k")
        if self.relayed:
            keyed = keyed.process(Relay(), Element).uid("relay").key_by("k")
        tags = {name: OutputTag(f"late {name}", Element) for name in ("sums", "sessions")}
        tumbling = keyed.window(TumblingEventTimeWindows.of(LENGTH)).allowed_lateness(100)
        by_session = keyed.window(EventTimeSessionWindows.with_dynamic_gap(gap))
        for name, windowed in (("sums", tumbling), ("sessions", by_session)):
            found = windowed.side_output_late_data(tags[name]).reduce(add, total, SUMS).uid(name)
            late = found.get_side_output(tags[name])
            for kind, stream in ((name, found), (f"late-{name}", late)):
                stream.sink_to(FileSink(self.place / kind, "parquet")).uid(f"{kind}-files")
        return env.execute_async("late").result(TIMEOUT).statistics

    def written(self) -> dict[str, list[Any]]:
        kinds = ("sums", "late-sums", "sessions", "late-sessions")
        return {kind: self._written(kind) for kind in kinds}


@pytest.mark.parametrize(
    ("point", "uid", "epoch", "backend", "relayed"),
    [
        ("before-commit", "sums", 4, HASHMAP, False),
        pytest.param("after-commit", "sessions", 3, ROCKSDB, False, marks=slow),
        pytest.param("after-snapshot", "sums", 5, ROCKSDB, False, marks=slow),
        ("before-commit", "sums", 4, HASHMAP, True),
        pytest.param("after-commit", "relay", 3, ROCKSDB, True, marks=slow),
        pytest.param("after-snapshot", "sessions", 5, HASHMAP, True, marks=slow),
    ],
)
def test_a_failure_does_not_change_what_is_late(
    spark: SparkSession,
    tmp_path: Path,
    injected: Faults,
    monkeypatch: pytest.MonkeyPatch,
    point: str,
    uid: str,
    epoch: int,
    backend: str,
    relayed: bool,
) -> None:
    # A pause between two epochs changes it behind a second exchange; here there is none.
    monkeypatch.setattr(idle_epochs, "QUIET", TIMEOUT)
    undisturbed = LateJob(tmp_path / "undisturbed", relayed=relayed)
    undisturbed.run(spark, backend)
    expected = undisturbed.written()
    assert all(expected.values())
    fault = {"point": point, "action": "kill", "epoch": epoch, "uid": uid}
    [struck] = injected.plan(tmp_path, fault)
    job = LateJob(tmp_path / "killed", relayed=relayed)
    statistics = job.run(spark, backend)
    assert struck.exists()
    assert statistics.restarts == 1
    assert job.written() == expected


class Rescaled:
    """Windows in a job that is started again and again under one id."""

    def __init__(self, spark: SparkSession, place: Path, backend: str) -> None:
        self._spark = spark
        self._place = place
        self._backend = backend
        self._drop = Drop(spark, place / "in", ELEMENTS)
        self.sums, self.sessions = Ledger(), Ledger()
        self.elements: list[Element] = []

    def run(self, parallelism: int, elements: Iterable[Element]) -> None:
        """Process more on so many subtasks."""
        env = environment(
            self._spark,
            self._place / "chk",
            backend=self._backend,
            parallelism=parallelism,
            settings={"mode": "AT_LEAST_ONCE", **RETAIN},
        )
        env.set_job_id("windows").set_available_now()
        added = list(elements)
        rows = env.from_dataframe(self._drop.add(*added).stream()).uid("source")
        keyed = timed(rows, "1 s").uid("time").key_by("k")
        sums = keyed.window(TumblingEventTimeWindows.of(LENGTH)).reduce(add, total, SUMS)
        sums.uid("sums").foreach_batch(self.sums)
        found = keyed.window(EventTimeSessionWindows.with_dynamic_gap(gap)).process(Total(), SUMS)
        found.uid("sessions").foreach_batch(self.sessions)
        env.execute_async("rescaled").result(TIMEOUT)
        self.elements += added


@pytest.mark.parametrize("backend", [HASHMAP, pytest.param(ROCKSDB, marks=slow)])
def test_windows_go_on_with_any_number_of_subtasks(
    spark: SparkSession, tmp_path: Path, backend: str
) -> None:
    job = Rescaled(spark, tmp_path, backend)
    job.run(2, map(element, range(80)))
    assert job.sums.rows == []
    job.run(3, map(element, range(80, 160)))
    # The last one ends all windows of the others; it is in one that stays open.
    job.run(1, [*map(element, range(160, 240)), Element("end", 100_000, 0)])
    elements = [one for one in job.elements if one.k != "end"]
    assert sorted(job.sums.rows) == windows(elements, LENGTH)
    assert sorted(job.sessions.rows) == sessions(elements)


@pytest.mark.versions
def test_hourly_and_daily_counts_have_columns_of_key_and_window(
    env: StreamExecutionEnvironment,
) -> None:
    hour = 3_600_000
    rows = env.from_collection([Element(f"k{i % 2}", i * hour // 2, i) for i in range(100)])
    keyed = timed(rows).key_by("k")
    hourly = keyed.window(TumblingEventTimeWindows.of("1 hour")).count()
    assert hourly.type.columns == ("k", "window_start", "window_end", "count")
    assert "windows TumblingEventTimeWindows(3600000 ms), fired by EventTimeTrigger()" in (
        env.explain()
    )
    daily = keyed.window(TumblingEventTimeWindows.of("1 day")).count()
    counts = [
        (row.k, row.window_start.timestamp(), row.window_end.timestamp(), row.count)
        for row in hourly.union(daily).execute_and_collect()
    ]
    expected: Counter[tuple[str, float, float]] = Counter()
    for i in range(100):
        for length in (3600, 24 * 3600):
            start = i * 1800 // length * length
            expected[f"k{i % 2}", start, start + length] += 1
    assert sorted(counts) == sorted((*key, count) for key, count in expected.items())


class Both(CoGroupFunction):
    """How many elements of either stream there are in a window."""

    def co_group(self, first: Sequence[Any], second: Sequence[Any]) -> Iterator[tuple[int, int]]:
        yield len(first), len(second)


def test_two_streams_meet_in_windows(env: StreamExecutionEnvironment) -> None:
    left = timed(env.from_collection([Element("a", 10, 1), Element("b", 20, 2)]))
    right = timed(env.from_collection([Element("a", 30, 3), Element("a", 130, 4)]))
    window = TumblingEventTimeWindows.of(LENGTH)
    pairs = left.join(right).where("k").equal_to("k").window(window)
    joined = pairs.apply(lambda one, other: (one.i, other.i), "a bigint, b bigint")
    groups = left.co_group(right).where("k").equal_to("k").window(window)
    grouped = groups.apply(Both(), "a bigint, b bigint")
    assert sorted(map(tuple, joined.union(grouped).execute_and_collect())) == [
        (0, 1),
        (1, 0),
        (1, 1),
        (1, 3),
    ]


def test_a_stream_without_keys_has_windows_too_and_late_elements_come_aside(
    env: StreamExecutionEnvironment,
) -> None:
    late: OutputTag = OutputTag("late", Element)
    env.set_max_events_per_epoch(1)
    elements = [(10, 1), (20, 2), (500, 4), (550, 8), (30, 16), (600, 32)]
    rows = env.from_generator(lambda i: Element("k", *elements[i]), count=6).set_parallelism(1)
    windowed = timed(rows, "0 s").window_all(TumblingEventTimeWindows.of(LENGTH))
    sums = windowed.side_output_late_data(late).reduce(add)
    both = sums.union(sums.get_side_output(late))
    # By the element at 30 ms, two epochs have passed since the one at 500 ms.
    assert sorted(row.i for row in both.execute_and_collect()) == [3, 12, 16, 32]


@pytest.mark.parametrize("backend", [HASHMAP, pytest.param(ROCKSDB, marks=slow)])
def test_windows_by_the_clock_fire_though_no_more_data_comes(
    spark: SparkSession, tmp_path: Path, backend: str
) -> None:
    drop = Drop(spark, tmp_path / "in", ELEMENTS).add(*((f"k{i % 3}", 0, i) for i in range(9)))
    env = environment(spark, tmp_path / "chk", backend=backend, settings={"mode": "AT_LEAST_ONCE"})
    rows = env.from_dataframe(drop.stream()).uid("source").key_by("k")
    told = Ledger()
    counts = rows.window(TumblingProcessingTimeWindows.of("1 s")).count()
    counts.uid("counts").foreach_batch(told)
    client = env.execute_async("clock")
    wait_for(lambda: sum(row[-1] for row in told.rows) == 9, "all windows")
    client.cancel()
    assert {row[0] for row in told.rows} == {"k0", "k1", "k2"}
