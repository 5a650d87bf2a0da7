"""Timers in programs: in which epoch they fire, in what order, what time they pass on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from holdfast import (
    ErrorPolicy,
    KeyedProcessFunction,
    MapFunction,
    OutputTag,
    ProcessFunction,
    SinkFunction,
    TimeDomain,
    ValueStateDescriptor,
)
from holdfast.api.time import MAX_WATERMARK, MIN_WATERMARK
from holdfast.errors import StateAccessError, UserFunctionError
from holdfast.runtime.operators.process import PIECE
from holdfast.state.timers.layout import Timer
from holdfast.testing.clock import ManualClock
from holdfast.testing.harness import OperatorHarness
from tests.support.programs import Program
from tests.support.timed_programs import FIRED, ROWS, STAMPED, Alarm, Stamps, TimedRun, timed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

FAILED = OutputTag("failed")
LATE = OutputTag("late", ROWS)


def whole(value: Any) -> Any:
    return value


class Scripted(KeyedProcessFunction):
    """Does in its methods what the test has said."""

    def __init__(self, process: Callable[..., Any], fired: Callable[..., Any]) -> None:
        self.process, self.fired = process, fired

    def open(self, ctx: Any) -> None:
        self.count = ctx.get_state(ValueStateDescriptor("count", int))

    def process_element(self, value: Any, ctx: Any) -> Any:
        return self.process(self, value, ctx)

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        return self.fired(self, timestamp, ctx)


def alarms(tmp_path: Path, *domains: str, bound: int | None = 0) -> tuple[TimedRun, list[Any]]:
    """A program whose elements set timers at their own time, and what those give out."""
    program = Program(parallelism=2)
    stream = timed(program.source(ROWS), bound).key_by("k").process(Alarm(*domains), FIRED)
    found = program.collect(stream.uid("alarm"))
    return TimedRun(program, tmp_path), found


# When they fire


def test_an_event_time_timer_fires_in_the_epoch_after_its_time_was_passed(
    tmp_path: Path,
) -> None:
    run, found = alarms(tmp_path)
    run.push([("a", 10)])
    assert (found, run.is_due()) == ([], False), "the watermark is at 9 at most"
    run.push([("b", 11)])
    assert (found, run.is_due()) == ([], True)
    run.push([("c", 12)])
    assert found == [("a", 10, "event time")]


def test_a_tick_fires_what_the_last_epoch_has_made_due(tmp_path: Path) -> None:
    run, found = alarms(tmp_path)
    run.push([("a", 10), ("b", 20), ("c", 20), ("d", 21)])
    assert run.is_due()
    run.tick()
    assert sorted(found) == [(k, t, "event time") for k, t in (("a", 10), ("b", 20), ("c", 20))]
    assert not run.is_due()
    run.tick()
    assert len(found) == 3


def test_a_watermark_waits_for_those_that_may_be_late(tmp_path: Path) -> None:
    run, found = alarms(tmp_path, bound=5)
    run.push([("a", 10), ("b", 15)])
    run.tick()
    assert found == []
    run.push([("b", 16)])
    run.tick()
    assert found == [("a", 10, "event time")]


def test_a_timer_for_a_time_that_has_passed_fires_at_the_end_of_its_own_epoch(
    tmp_path: Path,
) -> None:
    run, found = alarms(tmp_path)
    run.push([("a", 100)])
    run.tick()
    run.push([("b", 5), ("c", 99)])
    assert sorted(found) == [("b", 5, "event time"), ("c", 99, "event time")]


def test_a_timer_of_the_clock_fires_in_a_tick_or_before_the_first_row(tmp_path: Path) -> None:
    run, found = alarms(tmp_path, "processing")
    run.push([("a", 50), ("b", 60)])
    run.clock.set(49)
    assert not run.is_due()
    run.clock.set(50)
    assert run.is_due()
    run.tick()
    assert found == [("a", 50, "processing time")]
    assert not run.is_due()
    run.clock.set(60)
    run.push([("b", 60)])
    assert found[1:] == [("b", 60, "processing time")] * 2, "before its row, and after it"


def test_a_timer_of_the_clock_for_a_time_that_has_passed_fires_in_its_own_epoch(
    tmp_path: Path,
) -> None:
    run, found = alarms(tmp_path, "processing")
    run.clock.set(100)
    run.push([("a", 50), ("a", 100), ("a", 101)])
    assert found == [("a", 50, "processing time"), ("a", 100, "processing time")]


def test_the_watermark_stands_still_while_rows_are_processed(tmp_path: Path) -> None:
    class Watch(ProcessFunction):
        def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
            yield value.t, ctx.timer_service().current_watermark()

    program = Program(parallelism=1)
    found = program.collect(
        timed(program.source(ROWS))
        .process(Watch(), "t bigint, watermark bigint")
        .set_parallelism(1)
    )
    run = TimedRun(program, tmp_path)
    for time in (10, 20, 30):
        run.push([("a", time), ("a", time + 5)])
    run.tick()
    run.push([("a", 40)])
    assert found == [
        (10, MIN_WATERMARK),
        (15, MIN_WATERMARK),
        (20, 14),
        (25, 14),
        (30, 24),
        (35, 24),
        (40, 34),
    ]


# At the end, and after a failure


def test_the_last_epoch_of_a_bounded_job_fires_everything(tmp_path: Path) -> None:
    run, found = alarms(tmp_path, "event", "processing")
    run.push([("a", 10**12), ("b", 5 * 10**12)])
    run.finish()
    assert sorted(found) == [
        (key, time, domain)
        for key, time in (("a", 10**12), ("b", 5 * 10**12))
        for domain in ("event time", "processing time")
    ]
    assert not run.keeper.has_pending_timers
    assert run.keeper.watermarks()["alarm"] == MAX_WATERMARK


def test_a_timer_that_sets_itself_again_does_not_keep_a_bounded_job_alive(tmp_path: Path) -> None:
    def again(function: Any, timestamp: int, ctx: Any) -> Iterator[Any]:
        timers = ctx.timer_service()
        timers.register_processing_time_timer(timers.current_processing_time() + 10)
        yield ctx.get_current_key(), timestamp, "again"

    def arm(function: Any, value: Any, ctx: Any) -> None:
        ctx.timer_service().register_processing_time_timer(value.t)

    program = Program()
    stream = program.source(ROWS).key_by("k").process(Scripted(arm, again), FIRED).uid("op")
    found = program.collect(stream)
    run = TimedRun(program, tmp_path)
    run.push([("a", 10)])
    run.finish()
    assert found == [("a", 10, "again")]


def test_after_a_restart_overdue_timers_of_the_clock_fire_at_once_and_those_of_event_time_later(
    tmp_path: Path,
) -> None:
    """The rows come first that had followed without the failure."""
    run, found = alarms(tmp_path, "event", "processing")
    run.push([("a", 10), ("a", 50)])
    run.clock.set(20)
    run.restart()
    assert run.keeper.watermarks()["alarm"] == MIN_WATERMARK
    assert run.is_due(), "somebody has to look into the stores"
    run.tick_by_clock()
    assert found == [("a", 10, "processing time")]
    assert run.keeper.watermarks()["alarm"] == MIN_WATERMARK
    run.push([("b", 100)])
    run.tick()
    assert [fired for fired in found[1:] if fired[2] == "event time"] == [
        ("a", 10, "event time"),
        ("a", 50, "event time"),
    ]


# What they pass on


def test_what_a_timer_gives_out_has_its_event_time_and_none_if_the_clock_has_fired_it(
    tmp_path: Path,
) -> None:
    program = Program(parallelism=1)
    stream = timed(program.source(ROWS)).key_by("k").process(Alarm("event", "processing"), FIRED)
    found = program.collect(
        stream.uid("alarm").process(Stamps(), STAMPED).key_by("k").process(Relay(), STAMPED)
    )
    run = TimedRun(program, tmp_path)
    run.push([("a", 10), ("b", 20)])
    run.clock.set(10)
    run.tick()
    assert found == [("a", 10, None), ("a", 10, 10)]


class Relay(KeyedProcessFunction):
    """Passes elements on, having checked the time they carry across an exchange."""

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        assert ctx.timestamp() == value.stamped
        yield value


def test_elements_keep_their_event_time_through_functions_and_side_outputs(tmp_path: Path) -> None:
    class Twice(ProcessFunction):
        def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
            yield value
            yield LATE, (f"side {value.k}", value.t)
            yield value

    class Same(MapFunction):
        def map(self, value: Any) -> Any:
            return value

    program = Program(parallelism=2)
    stream = timed(program.source(ROWS)).map(Same(), ROWS).filter(lambda value: value.t < 30)
    split = stream.flat_map(lambda value: [value], ROWS).rebalance().process(Twice(), ROWS)
    main = program.collect(split.process(Stamps(), STAMPED))
    side = program.collect(split.get_side_output(LATE).shuffle().process(Stamps(), STAMPED))
    TimedRun(program, tmp_path).push([("a", 10), ("b", 20), ("c", 30)])
    assert sorted(main) == [("a", 10, 10)] * 2 + [("b", 20, 20)] * 2
    assert sorted(side) == [("side a", 10, 10), ("side b", 20, 20)]


@pytest.mark.parametrize("policy", [ErrorPolicy.fail(), ErrorPolicy.skip()])
def test_every_output_has_the_event_time_of_its_own_element(
    policy: ErrorPolicy, tmp_path: Path
) -> None:
    class Some(ProcessFunction):
        def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
            yield from [value] * (value.t % 3)
            if value.k == "bad":
                raise ValueError("no good")

    program = Program(parallelism=1)
    rows = timed(program.source(ROWS))
    processed = rows.process(Some(), ROWS).on_error(policy).process(Stamps(), STAMPED)
    mapped = rows.flat_map(lambda value: [value] * (value.t % 3), ROWS).process(Stamps(), STAMPED)
    found = [program.collect(stream) for stream in (processed, mapped)]
    elements = [("bad" if policy.mode == "skip" and t == 5 else "k", t) for t in range(12)]
    TimedRun(program, tmp_path).push(elements)
    expected = [(k, t, t) for k, t in elements for _ in range(t % 3)]
    assert sorted(found[1]) == sorted(expected)
    assert sorted(found[0]) == sorted(row for row in expected if row[0] == "k")


def test_rows_that_have_no_event_time_mix_with_those_that_have(tmp_path: Path) -> None:
    program = Program()
    both = timed(program.source(ROWS)).union(program.source(ROWS))
    found = program.collect(both.key_by("k").process(Tell(), STAMPED))
    TimedRun(program, tmp_path).push([("a", 1)], [("a", 2), ("b", 3)])
    assert sorted(found) == [("a", 1, 1), ("a", 2, None), ("b", 3, None)]


class Tell(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield value.k, value.t, ctx.timestamp()


def test_a_sink_learns_the_event_time_of_its_elements() -> None:
    class Times(SinkFunction):
        def invoke(self, value: Any, context: Any) -> None:
            seen.append((value, context.timestamp()))

    seen: list[Any] = []
    with OperatorHarness(Times()) as harness:
        harness.push("a", "b", at=5)
        harness.push("c")
    assert seen == [("a", 5), ("b", 5), ("c", None)]


def test_many_outputs_of_timers_are_passed_on_piece_by_piece() -> None:
    part = PIECE // 3 + 1

    def arm(function: Any, value: Any, ctx: Any) -> None:
        for time in range(value):
            ctx.timer_service().register_event_time_timer(time)

    def fired(function: Any, timestamp: int, ctx: Any) -> list[Any]:
        return [timestamp] * (timestamp % 3 * part)

    with OperatorHarness(Scripted(arm, fired), key=whole) as harness:
        harness.push(10)
        pieces = list(harness._operator_task.fire_by_watermark(100))
        expected = [[1, 2, 2], [4, 5, 5], [7, 8, 8]]
        assert [piece.elements[::part] for piece in pieces] == expected
        assert all(len(piece.elements) == 3 * part >= PIECE for piece in pieces)
        assert all(piece.times == piece.elements for piece in pieces)


# What goes wrong


def test_a_function_without_keys_reads_the_time_and_sets_no_timers() -> None:
    class Read(ProcessFunction):
        def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
            timers = ctx.timer_service()
            yield timers.current_processing_time(), timers.current_watermark()
            getattr(timers, value)(5)

    with OperatorHarness(Read()) as harness:
        for domain in ("event", "processing"):
            for use in ("register", "delete"):
                with pytest.raises(StateAccessError, match="'Read' used a timer: timers can only"):
                    harness.push(f"{use}_{domain}_time_timer")


@pytest.mark.parametrize("method", ["open", "close"])
def test_there_are_no_timers_before_the_first_element_and_after_the_last(method: str) -> None:
    """The runtime context has no timer service, and one that was kept has no key."""

    def keep(function: Any, value: Any, ctx: Any) -> None:
        function.timers = ctx.timer_service()

    with OperatorHarness(Scripted(keep, keep), key=whole) as harness:
        harness.push("a")
        with pytest.raises(StateAccessError, match="set and deleted while a key is set"):
            harness.function.timers.register_event_time_timer(5)


def failing(function: Any, timestamp: int, ctx: Any) -> Iterator[Any]:
    function.count.update(timestamp)
    ctx.timer_service().register_event_time_timer(timestamp + 100)
    ctx.timer_service().delete_event_time_timer(3)
    yield "before", timestamp
    if timestamp == 2:
        raise ValueError("no good")


def arm_three(function: Any, value: Any, ctx: Any) -> None:
    for time in (1, 2, 3):
        ctx.timer_service().register_event_time_timer(time)
    ctx.timer_service().delete_event_time_timer(1)


def test_a_timer_that_fails_is_named_with_its_key_and_time() -> None:
    with OperatorHarness(Scripted(arm_three, failing), key=whole) as harness:
        harness.push("a")
        with pytest.raises(UserFunctionError) as caught:
            harness.advance_watermark(2)
        said = str(caught.value)
        assert said.startswith("operator 'Scripted' (uid 'harness'), subtask 1/1, in on_timer(): ")
        assert "ValueError: no good\n  key: 'a'\n  timer: 2, event time\n" in said
        assert 'raise ValueError("no good")' in said


@pytest.mark.parametrize("policy", [ErrorPolicy.skip(), ErrorPolicy.side_output(FAILED)])
def test_a_timer_that_fails_leaves_no_trace_under_a_policy_and_is_gone(
    policy: ErrorPolicy,
) -> None:
    with OperatorHarness(Scripted(arm_three, failing), key=whole, on_error=policy) as harness:
        harness.push("a")
        harness.advance_watermark(50)
        assert harness.take() == [("before", 3)], "what the failed one deleted is still there"
        assert harness.state("count", "a") == 3
        assert harness.skipped == 1
        failed = harness.side_output(FAILED)
        if policy.tag is not None:
            assert [(row.row, row.key) for row in failed] == [(Timer(2, "a", b""), "a")]
            assert failed[0].error == "ValueError: no good"
        harness.end_epoch()
        harness.advance_watermark(150)
        assert harness.take() == [("before", 103)]


@pytest.mark.parametrize("epochs", [True, False])
def test_an_element_that_fails_puts_back_the_timers_it_has_touched(epochs: bool) -> None:
    def act(function: Any, value: Any, ctx: Any) -> None:
        timers = ctx.timer_service()
        if value[1] == "set":
            timers.register_event_time_timer(5)
            timers.register_event_time_timer(6)
            timers.delete_event_time_timer(6)
            return
        timers.delete_event_time_timer(5)
        timers.register_event_time_timer(6)
        timers.register_event_time_timer(7)
        timers.delete_event_time_timer(7)
        timers.register_event_time_timer(1)
        raise ValueError("no good")

    def fired(function: Any, timestamp: int, ctx: Any) -> list[Any]:
        return [(ctx.get_current_key(), timestamp)]

    function, policy = Scripted(act, fired), ErrorPolicy.skip()
    with OperatorHarness(function, key=lambda value: value[0], on_error=policy) as harness:
        harness.push(("a", "set"))
        if epochs:
            harness.end_epoch()
        harness.push(("a", "fail"), ("b", "fail"))
        harness.end_input()
        assert harness.outputs == [("a", 5)]


def test_a_state_that_is_misused_in_a_timer_is_located() -> None:
    def ask(function: Any, timestamp: int, ctx: Any) -> None:
        ctx.timer_service().register_event_time_timer("soon")

    with OperatorHarness(Scripted(arm_three, ask), key=whole) as harness:
        harness.push("a")
        with pytest.raises(
            UserFunctionError, match=r"in on_timer\(\): TypeError: the time of a ti"
        ):
            harness.advance_watermark(2)


def test_a_function_that_does_not_override_on_timer_lets_timers_pass() -> None:
    class Arm(KeyedProcessFunction):
        def process_element(self, value: Any, ctx: Any) -> None:
            ctx.timer_service().register_event_time_timer(5)

    with OperatorHarness(Arm(), key=whole) as harness:
        harness.push("a")
        harness.end_input()
        assert harness.outputs == []


def test_a_timer_context_says_what_has_reached_it() -> None:
    def arm(function: Any, value: Any, ctx: Any) -> None:
        assert not hasattr(ctx, "time_domain")
        ctx.timer_service().register_event_time_timer(5)
        ctx.timer_service().register_processing_time_timer(6)

    def fired(function: Any, timestamp: int, ctx: Any) -> Iterator[Any]:
        timers = ctx.timer_service()
        now = timers.current_watermark(), timers.current_processing_time()
        yield ctx.time_domain(), timestamp, ctx.timestamp(), ctx.get_current_key(), now

    with OperatorHarness(Scripted(arm, fired), key=whole) as harness:
        harness.push("a")
        harness.set_processing_time(7)
        harness.advance_watermark(9)
        assert harness.outputs == [
            (TimeDomain.PROCESSING_TIME, 6, 6, "a", (MIN_WATERMARK, 7)),
            (TimeDomain.EVENT_TIME, 5, 5, "a", (9, 7)),
        ]


def test_a_job_whose_timers_meet_no_due_time_opens_no_store_for_them(tmp_path: Path) -> None:
    program = Program()
    program.collect(program.source(ROWS).key_by("k").process(Alarm("none"), FIRED).uid("alarm"))
    run = TimedRun(program, tmp_path)
    run.push([("a", 1)])
    run.tick()
    assert run.expected == {}


def test_a_due_timer_of_the_clock_set_at_the_very_end_fires(tmp_path: Path) -> None:
    def arm(function: Any, value: Any, ctx: Any) -> None:
        ctx.timer_service().register_event_time_timer(value.t)

    def fired(function: Any, timestamp: int, ctx: Any) -> Iterator[Any]:
        yield ctx.get_current_key(), timestamp, ctx.time_domain().value
        if ctx.time_domain() is TimeDomain.EVENT_TIME:
            ctx.timer_service().register_processing_time_timer(50)

    program = Program()
    stream = timed(program.source(ROWS)).key_by("k").process(Scripted(arm, fired), FIRED)
    found = program.collect(stream.uid("op"))
    run = TimedRun(program, tmp_path)
    run.clock.set(50)
    run.push([("a", 10)])
    run.finish()
    assert sorted(found) == [("a", 10, "event time"), ("a", 50, "processing time")]


class RunningClock(ManualClock):
    """A clock that goes on whenever it is looked at."""

    def now_ms(self) -> int:
        self.advance(60)
        return super().now_ms()


def test_an_epoch_ends_though_timers_are_always_set_for_a_little_later(tmp_path: Path) -> None:
    def arm(function: Any, value: Any, ctx: Any) -> None:
        ctx.timer_service().register_processing_time_timer(1)

    def fired(function: Any, timestamp: int, ctx: Any) -> Iterator[Any]:
        yield ctx.get_current_key(), timestamp, ctx.time_domain().value
        timers = ctx.timer_service()
        timers.register_processing_time_timer(timers.current_processing_time() + 50)

    program = Program()
    stream = timed(program.source(ROWS)).key_by("k").process(Scripted(arm, fired), FIRED)
    found = program.collect(stream.uid("op"))
    run = TimedRun(program, tmp_path)
    run.clock = RunningClock()
    run.push([("a", 10)])
    assert 1 <= len(found) <= 3
    run.tick()
    assert len(found) > 1
