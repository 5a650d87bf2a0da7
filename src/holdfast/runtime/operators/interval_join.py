"""Joins elements of two streams that are close to each other in event time.

For each side and key the operator buffers the elements that may still find a partner. Every
element is one entry of a map state, so adding one writes no other. A new element is added to
the buffer of its side, and is paired with every element of the other side's buffer within the
interval. An event-time timer removes it when the watermark has passed the last time at which
a partner could come.

Cost: the first element of a key in an epoch reads all buffered elements of that key on the
other side, and nothing of other keys. After that an element costs a binary search among the
buffered times of its key, and one read for each partner. So a key with many buffered elements
is read as a whole once in every epoch in which it has elements.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from itertools import repeat
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import override

from holdfast.api.co_functions import JoinContext
from holdfast.api.descriptors import MapStateDescriptor
from holdfast.api.names import public_name
from holdfast.api.state import MapState
from holdfast.api.time import MAX_WATERMARK
from holdfast.errors import EventTimeError
from holdfast.runtime.context import LATE_DROPPED, SubtaskTimers
from holdfast.runtime.operators.base import Reported, always_iterable
from holdfast.runtime.operators.element import state_spec
from holdfast.runtime.operators.process import ProcessOperator

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from holdfast.api.outputs import OutputTag
    from holdfast.api.streams.connected import JoinInterval
    from holdfast.api.time import TimeDomain
    from holdfast.runtime.operators.base import Ends, Output, Times
    from holdfast.runtime.plan import EpochPlan
    from holdfast.state.backend import KeyedStateBackend
    from holdfast.state.table import CurrentKey
    from holdfast.state.timers.layout import Timer
    from holdfast.types.stream_type import StreamType

    Place = tuple[int, bytes]
    """Time of a buffered element, and its entry's key in the map."""

LEFT: Final = "join:left"
"""Name of the state that buffers left elements."""
RIGHT: Final = "join:right"
"""Name of the state that buffers right elements."""
PLACES_LIMIT: Final = 500_000
"""Positions and keys that a buffer holds in memory at most."""

_SIGN: Final = 2**63
_entry_key: Final = Struct(">QI").pack
_pack_time: Final = Struct(">Q").pack
_unpack_time: Final = Struct(">Q").unpack_from


@public_name("JoinContext")
class PairContext(JoinContext):
    """Context of the current pair."""

    __slots__ = ("left", "right")

    left: int
    right: int

    def get_left_timestamp(self) -> int:
        """Event time of the left element."""
        return self.left

    def get_right_timestamp(self) -> int:
        """Event time of the right element."""
        return self.right

    def get_timestamp(self) -> int:
        """Event time of the pair."""
        return max(self.left, self.right)


class JoinBuffer:
    """The buffered elements of one side, by time; of the current key.

    The key of an entry is the element's time (8 bytes, big-endian, sign bit flipped) and its
    number among the key's elements of that time (4 bytes, big-endian): bytes sort like times,
    then by arrival. All elements of one time go at once, so numbers have no gaps.
    """

    def __init__(
        self, name: str, stream: StreamType, backend: KeyedStateBackend, current: CurrentKey
    ) -> None:
        """Elements of `stream`, in the state of that name."""
        state = backend.register(MapStateDescriptor(name, bytes, state_spec(stream)))
        assert isinstance(state, MapState)
        self._state: MapState[bytes, Any] = state
        self._current = current
        self._places: dict[Any, list[Place]] = {}
        """Sorted positions of the elements, for keys that were read."""
        self._size = 0

    def add(self, time: int, element: Any) -> None:
        """Buffer an element."""
        entry = _entry_key(time + _SIGN, self._count(time))
        self._state.put(entry, element)
        places = self._places.get(self._current.key)
        if places is not None:
            insort(places, (time, entry))
            self._size += 1

    def between(self, first: int, last: int) -> Iterator[tuple[int, Any]]:
        """Elements from one time to another, both included, with their times; in order."""
        places = self._places.get(self._current.key)
        if places is None:
            places = self._look_through()
        if places:
            get = self._state.get
            start = bisect_left(places, (first,))
            for time, entry in places[start : bisect_left(places, (last + 1,), start)]:
                yield time, get(entry)

    def remove(self, time: int) -> None:
        """Remove all elements of a time."""
        for number in range(self._count(time)):
            self._state.remove(_entry_key(time + _SIGN, number))
        self.forget(self._current.key)

    def forget(self, key: Any) -> None:
        """Forget the positions of a key; they are read again on next use."""
        places = self._places.pop(key, None)
        if places is not None:
            self._size -= 1 + len(places)

    def forget_all(self) -> None:
        """Forget the positions of all keys."""
        self._places.clear()
        self._size = 0

    def evict_if_full(self) -> None:
        """Keep memory within bounds."""
        if self._size > PLACES_LIMIT:
            self.forget_all()

    def _look_through(self) -> list[Place]:
        places = sorted((_time_in(entry), entry) for entry in self._state)
        self._places[self._current.key] = places
        self._size += 1 + len(places)
        return places

    def _count(self, time: int) -> int:
        """How many elements of a time there are."""
        contains, stored = self._state.contains, time + _SIGN
        if not contains(_entry_key(stored, 0)):
            return 0
        end = 1
        while contains(_entry_key(stored, end)):
            end *= 2
        return bisect_left(
            range(end), True, end // 2, key=lambda number: not contains(_entry_key(stored, number))
        )


class JoinSide:
    """One input of the join, seen from its own elements."""

    __slots__ = ("buffer", "is_left", "kept_for", "late", "lower", "name", "other", "upper")

    def __init__(
        self,
        name: bytes,
        buffer: JoinBuffer,
        other: JoinBuffer,
        bounds: tuple[int, int],
        late: OutputTag | None,
    ) -> None:
        """Elements whose partners in `other` lie within `bounds` from them."""
        self.name = name
        """Prefix of the namespaces of its timers; the elements' time follows."""
        self.is_left = name == b"left"
        self.buffer = buffer
        self.other = other
        self.lower, self.upper = bounds
        self.kept_for = max(0, self.upper)
        """How long after its own time an element can still find a partner."""
        self.late = late

    def kept_until(self, time: int) -> int:
        """When to remove elements of a time."""
        return min(time + self.kept_for, MAX_WATERMARK)


class IntervalJoinOperator(ProcessOperator):
    """Pairs elements of two keyed streams; the first input is the left one.

    A pair's event time is the later one of its two. An element before the watermark
    is late: it is dropped and counted, or goes to the side output for late elements.
    """

    def _bind(self) -> Callable[..., Any]:
        interval: JoinInterval = self.plan.details
        backend, current = self._keyed_state(), self.current
        left = JoinBuffer(LEFT, interval.left, backend, current)
        right = JoinBuffer(RIGHT, interval.right, backend, current)
        from_left = (interval.lower, interval.upper)
        from_right = (-interval.upper, -interval.lower)
        self._sides = (
            JoinSide(b"left", left, right, from_left, interval.late_left),
            JoinSide(b"right", right, left, from_right, interval.late_right),
        )
        self._side = self._sides[0]
        timers = self._element_context.timer_service()
        assert isinstance(timers, SubtaskTimers)
        self._timers = timers
        self._removals = timers.event()
        self._pair = PairContext()
        self._pair_times: list[int | None] = []
        """Event times of the output for the current elements."""
        self._dropped = self.context.get_metrics_group().counter(LATE_DROPPED)
        return always_iterable(self._function.process_element)

    @override
    def begin(self, epoch: EpochPlan | None, attempt_id: int, *, own_state: bool) -> None:
        super().begin(epoch, attempt_id, own_state=own_state)
        if self.is_open and not own_state:
            for side in self._sides:
                side.buffer.forget_all()

    def _begin_batch(self, side: int) -> None:
        super()._begin_batch(side)
        for one in self._sides:
            one.buffer.evict_if_full()
        self._side = self._sides[side]
        self._pair_times = []

    def fire(self, domain: TimeDomain, due: Iterable[Timer]) -> Iterator[Output]:
        """Remove elements that can no longer find a partner; there is no output."""
        current = self.current
        try:
            with Reported(self, "removing elements that can find no partner any more"):
                for timer in due:
                    current.key = timer.key
                    self._remove(timer)
        finally:
            current.end_batch()
        return iter(())

    def _remove(self, timer: Timer) -> None:
        time = _time_in(timer.namespace, len(timer.namespace) - 8)
        side = self._sides[0 if timer.namespace.startswith(b"left") else 1]
        until = side.kept_until(time)
        if until > timer.time:
            # The timer is from a run of the job whose interval was narrower.
            self._removals.register(until, timer.namespace)
        else:
            side.buffer.remove(time)

    def _run(self, elements: Sequence[Any], keys: Iterable[Any], out: list[Any]) -> None:
        current, context, join = self.current, self._element_context, self._join
        for current.key, element in zip(keys, elements, strict=False):
            join(element, context.time, out)

    def _run_timed(
        self, elements: list[Any], keys: Iterable[Any], times: Times, out: list[Any], ends: Ends
    ) -> None:
        current, context, join = self.current, self._element_context, self._join
        for current.key, context.time, element in zip(keys, times, elements, strict=False):
            join(element, context.time, out)

    def _join(self, element: Any, time: int | None, out: list[Any]) -> None:
        """Buffer an element, and call the function on its pairs."""
        side, times = self._side, self._pair_times
        if time is None:
            raise EventTimeError(
                "an element without event time cannot be joined; call "
                "assign_timestamps_and_watermarks on its stream, before key_by"
            )
        if time < self._timers.watermark:
            self._late(element, time, out)
            return
        side.buffer.add(time, element)
        self._removals.register(side.kept_until(time), side.name + _pack_time(time + _SIGN))
        call, pair, is_left = self._call, self._pair, side.is_left
        for when, partner in side.other.between(time + side.lower, time + side.upper):
            if is_left:
                pair.left, pair.right = time, when
                out.extend(call(element, partner, pair))
            else:
                pair.left, pair.right = when, time
                out.extend(call(partner, element, pair))
            times.extend(repeat(max(time, when), len(out) - len(times)))

    def _late(self, element: Any, time: int, out: list[Any]) -> None:
        if self._side.late is None:
            self._dropped.inc()
        else:
            out.append((self._side.late, element))
            self._pair_times.append(time)

    def _out_times(self, times: Times, ends: Ends) -> Times:
        return self._pair_times

    def _divert(self, error: Exception, element: Any, key: Any, out: list[Any]) -> None:
        # State is rolled back already; only the positions in memory remain.
        self._side.buffer.forget(key)
        times = self._pair_times
        del times[len(out) :]
        super()._divert(error, element, key, out)
        times.extend(repeat(self._element_context.time, len(out) - len(times)))


def _time_in(data: bytes, start: int = 0) -> int:
    """The time in an entry's key, or in a timer's namespace."""
    time: int = _unpack_time(data, start)[0] - _SIGN
    return time
