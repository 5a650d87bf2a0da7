"""Triggers: when a window fires.

A trigger is called for every element of a window, and when its timers fire. It keeps its data in
state of the window, never in attributes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from holdfast.api.descriptors import ReducingStateDescriptor
from holdfast.api.time import MAX_WATERMARK, TimeDomain
from holdfast.config.options import argument, lasting
from holdfast.errors import ConfigurationError

if TYPE_CHECKING:
    from typing import Self

    from holdfast.api.descriptors import StateDescriptor
    from holdfast.api.metrics import MetricGroup
    from holdfast.api.windows.windows import Window
    from holdfast.config.options import DurationLike


class TriggerResult(Enum):
    """Whether a window fires, and whether it is emptied."""

    CONTINUE = (False, False)
    """Nothing."""
    FIRE_AND_PURGE = (True, True)
    """The window's function is called, then the window is emptied."""
    FIRE = (True, False)
    """The window's function is called; the window keeps its elements."""
    PURGE = (False, True)
    """The window is emptied."""

    def __init__(self, fire: bool, purge: bool) -> None:
        """Set the two flags."""
        self.is_fire = fire
        self.is_purge = purge


class TriggerContext(ABC):
    """Time, timers and state of one key and window."""

    __slots__ = ()

    @abstractmethod
    def get_current_processing_time(self) -> int:
        """The machine's clock, in milliseconds since 1970."""

    @abstractmethod
    def get_current_watermark(self) -> int:
        """The current watermark."""

    @abstractmethod
    def register_event_time_timer(self, time: int) -> None:
        """Call `on_event_time` when the watermark reaches `time`."""

    @abstractmethod
    def register_processing_time_timer(self, time: int) -> None:
        """Call `on_processing_time` when the clock reaches `time`."""

    @abstractmethod
    def delete_event_time_timer(self, time: int) -> None:
        """Delete a timer if it exists."""

    @abstractmethod
    def delete_processing_time_timer(self, time: int) -> None:
        """Delete a timer if it exists."""

    @abstractmethod
    def get_partitioned_state(self, state_descriptor: StateDescriptor) -> Any:
        """Handle to a state of this key and window."""

    @abstractmethod
    def get_metric_group(self) -> MetricGroup:
        """Registers metrics."""


class OnMergeContext(TriggerContext):
    """The context of a merge; its window is the merged one."""

    __slots__ = ()

    @abstractmethod
    def merge_partitioned_state(self, state_descriptor: StateDescriptor) -> None:
        """Merge the states of that name into the state of the merged window."""


class Trigger(ABC):
    """Decides when a window fires."""

    TriggerContext: TypeAlias = TriggerContext
    OnMergeContext: TypeAlias = OnMergeContext

    @abstractmethod
    def on_element(
        self, element: Any, timestamp: int | None, window: Any, ctx: TriggerContext
    ) -> TriggerResult:
        """Called for every element that is added to a window."""

    @abstractmethod
    def on_event_time(self, time: int, window: Any, ctx: TriggerContext) -> TriggerResult:
        """Called when the watermark reaches a timer."""

    @abstractmethod
    def on_processing_time(self, time: int, window: Any, ctx: TriggerContext) -> TriggerResult:
        """Called when the clock reaches a timer."""

    def can_merge(self) -> bool:
        """Whether it can be used where windows merge; needs `on_merge`."""
        return False

    def on_merge(self, window: Any, ctx: OnMergeContext) -> None:
        """Called when windows have been merged into `window`."""
        raise ConfigurationError(f"{self!r} does not merge")

    @abstractmethod
    def clear(self, window: Any, ctx: TriggerContext) -> None:
        """Remove all state and timers of a window that is removed."""

    def __repr__(self) -> str:
        """The class, for messages and plans."""
        return f"{type(self).__name__}()"


class _QuietTrigger(Trigger):
    """Ignores timers, and works where windows merge: the base of the built-in triggers."""

    def on_event_time(self, time: int, window: Any, ctx: TriggerContext) -> TriggerResult:
        """Do nothing."""
        return TriggerResult.CONTINUE

    def on_processing_time(self, time: int, window: Any, ctx: TriggerContext) -> TriggerResult:
        """Do nothing."""
        return TriggerResult.CONTINUE

    def can_merge(self) -> bool:
        """Whether it can be used where windows merge."""
        return True


class EventTimeTrigger(_QuietTrigger):
    """Fires when the watermark passes the end of the window, and for every element after."""

    @staticmethod
    def create() -> EventTimeTrigger:
        """The trigger."""
        return EventTimeTrigger()

    def on_element(
        self, element: Any, timestamp: int | None, window: Window, ctx: TriggerContext
    ) -> TriggerResult:
        """Fire at once if the watermark has passed the window; otherwise wait for it."""
        end = window.max_timestamp()
        if end <= ctx.get_current_watermark():
            return TriggerResult.FIRE
        ctx.register_event_time_timer(end)
        return TriggerResult.CONTINUE

    def on_event_time(self, time: int, window: Window, ctx: TriggerContext) -> TriggerResult:
        """Fire at the end of the window."""
        return TriggerResult.FIRE if time == window.max_timestamp() else TriggerResult.CONTINUE

    def on_merge(self, window: Window, ctx: OnMergeContext) -> None:
        """Wait for the end of the merged window, unless the watermark has passed it."""
        end = window.max_timestamp()
        if end > ctx.get_current_watermark():
            ctx.register_event_time_timer(end)

    def clear(self, window: Window, ctx: TriggerContext) -> None:
        """Delete the timer."""
        ctx.delete_event_time_timer(window.max_timestamp())


class ProcessingTimeTrigger(_QuietTrigger):
    """Fires when the clock passes the end of the window."""

    @staticmethod
    def create() -> ProcessingTimeTrigger:
        """The trigger."""
        return ProcessingTimeTrigger()

    def on_element(
        self, element: Any, timestamp: int | None, window: Window, ctx: TriggerContext
    ) -> TriggerResult:
        """Wait for the end of the window."""
        ctx.register_processing_time_timer(window.max_timestamp())
        return TriggerResult.CONTINUE

    def on_processing_time(self, time: int, window: Window, ctx: TriggerContext) -> TriggerResult:
        """Fire."""
        return TriggerResult.FIRE

    def on_merge(self, window: Window, ctx: OnMergeContext) -> None:
        """Wait for the end of the merged window, unless the clock has passed it."""
        end = window.max_timestamp()
        if end > ctx.get_current_processing_time():
            ctx.register_processing_time_timer(end)

    def clear(self, window: Window, ctx: TriggerContext) -> None:
        """Delete the timer."""
        ctx.delete_processing_time_timer(window.max_timestamp())


class CountTrigger(_QuietTrigger):
    """Fires when a number of elements has arrived since it last fired."""

    def __init__(self, max_count: int) -> None:
        """Check that the number is positive."""
        self._max_count = at_least_one("CountTrigger", max_count)
        self._count = ReducingStateDescriptor("count", _add, int)

    @staticmethod
    def of(max_count: int) -> CountTrigger:
        """A trigger that fires every `max_count` elements."""
        return CountTrigger(max_count)

    def on_element(
        self, element: Any, timestamp: int | None, window: Any, ctx: TriggerContext
    ) -> TriggerResult:
        """Count the element, and fire when the number is reached."""
        count = ctx.get_partitioned_state(self._count)
        count.add(1)
        if count.get() < self._max_count:
            return TriggerResult.CONTINUE
        count.clear()
        return TriggerResult.FIRE

    def on_merge(self, window: Any, ctx: OnMergeContext) -> None:
        """Add the counts."""
        ctx.merge_partitioned_state(self._count)

    def clear(self, window: Any, ctx: TriggerContext) -> None:
        """Clear the count."""
        ctx.get_partitioned_state(self._count).clear()

    def __repr__(self) -> str:
        """`CountTrigger(100)`."""
        return f"CountTrigger({self._max_count})"


class PurgingTrigger(Trigger):
    """Wraps a trigger, and empties the window whenever it fires."""

    def __init__(self, nested: Trigger) -> None:
        """Check that `nested` is a trigger."""
        if not isinstance(nested, Trigger):
            raise ConfigurationError(f"PurgingTrigger.of takes a trigger, not {nested!r}")
        self._nested = nested

    @staticmethod
    def of(nested: Trigger) -> PurgingTrigger:
        """`nested`, purging."""
        return PurgingTrigger(nested)

    def on_element(
        self, element: Any, timestamp: int | None, window: Any, ctx: TriggerContext
    ) -> TriggerResult:
        """Call the wrapped trigger, and purge if it fires."""
        return _purging(self._nested.on_element(element, timestamp, window, ctx))

    def on_event_time(self, time: int, window: Any, ctx: TriggerContext) -> TriggerResult:
        """Call the wrapped trigger, and purge if it fires."""
        return _purging(self._nested.on_event_time(time, window, ctx))

    def on_processing_time(self, time: int, window: Any, ctx: TriggerContext) -> TriggerResult:
        """Call the wrapped trigger, and purge if it fires."""
        return _purging(self._nested.on_processing_time(time, window, ctx))

    def can_merge(self) -> bool:
        """Whether the wrapped trigger can merge."""
        return self._nested.can_merge()

    def on_merge(self, window: Any, ctx: OnMergeContext) -> None:
        """Call the wrapped trigger."""
        self._nested.on_merge(window, ctx)

    def clear(self, window: Any, ctx: TriggerContext) -> None:
        """Call the wrapped trigger."""
        self._nested.clear(window, ctx)

    def __repr__(self) -> str:
        """`PurgingTrigger(CountTrigger(100))`."""
        return f"PurgingTrigger({self._nested!r})"


class NeverTrigger(_QuietTrigger):
    """Never fires; the default of global windows."""

    def on_element(
        self, element: Any, timestamp: int | None, window: Any, ctx: TriggerContext
    ) -> TriggerResult:
        """Do nothing."""
        return TriggerResult.CONTINUE

    def on_merge(self, window: Any, ctx: OnMergeContext) -> None:
        """Do nothing."""

    def clear(self, window: Any, ctx: TriggerContext) -> None:
        """Do nothing."""


class EndOfStreamTrigger(NeverTrigger):
    """Fires at the end of a bounded stream."""

    def on_element(
        self, element: Any, timestamp: int | None, window: Window, ctx: TriggerContext
    ) -> TriggerResult:
        """Wait for the end of time."""
        ctx.register_event_time_timer(window.max_timestamp())
        return TriggerResult.CONTINUE

    def on_event_time(self, time: int, window: Window, ctx: TriggerContext) -> TriggerResult:
        """Fire at the end of time, and empty the window."""
        at_the_end = time == window.max_timestamp()
        return TriggerResult.FIRE_AND_PURGE if at_the_end else TriggerResult.CONTINUE

    def can_merge(self) -> bool:
        """Global windows do not merge."""
        return False


class _Continuous(_QuietTrigger):
    """Keeps the time of the next firing, in one time domain."""

    _domain: ClassVar[TimeDomain]

    def __init__(self, interval: DurationLike) -> None:
        """Fire every `interval`."""
        self._interval = positive_ms(type(self).__name__, interval)
        # When windows merge, the earliest of their next firings counts.
        self._fire_time = ReducingStateDescriptor("fire-time", min, int)

    @classmethod
    def of(cls, interval: DurationLike) -> Self:
        """A trigger that fires every `interval`."""
        return cls(interval)

    def on_merge(self, window: Window, ctx: OnMergeContext) -> None:
        """Wait for the earliest of the merged windows' next firings."""
        ctx.merge_partitioned_state(self._fire_time)
        following = ctx.get_partitioned_state(self._fire_time).get()
        if following is not None:
            self._register(ctx, following)

    def clear(self, window: Window, ctx: TriggerContext) -> None:
        """Delete the timer and the time of the next firing."""
        fire_time = ctx.get_partitioned_state(self._fire_time)
        following = fire_time.get()
        if following is not None:
            self._delete(ctx, following)
            fire_time.clear()

    def __repr__(self) -> str:
        """The class and the interval."""
        return f"{type(self).__name__}({self._interval} ms)"

    def _register(self, ctx: TriggerContext, time: int) -> None:
        if self._domain is TimeDomain.EVENT_TIME:
            ctx.register_event_time_timer(time)
        else:
            ctx.register_processing_time_timer(time)

    def _delete(self, ctx: TriggerContext, time: int) -> None:
        if self._domain is TimeDomain.EVENT_TIME:
            ctx.delete_event_time_timer(time)
        else:
            ctx.delete_processing_time_timer(time)

    def _start(self, now: int, window: Window, ctx: TriggerContext) -> None:
        """Wait for the end of the interval that `now` lies in, unless that is under way."""
        fire_time = ctx.get_partitioned_state(self._fire_time)
        if fire_time.get() is None:
            self._wait(now - now % self._interval, window, ctx, fire_time)

    def _fire(
        self, time: int, window: Window, ctx: TriggerContext, *, last: bool = False
    ) -> TriggerResult:
        """Fire if `time` is a firing, and wait for the next one unless this is the last."""
        if time == window.max_timestamp():
            return TriggerResult.FIRE
        fire_time = ctx.get_partitioned_state(self._fire_time)
        if fire_time.get() != time:
            return TriggerResult.CONTINUE
        fire_time.clear()
        if not last:
            self._wait(time, window, ctx, fire_time)
        return TriggerResult.FIRE

    def _wait(self, time: int, window: Window, ctx: TriggerContext, fire_time: Any) -> None:
        following = min(time + self._interval, window.max_timestamp())
        fire_time.add(following)
        self._register(ctx, following)


class ContinuousEventTimeTrigger(_Continuous):
    """Fires whenever the watermark has advanced by an interval, and at the window's end."""

    _domain = TimeDomain.EVENT_TIME

    def on_element(
        self, element: Any, timestamp: int | None, window: Window, ctx: TriggerContext
    ) -> TriggerResult:
        """Fire at once if the watermark has passed the window; otherwise wait for it."""
        if window.max_timestamp() <= ctx.get_current_watermark():
            return TriggerResult.FIRE
        ctx.register_event_time_timer(window.max_timestamp())
        if timestamp is not None:
            self._start(timestamp, window, ctx)
        return TriggerResult.CONTINUE

    def on_event_time(self, time: int, window: Window, ctx: TriggerContext) -> TriggerResult:
        """Fire if it is time to, and wait for the next time."""
        # A window that never ends has endless intervals left at the end of a bounded stream.
        last = min(ctx.get_current_watermark(), window.max_timestamp()) == MAX_WATERMARK
        return self._fire(time, window, ctx, last=last)


class ContinuousProcessingTimeTrigger(_Continuous):
    """Fires whenever the clock has advanced by an interval."""

    _domain = TimeDomain.PROCESSING_TIME

    def on_element(
        self, element: Any, timestamp: int | None, window: Window, ctx: TriggerContext
    ) -> TriggerResult:
        """Wait for the end of the current interval."""
        self._start(ctx.get_current_processing_time(), window, ctx)
        return TriggerResult.CONTINUE

    def on_processing_time(self, time: int, window: Window, ctx: TriggerContext) -> TriggerResult:
        """Fire if it is time to, and wait for the next time."""
        return self._fire(time, window, ctx)


def _purging(result: TriggerResult) -> TriggerResult:
    return TriggerResult.FIRE_AND_PURGE if result.is_fire else result


def _add(old: int, new: int) -> int:
    return old + new


def at_least_one(what: str, value: object) -> int:
    """Check a count that was given to `what`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigurationError(f"{what} takes a positive number of elements, not {value!r}")
    return value


def positive_ms(what: str, value: DurationLike) -> int:
    """Check a duration that was given to `what`; in milliseconds, at least one."""
    return argument(lasting(1), value, what)
