"""Tables, read as if they were the snapshot of a store."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any, Self

import msgspec

from holdfast.errors import StateError
from holdfast.state.keyed_backend import OPERATOR_KEY, STATE_PREFIX
from holdfast.state.tables.columns import Columns
from holdfast.state.tables.entries import within, write_entries
from holdfast.state.tables.files import TableFile, listed_file
from holdfast.state.tables.writer import INDEX
from holdfast.state.ttl_layout import stored_name

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import TracebackType

    Entry = tuple[bytes, bytes]


class TablesSnapshot:
    """The keyed state and the timers that lie in a directory of tables.

    It has the entries of the store that the tables were written from, but those that a
    restored store makes anew: what is known of pending timers, and how far sweeps have come.
    """

    def __init__(self, directory: Path) -> None:
        """Open all tables in `directory`.

        Raises:
            StateError: One of them is missing, damaged, foreign, or of a later format.
        """
        self._files: list[TableFile] = []
        try:
            with TableFile(directory / INDEX) as index:
                self._about = index.about
                listed = index.rows()
            tables = [self._opened(directory, row) for row in listed]
            self._tables = sorted(tables, key=lambda table: table.prefix)
        except BaseException:
            self.close()
            raise

    @property
    def version(self) -> str:
        """Version that the store stood at when its snapshot was made."""
        return str(self._about["version"])

    @property
    def boot(self) -> None:
        """Not known: tables are made to be carried elsewhere."""

    def scan(self, prefix: bytes, start: bytes = b"", stop: bytes | None = None) -> Iterator[Entry]:
        """Entries whose key starts with `prefix`, in key order, from `start` to `stop`."""
        for entry in chain(self._metadata(), self._entries(prefix, start, stop)):
            key = entry[0]
            if key >= start and key.startswith(prefix):
                if stop is not None and key >= stop:
                    return
                yield entry

    def close(self) -> None:
        """Let go of the files. Idempotent."""
        for file in self._files:
            file.close()

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close."""
        self.close()

    def _opened(self, directory: Path, listed: dict[str, Any]) -> _Table:
        file = TableFile(listed_file(directory, listed.pop("table")))
        self._files.append(file)
        about = dict(file.about)
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
                f"{file.path}: what the table says of its state cannot be understood "
                f"({type(error).__name__}: {error}); it is damaged. Restore from another "
                "savepoint or checkpoint"
            ) from error

    def _metadata(self) -> Iterator[Entry]:
        """What a store knows of its operator and its states."""
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
        stored = stored_name(state.pop("name"), timed=self._columns.kind.timed)
        self.described = STATE_PREFIX + stored.encode(), msgspec.json.encode(state)
        """What a store knows of the state, as an entry."""
        self.prefix = int(state["id"]).to_bytes(2, "big")
        """What the keys of its entries begin with."""

    def entries(self, key_groups: range) -> Iterator[Entry]:
        """Entries of the key groups."""
        where = str(self._file.path)
        parts = (
            within(self._columns.rows(columns), key_groups, where)
            for columns in self._file.parts(key_groups)
        )
        return chain.from_iterable(write_entries(self._columns.kind, self.prefix, parts, where))


def _groups(prefix: bytes, first: bytes, stop: bytes | None) -> range:
    """Key groups of a state in which entries from `first` to `stop` can lie."""
    least = int.from_bytes(first[2:4].ljust(2, b"\x00"), "big") if first[:2] == prefix else 0
    most = 0xFFFF
    if stop is not None and stop[:2] == prefix:
        most = int.from_bytes(stop[2:4].ljust(2, b"\x00"), "big")
        # With nothing behind it, the bound is the beginning of a key group.
        most -= len(stop) <= 4
    return range(least, most + 1)
