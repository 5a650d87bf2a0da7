"""Watermarks, what they depend on, and which timers are due: pure state machines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast import (
    BroadcastProcessFunction,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    MapStateDescriptor,
    WatermarkStrategy,
)
from holdfast.api.time import MAX_WATERMARK, MIN_WATERMARK
from holdfast.job.model import EpochOrder
from holdfast.job.timer_schedule import TimerSchedule
from holdfast.job.watermarks import (
    UNTIMED,
    EventTimes,
    TimeLine,
    TimeSource,
    Watermarks,
    time_columns,
    time_line,
)
from holdfast.runtime.report import StoreReport, TaskReport
from tests.support.programs import Program

if TYPE_CHECKING:
    from holdfast.api.streams.data_stream import DataStream
    from holdfast.runtime.plan import EpochTime

ROWS = "k string, t bigint"
RULES = MapStateDescriptor("rules", str, int)


class Keep(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        return [value]


class KeepBoth(KeyedCoProcessFunction):
    def process_element1(self, value: Any, ctx: Any) -> Any:
        return [value]

    def process_element2(self, value: Any, ctx: Any) -> Any:
        return [value]


class Ruled(KeyedBroadcastProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        return [value]

    def process_broadcast_element(self, value: Any, ctx: Any) -> Any:
        return None


class RuledAll(BroadcastProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        return [value]

    def process_broadcast_element(self, value: Any, ctx: Any) -> Any:
        return None


def timed(stream: DataStream, uid: str, bound: int | None = 0) -> DataStream:
    strategy = WatermarkStrategy(bound).with_timestamp_assigner("t")
    return stream.assign_timestamps_and_watermarks(strategy).uid(uid).name(f"times {uid}")


# What operators depend on


def line_of(program: Program) -> TimeLine:
    return time_line(program.graph.nodes, program.graph.uids())


def feeds(program: Program, uid: str) -> set[str]:
    return set(line_of(program).feeds[uid])


def test_a_time_source_is_what_its_strategy_says(program: Program) -> None:
    strategy = WatermarkStrategy.for_bounded_out_of_orderness("1 s").with_idleness("2 s")
    stream = program.source(ROWS).assign_timestamps_and_watermarks(
        strategy.with_timestamp_assigner("t")
    )
    stream.uid("a").name("times")
    [source] = line_of(program).sources
    [read] = [uid for uid in program.graph.uids().values() if uid != "a"]
    assert source == TimeSource("a", "times", 1000, 2000, frozenset({read}))


def test_the_jvm_does_not_read_the_time_of_rows_whose_watermarks_python_reads(
    program: Program,
) -> None:
    strategies = WatermarkStrategy(0), WatermarkStrategy.punctuated("t")
    for strategy in strategies:
        rows = program.source(ROWS)
        stream = rows.assign_timestamps_and_watermarks(strategy.with_timestamp_assigner("t"))
        stream.key_by("k").process(Keep(), ROWS).print()
    [column] = time_columns(program.graph.nodes).values()
    assert column.details.generator is None


def test_operators_depend_on_the_time_sources_above_them(program: Program) -> None:
    a, b = timed(program.source(ROWS), "a"), timed(program.source(ROWS), "b")
    a.map(str, ROWS).uid("behind a").union(b).key_by("k").process(Keep(), ROWS).uid("both").print()
    found = line_of(program).feeds
    assert {uid: set(found[uid]) for uid in ("a", "b", "behind a", "both")} == {
        "a": {"a"},
        "b": {"b"},
        "behind a": {"a"},
        "both": {"a", "b"},
    }
    assert set(found) == {"a", "b", "behind a", "both"}, "neither sources nor outputs have one"


def test_an_input_without_event_time_counts_as_such(program: Program) -> None:
    a, plain = timed(program.source(ROWS), "a"), program.source(ROWS)
    plain.key_by("k").process(Keep(), ROWS).uid("alone")
    a.union(plain).map(str).uid("union")
    a.key_by("k").connect(plain.key_by("k")).process(KeepBoth()).uid("connected")
    assert feeds(program, "alone") == {UNTIMED}
    assert feeds(program, "union") == feeds(program, "connected") == {"a", UNTIMED}


def test_event_time_that_is_given_anew_depends_on_nothing_above(program: Program) -> None:
    both = timed(program.source(ROWS), "a").union(program.source(ROWS)).map(str, ROWS)
    timed(both, "b").map(str).uid("last")
    assert feeds(program, "b") == feeds(program, "last") == {"b"}


def test_a_broadcast_side_without_event_time_is_left_out_and_one_with_it_counts(
    program: Program,
) -> None:
    data = timed(program.source(ROWS), "data").key_by("k")
    plain, control = program.source(ROWS), timed(program.source(ROWS), "control")
    data.connect(plain.broadcast(RULES)).process(Ruled()).uid("plain")
    data.connect(control.broadcast(RULES)).process(Ruled()).uid("timed")
    plain.connect(control.broadcast(RULES)).process(RuledAll()).uid("data without")
    assert feeds(program, "plain") == {"data"}
    assert feeds(program, "timed") == {"data", "control"}
    assert feeds(program, "data without") == {UNTIMED, "control"}


def test_a_stream_that_is_broadcast_to_an_ordinary_operator_is_an_input_like_others(
    program: Program,
) -> None:
    a = timed(program.source(ROWS), "a")
    copied = program.source(ROWS).broadcast().map(str, ROWS).uid("copied")
    copied.union(a).map(str).uid("union")
    assert feeds(program, "copied") == {UNTIMED}
    assert feeds(program, "union") == {"a", UNTIMED}


# Watermarks


def line(*sources: TimeSource, **operators: set[str]) -> TimeLine:
    return TimeLine(sources, {uid: frozenset(found) for uid, found in operators.items()})


def source(uid: str, bound: int | None = 0, idle: int | None = None) -> TimeSource:
    return TimeSource(uid, uid, bound, idle)


def test_a_watermark_lies_the_bound_and_one_more_behind_the_latest_time() -> None:
    marks = Watermarks(line(source("a", 0), source("b", 10), x={"a"}, y={"b"}))
    marks.saw({"a": 100, "b": 100})
    assert marks.sources() == {"a": 99, "b": 89}
    assert marks.possible() == {"x": 99, "y": 89}


def test_what_generators_emit_counts_as_it_is_and_does_not_go_back() -> None:
    marks = Watermarks(line(source("a", None), x={"a"}))
    marks.saw({"a": 100}, emitted={"a": 70})
    marks.saw({"a": 200}, emitted={"a": 60})
    assert marks.possible() == {"x": 70}


def test_what_was_seen_moves_a_watermark_only_when_an_epoch_has_moved_it() -> None:
    marks = Watermarks(line(source("a"), x={"a"}))
    marks.saw({"a": 100})
    assert marks.current("x") == MIN_WATERMARK
    marks.advanced(marks.possible())
    assert marks.current("x") == 99


def test_the_least_of_several_sources_counts_and_none_goes_back() -> None:
    marks = Watermarks(line(source("a"), source("b"), x={"a", "b"}))
    marks.saw({"a": 100})
    assert marks.possible() == {"x": MIN_WATERMARK}
    marks.saw({"b": 51})
    marks.advanced(marks.possible())
    assert marks.current("x") == 50
    marks.saw({"a": 3, "b": 3})
    assert marks.sources() == {"a": 99, "b": 50}
    assert marks.possible() == {"x": 50}


def test_sources_without_watermarks_and_inputs_without_event_time_hold_everything_back() -> None:
    marks = Watermarks(
        line(source("a"), source("b", None), x={"a", UNTIMED}, y={"a", "b"}, z={UNTIMED})
    )
    marks.saw({"a": 100, "b": 100})
    assert marks.possible() == {"x": MIN_WATERMARK, "y": MIN_WATERMARK}
    assert marks.current("z") == marks.current("unknown") == MIN_WATERMARK
    assert marks.at_the_end() == dict.fromkeys("xyz", MAX_WATERMARK)


def test_an_idle_source_holds_nothing_back_until_it_is_heard_of_again() -> None:
    marks = Watermarks(line(source("a"), source("b", idle=10), x={"a", "b"}))
    marks.saw({"a": 99}, read_at=1000)
    marks.saw({"a": 100}, read_at=1009)
    assert marks.possible() == {"x": MIN_WATERMARK}
    marks.saw({"a": 101}, read_at=1010)
    assert marks.possible() == {"x": 100}
    marks.advanced(marks.possible())
    marks.saw({"b": 31}, read_at=1020)
    assert marks.sources()["b"] == 30
    assert marks.possible() == {"x": 100}, "it does not go back for those that come late"
    marks.saw({"a": 200}, read_at=1029)
    assert marks.possible() == {"x": 100}
    marks.saw({"a": 201}, read_at=1030)
    assert marks.possible() == {"x": 200}


def test_a_look_that_finds_nothing_makes_sources_idle_as_a_read_of_others_does() -> None:
    marks = Watermarks(line(source("a", idle=10), source("b", idle=10), x={"a", "b"}))
    marks.saw({"a": 100, "b": 50}, read_at=1000)
    marks.looked(1009)
    assert marks.possible() == {"x": 49}
    marks.looked(1010)
    assert marks.possible() == {"x": 99}, "all are idle: the furthest counts"


def test_a_long_pause_makes_no_source_idle_in_the_epoch_that_carries_its_rows() -> None:
    """Nobody has looked for rows meanwhile, as during a slow upload or listing."""
    marks = Watermarks(line(source("a", idle=10), source("b", idle=10), x={"a", "b"}))
    marks.saw({"a": 100, "b": 100_000}, read_at=1000)
    assert marks.possible() == {"x": 99}
    marks.saw({"a": 150, "b": 100_050}, read_at=9000)
    assert marks.possible() == {"x": 149}


def test_epochs_without_input_do_not_make_the_silence_of_a_source_shorter() -> None:
    marks = Watermarks(line(source("a", idle=10), source("b", idle=10), x={"a", "b"}))
    marks.saw({"a": 100, "b": 50}, read_at=1000)
    for at in range(1000, 1011, 5):
        marks.looked(at)
        marks.saw({})
    assert marks.possible() == {"x": 99}


def test_a_look_that_may_be_older_counts_from_when_it_may_have_been() -> None:
    lines = line(source("a", idle=10), source("b", idle=10), x={"a", "b"})
    marks = Watermarks(lines)
    marks.saw({"a": 100, "b": 50}, read_at=1000)
    marks.looked(1200, ago_ms=500)
    marks.looked(1509, ago_ms=500)
    assert marks.possible() == {"x": 49}
    marks.looked(1510, ago_ms=500)
    assert marks.possible() == {"x": 99}
    began = Watermarks(lines, restored=EventTimes({"a": 99, "b": 49}, {}, {"x": 49}))
    began.looked(1000, ago_ms=500)
    began.saw({"a": 200}, read_at=1009)
    assert began.possible() == {"x": 49}, "the first look was not before the start"


def test_idleness_does_not_help_against_an_input_without_event_time() -> None:
    marks = Watermarks(line(source("a", idle=1), x={"a", UNTIMED}))
    marks.saw({"a": 100}, read_at=0)
    marks.looked(50)
    assert marks.possible() == {"x": MIN_WATERMARK}


@pytest.mark.parametrize("latest", [MIN_WATERMARK, MIN_WATERMARK + 5])
def test_no_watermark_lies_before_the_first(latest: int) -> None:
    marks = Watermarks(line(source("a", 1000), x={"a"}))
    marks.saw({"a": latest})
    assert marks.possible() == {"x": MIN_WATERMARK}


# What a checkpoint stores of them

MARKS = line(source("a", 10), source("b", 0, idle=50), x={"a"}, y={"a", "b"}, z={"b"})


LATEST = st.dictionaries(st.sampled_from("ab"), st.integers(-500, 500))


@example(epochs=[({"b": 1}, 0), ({"a": 90}, 30), ({"a": 95}, 30), ({}, 0), ({}, 0)], cut=2)
@given(epochs=st.lists(st.tuples(LATEST, st.integers(0, 80)), max_size=8), cut=st.integers(0, 8))
def test_restored_watermarks_continue_as_if_nothing_had_happened(
    epochs: list[tuple[dict[str, int], int]], cut: int
) -> None:
    now, undisturbed = 1_000, Watermarks(MARKS)
    undisturbed.looked(now)
    # Another driver, whose monotonic clock begins elsewhere.
    elsewhere = 1_000_000
    restored: Watermarks | None = None
    for number, (latest, pause) in enumerate(epochs):
        if number == cut:
            restored = Watermarks(MARKS, restored=undisturbed.event_times())
            restored.looked(now + elsewhere)
        now += pause
        undisturbed.advanced(undisturbed.possible())
        undisturbed.saw(latest, read_at=now)
        if restored is not None:
            restored.advanced(restored.possible())
            restored.saw(latest, read_at=now + elsewhere)
            assert restored.event_times() == undisturbed.event_times()


def test_no_source_is_idle_because_a_restart_takes_its_time() -> None:
    lines = line(source("a", idle=10), source("b", idle=10), x={"a", "b"})
    marks = Watermarks(lines)
    marks.saw({"a": 100, "b": 100_000}, read_at=0)
    marks.advanced(marks.possible())
    restored = Watermarks(lines, restored=marks.event_times())
    assert restored.possible() == {"x": 99}
    restored.saw({"b": 100_001}, read_at=2_500)
    assert restored.possible() == {"x": 99}, "the first read has no other before it"


def test_the_silence_of_a_source_before_a_restart_counts_after_it() -> None:
    lines = line(source("a", idle=10), source("b"), x={"a", "b"})
    marks = Watermarks(lines)
    marks.saw({"a": 100, "b": 100}, read_at=0)
    marks.saw({"b": 200}, read_at=6)
    restored = Watermarks(lines, restored=marks.event_times())
    restored.saw({"b": 300}, read_at=5_000)
    restored.saw({"b": 400}, read_at=5_003)
    assert restored.possible() == {"x": 99}
    restored.saw({"b": 500}, read_at=5_004)
    assert restored.possible() == {"x": 499}


def test_a_time_source_that_begins_again_holds_back_what_reads_it() -> None:
    marks = Watermarks(MARKS)
    marks.saw({"a": 100, "b": 200}, read_at=0)
    marks.advanced(marks.possible())
    times = marks.event_times()
    assert times.operators == {"x": 89, "y": 89, "z": 199}
    again = Watermarks(MARKS, restored=times.without({"b"}))
    assert again.sources() == {"a": 89, "b": MIN_WATERMARK}
    assert [again.current(uid) for uid in "xyz"] == [89, MIN_WATERMARK, MIN_WATERMARK]


def test_operators_and_time_sources_that_are_new_begin_at_the_minimum() -> None:
    old = Watermarks(line(source("a", 10), x={"a"}))
    old.saw({"a": 100}, read_at=0)
    old.advanced(old.possible())
    new = Watermarks(MARKS, restored=old.event_times())
    assert new.sources() == {"a": 89, "b": MIN_WATERMARK}
    assert [new.current(uid) for uid in "xyz"] == [89, MIN_WATERMARK, MIN_WATERMARK]


def test_another_uid_of_the_time_source_is_the_way_out_of_a_watermark_far_ahead() -> None:
    """A row was dated 2099, and everything after it is late."""
    marks = Watermarks(line(source("times"), x={"times"}))
    marks.saw({"times": 4_070_908_800_000}, read_at=0)
    marks.advanced(marks.possible())
    again = Watermarks(line(source("times 2"), x={"times 2"}), restored=marks.event_times())
    assert again.current("x") == MIN_WATERMARK
    again.saw({"times 2": 100}, read_at=0)
    assert again.possible() == {"x": 99}


def test_the_end_of_the_input_is_not_stored_as_a_time() -> None:
    marks = Watermarks(MARKS)
    marks.saw({"a": 100, "b": 200}, read_at=0)
    marks.advanced(marks.at_the_end())
    assert marks.event_times().operators == {"x": 89, "y": 89, "z": 199}


def test_what_was_reached_past_an_idle_source_is_stored_at_the_end_of_the_input() -> None:
    marks = Watermarks(line(source("a", idle=10), source("b"), x={"a", "b"}))
    marks.saw({"a": 10, "b": 10}, read_at=0)
    marks.saw({"b": 1_000}, read_at=10)
    marks.advanced(marks.possible())
    assert marks.current("x") == 999
    marks.saw({"a": 11}, read_at=11)
    marks.advanced(marks.at_the_end())
    assert marks.event_times().operators == {"x": 999}


# Which timers are due


def keeper(*restored: tuple[str, int], idle: int | None = None) -> tuple[TimerSchedule, Program]:
    """Time in a job of an operator "op" with timers, behind the time source "time"."""
    program = Program()
    strategy = WatermarkStrategy(0, "t", idle)
    stream = program.source(ROWS).assign_timestamps_and_watermarks(strategy).uid("time")
    stream = stream.key_by("k").process(Keep(), ROWS).uid("op")
    stream.map(str).uid("map").print()
    return TimerSchedule(program.compile(), restored), program


def report(
    subtask: int = 0,
    latest: int | None = None,
    event: int | None = None,
    processing: int | None = None,
) -> TaskReport:
    """A task that has met an event time, and left timers behind."""
    store = StoreReport("1-1", 0, 0, None, event, processing)
    times = {} if latest is None else {"time": latest}
    return TaskReport(1, 1, subtask, 0, "", "", {}, {"op": store}, latest=times)


ORDER = EpochOrder()
HELD = EpochOrder(cut_at=1000)
LAST = EpochOrder(last=True)


def run(
    time: TimerSchedule,
    *reports: TaskReport,
    order: EpochOrder = ORDER,
    now: int = 0,
    channel_state: bool = False,
) -> EpochTime:
    """An epoch from its beginning to its end; how time passed in it."""
    found = time.of_epoch(order, now)
    time.ended(reports, channel_state=channel_state)
    return found


def test_what_an_epoch_saw_takes_effect_in_the_next() -> None:
    time, _ = keeper()
    assert run(time, report(latest=100)).watermarks["op"] == (MIN_WATERMARK, MIN_WATERMARK)
    assert run(time, report(latest=200)).watermarks["op"] == (MIN_WATERMARK, 99)
    assert time.watermarks()["op"] == 99
    assert run(time).watermarks == dict.fromkeys(("time", "op", "map"), (99, 199))


def test_the_greatest_watermark_that_a_task_emits_takes_effect_in_the_next_epoch() -> None:
    time, _ = keeper()
    reports = [
        TaskReport(1, 1, subtask, 0, "", "", {}, {}, emitted={"time": emitted})
        for subtask, emitted in enumerate((300, 500))
    ]
    run(time, *reports)
    assert run(time).watermarks["op"] == (MIN_WATERMARK, 500)


def test_an_epoch_that_has_not_ended_well_moves_nothing() -> None:
    time, _ = keeper()
    run(time, report(latest=100))
    time.of_epoch(ORDER, 0)
    assert time.of_epoch(ORDER, 0).watermarks["op"] == (MIN_WATERMARK, 99)


def test_the_statistics_know_operators_and_time_sources() -> None:
    time, _ = keeper()
    run(time, report(latest=100))
    assert time.watermarks() == {"time": 99, "op": MIN_WATERMARK, "map": MIN_WATERMARK}


def test_subtasks_are_due_whose_timers_the_watermark_will_reach() -> None:
    time, _ = keeper()
    run(time, report(0, latest=100, event=50), report(1, event=99), report(2, event=100))
    assert time.is_event_time_due()
    assert run(time, report(0), report(1), report(2, event=100)).due == {("op", 0), ("op", 1)}
    assert not time.is_event_time_due()
    assert time.has_pending_timers


def test_subtasks_are_due_whose_timers_the_clock_has_reached() -> None:
    time, _ = keeper()
    run(time, report(0, processing=50), report(1, processing=51))
    assert not time.is_due(49)
    assert time.is_due(50)
    assert run(time, report(0), report(1, processing=51), now=50).due == {("op", 0)}
    assert run(time, report(1), now=60).due == {("op", 1)}
    assert not time.has_pending_timers


def test_what_a_store_reported_last_counts() -> None:
    time, _ = keeper()
    run(time, report(event=5, processing=5))
    run(time, TaskReport(2, 1, 0, 0, "", "", {}, {}))
    assert time.has_pending_timers, "a task that did not open the store says nothing of it"
    run(time, report())
    assert not time.has_pending_timers


def test_restored_stores_of_operators_with_timers_are_looked_into_at_once() -> None:
    time, _ = keeper(("op", 0), ("op", 1), ("map", 0), ("gone", 0))
    assert time.has_pending_timers
    assert time.is_due(0)
    assert run(time, report(0)).due == {("op", 0), ("op", 1)}
    assert run(time, report(1)).due == {("op", 1)}
    assert not time.is_due(0)
    assert not time.has_pending_timers


def test_an_epoch_that_keeps_watermarks_fires_by_the_clock_alone() -> None:
    """Operators behind a second exchange must not advance before the rows of the next epoch."""
    time, _ = keeper(("op", 1))
    run(time, report(0, latest=100, event=50, processing=50), report(1))
    assert time.is_event_time_due()
    tick = run(time, report(0, event=50), order=EpochOrder(keeps_watermarks=True), now=50)
    assert tick.watermarks == dict.fromkeys(("time", "op", "map"), (MIN_WATERMARK, MIN_WATERMARK))
    assert tick.due == {("op", 0)}
    assert time.is_event_time_due()
    assert run(time, report(0)).watermarks["op"] == (MIN_WATERMARK, 99)


def test_restored_timers_are_not_due_by_event_time_before_they_are_known() -> None:
    time, _ = keeper(("op", 0))
    assert time.is_due(0)
    assert not time.is_event_time_due()


def test_a_watermark_that_was_not_seen_yet_is_not_reached_by_idleness() -> None:
    time, _ = keeper(("op", 0), idle=50)
    run(time, report(event=5))
    time.found_nothing(1_000)
    time.found_nothing(1_000_000)
    assert not time.is_event_time_due()
    assert time.watermarks() == dict.fromkeys(("time", "op", "map"), MIN_WATERMARK)


def test_the_last_epoch_brings_time_to_its_end_and_everything_is_due() -> None:
    time, _ = keeper()
    run(time, report(0, event=10**15), report(1, processing=10**15), report(2))
    last = run(time, order=LAST)
    assert last.last
    assert last.watermarks == dict.fromkeys(("time", "op", "map"), (MIN_WATERMARK, MAX_WATERMARK))
    assert last.due == {("op", 0), ("op", 1)}


def test_an_epoch_that_may_be_cut_moves_no_watermark() -> None:
    time, _ = keeper()
    run(time, report(latest=100, event=50))
    held = run(time, report(latest=200, event=50), order=HELD, channel_state=True)
    assert held.watermarks["op"] == (MIN_WATERMARK, MIN_WATERMARK)
    assert held.due == frozenset()
    assert time.watermarks()["op"] == MIN_WATERMARK


def test_timers_of_the_clock_are_due_in_an_epoch_that_may_be_cut() -> None:
    time, _ = keeper()
    run(time, report(processing=50))
    assert run(time, report(processing=50), order=HELD, now=50).due == {("op", 0)}


def test_once_nothing_is_left_over_a_tick_fires_what_waited() -> None:
    time, _ = keeper()
    run(time, report(latest=100, event=50), order=HELD)
    assert time.watermarks()["op"] == MIN_WATERMARK, "a timer waits, so a tick has to move it"
    assert time.is_event_time_due()
    tick = run(time, report())
    assert tick.watermarks["op"] == (MIN_WATERMARK, 99)
    assert tick.due == {("op", 0)}


def test_where_no_timer_waits_no_tick_is_needed_after_an_epoch_that_may_be_cut() -> None:
    time, _ = keeper()
    run(time, report(latest=100, event=100), order=HELD)
    assert time.watermarks()["op"] == 99
    assert not time.is_event_time_due()
