"""Connecting and broadcasting streams: what a program may say, and what graph it makes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from holdfast import (
    BroadcastProcessFunction,
    BroadcastStream,
    CoFlatMapFunction,
    CoMapFunction,
    ConnectedStreams,
    CoProcessFunction,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    KeySelector,
    MapStateDescriptor,
    OutputTag,
    ValueStateDescriptor,
)
from holdfast.api.streams.connected import BroadcastConnectedStream
from holdfast.api.streams.graph import OperatorKind, Partitioner
from holdfast.api.streams.keyed_stream import KeyedStream
from holdfast.errors import JobGraphError
from holdfast.types.stream_type import StreamType
from tests.support.programs import Program

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.api.streams.data_stream import DataStream

ROWS = "k string, n bigint"
OTHER = "name string, x double"
RULES = MapStateDescriptor("rules", str, int)


class Mapped(CoMapFunction):
    def map1(self, value: Any) -> str:
        return "1"

    def map2(self, value: Any) -> str:
        return "2"


class FlatMapped(CoFlatMapFunction):
    def flat_map1(self, value: Any) -> Iterator[str]:
        yield "1"

    def flat_map2(self, value: Any) -> Any:
        yield "2"


class Processed(CoProcessFunction):
    def process_element1(self, value: Any, ctx: Any) -> Any:
        return None

    def process_element2(self, value: Any, ctx: Any) -> Iterator[int]:
        yield 2


class KeyedProcessed(KeyedCoProcessFunction):
    def process_element1(self, value: Any, ctx: Any) -> Iterator[int]:
        yield 1

    def process_element2(self, value: Any, ctx: Any) -> Iterator[int]:
        yield 2


class Differing(CoMapFunction):
    def map1(self, value: Any) -> str:
        return "1"

    def map2(self, value: Any) -> int:
        return 2


class Ruled(BroadcastProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Iterator[int]:
        yield 1

    def process_broadcast_element(self, value: Any, ctx: Any) -> None:
        return None


class KeyedRuled(KeyedBroadcastProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Iterator[int]:
        yield 1

    def process_broadcast_element(self, value: Any, ctx: Any) -> Any:
        return None


class Keep(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        return [value]


class FirstLetter(KeySelector):
    def get_key(self, value: Any) -> str:
        return str(value[0][0])


@pytest.fixture
def others(program: Program) -> DataStream:
    return program.source(OTHER)


def made(stream: DataStream) -> Any:
    return stream._edges[0].node


# Connecting


@pytest.mark.parametrize("keyed", [True, False])
@pytest.mark.parametrize(
    ("method", "function", "kind", "element"),
    [
        ("map", Mapped(), OperatorKind.CO_MAP, str),
        ("flat_map", FlatMapped(), OperatorKind.CO_FLAT_MAP, str),
    ],
)
def test_connected_streams_are_mapped_keyed_or_not(
    rows: DataStream,
    others: DataStream,
    keyed: bool,
    method: str,
    function: Any,
    kind: OperatorKind,
    element: type,
) -> None:
    connected = rows.connect(others)
    if keyed:
        connected = connected.key_by("k", "name")
    stream = getattr(connected, method)(function)
    node = made(stream)
    assert (node.kind, node.function, node.keyed) == (kind, function, keyed)
    assert node.has_two_inputs
    assert [edge.side for edge in node.inputs] == [0, 1]
    assert [edge.type for edge in node.inputs] == [rows.type, others.type]
    assert stream.type == StreamType.of(element)
    assert not isinstance(stream, KeyedStream)


def test_connected_streams_are_processed_with_keyed_state_if_both_are_keyed(
    rows: DataStream, others: DataStream
) -> None:
    plain = rows.connect(others).process(Processed())
    keyed = rows.key_by("k").connect(others.key_by("name")).process(KeyedProcessed())
    assert (made(plain).kind, made(plain).may_have_state) == (OperatorKind.CO_PROCESS, False)
    assert (made(keyed).kind, made(keyed).may_have_state) == (OperatorKind.KEYED_CO_PROCESS, True)


def test_the_two_methods_share_a_declared_type_and_either_may_leave_it_out(
    rows: DataStream, others: DataStream
) -> None:
    connected = rows.connect(others)
    assert connected.flat_map(FlatMapped()).type == StreamType.of(str)
    assert connected.process(Processed()).type == StreamType.of(int)
    assert connected.map(Differing(), "string").type == StreamType.of("string")
    with pytest.raises(JobGraphError, match=r"declare different types, .* and .*; give an output_"):
        connected.map(Differing())


def test_connected_streams_are_keyed_in_every_way_that_a_stream_is(
    rows: DataStream, others: DataStream
) -> None:
    connected = rows.connect(others).key_by(["k", "n"], ("name", "x"))
    first, second = (
        stream._edges[0].partitioning for stream in (connected._first, connected._second)
    )
    assert (first.columns, second.columns) == (("k", "n"), ("name", "x"))
    selector = FirstLetter()
    connected = rows.connect(others).key_by(selector, len)
    first, second = (
        stream._edges[0].partitioning for stream in (connected._first, connected._second)
    )
    assert (first.selector, second.selector) == (selector.get_key, len)
    assert rows.connect(others)._first is rows


def test_one_keyed_stream_beside_one_that_is_not_is_refused(
    rows: DataStream, others: DataStream
) -> None:
    for connected in (rows.key_by("k").connect(others), rows.connect(others.key_by("name"))):
        for use in (
            lambda c: c.map(Mapped()),
            lambda c: c.flat_map(FlatMapped()),
            lambda c: c.process(Processed()),
            lambda c: c.process(KeyedProcessed()),
        ):
            with pytest.raises(JobGraphError, match="one of the two streams is keyed and the oth"):
                use(connected)


@pytest.mark.parametrize(
    ("method", "function", "said"),
    [
        ("map", str, "map takes a CoMapFunction, not type"),
        ("map", FlatMapped(), "map takes a CoMapFunction, not FlatMapped"),
        ("flat_map", Mapped(), "flat_map takes a CoFlatMapFunction, not Mapped"),
        ("process", KeyedProcessed(), "process takes a CoProcessFunction, not KeyedProcessed"),
        ("process", Ruled(), "process takes a CoProcessFunction, not Ruled"),
    ],
)
def test_another_function_than_the_method_takes_is_refused(
    program: Program, rows: DataStream, others: DataStream, method: str, function: Any, said: str
) -> None:
    with pytest.raises(JobGraphError, match=said):
        getattr(rows.connect(others), method)(function)
    with pytest.raises(JobGraphError, match="process takes a KeyedCoProcessFunction, not Process"):
        rows.connect(others).key_by("k", "name").process(Processed())
    assert len(program.graph.nodes) == 2


def test_what_is_no_stream_or_of_another_environment_cannot_be_connected(rows: DataStream) -> None:
    with pytest.raises(
        JobGraphError, match=r"connect takes a stream, or a BroadcastStream .* not l"
    ):
        rows.connect([1, 2])  # type: ignore[call-overload]
    foreign = Program().source(OTHER)
    for other in (foreign, foreign.broadcast(RULES)):
        with pytest.raises(JobGraphError, match="connect needs streams of one environment"):
            rows.connect(other)


def test_a_stream_may_be_connected_with_itself(rows: DataStream) -> None:
    node = made(rows.connect(rows).map(Mapped()))
    assert [(edge.node, edge.side) for edge in node.inputs] == [
        (made(rows), 0),
        (made(rows), 1),
    ]


def test_each_side_may_be_a_union(program: Program, rows: DataStream) -> None:
    more = program.source(ROWS)
    node = made(rows.union(more).connect(more.union(rows)).map(Mapped()))
    assert [edge.side for edge in node.inputs] == [0, 0, 1, 1]


# Broadcasting


def test_a_broadcast_stream_remembers_its_states_and_goes_to_all_subtasks(
    rows: DataStream, others: DataStream
) -> None:
    more = MapStateDescriptor("more", str, str)
    control = others.broadcast(RULES, more)
    assert isinstance(control, BroadcastStream)
    connected = rows.connect(control)
    assert isinstance(connected, BroadcastConnectedStream)
    node = made(connected.process(Ruled()))
    assert (node.kind, node.details) == (OperatorKind.BROADCAST_PROCESS, (RULES, more))
    assert [edge.partitioning.partitioner for edge in node.inputs] == [
        Partitioner.FORWARD,
        Partitioner.BROADCAST,
    ]
    assert [edge.side for edge in node.inputs] == [0, 1]
    assert node.may_have_state, "broadcast states are found by the uid"
    keyed = made(rows.key_by("k").connect(control).process(KeyedRuled()))
    assert (keyed.kind, keyed.keyed) == (OperatorKind.KEYED_BROADCAST_PROCESS, True)


def test_without_states_a_stream_is_sent_to_all_subtasks_of_any_operator(rows: DataStream) -> None:
    stream = rows.broadcast()
    assert not isinstance(stream, BroadcastStream | ConnectedStreams)
    [edge] = made(stream.map(str)).inputs
    assert (edge.partitioning.partitioner, edge.side) == (Partitioner.BROADCAST, 0)
    assert stream.key_by("k")._edges[0].partitioning.partitioner is Partitioner.KEY


def test_a_broadcast_function_runs_on_the_kind_of_stream_it_is_for(
    rows: DataStream, others: DataStream
) -> None:
    control = others.broadcast(RULES)
    with pytest.raises(JobGraphError, match="process takes a BroadcastProcessFunction, not Keyed"):
        rows.connect(control).process(KeyedRuled())
    with pytest.raises(JobGraphError, match="takes a KeyedBroadcastProcessFunction, not Ruled"):
        rows.key_by("k").connect(control).process(Ruled())
    with pytest.raises(JobGraphError, match="takes a BroadcastProcessFunction, not Processed"):
        rows.connect(control).process(Processed())  # type: ignore[arg-type]


@pytest.mark.parametrize("descriptor", [ValueStateDescriptor("v", int), "rules", None])
def test_a_broadcast_state_is_described_as_a_map(rows: DataStream, descriptor: Any) -> None:
    with pytest.raises(JobGraphError, match="broadcast takes MapStateDescriptors, since a broad"):
        rows.broadcast(RULES, descriptor)


# Uids


def test_uids_of_programs_without_second_inputs_are_what_they_always_were() -> None:
    """State is found by them: these are the ones that earlier versions derived."""
    program = Program()
    rows = program.source(ROWS)
    mapped = rows.map(str, ROWS)
    kept = mapped.key_by("k").process(Keep(), ROWS)
    kept.get_side_output(OutputTag("late", ROWS)).rebalance().filter(bool)
    rows.union(mapped).key_by("k", "n").sum("n").print()
    rows.key_by(lambda v: v).process(Keep(), ROWS).shuffle().flat_map(list)
    assert list(program.graph.uids().values()) == [
        "68d6141d320a1c5b",
        "235bd20070d3f509",
        "bb4e6031b059da83",
        "7a2ad247a4afad47",
        "753aebec5d23094f",
        "b9da1a5eadbd1cdb",
        "6f357195d1bd1d41",
        "dd6367177bfb0ce0",
    ]


def uid(program: Program, stream: DataStream) -> str:
    return program.graph.uids()[made(stream).id]


def test_the_order_in_which_rows_are_read_does_not_change_a_uid() -> None:
    uids = []
    for ordered in (False, True):
        program = Program()
        keyed = program.source(ROWS).key_by("k")
        uids.append(uid(program, (keyed.order_by("n") if ordered else keyed).process(Keep())))
    assert uids[0] == uids[1]


def test_the_two_sides_are_told_apart() -> None:
    uids = []
    for swapped in (False, True):
        program = Program()
        first = program.source(ROWS).uid("a").key_by("k")
        second = program.source(ROWS).uid("b").key_by("k")
        if swapped:
            first, second = second, first
        uids.append(uid(program, first.connect(second).process(KeyedProcessed())))
    assert uids[0] != uids[1]


def test_it_matters_on_which_side_a_stream_comes() -> None:
    uids = []
    for on_first_side in (False, True):
        program = Program()
        a, b, c = (program.source(ROWS).uid(name) for name in "abc")
        connected = a.union(b).connect(c) if on_first_side else a.connect(b.union(c))
        uids.append(uid(program, connected.map(Mapped())))
    assert uids[0] != uids[1]


def test_what_is_keyed_shares_one_order_for_all_parts_of_a_union(
    program: Program, rows: DataStream
) -> None:
    stream = rows.union(program.source(ROWS)).key_by("k").order_by("n", "k")
    assert {edge.partitioning.order for edge in stream._edges} == {("n", "k")}
    assert {edge.partitioning.partitioner for edge in stream._edges} == {Partitioner.KEY}


def test_an_order_needs_columns_or_event_time(rows: DataStream) -> None:
    with pytest.raises(JobGraphError, match="order_by: there is no column 'm'"):
        rows.key_by("k").order_by("m")
    with pytest.raises(JobGraphError, match="sorts by event time, which this stream does not have"):
        rows.key_by("k").order_by()


def test_columns_whose_values_are_never_equal_as_keys_are_refused(program: Program) -> None:
    numbers = program.source("k int, n bigint").key_by("k")
    texts = program.source("k string, n bigint").key_by("k")
    with pytest.raises(JobGraphError, match="keys of different types, int and str"):
        numbers.connect(texts).process(KeyedProcessed())
    wide = program.source("k bigint, n bigint").key_by("k")
    numbers.connect(wide).process(KeyedProcessed())
    numbers.connect(texts.key_by(lambda row: int(row.k))).process(KeyedProcessed())
