"""From rows of a table to the entries of a store: the inverse of `rows.py`."""

from __future__ import annotations

from operator import lt
from typing import TYPE_CHECKING, Final

from holdfast.errors import StateError
from holdfast.state.list_table import pack_chunk
from holdfast.state.tables.key_columns import framed
from holdfast.state.timer_layout import time_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from holdfast.state.tables.rows import Rows, TableKind

    Entry = tuple[bytes, bytes]

_NONE: Final = b"\x00"
_SOME: Final = b"\x01"


def write_entries(
    kind: TableKind, prefix: bytes, parts: Iterable[Rows], where: str
) -> Iterator[list[Entry]]:
    """The entries of a state's rows, in the order of their keys.

    Args:
        kind: Kind of the table.
        prefix: What all keys begin with: the id of the state.
        parts: The rows, a bounded number at a time.
        where: Name of the table, for messages.

    Raises:
        StateError: The rows are not in order, or a value is missing.
    """
    chunks = _Chunks(where)
    last = b""
    for rows in parts:
        heads = _heads(prefix, rows)
        match kind.kind:
            case "timers":
                entries = _timers(rows, heads)
            case "list":
                entries = chunks.entries(rows, heads, _values(kind, rows, where))
            case "map":
                assert rows.map_keys is not None
                values = _values(kind, rows, where)
                own = [_NONE if key is None else _SOME + key for key in rows.map_keys]
                keys = [head + key for head, key in zip(heads, own, strict=True)]
                entries = list(zip(keys, values, strict=True))
            case _:
                entries = list(zip(heads, _values(kind, rows, where), strict=True))
        last = _require_order(entries, last, where)
        yield entries


def within(rows: Rows, key_groups: range, where: str) -> Rows:
    """Those of the rows that are of the key groups.

    Raises:
        StateError: Rows of others are between them.
    """
    first, last = (group.to_bytes(2, "big") for group in (key_groups.start, key_groups[-1]))
    kept = [row for row, group in enumerate(rows.groups) if first <= group <= last]
    if len(kept) == len(rows):
        return rows
    if not kept:
        return rows.part(0, 0)
    if kept[-1] - kept[0] >= len(kept):
        raise _disorder(where)
    return rows.part(kept[0], kept[-1] + 1)


def _heads(prefix: bytes, rows: Rows) -> list[bytes]:
    """Store keys up to the namespace."""
    framed_namespaces = {namespace: framed(namespace) for namespace in set(rows.namespaces)}
    return [
        prefix + group + framed(key) + framed_namespaces[namespace]
        for group, key, namespace in zip(rows.groups, rows.keys, rows.namespaces, strict=True)
    ]


def _timers(rows: Rows, heads: list[bytes]) -> list[Entry]:
    assert rows.times is not None
    return [
        (head[:4] + time_bytes(time) + head[4:], b"")
        for head, time in zip(heads, rows.times, strict=True)
    ]


def _values(kind: TableKind, rows: Rows, where: str) -> list[bytes]:
    """Values as they are stored: with their marks and times."""
    assert rows.values is not None
    if rows.times is not None:
        # What a timed map stores of a pair begins with a mark of its own.
        first = _SOME if kind.kind == "map" else b""
        return [
            first + time_bytes(time) + (_NONE if value is None else _SOME + value)
            for time, value in zip(rows.times, rows.values, strict=True)
        ]
    if kind.kind == "map":
        return [_NONE if value is None else _SOME + value for value in rows.values]
    present = [value for value in rows.values if value is not None]
    if len(present) < len(rows.values):
        row = rows.values.index(None)
        raise StateError(
            f"{where}: a row of key group {int.from_bytes(rows.groups[row], 'big')} has neither a "
            "value nor encoded bytes; whoever wrote the table left it out"
        )
    return present


class _Chunks:
    """Puts the elements of lists together, in chunks of epoch 0."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._head: bytes | None = None
        self._position = -1
        self._count = 0

    def entries(self, rows: Rows, heads: list[bytes], values: list[bytes]) -> list[Entry]:
        """A chunk for each list, or for what there is of it in these rows."""
        assert rows.positions is not None
        found: list[tuple[bytes, list[bytes]]] = []
        head: bytes | None = None
        for own, position, value in zip(heads, rows.positions, values, strict=True):
            if own != head:
                head = own
                found.append((self._key(own, position), []))
            elif position != self._position + 1:
                raise self._disorder(position)
            self._position = position
            found[-1][1].append(value)
        return [(key, pack_chunk(elements)) for key, elements in found]

    def _key(self, head: bytes, position: int) -> bytes:
        """Key of the next chunk of a list, which goes on or begins here."""
        goes_on = head == self._head
        if position != (self._position + 1 if goes_on else 0):
            raise self._disorder(position)
        self._head, self._count = head, self._count + 1 if goes_on else 0
        # Epochs count from 1, so whatever is appended comes after it.
        return head + self._count.to_bytes(12, "big")

    def _disorder(self, position: int) -> StateError:
        return StateError(
            f"{self._where}: the rows of a list are not at the positions 0, 1, 2, ..., but one "
            f"is at {position} after {self._position}; the table is not as it was written"
        )


def _require_order(entries: list[Entry], last: bytes, where: str) -> bytes:
    keys = [key for key, _ in entries]
    if not keys:
        return last
    if last >= keys[0] or not all(map(lt, keys, keys[1:])):
        raise _disorder(where)
    return keys[-1]


def _disorder(where: str) -> StateError:
    return StateError(
        f"{where}: the rows are not in the order of the store, or one is there twice; sort them "
        "as they were written"
    )
