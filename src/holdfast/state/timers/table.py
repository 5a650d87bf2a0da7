"""Timers as state: those of one operator, subtask and time domain, sorted by time.

They lie in the operator's store, see `state/timers/layout.py`, beside a lower bound of the
time of the earliest one: an epoch in which nothing is due reads nothing else.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from heapq import heappop, heappush, merge
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from holdfast.errors import StateAccessError, StateValueError
from holdfast.state.table import NO_KEY, StateTable
from holdfast.state.timers.layout import (
    FIRST_TIME,
    LAST_TIME,
    NEVER,
    NEXT_TIME_PREFIX,
    Timer,
    TimerLayout,
    place_of,
    time_bytes,
    time_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from holdfast.state.timers.layout import Identity

__all__ = ["EVENT_TIMERS", "PROCESSING_TIMERS", "TIMER_NAMES", "Timer", "TimerTable"]

EVENT_TIMERS: Final = "timers:event"
"""Name of the state that holds event-time timers."""
PROCESSING_TIMERS: Final = "timers:processing"
"""Name of the state that holds processing-time timers."""
TIMER_NAMES: Final = frozenset({EVENT_TIMERS, PROCESSING_TIMERS})
"""Names that the states of users cannot have."""
KIND: Final = "timers"
"""Kind of these states, beside "value" and others."""
CHUNK: Final = 20_000
"""Most timers that are held in memory to be fired."""


class TimerTable(StateTable):
    """The timers of one operator, subtask and time domain."""

    __slots__ = (
        "_changes",
        "_evict_if_full",
        "_fired",
        "_groups",
        "_journal",
        "_layout",
        "_next",
        "_run",
        "_settled",
        "_written",
        "announce",
    )

    def __init__(
        self, *args: Any, key_groups: range, evict_if_full: Callable[[], None], known: bool
    ) -> None:
        """See `StateTable`.

        Args:
            *args: As of `StateTable`.
            key_groups: Key groups of the subtask.
            evict_if_full: Called where caches may be emptied, between two chunks of timers.
            known: Whether the store knew the state before.
        """
        super().__init__(*args)
        self._groups = key_groups
        self._evict_if_full = evict_if_full
        self._run: _Pass | None = None
        """The pass that is under way."""
        self.announce: Callable[[list[Timer]], None] | None = None
        """Told which timers come next, so that their state can be read in one go."""
        self._layout = TimerLayout(self._prefix, self._encoder)
        self._changes: dict[Identity, bool] = {}
        """Timers set (True) and deleted (False) since the last drain or step of a pass."""
        self._settled: dict[Identity, bool] = {}
        """Earlier changes since the last drain, which the pass knows of."""
        self._fired: list[bytes] = []
        """Places of timers that were given and are still in the store."""
        self._journal: list[tuple[Identity, bool | None]] | None = None
        """Changes since the last `save_point`, and what they replaced."""
        self._written: int | None = None
        """The time before which nothing is pending, as the store has it."""
        if known:
            self._written = self._read_next_time()
        self._next = self._written if self._written is not None else NEVER
        if known and self._written is None:
            self._next = self._look(FIRST_TIME)

    @property
    def next_time(self) -> int | None:
        """No timer is pending before this time; None if none is pending at all.

        Exact after a pass of `due` that ran to its end; timers that are set lower it.
        """
        return None if self._next == NEVER else self._next

    def register(self, time: int, namespace: bytes = b"") -> None:
        """Set a timer for the current key; one that is set already stays as it is.

        Raises:
            TypeError: The time is not an int.
            StateValueError: The time does not fit into 64 bits.
            StateAccessError: No key is set.
        """
        key = self._current.key
        if type(time) is not int or key is NO_KEY or not FIRST_TIME <= time <= LAST_TIME:
            time = self._checked(time)
        timer = (time, key, namespace)
        if self._journal is not None:
            self._journal.append((timer, self._changes.get(timer)))
        self._changes[timer] = True
        if time < self._next:
            self._next = time

    def delete(self, time: int, namespace: bytes = b"") -> None:
        """Delete a timer of the current key; nothing happens if it is not set.

        Raises:
            TypeError: The time is not an int.
            StateValueError: The time does not fit into 64 bits.
            StateAccessError: No key is set.
        """
        key = self._current.key
        if type(time) is not int or key is NO_KEY or not FIRST_TIME <= time <= LAST_TIME:
            time = self._checked(time)
        timer = (time, key, namespace)
        if self._journal is not None:
            self._journal.append((timer, self._changes.get(timer)))
        self._changes[timer] = False

    def due(self, until: int, registered_until: int | None = None) -> Iterator[Timer]:
        """Timers up to a time, in order; each is gone once it is given.

        The caller may set and delete timers between two of them, and use any state. The
        keys of the next timers are announced as a batch; the current key is the caller's.

        Args:
            until: Largest time of the timers to give.
            registered_until: Largest time of timers, among those set meanwhile, that come
                in the same pass; at most `until`, which is what None stands for.
        """
        until = min(until, LAST_TIME)
        if until < self._next:
            return
        self._stage()
        run = self._run = _Pass(
            self, until, until if registered_until is None else registered_until
        )
        try:
            yield from run.timers()
            self._next = run.next_time()
            self._current.start_batch([])
        finally:
            if self._run is run:
                self._run = None

    def drain(self) -> list[tuple[bytes, bytes | None]]:
        """See `StateTable.drain`."""
        if self._run is not None:
            self._run.follow_changes()
        writes: list[tuple[bytes, bytes | None]] = [
            (self._layout.entry_at(place), None) for place in self._fired
        ]
        changes = self._settled | self._changes if self._settled else self._changes
        values = [b"" if wanted else None for wanted in changes.values()]
        writes += zip(self._layout.entries(list(changes)), values, strict=True)
        if self._next != self._written:
            key = NEXT_TIME_PREFIX + self._name.encode()
            writes.append((key, b"" if self._next == NEVER else time_bytes(self._next)))
            self._written = self._next
        self._fired, self._settled, self._changes = [], {}, {}
        self._journal = None
        return writes

    def forget(self) -> None:
        """See `StateTable.forget`; nothing is cached that was drained."""

    def cached(self) -> int:
        """See `StateTable.cached`."""
        return len(self._changes) + len(self._settled) + len(self._fired)

    def save_point(self, key: Any) -> object:
        """See `StateTable.remember`; only for the last one remembered is there a way back."""
        if key is NO_KEY:
            return None
        self._journal = []
        return self._journal, self._next

    def roll_back(self, key: Any, saved: Any) -> None:
        """See `StateTable.put_back`."""
        changes = self._changes
        if saved is None:
            for timer in [t for t in changes if t[1] is key or t[1] == key]:
                del changes[timer]
            return
        journal, self._next = saved
        for timer, wanted in reversed(journal):
            if wanted is None:
                changes.pop(timer, None)
            else:
                changes[timer] = wanted
        journal.clear()

    def _stage(self) -> None:
        """Bring the store up to date, for a scan."""
        if self.cached():
            self._store.write(self.drain())

    def _look(self, start: int) -> int:
        """Time of the earliest timer from `start` on."""
        self._stage()
        earliest, at = NEVER, time_bytes(start)
        for group in self._groups:
            prefix = self._prefix + group.to_bytes(2, "big")
            for entry, _ in self._store.scan(prefix, prefix + at):
                earliest = min(earliest, time_of(entry[4:12]))
                break
        return earliest

    def _read_next_time(self) -> int | None:
        found = self._store.get(NEXT_TIME_PREFIX + self._name.encode())
        if found is None:
            return None
        return time_of(found) if found else NEVER

    def _checked(self, time: Any) -> int:
        if self._current.key is NO_KEY:
            raise StateAccessError(
                "timers can only be set while a key is set, and deleted likewise: open() and "
                "close() have no current key; use them while processing an element of a keyed "
                "stream"
            )
        if not isinstance(time, int) or isinstance(time, bool):
            raise TypeError(
                f"the time of a timer is a whole number of milliseconds, an int, not {time!r} "
                f"({type(time).__name__})"
            )
        if not FIRST_TIME <= time <= LAST_TIME:
            raise StateValueError(
                f"the time of a timer has to fit into 64 bits; {time} does not. Times are in "
                "milliseconds since 1970"
            )
        return int(time)


class _Pass:
    """One way through the due timers.

    A chunk holds the next timers up to the **horizon**, its last one; no scan is open while
    it is given out. Timers that are set meanwhile join it if they lie before the horizon;
    the others are found in the store when the next chunk is read.
    """

    __slots__ = (
        "_at",
        "_chunk",
        "_gone",
        "_groups",
        "_held",
        "_horizon",
        "_joined",
        "_joined_places",
        "_latest",
        "_look_again",
        "_next",
        "_outdated",
        "_places",
        "_table",
        "_until",
    )

    def __init__(self, table: TimerTable, until: int, registered_until: int) -> None:
        self._table = table
        self._until = until
        self._latest = min(until, registered_until)
        """Largest time of a timer that may join the pass."""
        self._groups: list[int] = list(table._groups)
        """Key groups that may have more."""
        self._horizon: bytes | None = None
        self._places: list[bytes] = []
        self._chunk: list[Timer] = []
        self._at = 0
        """Where in the chunk the pass is."""
        self._joined: list[tuple[bytes, Identity]] = []
        """A heap of timers that joined."""
        self._joined_places: set[bytes] = set()
        self._gone: set[bytes] = set()
        """Places, ahead in the chunk or the heap, of deleted timers."""
        self._held: set[Identity] = set()
        """Timers that were set too late to join, but would be due."""
        self._outdated = False
        """Whether the store lacks changes that matter to the pass."""
        self._next = NEVER
        """Earliest time seen that stays pending."""
        self._look_again = False
        """Whether what was seen to stay pending may have been deleted."""

    def timers(self) -> Iterator[Timer]:
        """The due timers."""
        table = self._table
        while True:
            self._read_chunk()
            while (timer := self._take()) is not None:
                yield timer
                if table._changes:
                    self.follow_changes()
            if self._horizon is None:
                return

    def next_time(self) -> int:
        """Time of the earliest timer that stays pending, at the end of the pass."""
        if self._look_again:
            return self._table._look(max(FIRST_TIME, min(self._latest + 1, LAST_TIME)))
        return self._next

    def _take(self) -> Timer | None:
        """The next timer, which is pending no more; None at the end of the chunk."""
        table, places = self._table, self._places
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
            table._fired.append(place)
            table._settled.pop(timer, None)
            return timer

    def _read_chunk(self) -> None:
        table = self._table
        if self._horizon is not None:
            table._evict_if_full()
        if self._outdated:
            table._stage()
            self._groups, self._outdated = list(table._groups), False
        places = self._read_places()
        chunk = table._layout.timers(places)
        # Not by the timers that are left: the horizon is where the store was read to.
        self._horizon = places[-1] if len(places) == CHUNK else None
        if self._held:
            kept = [i for i, timer in enumerate(chunk) if timer not in self._held]
            places, chunk = [places[i] for i in kept], [chunk[i] for i in kept]
        self._places, self._chunk, self._at = places, chunk, 0
        table._current.start_batch([timer.key for timer in chunk])
        if table.announce is not None:
            table.announce(chunk)

    def _read_places(self) -> list[bytes]:
        done: set[int] = set()
        streams = [self._places_in(group, done) for group in self._groups]
        places = list(islice(merge(*streams), CHUNK))
        self._groups = [group for group in self._groups if group not in done]
        return places

    def _places_in(self, group: int, done: set[int]) -> Iterator[bytes]:
        prefix = self._table._prefix + group.to_bytes(2, "big")
        start = self._start_in(group)
        # No key group has a number that high.
        last = time_bytes(self._until) + b"\xff\xff"
        if start is not None:
            for entry, _ in self._table._store.scan(prefix, prefix + start):
                place = place_of(entry)
                if place > last:
                    self._next = min(self._next, time_of(place[:8]))
                    break
                yield place
        done.add(group)

    def _start_in(self, group: int) -> bytes | None:
        """Where a group's entries behind the horizon begin; None if none can be there."""
        horizon = self._horizon
        if horizon is None:
            return time_bytes(self._table._next)
        time, last_group = horizon[:8], int.from_bytes(horizon[8:10], "big")
        if group == last_group:
            return time + horizon[10:] + b"\x00"
        if group > last_group:
            return time
        following = time_of(time) + 1
        return time_bytes(following) if following <= LAST_TIME else None

    def follow_changes(self) -> None:
        """Take note of timers that were set and deleted meanwhile."""
        table = self._table
        changes, table._changes = table._changes, {}
        for timer, wanted in changes.items():
            if wanted:
                self._follow_set(timer)
            else:
                self._follow_deleted(timer)
            table._settled[timer] = wanted

    def _follow_set(self, timer: Identity) -> None:
        time = timer[0]
        if time > self._until:
            self._next = min(self._next, time)
            return
        place = self._place_before_horizon(timer)
        if time <= self._latest:
            self._join(place, timer)
        elif self._is_new(place, timer):
            self._held.add(timer)
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
        """Place of the timer; None if it lies behind the horizon."""
        horizon = self._horizon
        if horizon is not None and time_bytes(timer[0]) > horizon[:8]:
            return None
        place = self._table._layout.place(timer)
        return place if horizon is None or place <= horizon else None

    def _is_ahead(self, place: bytes) -> bool:
        """Whether a timer of that place is still to come in the chunk, or has joined it."""
        at = bisect_left(self._places, place, self._at)
        return place in self._joined_places or self._places[at : at + 1] == [place]

    def _is_new(self, place: bytes | None, timer: Identity) -> bool:
        """Whether a timer that was set was not pending before."""
        if place is not None:
            return place in self._gone or not self._is_ahead(place)
        settled = self._table._settled.get(timer)
        if settled is not None:
            return not settled
        return self._table._store.get(self._table._layout.entry(timer)) is None

    def _join(self, place: bytes | None, timer: Identity) -> None:
        if place is None:
            self._outdated = True
        elif place in self._gone:
            self._gone.discard(place)
        elif not self._is_ahead(place):
            heappush(self._joined, (place, timer))
            self._joined_places.add(place)
            if len(self._joined) > CHUNK:
                self._draw_horizon_in()

    def _draw_horizon_in(self) -> None:
        """Leave half of the timers that have joined, and what lies behind, to the store."""
        self._joined.sort()
        horizon = self._horizon = self._joined[CHUNK // 2][0]
        # Of a sorted list, every beginning is a heap.
        del self._joined[CHUNK // 2 + 1 :]
        self._joined_places = {place for place, _ in self._joined}
        cut = bisect_right(self._places, horizon, self._at)
        del self._places[cut:], self._chunk[cut:]
        self._gone = {place for place in self._gone if place <= horizon}
        self._outdated = True
