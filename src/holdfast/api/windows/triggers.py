"""Triggers: when a window gives out what it holds.

A trigger is asked about every element, and called back at the times it has asked for. What
it remembers is state of the window: it has no attributes that change.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from holdfast.api.descriptors import ReducingStateDescriptor
from holdfast.config.options import lasting
from holdfast.errors import ConfigurationError

if TYPE_CHECKING:
    from holdfast.api.descriptors import StateDescriptor
    from holdfast.api.metrics import MetricGroup
    from holdfast.api.windows.windows import Window
    from holdfast.config.options import DurationLike


class TriggerResult(Enum):
    """What is to happen to a window: whether it fires, and whether it is emptied."""

    CONTINUE = (False, False)
    """Nothing."""
    FIRE_AND_PURGE = (True, True)
    """The window's function is called, then the window is emptied."""
    FIRE = (True, False)
    """The window's function is called; the window keeps what it holds."""
    PURGE = (False, True)
    """The window is emptied."""

    def __init__(self, fire: bool, purge: bool) -> None:
        """The two answers."""
        self.is_fire = fire
        self.is_purge = purge


class TriggerContext(ABC):
    """What a trigger can learn and do; always about one key and one window."""

    __slots__ = ()

    @abstractmethod
    def get_current_processing_time(self) -> int:
        """Milliseconds since 1970, by the clock of the machine."""

    @abstractmethod
    def get_current_watermark(self) -> int:
        """Event time up to which all is thought to have come."""

    @abstractmethod
    def register_event_time_timer(self, time: int) -> None:
        """Have `on_event_time` called when the watermark has reached `time`."""

    @abstractmethod
    def register_processing_time_timer(self, time: int) -> None:
        """Have `on_processing_time` called when the clock has reached `time`."""

    @abstractmethod
    def delete_event_time_timer(self, time: int) -> None:
        """Take a timer back; nothing happens if there is none."""

    @abstractmethod
    def delete_processing_time_timer(self, time: int) -> None:
        """Take a timer back; nothing happens if there is none."""

    @abstractmethod
    def get_partitioned_state(self, state_descriptor: StateDescriptor) -> Any:
        """Handle to a state of this key and window."""

    @abstractmethod
    def get_metric_group(self) -> MetricGroup:
        """Where to register metrics."""


class OnMergeContext(TriggerContext):
    """The same while windows are merged; the window is the one that comes of it."""

    __slots__ = ()

    @abstractmethod
    def merge_partitioned_state(self, state_descriptor: StateDescriptor) -> None:
        """Bring the merged windows' states of that name together in the new window's."""


class Trigger(ABC):
    """Says when a window fires."""

    TriggerContext: TypeAlias = TriggerContext
    OnMergeContext: TypeAlias = OnMergeContext

    @abstractmethod
    def on_element(
        self, element: Any, timestamp: int | None, window: Any, ctx: TriggerContext
    ) -> TriggerResult:
        """Called for every element that was added to a window."""

    @abstractmethod
    def on_event_time(self, time: int, window: Any, ctx: TriggerContext) -> TriggerResult:
        """Called when the watermark has reached a timer."""

    @abstractmethod
    def on_processing_time(self, time: int, window: Any, ctx: TriggerContext) -> TriggerResult:
        """Called when the clock has reached a timer."""

    def can_merge(self) -> bool:
        """Whether it can be used where windows merge; it has an `on_merge` then."""
        return False

    def on_merge(self, window: Any, ctx: OnMergeContext) -> None:
        """Called when windows have been merged into `window`."""
        raise ConfigurationError(f"{self!r} does not merge")

    @abstractmethod
    def clear(self, window: Any, ctx: TriggerContext) -> None:
        """Remove all state and timers of a window, which is gone."""

    def __repr__(self) -> str:
        """Its class, for messages and plans."""
        return f"{type(self).__name__}()"


class QuietTrigger(Trigger):
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


class EventTimeTrigger(QuietTrigger):
    """Fires when the watermark passes the end of the window, and for every element after."""

    @staticmethod
    def create() -> EventTimeTrigger:
        """The trigger."""
        return EventTimeTrigger()

    def on_element(
        self, element: Any, timestamp: int | None, window: Window, ctx: TriggerContext
    ) -> TriggerResult:
        """Fire at once if the watermark is there already; else wait for it."""
        end = window.max_timestamp()
        if end <= ctx.get_current_watermark():
            return TriggerResult.FIRE
        ctx.register_event_time_timer(end)
        return TriggerResult.CONTINUE

    def on_event_time(self, time: int, window: Window, ctx: TriggerContext) -> TriggerResult:
        """Fire at the end of the window."""
        return TriggerResult.FIRE if time == window.max_timestamp() else TriggerResult.CONTINUE

    def on_merge(self, window: Window, ctx: OnMergeContext) -> None:
        """Wait for the end of the new window, unless the watermark is there already."""
        end = window.max_timestamp()
        if end > ctx.get_current_watermark():
            ctx.register_event_time_timer(end)

    def clear(self, window: Window, ctx: TriggerContext) -> None:
        """Take the timer back."""
        ctx.delete_event_time_timer(window.max_timestamp())


class ProcessingTimeTrigger(QuietTrigger):
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
        """Wait for the end of the new window, unless the clock is there already."""
        end = window.max_timestamp()
        if end > ctx.get_current_processing_time():
            ctx.register_processing_time_timer(end)

    def clear(self, window: Window, ctx: TriggerContext) -> None:
        """Take the timer back."""
        ctx.delete_processing_time_timer(window.max_timestamp())


class CountTrigger(QuietTrigger):
    """Fires when so many elements have come since it last did."""

    def __init__(self, max_count: int) -> None:
        """Refuse what is not a positive number."""
        self._max_count = at_least_one("CountTrigger", max_count)
        self._count = ReducingStateDescriptor("count", _add, int)

    @staticmethod
    def of(max_count: int) -> CountTrigger:
        """A trigger that fires every `max_count` elements."""
        return CountTrigger(max_count)

    def on_element(
        self, element: Any, timestamp: int | None, window: Any, ctx: TriggerContext
    ) -> TriggerResult:
        """Count, and fire when there are enough."""
        count = ctx.get_partitioned_state(self._count)
        count.add(1)
        if count.get() < self._max_count:
            return TriggerResult.CONTINUE
        count.clear()
        return TriggerResult.FIRE

    def on_merge(self, window: Any, ctx: OnMergeContext) -> None:
        """Add the counts up."""
        ctx.merge_partitioned_state(self._count)

    def clear(self, window: Any, ctx: TriggerContext) -> None:
        """Forget the count."""
        ctx.get_partitioned_state(self._count).clear()

    def __repr__(self) -> str:
        """`CountTrigger(100)`."""
        return f"CountTrigger({self._max_count})"


class PurgingTrigger(Trigger):
    """Another trigger, with the window emptied whenever that one fires."""

    def __init__(self, nested: Trigger) -> None:
        """Refuse what is not a trigger."""
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
        """As the other trigger, purging."""
        return _purging(self._nested.on_element(element, timestamp, window, ctx))

    def on_event_time(self, time: int, window: Any, ctx: TriggerContext) -> TriggerResult:
        """As the other trigger, purging."""
        return _purging(self._nested.on_event_time(time, window, ctx))

    def on_processing_time(self, time: int, window: Any, ctx: TriggerContext) -> TriggerResult:
        """As the other trigger, purging."""
        return _purging(self._nested.on_processing_time(time, window, ctx))

    def can_merge(self) -> bool:
        """Whether the other trigger can."""
        return self._nested.can_merge()

    def on_merge(self, window: Any, ctx: OnMergeContext) -> None:
        """As the other trigger."""
        self._nested.on_merge(window, ctx)

    def clear(self, window: Any, ctx: TriggerContext) -> None:
        """As the other trigger."""
        self._nested.clear(window, ctx)

    def __repr__(self) -> str:
        """`PurgingTrigger(CountTrigger(100))`."""
        return f"PurgingTrigger({self._nested!r})"


class NeverTrigger(QuietTrigger):
    """Never fires: what a global window has unless it is given another."""

    def on_element(
        self, element: Any, timestamp: int | None, window: Any, ctx: TriggerContext
    ) -> TriggerResult:
        """Nothing."""
        return TriggerResult.CONTINUE

    def on_merge(self, window: Any, ctx: OnMergeContext) -> None:
        """Nothing."""

    def clear(self, window: Any, ctx: TriggerContext) -> None:
        """Nothing."""


class EndOfStreamTrigger(NeverTrigger):
    """Fires at the end of a bounded stream."""

    def on_element(
        self, element: Any, timestamp: int | None, window: Window, ctx: TriggerContext
    ) -> TriggerResult:
        """Wait for the end of time."""
        ctx.register_event_time_timer(window.max_timestamp())
        return TriggerResult.CONTINUE

    def on_event_time(self, time: int, window: Window, ctx: TriggerContext) -> TriggerResult:
        """Fire at the end of time, and forget."""
        at_the_end = time == window.max_timestamp()
        return TriggerResult.FIRE_AND_PURGE if at_the_end else TriggerResult.CONTINUE

    def can_merge(self) -> bool:
        """It is for the global window, which merges with none."""
        return False


def _purging(result: TriggerResult) -> TriggerResult:
    return TriggerResult.FIRE_AND_PURGE if result.is_fire else result


def _add(old: int, new: int) -> int:
    return old + new


def at_least_one(what: str, value: object) -> int:
    """A count that is given to `what`, if it is a positive int."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigurationError(f"{what} takes a positive number of elements, not {value!r}")
    return value


def positive_ms(what: str, value: DurationLike) -> int:
    """A length of time that is given to `what`, in milliseconds, if it is at least one."""
    try:
        return _at_least_one_ms(value)
    except ValueError as error:
        raise ConfigurationError(f"{what}: {error}, not {value!r}") from error


_at_least_one_ms: Final = lasting(1)
