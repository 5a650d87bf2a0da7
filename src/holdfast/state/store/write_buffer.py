"""Uncommitted changes of an epoch.

Stores keep an epoch's changes in memory and write them at the commit. So an abort has
nothing to undo, and a commit that runs out of disk space can be retried.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from itertools import chain
from typing import TYPE_CHECKING, Final

from holdfast.errors import StateValueError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

MAX_BYTES: Final = 2**31 - 1
"""Maximum size of keys and values, in bytes."""

_MISSING: Final = object()

# Up to this many new keys, inserting them one by one into a sorted list beats merging,
# whatever its length: the cost of both is proportional to it.
INSERT_UP_TO: Final = 256


class WriteBuffer:
    """Changes by key, None for a deletion; sorted on demand."""

    __slots__ = ("_insert_up_to", "_sorted", "_unsorted", "entries")

    def __init__(self, insert_up_to: int = INSERT_UP_TO) -> None:
        """No changes."""
        self._insert_up_to = insert_up_to
        self.entries: dict[bytes, bytes | None] = {}
        """All changes; do not modify."""
        self._sorted: list[bytes] = []
        self._unsorted: list[list[bytes]] = []
        """Distinct keys added since the last sort."""

    def put(self, items: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Add changes: all, or none if one is invalid.

        Raises:
            StateValueError: A key is empty, or a key or value is too large.
        """
        fresh = dict(items)
        _check(fresh)
        if self._sorted:
            self._unsorted.append([key for key in fresh if key not in self.entries])
        if self.entries:
            self.entries.update(fresh)
        else:
            self.entries = fresh

    def overlay(self, keys: Sequence[bytes], committed: list[bytes | None]) -> list[bytes | None]:
        """Values of `keys`, with the changes applied to the committed values."""
        staged = self.entries
        if not staged:
            return committed
        return [
            old if (new := staged.get(key, _MISSING)) is _MISSING else new  # type: ignore[misc]
            for key, old in zip(keys, committed, strict=True)
        ]

    def merge(
        self, prefix: bytes, committed: Iterator[tuple[bytes, bytes]], start: bytes = b""
    ) -> Iterator[tuple[bytes, bytes]]:
        """Committed entries under `prefix` with the changes from `start` on, in key order."""
        changed = self._with_prefix(prefix, start)
        if not changed:
            return committed
        return _merged(committed, self._sorted, changed, self.entries)

    def in_order(self) -> list[bytes]:
        """All changed keys in order; do not modify."""
        self._sort()
        return self._sorted

    def clear(self) -> None:
        """Drop all changes."""
        self.entries, self._sorted, self._unsorted = {}, [], []

    def _with_prefix(self, prefix: bytes, start: bytes) -> range:
        """Positions of a scan's keys among the sorted keys."""
        if not self.entries:
            return range(0)
        self._sort()
        ordered = self._sorted
        first = bisect_left(ordered, max(prefix, start))
        end_key = after_prefix(prefix)
        end = len(ordered) if end_key is None else bisect_left(ordered, end_key, first)
        return range(first, end)

    def _sort(self) -> None:
        # Some programs alternate scans and small writes: a full sort for each scan would make
        # an epoch quadratic.
        new = sum(map(len, self._unsorted))
        if not self._sorted:
            self._sorted = sorted(self.entries)
        elif new > self._insert_up_to:
            # Sorting detects sorted runs and only merges them.
            self._sorted = sorted(chain(self._sorted, *map(sorted, self._unsorted)))
        else:
            for batch in self._unsorted:
                for key in batch:
                    insort(self._sorted, key)
        self._unsorted = []


def after_prefix(prefix: bytes) -> bytes | None:
    """Smallest key after all keys that start with `prefix`; None if there is none."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes([stem[-1] + 1]) if stem else None


def _check(fresh: dict[bytes, bytes | None]) -> None:
    if b"" in fresh:
        raise StateValueError("the key of a state entry is empty; keys have at least one byte")
    # Two passes in C; only if one fails, look for the bad entry.
    largest = max(map(len, filter(None, fresh.values())), default=0)
    if largest <= MAX_BYTES and max(map(len, fresh), default=0) <= MAX_BYTES:
        return
    for key, value in fresh.items():
        for what, size in (("key", len(key)), ("value", len(value or b""))):
            if size > MAX_BYTES:
                raise StateValueError(
                    f"a {what} of {size:,} bytes cannot be stored (key {key[:40]!r}): the limit is "
                    f"{MAX_BYTES:,} bytes. Split it, for example into a MapState or ListState"
                )


def _merged(
    committed: Iterator[tuple[bytes, bytes]],
    changed: list[bytes],
    places: range,
    staged: dict[bytes, bytes | None],
) -> Iterator[tuple[bytes, bytes]]:
    place, stop = places.start, places.stop
    for key, value in committed:
        while place < stop and changed[place] < key:
            new = staged[changed[place]]
            if new is not None:
                yield changed[place], new
            place += 1
        if place < stop and changed[place] == key:
            new = staged[key]
            place += 1
            if new is not None:
                yield key, new
        else:
            yield key, value
    for rest in range(place, stop):
        key = changed[rest]
        new = staged[key]
        if new is not None:
            yield key, new
