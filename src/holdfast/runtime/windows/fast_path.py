"""Fast path for windows of one length that fire once, at their end.

The windows of all elements of a batch are computed at once, and their contents are read from
the store in one go. The timer at the end of a window is set when the window is new, not for
every element. An element of a window that has ended already takes the general path
(`runtime/windows/operator.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from holdfast.api.functions import ReduceFunction
from holdfast.api.time import MAX_WATERMARK
from holdfast.api.windows.assigners import SlidingWindows, TumblingWindows
from holdfast.api.windows.triggers import EventTimeTrigger, ProcessingTimeTrigger
from holdfast.api.windows.windows import TimeWindow
from holdfast.errors import EventTimeError
from holdfast.runtime.windows.contents import FoldedContents

if TYPE_CHECKING:
    from types import CodeType

    from holdfast.api.windows.spec import Windowing
    from holdfast.runtime.context import SubtaskTimers
    from holdfast.runtime.operators.base import Times
    from holdfast.runtime.windows.contents import Contents
    from holdfast.runtime.windows.contexts import TimeContext
    from holdfast.state.namespaces import StateScope
    from holdfast.state.table import CurrentKey

MOST_SEEN: Final = 500_000
"""Most windows to remember whose timers are set."""


def has_fast_path(windowing: Windowing) -> bool:
    """Whether windows can take the fast path."""
    assigner = windowing.assigner
    plain = (
        type(assigner).__module__ == TumblingWindows.__module__
        and isinstance(assigner, TumblingWindows | SlidingWindows)
        and windowing.evictor is None
    )
    wanted = EventTimeTrigger if assigner.is_event_time() else ProcessingTimeTrigger
    return plain and type(windowing.trigger) is wanted


class FastPathWindows:
    """Adds elements of batches to windows that have not ended."""

    def __init__(
        self,
        windowing: Windowing,
        contents: Contents,
        scope: StateScope,
        current: CurrentKey,
        timers: SubtaskTimers,
        *,
        may_have_fired: bool,
    ) -> None:
        """Windows whose contents lie in `scope`.

        Args:
            windowing: Kind of windows.
            contents: Their contents.
            scope: Scope of the contents.
            current: The current key.
            timers: Sets their timers.
            may_have_fired: Whether windows may be kept for late elements after they have fired,
                since lateness is, or once was, allowed.
        """
        assigner = windowing.assigner
        assert isinstance(assigner, TumblingWindows | SlidingWindows)
        self._size, self._slide = assigner.size_ms, assigner.slide_ms
        self._offset = assigner.offset_ms
        self._event_time = assigner.is_event_time()
        self._lateness = windowing.allowed_lateness_ms
        self._contents = contents
        self._scope = scope
        self._current = current
        self._timers = timers
        self._may_have_fired = may_have_fired
        self._seen: set[tuple[Any, bytes]] = set()
        """Windows whose timers are set."""

    @staticmethod
    def loops() -> set[CodeType]:
        """The code of the loops over elements."""
        return {
            FastPathWindows._add_reduced.__code__,
            FastPathWindows._add_aggregated.__code__,
            FastPathWindows._add_listed.__code__,
        }

    def forget(self) -> None:
        """Timers have fired: windows may be new again."""
        self._seen.clear()

    def prepare(self, times: Times | None, count: int, context: TimeContext) -> list[int]:
        """Find the windows of a batch; returns positions of elements for the general path."""
        if not self._event_time:
            moments = np.full(count, context.get_current_processing_time(), np.int64)
        else:
            moments = _moments(times)
            if len(moments) and moments.max() == MAX_WATERMARK:
                raise at_the_end_of_time()
        last = moments - (moments - self._offset) % self._slide
        every = -(-self._size // self._slide)
        if every == 1 and self._size == self._slide:
            starts = last
            self._elements = None
        else:
            starts, self._elements = self._spread(moments, last, every)
        distinct, which = np.unique(starts, return_inverse=True)
        windows = [TimeWindow(start, start + self._size) for start in distinct.tolist()]
        names = [window.to_bytes() for window in windows]
        self._ends = {
            name: self._timer_times(window) for name, window in zip(names, windows, strict=True)
        }
        self._names = list(map(names.__getitem__, which.tolist()))
        if not self._event_time:
            return []
        first = last - (every - 1) * self._slide
        ended = np.flatnonzero(first + (self._size - 1) <= self._timers.watermark)
        places: list[int] = ended.tolist()
        return places

    def _spread(self, moments: Any, last: Any, every: int) -> tuple[Any, Any]:
        """All windows of all elements, and the element of each; by element."""
        starts = (last[:, None] - np.arange(every) * self._slide).ravel()
        elements = np.repeat(np.arange(len(moments)), every)
        inside = starts > moments[elements] - self._size
        return starts[inside], elements[inside]

    def _timer_times(self, window: TimeWindow) -> set[int]:
        end = window.max_timestamp()
        if not self._event_time:
            return {end}
        return {end, min(end + self._lateness, MAX_WATERMARK)}

    def add(self, values: list[Any], keys: list[Any], start: int, stop: int) -> None:
        """Add the elements of a range of the batch to their windows."""
        if start == stop:
            return
        if self._elements is None:
            values, keys = values[start:stop], keys[start:stop]
            names = self._names[start:stop]
        else:
            begin, end = np.searchsorted(self._elements, [start, stop]).tolist()
            places = self._elements[begin:end].tolist()
            values, keys = [values[i] for i in places], [keys[i] for i in places]
            names = self._names[begin:end]
        windows = list(zip(keys, names, strict=True))
        self._scope.current.start_batch(windows)
        contents = self._contents
        if self._may_have_fired or not isinstance(contents, FoldedContents):
            self._set_timers_of(windows)
        if not isinstance(contents, FoldedContents):
            self._add_listed(values, keys, windows)
        elif contents.fold.aggregates:
            self._add_aggregated(contents, values, keys, windows)
        else:
            self._add_reduced(contents, values, keys, windows)
        self._scope.current.end_batch()

    def _add_reduced(
        self, contents: FoldedContents, values: list[Any], keys: list[Any], windows: list[Any]
    ) -> None:
        value, update = contents.table.value, contents.table.update
        fold = contents.fold.function
        reduce = fold.reduce if isinstance(fold, ReduceFunction) else fold
        current, scoped = self._current, self._scope.current
        for current.key, scoped.key, element in zip(keys, windows, values, strict=True):
            old = value()
            if old is None:
                self._set_timers(scoped.key[1])
                update(element)
            else:
                update(reduce(old, element))

    def _add_aggregated(
        self, contents: FoldedContents, values: list[Any], keys: list[Any], windows: list[Any]
    ) -> None:
        value, update = contents.table.value, contents.table.update
        aggregate = contents.fold.function
        add, create = aggregate.add, aggregate.create_accumulator
        current, scoped = self._current, self._scope.current
        for current.key, scoped.key, element in zip(keys, windows, values, strict=True):
            accumulator = value()
            if accumulator is None:
                self._set_timers(scoped.key[1])
                accumulator = create()
            update(add(element, accumulator))

    def _add_listed(self, values: list[Any], keys: list[Any], windows: list[Any]) -> None:
        add = self._contents.state.add  # type: ignore[attr-defined]
        current, scoped = self._current, self._scope.current
        for current.key, scoped.key, element in zip(keys, windows, values, strict=True):
            add(element)

    def _set_timers_of(self, windows: list[tuple[Any, bytes]]) -> None:
        """Set the timers of windows, unless this was done since timers last fired.

        A window with contents may have no timers: it may have fired and wait for late elements,
        and after a recovery the watermark is before its end again.
        """
        if len(self._seen) > MOST_SEEN:
            self._seen.clear()
        new = set(windows) - self._seen
        for self._current.key, name in new:
            self._set_timers(name)
        self._seen |= new

    def _set_timers(self, name: bytes) -> None:
        timers = self._timers
        table = timers.event() if self._event_time else timers.processing()
        for time in self._ends[name]:
            table.register(time, name)


def _moments(times: Times | None) -> Any:
    try:
        return np.array(times, np.int64)
    except TypeError as error:
        raise without_time() from error


def without_time() -> EventTimeError:
    """The error for an element without event time."""
    return EventTimeError(
        "an element without event time has no window in event time; call "
        "assign_timestamps_and_watermarks on its stream, before key_by"
    )


def at_the_end_of_time() -> EventTimeError:
    """The error for an element that no window can hold."""
    return EventTimeError(
        "an element whose event time is the end of time, like the output of a global window, has "
        "no window in event time; call assign_timestamps_and_watermarks behind the global window"
    )
