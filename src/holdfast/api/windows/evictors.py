"""Evictors: remove elements of a window before or after its function is called."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.api.windows.triggers import at_least_one, positive_ms
from holdfast.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.config.options import DurationLike


class TimestampedValue(NamedTuple):
    """An element of a window, and its event time if it has one."""

    value: Any
    timestamp: int | None


class EvictorContext(ABC):
    """The time and the watermark."""

    __slots__ = ()

    @abstractmethod
    def get_current_processing_time(self) -> int:
        """The machine's clock, in milliseconds since 1970."""

    @abstractmethod
    def get_current_watermark(self) -> int:
        """The current watermark."""


class Evictor(ABC):
    """Removes elements from a window.

    It gets the list of the window's elements, in the order of their arrival, and removes elements
    from that list.
    """

    @abstractmethod
    def evict_before(
        self, elements: list[TimestampedValue], size: int, window: Any, ctx: EvictorContext
    ) -> None:
        """Called when a window fires, before its function."""

    @abstractmethod
    def evict_after(
        self, elements: list[TimestampedValue], size: int, window: Any, ctx: EvictorContext
    ) -> None:
        """Called after a window has fired and its function has returned."""


class _OneSided(Evictor):
    """Base of the built-in evictors: evicts either before or after."""

    def __init__(self, do_evict_after: bool) -> None:
        self._after = do_evict_after

    def evict_before(
        self, elements: list[TimestampedValue], size: int, window: Any, ctx: EvictorContext
    ) -> None:
        """Evict, unless the evictor works after the function."""
        if not self._after:
            self._evict(elements)

    def evict_after(
        self, elements: list[TimestampedValue], size: int, window: Any, ctx: EvictorContext
    ) -> None:
        """Evict, if the evictor works after the function."""
        if self._after:
            self._evict(elements)

    @abstractmethod
    def _evict(self, elements: list[TimestampedValue]) -> None:
        """Remove elements from the list."""


class CountEvictor(_OneSided):
    """Keeps the last elements, up to a number."""

    def __init__(self, max_count: int, do_evict_after: bool = False) -> None:
        """Check that the number is positive."""
        super().__init__(do_evict_after)
        self._max_count = at_least_one("CountEvictor", max_count)

    @staticmethod
    def of(max_count: int, do_evict_after: bool = False) -> CountEvictor:
        """Keep the last `max_count` elements."""
        return CountEvictor(max_count, do_evict_after)

    def _evict(self, elements: list[TimestampedValue]) -> None:
        del elements[: -self._max_count]


class TimeEvictor(_OneSided):
    """Keeps the elements of a time span before the newest element."""

    def __init__(self, window_size: DurationLike, do_evict_after: bool = False) -> None:
        """Keep elements less than `window_size` older than the newest one."""
        super().__init__(do_evict_after)
        self._size = positive_ms("TimeEvictor", window_size)

    @staticmethod
    def of(window_size: DurationLike, do_evict_after: bool = False) -> TimeEvictor:
        """Keep elements less than `window_size` older than the newest one."""
        return TimeEvictor(window_size, do_evict_after)

    def _evict(self, elements: list[TimestampedValue]) -> None:
        times = [one.timestamp for one in elements if one.timestamp is not None]
        if times:
            last = max(times) - self._size
            elements[:] = [one for one in elements if one.timestamp is None or one.timestamp > last]


class DeltaEvictor(_OneSided):
    """Keeps the elements that differ from the last one by less than a threshold."""

    def __init__(
        self,
        threshold: float,
        delta_function: Callable[[Any, Any], float],
        do_evict_after: bool = False,
    ) -> None:
        """`delta_function` is called with an element and the last one."""
        super().__init__(do_evict_after)
        if not callable(delta_function):
            raise ConfigurationError(
                f"DeltaEvictor takes a function of two elements, not {delta_function!r}"
            )
        self._threshold = threshold
        self._delta = delta_function

    @staticmethod
    def of(
        threshold: float,
        delta_function: Callable[[Any, Any], float],
        do_evict_after: bool = False,
    ) -> DeltaEvictor:
        """Keep elements whose delta to the last one is below `threshold`."""
        return DeltaEvictor(threshold, delta_function, do_evict_after)

    def _evict(self, elements: list[TimestampedValue]) -> None:
        if elements:
            last, delta = elements[-1].value, self._delta
            elements[:] = [one for one in elements if delta(one.value, last) < self._threshold]
