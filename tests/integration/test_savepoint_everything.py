"""Windows, timers, broadcast state, TTL and nested values through a savepoint and a rescale.

A job is stopped in the middle and goes on from its savepoint, with another backend, on another
number of subtasks; or it is rescaled while it runs. What is given out altogether is what one gives
out that was never stopped; each ends by draining, so that all windows close and all timers fire.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from holdfast import (
    AggregateFunction,
    AggregatingStateDescriptor,
    JobStatus,
    KeyedBroadcastProcessFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    SavepointFormatType,
    StateTtlConfig,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from holdfast.errors import CheckpointError
from holdfast.windows import EventTimeSessionWindows, TumblingEventTimeWindows
from tests.support.recovery_jobs import BACKENDS, HASHMAP, ROCKSDB, Ledger
from tests.support.recovery_tools import Faults, Feed, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from holdfast import JobClient

RULES = MapStateDescriptor("rules", str, int)
CANONICAL, NATIVE = SavepointFormatType.CANONICAL, SavepointFormatType.NATIVE
TTL = StateTtlConfig.new_builder("1 h").build()


@dataclass
class Line:
    """Part of an order."""

    number: int
    tags: list[str] = field(default_factory=list)


@dataclass
class Order:
    """What is kept of a key."""

    lines: list[Line]
    by_tag: dict[str, Line]
    last: tuple[int, str] | None = None


class Spread(AggregateFunction):
    """The difference between the largest and the smallest."""

    def create_accumulator(self) -> list[int]:
        return []

    def add(self, value: int, accumulator: list[int]) -> list[int]:
        low, high = accumulator or (value, value)
        return [min(low, value), max(high, value)]

    def get_result(self, accumulator: list[int]) -> int:
        return accumulator[1] - accumulator[0]

    def merge(self, a: list[int], b: list[int]) -> list[int]:
        return [min(a + b), max(a + b)]


class Keep(KeyedProcessFunction):
    """Keeps orders, and gives out all that it holds when a timer fires, 50 later."""

    def open(self, ctx: Any) -> None:
        self.order = ctx.get_state(ValueStateDescriptor("order", Order))
        self.seen = ctx.get_list_state(ListStateDescriptor("seen", int, ttl=TTL))
        self.most = ctx.get_reducing_state(ReducingStateDescriptor("most", max, int))
        spread = AggregatingStateDescriptor("spread", Spread(), list[int])
        self.spread = ctx.get_aggregating_state(spread)

    def process_element(self, value: Any, ctx: Any) -> None:
        order = self.order.value() or Order([], {})
        line = Line(value.i, [f"t{value.i % 3}"])
        order.lines.append(line)
        order.by_tag[line.tags[0]] = line
        order.last = (value.i, value.k)
        self.order.update(order)
        self.seen.add(value.i)
        self.most.add(value.i)
        self.spread.add(value.i)
        ctx.timer_service().register_event_time_timer(value.i + 50)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[tuple[str, str]]:
        # What came until its time, whenever it fires.
        due = timestamp - 50
        order = self.order.value()
        lines = [line for line in order.lines if line.number <= due]
        seen = [i for i in self.seen.get() if i <= due]
        tagged = order.by_tag[f"t{due % 3}"].number >= due
        known = self.most.get() >= due, self.spread.get() >= 0, order.last[1], tagged
        yield ctx.get_current_key(), f"{timestamp} {lines} {seen} {known}"


class Apply(KeyedBroadcastProcessFunction):
    """Adds what the newest rule of the key's class says; rules come before all else."""

    def open(self, ctx: Any) -> None:
        self.count = ctx.get_state(ValueStateDescriptor("count", int))

    def process_element(self, value: Any, ctx: Any) -> Iterator[tuple[str, str]]:
        self.count.update((self.count.value() or 0) + 1)
        rule = ctx.get_broadcast_state(RULES).get("step")
        yield value.k, f"{self.count.value()} {rule}"

    def process_broadcast_element(self, value: Any, ctx: Any) -> None:
        ctx.get_broadcast_state(RULES).put("step", value.step)


class Run:
    """The program, on input that comes file by file."""

    def __init__(self, spark: SparkSession, root: Path) -> None:
        self.spark = spark
        self.root = root
        root.mkdir()
        self.feed = Feed(spark, root / "input")
        self.rules = root / "rules"
        self.rules.mkdir()
        (self.rules / "0.json").write_text('{"step": 7}')
        self.rows: list[Ledger] = []

    def start(self, backend: str, parallelism: int, **beginning: Any) -> JobClient:
        env = StreamExecutionEnvironment.get_execution_environment(self.spark)
        env.set_parallelism(parallelism).set_state_backend(BACKENDS[backend])
        env.enable_checkpointing("100 ms")
        env.get_checkpoint_config().set_checkpoint_storage_dir(str(self.root / "checkpoints"))
        strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("i")
        events = env.from_dataframe(self.feed.stream()).uid("events")
        timed = events.assign_timestamps_and_watermarks(strategy).uid("time")
        steps = self.spark.readStream.schema("step bigint").json(str(self.rules))
        rules = env.from_dataframe(steps).uid("rules").broadcast(RULES)
        keyed = timed.key_by("k")
        counts = keyed.window(TumblingEventTimeWindows.of(100)).count().uid("windows")
        sessions = keyed.window(EventTimeSessionWindows.with_gap(45)).count().uid("sessions")
        kept = keyed.process(Keep(), "k string, said string").uid("keep")
        applied = keyed.connect(rules).process(Apply(), "k string, said string").uid("apply")
        for stream in (counts, sessions, kept, applied):
            self.rows.append(Ledger())
            stream.foreach_batch(self.rows[-1]).uid(f"out-{len(self.rows) % 4}")
        return env.execute_async("everything", **beginning)

    def caught_up(self, files: int) -> None:
        """Add files, and wait until all their rows have come through."""
        self.feed.fill(files, each=60)
        wait_for(
            lambda: len(self.applied()) >= len(self.feed.elements), "all input to be processed"
        )

    def applied(self) -> list[Any]:
        return [row for ledger in self.rows[3::4] for row in ledger.rows]

    def outcome(self) -> list[Counter[Any]]:
        """All that was given out, by output."""
        return [
            Counter(row for ledger in self.rows[number::4] for row in ledger.rows)
            for number in range(4)
        ]


@pytest.fixture(scope="module")
def undisturbed(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    run = Run(spark, tmp_path_factory.mktemp("undisturbed") / "run")
    client = run.start(HASHMAP, 2)
    run.caught_up(4)
    client.stop_with_savepoint(str(run.root / "savepoints"), drain=True)
    assert client.status() is JobStatus.FINISHED
    outcome = run.outcome()
    assert [sum(found.values()) for found in outcome] == [20 * 3, 20 * 1, 240, 240]
    return outcome


@pytest.mark.parametrize(
    ("before", "after", "form"),
    [
        ((HASHMAP, 2), (ROCKSDB, 3), CANONICAL),
        pytest.param((ROCKSDB, 3), (HASHMAP, 1), CANONICAL, marks=pytest.mark.slow),
        pytest.param((ROCKSDB, 1), (ROCKSDB, 4), NATIVE, marks=pytest.mark.slow),
    ],
)
def test_everything_goes_on_from_a_savepoint_as_if_nothing_had_happened(
    spark: SparkSession,
    tmp_path: Path,
    undisturbed: list[Any],
    before: tuple[str, int],
    after: tuple[str, int],
    form: SavepointFormatType,
) -> None:
    run = Run(spark, tmp_path / "run")
    client = run.start(*before)
    run.caught_up(2)
    path = client.stop_with_savepoint(str(tmp_path / "savepoints"), format_type=form)
    client = run.start(*after, from_savepoint=path)
    run.caught_up(2)
    client.stop_with_savepoint(str(tmp_path / "savepoints"), drain=True)
    assert run.outcome() == undisturbed


@pytest.mark.parametrize("backend", [ROCKSDB, pytest.param(HASHMAP, marks=pytest.mark.slow)])
def test_everything_goes_on_from_a_rescale_as_if_nothing_had_happened(
    spark: SparkSession, tmp_path: Path, undisturbed: list[Any], backend: str
) -> None:
    run = Run(spark, tmp_path / "run")
    client = run.start(backend, 2)
    run.caught_up(1)
    client.rescale(5)
    run.caught_up(1)
    client.rescale(1)
    run.caught_up(2)
    client.stop_with_savepoint(str(tmp_path / "savepoints"), drain=True)
    assert client.statistics().restarts == 0
    assert run.outcome() == undisturbed


@pytest.mark.slow
def test_a_job_that_was_drained_for_a_savepoint_that_fails_goes_back_behind_it(
    spark: SparkSession, tmp_path: Path, undisturbed: list[Any]
) -> None:
    with Faults(spark, tmp_path) as faults:
        run = Run(spark, tmp_path / "run")
        client = run.start(HASHMAP, 2)
        run.caught_up(2)
        [struck] = faults.plan(tmp_path, {"point": "after-savepoint-part", "action": "raise"})
        with pytest.raises(CheckpointError, match="was not taken"):
            client.stop_with_savepoint(str(tmp_path / "savepoints"), drain=True)
        assert struck.exists()
        run.caught_up(2)
        client.stop_with_savepoint(str(tmp_path / "savepoints"), drain=True)
    assert client.statistics().restarts == 1
    assert run.outcome() == undisturbed
