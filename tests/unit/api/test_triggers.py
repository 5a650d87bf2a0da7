"""Triggers and evictors by themselves: what they refuse, and what they say of themselves."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.api.windows.triggers import EndOfStreamTrigger
from holdfast.errors import ConfigurationError
from holdfast.windows import (
    ContinuousEventTimeTrigger,
    ContinuousProcessingTimeTrigger,
    CountEvictor,
    CountTrigger,
    DeltaEvictor,
    EventTimeTrigger,
    NeverTrigger,
    ProcessingTimeTrigger,
    PurgingTrigger,
    TimeEvictor,
    TimestampedValue,
    Trigger,
    TriggerResult,
)


class Unmerged(Trigger):
    """A trigger that says nothing of merging."""

    def on_element(self, element: Any, timestamp: Any, window: Any, ctx: Any) -> TriggerResult:
        return TriggerResult.PURGE

    def on_event_time(self, time: int, window: Any, ctx: Any) -> TriggerResult:
        return TriggerResult.PURGE

    def on_processing_time(self, time: int, window: Any, ctx: Any) -> TriggerResult:
        return TriggerResult.PURGE

    def clear(self, window: Any, ctx: Any) -> None:
        return


def test_a_result_says_whether_to_fire_and_whether_to_purge() -> None:
    answers = {result.name: (result.is_fire, result.is_purge) for result in TriggerResult}
    assert answers == {
        "CONTINUE": (False, False),
        "FIRE": (True, False),
        "PURGE": (False, True),
        "FIRE_AND_PURGE": (True, True),
    }


@pytest.mark.parametrize("count", [0, -1, 1.5, "3", None, True])
@pytest.mark.parametrize("make", [CountTrigger.of, CountEvictor.of])
def test_a_count_must_be_a_positive_number(make: Any, count: Any) -> None:
    with pytest.raises(ConfigurationError, match="takes a positive number of elements, not"):
        make(count)


@pytest.mark.parametrize("interval", [0, -5, "later", None])
@pytest.mark.parametrize(
    "make", [ContinuousEventTimeTrigger.of, ContinuousProcessingTimeTrigger.of, TimeEvictor.of]
)
def test_a_length_of_time_must_be_positive(make: Any, interval: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"expected .*, got"):
        make(interval)


@pytest.mark.parametrize("nested", [None, CountTrigger, "EventTimeTrigger"])
def test_only_a_trigger_can_be_purging(nested: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"PurgingTrigger.of takes a trigger, not"):
        PurgingTrigger.of(nested)


def test_a_delta_is_a_function() -> None:
    not_callable: Any = 5
    with pytest.raises(ConfigurationError, match="a function of two elements, not 5"):
        DeltaEvictor.of(1.0, not_callable)


def test_which_triggers_can_follow_windows_that_merge() -> None:
    able = [
        EventTimeTrigger.create(),
        ProcessingTimeTrigger.create(),
        CountTrigger.of(1),
        ContinuousEventTimeTrigger.of(1),
        ContinuousProcessingTimeTrigger.of(1),
        NeverTrigger(),
        PurgingTrigger.of(CountTrigger.of(1)),
    ]
    unable = [EndOfStreamTrigger(), Unmerged(), PurgingTrigger.of(Unmerged())]
    assert [trigger.can_merge() for trigger in able] == [True] * len(able)
    assert [trigger.can_merge() for trigger in unable] == [False] * len(unable)


def test_a_trigger_that_cannot_merge_says_so_when_it_is_asked_to() -> None:
    context: Any = None
    with pytest.raises(ConfigurationError, match=r"Unmerged\(\) does not merge"):
        Unmerged().on_merge("window", context)


def test_a_purge_stays_a_purge() -> None:
    purging = PurgingTrigger.of(Unmerged())
    context: Any = None
    asked = [
        purging.on_element("element", 1, "window", context),
        purging.on_event_time(1, "window", context),
        purging.on_processing_time(1, "window", context),
    ]
    assert asked == [TriggerResult.PURGE] * 3


def test_triggers_are_shown_with_what_they_were_given() -> None:
    assert repr(CountTrigger.of(3)) == "CountTrigger(3)"
    assert repr(PurgingTrigger.of(CountTrigger.of(3))) == "PurgingTrigger(CountTrigger(3))"
    assert repr(ContinuousEventTimeTrigger.of("1 s")) == "ContinuousEventTimeTrigger(1000 ms)"
    assert repr(EventTimeTrigger.create()) == "EventTimeTrigger()"


# Evictors, on lists that windows would not give them


def values(*pairs: tuple[Any, int | None]) -> list[TimestampedValue]:
    return [TimestampedValue(value, time) for value, time in pairs]


@pytest.mark.parametrize(
    "evictor", [CountEvictor.of(2), TimeEvictor.of(5), DeltaEvictor.of(1, lambda a, b: 0)]
)
def test_an_evictor_of_nothing_does_nothing(evictor: Any) -> None:
    elements: list[TimestampedValue] = []
    evictor.evict_before(elements, 0, "window", None)
    evictor.evict_after(elements, 0, "window", None)
    assert elements == []


def test_a_count_evictor_leaves_a_window_alone_that_is_not_full() -> None:
    elements = values(("a", 1), ("b", 2))
    context: Any = None
    CountEvictor.of(2).evict_before(elements, 2, "window", context)
    CountEvictor.of(1).evict_after(elements, 2, "window", context)
    assert elements == values(("a", 1), ("b", 2))


def test_a_time_evictor_keeps_those_without_a_time_beside_others() -> None:
    elements = values(("a", 1), ("b", None), ("c", 10), ("d", 6), ("e", 5))
    context: Any = None
    TimeEvictor.of(5).evict_before(elements, 5, "window", context)
    assert elements == values(("b", None), ("c", 10), ("d", 6))
