"""Window assigners: the windows of single elements, and what they refuse."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.api.time import MAX_WATERMARK
from holdfast.api.windows.assigners import WindowAssignerContext
from holdfast.api.windows.triggers import EndOfStreamTrigger
from holdfast.errors import ConfigurationError
from holdfast.windows import (
    EventTimeSessionWindows,
    EventTimeTrigger,
    GlobalWindow,
    GlobalWindows,
    NeverTrigger,
    ProcessingTimeSessionWindows,
    ProcessingTimeTrigger,
    SlidingEventTimeWindows,
    SlidingProcessingTimeWindows,
    TimeWindow,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
)


class Now(WindowAssignerContext):
    def __init__(self, time: int) -> None:
        self._time = time

    def get_current_processing_time(self) -> int:
        return self._time


def assigned(assigner: Any, time: int | None, now: int = 0) -> list[tuple[int, int]]:
    windows = assigner.assign_windows("element", time, Now(now))
    return [(window.start, window.end) for window in windows]


EVENT_TIME = [
    TumblingEventTimeWindows.of(10),
    SlidingEventTimeWindows.of(10, 5),
    EventTimeSessionWindows.with_gap(10),
    EventTimeSessionWindows.with_dynamic_gap(lambda element: 10),
]
PROCESSING_TIME = [
    TumblingProcessingTimeWindows.of(10),
    SlidingProcessingTimeWindows.of(10, 5),
    ProcessingTimeSessionWindows.with_gap(10),
    ProcessingTimeSessionWindows.with_dynamic_gap(lambda element: 10),
]


@pytest.mark.parametrize("kind", range(4))
def test_assigners_by_the_clock_do_with_it_what_others_do_with_the_event_time(kind: int) -> None:
    in_event_time, by_the_clock = EVENT_TIME[kind], PROCESSING_TIME[kind]
    for time in (-11, -1, 0, 4, 10):
        assert assigned(in_event_time, time, now=77) == assigned(by_the_clock, 77, now=time)
        assert assigned(by_the_clock, None, now=time) == assigned(by_the_clock, 77, now=time)


@pytest.mark.parametrize("assigner", EVENT_TIME, ids=repr)
def test_windows_in_event_time_fire_by_the_watermark(assigner: Any) -> None:
    assert assigner.is_event_time()
    assert type(assigner.get_default_trigger()) is EventTimeTrigger
    assert assigner.window_type is TimeWindow


@pytest.mark.parametrize("assigner", PROCESSING_TIME, ids=repr)
def test_windows_in_processing_time_fire_by_the_clock(assigner: Any) -> None:
    assert not assigner.is_event_time()
    assert type(assigner.get_default_trigger()) is ProcessingTimeTrigger


def test_a_global_window_holds_everything_and_has_no_end() -> None:
    assigner = GlobalWindows.create()
    [window] = assigner.assign_windows("element", None, Now(0))
    assert window is GlobalWindow.get()
    assert window.max_timestamp() == MAX_WATERMARK
    assert assigner.window_type is GlobalWindow
    assert type(assigner.get_default_trigger()) is NeverTrigger
    at_end = GlobalWindows.create_with_end_of_stream_trigger()
    assert type(at_end.get_default_trigger()) is EndOfStreamTrigger
    assert not at_end.is_event_time()


@given(
    time=st.integers(-(10**12), 10**12),
    size=st.integers(1, 500),
    slide=st.integers(1, 500),
    offset=st.integers(-499, 499),
)
def test_an_element_lies_in_exactly_the_windows_that_cover_it(
    time: int, size: int, slide: int, offset: int
) -> None:
    offset %= slide
    windows = assigned(SlidingEventTimeWindows.of(size, slide, offset), time)
    starts = [s for s in range(time, time - size, -1) if (s - offset) % slide == 0]
    assert windows == [(start, start + size) for start in starts], "the latest first"
    [(start, end)] = assigned(TumblingEventTimeWindows.of(slide, offset), time)
    assert start <= time < end
    assert (start - offset) % slide == 0


def test_lengths_of_time_are_written_in_several_ways() -> None:
    for size in (60_000, "1 min", timedelta(minutes=1)):
        assert assigned(TumblingEventTimeWindows.of(size), 1) == [(0, 60_000)]
    for offset in (-1000, "-1 s", timedelta(seconds=-1)):
        assert assigned(TumblingEventTimeWindows.of(60_000, offset), 1) == [(-1000, 59_000)]
    assert assigned(TumblingEventTimeWindows("1 min", "-1 s"), 1) == [(-1000, 59_000)]
    assert assigned(SlidingEventTimeWindows("1 min", timedelta(minutes=1)), 1) == [(0, 60_000)]
    assert assigned(EventTimeSessionWindows("1 min"), 1) == [(1, 60_001)]


# What is refused


SIZES: list[Any] = [0, -1, "0 s", "soon", 1.5, None, True, timedelta(0)]


@pytest.mark.parametrize("size", SIZES, ids=repr)
@pytest.mark.parametrize(
    "make",
    [
        TumblingEventTimeWindows.of,
        TumblingProcessingTimeWindows.of,
        lambda size: SlidingEventTimeWindows.of(size, 5),
        lambda size: SlidingEventTimeWindows.of(5, size),
        lambda size: SlidingProcessingTimeWindows.of(5, size),
        EventTimeSessionWindows.with_gap,
        ProcessingTimeSessionWindows.with_gap,
        TumblingEventTimeWindows,
    ],
)
def test_a_length_must_be_positive(make: Any, size: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"Windows: .*expected .*, got"):
        make(size)


@pytest.mark.parametrize("offset", [10, -10, "1 min"])
@pytest.mark.parametrize(
    "make",
    [
        lambda offset: TumblingEventTimeWindows.of(10, offset),
        lambda offset: TumblingProcessingTimeWindows.of(10, offset),
        lambda offset: SlidingEventTimeWindows.of(50, 10, offset),
        lambda offset: SlidingProcessingTimeWindows.of(50, 10, offset),
    ],
)
def test_an_offset_must_be_shorter_than_what_it_moves(make: Any, offset: Any) -> None:
    with pytest.raises(ConfigurationError, match="must be shorter than the"):
        make(offset)


@pytest.mark.parametrize("offset", ["soon", 1.5, None, True])
def test_an_offset_must_be_a_length_of_time(offset: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"Windows: offset: expected .*, got"):
        TumblingEventTimeWindows.of(10, offset)
    with pytest.raises(ConfigurationError, match=r"Windows: offset: expected .*, got"):
        SlidingProcessingTimeWindows.of(10, 5, offset)


@pytest.mark.parametrize("extractor", [10, "10 s", None])
@pytest.mark.parametrize("assigner", [EventTimeSessionWindows, ProcessingTimeSessionWindows])
def test_a_dynamic_gap_is_a_function(assigner: Any, extractor: Any) -> None:
    with pytest.raises(ConfigurationError, match="SessionWindowTimeGapExtractor or a function"):
        assigner.with_dynamic_gap(extractor)


# Sessions


def w(start: int, end: int) -> TimeWindow:
    return TimeWindow(start, end)


def test_windows_that_share_a_time_or_touch_become_one() -> None:
    merged = EventTimeSessionWindows.with_gap(10).merge_windows(
        [w(30, 40), w(0, 5), w(5, 7), w(8, 9), w(35, 50), w(36, 38), w(100, 110)]
    )
    assert merged == [
        (w(0, 7), [w(0, 5), w(5, 7)]),
        (w(30, 50), [w(30, 40), w(35, 50), w(36, 38)]),
    ]


def test_windows_that_meet_no_other_are_left_out() -> None:
    assigner = EventTimeSessionWindows.with_gap(10)
    assert assigner.merge_windows([]) == []
    assert assigner.merge_windows([w(0, 5), w(6, 7)]) == []


def test_a_window_inside_another_is_taken_in() -> None:
    assert w(0, 10).intersects(w(3, 4))
    assert w(0, 10).cover(w(3, 4)) == w(0, 10)
    assert w(0, 10).cover(w(-5, 12)) == w(-5, 12)
    assert not w(0, 10).intersects(w(11, 12))
    assert w(0, 10).intersects(w(10, 12))


# For people


def test_assigners_are_shown_with_their_lengths() -> None:
    assert repr(TumblingEventTimeWindows.of("1 s")) == "TumblingEventTimeWindows(1000 ms)"
    assert repr(SlidingEventTimeWindows.of(10, 5)) == "SlidingEventTimeWindows(10 ms, 5 ms)"
    assert repr(EventTimeSessionWindows.with_gap(10)) == "EventTimeSessionWindows(10 ms)"
    dynamic = ProcessingTimeSessionWindows.with_dynamic_gap(lambda element: 1)
    assert repr(dynamic) == "ProcessingTimeSessionWindows(dynamic gap)"
    assert repr(GlobalWindows.create()) == "GlobalWindows()"
    assert repr(w(0, 5)) == "TimeWindow(start=0, end=5)"
    assert repr(GlobalWindow.get()) == "GlobalWindow()"
