"""Broadcast and connected streams on real Spark: one order everywhere, and nothing twice."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow.dataset as ds
import pytest
from pyspark import cloudpickle

from holdfast import (
    BroadcastProcessFunction,
    CoFlatMapFunction,
    CoMapFunction,
    CoProcessFunction,
    FileSink,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    ReplayableSource,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from holdfast.errors import JobExecutionError
from holdfast.spark.session import QUERY_SETTINGS
from tests.support.recovery_jobs import HASHMAP, ROCKSDB, TIMEOUT, Ledger
from tests.support.recovery_tools import Faults, figures, wait_for
from tests.support.time_jobs import RETAIN, Drop, environment

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from holdfast import DataStream, JobClient
    from holdfast.statistics import JobStatistics

# Workers cannot import this module, and need its sources.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

RULES = MapStateDescriptor("rules", str, int)
COUNT = ValueStateDescriptor("count", int)
JOURNAL = "subtask bigint, n bigint, what string, value bigint"
EPOCH = 12
"""Elements of each source in an epoch."""
slow = pytest.mark.slow
pytestmark = pytest.mark.usefixtures("no_faults")


class Rule(NamedTuple):
    """An element of the control stream."""

    name: str
    value: int


class Datum(NamedTuple):
    """An element of the data stream."""

    k: str
    i: int


def rule(i: int) -> Rule:
    return Rule(f"r{i}", i)


def other_rule(i: int) -> Rule:
    return Rule(f"other{i}", 100 + i)


def datum(i: int) -> Datum:
    return Datum(f"k{i % 10}", i)


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows reach functions one by one, in the order in which Spark hands them over.

    Within a batch what is broadcast comes first anyway, and with little data there is but one.
    """
    monkeypatch.setitem(QUERY_SETTINGS, "spark.sql.execution.arrow.maxRecordsPerBatch", "1")


# What subtasks see


class Journal:
    """What a subtask was handed in an epoch, in order."""

    def open(self, ctx: Any) -> None:
        self.subtask = ctx.get_index_of_this_subtask()
        self.number = 0

    def process_element(self, value: Any, ctx: Any) -> Iterator[tuple[int, int, str, int]]:
        self.number += 1
        rules = sum(1 for _ in ctx.get_broadcast_state(RULES))
        yield self.subtask, self.number, "data", rules

    def process_broadcast_element(
        self, value: Any, ctx: Any
    ) -> Iterator[tuple[int, int, str, int]]:
        self.number += 1
        ctx.get_broadcast_state(RULES).put(value.name, value.value)
        yield self.subtask, self.number, "rule", value.value


class KeyedJournal(Journal, KeyedBroadcastProcessFunction):
    """The same on a keyed stream."""


class PlainJournal(Journal, BroadcastProcessFunction):
    """The same on a stream without keys."""


class PassOn(KeyedProcessFunction):
    """Gives out what it is given."""

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield value


@pytest.mark.versions
@pytest.mark.parametrize(
    ("control", "keyed"),
    [
        ("source", True),
        ("operator", True),
        ("source", False),
        pytest.param("operator", False, marks=slow),
    ],
)
@pytest.mark.usefixtures("small_batches")
def test_all_subtasks_see_what_is_broadcast_in_one_order_and_before_the_data(
    spark: SparkSession, control: str, keyed: bool
) -> None:
    env = environment(spark, parallelism=3).set_max_events_per_epoch(EPOCH)
    # First, so that its rows would come first if nothing else saw to the order.
    data = env.from_generator(datum, count=4 * EPOCH)
    rules = env.from_generator(rule, count=3 * EPOCH)
    if control == "operator":
        rules = rules.key_by("name").process(PassOn(), Rule).uid("pass").set_parallelism(2)
    broadcast = rules.broadcast(RULES)
    told = Ledger()
    stream = (
        data.key_by("k").connect(broadcast).process(KeyedJournal(), JOURNAL)
        if keyed
        else data.rebalance().connect(broadcast).process(PlainJournal(), JOURNAL)
    )
    stream.uid("journal").foreach_batch(told)
    env.execute("journal")
    assert sorted(told._epochs) == [1, 2, 3, 4]
    for epoch, rows in told._epochs.items():
        by_subtask: dict[int, list[tuple[Any, ...]]] = defaultdict(list)
        for subtask, *entry in sorted(rows):
            by_subtask[subtask].append(tuple(entry[1:]))
        orders = {
            tuple(value for kind, value in entries if kind == "rule")
            for entries in by_subtask.values()
        }
        if epoch <= 3:
            assert set(by_subtask) == {0, 1, 2}
            [order] = orders
            assert sorted(order) == list(range(EPOCH * (epoch - 1), EPOCH * epoch))
        for entries in by_subtask.values():
            kinds = [kind for kind, _ in entries]
            assert kinds == sorted(kinds, reverse=True), "a rule came after data"
        known = {
            value for entries in by_subtask.values() for kind, value in entries if kind[0] == "d"
        }
        assert known == {EPOCH * min(epoch, 3)}
        assert sum(kind == "data" for e in by_subtask.values() for kind, _ in e) == EPOCH


@pytest.mark.usefixtures("small_batches")
def test_all_subtasks_see_one_order_of_what_a_source_and_an_operator_broadcast(
    spark: SparkSession,
) -> None:
    env = environment(spark, parallelism=3)
    rules = env.from_generator(rule, count=EPOCH)
    others = env.from_generator(other_rule, count=EPOCH)
    others = others.key_by("name").process(PassOn(), Rule).uid("pass")
    data = env.from_generator(datum, count=EPOCH).key_by("k")
    told = Ledger()
    both = rules.union(others).broadcast(RULES)
    data.connect(both).process(KeyedJournal(), JOURNAL).uid("journal").foreach_batch(told)
    env.execute("journal")
    orders: dict[int, list[int]] = defaultdict(list)
    for subtask, _, what, value in sorted(told.rows):
        if what == "rule":
            orders[subtask].append(value)
    assert sorted(orders[0]) == [*range(EPOCH), *range(100, 100 + EPOCH)]
    assert orders[0] == orders[1] == orders[2]


class Doubling(KeyedBroadcastProcessFunction):
    """Counts elements; what is broadcast is added to the counts of all keys."""

    def open(self, ctx: Any) -> None:
        self.count = ctx.get_state(COUNT)

    def process_element(self, value: Any, ctx: Any) -> Iterator[tuple[str, str, int]]:
        self.count.update((self.count.value() or 0) + 1)
        yield "data", value.k, self.count.value()

    def process_broadcast_element(self, value: Any, ctx: Any) -> Iterator[tuple[str, str, int]]:
        found: list[tuple[str, str, int]] = []

        def change(key: str, state: Any) -> None:
            found.append(("rule", key, state.value()))
            state.update(state.value() + value.value)

        ctx.apply_to_keyed_state(COUNT, change)
        yield from found


@pytest.mark.parametrize("backend", [HASHMAP, pytest.param(ROCKSDB, marks=slow)])
def test_what_is_broadcast_reaches_the_state_of_every_key_once(
    spark: SparkSession, tmp_path: Path, backend: str
) -> None:
    env = environment(spark, backend=backend, parallelism=3)
    data = Drop(spark, tmp_path / "data", "k string, i bigint")
    rules = Drop(spark, tmp_path / "rules", "name string, value bigint")
    keyed = env.from_dataframe(data.stream()).key_by("k")
    control = env.from_dataframe(rules.stream()).broadcast(RULES)
    told = Ledger()
    keyed.connect(control).process(Doubling(), "w string, k string, n bigint").foreach_batch(told)
    keys = [f"k{i}" for i in range(20)]
    data.add(*((key, 0) for key in keys))
    client = env.execute_async("doubling")
    wait_for(lambda: len(told.rows) == 20, "the data")
    rules.add(("a", 10), ("b", 100))
    wait_for(lambda: len(told.rows) == 60, "the rules")
    data.add(*((key, 0) for key in keys))
    wait_for(lambda: len(told.rows) == 80, "more data")
    client.cancel()
    by_kind = Counter((what, n) for what, _, n in told.rows)
    assert by_kind == {("data", 1): 20, ("rule", 1): 20, ("rule", 11): 20, ("data", 112): 20}
    assert Counter(k for _, k, _ in told.rows) == dict.fromkeys(keys, 4)


# No second pass


class Counted(ReplayableSource):
    """Numbers, in two ranges an epoch, which notes what was read."""

    bounded = True

    def __init__(self, log: Path, count: int) -> None:
        self.log = log
        self.count = count

    def initial_offset(self) -> int:
        return 0

    def latest_offset(self, start: int) -> int:
        return min(self.count, start + 50)

    def partitions(self, start: int, end: int) -> list[tuple[int, int]]:
        middle = (start + end) // 2
        return [(start, middle), (middle, end)]

    def read(self, start: int, end: int) -> Iterator[Datum]:
        for i in range(start, end):
            with self.log.open("a", encoding="utf-8") as log:
                log.write(f"{i}\n")
            yield datum(i)


@pytest.mark.parametrize("mode", [pytest.param("AT_LEAST_ONCE", marks=slow), "EXACTLY_ONCE"])
def test_a_control_stream_costs_no_second_pass_over_the_data(
    spark: SparkSession, tmp_path: Path, mode: str
) -> None:
    env = environment(spark, tmp_path / "chk", settings={"mode": mode})
    source = Counted(tmp_path / "log", count=200)
    data = env.add_source(source).uid("data")
    rules = env.from_generator(rule, count=5).uid("rules")
    ruled = data.key_by("k").connect(rules.broadcast(RULES)).process(KeyedJournal(), JOURNAL)
    told, again = Ledger(), Ledger()
    ruled.uid("journal").foreach_batch(told)
    ruled.key_by("subtask").process(PassOn(), JOURNAL).uid("pass").foreach_batch(again)
    env.execute("counted")
    read = Counter(map(int, source.log.read_text().split()))
    assert read == dict.fromkeys(range(200), 1)
    assert sum(row[2] == "data" for row in told.rows) == 200
    assert sorted(told.rows) == sorted(again.rows)


# Through failures, and on other subtasks


class Accident(NamedTuple):
    """Kills the process once, when a certain element arrives."""

    what: str
    at: int
    marker: str

    def strike(self, what: str, at: int) -> None:
        if (what, at) == (self.what, self.at) and not os.path.exists(self.marker):
            Path(self.marker).touch()
            os.kill(os.getpid(), signal.SIGKILL)


class Ruled(KeyedBroadcastProcessFunction):
    """Counts every key's elements; gives out the rules each was met by, as count and sum."""

    def __init__(self, accident: Accident | None = None, seconds: float = 0) -> None:
        self.accident = accident
        self.seconds = seconds

    def open(self, ctx: Any) -> None:
        self.subtask = ctx.get_index_of_this_subtask()
        self.count = ctx.get_state(COUNT)

    def process_element(self, value: Any, ctx: Any) -> Iterator[tuple[str, int, int, int, int]]:
        if self.accident is not None:
            self.accident.strike("data", value.i)
        if self.seconds:
            time.sleep(self.seconds)
        self.count.update((self.count.value() or 0) + 1)
        rules = list(ctx.get_broadcast_state(RULES).values())
        yield value.k, value.i, self.count.value(), len(rules), sum(rules)

    def process_broadcast_element(self, value: Any, ctx: Any) -> None:
        if self.accident is not None and self.subtask == 0:
            self.accident.strike("rule", value.value)
        rules = ctx.get_broadcast_state(RULES)
        # Read and written: met twice, or never, it would show.
        rules.put(value.name, (rules.get(value.name) or 0) + value.value)


RULED = "k string, i bigint, n bigint, rules bigint, total bigint"


class RuledJob:
    """Elements that meet the rules of their epoch and of all before, into files."""

    def __init__(
        self, place: Path, epochs: int = 5, settings: dict[str, Any] | None = None
    ) -> None:
        self.place = place
        self.count = epochs * EPOCH
        self.settings = {"asynchronous": "false", **(settings or {})}

    def run(self, spark: SparkSession, backend: str, function: Ruled) -> JobStatistics:
        place = self.place / "chk"
        env = environment(spark, place, backend=backend, parallelism=3, settings=self.settings)
        env.set_max_events_per_epoch(EPOCH)
        data = env.from_generator(datum, count=self.count).set_parallelism(1).uid("data")
        rules = env.from_generator(rule, count=self.count).uid("rules").broadcast(RULES)
        ruled = data.key_by("k").connect(rules).process(function, RULED).uid("ruled")
        ruled.sink_to(FileSink(self.place / "files", "parquet")).uid("files")
        return env.execute_async("ruled").result(TIMEOUT).statistics

    def check(self) -> None:
        written = ds.dataset(self.place / "files").to_table().to_pylist()
        expected = []
        for i in range(self.count):
            known = EPOCH * (i // EPOCH + 1)
            expected.append((f"k{i % 10}", i, i // 10 + 1, known, sum(range(known))))
        assert sorted(tuple(row.values()) for row in written) == sorted(expected)


ACCIDENTS = {
    "before the data": ("data", 2 * EPOCH),
    "among the data": ("data", 2 * EPOCH + 7),
    "among the rules": ("rule", 2 * EPOCH + 5),
}


@pytest.mark.parametrize(
    ("accident", "backend"),
    [
        ("before the data", HASHMAP),
        ("among the rules", ROCKSDB),
        pytest.param("among the data", HASHMAP, marks=slow),
        pytest.param("before the data", ROCKSDB, marks=slow),
        pytest.param("among the rules", HASHMAP, marks=slow),
    ],
)
def test_a_worker_killed_between_rules_and_data_costs_nothing_but_time(
    spark: SparkSession, tmp_path: Path, accident: str, backend: str
) -> None:
    job = RuledJob(tmp_path)
    marker = tmp_path / "struck"
    statistics = job.run(spark, backend, Ruled(Accident(*ACCIDENTS[accident], str(marker))))
    assert marker.exists()
    assert statistics.restarts == 1
    job.check()


@pytest.mark.parametrize(
    ("point", "backend"),
    [
        ("after-commit", HASHMAP),
        ("after-snapshot", ROCKSDB),
        pytest.param("before-commit", HASHMAP, marks=slow),
        pytest.param("after-commit", ROCKSDB, marks=slow),
        pytest.param("after-snapshot", HASHMAP, marks=slow),
    ],
)
def test_a_worker_killed_when_some_copies_are_written_costs_nothing_but_time(
    spark: SparkSession, tmp_path: Path, injected: Faults, point: str, backend: str
) -> None:
    # Of three subtasks on two cores, the last starts when another has ended.
    fault = {"point": point, "action": "kill", "epoch": 3, "uid": "ruled", "subtask": 2}
    [struck] = injected.plan(tmp_path, fault)
    job = RuledJob(tmp_path)
    statistics = job.run(spark, backend, Ruled())
    assert struck.exists()
    assert statistics.restarts == 1
    job.check()


@pytest.mark.parametrize("backend", [HASHMAP, pytest.param(ROCKSDB, marks=slow)])
def test_elements_that_a_cut_leaves_over_meet_the_rules_of_their_epoch(
    spark: SparkSession, tmp_path: Path, backend: str
) -> None:
    settings = {"unaligned.enabled": "true", "interval": "20 ms"}
    job = RuledJob(tmp_path, epochs=3, settings=settings)
    statistics = job.run(spark, backend, Ruled(seconds=0.03))
    assert statistics.checkpoints
    assert any(one.persisted_size for one in statistics.checkpoints.history)
    job.check()


class Copies:
    """A job that is started again and again under one id, on other subtasks."""

    def __init__(self, spark: SparkSession, place: Path, backend: str) -> None:
        self._spark = spark
        self._place = place
        self._backend = backend
        self._data = Drop(spark, place / "data", "k string, i bigint")
        self._rules = Drop(spark, place / "rules", "name string, value bigint")
        self._elements = 0

    def run(self, parallelism: int, *rules: tuple[str, int]) -> set[tuple[int, int]]:
        """What elements found after these rules were added; from all subtasks, as asserted."""
        settings = {"mode": "AT_LEAST_ONCE", **RETAIN}
        place = self._place / "chk"
        env = environment(
            self._spark, place, backend=self._backend, parallelism=parallelism, settings=settings
        ).set_job_id("copies")
        told = Ledger()
        data = env.from_dataframe(self._data.stream()).uid("data").key_by("k")
        control = env.from_dataframe(self._rules.stream()).uid("rules").broadcast(RULES)
        ruled = data.connect(control).process(Placed(), f"{RULED}, subtask bigint").uid("ruled")
        ruled.foreach_batch(told)
        client = env.execute_async("copies")
        if rules:
            self._rules.add(*rules)
            wait_for(lambda: self._read(client, len(rules)), "the rules")
        self._data.add(*((f"k{i}", i) for i in range(40)))
        wait_for(lambda: len(told.rows) == 40, "the data")
        self._wait_for_checkpoint(client, told.last_epoch)
        client.cancel()
        assert {row[-1] for row in told.rows} == set(range(parallelism))
        self._elements += 1
        assert {row[2] for row in told.rows} == {self._elements}
        return {row[3:5] for row in told.rows}

    def _read(self, client: JobClient, rules: int) -> bool:
        assert not client.status().is_terminal, client.result()
        return client.statistics().operators["ruled"].records_in > 0

    def _wait_for_checkpoint(self, client: JobClient, epoch: int) -> None:
        def held() -> bool:
            newest = figures(client).latest_completed
            return newest is not None and (newest.epoch or 0) >= epoch

        wait_for(held, f"a checkpoint of epoch {epoch}")


class Placed(Ruled):
    """The same, with the subtask."""

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        for row in super().process_element(value, ctx):
            yield (*row, self.subtask)


@pytest.mark.parametrize("backend", [pytest.param(HASHMAP, marks=slow), ROCKSDB])
def test_every_subtask_has_a_copy_however_many_there_are(
    spark: SparkSession, tmp_path: Path, backend: str
) -> None:
    job = Copies(spark, tmp_path, backend)
    assert job.run(2, ("a", 1), ("b", 10)) == {(2, 11)}
    # More subtasks, without a rule that could tell the new ones anything.
    assert job.run(4) == {(2, 11)}
    assert job.run(1, ("c", 100)) == {(3, 111)}
    assert job.run(3, ("a", 1000)) == {(3, 1111)}


def test_rules_that_change_the_data_side_are_refused(spark: SparkSession) -> None:
    class Meddling(Ruled):
        def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
            ctx.get_broadcast_state(RULES).put("mine", 1)
            yield value

    env = environment(spark, restarts=0)
    rules = env.from_generator(rule, count=2).broadcast(RULES)
    data = env.from_generator(datum, count=2).key_by("k")
    data.connect(rules).process(Meddling(), RULED).uid("ruled").print()
    with pytest.raises(JobExecutionError, match="has no attribute 'put'"):
        env.execute("meddling")


# Time


class Waiting(KeyedBroadcastProcessFunction):
    """Gives out in a timer what the rules are by then."""

    def process_element(self, value: Any, ctx: Any) -> None:
        ctx.timer_service().register_event_time_timer(value.i)

    def process_broadcast_element(self, value: Any, ctx: Any) -> None:
        ctx.get_broadcast_state(RULES).put(value.name, value.value)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[tuple[str, int, int]]:
        rules = sorted(ctx.get_broadcast_state(RULES).values())
        yield ctx.get_current_key(), timestamp, max(rules, default=-1)


def test_a_control_stream_without_event_time_does_not_hold_timers_back(
    spark: SparkSession, tmp_path: Path
) -> None:
    env = environment(spark)
    data = Drop(spark, tmp_path / "data", "k string, i bigint").add(("a", 5), ("b", 100))
    rules = Drop(spark, tmp_path / "rules", "name string, value bigint")
    by_i = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("i")
    keyed = env.from_dataframe(data.stream()).assign_timestamps_and_watermarks(by_i).key_by("k")
    control = env.from_dataframe(rules.stream()).broadcast(RULES)
    told = Ledger()
    waiting = keyed.connect(control).process(Waiting(), "k string, at bigint, rule bigint")
    waiting.foreach_batch(told)
    client = env.execute_async("waiting")
    wait_for(lambda: told.rows == [("a", 5, -1)], "the first timer")
    rules.add(("r", 7))
    data.add(("a", 200))
    wait_for(lambda: len(told.rows) == 2, "the second timer")
    client.cancel()
    assert told.rows[1][:2] == ("b", 100)


# Connected streams


class Meeting(KeyedCoProcessFunction):
    """Gives out pairs of a key's elements, from state that both sides share."""

    def open(self, ctx: Any) -> None:
        self.left = ctx.get_list_state(ListStateDescriptor("left", int))
        self.right = ctx.get_list_state(ListStateDescriptor("right", int))

    def process_element1(self, value: Any, ctx: Any) -> Iterator[tuple[str, int, int]]:
        self.left.add(value.i)
        yield from ((ctx.get_current_key(), value.i, other) for other in self.right.get())

    def process_element2(self, value: Any, ctx: Any) -> Iterator[tuple[str, int, int]]:
        self.right.add(value.value)
        yield from ((ctx.get_current_key(), other, value.value) for other in self.left.get())


def rule_key(value: Any) -> str:
    return f"k{value.value % 10}"


@pytest.mark.parametrize("backend", [pytest.param(HASHMAP, marks=slow), ROCKSDB])
def test_two_keyed_streams_share_state_through_a_failure(
    spark: SparkSession, tmp_path: Path, injected: Faults, backend: str
) -> None:
    fault = {"point": "after-commit", "action": "kill", "epoch": 3, "uid": "meeting"}
    [struck] = injected.plan(tmp_path, fault)
    env = environment(spark, tmp_path / "chk", backend=backend, parallelism=3)
    env.set_max_events_per_epoch(EPOCH)
    first = env.from_generator(datum, count=5 * EPOCH).uid("first")
    second = env.from_generator(rule, count=3 * EPOCH).uid("second")
    pairs = (
        first.connect(second)
        .key_by("k", rule_key)
        .process(Meeting(), "k string, a bigint, b bigint")
    )
    pairs.uid("meeting").sink_to(FileSink(tmp_path / "files", "parquet")).uid("files")
    statistics = env.execute_async("meeting").result(TIMEOUT).statistics
    assert struck.exists()
    assert statistics.restarts == 1
    written = ds.dataset(tmp_path / "files").to_table().to_pylist()
    assert sorted(tuple(row.values()) for row in written) == sorted(
        (f"k{a % 10}", a, b) for a in range(5 * EPOCH) for b in range(3 * EPOCH) if a % 10 == b % 10
    )


class Words(CoMapFunction):
    """Says which stream an element has come on."""

    def map1(self, value: Any) -> str:
        return f"first {value.i}"

    def map2(self, value: Any) -> str:
        return f"second {value.name}"


class Several(CoFlatMapFunction):
    """Repeats the elements of one stream, drops some of the other."""

    def open(self, ctx: Any) -> None:
        self.count = ctx.get_state(COUNT)

    def flat_map1(self, value: Any) -> Iterator[tuple[str, int]]:
        self.count.update((self.count.value() or 0) + 1)
        yield from [(value.k, value.i)] * 2

    def flat_map2(self, value: Any) -> Iterator[tuple[str, int]] | None:
        return None if value.value % 2 else iter([(value.name, value.value)])


class Sides(CoProcessFunction):
    """Says on which subtask an element has come."""

    def process_element1(self, value: Any, ctx: Any) -> Iterator[str]:
        yield f"one {value.i} {ctx.timestamp()}"

    def process_element2(self, value: Any, ctx: Any) -> Iterator[str]:
        yield f"two {value.value} {ctx.timestamp()}"


def test_two_streams_of_different_types_meet_in_one_function(spark: SparkSession) -> None:
    env = environment(spark)
    first: DataStream = env.from_generator(datum, count=6)
    second: DataStream = env.from_generator(rule, count=4)
    words, several, sides = Ledger(), Ledger(), Ledger()
    first.connect(second).map(Words(), str).foreach_batch(words)
    keyed = first.key_by("k").connect(second.key_by("name"))
    keyed.flat_map(Several(), "k string, n bigint").foreach_batch(several)
    by_i = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("i")
    timed = first.assign_timestamps_and_watermarks(by_i)
    timed.connect(second).process(Sides(), str).foreach_batch(sides)
    env.execute("connected")
    assert sorted(value for (value,) in words.rows) == sorted(
        [f"first {i}" for i in range(6)] + [f"second r{i}" for i in range(4)]
    )
    assert sorted(several.rows) == sorted([datum(i) for i in range(6)] * 2 + [("r0", 0), ("r2", 2)])
    assert sorted(value for (value,) in sides.rows) == sorted(
        [f"one {i} {i}" for i in range(6)] + [f"two {i} None" for i in range(4)]
    )
