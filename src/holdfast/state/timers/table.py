"""Timers of one operator, subtask and time domain, sorted by time.

They are entries in the operator's store (`state/timers/layout.py`). The store also has a
lower bound of their times, so an epoch in which no timer is due reads nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from typing_extensions import override

from holdfast.errors import StateAccessError, StateValueError
from holdfast.state.table import NO_KEY, StateTable
from holdfast.state.timers.due import DueTimers, StoredTimers, TimerChanges
from holdfast.state.timers.layout import (
    FIRST_TIME,
    LAST_TIME,
    NEVER,
    NEXT_TIME_PREFIX,
    Timer,
    TimerLayout,
    time_bytes,
    time_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from holdfast.state.timers.layout import Identity

__all__ = ["EVENT_TIMERS", "PROCESSING_TIMERS", "TIMER_NAMES", "Timer", "TimerTable"]

EVENT_TIMERS: Final = "timers:event"
"""Name of the state with event-time timers."""
PROCESSING_TIMERS: Final = "timers:processing"
"""Name of the state with processing-time timers."""
TIMER_NAMES: Final = frozenset({EVENT_TIMERS, PROCESSING_TIMERS})
"""Reserved names, which user state cannot have."""
KIND: Final = "timers"
"""Kind of these states in the catalog."""


class TimerTable(StateTable):
    """The timers of one operator, subtask and time domain."""

    __slots__ = (
        "_at_once",
        "_changes",
        "_due",
        "_evict_if_full",
        "_fresh",
        "_journal",
        "_next",
        "_stored",
        "_written",
        "announce",
    )

    def __init__(
        self,
        *args: Any,
        key_groups: range,
        evict_if_full: Callable[[], None],
        known: bool,
        at_once: int,
    ) -> None:
        """See `StateTable`.

        Args:
            *args: As of `StateTable`.
            key_groups: Key groups of the subtask.
            evict_if_full: Called between two chunks of timers, where caches may be evicted.
            known: Whether the state is already in the store.
            at_once: Maximum number of timers in memory to fire.
        """
        super().__init__(*args)
        self._at_once = at_once
        self._evict_if_full = evict_if_full
        self._due: DueTimers | None = None
        """The current pass over due timers."""
        self.announce: Callable[[list[Timer]], None] | None = None
        """Called with the next timers, so that their state can be read at once."""
        layout = TimerLayout(self._prefix, self._encoder)
        self._stored = StoredTimers(self._store, self._prefix, layout, key_groups)
        self._changes = TimerChanges()
        self._fresh = self._changes.fresh
        self._journal: list[tuple[Identity, bool | None]] | None = None
        """Changes since the last `save_point`, and the values that they replaced."""
        self._written: int | None = None
        """Lower bound of pending times in the store."""
        self._next = NEVER
        if known:
            self.reload()

    @property
    def next_time(self) -> int | None:
        """Lower bound of pending times; None if no timer is pending.

        Exact after a complete pass of `due`; setting a timer may lower it.
        """
        return None if self._next == NEVER else self._next

    def register(self, time: int, namespace: bytes = b"") -> None:
        """Set a timer for the current key; does nothing if it is already set.

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
            self._journal.append((timer, self._fresh.get(timer)))
        self._fresh[timer] = True
        if time < self._next:
            self._next = time

    def delete(self, time: int, namespace: bytes = b"") -> None:
        """Delete a timer of the current key; does nothing if it is not set.

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
            self._journal.append((timer, self._fresh.get(timer)))
        self._fresh[timer] = False

    def due(self, until: int, registered_until: int | None = None) -> Iterator[Timer]:
        """Iterate over timers up to a time, in order; each is deleted when yielded.

        Between two timers, the caller may set and delete timers and use any state. The keys of
        the next timers are announced as a batch; the caller sets the current key.

        Args:
            until: Largest time of the timers to fire.
            registered_until: Largest time of timers set during the pass that fire in it; at
                most `until`, and `until` if None.
        """
        until = min(until, LAST_TIME)
        if until < self._next:
            return
        self._write_changes()
        due = self._due = DueTimers(
            self._stored,
            self._changes,
            self._write_changes,
            start=self._next,
            until=until,
            registered_until=until if registered_until is None else registered_until,
            at_once=self._at_once,
        )
        try:
            while True:
                chunk = due.read_chunk()
                self._current.start_batch([timer.key for timer in chunk])
                if self.announce is not None:
                    self.announce(chunk)
                yield from due.timers()
                if not due.has_more:
                    break
                self._evict_if_full()
            self._next = due.next_time()
            self._current.start_batch([])
        finally:
            if self._due is due:
                self._due = None

    @override
    def drain(self) -> list[tuple[bytes, bytes | None]]:
        if self._due is not None:
            self._due.follow_changes()
        layout, settled, fired = self._stored.layout, self._changes.settled, self._changes.fired
        writes: list[tuple[bytes, bytes | None]] = [
            (layout.entry_at(place), None) for place in fired
        ]
        changes = settled | self._fresh if settled else self._fresh
        values = [b"" if wanted else None for wanted in changes.values()]
        writes += zip(layout.entries(list(changes)), values, strict=True)
        if self._next != self._written:
            key = NEXT_TIME_PREFIX + self.name.encode()
            writes.append((key, b"" if self._next == NEVER else time_bytes(self._next)))
            self._written = self._next
        self._changes.clear()
        self._journal = None
        return writes

    @override
    def reload(self) -> None:
        super().reload()
        self._written = self._read_next_time()
        if self._written is None:
            self._next = self._stored.earliest(FIRST_TIME)
        else:
            self._next = self._written

    @override
    def cached(self) -> int:
        return len(self._changes)

    def save_point(self, key: Any) -> object:
        """See `StateTable.save_point`; only the last one can be rolled back to."""
        if key is NO_KEY:
            return None
        self._journal = []
        return self._journal, self._next

    @override
    def roll_back(self, key: Any, saved: Any) -> None:
        changes = self._fresh
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

    def _write_changes(self) -> None:
        """Write all changes to the store, for a scan."""
        if self._changes:
            self._store.write(self.drain())

    def _read_next_time(self) -> int | None:
        found = self._store.get(NEXT_TIME_PREFIX + self.name.encode())
        if found is None:
            return None
        return time_of(found) if found else NEVER

    def _checked(self, time: Any) -> int:
        if self._current.key is NO_KEY:
            raise StateAccessError(
                "timers can only be set and deleted while a key is set: open() and "
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
                f"the time of a timer must fit into 64 bits; {time} does not. Times are in "
                "milliseconds since 1970"
            )
        return int(time)
