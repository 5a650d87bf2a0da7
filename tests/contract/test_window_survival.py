"""What windows keep, for how long, and what failures leave of it, over every backend."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from holdfast import (
    ErrorPolicy,
    OutputTag,
    ValueStateDescriptor,
)
from holdfast.api.time import MAX_WATERMARK
from holdfast.errors import UserFunctionError
from holdfast.testing.windows import windowed
from holdfast.windows import (
    CountTrigger,
    EventTimeSessionWindows,
    EventTimeTrigger,
    Evictor,
    ProcessWindowFunction,
    PurgingTrigger,
    SlidingEventTimeWindows,
    TriggerResult,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
)
from tests.support.windows import (
    CONTENTS,
    EVENT_TIMERS,
    OPEN_WINDOWS,
    Event,
    Gathered,
    GeneralEventTime,
    Windows,
    added,
    count_window,
    numbers,
    shown,
    with_bounds,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from holdfast.testing.snapshots import HarnessSnapshot

TEN = TumblingEventTimeWindows.of(10)
GAP = EventTimeSessionWindows.with_gap(10)
LATE, FAILED = OutputTag("late"), OutputTag("failed")


def a(*times: int) -> list[Event]:
    """Events of one key, numbered by their times."""
    return [Event("a", time, time) for time in times]


def contents(job: Windows) -> list[list[int]]:
    """The numbers in the windows that have fired since this was last asked for."""
    return [output[-1] for output in job.take()]


# Lateness


@pytest.mark.parametrize("general", [True, False])
@pytest.mark.parametrize("folds", [True, False])
def test_a_window_waits_for_late_elements_and_is_gone_then(
    backend: Any, general: bool, folds: bool
) -> None:
    windows = windowed(TEN).allowed_lateness(5).side_output_late_data(LATE)
    windows = windows.trigger(GeneralEventTime()) if general else windows
    stream = windows.aggregate(Gathered(), with_bounds) if folds else windows.apply(shown)
    with Windows(stream, backend=backend) as job:
        job.push_timed(*a(1))
        job.advance_watermark(9)
        assert contents(job) == [[1]]
        assert set(job.kept()) == {CONTENTS, EVENT_TIMERS}
        job.end_epoch()
        job.push_timed(*a(2, 3))
        assert contents(job) == [[1, 2], [1, 2, 3]]
        job.advance_watermark(13)
        job.push_timed(*a(4))
        assert contents(job) == [[1, 2, 3, 4]]
        job.advance_watermark(14)
        assert job.take() == []
        assert job.kept() == {}
        job.push_timed(*a(5, 6))
        assert job.take() == []
        assert job.side_output(LATE) == a(5, 6)
        assert job.dropped() == 0
        assert job.kept() == {}


def test_a_window_may_be_opened_by_an_element_that_is_late(backend: Any) -> None:
    with Windows(windowed(TEN).allowed_lateness(5).apply(shown), backend=backend) as job:
        job.advance_watermark(13)
        job.push_timed(*a(1, 2))
        assert contents(job) == [[1], [1, 2]]
        job.end_epoch()
        job.advance_watermark(14)
        assert contents(job) == []
        assert job.kept() == {}


def test_elements_that_come_too_late_are_counted_where_nobody_wants_them(backend: Any) -> None:
    with Windows(windowed(TEN).apply(shown), backend=backend) as job:
        job.advance_watermark(9)
        job.push_timed(*a(1, 9, 10))
        assert job.dropped() == 2
        job.end_epoch()
        assert job.dropped() == 0
        job.end_input()
        assert contents(job) == [[10]]


def test_an_element_is_late_only_if_all_of_its_windows_are(backend: Any) -> None:
    windows = windowed(SlidingEventTimeWindows.of(10, 5)).side_output_late_data(LATE)
    with Windows(windows.apply(shown), backend=backend) as job:
        job.advance_watermark(9)
        job.push_timed(*a(7, 4, 2))
        assert job.side_output(LATE) == a(4, 2)
        job.end_input()
        assert job.take() == [("a", 5, 15, [7])]


def test_an_element_between_windows_is_late_only_if_its_time_is(backend: Any) -> None:
    windows = windowed(SlidingEventTimeWindows.of(3, 10)).side_output_late_data(LATE)
    with Windows(windows.apply(shown), backend=backend) as job:
        job.advance_watermark(5)
        job.push_timed(*a(5, 6))
        assert job.side_output(LATE) == a(5)
        assert job.kept() == {}
    with Windows(windows.allowed_lateness(1).apply(shown), backend=backend) as job:
        job.advance_watermark(5)
        job.push_timed(*a(4, 5))
        assert job.side_output(LATE) == a(4)


def test_nothing_is_late_by_the_clock(backend: Any) -> None:
    windows = windowed(TumblingProcessingTimeWindows.of(10)).allowed_lateness(1000)
    stream = windows.side_output_late_data(LATE).apply(numbers)
    with Windows(stream, backend=backend) as job:
        job.advance_watermark(10**9)
        job.push_timed(*a(1))
        job.set_processing_time(9)
        assert contents(job) == [[1]]
        assert job.side_output(LATE) == []
        assert job.kept() == {}, "the lateness is for event time"


def test_a_late_element_may_join_a_session_that_is_open(backend: Any) -> None:
    windows = windowed(GAP).allowed_lateness(10).side_output_late_data(LATE)
    with Windows(windows.aggregate(Gathered(), with_bounds), backend=backend) as job:
        job.push_timed(*a(20))
        job.advance_watermark(28)
        # By itself it would be late; it makes the session begin earlier.
        job.push_timed(*a(11))
        job.advance_watermark(29)
        assert job.take() == [("a", 11, 30, [20, 11])]
        job.end_epoch()
        # The session has fired; this one refires it at once, and that one prolongs it.
        job.push_timed(*a(15))
        assert job.take() == [("a", 11, 30, [20, 11, 15])]
        job.push_timed(*a(25))
        assert job.take() == []
        job.advance_watermark(34)
        assert job.take() == [("a", 11, 35, [20, 11, 15, 25])]
        assert job.side_output(LATE) == []
        job.advance_watermark(44)
        assert job.kept() == {}
        job.push_timed(*a(25))
        assert job.side_output(LATE) == a(25)
        assert job.kept() == {}


def test_a_late_element_may_merge_two_sessions_that_have_fired(backend: Any) -> None:
    with Windows(windowed(GAP).allowed_lateness(100).apply(shown), backend=backend) as job:
        job.push_timed(*a(0, 18))
        job.advance_watermark(50)
        assert job.take() == [("a", 0, 10, [0]), ("a", 18, 28, [18])]
        job.end_epoch()
        job.push_timed(*a(9))
        assert job.take() == [("a", 0, 28, [0, 18, 9])]
        job.advance_watermark(126)
        assert job.kept()[OPEN_WINDOWS] == 1
        job.advance_watermark(127)
        assert job.kept() == {}


def test_of_sessions_that_merge_only_the_timers_of_the_new_one_are_left(backend: Any) -> None:
    with Windows(windowed(GAP).allowed_lateness(7).apply(shown), backend=backend) as job:
        job.push_timed(*a(0, 18))
        assert job.kept()[EVENT_TIMERS] == 4, "the end of each, and of its lateness"
        job.end_epoch()
        job.push_timed(*a(9))
        assert job.kept()[EVENT_TIMERS] == 2


def test_sessions_without_a_trace_of_late_elements(backend: Any) -> None:
    with Windows(windowed(GAP).apply(shown), backend=backend) as job:
        job.advance_watermark(100)
        job.push_timed(*a(5, 91, 92, 93))
        assert job.dropped() == 2
        assert job.kept()[OPEN_WINDOWS] == 1
        job.end_input()
        assert job.take() == [("a", 92, 103, [92, 93])]
        assert job.kept() == {}


@pytest.mark.parametrize("general", [True, False])
def test_a_lateness_without_end_keeps_windows_for_ever(backend: Any, general: bool) -> None:
    windows = windowed(TEN).allowed_lateness(MAX_WATERMARK)
    windows = windows.trigger(GeneralEventTime()) if general else windows
    with Windows(windows.apply(numbers), backend=backend) as job:
        job.push_timed(*a(1))
        job.advance_watermark(MAX_WATERMARK - 1)
        assert contents(job) == [[1]]
        job.push_timed(*a(2))
        assert contents(job) == [[1, 2]]


# Epochs that fail


def test_a_failed_epoch_leaves_windows_as_they_were(backend: Any) -> None:
    streams = [
        windowed(TEN).reduce(added, with_bounds),
        windowed(SlidingEventTimeWindows.of(10, 5)).apply(shown),
        windowed(GAP).trigger(CountTrigger.of(4)).aggregate(Gathered(), with_bounds),
        count_window(4, 2).apply(numbers),
    ]
    for stream in streams:
        with Windows(stream, backend=backend) as job:
            job.push_timed(*a(1, 5), Event("b", 18, 18))
            job.end_epoch()
            before, given = job.kept(), list(job.outputs)
            job.push_timed(*a(7, 12, 20), Event("b", 9, 9), Event("c", 1, 1))
            assert job.kept() != before
            job.fail()
            assert job.kept() == before
            assert job.outputs == given
            # As if it had never been, it can be done again.
            job.push_timed(*a(7, 12, 20), Event("b", 9, 9), Event("c", 1, 1))
            job.end_epoch()
            job.end_input()
            again = sorted(job.outputs)
        with Windows(stream, backend=backend) as job:
            job.push_timed(*a(1, 5), Event("b", 18, 18))
            job.push_timed(*a(7, 12, 20), Event("b", 9, 9), Event("c", 1, 1))
            job.end_input()
            assert sorted(job.outputs) == again


def test_a_window_that_has_fired_in_a_failed_epoch_fires_again(backend: Any) -> None:
    with Windows(windowed(TEN).apply(shown), backend=backend) as job:
        job.push_timed(*a(1, 2))
        job.end_epoch()
        job.advance_watermark(9)
        assert job.outputs == [("a", 0, 10, [1, 2])]
        job.fail()
        assert job.outputs == []
        job.advance_watermark(9)
        assert job.outputs == [("a", 0, 10, [1, 2])]


def test_a_function_that_raises_fails_the_epoch_and_is_named(backend: Any) -> None:
    def broken(key: Any, window: Any, elements: Sequence[Any]) -> Any:
        raise RuntimeError("out of order")

    with Windows(windowed(TEN).apply(broken), backend=backend) as job:
        job.push_timed(*a(1))
        job.end_epoch()
        before = job.kept()
        with pytest.raises(UserFunctionError, match=r"firing a window: RuntimeError: out of") as e:
            job.advance_watermark(9)
        assert "key: 'a'" in str(e.value)
        assert "timer: 9" in str(e.value)
        assert job.kept() == before


@pytest.mark.parametrize("general", [True, False])
@pytest.mark.parametrize("fold", ["reduce", "aggregate"])
def test_a_fold_that_raises_names_the_key_and_the_row(
    backend: Any, general: bool, fold: str
) -> None:
    windows = windowed(TEN).trigger(GeneralEventTime()) if general else windowed(TEN)
    stream = windows.reduce(added) if fold == "reduce" else windows.aggregate(Gathered())
    with Windows(stream, backend=backend) as job:
        job.push_timed(*a(1))
        job.end_epoch()
        with pytest.raises(UserFunctionError, match="ValueError: -5 is negative") as caught:
            job.push_timed(Event("b", 1, 1), Event("a", 2, -5))
        assert "key: 'a'" in str(caught.value)
        assert "Event(key='a', time=2, n=-5)" in str(caught.value)
        job.end_input()
        assert len(job.outputs) == 1


# Restoring, with another number of subtasks


KEYS = [f"key-{i}" for i in range(9)]
CASES: dict[str, Any] = {
    "tumbling": lambda: windowed(TEN).allowed_lateness(30).reduce(added, with_bounds),
    "sliding": lambda: windowed(SlidingEventTimeWindows.of(20, 10)).apply(shown),
    "sessions": lambda: windowed(GAP).aggregate(Gathered(), with_bounds),
    "counted sessions": lambda: (
        windowed(GAP).trigger(CountTrigger.of(5)).aggregate(Gathered(), with_bounds)
    ),
    "count": lambda: count_window(5).apply(numbers),
    "sliding count": lambda: count_window(4, 3).apply(numbers),
}
PARTS = [
    [Event(key, 1 + i, i) for i, key in enumerate(KEYS)],
    [Event(key, 30 - i, 100 + i) for i, key in enumerate(KEYS) for _ in range(2)],
    [Event(key, 12, 200 + i) for i, key in enumerate(KEYS[::2])],
    [Event(key, 22, 300 + i) for i, key in enumerate(KEYS)],
]


@pytest.mark.parametrize("case", CASES)
def test_windows_go_on_with_another_number_of_subtasks(backend: Any, case: str) -> None:
    stream = CASES[case]()
    given: list[Any] = []
    snapshots: list[HarnessSnapshot] | None = None
    for parallelism, part in zip((1, 2, 3, 1), PARTS, strict=True):
        taken = []
        for subtask in range(parallelism):
            place = {"parallelism": parallelism, "subtask": subtask, "restore_from": snapshots}
            with Windows(stream, backend=backend, **place) as job:
                job.push_timed(*[event for event in part if job.owns(event.key)])
                taken.append(job.snapshot())
                if part is PARTS[-1]:
                    job.end_input()
                    if "count" not in case:
                        assert job.kept() == {}
                given += job.outputs
        snapshots = taken
    with Windows(stream, backend=backend) as job:
        for part in PARTS:
            job.push_timed(*part)
        job.end_input()
        assert sorted(given) == sorted(job.outputs)


@pytest.mark.parametrize("general", [True, False])
@pytest.mark.parametrize("contents", ["reduce", "aggregate", "list"])
def test_a_window_that_has_fired_before_a_recovery_fires_again_for_what_comes_after(
    backend: Any, general: bool, contents: str
) -> None:
    """After a recovery the watermark is before its end again: new elements are not late."""
    windows = windowed(TEN).allowed_lateness(100)
    windows = windows.trigger(GeneralEventTime()) if general else windows
    match contents:
        case "reduce":
            stream = windows.reduce(added, with_bounds)
        case "aggregate":
            stream = windows.aggregate(Gathered(), with_bounds)
        case _:
            stream = windows.apply(shown)
    with Windows(stream, backend=backend) as job:
        job.push_timed(*a(1))
        job.advance_watermark(9)
        assert len(job.outputs) == 1
        snapshot = job.snapshot()
    with Windows(stream, backend=backend, restore_from=snapshot) as job:
        job.push_timed(*a(2))
        assert job.take() == []
        job.advance_watermark(9)
        expected = Event("a", 1, 3) if contents == "reduce" else [1, 2]
        assert job.take() == [("a", 0, 10, expected)]
        job.advance_watermark(109)
        assert job.kept() == {}


@pytest.mark.parametrize("touched", [True, False])
@pytest.mark.parametrize(
    "general", [(True, True), (False, False), (True, False)], ids=["general", "quick", "both"]
)
def test_windows_that_were_kept_for_late_elements_end_though_none_are_kept_any_more(
    backend: Any, general: tuple[bool, bool], touched: bool
) -> None:
    def stream(lateness: int, is_general: bool) -> Any:
        windows = windowed(TEN).allowed_lateness(lateness)
        return (windows.trigger(GeneralEventTime()) if is_general else windows).reduce(added)

    with Windows(stream(5, general[0]), backend=backend) as before:
        before.push_timed(*a(3))
        before.advance_watermark(9)
        assert len(before.take()) == 1
        snapshot = before.snapshot()
    with Windows(stream(0, general[1]), backend=backend, restore_from=snapshot) as job:
        if touched:
            job.push_timed(*a(4))
        job.advance_watermark(20)
        assert [event.n for event in job.take()] == ([7] if touched else [])
        job.end_epoch()
        assert not job.kept().get(CONTENTS)
        assert not job.kept().get(EVENT_TIMERS)


def test_timers_of_windows_by_the_clock_mean_nothing_to_windows_in_event_time(
    backend: Any,
) -> None:
    by_clock = windowed(TumblingProcessingTimeWindows.of(10)).reduce(added)
    with Windows(by_clock, backend=backend) as before:
        before.push_timed(*a(3))
        snapshot = before.snapshot()
    with Windows(windowed(TEN).reduce(added), backend=backend, restore_from=snapshot) as job:
        job.set_processing_time(50)
        assert job.take() == []
        job.advance_watermark(9)
        job.push_timed(*a(13))
        job.advance_watermark(19)
        assert [event.n for event in job.take()] == [13]


def test_windows_by_the_clock_that_have_ended_meanwhile_fire_after_a_recovery(
    backend: Any,
) -> None:
    stream = windowed(TumblingProcessingTimeWindows.of(10)).apply(shown)
    with Windows(stream, backend=backend) as job:
        job.push(("a", None, 1))
        snapshot = job.snapshot()
    with Windows(stream, backend=backend, restore_from=snapshot) as job:
        job.set_processing_time(1000)
        assert job.outputs == [("a", 0, 10, [1])]
        assert job.kept() == {}


# Error policies: what raises leaves no trace


POLICIES = pytest.mark.parametrize(
    "policy", [ErrorPolicy.skip(), ErrorPolicy.side_output(FAILED)], ids=["skip", "side output"]
)


class Moody(EventTimeTrigger):
    """Changes state and timers, and raises for elements and times it does not like."""

    SEEN = CountTrigger.of(1000)

    def on_element(self, element: Any, timestamp: Any, window: Any, ctx: Any) -> TriggerResult:
        self.SEEN.on_element(element, timestamp, window, ctx)
        ctx.register_event_time_timer(500 + element[2] % 100)
        ctx.register_processing_time_timer(600)
        if element[2] == 13:
            raise RuntimeError("no thirteen")
        return super().on_element(element, timestamp, window, ctx)

    def on_event_time(self, time: int, window: Any, ctx: Any) -> TriggerResult:
        if time == 514:
            ctx.register_event_time_timer(700)
            self.SEEN.clear(window, ctx)
            raise RuntimeError("no fourteen")
        return super().on_event_time(time, window, ctx)

    def on_merge(self, window: Any, ctx: Any) -> None:
        super().on_merge(window, ctx)
        self.SEEN.on_merge(window, ctx)
        ctx.register_event_time_timer(800)
        if window.end == 49:
            raise RuntimeError("no merging to 49")

    def clear(self, window: Any, ctx: Any) -> None:
        super().clear(window, ctx)
        self.SEEN.clear(window, ctx)


def failures(job: Windows, policy: ErrorPolicy) -> int:
    """Elements and timers that have raised; each is diverted if the policy says so."""
    if policy.mode != "skip":
        assert len(job.side_output(FAILED)) == job.skipped
    return job.skipped


@pytest.mark.parametrize("assigner", [TEN, GAP, SlidingEventTimeWindows.of(20, 10)], ids=repr)
@pytest.mark.parametrize("fold", ["reduce", "aggregate", "list"])
def test_an_element_that_raises_leaves_no_trace(backend: Any, assigner: Any, fold: str) -> None:
    policy = ErrorPolicy.side_output(FAILED)
    windows = windowed(assigner).trigger(Moody())
    match fold:
        case "reduce":
            stream = windows.reduce(added, with_bounds)
        case "aggregate":
            stream = windows.aggregate(Gathered(), with_bounds)
        case _:
            stream = windows.apply(shown)
    with Windows(stream, backend=backend, on_error=policy) as job:
        job.push_timed(Event("a", 1, 1), Event("a", 3, 3))
        job.end_epoch()
        before = job.kept()
        bad = [Event("a", 2, 13), Event("a", 25, 13), Event("b", 4, 13)]
        if fold != "list":
            bad.append(Event("a", 4, -1))
        job.push_timed(*bad)
        assert failures(job, policy) == len(bad)
        assert job.kept() == before
        job.end_epoch()
        assert job.kept() == before
        job.push_timed(Event("a", 2, 2))
        job.advance_watermark(100)
        found = job.take()
        assert found
        for output in found:
            expected = Event("a", 1, 6) if fold == "reduce" else [1, 3, 2]
            assert output[-1] == expected
        job.advance_watermark(10**6)
        job.set_processing_time(10**6)
        assert job.kept() == {}


@POLICIES
def test_a_merge_that_raises_leaves_sessions_as_they_were(
    backend: Any, policy: ErrorPolicy
) -> None:
    stream = windowed(GAP).trigger(Moody()).aggregate(Gathered(), with_bounds)
    with Windows(stream, backend=backend, on_error=policy) as job:
        job.push_timed(Event("a", 0, 1), Event("a", 18, 2), Event("a", 60, 666), Event("a", 78, 3))
        job.push_timed(Event("a", 39, 4), Event("b", 21, 5), Event("b", 39, 6))
        job.end_epoch()
        before = job.kept()
        # The first is refused by the accumulators, the others by the trigger.
        job.push_timed(Event("a", 69, 7), Event("a", 29, 8), Event("b", 30, 9))
        assert failures(job, policy) == 3
        assert job.kept() == before
        job.push_timed(Event("a", 9, 10))
        job.end_epoch()
        job.advance_watermark(100)
        assert sorted(job.take()) == [
            ("a", 0, 28, [1, 2, 10]),
            ("a", 39, 49, [4]),
            ("a", 60, 70, [666]),
            ("a", 78, 88, [3]),
            ("b", 21, 31, [5]),
            ("b", 39, 49, [6]),
        ]


class Choosy(ProcessWindowFunction):
    """Changes state of window and key, gives something out, and raises for some windows."""

    def process(self, key: Any, context: Any, elements: Sequence[Any]) -> Iterator[Any]:
        for store in (context.window_state(), context.global_state()):
            count = store.get_state(ValueStateDescriptor("count", int))
            count.update((count.value() or 0) + 1)
        yield context.window().start, count.value(), [element[2] for element in elements]
        if any(element[2] == 13 for element in elements):
            raise RuntimeError("no thirteen")

    def clear(self, context: Any) -> None:
        context.window_state().get_state(ValueStateDescriptor("count", int)).clear()


@POLICIES
def test_a_firing_that_raises_gives_nothing_out_and_changes_nothing(
    backend: Any, policy: ErrorPolicy
) -> None:
    stream = windowed(TEN).allowed_lateness(20).process(Choosy())
    with Windows(stream, backend=backend, on_error=policy) as job:
        job.push_timed(Event("a", 1, 1), Event("a", 11, 13), Event("a", 21, 2))
        job.end_epoch()
        job.advance_watermark(29)
        assert job.take() == [(0, 1, [1]), (20, 2, [2])]
        assert failures(job, policy) == 1
        # A late element that would fire the window is undone with all it did.
        job.push_timed(Event("a", 12, 3))
        assert job.take() == []
        assert failures(job, policy) == 2
        assert job.kept()["count"] == 2, "of the last window and of the key"
        job.advance_watermark(100)
        assert job.kept() == {"count": 1}


@POLICIES
def test_event_times_are_right_behind_a_firing_that_raises(
    backend: Any, policy: ErrorPolicy
) -> None:
    def choosy(key: Any, window: Any, elements: Sequence[Any]) -> Iterator[Any]:
        if window.start == -10:
            raise RuntimeError("not this one")
        yield from shown(key, window, elements)

    stream = windowed(SlidingEventTimeWindows.of(20, 10)).allowed_lateness(100).apply(choosy)
    with Windows(stream, backend=backend, on_error=policy) as job:
        job.advance_watermark(35)
        # The first fires in its later window, and raises in the earlier one.
        job.push_timed(*a(5, 25))
        assert failures(job, policy) == 1
        assert job.stamped == [(("a", 10, 30, [25]), 29)]


def broken(key: Any, window: Any, elements: Sequence[Any]) -> Iterator[Any]:
    yield "lost"
    if any(element[2] == 13 for element in elements):
        raise RuntimeError("no thirteen")


@POLICIES
@pytest.mark.parametrize("assigner", [TEN, GAP], ids=repr)
def test_a_window_whose_firing_raises_ends_all_the_same(
    backend: Any, policy: ErrorPolicy, assigner: Any
) -> None:
    with Windows(windowed(assigner).apply(broken), backend=backend, on_error=policy) as job:
        job.push_timed(Event("a", 9, 13))
        job.end_epoch()
        job.advance_watermark(18)
        assert job.take() == []
        assert failures(job, policy) == 1
        assert job.kept() == {}
        # A session that begins where that one has ended has nothing of it.
        job.push_timed(Event("a", 19, 1))
        job.end_input()
        assert job.take() == ["lost"]
        assert job.kept() == {}


@POLICIES
@pytest.mark.parametrize("assigner", [TEN, GAP], ids=repr)
def test_a_trigger_that_raises_when_a_timer_fires_is_put_back(
    backend: Any, policy: ErrorPolicy, assigner: Any
) -> None:
    stream = windowed(assigner).allowed_lateness(1000).trigger(Moody()).apply(shown)
    with Windows(stream, backend=backend, on_error=policy) as job:
        job.push_timed(Event("a", 1, 14))
        job.advance_watermark(513)
        assert contents(job) == [[14]]
        before = job.kept()
        job.advance_watermark(514)
        assert failures(job, policy) == 1
        # Only the timer itself is gone.
        assert job.kept() == before | {EVENT_TIMERS: before[EVENT_TIMERS] - 1}


@POLICIES
@pytest.mark.parametrize("assigner", [TEN, GAP], ids=repr)
def test_a_clear_that_raises_does_not_keep_a_window_open(
    backend: Any, policy: ErrorPolicy, assigner: Any
) -> None:
    class Clinging(GeneralEventTime):
        def clear(self, window: Any, ctx: Any) -> None:
            ctx.register_event_time_timer(900)
            raise RuntimeError("no")

    stream = windowed(assigner).trigger(Clinging()).apply(numbers)
    with Windows(stream, backend=backend, on_error=policy) as job:
        job.push_timed(*a(1))
        job.advance_watermark(100)
        assert contents(job) == [[1]], "what it has given out stays"
        assert failures(job, policy) == 1
        assert job.kept() == {}


@POLICIES
def test_an_evictor_that_raises_leaves_the_window_as_it_was(
    backend: Any, policy: ErrorPolicy
) -> None:
    class Raises(Evictor):
        def evict_before(self, elements: Any, size: int, window: Any, ctx: Any) -> None:
            del elements[0]

        def evict_after(self, elements: Any, size: int, window: Any, ctx: Any) -> None:
            if any(one.value.n == 13 for one in elements):
                raise RuntimeError("no thirteen")

    windows = windowed(TumblingEventTimeWindows.of(1000)).evictor(Raises())
    stream = windows.trigger(CountTrigger.of(2)).apply(numbers)
    with Windows(stream, backend=backend, on_error=policy) as job:
        job.push_timed(Event("a", 1, 1), Event("a", 1, 13), Event("a", 1, 2))
        assert failures(job, policy) == 1
        assert contents(job) == [[2]]
        job.end_epoch()
        job.push_timed(Event("a", 1, 3), Event("a", 1, 13), Event("a", 1, 4))
        assert contents(job) == [[3, 4]]


@POLICIES
def test_count_windows_go_on_behind_an_element_that_raises(
    backend: Any, policy: ErrorPolicy
) -> None:
    stream = count_window(3).aggregate(Gathered())
    with Windows(stream, backend=backend, on_error=policy) as job:
        job.push_timed(*a(1, 2, -1))
        job.end_epoch()
        job.push_timed(*a(-2, 3, 4, -3, 5))
        assert job.take() == [[1, 2, 3]]
        job.push_timed(*a(6))
        assert job.take() == [[4, 5, 6]]
        assert job.kept() == {}


@POLICIES
def test_windows_that_are_not_keyed_are_put_back_too(backend: Any, policy: ErrorPolicy) -> None:
    windows = windowed(GAP, keyed=False).trigger(PurgingTrigger.of(Moody()))
    stream = windows.aggregate(Gathered())
    with Windows(stream, backend=backend, on_error=policy, key=None) as job:
        job.push_timed(*a(1))
        job.end_epoch()
        before = job.kept()
        job.push_timed(Event("a", 2, 13), Event("a", 3, -1))
        assert failures(job, policy) == 2
        assert job.kept() == before
        job.advance_watermark(10)
        assert job.take() == [[1]]


def test_what_is_diverted_says_what_was_raised(backend: Any) -> None:
    policy = ErrorPolicy.side_output(FAILED)
    with Windows(windowed(TEN).reduce(added), backend=backend, on_error=policy) as job:
        job.push_timed(Event("a", 1, 1), Event("a", 2, -1))
        [failed] = job.side_output(FAILED)
        assert failed.row == Event("a", 2, -1)
        assert failed.key == "a"
        assert failed.error == "ValueError: -1 is negative"
    with Windows(windowed(TEN).apply(broken), backend=backend, on_error=policy) as job:
        job.push_timed(Event("a", 1, 13))
        job.end_input()
        [failed] = job.side_output(FAILED)
        assert (failed.row.time, failed.row.key) == (9, "a")
        assert failed.error == "RuntimeError: no thirteen"
