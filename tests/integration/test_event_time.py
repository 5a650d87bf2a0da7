"""Event time on real Spark: what is seen, when watermarks move, and what they set off."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from holdfast import (
    KeyedProcessFunction,
    OutputTag,
    RuntimeExecutionMode,
    StreamExecutionEnvironment,
    WatermarkGenerator,
    WatermarkStrategy,
)
from holdfast.api.time import MAX_WATERMARK, MIN_WATERMARK
from holdfast.errors import EventTimeError, JobExecutionError
from tests.support.recovery_jobs import Ledger
from tests.support.recovery_tools import wait_for
from tests.support.time_jobs import (
    ADDED,
    SEEN,
    WINDOW,
    Drop,
    Probe,
    Totals,
    Windows,
    windows,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from holdfast import DataStream, JobClient

ROWS = "k string, at bigint, timer bigint"
BY_AT = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("at")


class Watched:
    """A job that is fed by hand, and whose output can be waited for."""

    def __init__(self, env: StreamExecutionEnvironment, stream: DataStream) -> None:
        self.seen = Ledger()
        stream.foreach_batch(self.seen)
        self.client: JobClient = env.execute_async("watched")

    def next(self, rows: int = 1) -> list[tuple[Any, ...]]:
        """The next rows of output, having waited for them."""

        def there() -> bool:
            assert not self.client.status().is_terminal, self.client.result()
            return len(self.seen.rows) >= self.taken + rows

        wait_for(there, f"{rows} rows beyond {self.seen.rows}")
        found = self.seen.rows[self.taken : self.taken + rows]
        self.taken += rows
        return found

    taken = 0


@contextmanager
def watched(env: StreamExecutionEnvironment, stream: DataStream) -> Iterator[Watched]:
    job = Watched(env, stream)
    try:
        yield job
    finally:
        job.client.cancel()


def probed(stream: DataStream) -> DataStream:
    return stream.key_by("k").process(Probe(), SEEN).uid("probe")


# When watermarks move


@pytest.mark.versions
def test_what_an_epoch_saw_counts_before_the_rows_of_the_next(
    env: StreamExecutionEnvironment, spark: SparkSession, tmp_path: Path
) -> None:
    drop = Drop(spark, tmp_path / "in", ROWS).add(("a", 1000, None))
    rows = env.from_dataframe(drop.stream()).assign_timestamps_and_watermarks(BY_AT).uid("time")
    with watched(env, probed(rows)) as job:
        assert job.next() == [("row", "a", 1000, 1000, MIN_WATERMARK)]
        # No timer waits, so there is no epoch between that one and this.
        drop.add(("b", 5000, None), ("b", 1, None))
        assert {row[-1] for row in job.next(2)} == {999}
        wait_for(lambda: job.client.statistics().epochs == 2, "the second epoch to be counted")
        assert job.client.statistics().watermarks == {"time": 4999, "probe": 999}
        drop.add(("a", 999, None), ("b", 1000, None))
        assert {row[2]: row[-1] for row in job.next(2)} == {999: 4999, 1000: 4999}
        drop.add(("a", 6000, None))
        assert job.next() == [("row", "a", 6000, 6000, 4999)]
        wait_for(lambda: job.client.statistics().epochs == 4, "the fourth epoch to be counted")
        statistics = job.client.statistics()
        assert statistics.watermarks == {"time": 5999, "probe": 4999}
        assert statistics.operators["probe"].watermark == 4999


def test_timers_that_what_was_seen_reaches_fire_though_no_more_data_comes(
    env: StreamExecutionEnvironment, spark: SparkSession, tmp_path: Path
) -> None:
    drop = Drop(spark, tmp_path / "in", ROWS).add(("a", 1000, 999), ("b", 1000, 1000))
    rows = env.from_dataframe(drop.stream()).assign_timestamps_and_watermarks(BY_AT).uid("time")
    with watched(env, probed(rows)) as job:
        job.next(2)
        assert job.next() == [("timer", "a", 999, 999, 999)]
        first, second = (epoch for epoch, rows in sorted(job.seen._epochs.items()) if rows)
        assert second > first
        drop.add(("a", 500, 700))
        # It is late, and its timer lies in the past: it fires at the end of the same epoch.
        assert job.next(2) == [("row", "a", 500, 500, 999), ("timer", "a", 700, 700, 999)]
        assert job.seen.last_epoch == second + 1
        drop.add(("b", 1001, None))
        assert job.next() == [("row", "b", 1001, 1001, 999)]
        assert job.next() == [("timer", "b", 1000, 1000, 1000)]


def test_the_bound_is_how_far_elements_may_lag(
    env: StreamExecutionEnvironment, spark: SparkSession, tmp_path: Path
) -> None:
    strategy = WatermarkStrategy.for_bounded_out_of_orderness("2 s").with_timestamp_assigner("at")
    drop = Drop(spark, tmp_path / "in", ROWS).add(("a", 5000, 2999), ("a", 4000, 3000))
    rows = env.from_dataframe(drop.stream()).assign_timestamps_and_watermarks(strategy)
    with watched(env, probed(rows.uid("time"))) as job:
        job.next(2)
        assert job.next() == [("timer", "a", 2999, 2999, 2999)]


class Markers(WatermarkGenerator):
    """Emits the time of the elements of the key "mark"."""

    def on_event(self, value: Any, timestamp: int, output: Any) -> None:
        if value.k == "mark":
            output.emit_watermark(timestamp)


@pytest.mark.parametrize("by", ["column", "generator"])
def test_elements_carry_watermarks(
    env: StreamExecutionEnvironment, spark: SparkSession, tmp_path: Path, by: str
) -> None:
    strategies = {
        "column": WatermarkStrategy.punctuated("mark"),
        "generator": WatermarkStrategy.for_generator(Markers),
    }
    drop = Drop(spark, tmp_path / "in", f"{ROWS}, mark bigint")
    drop.add(("a", 5000, 2000, None), ("mark", 2000, None, 2000))
    strategy = strategies[by].with_timestamp_assigner("at")
    rows = env.from_dataframe(drop.stream()).assign_timestamps_and_watermarks(strategy)
    stream = probed(rows.uid("time"))
    assert f"watermarks from {'mark' if by == 'column' else 'a generator'}" in env.explain()
    with watched(env, stream) as job:
        assert {row[-1] for row in job.next(2)} == {MIN_WATERMARK}
        assert job.next() == [("timer", "a", 2000, 2000, 2000)]
        drop.add(("a", 9000, None, None))
        assert job.next() == [("row", "a", 9000, 9000, 2000)]
        drop.add(("a", 9001, None, None))
        assert job.next() == [("row", "a", 9001, 9001, 2000)], "no element says more"


# Several sources


def two_sources(
    env: StreamExecutionEnvironment, spark: SparkSession, place: Path, *strategies: Any
) -> tuple[Drop, Drop, DataStream]:
    drops, streams = [], []
    for name, strategy in zip("ab", strategies, strict=True):
        drops.append(Drop(spark, place / name, ROWS))
        stream = env.from_dataframe(drops[-1].stream()).uid(name)
        if strategy is not None:
            stream = stream.assign_timestamps_and_watermarks(strategy).uid(f"time-{name}")
        streams.append(stream)
    return drops[0], drops[1], probed(streams[0].union(streams[1]))


@pytest.mark.versions
def test_the_watermark_of_two_sources_is_the_lesser(
    env: StreamExecutionEnvironment, spark: SparkSession, tmp_path: Path
) -> None:
    a, b, probe = two_sources(env, spark, tmp_path, BY_AT, BY_AT)
    a.add(("a", 10_000, 3000))
    with watched(env, probe) as job:
        assert job.next() == [("row", "a", 10_000, 10_000, MIN_WATERMARK)]
        # Nothing has come from the other one yet.
        a.add(("a", 10_001, None))
        assert job.next() == [("row", "a", 10_001, 10_001, MIN_WATERMARK)]
        b.add(("b", 5000, None))
        assert job.next() == [("row", "b", 5000, 5000, MIN_WATERMARK)]
        assert job.next() == [("timer", "a", 3000, 3000, 4999)]
        expected = {"time-a": 10_000, "time-b": 4999, "probe": 4999}
        wait_for(lambda: job.client.statistics().watermarks == expected, f"{expected}")
        b.add(("b", 20_000, 10_000))
        assert job.next() == [("row", "b", 20_000, 20_000, 4999)]
        assert job.next() == [("timer", "b", 10_000, 10_000, 10_000)]


def test_a_source_that_is_idle_holds_nothing_back(
    env: StreamExecutionEnvironment, spark: SparkSession, tmp_path: Path
) -> None:
    a, b, probe = two_sources(env, spark, tmp_path, BY_AT, BY_AT.with_idleness("1 s"))
    b.add(("b", 100, None))
    with watched(env, probe) as job:
        job.next()
        a.add(("a", 10_000, 5000))
        assert job.next()[0][0] == "row"
        # Without more data: the clock alone makes the other one idle.
        assert job.next() == [("timer", "a", 5000, 5000, 9999)]
        b.add(("b", 200, 200))
        # It holds again, and yet the watermark does not go back.
        assert job.next(2) == [("row", "b", 200, 200, 9999), ("timer", "b", 200, 200, 9999)]
        assert job.client.statistics().watermarks["probe"] == 9999


def test_where_all_sources_are_idle_the_furthest_counts(
    env: StreamExecutionEnvironment, spark: SparkSession, tmp_path: Path
) -> None:
    idle = BY_AT.with_idleness("1 s")
    a, b, probe = two_sources(env, spark, tmp_path, idle, idle)
    a.add(("a", 10_000, 9000))
    b.add(("b", 100, None))
    with watched(env, probe) as job:
        job.next(2)
        assert job.next() == [("timer", "a", 9000, 9000, 9999)]


def test_an_input_without_watermarks_holds_them_until_the_end(
    env: StreamExecutionEnvironment,
) -> None:
    env.set_max_events_per_epoch(1)
    timed = env.from_collection([("a", 1000 * n, 500 * n) for n in range(3)], ROWS)
    timed = timed.assign_timestamps_and_watermarks(BY_AT).uid("time")
    other = env.from_collection([("b", n, None) for n in range(3)], ROWS)
    seen = list(probed(timed.union(other)).execute_and_collect())
    assert {row.watermark for row in seen if row.what == "row"} == {MIN_WATERMARK}
    timers = [(row.at, row.watermark) for row in seen if row.what == "timer"]
    assert sorted(timers) == [(n, MAX_WATERMARK) for n in (0, 500, 1000)]
    assert [row.time for row in seen if row.k == "b"] == [None] * 3


def test_a_strategy_without_watermarks_gives_times_alone(env: StreamExecutionEnvironment) -> None:
    env.set_max_events_per_epoch(1)
    strategy = WatermarkStrategy.no_watermarks().with_timestamp_assigner("at")
    rows = env.from_collection([("a", n, n) for n in (3, 1, 2)], ROWS)
    seen = list(probed(rows.assign_timestamps_and_watermarks(strategy)).execute_and_collect())
    assert {(r.time, r.watermark) for r in seen if r.what == "row"} == {
        (n, MIN_WATERMARK) for n in (1, 2, 3)
    }
    assert [r.at for r in seen if r.what == "timer"] == [1, 2, 3]


# The end


class Both(KeyedProcessFunction):
    """Sets a timer in each domain, both far away, and others when these fire."""

    def process_element(self, value: Any, ctx: Any) -> Iterator[tuple[str, int]]:
        timers = ctx.timer_service()
        timers.register_event_time_timer(value.at + 10**15)
        # At another time for every element, even those of one millisecond.
        now = timers.current_processing_time()
        timers.register_processing_time_timer(now + 10**9 + 10**6 * value.at)
        yield "row", timers.current_watermark()

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[tuple[str, int]]:
        timers = ctx.timer_service()
        # The first is due at once; the second lies in the future for good.
        if timestamp < 10**16:
            timers.register_event_time_timer(10**16 + 1)
            timers.register_processing_time_timer(timers.current_processing_time() + 10**9)
        yield ctx.time_domain().value, timers.current_watermark()


@pytest.mark.parametrize("mode", [RuntimeExecutionMode.STREAMING, RuntimeExecutionMode.BATCH])
def test_a_job_that_ends_fires_everything(
    env: StreamExecutionEnvironment, mode: RuntimeExecutionMode
) -> None:
    env.set_max_events_per_epoch(2).set_runtime_mode(mode)
    rows = env.from_collection([("kl"[n % 2], n, None) for n in range(6)], ROWS)
    rows = rows.assign_timestamps_and_watermarks(BY_AT).uid("time")
    seen = list(rows.key_by("k").process(Both(), "what string, mark bigint").execute_and_collect())
    assert sum(row.what == "row" for row in seen) == 6
    assert MAX_WATERMARK not in {row.mark for row in seen if row.what == "row"}
    event = [row.mark for row in seen if row.what == "event time"]
    # One for every element, and one more for each of two keys.
    assert event == [MAX_WATERMARK] * 8
    clock = [row.mark for row in seen if row.what == "processing time"]
    assert len(clock) == 6


def test_available_now_does_not_end_time(
    env: StreamExecutionEnvironment, spark: SparkSession, tmp_path: Path
) -> None:
    env.set_available_now()
    drop = Drop(spark, tmp_path / "in", ROWS).add(("a", 1000, 1000))
    rows = env.from_dataframe(drop.stream()).assign_timestamps_and_watermarks(BY_AT).uid("time")
    seen = list(probed(rows).execute_and_collect())
    assert [row.what for row in seen] == ["row"]


def test_available_now_fires_what_its_last_epoch_has_reached(
    env: StreamExecutionEnvironment, spark: SparkSession, tmp_path: Path
) -> None:
    env.set_available_now()
    drop = Drop(spark, tmp_path / "in", ROWS).add(("a", 1000, 500), ("b", 900, 1000))
    rows = env.from_dataframe(drop.stream()).assign_timestamps_and_watermarks(BY_AT).uid("time")
    seen = list(probed(rows).execute_and_collect())
    assert [(row.k, row.at) for row in seen if row.what == "timer"] == [("a", 500)]


# Order


class Arrivals(KeyedProcessFunction):
    """Gives out elements, numbered as they come."""

    def open(self, ctx: Any) -> None:
        self.number = 0

    def process_element(self, value: Any, ctx: Any) -> Iterator[tuple[int, int]]:
        self.number += 1
        yield self.number, value.at


@pytest.mark.parametrize("order", [None, (), ("at",), ("timer", "at")], ids=str)
def test_files_of_one_batch_are_read_in_order_where_that_is_asked_for(
    env: StreamExecutionEnvironment, spark: SparkSession, tmp_path: Path, order: Any
) -> None:
    env.set_available_now()
    drop = Drop(spark, tmp_path / "in", ROWS)
    # Spark packs the largest files first: the last one is read before the others.
    for file, count in enumerate((5, 10, 20, 40)):
        drop.add(*(("a", 1000 * file + i, i % 2) for i in range(count)))
    rows = env.from_dataframe(drop.stream(per_epoch=4)).assign_timestamps_and_watermarks(BY_AT)
    keyed = rows.key_by("k")
    keyed = keyed if order is None else keyed.order_by(*order)
    result = keyed.process(Arrivals(), "n bigint, at bigint").execute_and_collect()
    came = [row.at for row in sorted(result)]
    there = [1000 * file + i for file, n in enumerate((5, 10, 20, 40)) for i in range(n)]
    assert sorted(came) == there
    if order is None:
        assert came != there
    elif order == ("timer", "at"):
        assert came == sorted(there, key=lambda at: (at % 1000 % 2, at))
    else:
        assert came == there


# Where timestamps come from

TIMES = {
    "long": "unix_millis(t)",
    "int": "cast(floor(unix_millis(t) / 100000) as int)",
    "timestamp": "t",
    "timestamp_ntz": "cast(t as timestamp_ntz)",
    "date": "cast(t as date)",
}
MOMENTS = [
    "2026-11-15T04:30:00.123456Z",
    "2026-11-15T04:30:00.123999+05:30",
    "2026-03-29T01:30:00+01:00",
    "1969-12-31T23:59:59.9995Z",
    "1900-01-01T00:00:00Z",
]


@pytest.fixture
def elsewhere(spark: SparkSession) -> Iterator[None]:
    """A session whose time zone has summer time and is not that of the machine."""
    before = str(spark.conf.get("spark.sql.session.timeZone"))
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    yield
    spark.conf.set("spark.sql.session.timeZone", before)


@pytest.mark.versions
@pytest.mark.usefixtures("elsewhere")
def test_the_jvm_and_python_read_the_same_time_from_a_column(
    env: StreamExecutionEnvironment, spark: SparkSession
) -> None:
    moments = spark.createDataFrame([(n, m) for n, m in enumerate(MOMENTS)], "n int, m string")
    moments = moments.selectExpr("n", "cast(m as timestamp) as t")
    found = Ledger()
    for kind, expression in TIMES.items():
        frame = moments.selectExpr("n", f"{expression} as at")
        by_column = WatermarkStrategy.no_watermarks().with_timestamp_assigner("at")
        for how in ("jvm", "rows", "elements"):
            stream = env.from_dataframe(frame)
            if how == "elements":
                stream = stream.filter(lambda row: row.at is not None)
            stream = stream.assign_timestamps_and_watermarks(by_column)
            # What the JVM cannot route is given its time in Python, a batch at a time.
            keyed = stream.key_by("n") if how == "jvm" else stream.key_by(lambda row: row.n)
            told = keyed.process(Stamp(kind, how), "kind string, how string, n int, time bigint")
            told.foreach_batch(Gathered(found))
    env.execute("times")
    times = {(kind, how, n): at for kind, how, n, at in found.rows}
    assert len(times) == len(TIMES) * 3 * len(MOMENTS)
    truth = [row.at for row in moments.selectExpr("n", "unix_millis(t) as at").sort("n").collect()]
    day = moments.selectExpr("n", "86400000L * unix_date(cast(t as date)) as at").sort("n")
    days = [row.at for row in day.collect()]
    for n, at in enumerate(truth):
        for how in ("jvm", "rows", "elements"):
            assert times["long", how, n] == times["timestamp", how, n] == at, (how, n)
            assert times["date", how, n] == days[n]
            assert times["int", how, n] == at // 100_000
        assert len({times["timestamp_ntz", how, n] for how in ("jvm", "rows", "elements")}) == 1


class Stamp(KeyedProcessFunction):
    """Gives out the event time of every element."""

    def __init__(self, kind: str, how: str) -> None:
        self.kind, self.how = kind, how

    def process_element(self, value: Any, ctx: Any) -> Iterator[tuple[Any, ...]]:
        yield self.kind, self.how, value.n, ctx.timestamp()


class Gathered:
    """Several outputs of a job of one epoch in one ledger."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def __call__(self, df: DataFrame, epoch: int) -> None:
        self._ledger._epochs.setdefault(epoch, []).extend(tuple(row) for row in df.collect())


def no_time(row: Any, before: int | None) -> Any:
    return row.at


@pytest.mark.parametrize("how", ["jvm", "rows", "elements", "function"])
def test_a_row_without_event_time_is_refused_with_the_row(
    env: StreamExecutionEnvironment, spark: SparkSession, how: str
) -> None:
    frame = spark.createDataFrame([("a", 1, None), ("lost", None, None)], ROWS)
    stream = env.from_dataframe(frame)
    if how == "elements":
        stream = stream.filter(lambda row: row.k is not None)
    strategy = WatermarkStrategy.for_monotonous_timestamps()
    strategy = strategy.with_timestamp_assigner(no_time if how == "function" else "at")
    stream = stream.assign_timestamps_and_watermarks(strategy).uid("time")
    keyed = stream.key_by("k") if how == "jvm" else stream.key_by(lambda row: row.k)
    keyed.process(Probe(), SEEN).uid("probe").print()
    with pytest.raises(JobExecutionError) as caught:
        env.execute("no time")
    cause = caught.value.__cause__
    assert isinstance(cause, EventTimeError), cause
    assert "'time'" in str(cause)
    assert "lost" in str(cause)


# Timers that feed timers

FIRST = OutputTag("first", ADDED)


class Copied(Windows):
    """The same, with a copy of every result in a side output."""

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        for result in super().on_timer(timestamp, ctx):
            yield result
            yield FIRST, result


def test_timers_feed_an_operator_with_timers_within_one_epoch(
    env: StreamExecutionEnvironment, spark: SparkSession, tmp_path: Path
) -> None:
    drop = Drop(spark, tmp_path / "in", "k string, at bigint, i bigint")
    elements = [(f"k{i % 3}", 7 * i, i) for i in range(100)]
    drop.add(*elements)
    rows = env.from_dataframe(drop.stream()).assign_timestamps_and_watermarks(BY_AT).uid("time")
    sums = rows.key_by("k").process(Copied(), ADDED).uid("sums")
    totals = sums.key_by("k").process(Totals(), ADDED).uid("totals")
    first = Ledger()
    sums.get_side_output(FIRST).foreach_batch(first)
    # The last element happens at 693 ms, so that windows up to 600 ms are complete.
    with watched(env, totals) as job:
        results = job.next(9)
        assert sorted(results) == [w for w in windows(elements, 2 * WINDOW) if w[1] <= 600]
        assert sorted(first.rows) == [w for w in windows(elements) if w[1] <= 600]
        # All of it in the one epoch without input that follows the first.
        told = [{e for e, rows in ledger._epochs.items() if rows} for ledger in (first, job.seen)]
        assert told == [{2}, {2}]
        drop.add(("k0", 1000, 0))
        assert sorted(job.next(3)) == [w for w in windows(elements, 2 * WINDOW) if w[1] > 600]
