"""Streams: what each method adds to the graph, and what it refuses at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from holdfast import (
    ErrorPolicy,
    FilterFunction,
    FlatMapFunction,
    KeyedProcessFunction,
    KeySelector,
    MapFunction,
    OutputTag,
    ProcessFunction,
    ReduceFunction,
    SinkFunction,
    SparkSink,
)
from holdfast.api.sinks import ForeachBatchSink, PrintSink
from holdfast.api.streams.data_stream import DataStream
from holdfast.api.streams.graph import OperatorKind, Partitioner, Partitioning
from holdfast.errors import (
    ConfigurationError,
    JobGraphError,
    KeyTypeError,
    TypeDeclarationError,
)
from holdfast.types.stream_type import OBJECTS, StreamType
from tests.support.programs import Program

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from holdfast.api.streams.graph import Node
    from holdfast.api.streams.keyed_stream import KeyedStream


class Pair(NamedTuple):
    k: str
    n: int


class Doubled(MapFunction):
    def map(self, value: int) -> int:
        return value * 2


class Words(FlatMapFunction):
    def flat_map(self, value: str) -> Iterator[str]:
        yield from value.split()


class Positive(FilterFunction):
    def filter(self, value: int) -> bool:
        return value > 0


class Larger(ReduceFunction):
    def reduce(self, value1: Any, value2: Any) -> Any:
        return max(value1, value2)


class Plain(ProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Iterator[Pair]:
        yield Pair("a", 1)


class Keyed(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Iterator[Pair]:
        yield Pair("a", 1)


class Swallow(SinkFunction):
    def invoke(self, value: Any, context: Any) -> None:
        return None


class ByLength(KeySelector):
    def get_key(self, value: Any) -> int:
        return len(value)


def last(program: Program) -> Node:
    return program.graph.nodes[-1]


# Operators and their types


@pytest.mark.parametrize(
    ("apply", "kind", "output"),
    [
        (lambda s: s.map(Doubled()), OperatorKind.MAP, int),
        (lambda s: s.map(str, "string"), OperatorKind.MAP, "string"),
        (lambda s: s.map(lambda n: n), OperatorKind.MAP, Any),
        (lambda s: s.flat_map(Words()), OperatorKind.FLAT_MAP, str),
        (lambda s: s.flat_map(lambda n: [n], output_type=int), OperatorKind.FLAT_MAP, int),
        (lambda s: s.filter(Positive()), OperatorKind.FILTER, "k string, n bigint"),
        (lambda s: s.filter(bool), OperatorKind.FILTER, "k string, n bigint"),
        (lambda s: s.process(Plain()), OperatorKind.PROCESS, Pair),
        (lambda s: s.process(Plain(), "a string"), OperatorKind.PROCESS, "a string"),
        (lambda s: s.key_by("k").process(Keyed()), OperatorKind.KEYED_PROCESS, Pair),
        (lambda s: s.key_by("k").reduce(Larger()), OperatorKind.REDUCE, "k string, n bigint"),
        (lambda s: s.key_by("k").reduce(max), OperatorKind.REDUCE, "k string, n bigint"),
        (lambda s: s.key_by("k").map(Doubled()), OperatorKind.MAP, int),
    ],
)
def test_an_operator_has_its_kind_and_its_declared_or_annotated_type(
    program: Program,
    rows: DataStream,
    apply: Callable[[DataStream], DataStream],
    kind: OperatorKind,
    output: Any,
) -> None:
    stream = apply(rows)
    assert type(stream) is DataStream
    assert last(program).kind is kind
    assert stream.type == last(program).output == StreamType.of(output)


def test_a_declared_type_goes_before_an_annotation(rows: DataStream) -> None:
    assert rows.map(Doubled(), "string").type == StreamType.of("string")


@pytest.mark.parametrize("name", ["sum", "min", "max", "min_by", "max_by"])
def test_rolling_aggregates_are_reductions_of_the_same_type(
    program: Program, rows: DataStream, name: str
) -> None:
    stream = getattr(rows.key_by("k"), name)("n")
    assert last(program).kind is OperatorKind.REDUCE
    assert last(program).name == f"{name}('n')"
    assert stream.type == rows.type


def test_a_sink_ends_the_stream_and_can_be_named(program: Program, rows: DataStream) -> None:
    rows.add_sink(Swallow()).uid("swallow").name("the sink").set_parallelism(3)
    assert last(program).kind is OperatorKind.SINK_FUNCTION
    assert (last(program).uid, last(program).name, last(program).parallelism) == (
        "swallow", "the sink", 3,
    )  # fmt: skip
    rows.sink_to(SparkSink("parquet", {"path": "/x"}))
    assert (last(program).kind, last(program).name) == (OperatorKind.OUTPUT, "Sink: parquet")
    rows.foreach_batch(print)
    assert last(program).function == ForeachBatchSink(print)
    rows.print("label")
    assert last(program).function == PrintSink("label")


def test_collecting_is_left_to_the_environment(program: Program, rows: DataStream) -> None:
    collected: object = rows.execute_and_collect("a job", limit=5)
    assert collected == "results"
    assert program.collected == [(rows, "a job", 5)]


# Keys


def test_a_stream_is_keyed_by_columns_or_by_a_function(rows: DataStream) -> None:
    def key(value: Any) -> Any:
        return value.k

    def partitioning(stream: KeyedStream) -> Partitioning:
        return stream._edges[0].partitioning

    assert partitioning(rows.key_by("k")) == Partitioning(Partitioner.KEY, columns=("k",))
    assert partitioning(rows.key_by("n", "k")) == Partitioning(Partitioner.KEY, columns=("n", "k"))
    assert partitioning(rows.key_by(key)) == Partitioning(Partitioner.KEY, selector=key)
    selector = partitioning(rows.key_by(ByLength())).selector
    assert selector is not None
    assert selector("four") == 4


def test_the_last_partitioning_counts(rows: DataStream) -> None:
    keyed = rows.rebalance().shuffle().key_by("k").key_by("n")
    assert keyed._edges[0].partitioning == Partitioning(Partitioner.KEY, columns=("n",))
    assert type(keyed.rebalance()) is DataStream
    assert keyed.rebalance()._edges[0].partitioning.partitioner is Partitioner.REBALANCE


@pytest.mark.parametrize("key", [(), (5,), (str, str), ("k", str)])
def test_what_cannot_be_a_key_is_refused(rows: DataStream, key: Any) -> None:
    with pytest.raises(JobGraphError, match="names of columns, or one function or KeySelector"):
        rows.key_by(*key)


def test_an_unknown_column_is_refused_with_a_hint(program: Program, rows: DataStream) -> None:
    with pytest.raises(JobGraphError, match=r"no column 'N'; the stream has \['k', 'n'\]"):
        rows.key_by("N")
    spelt = program.source("user_id string")
    with pytest.raises(JobGraphError, match="did you mean 'user_id'"):
        spelt.key_by("userid")
    with pytest.raises(JobGraphError, match="this stream has no columns"):
        program.source(int).key_by("value")
    with pytest.raises(KeyTypeError, match="column 'tags' is of type list"):
        program.source("tags array<string>").key_by("tags")


# Unions


def test_a_union_has_the_inputs_of_all(program: Program, rows: DataStream) -> None:
    other, third = program.source("k string, n bigint"), program.source("k string, n bigint")
    rows.union(other).union(third).map(str)
    assert [edge.node.id for edge in last(program).inputs] == [0, 1, 2]
    rows.union(other, third).map(str)
    assert [edge.node.id for edge in last(program).inputs] == [0, 1, 2]


def test_a_union_with_itself_counts_twice(program: Program, rows: DataStream) -> None:
    rows.union(rows).map(str)
    assert [edge.node.id for edge in last(program).inputs] == [0, 0]


def test_a_union_of_other_types_or_environments_is_refused(
    program: Program, rows: DataStream
) -> None:
    with pytest.raises(JobGraphError, match="streams of one type"):
        rows.union(program.source("k string, m bigint"))
    with pytest.raises(JobGraphError, match="one environment"):
        rows.union(Program().source("k string, n bigint"))


def test_a_union_is_keyed_by_all_of_its_parts_or_not_at_all(
    program: Program, rows: DataStream
) -> None:
    other = program.source("k string, n bigint")
    rows.union(other).key_by("k").process(Keyed())
    assert all(e.partitioning.columns == ("k",) for e in last(program).inputs)
    for mixed in (
        rows.key_by("k").union(other.key_by("n")),
        rows.key_by("k").union(other),
        rows.union(other.key_by("k")),
    ):
        assert type(mixed) is DataStream
        mixed.map(str)
        assert not last(program).keyed
    rows.rebalance().union(other).map(str)
    exchanges = [edge.partitioning.partitioner for edge in last(program).inputs]
    assert exchanges == [Partitioner.REBALANCE, Partitioner.FORWARD]


# Side outputs


def test_a_side_output_has_the_type_of_its_tag(program: Program, rows: DataStream) -> None:
    stream = rows.process(Plain())
    late = OutputTag("late", "k string")
    assert stream.get_side_output(late).type == StreamType.of("k string")
    assert stream.get_side_output(OutputTag("any")).type == OBJECTS
    assert set(last(program).side_outputs) == {"late", "any"}
    stream.get_side_output(late).map(str)
    [edge] = last(program).inputs
    assert edge.tag is late


def test_tags_are_equal_by_name() -> None:
    assert OutputTag("late", int) == OutputTag("late")
    assert len({OutputTag("late"), OutputTag("late", int), OutputTag("odd")}) == 2
    assert OutputTag("late") != "late"
    assert repr(OutputTag("late")) == "OutputTag('late')"
    for wrong in ("", None, 5):
        with pytest.raises(JobGraphError, match="non-empty string"):
            OutputTag(wrong)  # type: ignore[arg-type]


def test_failed_rows_have_a_type_of_their_own(rows: DataStream) -> None:
    stream = rows.map(str)
    with pytest.raises(JobGraphError, match="create the tag without a type"):
        stream.on_error(ErrorPolicy.side_output(OutputTag("failed", str)))
    policy = ErrorPolicy.side_output(OutputTag("failed"))
    assert stream.on_error(policy)._edges[0].node.policy is policy


# Settings of operators


def test_settings_belong_to_operators(program: Program, rows: DataStream) -> None:
    side = rows.process(Plain()).get_side_output(OutputTag("late"))
    for stream in (rows.key_by("k"), rows.rebalance(), rows.union(rows), side):
        for use in (
            lambda s: s.uid("x"),
            lambda s: s.name("x"),
            lambda s: s.set_parallelism(1),
            lambda s: s.set_max_parallelism(1),
            lambda s: s.on_error(ErrorPolicy.skip()),
            lambda s: s.get_side_output(OutputTag("x")),
        ):
            with pytest.raises(JobGraphError, match="directly on the result of an operator"):
                use(stream)


@pytest.mark.parametrize("uid", ["", None, 5])
def test_a_uid_is_a_non_empty_string(rows: DataStream, uid: Any) -> None:
    with pytest.raises(JobGraphError, match="non-empty string"):
        rows.map(str).uid(uid)


def test_numbers_of_subtasks_and_key_groups_are_checked_at_once(rows: DataStream) -> None:
    with pytest.raises(JobGraphError, match="at least 1, not 0"):
        rows.map(str).set_parallelism(0)
    for wrong in (0, 32769):
        with pytest.raises(ConfigurationError, match=r"1\.\.32768"):
            rows.map(str).set_max_parallelism(wrong)


# Refused at once


@pytest.mark.parametrize(
    ("use", "said"),
    [
        (lambda s: s.map(5), "map takes a MapFunction or a callable, not int"),
        (lambda s: s.flat_map(None), "flat_map takes a FlatMapFunction or a callable"),
        (lambda s: s.filter("x"), "filter takes a FilterFunction or a callable"),
        (lambda s: s.key_by("k").reduce(1), "reduce takes a ReduceFunction or a callable"),
        (lambda s: s.process(Keyed()), "Keyed is a KeyedProcessFunction"),
        (lambda s: s.key_by("k").process(Plain()), "takes a KeyedProcessFunction, not Plain"),
        (lambda s: s.add_sink(print), "add_sink takes a SinkFunction"),
        (lambda s: s.sink_to("parquet"), "sink_to takes a Sink or a SparkSink, not str"),
        (lambda s: s.foreach_batch(1), "foreach_batch takes a function"),
    ],
)
def test_the_wrong_kind_of_function_is_refused(
    rows: DataStream, use: Callable[[Any], Any], said: str
) -> None:
    with pytest.raises(JobGraphError, match=said):
        use(rows)


def test_sinks_of_columns_need_a_declared_type(rows: DataStream) -> None:
    untyped = rows.map(lambda row: row)
    for use in (
        lambda: untyped.sink_to(SparkSink("noop")),
        lambda: untyped.foreach_batch(print),
    ):
        with pytest.raises(TypeDeclarationError, match=r"needs columns.*output_type"):
            use()
    untyped.print()


def test_what_is_refused_leaves_no_node_behind(program: Program, rows: DataStream) -> None:
    with pytest.raises(JobGraphError):
        rows.map(5)  # type: ignore[call-overload]
    with pytest.raises(JobGraphError):
        rows.key_by("k").sum("nothing")
    with pytest.raises(TypeDeclarationError):
        rows.map(str, output_type="no type at all")
    assert len(program.graph.nodes) == 1
