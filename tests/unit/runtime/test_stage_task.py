"""One task: its batches, its stores, its end, whichever way it ends."""

from __future__ import annotations

import gc
import pickle
import re
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pytest

from holdfast import (
    EmbeddedRocksDBStateBackend,
    HashMapStateBackend,
    KeyedProcessFunction,
    MapFunction,
    OutputTag,
    SinkFunction,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from holdfast.errors import (
    HoldfastError,
    OutputTypeError,
    StateValueError,
    StoreVersionError,
    UserFunctionError,
)
from holdfast.runtime import operator_store
from holdfast.runtime.exchange import ExchangeReader, ExchangeWriter
from holdfast.runtime.operator_task import TaskIdentity
from holdfast.runtime.plan import ORDER, EpochPlan
from holdfast.runtime.task import COLLECT_EVERY, ROW_BITS
from holdfast.serde.keys import key_group_of
from holdfast.spark.serialization import dump_stage
from holdfast.state.backend import KeyedStateBackend
from holdfast.state.key_groups import subtask_of
from holdfast.state.store.process import ProcessIdentity
from holdfast.testing.clock import ManualClock
from holdfast.types.columns.batches import BatchReader, BatchWriter
from tests.support.functions import AllFive, Count
from tests.support.programs import Program
from tests.support.timed_programs import (
    FIRED,
    RULES,
    STAMPED,
    Alarm,
    Ruled,
    Stamps,
    TimedRun,
    timed,
)
from tests.support.timed_programs import ROWS as TIMED
from tests.support.workers import EpochTask, Workers

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from holdfast.api.streams.data_stream import DataStream
    from holdfast.runtime.plan import StagePlan
    from holdfast.runtime.report import TaskReport

ROWS = "k string, n bigint"
COUNTS = "k string, count bigint"
RULED = "k string, rules string"
LOG: list[Any] = []


class Logged(KeyedProcessFunction):
    """Counts, notes its life, and fails on a negative number."""

    def open(self, ctx: Any) -> None:
        LOG.append("open")
        self.count = ctx.get_state(ValueStateDescriptor("count", int))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.count.update((self.count.value() or 0) + 1)
        if value.n < 0:
            raise ValueError("negative")
        yield value.k, self.count.value()

    def close(self) -> None:
        LOG.append("close")


class Failing(MapFunction):
    """Fails in one place of its life."""

    def __init__(self, fails_in: str) -> None:
        self.fails_in = fails_in

    def open(self, ctx: Any) -> None:
        LOG.append("open failing")
        ctx.get_metrics_group().gauge("gauge", self.gauge)
        if self.fails_in == "open":
            raise OSError("no connection")

    def map(self, value: Any) -> Any:
        return value

    def gauge(self) -> float:
        LOG.append("gauge")
        if self.fails_in == "gauge":
            raise OSError("no reading")
        return 1.0

    def close(self) -> None:
        LOG.append("close failing")
        if self.fails_in == "close":
            raise OSError("cannot disconnect")


class Desk:
    """Runs tasks of a program's first stage, by hand."""

    def __init__(self, program: Program, directory: Path) -> None:
        self.stage: StagePlan = program.compile().stages[0]
        self.directory = directory
        self.epoch = 0
        self.expected: dict[tuple[str, int], str] = {}
        self.attempt = 0

    def task(self, subtask: int = 0) -> EpochTask:
        """The next attempt at a subtask."""
        self.attempt += 1
        epoch = EpochPlan(
            "job", "1", self.epoch, str(self.directory), ProcessIdentity.current(), self.expected
        )
        stage = pickle.loads(dump_stage(self.stage))
        return EpochTask(stage, epoch, TaskIdentity(subtask, 0, self.attempt), ManualClock())

    def batch(self, elements: list[Any], channel: int = 0) -> pa.RecordBatch:
        exchange = self.stage.reads
        chosen = exchange.channels[channel]
        subtasks = pa.array([0] * len(elements), pa.int32())
        rows = BatchWriter(chosen.type).batch(elements)
        return ExchangeWriter(exchange).pack(chosen, rows, subtasks).drop_columns(["_hf_subtask"])

    def run(self, *batches: list[Any]) -> list[Any]:
        """An epoch of one task that ends well; returns its outputs."""
        self.epoch += 1
        task = self.task()
        out = list(task.run(iter([self.batch(elements) for elements in batches])))
        self.acknowledge(task.report)
        return self.elements(out)

    def fail(self, *batches: list[Any]) -> HoldfastError:
        """An epoch of one task that fails; returns why."""
        self.epoch += 1
        task = self.task()
        with pytest.raises(HoldfastError) as caught:
            list(task.run(iter([self.batch(elements) for elements in batches])))
        return caught.value

    def acknowledge(self, report: TaskReport) -> None:
        for uid, store in report.stores.items():
            assert store.version is not None
            self.expected[uid, report.subtask] = store.version

    def elements(self, batches: list[pa.RecordBatch]) -> list[Any]:
        exchange = self.stage.writes
        parts = [part for batch in batches for part in ExchangeReader(exchange).unpack(batch)]
        return [e for channel, rows in parts for e in BatchReader(channel.type).elements(rows)]


def counting(function: KeyedProcessFunction, backend: Any = None) -> tuple[Program, DataStream]:
    program = Program(backend=backend)
    stream = program.source(ROWS).key_by("k").process(function, COUNTS).uid("count").name("counter")
    return program, stream


@pytest.fixture(
    params=[HashMapStateBackend(), EmbeddedRocksDBStateBackend()], ids=["hashmap", "rocksdb"]
)
def desk(request: pytest.FixtureRequest, tmp_path: Path) -> Desk:
    """A stage that counts by key, with an output."""
    program, stream = counting(Logged(), request.param)
    program.collect(stream)
    return Desk(program, tmp_path)


# Ends


def test_state_goes_from_epoch_to_epoch(desk: Desk) -> None:
    assert desk.run([("a", 1), ("b", 1)], [("a", 1)]) == [("a", 1), ("b", 1), ("a", 2)]
    assert desk.run([("a", 1)]) == [("a", 3)]
    assert desk.run([("b", 1)]) == [("b", 2)]


def test_a_failed_attempt_leaves_the_store_as_it_was(desk: Desk) -> None:
    desk.run([("a", 1)])
    before = dict(desk.expected)
    error = desk.fail([("a", 1), ("a", 1)], [("b", 1), ("b", -1)])
    assert "negative" in str(error)
    assert desk.expected == before
    assert desk.run([("a", 1), ("b", 1)]) == [("a", 2), ("b", 1)]


def test_a_failed_first_attempt_leaves_no_store(desk: Desk) -> None:
    desk.fail([("a", -1)])
    assert desk.run([("a", 1)]) == [("a", 1)]


@pytest.mark.parametrize("taken", [0, 1, 2])
def test_a_consumer_that_stops_early_leaves_the_store_uncommitted(desk: Desk, taken: int) -> None:
    desk.run([("a", 1)])
    desk.epoch += 1
    task = desk.task()
    rows = task.run(iter([desk.batch([("a", 1)]), desk.batch([("a", 1)])]))
    for _ in range(taken):
        next(rows)
    rows.close()  # type: ignore[attr-defined]
    assert not hasattr(task, "report")
    assert LOG.count("open") == LOG.count("close") == (1 if taken == 0 else 2)
    assert desk.run([("a", 1)]) == [("a", 2)]


def test_a_task_that_is_forgotten_leaves_the_store_uncommitted(desk: Desk) -> None:
    desk.epoch += 1
    rows = desk.task().run(iter([desk.batch([("a", 1)])]))
    next(rows)
    del rows
    assert gc.isenabled()
    assert desk.run([("a", 1)]) == [("a", 1)]


def test_an_input_that_breaks_leaves_the_store_as_it_was(desk: Desk) -> None:
    desk.run([("a", 1)])

    def broken() -> Iterator[pa.RecordBatch]:
        yield desk.batch([("a", 1)])
        raise ConnectionResetError("the executor is gone")

    desk.epoch += 1
    with pytest.raises(ConnectionResetError):
        list(desk.task().run(broken()))
    assert desk.run([("a", 1)]) == [("a", 2)]


def test_a_store_at_another_version_is_refused_and_left_alone(desk: Desk) -> None:
    desk.run([("a", 1)])
    right = dict(desk.expected)
    desk.expected = {("count", 0): "7-123"}
    error = desk.fail([("a", 1)])
    assert isinstance(error, StoreVersionError)
    assert "'7-123'" in str(error)
    assert "operator 'counter' (uid 'count'), subtask 1/2" in str(error)
    desk.expected = {}
    assert isinstance(desk.fail([("a", 1)]), StoreVersionError)
    desk.expected = right
    assert desk.run([("a", 1)]) == [("a", 2)]


def test_a_second_attempt_after_a_successful_one_is_refused(desk: Desk) -> None:
    desk.run([("a", 1)])
    before = dict(desk.expected)
    desk.run([("a", 1)])
    desk.expected, after = before, desk.expected
    assert isinstance(desk.fail([("a", 1)]), StoreVersionError)
    desk.expected = after
    assert desk.run([("a", 1)]) == [("a", 3)]


def test_a_version_names_epoch_and_attempt(desk: Desk) -> None:
    desk.run([("a", 1)])
    desk.run([("a", 1)])
    assert desk.expected == {("count", 0): "2-2"}


def test_every_subtask_has_a_store_of_its_own(desk: Desk) -> None:
    desk.epoch = 1
    for subtask in (0, 1):
        task = desk.task(subtask)
        out = list(task.run(iter([desk.batch([("a", 1)])])))
        assert desk.elements(out) == [("a", 1)]
        desk.acknowledge(task.report)
    assert set(desk.expected) == {("count", 0), ("count", 1)}


def test_caches_are_emptied_between_batches_when_they_have_grown(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    limited = partial(KeyedStateBackend, cache_limit=2)
    monkeypatch.setattr(operator_store, "KeyedStateBackend", limited)
    desk.epoch = 1
    task = desk.task()
    batches = [[("a", 1), ("b", 1)], [("c", 1), ("a", 1)], [("a", 1)]]
    cached = []
    rows = task.run(iter([desk.batch(batch) for batch in batches]))
    out = []
    for row in rows:
        out.append(row)
        state = task.task._operator_tasks[0].state
        assert state is not None
        cached.append(sum(table.cached() for table in state.tables))
    assert cached == [2, 0, 1]
    assert desk.elements(out) == [("a", 1), ("b", 1), ("c", 1), ("a", 2), ("a", 3)]


# Life cycle


def test_a_function_is_opened_by_its_first_row_and_closed_once(desk: Desk) -> None:
    desk.run([], [("a", 1)], [("b", 1)])
    assert LOG == ["open", "close"]
    desk.run([])
    desk.run()
    assert LOG == ["open", "close"]
    desk.fail([("a", -1)])
    assert LOG == ["open", "close"] * 2


def failing(where: str, tmp_path: Path) -> Desk:
    """A stage whose second operator fails in one place of its life."""
    program, stream = counting(Logged())
    stream.map(Failing(where), COUNTS).uid("failing").name("failing")
    return Desk(program, tmp_path)


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("open", r"'failing' \(uid 'failing'\), subtask 1/2, in open\(\): OSError: no connection"),
        ("gauge", r"'failing' .*, in a gauge: OSError: no reading"),
    ],
)
def test_a_failure_in_open_or_in_a_gauge_leaves_the_store_as_it_was(
    where: str, said: str, tmp_path: Path
) -> None:
    desk = failing(where, tmp_path)
    for _ in range(2):
        LOG.clear()
        error = desk.fail([("a", 1)])
        assert isinstance(error, UserFunctionError)
        assert re.match(f"operator {said}", str(error))
        assert LOG.count("close") == LOG.count("close failing") == 1
    desk.stage = failing("nowhere", tmp_path).stage
    LOG.clear()
    desk.run([("a", 1)])
    assert LOG == ["open", "open failing", "gauge", "close", "close failing"]


def test_a_function_that_cannot_be_closed_fails_no_epoch_and_keeps_no_other_open(
    tmp_path: Path,
) -> None:
    desk = failing("close", tmp_path)
    desk.epoch = 1
    task = desk.task()
    rows = task.run(iter([desk.batch([("a", 1)])]))
    with pytest.raises(UserFunctionError, match=r"in close\(\): OSError: cannot disconnect"):
        list(rows)
    assert task.report.stores["count"].version == "1-1", "the epoch was committed before"
    assert sorted(LOG) == ["close", "close failing", "gauge", "open", "open failing"]


def test_a_commit_that_fails_closes_every_function_once(tmp_path: Path) -> None:
    class Point(NamedTuple):
        x: int

    class Keeps(Logged):
        def open(self, ctx: Any) -> None:
            super().open(ctx)
            self.point = ctx.get_state(ValueStateDescriptor("point", Point))

        def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
            self.point.update(Point(value.n if value.n else "zero"))  # type: ignore[arg-type]
            yield value.k, 1

    program, stream = counting(Keeps())
    program.collect(stream)
    desk = Desk(program, tmp_path)
    error = desk.fail([("a", 1), ("b", 0)])
    assert isinstance(error, StateValueError)
    text = str(error)
    assert "operator 'counter' (uid 'count'), subtask 1/2" in text
    assert "state 'point'" in text
    assert "key 'b'" in text
    assert LOG == ["open", "close"]


@pytest.mark.parametrize("how", ["well", "failing", "closed"])
@pytest.mark.parametrize("enabled", [True, False])
def test_the_garbage_collector_is_as_it_was(desk: Desk, how: str, enabled: bool) -> None:
    if not enabled:
        gc.disable()
    try:
        desk.epoch = 1
        elements = [("a", -1 if how == "failing" else 1)]
        rows = desk.task().run(iter([desk.batch(elements)] * (COLLECT_EVERY + 1)))
        if how == "closed":
            next(rows)
            assert not gc.isenabled()
            rows.close()  # type: ignore[attr-defined]
        elif how == "failing":
            with pytest.raises(UserFunctionError):
                list(rows)
        else:
            list(rows)
        assert gc.isenabled() is enabled
    finally:
        gc.enable()


# Reports


def test_a_report_counts_what_went_in_and_out(tmp_path: Path) -> None:
    program = Program()
    counted = program.source(ROWS).key_by("k").process(AllFive(), ROWS).uid("five")
    program.collect(counted.filter(lambda row: row.n > 1).uid("filter"))
    desk = Desk(program, tmp_path)
    desk.epoch = 4
    task = desk.task(1)
    list(task.run(iter([desk.batch([("a", 1), ("b", 2)]), desk.batch([("a", 3)])])))
    report = task.report
    assert (report.epoch, report.stage, report.subtask, report.attempt_id) == (4, 1, 1, 1)
    figures = {uid: (r.records_in, r.records_out) for uid, r in report.operators.items()}
    assert figures == {"five": (3, 3), "filter": (3, 2)}
    assert set(report.stores) == {"five"}
    assert report.stores["five"].version == "4-1"
    assert report.stores["five"].entries > 0
    assert report.warnings == ()


def test_untyped_state_is_reported_as_a_warning(tmp_path: Path) -> None:
    class Untyped(KeyedProcessFunction):
        def open(self, ctx: Any) -> None:
            ctx.get_state(ValueStateDescriptor("anything"))

        def process_element(self, value: Any, ctx: Any) -> None:
            return None

    program, _ = counting(Untyped())
    desk = Desk(program, tmp_path)
    task = desk.task()
    list(task.run(iter([desk.batch([("a", 1)])])))
    assert len(task.report.warnings) == 1
    assert "'anything' has no type" in task.report.warnings[0]


def test_a_report_crosses_processes(desk: Desk) -> None:
    desk.epoch = 1
    task = desk.task()
    list(task.run(iter([desk.batch([("a", 1)])])))
    copy = pickle.loads(pickle.dumps(task.report))
    assert copy.stores == task.report.stores
    assert copy.operators["count"].records_in == 1


# Outputs


def test_an_output_that_does_not_fit_names_the_operator_that_gave_it(tmp_path: Path) -> None:
    program, stream = counting(Count())
    wrong = stream.map(lambda row: (row.k, "text"), COUNTS).name("wrong")
    program.collect(wrong.map(lambda row: row, COUNTS).name("innocent"))
    desk = Desk(program, tmp_path)
    error = desk.fail([("a", 1)])
    assert isinstance(error, OutputTypeError)
    assert str(error).count("operator ") == 1
    assert str(error).startswith("operator 'wrong'")
    assert "'text' (str)" in str(error)
    assert error.row_index == 0


def test_outputs_nobody_reads_are_dropped(tmp_path: Path) -> None:
    class Sides(Count):
        def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
            yield OutputTag("unread"), object()
            yield OutputTag("read"), value.k
            yield value.k, 5

    program, stream = counting(Sides())
    program.collect(stream.get_side_output(OutputTag("read")))
    desk = Desk(program, tmp_path)
    assert desk.run([("a", 1)]) == ["a"]


def test_a_tuple_of_two_is_no_side_output_unless_it_begins_with_a_tag(tmp_path: Path) -> None:
    class Pairs(Count):
        def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
            yield "late", value.n

    program, stream = counting(Pairs())
    program.collect(stream)
    desk = Desk(program, tmp_path)
    assert desk.run([("a", 1)]) == [("late", 1)]


class Flushed(SinkFunction):
    def invoke(self, value: Any, context: Any) -> None:
        LOG.append(tuple(value))

    def flush(self) -> None:
        LOG.append("flush")


def test_final_results_reach_the_operators_behind_before_they_end(tmp_path: Path) -> None:
    program = Program(batch_mode=True)
    reduced = program.source(ROWS).key_by("k").sum("n").uid("sum")
    reduced.map(same, ROWS).add_sink(Flushed())
    program.collect(reduced)
    desk = Desk(program, tmp_path)
    out = desk.run([("a", 1), ("b", 2)], [("a", 3)])
    assert sorted(out) == [("a", 4), ("b", 2)]
    assert sorted(LOG[:2]) == [("a", 4), ("b", 2)]
    assert LOG[2:] == ["flush"]


def same(value: Any) -> Any:
    return value


# Event time and timers


def test_event_times_reach_functions_wherever_rows_come_from(tmp_path: Path) -> None:
    program = Program(parallelism=2)
    rows = timed(program.source(TIMED))
    at_source = program.collect(rows.process(Stamps(), STAMPED))
    behind = program.collect(rows.key_by("k").process(KeyedStamps(), STAMPED))
    run = TimedRun(program, tmp_path)
    run.push([("a", 5), ("b", -7), ("c", 0)])
    expected = [("a", 5, 5), ("b", -7, -7), ("c", 0, 0)]
    assert sorted(at_source) == sorted(behind) == expected


class KeyedStamps(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield value.k, value.t, ctx.timestamp()


@pytest.mark.parametrize("by", ["column", "function", "both"])
def test_a_task_reports_the_latest_event_time_that_it_has_met(by: str, tmp_path: Path) -> None:
    program = Program(parallelism=2)
    rows = program.source(TIMED)
    if by != "column":
        strategy = WatermarkStrategy(0).with_timestamp_assigner(lambda value, _: value.t)
        rows = rows.assign_timestamps_and_watermarks(strategy).uid("function").map(same, TIMED)
    if by != "function":
        rows = timed(rows, uid="column")
    program.collect(rows.key_by("k").process(KeyedStamps(), STAMPED))
    run = TimedRun(program, tmp_path)
    run.push([("a", 5), ("b", 9), ("c", -3)])
    latest: dict[str, int] = {}
    for report in run.reports:
        for uid, time in report.latest.items():
            latest[uid] = max(time, latest.get(uid, time))
    assert latest == dict.fromkeys(["column", "function"] if by == "both" else [by], 9)
    run.push([])
    assert all(report.latest == {} for report in run.reports)


def test_what_timers_give_out_at_the_end_reaches_the_operators_behind(tmp_path: Path) -> None:
    """In the same task and behind an exchange, where it sets timers that fire in the same epoch."""
    program = Program(parallelism=2)
    fired = timed(program.source(TIMED)).key_by("k").process(Alarm(), FIRED).uid("alarm")
    chained = program.collect(fired.map(lambda row: (row.k, row.t), TIMED).name("chained"))
    again = fired.map(lambda row: (f"again {row.k}", row.t), TIMED).key_by("k")
    found = program.collect(again.process(Alarm(), FIRED).uid("second"))
    run = TimedRun(program, tmp_path)
    run.push([("a", 10), ("b", 20), ("c", 30)])
    run.tick()
    assert sorted(chained) == [("a", 10), ("b", 20)]
    assert sorted(found) == [("again a", 10, "event time"), ("again b", 20, "event time")]


def test_an_operator_behind_ends_after_it_was_given_what_timers_gave_out(tmp_path: Path) -> None:
    program = Program(parallelism=1)
    fired = timed(program.source(TIMED)).key_by("k").process(Alarm(), FIRED).uid("alarm")
    fired.map(same, FIRED).add_sink(Flushed())
    program.collect(fired)
    run = TimedRun(program, tmp_path)
    run.push([("a", 10), ("b", 20)])
    LOG.clear()
    run.tick()
    assert LOG == [("a", 10, "event time"), "flush"]


def test_an_epoch_that_processes_nothing_fires_nothing(tmp_path: Path) -> None:
    program = Program(parallelism=2)
    stream = timed(program.source(TIMED)).key_by("k").process(Alarm("event", "processing"), FIRED)
    found = program.collect(stream.uid("alarm"))
    run = TimedRun(program, tmp_path)
    run.push([("a", 10), ("b", 20)])
    run.clock.set(100)
    assert run.is_due()
    run.checkpoint_only()
    assert found == []
    assert run.is_due()
    run.tick()
    assert sorted(found) == [
        ("a", 10, "event time"),
        ("a", 10, "processing time"),
        ("b", 20, "processing time"),
    ]


def test_subtasks_that_are_due_fire_without_rows_and_others_are_not_opened(tmp_path: Path) -> None:
    program = Program(parallelism=4)
    stream = timed(program.source(TIMED)).key_by("k").process(Opened(), FIRED).uid("alarm")
    found = program.collect(stream)
    run = TimedRun(program, tmp_path)
    run.push([(f"key-{i}", i * 10) for i in range(8)])
    assert len(set(LOG)) > 1
    run.tick()
    assert sorted(time for _, time, _ in found) == [i * 10 for i in range(7)]
    run.push([("key-7", 75)])
    LOG.clear()
    found.clear()
    run.workers = Workers()
    run.tick()
    owner = subtask_of(key_group_of("key-7", 128), 4, 128)
    assert found == [("key-7", 70, "event time")]
    assert [("open", owner)] == LOG
    LOG.clear()
    run.tick()
    assert LOG == []


class Opened(Alarm):
    def open(self, ctx: Any) -> None:
        LOG.append(("open", ctx.get_index_of_this_subtask()))


def test_a_failed_attempt_fires_its_timers_again(tmp_path: Path) -> None:
    program = Program(parallelism=1)
    stream = timed(program.source(TIMED)).key_by("k").process(Alarm(), FIRED).uid("alarm")
    found = program.collect(stream.map(FailsOnce(), FIRED))
    run = TimedRun(program, tmp_path)
    run.push([("a", 10), ("b", 20)])
    LOG.append("fail")
    with pytest.raises(UserFunctionError, match="not this time"):
        run.tick()
    assert found == []
    run.tick()
    assert found == [("a", 10, "event time")]


class FailsOnce(MapFunction):
    def map(self, value: Any) -> Any:
        if LOG:
            LOG.clear()
            raise ValueError("not this time")
        return value


# Broadcast


def test_all_subtasks_see_broadcast_rows_first_and_in_one_order(tmp_path: Path) -> None:
    program = Program(parallelism=3)
    data, control = program.source(TIMED), program.source(TIMED)
    ruled = data.key_by("k").connect(control.broadcast(RULES)).process(Ruled(), RULED)
    found = program.collect(ruled.uid("ruled"))
    run = TimedRun(program, tmp_path)
    rules = [(name, number) for number in range(3) for name in "zyxwv"]
    keys = [(f"key-{i}", 0) for i in range(12)]
    run.push(keys, rules)
    [seen] = {rule for _, rule in found}
    # Of every sender in its order, and one sender after the other.
    assert seen == "z2,y2,x2,w2,v2"
    assert len(found) == len(keys)
    assert {subtask for uid, subtask in run.expected} == {0, 1, 2}
    found.clear()
    run.push(keys, [("z", 7)])
    [seen] = {rule for _, rule in found}
    assert set(seen.split(",")) == {"z7", "y2", "x2", "w2", "v2"}


def test_broadcast_rows_reach_subtasks_that_have_no_others(tmp_path: Path) -> None:
    program = Program(parallelism=3)
    data, control = program.source(TIMED), program.source(TIMED)
    ruled = data.key_by("k").connect(control.broadcast(RULES)).process(Ruled(), RULED)
    found = program.collect(ruled.uid("ruled"))
    run = TimedRun(program, tmp_path)
    run.push([], [("a", 1), ("b", 2)])
    run.push([(f"key-{i}", 0) for i in range(9)], [])
    assert {rule for _, rule in found} == {"a1,b2"}


def test_broadcast_rows_keep_their_order_through_a_stage_that_they_only_pass(
    tmp_path: Path,
) -> None:
    program = Program(parallelism=3)
    data, control = program.source(TIMED), program.source(TIMED)
    first = data.key_by("k").process(Forward(), TIMED).uid("first").set_parallelism(1)
    ruled = first.key_by("k").connect(control.broadcast(RULES)).process(Ruled(), RULED)
    found = program.collect(ruled.uid("ruled"))
    run = TimedRun(program, tmp_path)
    run.push([(f"key-{i}", 0) for i in range(9)], [(name, 1) for name in "fedcba"])
    assert {rule for _, rule in found} == {"f1,e1,d1,c1,b1,a1"}


def test_rows_that_operators_give_out_are_broadcast_with_their_event_time(tmp_path: Path) -> None:
    program = Program(parallelism=2)
    rows = timed(program.source(TIMED)).key_by("k").process(Forward(), TIMED).uid("first")
    found = program.collect(rows.broadcast().process(Stamps(), STAMPED).set_parallelism(3))
    TimedRun(program, tmp_path).push([("a", 1), ("b", 2)])
    assert sorted(found) == [("a", 1, 1)] * 3 + [("b", 2, 2)] * 3


class Forward(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield value


def test_places_go_on_from_batch_to_batch_and_from_sender_to_sender() -> None:
    program = Program(parallelism=2)
    data, control = program.source(TIMED), program.source(TIMED)
    data.key_by("k").connect(control.broadcast(RULES)).process(Ruled(), RULED)
    stage = program.compile().sources[1].stage
    writer = BatchWriter(control.type)
    places: dict[int, list[int]] = {0: [], 1: []}
    for sender in (0, 3):
        task = EpochTask(stage, None, TaskIdentity(sender, 0, 1), ManualClock())
        batches = [writer.batch([("a", 1), ("b", 2)]), writer.batch([("c", 3)])]
        for out in task.run(iter(batches)):
            [receiver] = set(out.column("_hf_subtask").to_pylist())
            places[receiver] += out.column(ORDER).to_pylist()
    assert places[0] == places[1] == [0, 1, 2, *(3 * 2**ROW_BITS + i for i in range(3))]
