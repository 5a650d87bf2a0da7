"""Writes keyed state and timers of a snapshot as tables."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa

from holdfast.state.backend import OPERATOR_KEY
from holdfast.state.catalog import STATE_PREFIX
from holdfast.state.store.directories import file_name
from holdfast.state.store.snapshot import built_aside
from holdfast.state.tables.columns import Columns
from holdfast.state.tables.files import write_table
from holdfast.state.tables.rows import PORTION, read_rows
from holdfast.state.timers.table import KIND
from holdfast.state.ttl.layout import TTL_SUFFIX

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.state.store.snapshot import ReadOnlySnapshot
    from holdfast.state.tables.rows import Portion, Rows

INDEX: Final = Path("keyed_states.parquet")
"""Index of the tables."""
INDEX_SCHEMA: Final = pa.schema(
    [("table", pa.string()), ("name", pa.string()), ("kind", pa.string()), ("rows", pa.int64())]
)
"""Columns of the index."""


def write_tables(
    snapshot: ReadOnlySnapshot,
    directory: Path,
    *,
    key_groups: range | None = None,
    portion: Portion = PORTION,
) -> list[Path]:
    """Write the keyed state and the timers of a snapshot as tables.

    Args:
        snapshot: An open snapshot, of any backend.
        directory: Directory of the tables. It is created atomically.
        key_groups: Key groups to write; None for all.
        portion: How much is processed at once.

    Returns:
        The files, relative to the directory.

    Raises:
        StoreFullError: The disk is full.
        StateError: The snapshot is damaged, the directory exists, or cannot be written.
    """
    states = known_states(snapshot)
    about = about_operator(snapshot)
    with built_aside(directory) as aside:
        index: list[dict[str, Any]] = []
        for state in states:
            path = table_path(state, has_keys=about.get("key") is not None)
            entries = _Entries(snapshot, state, key_groups)
            rows = _write(aside / path, state, about, entries, portion)
            listed = {"name": state["name"], "kind": state["kind"], "rows": rows}
            index.append({"table": str(path.with_suffix("")), **listed})
        write_index(aside / INDEX, about, index)
    return [*(Path(f"{row['table']}.parquet") for row in index), INDEX]


def known_states(snapshot: ReadOnlySnapshot) -> list[dict[str, Any]]:
    """Catalog entries of the snapshot's states, each with its name, in order of id."""
    states = [
        {"name": key[len(STATE_PREFIX) :].decode().removesuffix(TTL_SUFFIX)}
        | msgspec.json.decode(value)
        for key, value in snapshot.scan(STATE_PREFIX)
    ]
    return sorted(states, key=lambda state: int(state["id"]))


def about_operator(snapshot: ReadOnlySnapshot) -> dict[str, Any]:
    """Metadata of all tables of a snapshot."""
    about: dict[str, Any] = {"version": snapshot.version}
    for key, value in snapshot.scan(OPERATOR_KEY):
        if key == OPERATOR_KEY:
            operator = msgspec.json.decode(value)
            about = {"store_format": operator.pop("format")} | about | operator
    return about


def table_path(state: dict[str, Any], *, has_keys: bool) -> Path:
    """File of a state's table, relative to the directory of all tables.

    Args:
        state: Catalog entry of the state.
        has_keys: Whether there was ever a key, so that the type of keys is known. If not, the
            table has no rows, and is kept apart from those of other subtasks because its key
            column has another type.
    """
    name = state["name"]
    if state["kind"] == KIND:
        directory, file = "timers", file_name(name.removeprefix("timers:"))
    else:
        # `file_name` never contains a dot.
        directory, file = "keyed", f"{file_name(name)}{'.ttl' if state.get('ttl') else ''}"
    return Path(directory if has_keys else f"without_keys/{directory}", f"{file}.parquet")


def write_index(path: Path, about: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    """Write the index of the tables."""
    columns = {
        field.name: pa.array([row[field.name] for row in rows], field.type)
        for field in INDEX_SCHEMA
    }
    write_table(path, INDEX_SCHEMA, about, [columns])


class _Entries:
    """The entries of one state; can be iterated repeatedly."""

    def __init__(
        self, snapshot: ReadOnlySnapshot, state: dict[str, Any], key_groups: range | None
    ) -> None:
        self._snapshot = snapshot
        self._prefix = int(state["id"]).to_bytes(2, "big")
        self._key_groups = key_groups

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        prefix, groups = self._prefix, self._key_groups
        if groups is None:
            return self._snapshot.scan(prefix)
        if not groups:
            return iter(())
        start, stop = (prefix + group.to_bytes(2, "big") for group in (groups.start, groups.stop))
        return self._snapshot.scan(prefix, start, stop)


class _MoreColumns(Exception):
    """Rows need columns that the partly written table does not have."""

    def __init__(self, needed: set[str]) -> None:
        super().__init__(needed)
        self.needed = needed


def _write(
    path: Path, state: dict[str, Any], about: dict[str, Any], entries: _Entries, portion: Portion
) -> int:
    """Write one table; return the number of its rows.

    A table has the columns that its first rows need. If later rows need more columns, which is
    rare, the table is written again.
    """
    columns, wanted = Columns(state, about.get("key")), set[str]()
    while True:
        parts = _parts(columns, read_rows(columns.kind, entries, portion), wanted)
        first = next(parts, None)
        schema = columns.schema(wanted)
        everything = [] if first is None else chain([first], parts)
        try:
            return write_table(path, schema, about | {"state": state}, everything)
        except _MoreColumns as more:
            wanted |= more.needed


def _parts(
    columns: Columns, portions: Iterator[Rows], wanted: set[str]
) -> Iterator[dict[str, pa.Array]]:
    begun = False
    for rows in portions:
        needed = columns.needed(rows)
        if begun and not needed <= wanted:
            raise _MoreColumns(needed)
        wanted |= needed
        begun = True
        yield columns.arrays(rows, wanted)
