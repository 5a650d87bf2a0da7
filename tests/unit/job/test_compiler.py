"""From a graph to stages, channels and exchanges."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from holdfast import (
    CoMapFunction,
    ErrorPolicy,
    KeyedBroadcastProcessFunction,
    KeyedProcessFunction,
    MapStateDescriptor,
    OutputTag,
    ProcessFunction,
    SinkFunction,
    SparkSink,
    WatermarkStrategy,
)
from holdfast.api.streams.graph import OperatorKind, Partitioner
from holdfast.errors import ConfigurationError, JobGraphError
from holdfast.job.compiler import compile_rescaled
from holdfast.job.model import SortedChannel
from holdfast.runtime.plan import TimeColumn
from tests.support.programs import Program

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.job.model import JobPlan
    from holdfast.runtime.plan import Channel, OperatorPlan, StagePlan


class Keep(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        return [value]


class Split(ProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        return [value]


class Swallow(SinkFunction):
    def invoke(self, value: Any, context: Any) -> None:
        return None


ROWS = "k string, n bigint"
LATE = OutputTag("late", ROWS)


def same(value: Any) -> Any:
    return value


def names(operators: Iterable[OperatorPlan]) -> list[str]:
    return [operator.name for operator in operators]


def stages(plan: JobPlan) -> list[list[str]]:
    """Names of the operators of every stage; those of stage 0 once per source."""
    at_sources = [name for source in plan.sources for name in names(source.stage.operators)]
    return [at_sources, *(names(stage.operators) for stage in plan.stages)]


def entries(stage: StagePlan) -> dict[int, list[str]]:
    return {
        channel: [stage.operators[i].name for i in indices]
        for channel, indices in stage.entries.items()
    }


def ids(channels: Iterable[Channel]) -> list[int]:
    return [channel.id for channel in channels]


# Stages


def test_operators_that_feed_each_other_directly_share_a_stage(program: Program) -> None:
    rows = program.source(ROWS)
    rows.map(same, ROWS).name("a").filter(bool).name("b").key_by("k").process(Keep(), ROWS).name(
        "c"
    ).map(same).name("d").print()
    plan = program.compile()
    assert stages(plan) == [["a", "b"], ["c", "d"]]
    [stage] = plan.stages
    assert stage.operators[0].outlets[0].operators == (1,)
    assert stage.operators[0].outlets[0].channels == ()
    assert plan.stage_parallelism == (2,)


def test_every_exchange_starts_a_stage(program: Program) -> None:
    stream = program.source(ROWS).key_by("k").process(Keep(), ROWS).name("a")
    stream = stream.key_by("n").process(Keep(), ROWS).name("b")
    stream = stream.rebalance().map(same, ROWS).name("c")
    stream.shuffle().map(same, ROWS).name("d").print()
    plan = program.compile()
    assert stages(plan) == [[], ["a"], ["b"], ["c"], ["d"]]
    carried = [stage.reads.channels[0].partitioning.partitioner for stage in plan.stages]
    assert carried == [Partitioner.KEY, Partitioner.KEY, Partitioner.REBALANCE, Partitioner.SHUFFLE]


def test_a_source_may_lead_straight_to_an_output(program: Program) -> None:
    program.source(ROWS).print()
    plan = program.compile()
    assert stages(plan) == [[]]
    [source] = plan.sources
    assert source.direct
    assert ids(source.channels) == ids(plan.first_exchange.channels) == [0]
    assert not plan.first_exchange.routed
    assert plan.stage_parallelism == ()


def test_a_job_without_operators_is_refused(program: Program) -> None:
    with pytest.raises(JobGraphError, match="no operators"):
        program.compile()
    program.source(ROWS)
    with pytest.raises(JobGraphError, match="no operators"):
        program.compile()


def test_a_source_that_nothing_reads_is_left_out(program: Program) -> None:
    program.source(ROWS, "unread")
    program.source(ROWS, "read").print()
    assert [source.node.name for source in program.compile().sources] == ["read"]


def test_an_operator_that_nothing_reads_still_runs(program: Program) -> None:
    program.source(ROWS).key_by("k").process(Keep()).name("alone")
    plan = program.compile()
    assert stages(plan) == [[], ["alone"]]
    assert plan.stages[0].operators[0].outlets == ()
    assert plan.stages[0].writes.channels == ()


# Parallelism


def test_another_parallelism_breaks_a_chain(program: Program) -> None:
    stream = program.source(ROWS).key_by("k").process(Keep(), ROWS).name("a")
    stream = stream.map(same, ROWS).name("b").set_parallelism(5)
    stream.map(same, ROWS).name("c").set_parallelism(5).print()
    plan = program.compile()
    assert stages(plan) == [[], ["a"], ["b", "c"]]
    [channel] = plan.stages[1].reads.channels
    assert channel.partitioning.partitioner is Partitioner.REBALANCE
    assert channel.parallelism == 5
    assert plan.stage_parallelism == (2, 5)


def test_at_the_sources_a_parallelism_of_its_own_breaks_a_chain(program: Program) -> None:
    rows = program.source(ROWS)
    rows.map(same, ROWS).name("with the source").map(same).name("apart").set_parallelism(2).print()
    assert stages(program.compile()) == [["with the source"], ["apart"]]


def test_a_stage_has_the_tasks_of_its_widest_operator(program: Program) -> None:
    rows = program.source(ROWS)
    rows.key_by("k").process(Keep()).name("a").set_parallelism(3)
    rows.key_by("n").process(Keep()).name("b").set_parallelism(7)
    plan = program.compile()
    assert plan.stage_parallelism == (7,)
    assert [operator.parallelism for operator in plan.stages[0].operators] == [3, 7]


def test_a_stage_has_a_task_for_every_row_that_passes_through(program: Program) -> None:
    rows = program.source(ROWS)
    rows.key_by("k").process(Keep(), ROWS).set_parallelism(1).key_by("n").process(
        Keep(), ROWS
    ).set_parallelism(1).union(rows).map(same).set_parallelism(3).print()
    rows.map(same, ROWS).print()
    plan = program.compile()
    for stage, tasks in zip(plan.stages, plan.stage_parallelism, strict=True):
        assert all(channel.parallelism <= tasks for channel in stage.reads.channels)


def test_rows_on_their_way_out_find_a_task_in_stages_narrower_than_they_are(
    program: Program,
) -> None:
    rows = program.source(ROWS)
    rows.key_by("k").process(Keep()).set_parallelism(1).print()
    rows.map(same, ROWS).print()
    plan = program.compile()
    widest = max(channel.parallelism for channel in plan.first_exchange.channels)
    assert plan.stage_parallelism == (widest,)


def test_key_groups_are_the_operators_own_or_the_settings_or_flinks_default() -> None:
    own, set_for_all, default = Program(), Program(max_parallelism=512), Program(parallelism=100)
    for program in (own, set_for_all, default):
        stream = program.source(ROWS).key_by("k").process(Keep())
        if program is own:
            stream.set_max_parallelism(7)
    assert [
        program.compile().stages[0].operators[0].max_parallelism
        for program in (own, set_for_all, default)
    ] == [7, 512, 256]


def test_more_subtasks_than_key_groups_are_refused_with_the_operators_place(
    program: Program,
) -> None:
    stream = program.source(ROWS).key_by("k").process(Keep()).name("wide")
    stream.set_parallelism(9).set_max_parallelism(8)
    with pytest.raises(
        ConfigurationError, match=r"'wide', made at .*test_compiler\.py:\d+.*9 is above.* 8"
    ):
        program.compile()


def test_a_rescaled_job_keeps_max_parallelism_and_the_parallelism_of_an_operators_own() -> None:
    program = Program(parallelism=100)
    rows = program.source(ROWS)
    rows.key_by("k").process(Keep()).uid("default")
    rows.key_by("k").process(Keep()).uid("own").set_parallelism(3)
    before = program.compile()
    after = compile_rescaled(program.graph, program.settings, before, 2)
    assert (after.operators["default"].parallelism, after.operators["own"].parallelism) == (2, 3)
    assert after.uids == before.uids
    assert [plan.operators["default"].max_parallelism for plan in (before, after)] == [256, 256]
    again = compile_rescaled(program.graph, program.settings, after, 256)
    assert again.operators["default"].parallelism == 256
    with pytest.raises(ConfigurationError, match="257 is above max parallelism 256"):
        compile_rescaled(program.graph, program.settings, again, 257)


def test_rescaling_may_chain_operators_that_were_apart(program: Program) -> None:
    rows = program.source(ROWS).rebalance().map(same, ROWS).name("first")
    rows.map(same, ROWS).name("second").set_parallelism(3)
    apart = program.compile()
    assert stages(apart)[1:] == [["first"], ["second"]]
    together = compile_rescaled(program.graph, program.settings, apart, 3)
    assert stages(together)[1:] == [["first", "second"]]


# Unions


def test_a_forward_edge_over_stages_becomes_an_exchange(program: Program) -> None:
    rows = program.source(ROWS)
    early = rows.map(same, ROWS).name("early")
    late = early.key_by("k").process(Keep(), ROWS).name("a").key_by("n").process(Keep(), ROWS)
    late.name("b").union(early).map(same).name("both").print()
    plan = program.compile()
    assert stages(plan) == [["early"], ["a"], ["b", "both"]]
    [to_both] = [c for c in plan.first_exchange.channels if c.stage == 2]
    assert to_both.partitioning.partitioner is Partitioner.REBALANCE
    assert to_both in plan.stages[0].writes.channels
    assert to_both.id not in plan.stages[0].entries
    assert entries(plan.stages[1])[to_both.id] == ["both"]
    assert plan.stages[1].operators[0].outlets[0].operators == (1,)


def test_a_union_of_sources_runs_behind_each_of_them(program: Program) -> None:
    first, second = program.source(ROWS, "first"), program.source(ROWS, "second")
    first.map(same, ROWS).name("of first").union(second).map(same, ROWS).name("both").print()
    plan = program.compile()
    by_source = {s.node.name: names(s.stage.operators) for s in plan.sources}
    assert by_source == {"first": ["of first", "both"], "second": ["both"]}
    assert {s.node.name: s.stage.entries for s in plan.sources} == {
        "first": {-1: (0,)},
        "second": {-1: (0,)},
    }


def test_a_union_with_itself_feeds_an_operator_twice(program: Program) -> None:
    rows = program.source(ROWS)
    rows.union(rows).map(same, ROWS).name("chained")
    keyed = rows.key_by("k").process(Keep(), ROWS).name("keyed")
    keyed.union(keyed).map(same, ROWS).name("twice")
    both = keyed.union(keyed).key_by("n").process(Keep(), ROWS).name("by two channels")
    both.print()
    plan = program.compile()
    assert plan.sources[0].stage.entries == {-1: (0, 0)}
    first, second = plan.stages
    assert names(first.operators) == ["keyed", "twice"]
    assert first.operators[0].outlets[0].operators == (1, 1)
    assert len(first.operators[0].outlets[0].channels) == 2
    assert list(entries(second).values()) == [["by two channels"], ["by two channels"]]


def test_a_union_of_different_stages_waits_for_the_latest(program: Program) -> None:
    rows = program.source(ROWS)
    once = rows.key_by("k").process(Keep(), ROWS).name("1")
    twice = once.key_by("k").process(Keep(), ROWS).name("2")
    rows.union(once, twice).key_by("k").process(Keep()).name("3").print()
    plan = program.compile()
    assert stages(plan) == [[], ["1"], ["2"], ["3"]]
    assert [len(stage.reads.channels) for stage in plan.stages] == [2, 3, 3]


# Sources


def test_sources_of_different_types_share_the_first_exchange(program: Program) -> None:
    program.source(ROWS, "rows").key_by("k").process(Keep())
    program.source("n bigint", "numbers").key_by("n").process(Keep())
    program.source(ROWS, "more rows").key_by("n").process(Keep())
    plan = program.compile()
    exchange = plan.first_exchange
    assert [schema.names for schema in exchange.payloads] == [["k", "n"], ["n"]]
    assert exchange.payload_of == {0: 0, 1: 1, 2: 0}
    assert (exchange.flat, exchange.tagged, exchange.routed) == (False, True, True)
    assert [ids(source.channels) for source in plan.sources] == [[0], [1], [2]]


def test_what_runs_behind_a_source_reads_its_own_rows(program: Program) -> None:
    program.source(ROWS).map(same, ROWS).print()
    [source] = program.compile().sources
    assert not source.direct
    reads = source.stage.reads
    assert ids(reads.channels) == [-1]
    assert reads.payloads == (source.node.output.schema,)
    assert source.stage.copies == {-1: ()}


def test_a_sources_own_rows_leave_beside_what_runs_on_them(program: Program) -> None:
    rows = program.source(ROWS)
    rows.map(same, ROWS).key_by("k").process(Keep())
    rows.key_by("n").process(Keep())
    [source] = program.compile().sources
    assert not source.direct
    assert ids(source.stage.copies[-1]) == ids(source.channels)
    assert len(source.channels) == 1


# Keys


def test_a_key_names_the_places_of_its_columns(program: Program) -> None:
    rows = program.source("a string, b bigint, c string")
    rows.key_by("c", "a").process(Keep())
    rows.key_by(str).process(Keep())
    by_columns, by_function = program.compile().stages[0].operators
    assert by_columns.key is not None
    assert by_columns.key.columns == (2, 0)
    assert by_function.key is not None
    assert by_function.key.selector is str
    assert by_function.key.columns == ()


def test_only_an_operator_behind_a_key_is_keyed(program: Program) -> None:
    rows = program.source(ROWS)
    chained = rows.key_by("k").process(Keep(), ROWS).map(same, ROWS)
    chained.union(rows.key_by("k")).map(same).print()
    plan = program.compile()
    assert [op.key is not None for stage in plan.stages for op in stage.operators] == [
        True, False, False,
    ]  # fmt: skip


# Outputs


def test_all_sinks_of_one_output_share_a_channel(program: Program) -> None:
    rows = program.source(ROWS)
    counted = rows.key_by("k").process(Keep(), ROWS)
    counted.print("a")
    counted.print("b")
    rows.print("c")
    plan = program.compile()
    assert [[s.function.label for s in out.sinks] for out in plan.outputs] == [["a", "b"], ["c"]]
    assert [out.channel.stage for out in plan.outputs] == [2, 2]
    assert ids(plan.stages[-1].writes.channels) == ids(out.channel for out in plan.outputs)
    assert not plan.stages[-1].writes.routed


def test_an_output_of_an_early_stage_passes_through_the_later_ones(program: Program) -> None:
    rows = program.source(ROWS)
    early = rows.map(same, ROWS)
    early.print("early")
    early.key_by("k").process(Keep(), ROWS).key_by("n").process(Keep(), ROWS).print("late")
    plan = program.compile()
    [channel] = [out.channel for out in plan.outputs if out.sinks[0].function.label == "early"]
    exchanges = [plan.first_exchange, *(stage.writes for stage in plan.stages)]
    assert all(channel in exchange.channels for exchange in exchanges)
    assert all(channel.id not in stage.entries for stage in plan.stages)


def test_a_sink_of_a_union_is_one_output(program: Program) -> None:
    rows, other = program.source(ROWS), program.source(ROWS)
    counted = rows.key_by("k").process(Keep(), ROWS)
    counted.union(other).print("union")
    counted.print("alone")
    plan = program.compile()
    assert [[s.function.label for s in out.sinks] for out in plan.outputs] == [
        ["union"], ["alone"],
    ]  # fmt: skip
    union = plan.outputs[0].channel
    assert [ids(source.channels) for source in plan.sources] == [[0], [union.id]]
    [outlet] = plan.stages[0].operators[0].outlets
    assert union in outlet.channels
    assert len(plan.stages[0].writes.channels) == 2


def test_a_sink_of_a_stream_with_itself_reads_it_twice(program: Program) -> None:
    counted = program.source(ROWS).key_by("k").process(Keep(), ROWS)
    counted.union(counted).print()
    plan = program.compile()
    [output] = plan.outputs
    assert ids(plan.stages[0].operators[0].outlets[0].channels) == [output.channel.id] * 2
    assert ids(plan.stages[0].writes.channels) == [output.channel.id]


def test_a_sink_function_is_an_operator_like_others(program: Program) -> None:
    rows = program.source(ROWS)
    rows.key_by("k").process(Keep(), ROWS).name("a").add_sink(Swallow()).name("chained")
    rows.rebalance().add_sink(Swallow()).name("apart").set_parallelism(3)
    plan = program.compile()
    assert stages(plan) == [[], ["a", "chained", "apart"]]
    assert plan.outputs == ()
    assert plan.stages[0].writes.channels == ()


def test_a_side_output_is_an_outlet_of_its_own_if_something_reads_it(program: Program) -> None:
    split = program.source(ROWS).rebalance().process(Split(), ROWS).name("split")
    split.get_side_output(OutputTag("unread"))
    split.get_side_output(LATE).map(same, ROWS).name("chained")
    split.get_side_output(LATE).key_by("k").process(Keep()).name("keyed")
    split.get_side_output(LATE).print()
    plan = program.compile()
    assert stages(plan) == [[], ["split", "chained"], ["keyed"]]
    [outlet] = plan.stages[0].operators[0].outlets
    assert (outlet.tag, outlet.operators) == ("late", (1,))
    assert len(outlet.channels) == 2


# Wires


def test_channels_of_one_schema_share_a_slot_and_one_slot_lies_flat(program: Program) -> None:
    rows = program.source(ROWS)
    counted = rows.key_by("k").process(Keep(), ROWS)
    counted.key_by("n").process(Keep())
    counted.key_by("k").process(Keep(), "n bigint").print()
    plan = program.compile()
    exchange = plan.stages[0].writes
    assert len(exchange.channels) == 2
    assert len(exchange.payloads) == 1
    assert (exchange.flat, exchange.tagged) == (True, True)
    assert not plan.first_exchange.tagged


def test_stages_carry_what_the_environment_decides(program: Program) -> None:
    program.source(ROWS).map(same, ROWS).key_by("k").process(Keep())
    plan = program.compile()
    for stage in (plan.sources[0].stage, *plan.stages):
        assert stage.backend is program.settings.backend
        assert stage.job_parameters == {"greeting": "hello"}
        assert not stage.batch_mode
    assert plan.stages[0].reads is plan.sources[0].stage.writes


def framed(*, exactly_once: bool) -> JobPlan:
    program = Program()
    program.settings = replace(program.settings, exactly_once=exactly_once)
    stream = program.source("k string, n bigint").rebalance().map(lambda e: e, "k string, n bigint")
    stream.foreach_batch(lambda rows, number: None).uid("calls")
    stream.sink_to(SparkSink("noop")).uid("written")
    stream.sink_to(SparkSink("noop", staged=False)).uid("at-once")
    stream.print().uid("shown")
    return program.compile()


def test_rows_for_the_driver_wait_in_the_tasks_with_exactly_once() -> None:
    plan = framed(exactly_once=True)
    [stage] = plan.stages
    writers = {op.uid for op in stage.operators if op.kind is OperatorKind.WRITER}
    assert writers == {"calls", "written"}
    assert all(op.takes_rows for op in stage.operators if op.kind is OperatorKind.WRITER)
    outputs = {sink.uid for output in plan.outputs for sink in output.sinks}
    assert outputs == {"at-once", "shown"}


def test_sinks_that_may_have_rows_in_a_checkpoint_are_known_in_every_mode() -> None:
    plan = framed(exactly_once=False)
    assert (
        set(plan.frame_sinks) == set(framed(exactly_once=True).frame_sinks) == {"calls", "written"}
    )
    assert not any(
        op.kind is OperatorKind.WRITER for stage in plan.stages for op in stage.operators
    )


# Event time

BY_COLUMN = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("n")
BY_FUNCTION = BY_COLUMN.with_timestamp_assigner(lambda value, _: value.n)


def test_a_time_column_straight_behind_a_source_needs_no_operator(program: Program) -> None:
    rows = program.source(ROWS).assign_timestamps_and_watermarks(BY_COLUMN).uid("time")
    rows.key_by("k").process(Keep(), ROWS).name("keep").uid("keep").print()
    plan = program.compile()
    assert stages(plan) == [[], ["keep"]]
    [source] = plan.sources
    assert source.direct
    assert source.time_column == TimeColumn("time", "n")
    assert source.stage.time_column == source.time_column
    [channel] = source.channels
    assert (channel.timed, channel.stamped_by) == (True, "time")
    assert plan.first_exchange.timed
    assert [found.uid for found in plan.time.sources] == ["time"]
    assert plan.time.feeds["keep"] == {"time"}


def test_what_runs_behind_a_time_column_runs_at_the_source_and_knows_the_time(
    program: Program,
) -> None:
    rows = program.source(ROWS).assign_timestamps_and_watermarks(BY_COLUMN).uid("time")
    rows.map(same, ROWS).name("map").key_by("k").process(Keep(), ROWS).print()
    plan = program.compile()
    assert stages(plan)[0] == ["map"]
    assert plan.sources[0].stage.time_column == TimeColumn("time", "n")
    [channel] = plan.first_exchange.channels
    assert (channel.timed, channel.stamped_by) == (True, None), "the source has said it"


def test_a_function_gives_event_time_in_an_operator_of_its_own(program: Program) -> None:
    rows = program.source(ROWS).assign_timestamps_and_watermarks(BY_FUNCTION).name("times")
    rows.key_by("k").process(Keep(), ROWS).name("keep").print()
    plan = program.compile()
    assert stages(plan) == [["times"], ["keep"]]
    assert plan.sources[0].time_column is None
    assert plan.sources[0].stage.operators[0].details == BY_FUNCTION


@pytest.mark.parametrize("case", ["read twice", "policy", "later", "union", "rebalanced", "unread"])
def test_a_time_column_elsewhere_is_an_operator_like_others(program: Program, case: str) -> None:
    source = program.source(ROWS)
    before = {
        "later": lambda: source.map(same, ROWS).name("map"),
        "union": lambda: source.union(program.source(ROWS)),
        "rebalanced": source.rebalance,
    }.get(case, lambda: source)()
    stream = before.assign_timestamps_and_watermarks(BY_COLUMN).name("times")
    if case == "read twice":
        source.key_by("k").process(Keep())
    if case == "policy":
        stream.on_error(ErrorPolicy.skip())
    if case != "unread":
        stream.key_by("k").process(Keep())
    plan = program.compile()
    assert "times" in [name for stage in stages(plan) for name in stage]
    assert all(found.time_column is None for found in plan.sources)


def test_outputs_carry_no_event_time(program: Program) -> None:
    rows = program.source(ROWS).assign_timestamps_and_watermarks(BY_COLUMN)
    rows.key_by("k").process(Keep(), ROWS).print()
    plan = program.compile()
    assert plan.first_exchange.timed
    assert not plan.stages[-1].writes.timed
    assert not any(output.channel.timed for output in plan.outputs)


def test_only_channels_behind_event_time_carry_it(program: Program) -> None:
    plain = program.source(ROWS)
    rows = program.source(ROWS).assign_timestamps_and_watermarks(BY_COLUMN)
    plain.key_by("k").process(Keep(), ROWS).key_by("k").process(Keep()).name("untimed")
    plain.union(rows).key_by("k").process(Keep(), ROWS).key_by("k").process(Keep()).name("timed")
    plan = program.compile()
    by_consumer = {
        name: channel.timed
        for channel in plan.stages[1].reads.channels
        for name in entries(plan.stages[1])[channel.id]
    }
    assert by_consumer == {"untimed": False, "timed": True}


# Two inputs


class Both(CoMapFunction):
    def map1(self, value: Any) -> Any:
        return value

    def map2(self, value: Any) -> Any:
        return value


class Ruled(KeyedBroadcastProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        return [value]

    def process_broadcast_element(self, value: Any, ctx: Any) -> Any:
        return None


RULES = MapStateDescriptor("rules", str, int)


def test_an_operator_with_two_inputs_is_never_chained(program: Program) -> None:
    rows, others = program.source(ROWS), program.source("x double")
    joined = rows.map(same, ROWS).name("a").connect(others).map(Both(), ROWS).name("both")
    joined.connect(joined).map(Both(), ROWS).name("again").map(same).name("b").print()
    plan = program.compile()
    assert stages(plan) == [["a"], ["both"], ["again", "b"]]
    [both], [again, _] = (stage.operators for stage in plan.stages)
    assert both.second is not None
    assert (both.input, both.second.type) == (rows.type, others.type)
    assert again.second is not None
    assert [[c.side for c in stage.reads.channels] for stage in plan.stages] == [[0, 1], [0, 1]]


def test_each_input_has_a_key_of_its_own(program: Program) -> None:
    rows, others = program.source(ROWS), program.source("x double, y string")
    rows.key_by("k").connect(others.key_by("y")).map(Both())
    [operator] = program.compile().stages[0].operators
    assert operator.key is not None
    assert operator.second is not None
    assert operator.second.key is not None
    assert (operator.key.columns, operator.second.key.columns) == ((0,), (1,))
    assert [c.partitioning.partitioner for c in program.compile().stages[0].reads.channels] == [
        Partitioner.KEY,
        Partitioner.KEY,
    ]


def test_a_broadcast_channel_has_the_parallelism_of_who_reads_it(program: Program) -> None:
    rows, rules = program.source(ROWS), program.source(ROWS)
    rows.key_by("k").connect(rules.broadcast(RULES)).process(Ruled()).set_parallelism(5)
    plan = program.compile()
    data, control = plan.stages[0].reads.channels
    assert (data.broadcast, control.broadcast) == (False, True)
    assert (data.side, control.side) == (0, 1)
    assert control.parallelism == plan.stage_parallelism[0] == 5
    assert plan.first_exchange.ordered
    [operator] = plan.stages[0].operators
    assert operator.details == (RULES,)
    assert operator.second is not None
    assert operator.second.key is None


# Order


def test_a_stage_reads_in_the_order_that_its_channels_ask_for(program: Program) -> None:
    rows, rules = program.source(ROWS), program.source(ROWS)
    by_time = program.source(ROWS).assign_timestamps_and_watermarks(BY_COLUMN)
    rows.key_by("k").order_by("n", "k").process(Keep(), ROWS).name("a")
    rows.key_by("k").process(Keep(), ROWS).name("b").key_by("k").process(Keep()).name("later")
    by_time.key_by("k").order_by().process(Keep(), ROWS).name("c")
    rows.key_by("k").connect(rules.broadcast(RULES)).process(Ruled()).name("d")
    plan = program.compile()
    first, second = plan.sorted_by
    of = {
        name: channel
        for channel in plan.stages[0].reads.channels
        for name in entries(plan.stages[0]).get(channel.id, [])
        if not channel.side
    }
    [control] = [c for c in plan.stages[0].reads.channels if c.broadcast]
    assert first == (
        SortedChannel(control, ()),
        SortedChannel(of["a"], ("n", "k")),
        SortedChannel(of["c"], ()),
    )
    assert second == ()


def test_several_broadcast_channels_are_sorted_by_their_places_once(program: Program) -> None:
    rows, rules, more = (program.source(ROWS) for _ in range(3))
    rows.key_by("k").connect(rules.union(more).broadcast(RULES)).process(Ruled())
    plan = program.compile()
    assert sum(c.broadcast for c in plan.first_exchange.channels) == 2
    [[only]] = plan.sorted_by
    assert only.channel.broadcast


def test_rows_are_sorted_where_they_are_read_and_not_where_they_pass(program: Program) -> None:
    rows, rules = program.source(ROWS), program.source(ROWS)
    data = rows.key_by("n").process(Keep(), ROWS)
    data.key_by("k").connect(rules.broadcast(RULES)).process(Ruled())
    plan = program.compile()
    assert plan.sorted_by[0] == ()
    [control] = plan.sorted_by[1]
    assert control.channel.broadcast
    assert control.channel in plan.stages[0].reads.channels, "it passes through the first stage"
