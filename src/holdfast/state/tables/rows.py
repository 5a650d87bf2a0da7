"""Converts entries of a store to rows of a table, still as bytes.

An entry is a row; for a list, each element is a row. Positions count through all chunks of a
key's list.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from holdfast.errors import StateError
from holdfast.serde.key_reader import KEY_AT, length_prefixed
from holdfast.state.list import unpack_chunk
from holdfast.state.timers.layout import stored_times

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    Entry = tuple[bytes, bytes]

T = TypeVar("T")
"""Type of the items."""


@dataclass(frozen=True)
class Portion:
    """How much of a table is processed at once, which is the size of a row group."""

    rows: int = 50_000
    """Maximum number of rows."""
    bytes: int = 16 * 1024 * 1024
    """Approximate size of keys and values."""


PORTION: Final = Portion()

_TIMER_KEY_AT: Final = 12
_KINDS: Final = {"reducing": "value", "aggregating": "value"}


@dataclass(slots=True)
class Rows:
    """Rows as columns: lists, or None if the table does not have the column."""

    groups: list[bytes]
    """Key groups, 2 bytes each."""
    keys: list[bytes]
    namespaces: list[bytes]
    positions: list[int] | None = None
    map_keys: list[bytes | None] | None = None
    times: list[int] | None = None
    values: list[bytes | None] | None = None

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.keys)

    def part(self, start: int, stop: int) -> Rows:
        """Some of the rows."""
        columns: dict[str, Any] = {one.name: getattr(self, one.name) for one in fields(self)}
        return Rows(**{name: c and c[start:stop] for name, c in columns.items()})

    def size(self, row: int) -> int:
        """Approximate size of a row in bytes."""
        value = self.values[row] if self.values else None
        return len(self.keys[row]) + len(value or b"")


@dataclass(frozen=True, slots=True)
class TableKind:
    """Kind of a table of keyed state, which decides its columns."""

    kind: str
    """`value`, `list`, `map` or `timers`."""
    timed: bool

    @staticmethod
    def of(entry: dict[str, Any]) -> TableKind:
        """Kind of the state with this catalog entry."""
        kind = _KINDS.get(entry["kind"], entry["kind"])
        if kind not in ("value", "list", "map", "timers"):
            raise StateError(
                f"state {entry.get('name')!r} is of a kind that this Holdfast does not know, "
                f"{kind!r}; run the Holdfast that wrote it"
            )
        return TableKind(kind, bool(entry.get("ttl")))


def read_rows(
    kind: TableKind, entries: Iterable[Entry], portion: Portion = PORTION
) -> Iterator[Rows]:
    """The rows of a state's entries, a bounded number at a time."""
    read: Callable[[list[Entry]], Rows] = partial(_plain, kind)
    if kind.kind == "list":
        read = _Lists(kind.timed)
    elif kind.kind == "timers":
        read = _timers
    for some in bounded(entries, lambda entry: len(entry[0]) + len(entry[1]), portion):
        rows = read(some)
        yield from (rows.part(a, b) for a, b in _parts(rows, portion))


def bounded(
    items: Iterable[T], size: Callable[[T], int], portion: Portion = PORTION
) -> Iterator[list[T]]:
    """The items in lists, none of which is larger than a portion."""
    some: list[T] = []
    total = 0
    for item in items:
        some.append(item)
        total += size(item)
        if len(some) >= portion.rows or total >= portion.bytes:
            yield some
            some, total = [], 0
    if some:
        yield some


def _parts(rows: Rows, portion: Portion) -> Iterator[tuple[int, int]]:
    """Bounds of parts of bounded size."""
    if len(rows) <= portion.rows:
        # Except for lists, a row is an entry, and entries were counted already.
        sizes = map(rows.size, range(len(rows))) if rows.positions is not None else ()
        if sum(sizes) <= 2 * portion.bytes:
            yield 0, len(rows)
            return
    start = total = 0
    for row in range(len(rows)):
        if row > start and (row - start >= portion.rows or total >= portion.bytes):
            yield start, row
            start, total = row, 0
        total += rows.size(row)
    yield start, len(rows)


def _heads(entries: list[Entry]) -> tuple[Rows, list[bytes]]:
    """Rows without values, and the rest of each key after the namespace."""
    rows, rests = Rows([], [], []), list[bytes]()
    groups, keys, namespaces = rows.groups, rows.keys, rows.namespaces
    for store_key, _ in entries:
        length = store_key[KEY_AT]
        if length < 0x80:
            end = KEY_AT + 1 + length
            keys.append(store_key[KEY_AT + 1 : end])
        else:
            key, end = length_prefixed(store_key, KEY_AT)
            keys.append(key)
        groups.append(store_key[2:4])
        if store_key[end]:
            namespace, end = length_prefixed(store_key, end)
            namespaces.append(namespace)
            rests.append(store_key[end:])
        else:
            namespaces.append(b"")
            rests.append(store_key[end + 1 :])
    return rows, rests


def _plain(kind: TableKind, entries: list[Entry]) -> Rows:
    """Rows of values and maps: one per entry."""
    rows, rests = _heads(entries)
    stored = [value for _, value in entries]
    is_map = kind.kind == "map"
    if is_map:
        rows.map_keys = [own[1:] if own[0] else None for own in rests]
    if kind.timed:
        rows.times, rows.values = _without_times([v[1:] for v in stored] if is_map else stored)
    elif is_map:
        rows.values = [value[1:] if value[0] else None for value in stored]
    else:
        rows.values = list(stored)
    return rows


def _timers(entries: list[Entry]) -> Rows:
    # Without its time, the entry of a timer has the layout of a value.
    rows, _ = _heads([(key[:4] + key[_TIMER_KEY_AT:], value) for key, value in entries])
    rows.times = stored_times([key[4:_TIMER_KEY_AT] for key, _ in entries])
    return rows


class _Lists:
    """Reads the chunks of lists; keeps the position in the last list."""

    def __init__(self, timed: bool) -> None:
        self._timed = timed
        self._list: tuple[bytes, bytes, bytes] | None = None
        self._next = 0

    def __call__(self, entries: list[Entry]) -> Rows:
        heads, _ = _heads(entries)
        rows, elements = Rows([], [], [], positions=[]), list[bytes]()
        assert rows.positions is not None
        for own, (_, chunk) in zip(
            zip(heads.groups, heads.keys, heads.namespaces, strict=True), entries, strict=True
        ):
            found = unpack_chunk(chunk)
            if own != self._list:
                self._list, self._next = own, 0
            count = len(found)
            rows.groups += [own[0]] * count
            rows.keys += [own[1]] * count
            rows.namespaces += [own[2]] * count
            rows.positions += range(self._next, self._next + count)
            elements += found
            self._next += count
        if self._timed:
            rows.times, rows.values = _without_times(elements)
        else:
            rows.values = list(elements)
        return rows


def _without_times(blobs: list[bytes]) -> tuple[list[int], list[bytes | None]]:
    """Times and values of stored values with times."""
    values = [data[9:] if data[8] else None for data in blobs]
    return stored_times([data[:8] for data in blobs]), values
