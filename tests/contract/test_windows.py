"""Which elements windows hold and when they fire, over every backend: Flink's own rules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from holdfast import HashMapStateBackend
from holdfast.api.time import MAX_WATERMARK
from holdfast.errors import ConfigurationError, EventTimeError
from holdfast.testing.windows import windowed
from holdfast.windows import (
    EventTimeSessionWindows,
    GlobalWindow,
    GlobalWindows,
    ProcessAllWindowFunction,
    ProcessingTimeSessionWindows,
    SessionWindowTimeGapExtractor,
    SlidingEventTimeWindows,
    SlidingProcessingTimeWindows,
    TimeWindow,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    Window,
    WindowAssigner,
)
from tests.support.windows import (
    CONTENTS,
    Event,
    Gathered,
    GeneralEventTime,
    GeneralProcessingTime,
    Windows,
    added,
    count_window,
    numbers,
    shown,
    with_bounds,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from holdfast.api.windows.triggers import Trigger


def a(*times: int) -> list[Event]:
    """Events of one key, numbered by their times."""
    return [Event("a", time, time) for time in times]


def held(assigner: WindowAssigner, times: list[int], backend: Any) -> list[tuple[int, int, Any]]:
    """Windows of one key that come of events at the given times, and what they hold."""
    with Windows(windowed(assigner).apply(shown), backend=backend) as job:
        job.push_timed(*a(*times))
        job.end_epoch()
        job.end_input()
        assert job.kept() == {}
        return [(start, end, content) for _, start, end, content in job.outputs]


# Windows of one length


def test_a_tumbling_window_holds_its_start_and_not_its_end(backend: Any) -> None:
    assigner = TumblingEventTimeWindows.of(10)
    assert held(assigner, [0, 9, 10, 19, 20, -1, -10, -11], backend) == [
        (-20, -10, [-11]),
        (-10, 0, [-1, -10]),
        (0, 10, [0, 9]),
        (10, 20, [10, 19]),
        (20, 30, [20]),
    ]


def test_an_offset_moves_the_start_of_tumbling_windows(backend: Any) -> None:
    times = [2, 3, 12, 13, -7, -8]
    expected = [(-17, -7, [-8]), (-7, 3, [2, -7]), (3, 13, [3, 12]), (13, 23, [13])]
    assert held(TumblingEventTimeWindows.of(10, 3), times, backend) == expected
    assert held(TumblingEventTimeWindows.of(10, -7), times, backend) == expected


def test_days_begin_at_the_midnight_of_a_time_zone(backend: Any) -> None:
    midnight_in_china = 16 * 3_600_000
    [window] = held(TumblingEventTimeWindows.of("1 day", "-8 h"), [midnight_in_china], backend)
    assert window[:2] == (midnight_in_china, midnight_in_china + 86_400_000)


def test_an_element_lies_in_every_sliding_window_that_covers_it(backend: Any) -> None:
    assert held(SlidingEventTimeWindows.of(10, 5), [0, 4, 5, -1, 12], backend) == [
        (-10, 0, [-1]),
        (-5, 5, [0, 4, -1]),
        (0, 10, [0, 4, 5]),
        (5, 15, [5, 12]),
        (10, 20, [12]),
    ]


def test_the_size_of_sliding_windows_need_not_be_a_multiple_of_the_slide(backend: Any) -> None:
    assert held(SlidingEventTimeWindows.of(10, 4), [0, 1, 2, 9, -3], backend) == [
        (-12, -2, [-3]),
        (-8, 2, [0, 1, -3]),
        (-4, 6, [0, 1, 2, -3]),
        (0, 10, [0, 1, 2, 9]),
        (4, 14, [9]),
        (8, 18, [9]),
    ]


def test_an_offset_moves_sliding_windows(backend: Any) -> None:
    assert held(SlidingEventTimeWindows.of(10, 5, 2), [0, 2], backend) == [
        (-8, 2, [0]),
        (-3, 7, [0, 2]),
        (2, 12, [2]),
    ]


def test_what_lies_between_windows_that_slide_by_more_than_their_size_is_in_none(
    backend: Any,
) -> None:
    assert held(SlidingEventTimeWindows.of(3, 10), [0, 2, 3, 9, 10], backend) == [
        (0, 3, [0, 2]),
        (10, 13, [10]),
    ]


def test_windows_fire_when_the_watermark_reaches_their_last_millisecond(backend: Any) -> None:
    with Windows(windowed(TumblingEventTimeWindows.of(10)).apply(shown), backend=backend) as job:
        job.push_timed(*a(1, 11))
        job.advance_watermark(8)
        assert job.take() == []
        job.advance_watermark(9)
        assert job.take() == [("a", 0, 10, [1])]
        job.end_epoch()
        job.advance_watermark(18)
        assert job.take() == []
        job.advance_watermark(100)
        assert job.take() == [("a", 10, 20, [11])]


def test_windows_of_keys_do_not_mix(backend: Any) -> None:
    with Windows(windowed(SlidingEventTimeWindows.of(10, 5)).reduce(added), backend=backend) as job:
        job.push_timed(*[Event(f"key-{i % 7}", 1, i) for i in range(70)])
        job.end_epoch()
        job.push_timed(*[Event(f"key-{i % 7}", 2, 1000) for i in range(7)])
        job.end_input()
        expected = [(f"key-{k}", 1, 1000 + sum(range(k, 70, 7))) for k in range(7)]
        assert sorted(job.outputs) == sorted(expected * 2)


def test_the_elements_of_a_window_come_in_the_order_of_their_arrival(backend: Any) -> None:
    with Windows(windowed(TumblingEventTimeWindows.of(100)).apply(shown), backend=backend) as job:
        for numbered in ([5, 3], [9], [1, 7]):
            job.push_timed(*a(*numbered))
            job.end_epoch()
        job.end_input()
        assert job.outputs == [("a", 0, 100, [5, 3, 9, 1, 7])]


# By the clock


def test_windows_by_the_clock_take_elements_of_any_event_time_or_none(backend: Any) -> None:
    stream = windowed(TumblingProcessingTimeWindows.of(10)).apply(shown)
    with Windows(stream, backend=backend) as job:
        job.set_processing_time(3)
        job.push(("a", None, 1), ("b", None, 2))
        job.push_timed(Event("a", 5000, 3))
        job.set_processing_time(8)
        job.advance_watermark(10**6)
        assert job.take() == []
        job.end_epoch()
        job.push(("a", None, 4))
        job.set_processing_time(9)
        assert sorted(job.take()) == [("a", 0, 10, [1, 3, 4]), ("b", 0, 10, [2])]
        job.push(("a", None, 5))
        job.set_processing_time(10)
        job.push(("a", None, 6))
        assert job.take() == []
        job.set_processing_time(19)
        assert job.take() == [("a", 10, 20, [5, 6])]
        assert job.kept() == {}


def test_sliding_windows_by_the_clock(backend: Any) -> None:
    stream = windowed(SlidingProcessingTimeWindows.of(10, 5)).apply(shown)
    with Windows(stream, backend=backend) as job:
        job.set_processing_time(1)
        job.push(("a", None, 1), ("a", None, 2))
        job.set_processing_time(6)
        job.push(("a", None, 3))
        job.set_processing_time(100)
        assert job.take() == [
            ("a", -5, 5, [1, 2]),
            ("a", 0, 10, [1, 2, 3]),
            ("a", 5, 15, [3]),
        ]
        assert job.kept() == {}


@pytest.mark.parametrize("assigner", [TumblingProcessingTimeWindows, SlidingProcessingTimeWindows])
@pytest.mark.parametrize("count", [1, 2])
def test_what_comes_in_the_millisecond_in_which_a_window_has_fired_lies_in_the_next(
    backend: Any, assigner: Any, count: int
) -> None:
    length = (10,) if assigner is TumblingProcessingTimeWindows else (10, 10)
    with Windows(windowed(assigner.of(*length)).apply(shown), backend=backend) as job:
        job.set_processing_time(5)
        job.push(("a", None, 1))
        job.set_processing_time(9)
        assert job.take() == [("a", 0, 10, [1])]
        job.push(*[("a", None, 2), ("b", None, 3)][:count])
        job.set_processing_time(18)
        assert job.take() == [], "windows that have fired are not opened again"
        job.push(("a", None, 4))
        job.set_processing_time(19)
        assert sorted(job.take()) == [("a", 10, 20, [2, 4]), ("b", 10, 20, [3])][:count]
        assert job.kept() == {}


def test_sessions_by_the_clock(backend: Any) -> None:
    with Windows(
        windowed(ProcessingTimeSessionWindows.with_gap(10)).apply(shown), backend=backend
    ) as job:
        for now, n in ((1, 1), (9, 2), (30, 3)):
            job.set_processing_time(now)
            job.push(("a", None, n))
            job.end_epoch()
        assert job.take() == [("a", 1, 19, [1, 2])]
        job.set_processing_time(39)
        assert job.take() == [("a", 30, 40, [3])]
        assert job.kept() == {}


def test_sessions_by_the_clock_may_wait_as_long_as_an_element_says(backend: Any) -> None:
    stream = windowed(ProcessingTimeSessionWindows.with_dynamic_gap(gap_of_number))
    with Windows(stream.apply(shown), backend=backend) as job:
        job.set_processing_time(0)
        job.push(("a", None, 5), ("a", None, 50))
        job.set_processing_time(49)
        assert job.take() == [("a", 0, 50, [5, 50])]


# Sessions


def gap_of_number(element: Any) -> int:
    return int(element[2])


class GapOfNumber(SessionWindowTimeGapExtractor):
    def extract(self, element: Any) -> int:
        return gap_of_number(element)


def test_elements_nearer_than_the_gap_make_one_session(backend: Any) -> None:
    assert held(EventTimeSessionWindows.with_gap(10), [0, 9, 18, 40, 45], backend) == [
        (0, 28, [0, 9, 18]),
        (40, 55, [40, 45]),
    ]


def test_sessions_that_touch_are_one(backend: Any) -> None:
    assert held(EventTimeSessionWindows.with_gap(10), [0, 10, 21], backend) == [
        (0, 20, [0, 10]),
        (21, 31, [21]),
    ]


@pytest.mark.parametrize("epochs", [True, False])
def test_two_sessions_become_one_when_an_element_comes_between(backend: Any, epochs: bool) -> None:
    with Windows(
        windowed(EventTimeSessionWindows.with_gap(10)).aggregate(Gathered(), with_bounds),
        backend=backend,
    ) as job:
        job.push_timed(*a(0))
        job.push_timed(*a(15))
        if epochs:
            job.end_epoch()
        assert job.kept()[CONTENTS] == 2
        job.push_timed(*a(8))
        assert job.kept()[CONTENTS] == 1
        job.advance_watermark(23)
        assert job.take() == []
        job.advance_watermark(24)
        assert job.take() == [("a", 0, 25, [0, 15, 8])]
        assert job.kept() == {}


def test_several_sessions_may_become_one_at_once(backend: Any) -> None:
    with Windows(
        windowed(EventTimeSessionWindows.with_dynamic_gap(gap_of_number)).aggregate(Gathered()),
        backend=backend,
    ) as job:
        job.push_timed(*[Event("a", time, 2) for time in (0, 10, 20, 30)], Event("b", 5, 2))
        assert job.kept()[CONTENTS] == 5
        job.push_timed(Event("a", 1, 100))
        assert job.kept()[CONTENTS] == 2
        job.end_input()
        assert sorted(job.outputs) == [[2], [2, 2, 2, 2, 100]]
        assert job.kept() == {}


def test_an_element_before_a_session_moves_its_start(backend: Any) -> None:
    with Windows(
        windowed(EventTimeSessionWindows.with_gap(10)).reduce(added, with_bounds), backend=backend
    ) as job:
        job.push_timed(*a(20))
        job.end_epoch()
        job.push_timed(*a(12))
        job.push_timed(*a(14))
        job.advance_watermark(29)
        [(_, start, end, event)] = job.outputs
        assert (start, end, event.n) == (12, 30, 46)


@pytest.mark.parametrize("extractor", [gap_of_number, GapOfNumber()])
def test_a_session_may_wait_as_long_as_an_element_says(backend: Any, extractor: Any) -> None:
    with Windows(
        windowed(EventTimeSessionWindows.with_dynamic_gap(extractor)).apply(shown),
        backend=backend,
    ) as job:
        job.push_timed(Event("a", 0, 5), Event("a", 6, 50), Event("a", 20, 1))
        job.advance_watermark(54)
        assert job.take() == [("a", 0, 5, [5])]
        job.advance_watermark(55)
        assert job.take() == [("a", 6, 56, [50, 1])]


@pytest.mark.parametrize("gap", [0, -1, 1.5, True, None])
def test_a_gap_that_is_no_positive_number_is_refused(gap: Any) -> None:
    assigner = EventTimeSessionWindows.with_dynamic_gap(lambda element: gap)
    with (
        Windows(windowed(assigner).apply(shown)) as job,
        pytest.raises(ConfigurationError, match="a positive number of milliseconds"),
    ):
        job.push_timed(*a(0))


# Windows without an end


def test_a_global_window_never_fires_by_itself(backend: Any) -> None:
    with Windows(windowed(GlobalWindows.create()).apply(numbers), backend=backend) as job:
        job.push_timed(*a(1, 2))
        job.end_epoch()
        job.end_input()
        assert job.outputs == []


def test_a_global_window_may_fire_at_the_end_of_the_stream(backend: Any) -> None:
    stream = windowed(GlobalWindows.create_with_end_of_stream_trigger()).apply(numbers)
    with Windows(stream, backend=backend) as job:
        job.push_timed(*a(1, 2), Event("b", 7, 7))
        job.advance_watermark(MAX_WATERMARK - 1)
        job.set_processing_time(10**15)
        job.end_epoch()
        assert job.take() == []
        job.end_input()
        assert sorted(job.take()) == [("a", [1, 2]), ("b", [7])]
        assert job.kept() == {}


def test_count_windows_follow_each_other(backend: Any) -> None:
    with Windows(count_window(3).apply(numbers), backend=backend) as job:
        job.push_timed(*a(1, 2), Event("b", 0, 0))
        job.end_epoch()
        job.push_timed(*a(3, 4, 5, 6, 7))
        job.end_epoch()
        assert job.outputs == [("a", [1, 2, 3]), ("a", [4, 5, 6])]
        job.end_input()
        assert len(job.outputs) == 2, "a window that is not full never fires"


def test_count_windows_may_slide(backend: Any) -> None:
    with Windows(count_window(3, 2).apply(numbers), backend=backend) as job:
        job.push_timed(*a(1, 2, 3), Event("b", 0, 0))
        job.end_epoch()
        job.push_timed(*a(4, 5, 6, 7))
        assert job.outputs == [("a", [1, 2]), ("a", [2, 3, 4]), ("a", [4, 5, 6])]


def test_a_tumbling_count_window_keeps_one_value_where_it_folds(backend: Any) -> None:
    with Windows(count_window(3).reduce(added), backend=backend) as job:
        job.push_timed(*a(1, 2))
        assert job.kept() == {CONTENTS: 1, "count": 1}
        job.end_epoch()
        job.push_timed(*a(3))
        assert job.outputs == [Event("a", 1, 6)]
        assert job.kept() == {}


# Streams that are not keyed


class CountAll(ProcessAllWindowFunction):
    def process(self, context: Any, elements: Sequence[Any]) -> Iterator[Any]:
        yield context.window().start, len(elements)


def test_windows_of_a_stream_that_is_not_keyed_hold_all_of_it(backend: Any) -> None:
    events = [Event(f"key-{i}", i, i) for i in range(25)]
    with Windows(
        windowed(TumblingEventTimeWindows.of(10), keyed=False).process(CountAll()),
        backend=backend,
        key=None,
    ) as job:
        job.push_timed(*events[:15])
        job.end_epoch()
        job.push_timed(*events[15:])
        job.end_input()
        assert job.outputs == [(0, 10), (10, 10), (20, 5)]
        assert job.kept() == {}


def test_a_function_of_such_windows_is_given_no_key(backend: Any) -> None:
    def total(window: Any, elements: Sequence[Any]) -> Iterator[Any]:
        yield window.end, sum(element.n for element in elements)

    with Windows(
        windowed(TumblingEventTimeWindows.of(10), keyed=False).apply(total),
        backend=backend,
        key=None,
    ) as job:
        job.push_timed(Event("a", 1, 1), Event("b", 2, 2))
        job.end_input()
        assert job.outputs == [(10, 3)]


def test_count_windows_of_a_stream_that_is_not_keyed(backend: Any) -> None:
    with Windows(count_window(2, keyed=False).reduce(added), backend=backend, key=None) as job:
        job.push_timed(Event("a", 1, 1))
        job.end_epoch()
        job.push_timed(Event("b", 2, 2), Event("c", 3, 3), Event("d", 4, 4))
        assert [event.n for event in job.outputs] == [3, 7]
    with Windows(
        count_window(3, 1, keyed=False).aggregate(Gathered()), backend=backend, key=None
    ) as job:
        job.push_timed(*a(1, 2, 3, 4))
        assert job.outputs == [[1], [1, 2], [1, 2, 3], [2, 3, 4]]


# Event times of what windows give out


def test_what_a_window_gives_out_has_its_last_millisecond_as_event_time(backend: Any) -> None:
    with Windows(
        windowed(SlidingEventTimeWindows.of(10, 5)).allowed_lateness(100).reduce(added),
        backend=backend,
    ) as job:
        job.push_timed(*a(1, 7))
        job.advance_watermark(9)
        # Late for the first of its windows, which fires at once, and in time for the other.
        job.push_timed(*a(6, 12))
        job.end_input()
        assert [(event.n, time) for event, time in job.stamped] == [
            (1, 4),
            (8, 9),
            (14, 9),
            (25, 14),
            (12, 19),
        ]


def test_of_a_session_that_is_the_end_it_has_come_to(backend: Any) -> None:
    with Windows(
        windowed(EventTimeSessionWindows.with_gap(10)).reduce(added), backend=backend
    ) as job:
        job.push_timed(*a(1, 7))
        job.end_input()
        assert job.stamped == [(Event("a", 1, 8), 16)]


def test_of_a_global_window_it_is_the_end_of_time(backend: Any) -> None:
    with Windows(count_window(1).reduce(added), backend=backend) as job:
        job.push_timed(*a(1))
        assert job.stamped == [(Event("a", 1, 1), MAX_WATERMARK)]


# Windows and assigners of one's own


class Parity(Window):
    """The odd or the even numbers below a bound."""

    def __init__(self, odd: bool, end: int) -> None:
        self.odd, self.end = odd, end

    def max_timestamp(self) -> int:
        return self.end - 1

    def to_bytes(self) -> bytes:
        return bytes((self.odd, self.end))

    @classmethod
    def from_bytes(cls, data: bytes) -> Parity:
        return cls(bool(data[0]), data[1])


class ByParity(WindowAssigner):
    window_type = Parity

    def assign_windows(self, element: Any, timestamp: int | None, context: Any) -> list[Parity]:
        assert timestamp is not None
        assert context.get_current_processing_time() == 77
        return [Parity(bool(timestamp % 2), 100)]

    def get_default_trigger(self) -> Trigger:
        return GeneralEventTime()

    def is_event_time(self) -> bool:
        return True


def test_windows_may_be_of_a_class_of_ones_own(backend: Any) -> None:
    def by_parity(key: Any, window: Parity, elements: Sequence[Any]) -> Iterator[Any]:
        yield window.odd, [element.n for element in elements]

    with Windows(windowed(ByParity()).apply(by_parity), backend=backend) as job:
        job.clock.set(77)
        job.push_timed(*a(1, 2, 3))
        job.end_epoch()
        job.push_timed(*a(4, 5))
        job.advance_watermark(99)
        assert sorted(job.outputs) == [(False, [2, 4]), (True, [1, 3, 5])]
        assert job.kept() == {}


def test_time_windows_are_ordered_and_equal_by_their_bounds() -> None:
    assert TimeWindow(0, 5) == TimeWindow(0, 5)
    assert TimeWindow(0, 5) != TimeWindow(0, 6)
    assert TimeWindow(0, 5) != GlobalWindow.get()
    assert GlobalWindow.get() == GlobalWindow()
    assert sorted([TimeWindow(1, 2), TimeWindow(0, 9), TimeWindow(0, 5)]) == [
        TimeWindow(0, 5),
        TimeWindow(0, 9),
        TimeWindow(1, 2),
    ]
    assert len({TimeWindow(0, 5), TimeWindow(0, 5), GlobalWindow(), GlobalWindow.get()}) == 2


# Elements without event time


@pytest.mark.parametrize("trigger", [None, GeneralEventTime()])
@pytest.mark.parametrize("times", [(None,), (5, None)])
def test_an_element_without_event_time_is_refused_by_windows_in_event_time(
    trigger: Any, times: tuple[Any, ...]
) -> None:
    stream = windowed(TumblingEventTimeWindows.of(10))
    stream = stream if trigger is None else stream.trigger(trigger)
    with Windows(stream.reduce(added)) as job:
        with pytest.raises(EventTimeError, match="assign_timestamps_and_watermarks"):
            job.push_timed(*[("a", time, 1) for time in times])
        with pytest.raises(EventTimeError, match="assign_timestamps_and_watermarks"):
            job.push(("a", None, 1))


# The shorter way


ASSIGNERS = [
    TumblingEventTimeWindows.of(10),
    TumblingEventTimeWindows.of(10, 3),
    SlidingEventTimeWindows.of(10, 5),
    SlidingEventTimeWindows.of(10, 4, 1),
    SlidingEventTimeWindows.of(3, 7),
]
HISTORY: list[Any] = [
    [Event("a", 3, 1), Event("b", -4, 2), Event("a", 12, 3), Event("a", 5, 4)],
    7,
    [Event("a", 9, 5), Event("c", 2, 6), Event("a", 2, 7), Event("b", 30, 8)],
    "epoch",
    13,
    [Event("a", 4, 9), Event("a", 13, 10), Event("c", -30, 11), Event("a", 14, 12)],
    "restore",
    [Event("a", 6, 13), Event("a", 12, 14), Event("b", -4, 15)],
    22,
    "epoch",
    [Event("a", 20, 16), Event("b", 31, 17)],
    100,
]


def outcome(stream: Any, backend: Any) -> tuple[list[Any], int, dict[str, int]]:
    """What `HISTORY` comes to: outputs with their times, elements dropped, what is kept."""
    job = Windows(stream, backend=backend)
    given, dropped = [], 0
    for step in HISTORY:
        match step:
            case list():
                job.push_timed(*step)
            case int():
                job.advance_watermark(step)
            case "epoch":
                dropped += job.dropped()
                job.end_epoch()
            case "restore":
                dropped += job.dropped()
                given += job.stamped
                snapshot = job.snapshot()
                job.close()
                job = Windows(stream, backend=backend, restore_from=snapshot)
    with job:
        return given + job.stamped, dropped + job.dropped(), job.kept()


@pytest.mark.parametrize("lateness", [0, 6, 50])
@pytest.mark.parametrize("assigner", ASSIGNERS, ids=repr)
@pytest.mark.parametrize("contents", ["reduce", "aggregate", "list"])
def test_the_shorter_way_comes_to_the_same_in_the_same_order(
    assigner: Any, lateness: int, contents: str
) -> None:
    found = []
    for trigger in (None, GeneralEventTime()):
        stream = windowed(assigner).allowed_lateness(lateness)
        stream = stream if trigger is None else stream.trigger(trigger)
        match contents:
            case "reduce":
                result = stream.reduce(added, with_bounds)
            case "aggregate":
                result = stream.aggregate(Gathered(), with_bounds)
            case _:
                result = stream.apply(shown)
        found.append(outcome(result, HashMapStateBackend()))
    quick, general = found
    assert quick == general
    assert quick[0], "something was given out"


def test_the_shorter_way_by_the_clock_comes_to_the_same(backend: Any) -> None:
    found = []
    for trigger in (None, GeneralProcessingTime()):
        stream = windowed(SlidingProcessingTimeWindows.of(10, 4))
        stream = stream if trigger is None else stream.trigger(trigger)
        with Windows(stream.apply(shown), backend=backend) as job:
            for now in (1, 5, 13, 14, 40):
                job.set_processing_time(now)
                job.push(*[(key, None, now) for key in "abca"])
                if now == 13:
                    job.end_epoch()
            job.set_processing_time(100)
            found.append((job.stamped, job.kept()))
    assert found[0] == found[1]
    assert found[0][1] == {}


@pytest.mark.parametrize("general", [True, False])
def test_a_none_is_an_element_like_others(backend: Any, general: bool) -> None:
    stream = windowed(TumblingEventTimeWindows.of(10), keyed=False)
    stream = stream.trigger(GeneralEventTime()) if general else stream
    with Windows(stream.count(), backend=backend, key=None) as job:
        job.push(1, None, 2, None, at=5)
        job.end_input()
        assert [row[-1] for row in job.outputs] == [4]
