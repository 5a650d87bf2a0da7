"""What an epoch has changed in a store and not committed yet.

Both stores keep an epoch's changes in memory and write them in one go at the end:
an abort has nothing to undo, and a write that runs out of room can be tried again.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from itertools import chain
from typing import TYPE_CHECKING, Final

from holdfast.errors import StateValueError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

MAX_BYTES: Final = 2**31 - 1
"""Largest key and largest value that a store holds, in bytes."""

_MISSING: Final = object()

# Up to so many new keys, putting one by one into a sorted list beats merging, at any length:
# both cost in proportion to it.
_INSERT_UP_TO: Final = 256


class WriteBuffer:
    """Changes by key, where None stands for a deletion; sorted when asked for."""

    __slots__ = ("_sorted", "_unsorted", "entries")

    def __init__(self) -> None:
        """No changes."""
        self.entries: dict[bytes, bytes | None] = {}
        """All changes; not to be modified from outside."""
        self._sorted: list[bytes] = []
        self._unsorted: list[list[bytes]] = []
        """Keys, all different, that came after the others were sorted."""

    def stage(self, items: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Add changes, all or, if one of them is refused, none.

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
        """Values of `keys`, given the committed ones."""
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
        """Committed entries under `prefix`, in key order, with the changes from `start` on."""
        changed = self._with_prefix(prefix, start)
        if not changed:
            return committed
        return _merged(committed, self._sorted, changed, self.entries)

    def in_order(self) -> list[bytes]:
        """All changed keys in order; not to be modified."""
        self._sort()
        return self._sorted

    def clear(self) -> None:
        """Forget all changes."""
        self.entries, self._sorted, self._unsorted = {}, [], []

    def _with_prefix(self, prefix: bytes, start: bytes) -> range:
        """Places, among the sorted keys, of those that a scan is about."""
        if not self.entries:
            return range(0)
        self._sort()
        ordered = self._sorted
        first = bisect_left(ordered, max(prefix, start))
        end_key = after_prefix(prefix)
        end = len(ordered) if end_key is None else bisect_left(ordered, end_key, first)
        return range(first, end)

    def _sort(self) -> None:
        # Scans alternate with small writes in some programs: a full sort for each of them
        # would make an epoch quadratic.
        new = sum(map(len, self._unsorted))
        if not self._sorted:
            self._sorted = sorted(self.entries)
        elif new > _INSERT_UP_TO:
            # Sorting finds the runs that are in order already, and only merges them.
            self._sorted = sorted(chain(self._sorted, *map(sorted, self._unsorted)))
        else:
            for batch in self._unsorted:
                for key in batch:
                    insort(self._sorted, key)
        self._unsorted = []


def after_prefix(prefix: bytes) -> bytes | None:
    """Smallest key after all those that start with `prefix`; None if there is none."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes([stem[-1] + 1]) if stem else None


def _check(fresh: dict[bytes, bytes | None]) -> None:
    if b"" in fresh:
        raise StateValueError("the key of a state entry is empty; keys have at least one byte")
    # Two passes in C; the culprit is looked for only if there is one.
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
