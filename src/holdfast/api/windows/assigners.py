"""Window assigners: which windows an element lies in."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Any, ClassVar

from holdfast.api.windows.triggers import (
    EndOfStreamTrigger,
    EventTimeTrigger,
    NeverTrigger,
    ProcessingTimeTrigger,
    Trigger,
    positive_ms,
)
from holdfast.api.windows.windows import GlobalWindow, TimeWindow, Window
from holdfast.config.options import signed_duration_ms
from holdfast.errors import ConfigurationError

if TYPE_CHECKING:
    from holdfast.config.options import DurationLike


class WindowAssignerContext(ABC):
    """What an assigner can learn."""

    __slots__ = ()

    @abstractmethod
    def get_current_processing_time(self) -> int:
        """Milliseconds since 1970, by the clock of the machine."""


class WindowAssigner(ABC):
    """Says which windows an element lies in."""

    window_type: ClassVar[type[Window]] = TimeWindow
    """Class of its windows."""

    @abstractmethod
    def assign_windows(
        self, element: Any, timestamp: int | None, context: WindowAssignerContext
    ) -> Collection[Any]:
        """Windows of an element; `timestamp` is its event time, None if it has none."""

    @abstractmethod
    def get_default_trigger(self) -> Trigger:
        """The trigger of its windows, unless they are given another."""

    @abstractmethod
    def is_event_time(self) -> bool:
        """Whether windows end by the watermark; by the clock otherwise."""

    def __repr__(self) -> str:
        """Its class, for messages and plans."""
        return f"{type(self).__name__}()"


class MergingWindowAssigner(WindowAssigner):
    """An assigner whose windows can become one, such as sessions."""

    @abstractmethod
    def merge_windows(self, windows: Iterable[Any]) -> Iterable[tuple[Any, list[Any]]]:
        """Which windows become one: the new window, and those it takes the place of.

        Only groups of at least two; `windows` are all different.
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
    """Windows of one length, one after the other."""

    def __init__(self, size_ms: int, offset_ms: int = 0) -> None:
        """Windows of a length; they begin at multiples of it, and `offset_ms`."""
        if abs(offset_ms) >= size_ms:
            raise ConfigurationError(
                f"{type(self).__name__}: the offset ({offset_ms} ms) must be shorter than the "
                f"window ({size_ms} ms)"
            )
        self.size_ms = self.slide_ms = size_ms
        self.offset_ms = offset_ms

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
    """Windows of one length, one after the other, in event time."""

    @staticmethod
    def of(size: DurationLike, offset: DurationLike = 0) -> TumblingEventTimeWindows:
        """Windows of `size`.

        Args:
            size: Length of a window.
            offset: When a window begins: days in China are `of("1 day", "-8 h")`.
        """
        name = "TumblingEventTimeWindows"
        return TumblingEventTimeWindows(positive_ms(name, size), _offset_ms(name, offset))


class TumblingProcessingTimeWindows(_ByTheClock, TumblingWindows):
    """Windows of one length, one after the other, by the clock."""

    @staticmethod
    def of(size: DurationLike, offset: DurationLike = 0) -> TumblingProcessingTimeWindows:
        """Windows of `size`; see `TumblingEventTimeWindows.of`."""
        name = "TumblingProcessingTimeWindows"
        return TumblingProcessingTimeWindows(positive_ms(name, size), _offset_ms(name, offset))


class SlidingWindows(WindowAssigner):
    """Windows of one length, of which one begins every slide."""

    def __init__(self, size_ms: int, slide_ms: int, offset_ms: int = 0) -> None:
        """Windows of a length, `slide_ms` from start to start."""
        if abs(offset_ms) >= slide_ms:
            raise ConfigurationError(
                f"{type(self).__name__}: the offset ({offset_ms} ms) must be shorter than the "
                f"slide ({slide_ms} ms)"
            )
        self.size_ms = size_ms
        self.slide_ms = slide_ms
        self.offset_ms = offset_ms

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
    """Windows of one length, of which one begins every slide, in event time."""

    @staticmethod
    def of(
        size: DurationLike, slide: DurationLike, offset: DurationLike = 0
    ) -> SlidingEventTimeWindows:
        """Windows of `size`, one every `slide`."""
        name = "SlidingEventTimeWindows"
        return SlidingEventTimeWindows(
            positive_ms(name, size), positive_ms(name, slide), _offset_ms(name, offset)
        )


class SlidingProcessingTimeWindows(_ByTheClock, SlidingWindows):
    """Windows of one length, of which one begins every slide, by the clock."""

    @staticmethod
    def of(
        size: DurationLike, slide: DurationLike, offset: DurationLike = 0
    ) -> SlidingProcessingTimeWindows:
        """Windows of `size`, one every `slide`."""
        name = "SlidingProcessingTimeWindows"
        return SlidingProcessingTimeWindows(
            positive_ms(name, size), positive_ms(name, slide), _offset_ms(name, offset)
        )


class SessionWindowTimeGapExtractor(ABC):
    """Says how long a session waits for another element after this one."""

    @abstractmethod
    def extract(self, element: Any) -> int:
        """The gap, in milliseconds; more than 0."""


Gap = int | Callable[[Any], int]
"""Milliseconds, or a function of an element that gives them."""


class SessionWindows(MergingWindowAssigner):
    """Windows that end when nothing has come for a while."""

    def __init__(self, gap: Gap) -> None:
        """Windows that wait so long, or as long as `gap` says of an element."""
        self._gap = gap

    def assign_windows(
        self, element: Any, timestamp: int | None, context: WindowAssignerContext
    ) -> list[TimeWindow]:
        """From the element to the end of its gap; it merges with those it meets."""
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
        """Windows that share a time, or touch, become one."""
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

    @staticmethod
    def with_gap(size: DurationLike) -> EventTimeSessionWindows:
        """Sessions that end when nothing has come for `size`."""
        return EventTimeSessionWindows(positive_ms("EventTimeSessionWindows", size))

    @staticmethod
    def with_dynamic_gap(
        extractor: SessionWindowTimeGapExtractor | Callable[[Any], int],
    ) -> EventTimeSessionWindows:
        """Sessions that wait as many milliseconds as the extractor says of an element."""
        return EventTimeSessionWindows(_gap_function(extractor))


class ProcessingTimeSessionWindows(_ByTheClock, SessionWindows):
    """Sessions by the clock."""

    @staticmethod
    def with_gap(size: DurationLike) -> ProcessingTimeSessionWindows:
        """Sessions that end when nothing has come for `size`."""
        return ProcessingTimeSessionWindows(positive_ms("ProcessingTimeSessionWindows", size))

    @staticmethod
    def with_dynamic_gap(
        extractor: SessionWindowTimeGapExtractor | Callable[[Any], int],
    ) -> ProcessingTimeSessionWindows:
        """Sessions that wait as many milliseconds as the extractor says of an element."""
        return ProcessingTimeSessionWindows(_gap_function(extractor))


class GlobalWindows(WindowAssigner):
    """One window for all elements of a key. It never ends: give it a trigger."""

    window_type = GlobalWindow

    def __init__(self, default_trigger: Trigger | None = None) -> None:
        """With the trigger that it has unless it is given another."""
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
        """None that ever fires, or the one at the end of the stream."""
        return self._trigger

    def is_event_time(self) -> bool:
        """Nothing is ever late for it."""
        return False


def _offset_ms(what: str, offset: DurationLike) -> int:
    try:
        return signed_duration_ms(offset)
    except ValueError as error:
        raise ConfigurationError(f"{what}: as an offset {error}, not {offset!r}") from error


def _gap_function(
    extractor: SessionWindowTimeGapExtractor | Callable[[Any], int],
) -> Callable[[Any], int]:
    if isinstance(extractor, SessionWindowTimeGapExtractor):
        return extractor.extract
    if not callable(extractor):
        raise ConfigurationError(
            "with_dynamic_gap takes a SessionWindowTimeGapExtractor or a function of an element "
            f"that gives milliseconds, not {extractor!r}"
        )
    return extractor
