"""Reads tables as a snapshot of a store."""

from __future__ import annotations

from itertools import chain
from operator import lt
from typing import TYPE_CHECKING, Any

import msgspec
from typing_extensions import override

from holdfast.errors import StateError
from holdfast.serde.keys import framed
from holdfast.state.backend import OPERATOR_KEY
from holdfast.state.catalog import STATE_PREFIX
from holdfast.state.list import pack_chunk
from holdfast.state.store.snapshot import ReadOnlySnapshot
from holdfast.state.table import NONE, SOME
from holdfast.state.tables.columns import Columns
from holdfast.state.tables.files import DIGITS, TableFile, listed_file
from holdfast.state.tables.writer import INDEX
from holdfast.state.timers.layout import time_bytes
from holdfast.state.ttl.layout import stored_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from holdfast.state.tables.rows import Rows, TableKind

    Entry = tuple[bytes, bytes]


def write_entries(
    kind: TableKind, prefix: bytes, parts: Iterable[Rows], where: str
) -> Iterator[list[Entry]]:
    """Store entries of a state's rows, in key order.

    Args:
        kind: Kind of the table.
        prefix: Bytes of the state id.
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
                own = [NONE if key is None else SOME + key for key in rows.map_keys]
                keys = [head + key for head, key in zip(heads, own, strict=True)]
                entries = list(zip(keys, values, strict=True))
            case _:
                entries = list(zip(heads, _values(kind, rows, where), strict=True))
        last = _require_order(entries, last, where)
        yield entries


def within(rows: Rows, key_groups: range, where: str) -> Rows:
    """The rows of the key groups.

    Raises:
        StateError: Rows of other key groups are between them.
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
    """Stored values, with marks and times."""
    assert rows.values is not None
    if rows.times is not None:
        # The values of a map with TTL begin with a mark.
        first = SOME if kind.kind == "map" else b""
        return [
            first + time_bytes(time) + (NONE if value is None else SOME + value)
            for time, value in zip(rows.times, rows.values, strict=True)
        ]
    if kind.kind == "map":
        return [NONE if value is None else SOME + value for value in rows.values]
    present = [value for value in rows.values if value is not None]
    if len(present) < len(rows.values):
        row = rows.values.index(None)
        raise StateError(
            f"{where}: a row of key group {int.from_bytes(rows.groups[row], 'big')} has neither a "
            "value nor encoded bytes; the program that wrote the table left them out"
        )
    return present


class _Chunks:
    """Builds chunks of epoch 0 from the elements of lists."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._head: bytes | None = None
        self._position = -1
        self._count = 0

    def entries(self, rows: Rows, heads: list[bytes], values: list[bytes]) -> list[Entry]:
        """One chunk per list, or per part of a list in these rows."""
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
        """Key of the next chunk of a list."""
        goes_on = head == self._head
        if position != (self._position + 1 if goes_on else 0):
            raise self._disorder(position)
        self._head, self._count = head, self._count + 1 if goes_on else 0
        # Epochs count from 1, so later chunks come after this one.
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


class TablesSnapshot(ReadOnlySnapshot):
    """Keyed state and timers in a directory of tables.

    Has all entries of the original store, except for those that a restored store rebuilds: the
    time of the next timer and the progress of sweeps.
    """

    def __init__(self, directory: Path) -> None:
        """Open all tables in `directory`.

        Raises:
            StateError: A table is missing, damaged or foreign, or has a later format.
        """
        self._files: list[TableFile] = []
        try:
            with TableFile(directory / INDEX) as index:
                self._about = index.about
                self.version = str(self._about["version"])
                listed = index.rows()
            tables = [self._opened(directory, row) for row in listed]
            self._tables = sorted(tables, key=lambda table: table.prefix)
        except BaseException:
            self.close()
            raise

    @override
    def scan(self, prefix: bytes, start: bytes = b"", stop: bytes | None = None) -> Iterator[Entry]:
        for entry in chain(self._metadata(), self._entries(prefix, start, stop)):
            key = entry[0]
            if key >= start and key.startswith(prefix):
                if stop is not None and key >= stop:
                    return
                yield entry

    @override
    def close(self) -> None:
        for file in self._files:
            file.close()

    def _opened(self, directory: Path, listed: dict[str, Any]) -> _Table:
        file = TableFile(listed_file(directory, listed.pop("table")))
        self._files.append(file)
        about = dict(file.about)
        about.pop(DIGITS, None)
        state = about.pop("state", {})
        found = {"name": state.get("name"), "kind": state.get("kind"), "rows": len(file)}
        if about != self._about or found != listed:
            raise StateError(
                f"{file.path}: this is the table of {found} at {about.get('version')!r}, and "
                f"{INDEX} lists that of {listed} at {self.version!r}; they are not of one "
                "savepoint. Restore from another savepoint or checkpoint"
            )
        try:
            return _Table(file)
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise StateError(
                f"{file.path}: the table's description of its state cannot be read "
                f"({type(error).__name__}: {error}); it is damaged. Restore from another "
                "savepoint or checkpoint"
            ) from error

    def _metadata(self) -> Iterator[Entry]:
        """Entries about the operator and its states."""
        about = dict(self._about)
        del about["format"], about["version"]
        if "store_format" in about:
            yield OPERATOR_KEY, msgspec.json.encode({"format": about.pop("store_format")} | about)
        yield from sorted(table.described for table in self._tables)

    def _entries(self, prefix: bytes, start: bytes, stop: bytes | None) -> Iterator[Entry]:
        first = max(prefix, start)
        for table in self._tables:
            own = table.prefix
            if first[:2] > own or (stop is not None and stop <= own):
                continue
            if prefix[:2] != own[: len(prefix)]:
                continue
            yield from table.entries(_groups(own, first, stop))


class _Table:
    """The table of one state."""

    def __init__(self, file: TableFile) -> None:
        self._file = file
        state = dict(file.about["state"])
        self._columns = Columns(state, file.about.get("key"))
        if file.digits is not None:
            self._columns.expect(file.digits)
        stored = stored_name(state.pop("name"), timed=self._columns.kind.timed)
        self.described = STATE_PREFIX + stored.encode(), msgspec.json.encode(state)
        """Catalog entry of the state, as a store entry."""
        self.prefix = int(state["id"]).to_bytes(2, "big")
        """Bytes of the state id."""

    def entries(self, key_groups: range) -> Iterator[Entry]:
        """Entries of the key groups."""
        where = str(self._file.path)
        parts = (
            within(self._columns.rows(columns), key_groups, where)
            for columns in self._file.parts(key_groups)
        )
        return chain.from_iterable(write_entries(self._columns.kind, self.prefix, parts, where))


def _groups(prefix: bytes, first: bytes, stop: bytes | None) -> range:
    """Key groups that may have entries between `first` and `stop`."""
    least = int.from_bytes(first[2:4].ljust(2, b"\x00"), "big") if first[:2] == prefix else 0
    most = 0xFFFF
    if stop is not None and stop[:2] == prefix:
        most = int.from_bytes(stop[2:4].ljust(2, b"\x00"), "big")
        # A bound without further bytes is the start of a key group.
        most -= len(stop) <= 4
    return range(least, most + 1)
