"""Iterates over due timers while the caller sets and deletes timers."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from heapq import heappop, heappush, merge
from itertools import islice
from typing import TYPE_CHECKING, Final

from holdfast.state.timers.layout import (
    FIRST_TIME,
    LAST_TIME,
    NEVER,
    Timer,
    place_of,
    time_bytes,
    time_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from holdfast.state.store.protocol import StateStore
    from holdfast.state.timers.layout import Identity, TimerLayout

TIMERS_AT_ONCE: Final = 20_000
"""Maximum number of timers in memory to fire."""


@dataclass(frozen=True, slots=True)
class TimerChanges:
    """Changes to timers that the store does not have yet."""

    fresh: dict[Identity, bool] = field(default_factory=dict)
    """Timers set (True) and deleted (False) since the last drain or step of a pass."""
    settled: dict[Identity, bool] = field(default_factory=dict)
    """Earlier changes since the last drain, which the pass has seen."""
    fired: list[bytes] = field(default_factory=list)
    """Places of timers that have fired."""

    def __len__(self) -> int:
        """Number of changes."""
        return len(self.fresh) + len(self.settled) + len(self.fired)

    def clear(self) -> None:
        """Drop all changes: the store has them."""
        self.fresh.clear()
        self.settled.clear()
        self.fired.clear()


@dataclass(frozen=True, slots=True)
class StoredTimers:
    """Timers of one state in a store."""

    store: StateStore
    prefix: bytes
    """Bytes of the state id, the prefix of their entries."""
    layout: TimerLayout
    key_groups: range

    def places(self, group: int, start: bytes) -> Iterator[bytes]:
        """Places of a key group's timers in order, from the time and key in `start` on."""
        prefix = self.prefix + group.to_bytes(2, "big")
        return (place_of(entry) for entry, _ in self.store.scan(prefix, prefix + start))

    def earliest(self, start: int) -> int:
        """Time of the earliest timer from `start` on; `NEVER` if there is none."""
        first = (next(self.places(g, time_bytes(start)), None) for g in self.key_groups)
        return min((time_of(place[:8]) for place in first if place is not None), default=NEVER)

    def has(self, timer: Identity) -> bool:
        """Whether a timer is in the store."""
        return self.store.get(self.layout.entry(timer)) is not None


class DueTimers:
    """One pass over the due timers.

    A chunk has the next timers up to the **horizon**, its last one; no scan is open while they
    fire. A timer that is set meanwhile joins the chunk if it comes before the horizon.
    Reading the next chunk finds the others in the store.
    """

    __slots__ = (
        "_at",
        "_at_once",
        "_changes",
        "_chunk",
        "_gone",
        "_groups",
        "_horizon",
        "_joined",
        "_joined_places",
        "_late",
        "_latest",
        "_look_again",
        "_next",
        "_outdated",
        "_places",
        "_start",
        "_stored",
        "_until",
        "_write_changes",
    )

    def __init__(
        self,
        stored: StoredTimers,
        changes: TimerChanges,
        write_changes: Callable[[], None],
        *,
        start: int,
        until: int,
        registered_until: int,
        at_once: int,
    ) -> None:
        """Prepare a pass.

        Args:
            stored: Timers in the store, which is up to date.
            changes: Changes that the caller makes during the pass.
            write_changes: Writes the changes to the store.
            start: No timer is pending before this time.
            until: Largest time of the timers to fire.
            registered_until: Largest time of timers set during the pass that fire in it.
            at_once: Maximum number of timers in a chunk.
        """
        self._stored = stored
        self._changes = changes
        self._write_changes = write_changes
        self._start = start
        self._until = until
        self._at_once = at_once
        self._latest = min(until, registered_until)
        """Largest time of a timer that may join the pass."""
        self._groups: list[int] = list(stored.key_groups)
        """Key groups that may have more timers."""
        self._horizon: bytes | None = None
        self._places: list[bytes] = []
        self._chunk: list[Timer] = []
        self._at = 0
        """Position of the pass in the chunk."""
        self._joined: list[tuple[bytes, Identity]] = []
        """A heap of timers that joined."""
        self._joined_places: set[bytes] = set()
        self._gone: set[bytes] = set()
        """Places of deleted timers that are still in the chunk or the heap."""
        self._late: set[Identity] = set()
        """Timers set during the pass that are due but may not join it."""
        self._outdated = False
        """Whether the store lacks changes that matter to the pass."""
        self._next = NEVER
        """Earliest time of the timers seen that stay pending."""
        self._look_again = False
        """Whether `_next` may be the time of a deleted timer."""

    @property
    def has_more(self) -> bool:
        """Whether there may be timers after the current chunk."""
        return self._horizon is not None

    def read_chunk(self) -> list[Timer]:
        """Read the next chunk. Take all timers of the last chunk first."""
        if self._outdated:
            self._write_changes()
            self._groups, self._outdated = list(self._stored.key_groups), False
        places = self._read_places()
        chunk = self._stored.layout.timers(places)
        # Before late timers are filtered out: the horizon is the last timer that was read.
        self._horizon = places[-1] if len(places) == self._at_once else None
        if self._late:
            kept = [i for i, timer in enumerate(chunk) if timer not in self._late]
            places, chunk = [places[i] for i in kept], [chunk[i] for i in kept]
        self._places, self._chunk, self._at = places, chunk, 0
        return chunk

    def timers(self) -> Iterator[Timer]:
        """Timers of the current chunk and those that join it; each is deleted when yielded."""
        fresh = self._changes.fresh
        while (timer := self._take()) is not None:
            yield timer
            if fresh:
                self.follow_changes()

    def next_time(self) -> int:
        """Time of the earliest pending timer after the pass."""
        if self._look_again:
            self._write_changes()
            return self._stored.earliest(max(FIRST_TIME, min(self._latest + 1, LAST_TIME)))
        return self._next

    def follow_changes(self) -> None:
        """Apply timers that were set and deleted meanwhile to the pass."""
        fresh, settled = self._changes.fresh, self._changes.settled
        for timer, wanted in fresh.items():
            if wanted:
                self._follow_set(timer)
            else:
                self._follow_deleted(timer)
            settled[timer] = wanted
        fresh.clear()

    def _take(self) -> Timer | None:
        """Remove and return the next timer; None at the end of the chunk."""
        places = self._places
        while True:
            at = self._at
            if self._joined and (at == len(places) or self._joined[0][0] < places[at]):
                place, identity = heappop(self._joined)
                self._joined_places.discard(place)
                timer = Timer._make(identity)
            elif at < len(places):
                place, timer = places[at], self._chunk[at]
                self._at = at + 1
            else:
                return None
            if place in self._gone:
                self._gone.discard(place)
                continue
            self._changes.fired.append(place)
            self._changes.settled.pop(timer, None)
            return timer

    def _read_places(self) -> list[bytes]:
        done: set[int] = set()
        streams = [self._places_in(group, done) for group in self._groups]
        places = list(islice(merge(*streams), self._at_once))
        self._groups = [group for group in self._groups if group not in done]
        return places

    def _places_in(self, group: int, done: set[int]) -> Iterator[bytes]:
        start = self._start_in(group)
        # Greater than every key group.
        last = time_bytes(self._until) + b"\xff\xff"
        if start is not None:
            for place in self._stored.places(group, start):
                if place > last:
                    self._next = min(self._next, time_of(place[:8]))
                    break
                yield place
        done.add(group)

    def _start_in(self, group: int) -> bytes | None:
        """Start of a group's entries after the horizon; None if there cannot be any."""
        horizon = self._horizon
        if horizon is None:
            return time_bytes(self._start)
        time, last_group = horizon[:8], int.from_bytes(horizon[8:10], "big")
        if group == last_group:
            return time + horizon[10:] + b"\x00"
        if group > last_group:
            return time
        following = time_of(time) + 1
        return time_bytes(following) if following <= LAST_TIME else None

    def _follow_set(self, timer: Identity) -> None:
        time = timer[0]
        if time > self._until:
            self._next = min(self._next, time)
            return
        place = self._place_before_horizon(timer)
        if time <= self._latest:
            self._join(place, timer)
        elif self._is_new(place, timer):
            self._late.add(timer)
            self._next = min(self._next, time)

    def _follow_deleted(self, timer: Identity) -> None:
        time = timer[0]
        if time > self._latest:
            self._look_again = True
        if time <= self._until:
            place = self._place_before_horizon(timer)
            if place is None:
                self._outdated = True
            elif self._is_ahead(place):
                self._gone.add(place)

    def _place_before_horizon(self, timer: Identity) -> bytes | None:
        """Place of the timer; None if it comes after the horizon."""
        horizon = self._horizon
        if horizon is not None and time_bytes(timer[0]) > horizon[:8]:
            return None
        place = self._stored.layout.place(timer)
        return place if horizon is None or place <= horizon else None

    def _is_ahead(self, place: bytes) -> bool:
        """Whether the timer at that place is still to fire in this chunk."""
        at = bisect_left(self._places, place, self._at)
        return place in self._joined_places or self._places[at : at + 1] == [place]

    def _is_new(self, place: bytes | None, timer: Identity) -> bool:
        """Whether a timer that was set now was not pending before."""
        if place is not None:
            return place in self._gone or not self._is_ahead(place)
        settled = self._changes.settled.get(timer)
        return not settled if settled is not None else not self._stored.has(timer)

    def _join(self, place: bytes | None, timer: Identity) -> None:
        if place is None:
            self._outdated = True
        elif place in self._gone:
            self._gone.discard(place)
        elif not self._is_ahead(place):
            heappush(self._joined, (place, timer))
            self._joined_places.add(place)
            if len(self._joined) > self._at_once:
                self._draw_horizon_in()

    def _draw_horizon_in(self) -> None:
        """Keep half of the joined timers; leave the rest and all after them to the store."""
        self._joined.sort()
        half = self._at_once // 2
        horizon = self._horizon = self._joined[half][0]
        # Every prefix of a sorted list is a heap.
        del self._joined[half + 1 :]
        self._joined_places = {place for place, _ in self._joined}
        cut = bisect_right(self._places, horizon, self._at)
        del self._places[cut:], self._chunk[cut:]
        self._gone = {place for place in self._gone if place <= horizon}
        self._outdated = True
