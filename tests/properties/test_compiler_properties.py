"""Any graph compiles to stages that carry every row to every operator it is meant for."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import OutputTag, ProcessFunction
from holdfast.api.streams.graph import OperatorKind, Partitioner
from tests.support.programs import Program

if TYPE_CHECKING:
    from holdfast.api.streams.data_stream import DataStream
    from holdfast.api.streams.graph import Edge, Node
    from holdfast.job.model import JobPlan
    from holdfast.runtime.plan import Channel, Exchange, OperatorPlan, StagePlan

ODD = OutputTag("odd", int)


class Split(ProcessFunction):
    """Odd numbers go to the side as well."""

    def process_element(self, value: int, ctx: Any) -> Any:
        return [value, (ODD, value)] if value % 2 else [value]


def doubled(value: int) -> int:
    return value * 2


def above_three(value: int) -> bool:
    return value > 3


def last_digit(value: int) -> int:
    return value % 10


INSTRUCTIONS = st.tuples(
    st.sampled_from(
        ["source", "map", "map", "filter", "split", "key", "key", "rebalance", "union", "output"]
    ),
    st.integers(0, 100),
    st.integers(0, 100),
    st.sampled_from([None, None, None, 1, 2, 3, 5]),
)


class Sketch:
    """A program made of instructions, each about streams that earlier ones made."""

    def __init__(self, instructions: list[Any], parallelism: int) -> None:
        self.program = Program(parallelism=parallelism)
        self.outputs: dict[int, list[int]] = {}
        self.streams: list[DataStream] = [self.program.source(int)]
        for what, one, other, width in instructions:
            self.add(what, self.pick(one), self.pick(other), width)
        self.output(self.streams[-1])
        for node in self.program.graph.nodes:
            node.uid = f"n{node.id}"
        self.plan = self.program.compile()

    def pick(self, number: int) -> DataStream:
        return self.streams[number % len(self.streams)]

    def add(self, what: str, one: DataStream, other: DataStream, width: int | None) -> None:
        match what:
            case "source":
                self.streams.append(self.program.source(int))
            case "output":
                self.output(one)
            case "union":
                self.streams.append(one.union(other))
            case "split":
                main = one.process(Split(), int)
                self.streams += [self.sized(main, width), main.get_side_output(ODD)]
            case _:
                self.streams.append(self.sized(self.operator(what, one), width))

    def operator(self, what: str, stream: DataStream) -> DataStream:
        match what:
            case "map":
                return stream.map(doubled, int)
            case "filter":
                return stream.filter(above_three)
            case "key":
                return stream.key_by(last_digit).map(doubled, int)
            case _:
                return stream.rebalance().map(doubled, int)

    def sized(self, stream: DataStream, width: int | None) -> DataStream:
        return stream if width is None else stream.set_parallelism(width)

    def output(self, stream: DataStream) -> None:
        collected = self.program.collect(stream)
        self.outputs[self.program.graph.nodes[-1].id] = collected

    def expected(self, feeds: dict[int, list[int]]) -> dict[int, Counter[int]]:
        """What every output should see, reckoned from the graph alone."""
        given: dict[tuple[int, str | None], list[int]] = {}
        found = {}
        for node in self.program.graph.nodes:
            rows = [n for edge in node.inputs for n in given[edge.node.id, tag_of(edge)]]
            match node.kind:
                case OperatorKind.SOURCE:
                    given[node.id, None] = feeds[node.id]
                case OperatorKind.MAP:
                    given[node.id, None] = list(map(doubled, rows))
                case OperatorKind.FILTER:
                    given[node.id, None] = list(filter(above_three, rows))
                case OperatorKind.PROCESS:
                    given[node.id, None] = rows
                    given[node.id, "odd"] = [n for n in rows if n % 2]
                case _:
                    found[node.id] = Counter(rows)
        return found


def tag_of(edge: Edge) -> str | None:
    return None if edge.tag is None else edge.tag.tag_id


SKETCHES = st.builds(Sketch, st.lists(INSTRUCTIONS, max_size=12), st.integers(1, 4))


class Layout:
    """Where everything is in a plan."""

    def __init__(self, plan: JobPlan) -> None:
        self.plan = plan
        self.exchanges: list[Exchange] = [
            plan.first_exchange,
            *(stage.writes for stage in plan.stages),
        ]
        """Wire i leads into stage i + 1."""
        self.homes: dict[str, list[tuple[int, StagePlan, int]]] = {}
        for stage in [*(source.stage for source in plan.sources), *plan.stages]:
            for place, operator in enumerate(stage.operators):
                self.homes.setdefault(operator.uid, []).append((stage.index, stage, place))

    def stage_of(self, node: Node) -> int:
        return 0 if node.kind is OperatorKind.SOURCE else self.homes[f"n{node.id}"][0][0]

    def channels_of(self, node: Node, tag: str | None) -> list[Channel]:
        """Channels on which an output leaves its stage; the same behind every source."""
        if node.kind is OperatorKind.SOURCE:
            [source] = [s for s in self.plan.sources if s.node is node]
            return list(source.channels)
        _, stage, place = self.homes[f"n{node.id}"][0]
        outlets = [o for o in stage.operators[place].outlets if o.tag == tag]
        return [channel for outlet in outlets for channel in outlet.channels]

    def is_chained(self, edge: Edge, node: Node) -> bool:
        index, stage, place = self.homes[f"n{node.id}"][0]
        if edge.node.kind is OperatorKind.SOURCE:
            return index == 0
        if self.stage_of(edge.node) != index:
            return False
        feeder: OperatorPlan = next(o for o in stage.operators if o.uid == f"n{edge.node.id}")
        fed = [o for o in feeder.outlets if o.tag == tag_of(edge)]
        return any(place in outlet.operators for outlet in fed)

    def crossed(self, channel: Channel) -> list[int]:
        """The stages into which a channel leads, one after the other."""
        return [i + 1 for i, exchange in enumerate(self.exchanges) if channel in exchange.channels]

    def takes_off(self, channel: Channel) -> list[str]:
        return [
            stage.operators[place].uid
            for stage in self.plan.stages
            for place in stage.entries.get(channel.id, ())
        ]


@given(SKETCHES)
def test_every_operator_has_one_place_after_all_that_feeds_it(sketch: Sketch) -> None:
    layout = Layout(sketch.plan)
    for node in sketch.program.graph.nodes:
        if node.kind in (OperatorKind.SOURCE, OperatorKind.OUTPUT):
            continue
        homes = layout.homes[f"n{node.id}"]
        assert {index for index, *_ in homes} == {layout.stage_of(node)}
        assert len(homes) == 1 or layout.stage_of(node) == 0
        for edge in node.inputs:
            exchanged = edge.partitioning.partitioner is not Partitioner.FORWARD
            assert layout.stage_of(node) >= layout.stage_of(edge.node) + exchanged
    for stage in [*(source.stage for source in sketch.plan.sources), *sketch.plan.stages]:
        for place, operator in enumerate(stage.operators):
            assert all(fed > place for outlet in operator.outlets for fed in outlet.operators)


@given(SKETCHES)
def test_every_edge_is_chained_or_has_one_channel_on_all_exchanges_between(sketch: Sketch) -> None:
    layout = Layout(sketch.plan)
    for node in sketch.program.graph.nodes:
        if node.kind in (OperatorKind.SOURCE, OperatorKind.OUTPUT):
            continue
        uid, unchained = f"n{node.id}", 0
        for edge in node.inputs:
            if layout.is_chained(edge, node):
                continue
            unchained += 1
            leaving = layout.channels_of(edge.node, tag_of(edge))
            mine = [channel for channel in leaving if layout.takes_off(channel) == [uid]]
            same = [e for e in node.inputs if (e.node, e.tag) == (edge.node, edge.tag)]
            assert len(mine) == len(same)
            first, last = layout.stage_of(edge.node) + 1, layout.stage_of(node)
            for channel in mine:
                assert layout.crossed(channel) == list(range(first, last + 1))
        taken = [
            c
            for exchange in layout.exchanges
            for c in exchange.channels
            if layout.takes_off(c) == [uid]
        ]
        assert len({channel.id for channel in taken}) == unchained


@given(SKETCHES)
def test_every_output_has_one_channel_to_the_end(sketch: Sketch) -> None:
    layout = Layout(sketch.plan)
    sinks = [sink.id for output in sketch.plan.outputs for sink in output.sinks]
    assert sorted(sinks) == sorted(sketch.outputs)
    for output in sketch.plan.outputs:
        assert layout.takes_off(output.channel) == []
        for sink in output.sinks:
            stages = [layout.stage_of(edge.node) for edge in sink.inputs]
            assert layout.crossed(output.channel) == list(
                range(min(stages) + 1, len(layout.exchanges) + 1)
            )


@given(SKETCHES)
def test_no_row_is_sent_to_a_subtask_that_its_stage_does_not_have(sketch: Sketch) -> None:
    for stage, tasks in zip(sketch.plan.stages, sketch.plan.stage_parallelism, strict=True):
        assert all(channel.parallelism <= tasks for channel in stage.reads.channels)
        assert all(operator.parallelism <= tasks for operator in stage.operators)


@settings(max_examples=40)
@given(SKETCHES, st.lists(st.integers(-5, 20), min_size=1, max_size=8))
def test_every_output_sees_what_the_graph_says(sketch: Sketch, numbers: list[int]) -> None:
    feeds = {source.node.id: numbers for source in sketch.plan.sources}
    with TemporaryDirectory() as directory:
        run = sketch.program.start(Path(directory))
        run.push(*feeds.values())
    expected = sketch.expected(defaultdict(list, feeds))
    assert {sink: Counter(rows) for sink, rows in sketch.outputs.items()} == expected
