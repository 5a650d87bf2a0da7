"""States with TTL: each wraps a plain state whose values are pairs with a time.

An entry expires when its time is at least the time to live ago. Reading an expired entry
removes it, and may return it once more, as configured. `state/ttl/sweep.py` removes entries
that are not read.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.api.names import public_name
from holdfast.api.state import ListState, MapState, ValueState
from holdfast.api.ttl import StateTtlConfig
from holdfast.clock import SystemClock, monotonic
from holdfast.errors import StateValueError
from holdfast.state.timers.layout import FIRST_TIME
from holdfast.state.value import ReducingValue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from holdfast.clock import Clock
    from holdfast.state.list import ListTable
    from holdfast.state.map import MapTable
    from holdfast.state.value import ValueTable


class Expiry:
    """Base of all states with TTL."""

    __slots__ = ("_now", "_renews", "_returns_expired", "_stamp", "_table", "_ttl", "accesses")

    def __init__(self, table: Any, config: StateTtlConfig, time: TtlTime) -> None:
        """Keep pairs of a time and a value in `table`; expire them as configured, by `time`."""
        self._table = table
        self._ttl = config.ttl_ms
        self._now = time.now
        self._stamp = time.stamp
        self._renews = config.update_type is StateTtlConfig.UpdateType.OnReadAndWrite
        self._returns_expired = (
            config.state_visibility is StateTtlConfig.StateVisibility.ReturnExpiredIfNotCleanedUp
        )
        self.accesses = 0
        """Number of reads and writes."""

    def clear(self) -> None:
        """Remove the state for the current key."""
        self.accesses += 1
        self._table.clear()

    def evict(self) -> None:
        """Empty the cache, since a sweep has changed entries in the store."""
        self._table.evict()


@public_name("ValueState")
class TtlValue(Expiry, ValueState[Any]):
    """A value that expires."""

    __slots__ = ()
    _table: ValueTable

    def value(self) -> Any:
        """Value for the current key, or None if it was never set or has expired."""
        self.accesses += 1
        pair = self._table.value()
        if pair is None:
            return None
        time, value = pair
        # An unknown time is the smallest one, and does not expire.
        if time + self._ttl <= self._now() and time != FIRST_TIME:
            self._table.clear()
            return value if self._returns_expired else None
        if self._renews:
            stamp = self._stamp()
            if stamp > time:
                self._table.update((stamp, value))
        return value

    def update(self, value: Any) -> None:
        """Set the value for the current key; None clears it."""
        self.accesses += 1
        if value is None:
            self._table.clear()
        else:
            self._table.update((self._stamp(), value))


@public_name("ReducingState")
class TtlReducing(ReducingValue):
    """A reduced value that expires; every `add` renews its time."""

    __slots__ = ("_name",)

    def __init__(self, name: str, table: TtlValue, reduce: Callable[[Any, Any], Any]) -> None:
        """Fold into `table` with `reduce(old, new)`."""
        super().__init__(table, reduce)
        self._name = name

    def add(self, value: Any) -> None:
        """Fold `value` in; after expiry it is the first value."""
        if value is None:
            raise StateValueError(
                f"state {self._name!r}: a reducing state with a time to live cannot add None; "
                "call clear() to empty it"
            )
        super().add(value)


@public_name("ListState")
class TtlList(Expiry, ListState[Any]):
    """A list whose elements expire one by one."""

    __slots__ = ()
    _table: ListTable

    def get(self) -> list[Any]:
        """Elements for the current key that have not expired, in a new list."""
        self.accesses += 1
        pairs = self._table.get()
        if not pairs:
            return []
        limit = self._now() - self._ttl
        alive = [pair for pair in pairs if pair[0] > limit or pair[0] == FIRST_TIME]
        if not alive:
            self._table.clear()
        elif self._renews:
            self._renew(alive, len(pairs))
        return [value for _, value in (pairs if self._returns_expired else alive)]

    def _renew(self, alive: list[tuple[int, Any]], count: int) -> None:
        stamp = self._stamp()
        if len(alive) < count or any(time < stamp for time, _ in alive):
            self._table.update([(max(time, stamp), value) for time, value in alive])

    def add(self, value: Any) -> None:
        """Append one element."""
        self.accesses += 1
        # The table refuses None.
        self._table.add(None if value is None else (self._stamp(), value))

    def add_all(self, values: Iterable[Any]) -> None:
        """Append all of `values`, or none if one is invalid."""
        self.accesses += 1
        self._table.add_all(self._stamped(values))

    def update(self, values: Iterable[Any]) -> None:
        """Replace the list; all elements get the current time."""
        self.accesses += 1
        self._table.update(self._stamped(values))

    def _stamped(self, values: Iterable[Any]) -> Any:
        stamp = self._stamp()
        return (
            None
            if values is None
            else [None if value is None else (stamp, value) for value in values]
        )


@public_name("MapState")
class TtlMap(Expiry, MapState[Any, Any]):
    """A map whose entries expire one by one."""

    __slots__ = ()
    _table: MapTable

    def get(self, key: Any) -> Any:
        """Value under `key`, or None."""
        pair = self._read(key)
        return None if pair is None else pair[1]

    def contains(self, key: Any) -> bool:
        """Whether `key` has an entry; counts as a read."""
        return self._read(key) is not None

    def _read(self, key: Any) -> tuple[int, Any] | None:
        self.accesses += 1
        pair: tuple[int, Any] | None = self._table.get(key)
        if pair is None:
            return None
        time, value = pair
        if time + self._ttl <= self._now() and time != FIRST_TIME:
            self._table.remove(key)
            return pair if self._returns_expired else None
        if self._renews:
            stamp = self._stamp()
            if stamp > time:
                self._table.put(key, (stamp, value))
        return pair

    def put(self, key: Any, value: Any) -> None:
        """Set the value under `key`."""
        self.accesses += 1
        self._table.put(key, (self._stamp(), value))

    def put_all(self, entries: Mapping[Any, Any]) -> None:
        """Set all of `entries`, or none if one is invalid."""
        self.accesses += 1
        stamp = self._stamp()
        stamped = None if entries is None else {k: (stamp, v) for k, v in entries.items()}
        self._table.put_all(stamped)

    def remove(self, key: Any) -> None:
        """Remove the entry under `key`."""
        self.accesses += 1
        self._table.remove(key)

    def items(self) -> Iterator[tuple[Any, Any]]:
        """Current entries that have not expired; counts as a read of all."""
        self.accesses += 1
        limit, table, given = self._now() - self._ttl, self._table, []
        stamp = self._stamp() if self._renews else FIRST_TIME
        for key, (time, value) in table.items():
            if time <= limit and time != FIRST_TIME:
                table.remove(key)
                if not self._returns_expired:
                    continue
            elif stamp > time:
                table.put(key, (stamp, value))
            given.append((key, value))
        return iter(given)

    def is_empty(self) -> bool:
        """Whether there is no entry; expired entries that are not yet removed count."""
        self.accesses += 1
        return self._table.is_empty()


class TtlTime(Protocol):
    """Clock of states with TTL, in milliseconds."""

    def now(self) -> int:
        """Current time for expiry; `FIRST_TIME` if unknown."""

    def stamp(self) -> int:
        """Time of a new entry; `FIRST_TIME` if unknown."""


class ClockTime:
    """Processing time."""

    __slots__ = ("now", "stamp")

    def __init__(self, clock: Clock) -> None:
        """Use the time of `clock`."""
        # Bound to the clock's method: every access calls it.
        self.now = self.stamp = clock.now_ms


@dataclass(frozen=True, slots=True)
class TtlContext:
    """Clocks and settings for states with TTL."""

    processing: TtlTime = field(default_factory=lambda: ClockTime(SystemClock()))
    event: TtlTime | None = None
    """None if elements have no event time."""
    records: Callable[[], int] = lambda: 0
    """Number of records of the operator in this epoch."""
    incremental_snapshots: bool = False
    """Whether snapshots share files, so that removing entries before one saves nothing."""
    seconds: Callable[[], float] = monotonic
    """Measures how long a sweep takes."""
