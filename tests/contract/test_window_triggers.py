"""When triggers let windows fire, and what evictors leave of them, over every backend."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from holdfast import (
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from holdfast.errors import StateAccessError
from holdfast.testing.windows import windowed
from holdfast.windows import (
    ContinuousEventTimeTrigger,
    ContinuousProcessingTimeTrigger,
    CountEvictor,
    CountTrigger,
    DeltaEvictor,
    EventTimeSessionWindows,
    EventTimeTrigger,
    Evictor,
    GlobalWindows,
    NeverTrigger,
    ProcessingTimeSessionWindows,
    ProcessingTimeTrigger,
    PurgingTrigger,
    SlidingEventTimeWindows,
    TimeEvictor,
    Trigger,
    TriggerResult,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
)
from tests.support.windows import (
    CONTENTS,
    EVENT_TIMERS,
    OPEN_WINDOWS,
    PROCESSING_TIMERS,
    Event,
    Gathered,
    Windows,
    added,
    count_window,
    numbers,
    shown,
    with_bounds,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.windows import TimestampedValue


def a(*times: int) -> list[Event]:
    """Events of one key, numbered by their times."""
    return [Event("a", time, time) for time in times]


def contents(job: Windows) -> list[Any]:
    """The numbers in the windows that have fired since this was last asked for."""
    return [output[-1] for output in job.take()]


# Triggers


def test_an_event_time_trigger_fires_at_the_end_and_for_every_late_element(backend: Any) -> None:
    stream = windowed(TumblingEventTimeWindows.of(10)).trigger(EventTimeTrigger.create())
    with Windows(stream.allowed_lateness(100).apply(numbers), backend=backend) as job:
        job.push_timed(*a(1, 2))
        job.advance_watermark(9)
        assert contents(job) == [[1, 2]]
        job.push_timed(*a(3, 4))
        assert contents(job) == [[1, 2, 3], [1, 2, 3, 4]]


def test_windows_in_event_time_may_fire_by_the_clock(backend: Any) -> None:
    stream = windowed(TumblingEventTimeWindows.of(10)).trigger(ProcessingTimeTrigger.create())
    with Windows(stream.apply(numbers), backend=backend) as job:
        job.push_timed(*a(1, 2))
        job.end_epoch()
        job.set_processing_time(9)
        assert contents(job) == [[1, 2]]
        job.push_timed(*a(3))
        job.set_processing_time(9)
        assert contents(job) == [[1, 2, 3]]
        job.advance_watermark(9)
        assert contents(job) == []
        assert job.kept() == {}, "the watermark removes them"


def test_a_count_trigger_fires_every_so_many_elements(backend: Any) -> None:
    stream = windowed(TumblingEventTimeWindows.of(100)).trigger(CountTrigger.of(2))
    with Windows(stream.apply(numbers), backend=backend) as job:
        job.push_timed(*a(1, 2, 3), Event("b", 1, 1))
        job.end_epoch()
        assert contents(job) == [[1, 2]]
        job.push_timed(*a(4, 5))
        assert contents(job) == [[1, 2, 3, 4]]
        assert job.kept()["count"] == 2
        job.end_input()
        assert contents(job) == []
        assert job.kept() == {}


def test_each_window_has_its_own_count(backend: Any) -> None:
    stream = windowed(SlidingEventTimeWindows.of(10, 5)).trigger(CountTrigger.of(2))
    with Windows(stream.apply(shown), backend=backend) as job:
        job.push_timed(*a(1, 6, 2))
        assert job.take() == [("a", 0, 10, [1, 6]), ("a", -5, 5, [1, 2])]


def test_counts_add_up_when_sessions_merge(backend: Any) -> None:
    stream = windowed(EventTimeSessionWindows.with_gap(10)).trigger(CountTrigger.of(4))
    with Windows(stream.aggregate(Gathered(), with_bounds), backend=backend) as job:
        job.push_timed(*a(1, 2, 25))
        assert job.kept()["count"] == 2
        job.end_epoch()
        job.push_timed(*a(15))
        assert job.take() == []
        job.push_timed(*a(11))
        # The count of all of them was five when they met.
        assert job.take() == [("a", 1, 35, [1, 2, 25, 15, 11])]
        job.advance_watermark(100)
        assert job.kept() == {}


def test_a_purging_trigger_empties_the_window_when_it_fires(backend: Any) -> None:
    trigger = PurgingTrigger.of(CountTrigger.of(2))
    stream = windowed(TumblingEventTimeWindows.of(100)).trigger(trigger)
    with Windows(stream.apply(numbers), backend=backend) as job:
        job.push_timed(*a(1, 2, 3))
        assert contents(job) == [[1, 2]]
        job.end_epoch()
        job.push_timed(*a(4, 5))
        assert contents(job) == [[3, 4]]
        job.advance_watermark(99)
        assert job.kept() == {}


def test_a_purging_trigger_at_the_end_leaves_late_elements_to_themselves(backend: Any) -> None:
    trigger = PurgingTrigger.of(EventTimeTrigger.create())
    stream = windowed(TumblingEventTimeWindows.of(10)).trigger(trigger).allowed_lateness(20)
    with Windows(stream.reduce(added), backend=backend) as job:
        job.push_timed(*a(1, 2))
        job.advance_watermark(9)
        assert contents(job) == [3]
        assert job.kept() == {EVENT_TIMERS: 1}
        job.push_timed(*a(4, 5))
        assert contents(job) == [4, 5]
        job.advance_watermark(29)
        assert job.take() == []
        assert job.kept() == {}


def test_a_session_that_was_purged_stays_open(backend: Any) -> None:
    trigger = PurgingTrigger.of(EventTimeTrigger.create())
    stream = windowed(EventTimeSessionWindows.with_gap(10)).trigger(trigger).allowed_lateness(20)
    with Windows(stream.apply(shown), backend=backend) as job:
        job.push_timed(*a(1))
        job.advance_watermark(12)
        assert job.take() == [("a", 1, 11, [1])]
        assert job.kept() == {EVENT_TIMERS: 1, OPEN_WINDOWS: 1}
        job.push_timed(*a(8))
        assert job.take() == []
        job.advance_watermark(17)
        assert job.take() == [("a", 1, 18, [8])]
        job.advance_watermark(100)
        assert job.kept() == {}


def test_a_trigger_that_never_fires_lets_windows_end_in_silence(backend: Any) -> None:
    stream = windowed(TumblingEventTimeWindows.of(10)).trigger(NeverTrigger())
    with Windows(stream.apply(numbers), backend=backend) as job:
        job.push_timed(*a(1, 2))
        job.advance_watermark(9)
        assert job.take() == []
        assert job.kept() == {}


def test_a_continuous_trigger_fires_at_every_interval_and_at_the_end(backend: Any) -> None:
    trigger = ContinuousEventTimeTrigger.of(5)
    stream = windowed(TumblingEventTimeWindows.of(12)).trigger(trigger)
    with Windows(stream.apply(numbers), backend=backend) as job:
        job.push_timed(*a(1))
        job.advance_watermark(4)
        assert contents(job) == []
        job.advance_watermark(5)
        assert contents(job) == [[1]]
        job.end_epoch()
        job.push_timed(*a(6, 7))
        job.advance_watermark(10)
        assert contents(job) == [[1, 6, 7]]
        job.push_timed(*a(8))
        job.advance_watermark(11)
        assert contents(job) == [[1, 6, 7, 8]]
        assert [time for _, time in job.stamped] == [11] * 3, "whenever it has fired"
        assert job.kept() == {}


def test_a_continuous_trigger_makes_up_for_intervals_that_have_passed(backend: Any) -> None:
    trigger = ContinuousEventTimeTrigger.of(5)
    stream = windowed(TumblingEventTimeWindows.of(-20 % 40)).trigger(trigger)
    with Windows(stream.allowed_lateness(7).apply(numbers), backend=backend) as job:
        job.push_timed(*a(-17))
        job.advance_watermark(100)
        assert contents(job) == [[-17]] * 4, "at -15, -10, -5 and -1"
        assert job.kept() == {}


def test_a_continuous_trigger_fires_for_every_late_element(backend: Any) -> None:
    trigger = ContinuousEventTimeTrigger.of(5)
    stream = windowed(TumblingEventTimeWindows.of(10)).trigger(trigger)
    with Windows(stream.allowed_lateness(20).apply(numbers), backend=backend) as job:
        job.push_timed(*a(6))
        job.advance_watermark(9)
        assert contents(job) == [[6]]
        job.push_timed(*a(1))
        assert contents(job) == [[6, 1]]
        job.advance_watermark(29)
        assert contents(job) == []
        assert job.kept() == {}


def test_sessions_that_merge_keep_the_earliest_of_their_next_firings(backend: Any) -> None:
    trigger = ContinuousEventTimeTrigger.of(10)
    stream = windowed(EventTimeSessionWindows.with_gap(15)).trigger(trigger)
    with Windows(stream.apply(shown), backend=backend) as job:
        job.push_timed(*a(1, 29))
        job.end_epoch()
        job.push_timed(*a(16))
        job.advance_watermark(10)
        assert job.take() == [("a", 1, 44, [1, 29, 16])]
        job.advance_watermark(43)
        assert len(job.take()) == 4, "at 20, 30, 40 and 43"
        assert job.kept() == {}


def test_a_continuous_trigger_by_the_clock(backend: Any) -> None:
    trigger = ContinuousProcessingTimeTrigger.of(5)
    stream = windowed(TumblingProcessingTimeWindows.of(12)).trigger(trigger)
    with Windows(stream.apply(numbers), backend=backend) as job:
        job.set_processing_time(1)
        job.push(("a", None, 1))
        job.set_processing_time(4)
        assert contents(job) == []
        job.set_processing_time(5)
        assert contents(job) == [[1]]
        job.end_epoch()
        job.push(("a", None, 2))
        job.set_processing_time(11)
        assert contents(job) == [[1, 2], [1, 2]]
        assert job.kept() == {}


def test_a_continuous_trigger_by_the_clock_follows_sessions(backend: Any) -> None:
    trigger = ContinuousProcessingTimeTrigger.of(10)
    stream = windowed(ProcessingTimeSessionWindows.with_gap(15)).trigger(trigger)
    with Windows(stream.apply(numbers), backend=backend) as job:
        for now in (1, 12, 25):
            job.set_processing_time(now)
            job.push(("a", None, now))
        # At 10, at 15, where the session was to end when the timer was set, and at 25.
        assert contents(job) == [[1], [1, 12], [1, 12]]
        job.set_processing_time(39)
        assert contents(job) == [[1, 12, 25]] * 3, "at 26, 36 and 39"
        assert job.kept() == {}


def test_a_continuous_trigger_by_the_clock_on_windows_in_event_time(backend: Any) -> None:
    trigger = ContinuousProcessingTimeTrigger.of(5)
    stream = windowed(TumblingEventTimeWindows.of(1000)).trigger(trigger)
    with Windows(stream.apply(numbers), backend=backend) as job:
        job.push_timed(*a(1))
        job.set_processing_time(5)
        assert contents(job) == [[1]]
        assert job.kept()[PROCESSING_TIMERS] == 1
        job.advance_watermark(999)
        assert contents(job) == []
        assert job.kept() == {}


class Alarm(Trigger):
    """Fires five after the first element, or when the numbers come to a hundred.

    Clears the sum and the timer when it fires, and merges both.
    """

    SUM = ReducingStateDescriptor("sum", lambda old, new: old + new, int)
    AT = ReducingStateDescriptor("at", min, int)

    def on_element(self, element: Any, timestamp: Any, window: Any, ctx: Any) -> TriggerResult:
        assert ctx.get_current_processing_time() == 42
        ctx.get_metric_group().counter("asked").inc()
        total, at = ctx.get_partitioned_state(self.SUM), ctx.get_partitioned_state(self.AT)
        total.add(element[2])
        if total.get() >= 100:
            self.clear(window, ctx)
            return TriggerResult.FIRE
        if at.get() is None:
            at.add(timestamp + 5)
            ctx.register_event_time_timer(timestamp + 5)
        return TriggerResult.CONTINUE

    def on_event_time(self, time: int, window: Any, ctx: Any) -> TriggerResult:
        assert ctx.get_current_watermark() >= time
        if time != ctx.get_partitioned_state(self.AT).get():
            return TriggerResult.CONTINUE
        self.clear(window, ctx)
        return TriggerResult.FIRE

    def on_processing_time(self, time: int, window: Any, ctx: Any) -> TriggerResult:
        raise AssertionError("no such timer was set")

    def can_merge(self) -> bool:
        return True

    def on_merge(self, window: Any, ctx: Any) -> None:
        ctx.merge_partitioned_state(self.SUM)
        ctx.merge_partitioned_state(self.AT)
        at = ctx.get_partitioned_state(self.AT).get()
        if at is not None:
            ctx.register_event_time_timer(at)

    def clear(self, window: Any, ctx: Any) -> None:
        at = ctx.get_partitioned_state(self.AT)
        if at.get() is not None:
            ctx.delete_event_time_timer(at.get())
        at.clear()
        ctx.get_partitioned_state(self.SUM).clear()


def test_a_trigger_of_ones_own_has_state_and_timers_of_each_window(backend: Any) -> None:
    stream = windowed(SlidingEventTimeWindows.of(20, 10)).trigger(Alarm()).apply(shown)
    with Windows(stream, backend=backend) as job:
        job.clock.set(42)
        job.push_timed(Event("a", 3, 1), Event("b", 3, 1))
        job.end_epoch()
        job.push_timed(Event("a", 4, 99))
        assert job.take() == [("a", 0, 20, [1, 99]), ("a", -10, 10, [1, 99])]
        assert job.metrics.counters["asked"] == 2
        job.advance_watermark(8)
        assert job.take() == [("b", -10, 10, [1]), ("b", 0, 20, [1])]
        job.push_timed(Event("b", 9, 1))
        assert job.kept()["sum"] == job.kept()["at"] == 2
        job.advance_watermark(19)
        # Five after it, its first window was over.
        assert job.take() == [("b", 0, 20, [1, 1])]
        assert job.kept() == {}


def test_the_state_and_timers_of_a_trigger_of_ones_own_merge_with_sessions(backend: Any) -> None:
    stream = windowed(EventTimeSessionWindows.with_gap(10)).trigger(Alarm()).apply(shown)
    with Windows(stream, backend=backend) as job:
        job.clock.set(42)
        job.push_timed(Event("a", 0, 40), Event("a", 18, 40))
        job.end_epoch()
        assert job.kept()["sum"] == 2
        job.push_timed(Event("a", 9, 10))
        assert job.take() == []
        assert job.kept()["sum"] == 1
        job.end_epoch()
        job.push_timed(Event("a", 10, 10))
        assert job.take() == [("a", 0, 28, [40, 40, 10, 10])]
        job.advance_watermark(26)
        assert job.take() == [], "the earliest of their timers was taken back"
        job.advance_watermark(27)
        assert job.kept() == {}


def test_a_session_that_takes_an_element_in_without_growing_is_not_merged(backend: Any) -> None:
    class Unmerged(EventTimeTrigger):
        def on_merge(self, window: Any, ctx: Any) -> None:
            raise AssertionError("there is nothing to merge")

    sessions = EventTimeSessionWindows.with_dynamic_gap(lambda element: element[2])
    stream = windowed(sessions).trigger(Unmerged()).apply(shown)
    with Windows(stream, backend=backend) as job:
        job.push_timed(Event("a", 0, 100), Event("a", 50, 10))
        job.end_epoch()
        job.push_timed(Event("a", 0, 100), Event("a", 0, 99))
        job.end_input()
        assert job.take() == [("a", 0, 100, [100, 10, 100, 99])]


@pytest.mark.parametrize(
    "descriptor", [ValueStateDescriptor("x", int), MapStateDescriptor("x", int, int)]
)
def test_a_state_that_does_not_say_how_two_become_one_is_not_merged(
    descriptor: Any, backend: Any
) -> None:
    class Merges(Alarm):
        def on_merge(self, window: Any, ctx: Any) -> None:
            ctx.merge_partitioned_state(descriptor)

    stream = windowed(EventTimeSessionWindows.with_gap(10)).trigger(Merges()).apply(shown)
    with Windows(stream, backend=backend) as job:
        job.clock.set(42)
        job.push_timed(*a(0, 18))
        with pytest.raises(StateAccessError, match="only list, reducing and aggregating states"):
            job.push_timed(*a(9))


def test_lists_of_a_trigger_merge(backend: Any) -> None:
    class Lists(Alarm):
        SEEN = ListStateDescriptor("seen", int)

        def on_element(self, element: Any, timestamp: Any, window: Any, ctx: Any) -> TriggerResult:
            seen = ctx.get_partitioned_state(self.SEEN)
            seen.add(element[2])
            return TriggerResult.FIRE if len(seen.get()) == 3 else TriggerResult.CONTINUE

        def on_merge(self, window: Any, ctx: Any) -> None:
            ctx.merge_partitioned_state(self.SEEN)

        def clear(self, window: Any, ctx: Any) -> None:
            ctx.get_partitioned_state(self.SEEN).clear()

    stream = windowed(EventTimeSessionWindows.with_gap(10)).trigger(Lists()).apply(numbers)
    with Windows(stream, backend=backend) as job:
        job.push_timed(*a(0, 18))
        job.end_epoch()
        job.push_timed(*a(9))
        assert job.take() == [("a", [0, 18, 9])]
        job.advance_watermark(100)
        assert job.kept() == {}


class Says(Trigger):
    """Does as elements say: the last digit of their number at once, the first by a timer."""

    RESULTS = (
        TriggerResult.CONTINUE,
        TriggerResult.FIRE,
        TriggerResult.PURGE,
        TriggerResult.FIRE_AND_PURGE,
    )

    def on_element(self, element: Any, timestamp: Any, window: Any, ctx: Any) -> TriggerResult:
        later, now = divmod(element[2], 10)
        ctx.register_event_time_timer(500 + later)
        ctx.register_processing_time_timer(500 + later)
        return self.RESULTS[now]

    def on_event_time(self, time: int, window: Any, ctx: Any) -> TriggerResult:
        return self.RESULTS[time - 500]

    def on_processing_time(self, time: int, window: Any, ctx: Any) -> TriggerResult:
        return self.RESULTS[time - 500]

    def clear(self, window: Any, ctx: Any) -> None:
        return


@pytest.mark.parametrize("asked", ["for an element", "by the watermark", "by the clock"])
@pytest.mark.parametrize("folds", [True, False])
def test_a_window_does_what_its_trigger_says(backend: Any, asked: str, folds: bool) -> None:
    windows = windowed(TumblingEventTimeWindows.of(1000)).trigger(Says())
    stream = windows.aggregate(Gathered()) if folds else windows.apply(lambda k, w, e: [[*e]])
    with Windows(stream, backend=backend) as job:
        for key, does in enumerate(("nothing", "fires", "purges", "fires and purges")):
            number = key if asked == "for an element" else 10 * key
            before = job.kept().get(CONTENTS, 0)
            job.push_timed(Event(f"{key}", 5, 0), Event(f"{key}", 5, number))
            if asked == "by the watermark":
                job.advance_watermark(500 + key)
            elif asked == "by the clock":
                job.set_processing_time(500 + key)
            assert len(job.take()) == ("fires" in does)
            assert (job.kept()[CONTENTS] == before) == ("purges" in does)


def test_a_timer_that_a_trigger_has_left_behind_finds_nothing(backend: Any) -> None:
    class Forgetful(EventTimeTrigger):
        def on_element(self, element: Any, timestamp: Any, window: Any, ctx: Any) -> TriggerResult:
            ctx.register_event_time_timer(window.max_timestamp() + 50)
            return super().on_element(element, timestamp, window, ctx)

        def on_event_time(self, time: int, window: Any, ctx: Any) -> TriggerResult:
            return TriggerResult.FIRE

        def clear(self, window: Any, ctx: Any) -> None:
            return

    for assigner in (TumblingEventTimeWindows.of(10), EventTimeSessionWindows.with_gap(10)):
        for evictor in (None, CountEvictor.of(5)):
            stream = windowed(assigner).trigger(Forgetful())
            stream = stream if evictor is None else stream.evictor(evictor)
            with Windows(stream.apply(numbers), backend=backend) as job:
                job.push_timed(*a(1, 2))
                job.advance_watermark(11)
                assert job.take() == [("a", [1, 2])]
                job.advance_watermark(100)
                assert job.take() == []
                assert job.kept() == {}


# Evictors


def evicting(evictor: Evictor, *, every: int = 2) -> Any:
    stream = windowed(GlobalWindows.create()).trigger(CountTrigger.of(every)).evictor(evictor)
    return stream.apply(numbers)


def test_a_count_evictor_keeps_the_last_elements(backend: Any) -> None:
    with Windows(evicting(CountEvictor.of(3)), backend=backend) as job:
        job.push_timed(*a(1, 2, 3, 4))
        job.end_epoch()
        job.push_timed(*a(5, 6))
        assert contents(job) == [[1, 2], [2, 3, 4], [4, 5, 6]]


def test_a_count_evictor_may_evict_after_the_function(backend: Any) -> None:
    with Windows(evicting(CountEvictor.of(1, True)), backend=backend) as job:
        job.push_timed(*a(1, 2, 3, 4))
        job.end_epoch()
        job.push_timed(*a(5, 6))
        assert contents(job) == [[1, 2], [2, 3, 4], [4, 5, 6]]


@pytest.mark.parametrize("after", [False, True])
def test_a_time_evictor_keeps_what_is_near_the_newest_element(backend: Any, after: bool) -> None:
    with Windows(evicting(TimeEvictor.of(10, after), every=3), backend=backend) as job:
        job.push_timed(*a(5, 20, 11))
        job.end_epoch()
        job.push_timed(*a(10, 21, 12))
        expected = [[20, 11], [20, 21, 12]]
        if after:
            expected = [[5, 20, 11], [20, 11, 10, 21, 12]]
        assert contents(job) == expected


def test_a_time_evictor_leaves_elements_without_event_time_alone(backend: Any) -> None:
    with Windows(evicting(TimeEvictor.of(10), every=3), backend=backend) as job:
        job.push(*[("a", None, n) for n in range(3)])
        assert contents(job) == [[0, 1, 2]]


@pytest.mark.parametrize("after", [False, True])
def test_a_delta_evictor_keeps_what_is_near_the_last_element(backend: Any, after: bool) -> None:
    evictor = DeltaEvictor.of(10, lambda one, last: abs(last[2] - one[2]), after)
    with Windows(evicting(evictor, every=3), backend=backend) as job:
        job.push_timed(*a(1, 30, 20))
        job.push_timed(*a(21, 29, 12))
        assert contents(job) == ([[1, 30, 20], [20, 21, 29, 12]] if after else [[20], [20, 21, 12]])


class OnlyEven(Evictor):
    """Drops odd numbers before, and all but the newest after; notes what it is told."""

    def evict_before(
        self, elements: list[TimestampedValue], size: int, window: Any, ctx: Any
    ) -> None:
        assert size == len(elements)
        assert all(one.timestamp == one.value.time for one in elements)
        assert ctx.get_current_watermark() == 7
        assert ctx.get_current_processing_time() == 42
        elements[:] = [one for one in elements if one.value.n % 2 == 0]

    def evict_after(
        self, elements: list[TimestampedValue], size: int, window: Any, ctx: Any
    ) -> None:
        del elements[:-1]


@pytest.mark.parametrize("way", ["apply", "reduce", "aggregate"])
def test_an_evictor_of_ones_own_evicts_before_and_after(backend: Any, way: str) -> None:
    stream = windowed(TumblingEventTimeWindows.of(100)).evictor(OnlyEven())
    stream = stream.trigger(CountTrigger.of(3))
    match way:
        case "apply":
            result = stream.apply(lambda key, window, elements: [[e.n for e in elements]])
        case "reduce":
            result = stream.reduce(added, lambda key, window, one: [[e.n for e in one]])
        case _:
            result = stream.aggregate(Gathered())
    with Windows(result, backend=backend) as job:
        job.advance_watermark(7)
        job.clock.set(42)
        job.push_timed(*a(1, 2, 4))
        job.end_epoch()
        job.push_timed(*a(6, 7, 8))
        job.push_timed(Event("b", 8, 1), Event("b", 8, 3), Event("b", 8, 5))
        found = job.take()
        if way == "reduce":
            # A window function is called though nothing is left.
            assert found == [[6], [18], []]
        else:
            assert found == [[2, 4], [4, 6, 8], []]
        job.advance_watermark(100)
        assert job.kept() == {}


def test_an_evictor_that_leaves_nothing_to_reduce_gives_nothing_out(backend: Any) -> None:
    class Nothing(OnlyEven):
        def evict_before(self, elements: Any, size: int, window: Any, ctx: Any) -> None:
            elements.clear()

    stream = windowed(TumblingEventTimeWindows.of(10)).evictor(Nothing()).reduce(added)
    with Windows(stream, backend=backend) as job:
        job.push_timed(*a(1, 2))
        job.end_input()
        assert job.take() == []
        assert job.kept() == {}


def test_elements_keep_their_times_when_sessions_with_an_evictor_merge(backend: Any) -> None:
    stream = windowed(EventTimeSessionWindows.with_gap(10)).evictor(TimeEvictor.of(11))
    with Windows(stream.apply(shown), backend=backend) as job:
        job.push_timed(*a(0, 18))
        job.end_epoch()
        job.push_timed(*a(9))
        job.end_input()
        assert job.take() == [("a", 0, 28, [18, 9])]
        assert job.kept() == {}


def test_evictors_in_sliding_count_windows_keep_no_more_than_the_size(backend: Any) -> None:
    def number(key: Any, window: Any, elements: Sequence[Any]) -> list[int]:
        return [len(elements)]

    with Windows(count_window(2, 3).apply(number), backend=backend) as job:
        for batch in ([1, 2, 3], [4, 5, 6, 7]):
            job.push_timed(*a(*batch))
            job.end_epoch()
        assert job.take() == [2, 2]
        job.push_timed(*a(8, 9))
        assert job.take() == [2]
