"""The functions of windows and their state, and windows of two streams, over every backend."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from holdfast import (
    ListStateDescriptor,
    MapStateDescriptor,
    OutputTag,
    ReduceFunction,
    ValueStateDescriptor,
)
from holdfast.api.time import MAX_WATERMARK
from holdfast.errors import StateAccessError, UserFunctionError
from holdfast.testing.windows import window_joined, windowed
from holdfast.windows import (
    CoGroupFunction,
    CountEvictor,
    CountTrigger,
    EventTimeSessionWindows,
    FlatJoinFunction,
    JoinFunction,
    ProcessAllWindowFunction,
    ProcessWindowFunction,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    WindowFunction,
)
from tests.support.windows import (
    CONTENTS,
    EVENT_TIMERS,
    Event,
    Gathered,
    GeneralEventTime,
    Shown,
    Windows,
    added,
    shown,
    with_bounds,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

TEN = TumblingEventTimeWindows.of(10)
LATE = OutputTag("late")


def a(*times: int) -> list[Event]:
    """Events of one key, numbered by their times."""
    return [Event("a", time, time) for time in times]


# What functions are called with


class Added(ReduceFunction):
    def reduce(self, value1: Any, value2: Any) -> Any:
        return added(value1, value2)


class Applied(WindowFunction):
    def apply(self, key: Any, window: Any, inputs: Sequence[Any]) -> Iterator[Any]:
        yield from shown(key, window, inputs)


@pytest.mark.parametrize("function", [added, Added()])
def test_reduce_gives_the_one_value_out(backend: Any, function: Any) -> None:
    with Windows(windowed(TEN).reduce(function), backend=backend) as job:
        job.push_timed(*a(1, 2), Event("b", 5, 5))
        job.end_epoch()
        job.push_timed(*a(3))
        job.end_input()
        assert sorted(job.outputs) == [Event("a", 1, 6), Event("b", 5, 5)]


@pytest.mark.parametrize("then", [with_bounds, Shown()])
def test_a_window_function_is_called_with_the_one_value_alone(backend: Any, then: Any) -> None:
    with Windows(windowed(TEN).reduce(added, then), backend=backend) as job:
        job.push_timed(*a(1, 2))
        job.end_input()
        [(key, start, end, content)] = job.outputs
        assert (key, start, end) == ("a", 0, 10)
        assert content == (Event("a", 1, 3) if then is with_bounds else [3])


def test_aggregate_gives_the_result_out(backend: Any) -> None:
    with Windows(windowed(TEN).aggregate(Gathered()), backend=backend) as job:
        job.push_timed(*a(1, 2))
        job.end_epoch()
        job.push_timed(*a(3))
        job.end_input()
        assert job.outputs == [[1, 2, 3]]


@pytest.mark.parametrize("function", [shown, Applied(), Shown()], ids=["callable", "W", "P"])
def test_all_elements_are_given_to_functions_of_windows(backend: Any, function: Any) -> None:
    stream = windowed(TEN)
    result = stream.process(function) if isinstance(function, Shown) else stream.apply(function)
    with Windows(result, backend=backend) as job:
        job.push_timed(*a(1, 2, 12))
        job.end_epoch()
        job.push_timed(*a(3))
        job.end_input()
        assert job.outputs == [("a", 0, 10, [1, 2, 3]), ("a", 10, 20, [12])]


def test_a_function_of_windows_may_give_nothing_or_side_outputs(backend: Any) -> None:
    odd = OutputTag("odd")

    def split(key: Any, window: Any, elements: Sequence[Any]) -> Any:
        if window.start == 20:
            return None
        return [(odd, e.n) if e.n % 2 else e.n for e in elements]

    with Windows(windowed(TEN).apply(split), backend=backend) as job:
        job.push_timed(*a(1, 2, 13, 14, 25))
        job.end_input()
        assert job.outputs == [2, 14]
        assert job.side_output(odd) == [1, 13]


def test_fields_may_be_folded(backend: Any) -> None:
    found = {}
    for how in ("sum", "min", "max", "min_by", "max_by"):
        stream = getattr(windowed(TEN, type=Event), how)("n")
        with Windows(stream, backend=backend) as job:
            job.push_timed(Event("a", 1, 5), Event("a", 2, 3), Event("a", 3, 9))
            job.end_input()
            [found[how]] = job.outputs
    assert found == {
        "sum": Event("a", 1, 17),
        "min": Event("a", 1, 3),
        "max": Event("a", 1, 9),
        "min_by": Event("a", 2, 3),
        "max_by": Event("a", 3, 9),
    }


class Told(ProcessWindowFunction):
    """Says all that its context says."""

    def open(self, ctx: Any) -> None:
        self.opened = ctx.get_task_name()

    def process(self, key: Any, context: Any, elements: Sequence[Any]) -> Iterator[Any]:
        assert self.opened == "Told"
        yield (
            context.window().end,
            context.current_watermark(),
            context.current_processing_time(),
        )


def test_a_process_function_is_told_of_the_window_and_of_time(backend: Any) -> None:
    with Windows(windowed(TEN).process(Told()), backend=backend) as job:
        job.clock.set(77)
        job.push_timed(*a(1, 12))
        job.advance_watermark(15)
        job.end_input()
        assert job.outputs == [(10, 15, 77), (20, MAX_WATERMARK, 77)]


def test_what_only_looks_like_clear_is_not_called() -> None:
    class Callable:
        def __call__(self, key: Any, window: Any, elements: Sequence[Any]) -> list[int]:
            return [len(elements)]

        def clear(self) -> None:
            raise AssertionError("this has nothing to do with windows")

    with Windows(windowed(TEN).apply(Callable())) as job:
        job.push_timed(*a(1, 2))
        job.end_input()
        assert job.outputs == [2]


# What is kept


@pytest.mark.parametrize("general", [True, False])
def test_a_window_that_folds_keeps_one_value_however_many_elements_come(
    backend: Any, general: bool
) -> None:
    for fold in ("reduce", "aggregate"):
        windows = windowed(TEN).trigger(GeneralEventTime()) if general else windowed(TEN)
        stream = windows.reduce(added) if fold == "reduce" else windows.aggregate(Gathered())
        with Windows(stream, backend=backend) as job:
            for _ in range(3):
                job.push_timed(*[Event(key, t, t) for key in "ab" for t in (1, 2, 11)])
                job.end_epoch()
            assert job.kept() == {CONTENTS: 4, EVENT_TIMERS: 4}


@pytest.mark.parametrize("general", [True, False])
def test_an_accumulator_that_is_changed_in_place_is_kept_as_it_was(
    backend: Any, general: bool
) -> None:
    """Neither a result that was given out nor another window shares it."""
    windows = windowed(SlidingEventTimeWindows.of(10, 5)).allowed_lateness(100)
    windows = windows.trigger(GeneralEventTime()) if general else windows
    with Windows(windows.aggregate(Gathered()), backend=backend) as job:
        job.push_timed(*a(6))
        job.advance_watermark(9)
        [first] = job.outputs
        first.append(1000)
        job.push_timed(*a(7))
        job.end_input()
        assert job.outputs == [[6, 1000], [6, 7], [6, 7]]


# State of a function


COUNT = ValueStateDescriptor("count", int)
SEEN = ListStateDescriptor("seen", int)
TIMES = MapStateDescriptor("times", int, int)


class Counts(ProcessWindowFunction):
    """Counts its calls: per window, per key; clears the former when the window is gone."""

    def process(self, key: Any, context: Any, elements: Sequence[Any]) -> Iterator[Any]:
        counts = []
        for store in (context.window_state(), context.global_state()):
            count = store.get_state(COUNT)
            count.update((count.value() or 0) + 1)
            counts.append(count.value())
        seen = context.window_state().get_list_state(SEEN)
        seen.add(len(elements))
        yield key, context.window().start, *counts, seen.get()

    def clear(self, context: Any) -> None:
        context.window_state().get_state(COUNT).clear()
        context.window_state().get_list_state(SEEN).clear()
        cleared = context.global_state().get_map_state(TIMES)
        cleared.put(context.window().start, context.current_watermark())


@pytest.mark.parametrize("general", [True, False])
def test_state_of_a_window_and_state_of_a_key(backend: Any, general: bool) -> None:
    windows = windowed(TEN).allowed_lateness(20)
    windows = windows.trigger(GeneralEventTime()) if general else windows
    with Windows(windows.process(Counts()), backend=backend) as job:
        job.push_timed(*a(1, 2, 12), Event("b", 1, 1))
        job.advance_watermark(9)
        assert sorted(job.take()) == [("a", 0, 1, 1, [2]), ("b", 0, 1, 1, [1])]
        job.end_epoch()
        job.push_timed(*a(3))
        job.advance_watermark(19)
        assert job.take() == [("a", 0, 2, 2, [2, 3]), ("a", 10, 1, 3, [1])]
        job.advance_watermark(29)
        job.end_epoch()
        assert job.kept() == {
            CONTENTS: 1,
            EVENT_TIMERS: 1,
            "count": 3,
            "seen": 1,
            "times": 2,
        }
        job.advance_watermark(39)
        assert job.kept() == {"count": 2, "times": 3}, "state of keys stays"


def test_state_of_the_runtime_context_is_state_of_the_key(backend: Any) -> None:
    class Numbers(ProcessWindowFunction):
        def open(self, ctx: Any) -> None:
            self.count = ctx.get_state(COUNT)

        def process(self, key: Any, context: Any, elements: Any) -> Iterator[Any]:
            self.count.update((self.count.value() or 0) + 1)
            yield key, self.count.value(), context.global_state().get_state(COUNT).value()

    with Windows(windowed(TEN).process(Numbers()), backend=backend) as job:
        job.push_timed(*a(1, 12), Event("b", 2, 2))
        job.end_epoch()
        job.end_input()
        assert sorted(job.outputs) == [("a", 1, 1), ("a", 2, 2), ("b", 1, 1)]
        assert job.state("count", "a") == 2


class WrongKind(ProcessWindowFunction):
    """Asks for a value by the descriptor of a list."""

    def process(self, key: Any, context: Any, elements: Sequence[Any]) -> None:
        context.window_state().get_state(ListStateDescriptor("values", int))


def test_a_state_of_a_window_is_asked_for_by_a_descriptor_of_its_kind() -> None:
    with Windows(windowed(TEN).process(WrongKind())) as job:
        job.push_timed(Event("a", 1, 1))
        with pytest.raises(UserFunctionError, match="described by a ValueStateDescriptor"):
            job.advance_watermark(9)


def test_sessions_have_no_state_of_their_own(backend: Any) -> None:
    stream = windowed(EventTimeSessionWindows.with_gap(10)).process(Counts())
    with Windows(stream, backend=backend) as job:
        job.push_timed(*a(1))
        with pytest.raises(StateAccessError, match=r"windows that merge.*use global_state\(\)"):
            job.end_input()


def test_sessions_have_state_of_the_key(backend: Any) -> None:
    class Sessions(ProcessWindowFunction):
        def process(self, key: Any, context: Any, elements: Any) -> Iterator[Any]:
            count = context.global_state().get_state(COUNT)
            count.update((count.value() or 0) + 1)
            yield key, count.value(), len(elements)

    stream = windowed(EventTimeSessionWindows.with_gap(10)).process(Sessions())
    with Windows(stream, backend=backend) as job:
        job.push_timed(*a(1, 2, 50))
        job.end_epoch()
        job.end_input()
        assert job.outputs == [("a", 1, 2), ("a", 2, 1)]
        assert job.kept() == {"count": 1}


def test_windows_that_are_not_keyed_have_both_states_too(backend: Any) -> None:
    class All(ProcessAllWindowFunction):
        def process(self, context: Any, elements: Any) -> Iterator[Any]:
            for store in (context.window_state(), context.global_state()):
                count = store.get_state(COUNT)
                count.update((count.value() or 0) + 1)
                yield count.value()

        def clear(self, context: Any) -> None:
            context.window_state().get_state(COUNT).clear()

    stream = windowed(TEN, keyed=False).process(All())
    with Windows(stream, backend=backend, key=None) as job:
        job.push_timed(*a(1, 12))
        job.end_epoch()
        job.end_input()
        assert job.outputs == [1, 1, 1, 2]
        assert job.kept() == {"count": 1}


# Two streams


def pair(one: Any, other: Any) -> tuple[Any, ...]:
    return one[0], one[2], other[2]


class Pair(JoinFunction):
    def join(self, first: Any, second: Any) -> Any:
        return pair(first, second)


class Pairs(FlatJoinFunction):
    def join(self, first: Any, second: Any) -> Any:
        if second[2] == 12:
            return None
        return [pair(first, second)] * 2


class Both(CoGroupFunction):
    def co_group(self, first: Sequence[Any], second: Sequence[Any]) -> Iterator[Any]:
        yield [e.n for e in first], [e.n for e in second]


def feed(job: Windows) -> None:
    job.push_timed(Event("a", 1, 1), Event("a", 2, 2), Event("b", 3, 3))
    job.push_timed(Event("a", 4, 11), Event("a", 15, 12), side=1)
    job.end_epoch()
    job.push_timed(Event("a", 16, 4))
    job.push_timed(Event("c", 5, 13), Event("a", 6, 14), side=1)


@pytest.mark.parametrize("general", [True, False])
@pytest.mark.parametrize("function", [pair, Pair()])
def test_elements_of_one_key_and_window_are_paired(
    backend: Any, general: bool, function: Any
) -> None:
    windows = window_joined(TEN)
    windows = windows.trigger(GeneralEventTime()) if general else windows
    with Windows(windows.apply(function), backend=backend) as job:
        feed(job)
        job.end_input()
        assert job.outputs == [
            ("a", 1, 11),
            ("a", 1, 14),
            ("a", 2, 11),
            ("a", 2, 14),
            ("a", 4, 12),
        ]
        assert [time for _, time in job.stamped] == [9, 9, 9, 9, 19]
        assert job.kept() == {}


def test_a_pair_may_give_any_number_of_elements(backend: Any) -> None:
    with Windows(window_joined(TEN).apply(Pairs()), backend=backend) as job:
        feed(job)
        job.end_input()
        assert job.outputs == [("a", n, m) for n in (1, 2) for m in (11, 14) for _ in range(2)]


def both(first: Sequence[Any], second: Sequence[Any]) -> Iterator[Any]:
    yield [e.n for e in first], [e.n for e in second]


@pytest.mark.parametrize("function", [Both(), both])
def test_a_co_group_has_the_elements_of_both_sides_and_one_may_be_empty(
    backend: Any, function: Any
) -> None:
    with Windows(window_joined(TEN, grouped=True).apply(function), backend=backend) as job:
        feed(job)
        job.end_input()
        assert sorted(job.outputs) == [
            ([], [13]),
            ([1, 2], [11, 14]),
            ([3], []),
            ([4], [12]),
        ]
        assert job.kept() == {}


def test_sides_may_be_of_two_types(backend: Any) -> None:
    windows = window_joined(TEN, types=(Event, "k string, t bigint, x double"))
    stream = windows.apply(lambda one, other: (one.n, other[2]))
    with Windows(stream, backend=backend) as job:
        job.push_timed(*a(1))
        job.push_timed(("a", 2, 0.5), side=1)
        job.end_epoch()
        job.end_input()
        assert job.outputs == [(1, 0.5)]


def test_a_join_may_have_an_evictor_and_a_trigger(backend: Any) -> None:
    windows = window_joined(TEN).evictor(CountEvictor.of(2)).trigger(CountTrigger.of(2))
    with Windows(windows.apply(pair), backend=backend) as job:
        job.push_timed(*a(1))
        job.push_timed(*a(2), side=1)
        assert job.take() == [("a", 1, 2)]
        job.push_timed(*a(3))
        job.end_epoch()
        job.push_timed(*a(4), side=1)
        assert job.take() == [("a", 3, 4)]
        job.push_timed(*a(5, 6))
        assert job.take() == []
        job.end_input()
        assert job.kept() == {}


def test_sessions_of_two_streams_merge(backend: Any) -> None:
    with Windows(
        window_joined(EventTimeSessionWindows.with_gap(10), grouped=True).apply(both),
        backend=backend,
    ) as job:
        job.push_timed(*a(1, 20))
        job.push_timed(*a(11), side=1)
        job.end_epoch()
        job.end_input()
        assert job.outputs == [([1, 20], [11])]
        assert job.kept() == {}


def test_elements_that_come_too_late_for_a_join_are_put_aside(backend: Any) -> None:
    windows = window_joined(TEN).allowed_lateness(10).side_output_late_data(LATE)
    with Windows(windows.apply(pair), backend=backend) as job:
        job.push_timed(*a(1))
        job.advance_watermark(10)
        job.push_timed(*a(2), side=1)
        assert job.take() == [("a", 1, 2)]
        job.advance_watermark(19)
        job.push_timed(*a(3))
        job.push_timed(*a(4), side=1)
        assert job.take() == []
        assert job.side_output(LATE) == a(3, 4)


def test_a_join_may_go_by_the_clock(backend: Any) -> None:
    with Windows(
        window_joined(TumblingProcessingTimeWindows.of(10)).apply(pair), backend=backend
    ) as job:
        job.push(("a", None, 1), ("a", None, 2))
        job.push_second(("a", None, 3))
        job.end_epoch()
        job.set_processing_time(9)
        assert job.outputs == [("a", 1, 3), ("a", 2, 3)]
        assert job.kept() == {}
