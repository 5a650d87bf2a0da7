"""Writes keyed state and timers of a snapshot as tables."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from holdfast.state.backend import read_operator
from holdfast.state.catalog import read_catalog
from holdfast.state.key_groups import ALL_KEY_GROUPS, scan_groups
from holdfast.state.store.snapshot import built_aside
from holdfast.state.tables.columns import Columns
from holdfast.state.tables.files import write_growing_table, write_table
from holdfast.state.tables.names import table_name
from holdfast.state.tables.rows import PORTION, read_rows
from holdfast.state.timers.table import KIND
from holdfast.state.ttl.layout import TTL_SUFFIX

if TYPE_CHECKING:
    from holdfast.state.store.snapshot import ReadOnlySnapshot
    from holdfast.state.tables.rows import Portion

    Listed = tuple[Path, str, str, int]
    """A table in the index: file, name, kind and number of rows."""

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
    key_groups: range = ALL_KEY_GROUPS,
    portion: Portion = PORTION,
) -> list[Path]:
    """Write the keyed state and the timers of a snapshot as tables.

    Args:
        snapshot: An open snapshot, of any backend.
        directory: Directory of the tables. It is created atomically.
        key_groups: Key groups to write.
        portion: How much is processed at once.

    Returns:
        The files, relative to the directory.

    Raises:
        StoreFullError: The disk is full.
        StateError: The snapshot is damaged, the directory exists, or cannot be written.
    """
    states = [
        {"name": stored.removesuffix(TTL_SUFFIX)} | entry
        for stored, entry in read_catalog(snapshot).items()
    ]
    about = _about_operator(snapshot)
    with built_aside(directory) as aside:
        index: list[Listed] = []
        for state in sorted(states, key=lambda state: int(state["id"])):
            path = _table_path(state, has_keys=about.get("key") is not None)
            entries = scan_groups(snapshot, int(state["id"]), key_groups)
            columns = Columns(state, about.get("key"))
            parts = map(columns.arrays, read_rows(columns.kind, entries, portion))
            own = about | {"state": state}
            rows = write_growing_table(aside / path, columns, own, parts)
            index.append((path, state["name"], state["kind"], rows))
        return write_index(aside / INDEX, about, index)


def _about_operator(snapshot: ReadOnlySnapshot) -> dict[str, Any]:
    """Metadata of all tables of a snapshot."""
    operator, version = read_operator(snapshot), {"version": snapshot.version}
    return {"store_format": operator.pop("format")} | version | operator if operator else version


def _table_path(state: dict[str, Any], *, has_keys: bool) -> Path:
    """File of a state's table, relative to the directory of all tables.

    Args:
        state: Catalog entry of the state.
        has_keys: Whether there was ever a key, so that the type of keys is known. If not, the
            table has no rows, and is kept apart from those of other subtasks because its key
            column has another type.
    """
    name = state["name"]
    if state["kind"] == KIND:
        directory, file = "timers", table_name(name.removeprefix("timers:"))
    else:
        # `table_name` never contains a dot.
        directory, file = "keyed", f"{table_name(name)}{'.ttl' if state.get('ttl') else ''}"
    return Path(directory if has_keys else f"without_keys/{directory}", f"{file}.parquet")


def write_index(path: Path, about: dict[str, Any], listed: list[Listed]) -> list[Path]:
    """Write the index of the tables; return all files, relative to the directory."""
    rows = [(str(file.with_suffix("")), *rest) for file, *rest in listed]
    columns = {
        field.name: pa.array([row[place] for row in rows], field.type)
        for place, field in enumerate(INDEX_SCHEMA)
    }
    write_table(path, INDEX_SCHEMA, about, [columns])
    return [*(file for file, *_ in listed), Path(path.name)]
