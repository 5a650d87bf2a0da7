"""Triggers that fire again and again while a window is open."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.api.descriptors import ReducingStateDescriptor
from holdfast.api.time import MAX_WATERMARK
from holdfast.api.windows.triggers import Trigger, TriggerResult, positive_ms

if TYPE_CHECKING:
    from holdfast.api.windows.triggers import OnMergeContext, TriggerContext
    from holdfast.api.windows.windows import Window
    from holdfast.config.options import DurationLike


class _Continuous(Trigger):
    """What the two have in common: an interval, and the time of the next firing."""

    def __init__(self, interval_ms: int) -> None:
        """Fire every so many milliseconds."""
        self._interval = interval_ms
        # When windows merge, the earliest of their next firings counts.
        self._fire_time = ReducingStateDescriptor("fire-time", min, int)

    def can_merge(self) -> bool:
        """It can."""
        return True

    def __repr__(self) -> str:
        """The class and the interval."""
        return f"{type(self).__name__}({self._interval} ms)"

    def _next(self, time: int, window: Window, fire_time: Any) -> int:
        """The next firing after `time`, noted."""
        following = min(time + self._interval, window.max_timestamp())
        fire_time.add(following)
        return following


class ContinuousEventTimeTrigger(_Continuous):
    """Fires whenever the watermark has come an interval further, and at the window's end."""

    @staticmethod
    def of(interval: DurationLike) -> ContinuousEventTimeTrigger:
        """A trigger that fires every `interval` of event time."""
        return ContinuousEventTimeTrigger(positive_ms("ContinuousEventTimeTrigger", interval))

    def on_element(
        self, element: Any, timestamp: int | None, window: Window, ctx: TriggerContext
    ) -> TriggerResult:
        """Fire at once if the watermark has passed the window; else wait for it."""
        if window.max_timestamp() <= ctx.get_current_watermark():
            return TriggerResult.FIRE
        ctx.register_event_time_timer(window.max_timestamp())
        fire_time = ctx.get_partitioned_state(self._fire_time)
        if fire_time.get() is None and timestamp is not None:
            start = timestamp - timestamp % self._interval
            ctx.register_event_time_timer(self._next(start, window, fire_time))
        return TriggerResult.CONTINUE

    def on_event_time(self, time: int, window: Window, ctx: TriggerContext) -> TriggerResult:
        """Fire if it is time to, and wait for the next time."""
        if time == window.max_timestamp():
            return TriggerResult.FIRE
        fire_time = ctx.get_partitioned_state(self._fire_time)
        if fire_time.get() != time:
            return TriggerResult.CONTINUE
        fire_time.clear()
        # A window that never ends has endless intervals left at the end of a bounded stream.
        if min(ctx.get_current_watermark(), window.max_timestamp()) < MAX_WATERMARK:
            ctx.register_event_time_timer(self._next(time, window, fire_time))
        return TriggerResult.FIRE

    def on_processing_time(self, time: int, window: Window, ctx: TriggerContext) -> TriggerResult:
        """Nothing."""
        return TriggerResult.CONTINUE

    def on_merge(self, window: Window, ctx: OnMergeContext) -> None:
        """Wait for the earliest of the merged windows' next firings."""
        ctx.merge_partitioned_state(self._fire_time)
        following = ctx.get_partitioned_state(self._fire_time).get()
        if following is not None:
            ctx.register_event_time_timer(following)

    def clear(self, window: Window, ctx: TriggerContext) -> None:
        """Take the timer back."""
        fire_time = ctx.get_partitioned_state(self._fire_time)
        following = fire_time.get()
        if following is not None:
            ctx.delete_event_time_timer(following)
            fire_time.clear()


class ContinuousProcessingTimeTrigger(_Continuous):
    """Fires whenever the clock has come an interval further."""

    @staticmethod
    def of(interval: DurationLike) -> ContinuousProcessingTimeTrigger:
        """A trigger that fires every `interval` by the clock."""
        return ContinuousProcessingTimeTrigger(
            positive_ms("ContinuousProcessingTimeTrigger", interval)
        )

    def on_element(
        self, element: Any, timestamp: int | None, window: Window, ctx: TriggerContext
    ) -> TriggerResult:
        """Wait for the next full interval, unless that is under way."""
        fire_time = ctx.get_partitioned_state(self._fire_time)
        if fire_time.get() is None:
            now = ctx.get_current_processing_time()
            start = now - now % self._interval
            ctx.register_processing_time_timer(self._next(start, window, fire_time))
        return TriggerResult.CONTINUE

    def on_event_time(self, time: int, window: Window, ctx: TriggerContext) -> TriggerResult:
        """Nothing."""
        return TriggerResult.CONTINUE

    def on_processing_time(self, time: int, window: Window, ctx: TriggerContext) -> TriggerResult:
        """Fire if it is time to, and wait for the next time."""
        if time == window.max_timestamp():
            return TriggerResult.FIRE
        fire_time = ctx.get_partitioned_state(self._fire_time)
        if fire_time.get() != time:
            return TriggerResult.CONTINUE
        fire_time.clear()
        ctx.register_processing_time_timer(self._next(time, window, fire_time))
        return TriggerResult.FIRE

    def on_merge(self, window: Window, ctx: OnMergeContext) -> None:
        """Wait for the earliest of the merged windows' next firings."""
        ctx.merge_partitioned_state(self._fire_time)
        following = ctx.get_partitioned_state(self._fire_time).get()
        if following is not None:
            ctx.register_processing_time_timer(following)

    def clear(self, window: Window, ctx: TriggerContext) -> None:
        """Take the timer back."""
        fire_time = ctx.get_partitioned_state(self._fire_time)
        following = fire_time.get()
        if following is not None:
            ctx.delete_processing_time_timer(following)
            fire_time.clear()
