"""Windows in programs: what each method adds to the graph, and what it refuses at once."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pytest

from holdfast import AggregateFunction, MapFunction, OutputTag, ReduceFunction, WatermarkStrategy
from holdfast.api.streams.graph import OperatorKind, Partitioner
from holdfast.api.windows.spec import Caller, Fold
from holdfast.api.windows.triggers import EndOfStreamTrigger
from holdfast.errors import JobGraphError
from holdfast.testing.harness import OperatorHarness
from holdfast.testing.windows import window_joined, windowed
from holdfast.types.stream_type import OBJECTS, StreamType
from holdfast.windows import (
    AllWindowFunction,
    CoGroupFunction,
    CountEvictor,
    CountTrigger,
    EventTimeSessionWindows,
    EventTimeTrigger,
    FlatJoinFunction,
    GlobalWindows,
    JoinFunction,
    ProcessAllWindowFunction,
    ProcessingTimeSessionWindows,
    ProcessWindowFunction,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    WindowFunction,
)
from tests.support.programs import Program
from tests.support.timed_programs import TimedRun, timed
from tests.unit.api.test_triggers import Unmerged

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from holdfast.api.streams.data_stream import DataStream
    from holdfast.api.streams.graph import Node
    from holdfast.api.streams.keyed_stream import KeyedStream

ROWS = "k string, t bigint, n bigint"
TEN = TumblingEventTimeWindows.of(10)
CLOCK = TumblingProcessingTimeWindows.of(10)
SESSIONS = EventTimeSessionWindows.with_gap(10)


class Row(NamedTuple):
    k: str
    n: int


class Larger(ReduceFunction):
    def reduce(self, value1: Any, value2: Any) -> Any:
        return max(value1, value2)


class RichLarger(Larger):
    def open(self, ctx: Any) -> None:
        return


class Total(AggregateFunction):
    def create_accumulator(self) -> float:
        return 0.0

    def add(self, value: Any, accumulator: float) -> float:
        return accumulator + float(value[2])

    def get_result(self, accumulator: float) -> int:
        return int(accumulator)

    def merge(self, acc_a: float, acc_b: float) -> float:
        return acc_a + acc_b


class Applied(WindowFunction):
    def apply(self, key: Any, window: Any, inputs: Sequence[Any]) -> Iterator[Row]:
        yield Row(key, len(inputs))


class AppliedToAll(AllWindowFunction):
    def apply(self, window: Any, inputs: Sequence[Any]) -> Iterator[int]:
        yield len(inputs)


class Processed(ProcessWindowFunction):
    def process(self, key: Any, context: Any, elements: Sequence[Any]) -> Iterator[Row]:
        yield Row(key, len(elements))


class ProcessedAll(ProcessAllWindowFunction):
    def process(self, context: Any, elements: Sequence[Any]) -> Iterator[int]:
        yield len(elements)


class Joined(JoinFunction):
    def join(self, first: Any, second: Any) -> Row:
        return Row(first[0], second[1])


class FlatJoined(FlatJoinFunction):
    def join(self, first: Any, second: Any) -> Iterator[Row]:
        yield Row(first[0], second[1])


class Grouped(CoGroupFunction):
    def co_group(self, first: Sequence[Any], second: Sequence[Any]) -> Iterator[int]:
        yield len(first) + len(second)


class Mapped(MapFunction):
    def map(self, value: Any) -> Any:
        return value


def rows(program: Program | None = None, name: str = "Source") -> DataStream:
    """A stream with event time."""
    return timed((program or Program()).source(ROWS, name), uid=name)


def keyed() -> KeyedStream:
    return rows().key_by("k")


def node_of(stream: Any) -> Node:
    [edge] = stream._edges
    found: Node = edge.node
    return found


# What is added to the graph


def test_windows_are_an_operator_that_keeps_state() -> None:
    stream = keyed().window(TEN).reduce(Larger())
    node = node_of(stream)
    assert node.kind is OperatorKind.WINDOW
    assert node.keyed
    assert node.details.assigner is TEN
    assert node.details.fold == Fold(node.details.fold.function, aggregates=False)
    assert node.details.caller is Caller.NOTHING
    assert stream.type == StreamType.of(ROWS)


def test_settings_do_not_change_the_windows_they_are_called_on() -> None:
    windows = keyed().window(TEN)
    trigger, evictor, late = CountTrigger.of(3), CountEvictor.of(2), OutputTag("late")
    changed = windows.trigger(trigger).evictor(evictor).allowed_lateness("1 s")
    changed = changed.side_output_late_data(late)
    plain = node_of(windows.apply(Applied())).details
    assert (plain.evictor, plain.allowed_lateness_ms, plain.late) == (None, 0, None)
    assert type(plain.trigger) is EventTimeTrigger
    details = node_of(changed.apply(Applied())).details
    assert details.trigger is trigger
    assert details.evictor is evictor
    assert details.late is late
    assert details.allowed_lateness_ms == 1000


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda w: w.apply(Applied()), Row),
        (lambda w: w.process(Processed()), Row),
        (lambda w: w.apply(lambda key, window, elements: []), Any),
        (lambda w: w.apply(lambda key, window, elements: [], output_type="x int"), "x int"),
        (lambda w: w.reduce(max), ROWS),
        (lambda w: w.reduce(max, Applied()), Row),
        (lambda w: w.reduce(max, Processed(), output_type="x int"), "x int"),
        (lambda w: w.aggregate(Total()), int),
        (lambda w: w.aggregate(Total(), output_type=float), float),
        (lambda w: w.aggregate(Total(), Applied()), Row),
        (lambda w: w.sum("n"), ROWS),
        (lambda w: w.max_by(2), ROWS),
    ],
)
def test_the_type_of_what_comes_out_is_declared_or_annotated(make: Any, expected: Any) -> None:
    assert make(keyed().window(TEN)).type == StreamType.of(expected)


def test_the_type_of_an_accumulator_is_annotated_or_given() -> None:
    annotated = node_of(keyed().window(TEN).aggregate(Total())).details.fold
    assert annotated.type is float
    given = node_of(keyed().window(TEN).aggregate(Total(), accumulator_type=int)).details.fold
    assert given.type is int


def test_windows_of_a_stream_that_is_not_keyed_are_one_subtask() -> None:
    node = node_of(rows().window_all(TEN).process(ProcessedAll()))
    assert node.kind is OperatorKind.WINDOW
    assert not node.keyed
    assert node.parallelism == node.max_parallelism == 1
    assert [edge.partitioning.partitioner for edge in node.inputs] == [Partitioner.REBALANCE]
    assert node.details.caller is Caller.PROCESS


def test_count_windows_are_global_windows_with_a_trigger() -> None:
    tumbling = node_of(keyed().count_window(3).apply(Applied())).details
    assert repr(tumbling.trigger) == "PurgingTrigger(CountTrigger(3))"
    assert tumbling.evictor is None
    sliding = node_of(rows().count_window_all(3, 2).apply(AppliedToAll())).details
    assert repr(sliding.trigger) == "CountTrigger(2)"
    assert isinstance(sliding.evictor, CountEvictor)
    assert isinstance(sliding.assigner, GlobalWindows)


@pytest.mark.parametrize(
    ("grouped", "function", "caller", "output"),
    [
        (False, Joined(), Caller.JOIN, Row),
        (False, FlatJoined(), Caller.FLAT_JOIN, Row),
        (False, lambda a, b: a, Caller.JOIN, Any),
        (True, Grouped(), Caller.CO_GROUP, int),
        (True, lambda a, b: a, Caller.CO_GROUP, Any),
    ],
)
def test_two_streams_meet_where_their_keys_are_equal(
    grouped: bool, function: Any, caller: Caller, output: Any
) -> None:
    program = Program()
    first, second = rows(program, "one"), rows(program, "two")
    meeting: Any = first.co_group(second) if grouped else first.join(second)
    stream = meeting.where("k").equal_to(lambda row: row.k).window(TEN).apply(function)
    node = node_of(stream)
    assert node.kind is OperatorKind.WINDOW_JOIN
    assert [edge.side for edge in node.inputs] == [0, 1]
    assert node.details.caller is caller
    assert node.details.second == StreamType.of(ROWS)
    assert stream.type == StreamType.of(output)


# What comes of it


def test_a_count_has_the_columns_of_the_key_and_of_the_window(tmp_path: Path) -> None:
    program = Program()
    stream = rows(program).key_by("k", "n").window(TEN).count()
    assert stream.type.columns == ("k", "n", "window_start", "window_end", "count")
    out = program.collect(stream)
    one = program.collect(rows(program, "two").key_by("k").window(TEN).count())
    run = TimedRun(program, tmp_path)
    run.push([("a", 1, 5), ("b", 2, 5), ("a", 3, 5), ("a", 4, 6)], [("a", 21, 0)])
    run.finish()
    bounds = tuple(datetime.fromtimestamp(s, UTC) for s in (0, 0.010))
    assert sorted(map(tuple, out)) == [
        ("a", 5, *bounds, 2),
        ("a", 6, *bounds, 1),
        ("b", 5, *bounds, 1),
    ]
    assert [(row.k, row.count) for row in one] == [("a", 1)]


def test_a_count_of_windows_without_bounds_or_keys_has_no_such_columns() -> None:
    assert keyed().count_window(5).count().type.columns == ("k", "count")
    assert rows().window_all(TEN).count().type.columns == ("window_start", "window_end", "count")
    schema = rows().count_window_all(5).count().type.schema
    assert schema == pa.schema([pa.field("count", pa.int64())])


@pytest.mark.parametrize("parallelism", [1, 3])
def test_windows_give_their_last_millisecond_to_what_follows(
    parallelism: int, tmp_path: Path
) -> None:
    program = Program(parallelism=parallelism)
    first = rows(program).key_by("k").window(TEN).sum("n")
    # Windows of what windows have given out: their sums lie in the windows of the same times.
    out = program.collect(first.window_all(SlidingEventTimeWindows.of(20, 10)).count())
    run = TimedRun(program, tmp_path)
    run.push([(key, t, 1) for key in "abc" for t in (1, 5, 12)])
    run.tick()
    run.finish()
    starts = [(row.window_start.timestamp() * 1000, row.count) for row in out]
    assert sorted(starts) == [(-10, 3), (0, 6), (10, 3)]


# What is refused


def test_windows_in_event_time_need_a_stream_that_has_it() -> None:
    untimed = Program().source(ROWS)
    for make in (lambda: untimed.key_by("k").window(TEN), lambda: untimed.window_all(SESSIONS)):
        with pytest.raises(JobGraphError, match="assign_timestamps_and_watermarks before key_by"):
            make()
    program = Program()
    with_time, without = rows(program, "one"), program.source(ROWS, "two")
    for first, second in ((with_time, without), (without, with_time)):
        with pytest.raises(JobGraphError, match="uses event time, which the stream does not"):
            first.join(second).where("k").equal_to("k").window(TEN)
    untimed.key_by("k").window(CLOCK)
    untimed.key_by("k").window(ProcessingTimeSessionWindows.with_gap(1))
    untimed.key_by("k").count_window(3)


@pytest.mark.parametrize("assigner", [None, "1 hour", TumblingEventTimeWindows, 60_000])
def test_window_takes_an_assigner(assigner: Any) -> None:
    for make in (keyed().window, rows().window_all):
        with pytest.raises(JobGraphError, match="window takes a WindowAssigner, such as"):
            make(assigner)


@pytest.mark.parametrize("trigger", [None, CountTrigger, "fire", 5])
def test_trigger_takes_a_trigger(trigger: Any) -> None:
    with pytest.raises(JobGraphError, match="trigger takes a Trigger, not"):
        keyed().window(TEN).trigger(trigger)


@pytest.mark.parametrize("evictor", [None, CountEvictor, 5, CountTrigger.of(1)])
def test_evictor_takes_an_evictor(evictor: Any) -> None:
    with pytest.raises(JobGraphError, match="evictor takes an Evictor, not"):
        keyed().window(TEN).evictor(evictor)


@pytest.mark.parametrize("tag", [None, "late", OutputTag])
def test_late_elements_go_to_a_tag(tag: Any) -> None:
    with pytest.raises(JobGraphError, match="side_output_late_data takes an OutputTag, not"):
        keyed().window(TEN).side_output_late_data(tag)


@pytest.mark.parametrize("lateness", [-1, "soon", None, 1.5, True])
def test_lateness_is_a_length_of_time(lateness: Any) -> None:
    with pytest.raises(JobGraphError, match=r"allowed_lateness: expected .*, got"):
        keyed().window(TEN).allowed_lateness(lateness)


@pytest.mark.parametrize("trigger", [Unmerged(), EndOfStreamTrigger()])
def test_windows_that_merge_refuse_a_trigger_that_cannot(trigger: Any) -> None:
    with pytest.raises(JobGraphError, match=r"merges windows, and .* cannot be merged; give it"):
        keyed().window(SESSIONS).trigger(trigger)
    keyed().window(TEN).trigger(trigger)

    class Own(EventTimeSessionWindows):
        def get_default_trigger(self) -> Any:
            return trigger

    with pytest.raises(JobGraphError, match=r"merges windows, and .* cannot be merged; give it"):
        keyed().window(Own(5))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda w: w.reduce(None), "reduce takes a ReduceFunction or a callable, not NoneType"),
        (lambda w: w.reduce(Mapped()), "reduce takes a ReduceFunction or a callable, not Mapped"),
        (lambda w: w.aggregate(max), "aggregate takes a AggregateFunction, not"),
        (lambda w: w.aggregate(Larger()), "aggregate takes a AggregateFunction, not Larger"),
        (lambda w: w.apply(5), "apply takes a WindowFunction or a callable, not int"),
        (lambda w: w.apply(Processed()), "apply takes a WindowFunction or a callable, not Proc"),
        (lambda w: w.apply(AppliedToAll()), "apply takes a WindowFunction or a callable, not App"),
        (lambda w: w.process(Applied()), "process takes a ProcessWindowFunction, not Applied"),
        (lambda w: w.process(ProcessedAll()), "process takes a ProcessWindowFunction, not Proc"),
        (lambda w: w.process(lambda *a: a), "process takes a ProcessWindowFunction, not function"),
        (lambda w: w.reduce(max, AppliedToAll()), "apply takes a WindowFunction or a callable"),
        (lambda w: w.reduce(max, ProcessedAll()), "process takes a ProcessWindowFunction, not"),
        (lambda w: w.aggregate(Total(), 5), "apply takes a WindowFunction or a callable, not int"),
        (lambda w: w.reduce(RichLarger()), r"reduce on windows takes a function without open\(\)"),
        (lambda w: w.sum("x"), r"sum\('x'\): the column does not exist"),
        (lambda w: w.max(7), r"max\(7\): the stream has 3 columns"),
    ],
)
def test_windows_of_keys_refuse_other_functions(make: Any, said: str) -> None:
    with pytest.raises(JobGraphError, match=said):
        make(keyed().window(TEN))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda w: w.apply(Applied()), "apply takes a AllWindowFunction or a callable, not App"),
        (lambda w: w.process(Processed()), "process takes a ProcessAllWindowFunction, not Proc"),
        (lambda w: w.reduce(max, Applied()), "apply takes a AllWindowFunction or a callable"),
        (lambda w: w.reduce(max, Processed()), "process takes a ProcessAllWindowFunction, not"),
    ],
)
def test_windows_without_keys_refuse_functions_of_keys(make: Any, said: str) -> None:
    with pytest.raises(JobGraphError, match=said):
        make(rows().window_all(TEN))


def test_an_aggregate_function_with_open_is_refused() -> None:
    class Rich(Total):
        def close(self) -> None:
            return

    with pytest.raises(JobGraphError, match="aggregate on windows takes a function without open"):
        keyed().window(TEN).aggregate(Rich())


@pytest.mark.parametrize("size", [0, -1, "three", None, 1.5])
def test_a_count_window_has_a_positive_size(size: Any) -> None:
    for make in (keyed().count_window, rows().count_window_all):
        with pytest.raises(JobGraphError, match=r"count_window: .* a positive number of elements"):
            make(size)
    if size is not None:
        with pytest.raises(JobGraphError, match=r"count_window: .* a positive number of elements"):
            keyed().count_window(3, size)


def test_a_count_needs_a_key_of_columns() -> None:
    with pytest.raises(JobGraphError, match=r"count\(\) needs a key of columns"):
        rows().key_by(lambda row: row.k).window(TEN).count()


def test_a_count_refuses_columns_of_one_name() -> None:
    source = timed(Program().source("count string, window_start bigint, t bigint"))
    for key in ("count", "window_start"):
        with pytest.raises(JobGraphError, match=r"two columns of one name: .*rename the key's"):
            source.key_by(key).window(TEN).count()
    # Windows without bounds leave the name free.
    assert source.key_by("window_start").count_window(2).count().type.columns == (
        "window_start",
        "count",
    )


def test_windows_of_a_whole_stream_cannot_be_spread() -> None:
    stream = rows().window_all(TEN).count().set_parallelism(1).set_max_parallelism(1)
    for spread in (stream.set_parallelism, stream.set_max_parallelism):
        with pytest.raises(JobGraphError, match="windows of the whole stream, which run on one"):
            spread(2)


def test_streams_that_meet_are_of_one_program() -> None:
    first = rows()
    other: Any = 5
    for meet in (first.join, first.co_group):
        with pytest.raises(JobGraphError, match="one environment"):
            meet(rows())
        with pytest.raises(JobGraphError, match="join and co_group take a stream, not int"):
            meet(other)


def test_the_keys_of_streams_that_meet_are_of_one_type() -> None:
    program = Program()
    first, second = rows(program, "one"), rows(program, "two")
    windows = first.join(second).where("k").equal_to("n").window(TEN)
    with pytest.raises(JobGraphError, match="key"):
        windows.apply(Joined())


@pytest.mark.parametrize(
    ("grouped", "function", "wanted"),
    [
        (False, Grouped(), "JoinFunction or FlatJoinFunction or a callable, not Grouped"),
        (False, 5, "JoinFunction or FlatJoinFunction or a callable, not int"),
        (True, Joined(), "CoGroupFunction or a callable, not Joined"),
        (True, FlatJoined(), "CoGroupFunction or a callable, not FlatJoined"),
        (True, Applied(), "CoGroupFunction or a callable, not Applied"),
    ],
)
def test_two_streams_refuse_functions_of_one(grouped: bool, function: Any, wanted: str) -> None:
    with pytest.raises(JobGraphError, match=f"apply takes a {wanted}"):
        window_joined(TEN, grouped=grouped).apply(function)


# In the harness


def test_the_harness_takes_windows_with_or_without_a_key() -> None:
    with pytest.raises(JobGraphError, match="windows of keys need a key in the harness"):
        OperatorHarness(windowed(TEN).reduce(max))
    with pytest.raises(JobGraphError, match="windows of keys need a key in the harness"):
        OperatorHarness(windowed(TEN, keyed=False).reduce(max), key=len)


def test_the_harness_takes_no_other_stream() -> None:
    with pytest.raises(JobGraphError, match="the harness takes a function, or windows"):
        OperatorHarness(rows().map(Mapped()), key=len)


def test_windows_for_the_harness_run_in_no_job() -> None:
    stream = windowed(TEN).reduce(max)
    assert stream.type == OBJECTS
    with pytest.raises(JobGraphError, match="no part of a job"):
        stream.execute_and_collect()


def test_windows_of_one_stream_have_no_second() -> None:
    with (
        OperatorHarness(windowed(TEN).reduce(max), key=len) as harness,
        pytest.raises(JobGraphError, match="takes elements of one stream only"),
    ):
        harness.push_second("a", at=1)


def test_the_watermark_strategy_of_a_window_is_that_of_its_stream() -> None:
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("t")
    stream = Program().source(ROWS).assign_timestamps_and_watermarks(strategy)
    assert stream.key_by("k").window(TEN).sum("n").timed
