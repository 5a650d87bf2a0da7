"""Window assigners: assign elements to windows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Self

from holdfast.api.windows.triggers import (
    EndOfStreamTrigger,
    EventTimeTrigger,
    NeverTrigger,
    ProcessingTimeTrigger,
    Trigger,
    positive_ms,
)
from holdfast.api.windows.windows import GlobalWindow, TimeWindow, Window
from holdfast.config.options import argument, signed_duration_ms
from holdfast.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from holdfast.config.options import DurationLike


class WindowAssignerContext(ABC):
    """The time."""

    __slots__ = ()

    @abstractmethod
    def get_current_processing_time(self) -> int:
        """The machine's clock, in milliseconds since 1970."""


class WindowAssigner(ABC):
    """Assigns elements to windows."""

    window_type: ClassVar[type[Window]] = TimeWindow
    """Class of its windows."""

    @abstractmethod
    def assign_windows(
        self, element: Any, timestamp: int | None, context: WindowAssignerContext
    ) -> Collection[Any]:
        """Windows of an element; `timestamp` is its event time, None if it has none."""

    @abstractmethod
    def get_default_trigger(self) -> Trigger:
        """The default trigger of its windows."""

    @abstractmethod
    def is_event_time(self) -> bool:
        """Whether windows end by the watermark rather than by the clock."""

    def __repr__(self) -> str:
        """The class, for messages and plans."""
        return f"{type(self).__name__}()"


class MergingWindowAssigner(WindowAssigner):
    """An assigner whose windows can merge: sessions, for example."""

    @abstractmethod
    def merge_windows(self, windows: Iterable[Any]) -> Iterable[tuple[Any, list[Any]]]:
        """Pairs of a merged window and the windows that it replaces.

        Only groups of at least two; all `windows` are different.
        """


class _InEventTime(WindowAssigner):
    """Windows that end by the watermark."""

    def get_default_trigger(self) -> Trigger:
        """At the end of the window."""
        return EventTimeTrigger.create()

    def is_event_time(self) -> bool:
        """They end by the watermark."""
        return True


class _ByTheClock(WindowAssigner):
    """Windows that end by the clock."""

    def get_default_trigger(self) -> Trigger:
        """At the end of the window."""
        return ProcessingTimeTrigger.create()

    def is_event_time(self) -> bool:
        """They end by the clock."""
        return False


class TumblingWindows(WindowAssigner):
    """Consecutive windows of one length."""

    def __init__(self, size: DurationLike, offset: DurationLike = 0) -> None:
        """Windows of `size`; they start at its multiples plus `offset`."""
        name = type(self).__name__
        self.size_ms = self.slide_ms = positive_ms(name, size)
        self.offset_ms = _offset_ms(name, offset, self.size_ms, "window")

    @classmethod
    def of(cls, size: DurationLike, offset: DurationLike = 0) -> Self:
        """Windows of `size`.

        Args:
            size: Length of a window.
            offset: Shifts the start of windows: days in China are `of("1 day", "-8 h")`.
        """
        return cls(size, offset)

    def assign_windows(
        self, element: Any, timestamp: int | None, context: WindowAssignerContext
    ) -> list[TimeWindow]:
        """The window of an element."""
        if not self.is_event_time():
            timestamp = context.get_current_processing_time()
        assert timestamp is not None
        start = timestamp - (timestamp - self.offset_ms) % self.size_ms
        return [TimeWindow(start, start + self.size_ms)]

    def __repr__(self) -> str:
        """The class and the length."""
        return f"{type(self).__name__}({self.size_ms} ms)"


class TumblingEventTimeWindows(_InEventTime, TumblingWindows):
    """Consecutive windows of one length, in event time."""


class TumblingProcessingTimeWindows(_ByTheClock, TumblingWindows):
    """Consecutive windows of one length, by the clock."""


class SlidingWindows(WindowAssigner):
    """Overlapping windows of one length; one starts every slide."""

    def __init__(self, size: DurationLike, slide: DurationLike, offset: DurationLike = 0) -> None:
        """Windows of `size`; one starts every `slide`."""
        name = type(self).__name__
        self.size_ms = positive_ms(name, size)
        self.slide_ms = positive_ms(name, slide)
        self.offset_ms = _offset_ms(name, offset, self.slide_ms, "slide")

    @classmethod
    def of(cls, size: DurationLike, slide: DurationLike, offset: DurationLike = 0) -> Self:
        """Windows of `size`, one every `slide`."""
        return cls(size, slide, offset)

    def assign_windows(
        self, element: Any, timestamp: int | None, context: WindowAssignerContext
    ) -> list[TimeWindow]:
        """The windows of an element, the latest first."""
        if not self.is_event_time():
            timestamp = context.get_current_processing_time()
        assert timestamp is not None
        last = timestamp - (timestamp - self.offset_ms) % self.slide_ms
        size = self.size_ms
        return [TimeWindow(s, s + size) for s in range(last, timestamp - size, -self.slide_ms)]

    def __repr__(self) -> str:
        """The class, the length and the slide."""
        return f"{type(self).__name__}({self.size_ms} ms, {self.slide_ms} ms)"


class SlidingEventTimeWindows(_InEventTime, SlidingWindows):
    """Overlapping windows of one length, in event time."""


class SlidingProcessingTimeWindows(_ByTheClock, SlidingWindows):
    """Overlapping windows of one length, by the clock."""


class SessionWindowTimeGapExtractor(ABC):
    """Extracts the session gap of an element."""

    @abstractmethod
    def extract(self, element: Any) -> int:
        """The gap, in milliseconds; more than 0."""


class SessionWindows(MergingWindowAssigner):
    """Windows that end after a time without elements."""

    def __init__(self, gap: DurationLike | Callable[[Any], int]) -> None:
        """Windows that end after `gap` without elements; a function returns milliseconds."""
        self._gap = gap if callable(gap) else positive_ms(type(self).__name__, gap)

    @classmethod
    def with_gap(cls, size: DurationLike) -> Self:
        """Sessions that end after `size` without elements."""
        return cls(size)

    @classmethod
    def with_dynamic_gap(
        cls, extractor: SessionWindowTimeGapExtractor | Callable[[Any], int]
    ) -> Self:
        """Sessions whose gap, in milliseconds, depends on the element."""
        return cls(_gap_function(extractor))

    def assign_windows(
        self, element: Any, timestamp: int | None, context: WindowAssignerContext
    ) -> list[TimeWindow]:
        """From the element to the end of its gap; it merges with overlapping windows."""
        if not self.is_event_time():
            timestamp = context.get_current_processing_time()
        assert timestamp is not None
        gap = self._gap
        if callable(gap):
            gap = gap(element)
            if isinstance(gap, bool) or not isinstance(gap, int) or gap <= 0:
                raise ConfigurationError(
                    f"the gap of a session is a positive number of milliseconds, not {gap!r}"
                )
        return [TimeWindow(timestamp, timestamp + gap)]

    def merge_windows(self, windows: Iterable[TimeWindow]) -> list[tuple[Any, list[Any]]]:
        """Merge windows that overlap or touch."""
        groups: list[tuple[TimeWindow, list[TimeWindow]]] = []
        for window in sorted(windows):
            if groups and groups[-1][0].intersects(window):
                covered, members = groups[-1]
                groups[-1] = (covered.cover(window), [*members, window])
            else:
                groups.append((window, [window]))
        return [group for group in groups if len(group[1]) > 1]

    def __repr__(self) -> str:
        """The class and the gap."""
        gap = "dynamic gap" if callable(self._gap) else f"{self._gap} ms"
        return f"{type(self).__name__}({gap})"


class EventTimeSessionWindows(_InEventTime, SessionWindows):
    """Sessions in event time."""


class ProcessingTimeSessionWindows(_ByTheClock, SessionWindows):
    """Sessions by the clock."""


class GlobalWindows(WindowAssigner):
    """One window for all elements of a key. It never ends, so it needs a trigger."""

    window_type = GlobalWindow

    def __init__(self, default_trigger: Trigger | None = None) -> None:
        """With the default trigger `default_trigger`, which never fires if None."""
        self._trigger = default_trigger or NeverTrigger()

    @staticmethod
    def create() -> GlobalWindows:
        """A global window that never fires by itself."""
        return GlobalWindows()

    @staticmethod
    def create_with_end_of_stream_trigger() -> GlobalWindows:
        """A global window that fires at the end of a bounded stream."""
        return GlobalWindows(EndOfStreamTrigger())

    def assign_windows(
        self, element: Any, timestamp: int | None, context: WindowAssignerContext
    ) -> list[GlobalWindow]:
        """The window."""
        return [GlobalWindow.get()]

    def get_default_trigger(self) -> Trigger:
        """The trigger that was given; by default one that never fires."""
        return self._trigger

    def is_event_time(self) -> bool:
        """No element is ever late."""
        return False


def _offset_ms(what: str, offset: DurationLike, limit: int, of: str) -> int:
    """The offset in milliseconds; shorter than `limit`, the length of a window or slide."""
    offset_ms = argument(signed_duration_ms, offset, f"{what}: offset")
    if abs(offset_ms) >= limit:
        raise ConfigurationError(
            f"{what}: the offset ({offset_ms} ms) must be shorter than the {of} ({limit} ms)"
        )
    return offset_ms


def _gap_function(
    extractor: SessionWindowTimeGapExtractor | Callable[[Any], int],
) -> Callable[[Any], int]:
    if isinstance(extractor, SessionWindowTimeGapExtractor):
        return extractor.extract
    if not callable(extractor):
        raise ConfigurationError(
            "with_dynamic_gap takes a SessionWindowTimeGapExtractor or a function of an element "
            f"that returns milliseconds, not {extractor!r}"
        )
    return extractor
