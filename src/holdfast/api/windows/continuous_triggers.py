"""Triggers that fire again and again while a window is open."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from holdfast.api.descriptors import ReducingStateDescriptor
from holdfast.api.time import MAX_WATERMARK, TimeDomain
from holdfast.api.windows.triggers import QuietTrigger, TriggerResult, positive_ms

if TYPE_CHECKING:
    from typing import Self

    from holdfast.api.windows.triggers import OnMergeContext, TriggerContext
    from holdfast.api.windows.windows import Window
    from holdfast.config.options import DurationLike


class _Continuous(QuietTrigger):
    """Keeps the time of the next firing, in one time domain."""

    _domain: ClassVar[TimeDomain]

    def __init__(self, interval_ms: int) -> None:
        """Fire every `interval_ms` milliseconds."""
        self._interval = interval_ms
        # When windows merge, the earliest of their next firings counts.
        self._fire_time = ReducingStateDescriptor("fire-time", min, int)

    @classmethod
    def of(cls, interval: DurationLike) -> Self:
        """A trigger that fires every `interval`."""
        return cls(positive_ms(cls.__name__, interval))

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
