"""The job graph: identity of operators, and what an execution takes of it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

import holdfast
from holdfast import (
    Configuration,
    ErrorPolicy,
    KeyedProcessFunction,
    OutputTag,
    ProcessFunction,
    StreamExecutionEnvironment,
)
from holdfast.api.streams.graph import JobGraph, OperatorKind, Partitioner, calling_line
from holdfast.errors import DuplicateUidError, JobGraphError
from tests.support.programs import Program

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.api.streams.data_stream import DataStream


class Keep(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        return [value]


class Split(ProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        return [value]


LATE, ODD = OutputTag("late"), OutputTag("odd")


def uid_of(program: Program, stream: DataStream) -> str:
    return program.graph.uids()[stream._edges[0].node.id]


def counts(program: Program) -> DataStream:
    """A small program; returns its stateful operator."""
    words = program.source().uid("words").filter(bool)
    return words.key_by("k").process(Keep())


# Derived uids


def test_the_same_program_has_the_same_uids() -> None:
    first, second = Program(), Program()
    for program in (first, second):
        counted = counts(program)
        counted.print()
        counted.map(str).union(program.source(str)).rebalance().map(len)
    assert first.graph.uids() == second.graph.uids()
    assert len(set(first.graph.uids().values())) == len(first.graph.nodes)


@pytest.mark.parametrize(
    "change",
    [
        lambda stream: stream.name("other"),
        lambda stream: stream.set_parallelism(7),
        lambda stream: stream.set_max_parallelism(999),
        lambda stream: stream.on_error(ErrorPolicy.skip()),
        lambda stream: stream.map(str).print(),
        lambda stream: stream.get_side_output(LATE).print(),
    ],
    ids=["name", "parallelism", "max parallelism", "policy", "consumer", "side output"],
)
def test_a_derived_uid_does_not_depend_on_settings_or_consumers(
    change: Callable[[DataStream], Any],
) -> None:
    plain, changed = Program(), Program()
    expected = uid_of(plain, counts(plain))
    stream = counts(changed)
    change(stream)
    assert uid_of(changed, stream) == expected


def test_a_derived_uid_does_not_depend_on_the_output_type() -> None:
    plain, typed = Program(), Program()
    expected = uid_of(plain, plain.source().map(str))
    assert uid_of(typed, typed.source().map(str, "string")) == expected


def test_a_derived_uid_does_not_depend_on_unrelated_parts() -> None:
    plain, busy = Program(), Program()
    expected = uid_of(plain, counts(plain))
    other = busy.source().uid("other")
    other.map(str).key_by(len).process(Keep()).print()
    stream = counts(busy)
    other.key_by("k").process(Keep()).print()
    assert uid_of(busy, stream) == expected


def test_a_derived_uid_does_not_depend_on_the_order_in_which_branches_were_made() -> None:
    def build(program: Program, order: tuple[str, ...]) -> dict[str, str]:
        rows = program.source()
        make = {
            "map": lambda: rows.map(str),
            "filter": lambda: rows.filter(bool),
            "k": lambda: rows.key_by("k").process(Keep()),
            "n": lambda: rows.key_by("n").process(Keep()),
            "function": lambda: rows.key_by(str).process(Keep()),
            "rebalanced": lambda: rows.rebalance().map(str),
        }
        streams = {name: make[name]() for name in order}
        return {name: uid_of(program, stream) for name, stream in sorted(streams.items())}

    names = ("map", "filter", "k", "n", "function", "rebalanced")
    first = build(Program(), names)
    assert build(Program(), tuple(reversed(names))) == first
    assert len(set(first.values())) == len(names)


def test_side_outputs_and_the_main_output_give_different_uids() -> None:
    program = Program()
    split = program.source().process(Split())
    streams = [split, split.get_side_output(LATE), split.get_side_output(ODD)]
    assert len({uid_of(program, stream.map(str)) for stream in streams}) == 3


def test_a_uid_given_upstream_is_what_derived_ones_build_on() -> None:
    first, second = Program(), Program()
    expected = uid_of(first, first.source(name="clicks").uid("clicks").key_by("k").process(Keep()))
    second.source(name="a source that came later").key_by("k").process(Keep())
    renamed = second.source(name="renamed").uid("clicks")
    assert uid_of(second, renamed.key_by("k").process(Keep())) == expected


def test_operators_that_do_the_same_are_told_apart_by_their_order() -> None:
    program = Program()
    rows = program.source()
    twins = [uid_of(program, rows.key_by("k").process(Keep())) for _ in range(3)]
    assert len(set(twins)) == 3
    again = Program()
    rows = again.source()
    assert [uid_of(again, rows.key_by("k").process(Keep())) for _ in range(3)] == twins


def test_a_derived_uid_gives_way_to_a_given_one() -> None:
    plain, crossed = Program(), Program()
    derived = uid_of(plain, counts(plain))
    stream = counts(crossed)
    crossed.source().map(str).uid(derived)
    assert uid_of(crossed, stream) != derived
    crossed.graph.check_uids(generate=True)


# Given uids


def test_a_uid_given_twice_is_refused_with_both_places() -> None:
    program = Program()
    program.source().map(str).name("first").uid("same")
    program.source().map(str).name("second").uid("same")
    line = r"test_graph\.py:\d+"
    with pytest.raises(
        DuplicateUidError, match=rf"'same'.*'first' at .*{line}.*'second' at .*{line}"
    ):
        program.graph.check_uids(generate=True)


def test_operators_with_state_need_uids_if_none_are_generated() -> None:
    program = Program()
    keyed = program.source().key_by("k")
    keyed.process(Keep()).name("anonymous")
    keyed.reduce(max).name("reduced")
    keyed.process(Keep()).uid("named")
    program.source().map(str).name("stateless")
    with pytest.raises(JobGraphError, match="no uid") as caught:
        program.graph.check_uids(generate=False)
    assert "'anonymous', made at" in str(caught.value)
    assert "'reduced'" in str(caught.value)
    assert "named" not in str(caught.value).replace("'anonymous'", "")
    assert "stateless" not in str(caught.value)
    assert [node.name for node in program.graph.without_uid()] == ["anonymous", "reduced"]
    program.graph.check_uids(generate=True)


def test_a_sink_on_a_keyed_stream_has_no_state_and_needs_no_uid() -> None:
    program = Program()
    program.source().key_by("k").print()
    assert program.graph.without_uid() == []
    program.graph.check_uids(generate=False)


# Nodes


def test_a_node_knows_the_line_that_made_it() -> None:
    program = Program()
    program.source().map(str).name("to text").uid("t")
    node = program.graph.nodes[-1]
    assert re.search(r"test_graph\.py:\d+$", node.where)
    assert str(node) == f"'to text' (uid 't'), made at {node.where}"
    assert str(program.graph.nodes[0]).startswith("'Source', made at ")


def test_lines_of_the_package_itself_are_not_where_a_node_was_made() -> None:
    package = Path(str(holdfast.__file__)).parent
    scope: dict[str, Any] = {"calling_line": calling_line}
    exec(compile("def source(): return calling_line()", package / "spark" / "x.py", "exec"), scope)
    assert re.search(r"test_graph\.py:\d+$", scope["source"]())


def test_a_node_is_named_after_its_kind_unless_it_is_named() -> None:
    program = Program()
    rows = program.source()
    rows.map(str)
    rows.key_by("k").sum("n")
    rows.print()
    assert [node.name for node in program.graph.nodes] == [
        "Source", "Map", "sum('n')", "Sink: print",
    ]  # fmt: skip


def test_error_policies_say_what_they_do() -> None:
    assert ErrorPolicy.fail() == ErrorPolicy()
    assert (ErrorPolicy.skip().mode, ErrorPolicy.skip().tag) == ("skip", None)
    assert ErrorPolicy.side_output(LATE).tag is LATE


# What an execution takes


def nodes_of(graph: JobGraph) -> list[str]:
    return [node.name for node in graph.nodes]


def test_an_execution_takes_what_no_other_has_run() -> None:
    program = Program()
    first = program.source(name="first").map(str).name("mapped")
    first.print("a")
    part = program.graph.pending()
    assert nodes_of(part) == ["first", "mapped", "Sink: print"]
    program.graph.mark_executed(part)
    assert program.graph.pending().nodes == []
    program.source(name="second").print("b")
    assert nodes_of(program.graph.pending()) == ["second", "Sink: print"]


def test_a_branch_added_later_brings_its_ancestors_and_nothing_else() -> None:
    program = Program()
    rows = program.source(name="rows")
    mapped = rows.map(str).name("mapped")
    mapped.print("a")
    rows.filter(bool).name("filtered").print("b")
    program.graph.mark_executed(program.graph.pending())
    mapped.map(len).name("later").print("c")
    assert nodes_of(program.graph.pending()) == ["rows", "mapped", "later", "Sink: print"]


def test_the_end_of_one_execution_may_be_the_middle_of_the_next() -> None:
    program = Program()
    mapped = program.source().map(str).name("mapped")
    program.graph.mark_executed(program.graph.pending())
    mapped.print()
    assert nodes_of(program.graph.pending()) == ["Source", "mapped", "Sink: print"]


def test_an_operator_has_the_same_derived_uid_in_every_execution() -> None:
    program = Program()
    counted = counts(program)
    counted.print("a")
    part = program.graph.pending()
    node = counted._edges[0].node
    before = part.uids()[node.id]
    program.graph.mark_executed(part)
    counted.print("b")
    assert program.graph.pending().uids()[node.id] == before


def test_a_partial_graph_shares_its_nodes_and_keeps_their_ids() -> None:
    program = Program()
    program.source(name="unread")
    program.graph.mark_executed(program.graph.pending())
    program.source().print()
    part = program.graph.pending()
    assert [node.id for node in part.nodes] == [1, 2]
    assert part.nodes[0] is program.graph.nodes[1]


def test_a_node_is_keyed_by_its_inputs() -> None:
    program = Program()
    rows = program.source()
    keyed, plain = rows.key_by("k").map(str), rows.rebalance().map(str)
    assert keyed._edges[0].node.keyed
    assert not plain._edges[0].node.keyed
    assert plain._edges[0].node.inputs[0].partitioning.partitioner is Partitioner.REBALANCE
    assert program.graph.nodes[0].kind is OperatorKind.SOURCE


# Types


def test_an_untyped_stream_is_noticed_where_it_crosses_an_exchange() -> None:
    program = Program()
    numbers = program.source("value bigint")
    numbers.map(lambda n: n).map(lambda n: n).print()
    assert program.graph.untyped() == []
    numbers.map(lambda n: n).name("twice").filter(bool).key_by(lambda n: n).process(Keep())
    assert [node.name for node in program.graph.untyped()] == ["twice"]


@pytest.mark.parametrize("declared", [int, "bigint", Any])
def test_a_declared_stream_may_cross_an_exchange(declared: Any) -> None:
    program = Program()
    program.source("value bigint").map(lambda n: n, declared).rebalance().print()
    assert program.graph.untyped() == []


def test_a_side_output_has_the_type_of_its_tag() -> None:
    program = Program()
    split = program.source().process(Split(), "n bigint").name("split")
    split.get_side_output(OutputTag("typed", int)).key_by(lambda n: n).print()
    split.on_error(ErrorPolicy.side_output(LATE)).get_side_output(LATE).rebalance().print()
    assert program.graph.untyped() == []
    split.get_side_output(ODD).key_by(lambda n: n).print()
    assert [node.name for node in program.graph.untyped()] == ["split"]


def test_an_environment_warns_of_untyped_exchanges_and_says_how_to_declare_types() -> None:
    program = Program()
    program.source("value bigint").map(lambda n: n).rebalance().print()
    env = StreamExecutionEnvironment(cast("Any", None), Configuration())
    with pytest.warns(UserWarning, match=r"no declared type.*'Map', made at .*output_type"):
        env._warn_about_types(program.graph)
