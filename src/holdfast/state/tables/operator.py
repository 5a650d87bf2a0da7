"""Writes and reads operator state as tables."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa

from holdfast.errors import StateError
from holdfast.state.operator.redistribution import NamedState, OperatorStateSnapshot
from holdfast.state.store.snapshot import built_aside
from holdfast.state.table import NONE, SOME
from holdfast.state.tables.columns import TypedColumns, TypedTable
from holdfast.state.tables.files import TableFile, listed_file, write_growing_table, write_table
from holdfast.state.tables.names import table_name
from holdfast.state.tables.rows import PORTION, bounded
from holdfast.state.tables.values import value_column
from holdfast.state.tables.writer import write_index

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from holdfast.state.tables.rows import Portion
    from holdfast.state.tables.writer import Listed

    Columns = dict[str, pa.Array]

INDEX: Final = Path("operator_states.parquet")
"""Index of the tables, in order of registration."""

SUBTASK: Final = "subtask"
"""Column with the number of the subtask. It is for other programs, and not read."""

_ALWAYS: Final = frozenset({SUBTASK, "position", "map_key", "value"})
"""Columns that a table has even if no row needs them."""
_RAW: Final = {
    "partitions": (Path("raw", "partitions.parquet"), "position", pa.int64()),
    "key groups": (Path("raw", "key_groups.parquet"), "key_group", pa.int32()),
}
"""Tables of raw state by kind: file, and name and type of the column of numbers."""


def write_operator_tables(
    state: OperatorStateSnapshot, directory: Path, *, subtask: int, portion: Portion = PORTION
) -> list[Path]:
    """Write the operator state and the raw state of a subtask as tables.

    Args:
        state: State of the subtask.
        directory: Directory of the tables. It is created atomically.
        subtask: Number of the subtask.
        portion: How much is processed at once.

    Returns:
        The files, relative to the directory.

    Raises:
        StoreFullError: The disk is full.
        StateError: The directory exists, or cannot be written.
    """
    index: list[Listed] = []
    with built_aside(directory) as aside:
        for named in state.states:
            path = Path("operator", f"{table_name(named.name)}.parquet")
            rows = _write_state(aside / path, named, subtask, portion)
            index.append((path, named.name, named.mode, rows))
        raw = {
            "partitions": dict(enumerate(state.raw_partitions)),
            "key groups": state.raw_key_groups,
        }
        for kind, numbered in raw.items():
            if numbered:
                some = bounded(numbered.items(), _value_size, portion)
                path, rows = _write_raw(aside, kind, subtask, some)
                index.append((path, "", kind, rows))
        return write_index(aside / INDEX, {}, index)


def read_operator_tables(directory: Path) -> OperatorStateSnapshot:
    """Read the state written by `write_operator_tables`.

    Raises:
        StateError: A table is missing, damaged or foreign, or has a later format.
    """
    states: list[NamedState] = []
    raw: dict[str, list[tuple[Any, bytes]]] = {"partitions": [], "key groups": []}
    with TableFile(directory / INDEX) as index:
        listed = index.rows()
    for row in listed:
        kind = row["kind"]
        with TableFile(listed_file(directory, row["table"])) as file:
            if len(file) != row["rows"]:
                raise StateError(
                    f"{file.path}: the table has {len(file)} rows, and {INDEX} lists "
                    f"{row['rows']}; they are not of one savepoint. Restore from another "
                    "savepoint or checkpoint"
                )
            with _as_written(file):
                if kind in _RAW:
                    raw[kind] = [pair for part in file.parts() for pair in _raw_rows(part, kind)]
                else:
                    states.append(_read_state(file))
    return OperatorStateSnapshot(
        states, [data for _, data in raw["partitions"]], dict(raw["key groups"])
    )


def _write_state(path: Path, named: NamedState, subtask: int, portion: Portion) -> int:
    about = {"state": msgspec.to_builtins(msgspec.structs.replace(named, elements=[], entries=[]))}
    columns = _Columns(named)
    items = named.entries if columns.map_key is not None else enumerate(named.elements)
    parts = (
        _of_subtask(subtask, columns.arrays(some)) for some in bounded(items, _value_size, portion)
    )
    return write_growing_table(path, columns, about, parts)


class _Columns(TypedTable):
    """The columns of one state's table."""

    def __init__(self, named: NamedState) -> None:
        self.value = TypedColumns(value_column(named.schema[0]))
        self.map_key: TypedColumns | None = None
        """Columns of the keys, of a broadcast map; a list has positions."""
        if named.mode == "broadcast":
            self.map_key = TypedColumns.of_map_keys(named.schema[1])
        super().__init__(self.map_key, self.value)

    def schema(self, wanted: Collection[str]) -> pa.Schema:
        """Schema of the table, with the wanted optional columns."""
        types = {SUBTASK: pa.int32()}
        types |= {"position": pa.int64()} if self.map_key is None else self.map_key.types()
        types |= self.value.types()
        return pa.schema([one for one in types.items() if one[0] in _ALWAYS.union(wanted)])

    def arrays(self, items: list[tuple[Any, bytes]]) -> Columns:
        """Columns of elements with their positions, or of entries."""
        if self.map_key is None:
            positions = pa.array([position for position, _ in items], pa.int64())
            return {"position": positions} | self.value.arrays([data for _, data in items])
        keys, values = ([_bare(pair[side]) for pair in items] for side in (0, 1))
        return self.map_key.arrays(keys) | self.value.arrays(values)


def _of_subtask(subtask: int, columns: Columns) -> Columns:
    count = len(next(iter(columns.values())))
    return {SUBTASK: pa.array([subtask] * count, pa.int32())} | columns


def _value_size(pair: tuple[Any, bytes]) -> int:
    return len(pair[1])


def _write_raw(
    directory: Path, kind: str, subtask: int, numbered: Iterable[list[tuple[int, bytes]]]
) -> tuple[Path, int]:
    path, name, numbers = _RAW[kind]
    schema = pa.schema([(SUBTASK, pa.int32()), (name, numbers), ("data", pa.binary())])
    parts = (
        {
            name: pa.array([number for number, _ in some], numbers),
            "data": pa.array([data for _, data in some], pa.binary()),
        }
        for some in numbered
    )
    everything = (_of_subtask(subtask, part) for part in parts)
    return path, write_table(directory / path, schema, {}, everything)


def _raw_rows(part: Columns, kind: str) -> list[tuple[Any, bytes]]:
    names = (_RAW[kind][1], "data")
    return list(zip(*(part[name].to_pylist() for name in names), strict=True))


def _read_state(file: TableFile) -> NamedState:
    named = msgspec.convert(file.about["state"], NamedState)
    columns = _Columns(named)
    if file.digits is not None:
        columns.expect(file.digits)
    for part in file.parts():
        values = columns.value.stored(part)
        if columns.map_key is None:
            named.elements.extend(_present(values))
        else:
            keys = columns.map_key.stored(part)
            named.entries.extend(zip(map(_marked, keys), map(_marked, values), strict=True))
    return named


@contextmanager
def _as_written(file: TableFile) -> Iterator[None]:
    try:
        yield
    except (LookupError, ValueError, TypeError, AttributeError, pa.ArrowException) as error:
        raise StateError(
            f"{file.path}: the table does not have what belongs to it ({error}); it has been "
            "changed since it was written. Restore from another savepoint or checkpoint"
        ) from error


def _present(values: list[bytes | None]) -> list[bytes]:
    present = [value for value in values if value is not None]
    if len(present) < len(values):
        raise ValueError("an element has neither a value nor encoded bytes")
    return present


def _bare(data: bytes) -> bytes | None:
    return None if data == NONE else data[1:]


def _marked(data: bytes | None) -> bytes:
    return NONE if data is None else SOME + data
