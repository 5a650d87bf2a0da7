"""What an epoch has changed in a store and not committed yet.

Both stores keep an epoch's changes in memory and write them in one go at the end:
an abort has nothing to undo, and a write that runs out of room can be tried again.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import TYPE_CHECKING, Final

from holdfast.errors import StateValueError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

MAX_BYTES: Final = 2**31 - 1
"""Largest key and largest value that a store holds, in bytes."""

_MISSING: Final = object()

# Keeping a sorted list sorted key by key beats sorting it anew up to this share of new keys.
_SORT_ANEW_FROM: Final = 1 / 64


class StagedEntries:
    """Changes by key, where None stands for a deletion; sorted when asked for."""

    __slots__ = ("_sorted", "_unsorted", "entries")

    def __init__(self) -> None:
        """No changes."""
        self.entries: dict[bytes, bytes | None] = {}
        """All changes; not to be modified from outside."""
        self._sorted: list[bytes] = []
        self._unsorted: list[dict[bytes, bytes | None]] = []

    def stage(self, items: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Add changes, all or, if one of them is refused, none.

        Raises:
            StateValueError: A key is empty, or a key or value is too large.
        """
        fresh = dict(items)
        _check(fresh)
        if self._sorted:
            self._unsorted.append(fresh)
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
        self, prefix: bytes, committed: Iterator[tuple[bytes, bytes]]
    ) -> Iterator[tuple[bytes, bytes]]:
        """Committed entries under `prefix`, in key order, with the changes among them."""
        changed = self._with_prefix(prefix)
        return _merged(committed, changed, self.entries) if changed else committed

    def in_order(self) -> list[bytes]:
        """All changed keys in order."""
        return sorted(self.entries)

    def clear(self) -> None:
        """Forget all changes."""
        self.entries, self._sorted, self._unsorted = {}, [], []

    def _with_prefix(self, prefix: bytes) -> list[bytes]:
        if not self.entries:
            return []
        self._sort()
        ordered = self._sorted
        start = bisect_left(ordered, prefix)
        end_key = after_prefix(prefix)
        end = len(ordered) if end_key is None else bisect_left(ordered, end_key, start)
        return ordered[start:end]

    def _sort(self) -> None:
        # Scans alternate with small writes in some programs: a full sort for each of them
        # would make an epoch quadratic.
        new = sum(map(len, self._unsorted))
        if not self._sorted or new > len(self._sorted) * _SORT_ANEW_FROM:
            self._sorted = self.in_order()
        else:
            for batch in self._unsorted:
                for key in batch:
                    place = bisect_left(self._sorted, key)
                    if self._sorted[place : place + 1] != [key]:
                        insort(self._sorted, key, lo=place)
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
    staged: dict[bytes, bytes | None],
) -> Iterator[tuple[bytes, bytes]]:
    place, stop = 0, len(changed)
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
    for key in changed[place:]:
        new = staged[key]
        if new is not None:
            yield key, new
