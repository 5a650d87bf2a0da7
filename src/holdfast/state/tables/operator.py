"""Writes and reads operator state as tables."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa

from holdfast.errors import StateError
from holdfast.state.operator.redistribution import NamedState, OperatorStateSnapshot
from holdfast.state.store.directories import file_name
from holdfast.state.store.snapshot import built_aside
from holdfast.state.table import NONE, SOME
from holdfast.state.tables.columns import TypedColumns
from holdfast.state.tables.files import TableFile, listed_file, write_table
from holdfast.state.tables.rows import PORTION, bounded
from holdfast.state.tables.values import value_column
from holdfast.state.tables.writer import write_index

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.state.tables.rows import Portion
    from holdfast.state.tables.writer import Listed

    Columns = dict[str, pa.Array]

INDEX: Final = Path("operator_states.parquet")
"""Index of the tables, in order of registration."""

_RAW: Final = {
    "partitions": (Path("raw", "partitions.parquet"), "position", pa.int64()),
    "key groups": (Path("raw", "key_groups.parquet"), "key_group", pa.int32()),
}
"""Tables of raw state by kind: file, and name and type of the first column."""


def write_operator_tables(
    state: OperatorStateSnapshot, directory: Path, *, portion: Portion = PORTION
) -> list[Path]:
    """Write the operator state and the raw state of a subtask as tables.

    Args:
        state: State of the subtask.
        directory: Directory of the tables. It is created atomically.
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
            path = Path("operator", f"{file_name(named.name)}.parquet")
            rows = _write_state(aside / path, named, portion)
            index.append((path, named.name, named.mode, rows))
        raw = {
            "partitions": dict(enumerate(state.raw_partitions)),
            "key groups": state.raw_key_groups,
        }
        for kind, numbered in raw.items():
            if numbered:
                path, name, numbers = _RAW[kind]
                some = bounded(numbered.items(), _value_size, portion)
                rows = _write_raw(aside / path, name, numbers, some)
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
            if kind in _RAW:
                raw[kind] = [pair for part in file.parts() for pair in _raw_rows(part)]
            else:
                states.append(_read_state(file))
    return OperatorStateSnapshot(
        states, [data for _, data in raw["partitions"]], dict(raw["key groups"])
    )


def _write_state(path: Path, named: NamedState, portion: Portion) -> int:
    about = {"state": msgspec.to_builtins(msgspec.structs.replace(named, elements=[], entries=[]))}
    value = TypedColumns(value_column(named.schema[0]))
    if named.mode == "broadcast":
        key = TypedColumns.of_map_keys(named.schema[1])
        pairs = bounded(named.entries, _value_size, portion)
        parts = [_map_columns(key, value, some) for some in pairs]
        types = key.types()
    else:
        numbered = bounded(enumerate(named.elements), _value_size, portion)
        parts = [_list_columns(value, some) for some in numbered]
        types = {"position": pa.int64()}
    return write_table(path, pa.schema(list((types | value.types()).items())), about, parts)


def _value_size(pair: tuple[Any, bytes]) -> int:
    return len(pair[1])


def _map_columns(
    key: TypedColumns, value: TypedColumns, entries: list[tuple[bytes, bytes]]
) -> Columns:
    keys, values = ([_bare(pair[side]) for pair in entries] for side in (0, 1))
    return key.arrays(keys) | value.arrays(values)


def _list_columns(value: TypedColumns, elements: list[tuple[int, bytes]]) -> Columns:
    positions = pa.array([position for position, _ in elements], pa.int64())
    return {"position": positions} | value.arrays([element for _, element in elements])


def _write_raw(
    path: Path, name: str, numbers: pa.DataType, numbered: Iterable[list[tuple[int, bytes]]]
) -> int:
    schema = pa.schema([(name, numbers), ("data", pa.binary())])
    parts = (
        {
            name: pa.array([number for number, _ in some], numbers),
            "data": pa.array([data for _, data in some], pa.binary()),
        }
        for some in numbered
    )
    return write_table(path, schema, {}, parts)


def _raw_rows(part: Columns) -> list[tuple[Any, bytes]]:
    return list(zip(*(column.to_pylist() for column in part.values()), strict=True))


def _read_state(file: TableFile) -> NamedState:
    try:
        named = msgspec.convert(file.about["state"], NamedState)
        value, map_key = TypedColumns(value_column(named.schema[0])), None
        if named.mode == "broadcast":
            map_key = TypedColumns.of_map_keys(named.schema[1])
        for part in file.parts():
            values = value.stored(part)
            if map_key is None:
                named.elements.extend(_present(values))
            else:
                keys = map_key.stored(part)
                named.entries.extend(zip(map(_marked, keys), map(_marked, values), strict=True))
    except (
        KeyError,
        IndexError,
        ValueError,
        TypeError,
        AttributeError,
        pa.ArrowException,
    ) as error:
        raise StateError(
            f"{file.path}: the table does not have what belongs to it ({error}); it has been "
            "changed since it was written. Restore from another savepoint or checkpoint"
        ) from error
    return named


def _present(values: list[bytes | None]) -> list[bytes]:
    present = [value for value in values if value is not None]
    if len(present) < len(values):
        raise ValueError("an element has neither a value nor encoded bytes")
    return present


def _bare(data: bytes) -> bytes | None:
    return None if data == NONE else data[1:]


def _marked(data: bytes | None) -> bytes:
    return NONE if data is None else SOME + data
