"""SQL of `PostgresSink`: names, types, and the statements made of them. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from holdfast.types.arrow import is_binary, leaf_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Name = tuple[str, ...]
"""Name of a table: schema and table, or the table alone."""


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column in the database."""

    name: str
    type: str
    """Name of the type; of the element type for an array, of the base type for a domain."""
    modifier: int = -1
    """Type modifier of PostgreSQL: precision and scale of a numeric. -1 if there is none."""
    is_array: bool = False

    @property
    def scale(self) -> int | None:
        """Digits after the point of a numeric; None if they are not limited."""
        if self.type != "numeric" or self.modifier < 4:
            return None
        scale = (self.modifier - 4) & 0x7FF
        return scale - 0x800 if scale & 0x400 else scale


def table_name(given: str | Iterable[str]) -> Name:
    """Parts of a name; a string is split at its dots."""
    return tuple(given.split(".") if isinstance(given, str) else given)


def quoted(name: str | Name) -> str:
    """A name in quotes, for statements."""
    parts = (name,) if isinstance(name, str) else name
    return ".".join('"' + part.replace('"', '""') + '"' for part in parts)


def listed(names: Iterable[str]) -> str:
    """Quoted names with commas between."""
    return ", ".join(quoted(name) for name in names)


def copy_rows(table: Name | str, columns: Sequence[str]) -> str:
    """Statement that takes rows as CSV from the connection."""
    return f"COPY {quoted(table)} ({listed(columns)}) FROM STDIN (FORMAT csv)"


def position_column(columns: Sequence[str]) -> str:
    """Name for the column with the position of a row; no other column has it."""
    name = "position"
    while name in columns:
        name += "_"
    return name


BUFFER: Final = ("pg_temp", "holdfast_rows")
"""Temporary table in which rows wait to be merged."""


def create_buffer(table: Name, columns: Sequence[str]) -> str:
    """Statement that creates the buffer, for one transaction."""
    return (
        f"CREATE TEMPORARY TABLE {quoted(BUFFER[1])} ON COMMIT DROP AS SELECT {listed(columns)}, "
        f"0::bigint AS {quoted(position_column(columns))} FROM {quoted(table)} WITH NO DATA"
    )


def merge_buffer(table: Name, columns: Sequence[str], key: Sequence[str]) -> str:
    """Statement that moves the newest row of every key from the buffer into the table.

    It goes through the keys in their order, so that publications that share keys wait for
    each other instead of running into a deadlock.
    """
    newest = (
        f"SELECT DISTINCT ON ({listed(key)}) * FROM {quoted(BUFFER)} "
        f"ORDER BY {listed(key)}, {quoted(position_column(columns))} DESC"
    )
    return upsert(table, columns, key, f"({newest}) AS newest")


def upsert(table: Name, columns: Sequence[str], key: Sequence[str], source: str) -> str:
    """Statement that inserts the rows of `source`, or updates those whose key exists."""
    rest = [column for column in columns if column not in key]
    values = ", ".join(f"{quoted(column)} = EXCLUDED.{quoted(column)}" for column in rest)
    action = f"UPDATE SET {values}" if rest else "NOTHING"
    return (
        f"INSERT INTO {quoted(table)} ({listed(columns)}) SELECT {listed(columns)} FROM {source} "
        f"ON CONFLICT ({listed(key)}) DO {action}"
    )


def create_table(
    table: Name, fields: Sequence[tuple[str, pa.DataType]], key: Sequence[str] = ()
) -> str:
    """Statement that creates a table for rows of these fields."""
    parts = [f"{quoted(name)} {sql_type(column)}" for name, column in fields]
    if key:
        parts.append(f"PRIMARY KEY ({listed(key)})")
    return f"CREATE TABLE {quoted(table)} ({', '.join(parts)})"


CREATE_COMMIT_TABLE: Final = """CREATE TABLE IF NOT EXISTS {} (
    lineage text NOT NULL,
    sink text NOT NULL,
    subtask integer NOT NULL,
    job_id text NOT NULL,
    checkpoint_id bigint NOT NULL,
    epoch bigint NOT NULL,
    committed_at timestamp with time zone NOT NULL,
    PRIMARY KEY (lineage, sink, subtask)
)"""


def sql_type(column: pa.DataType) -> str | None:
    """Type of a table's column that holds every value of an Arrow type; None if there is none."""
    of = pa.types
    if of.is_dictionary(column):
        return sql_type(column.value_type)
    if of.is_decimal(column):
        return f"numeric({column.precision}, {column.scale})"
    if is_list(column):
        inner = sql_type(column.value_type)
        return f"{inner}[]" if inner and is_array_element(column.value_type) else inner and "jsonb"
    if of.is_struct(column):
        return "jsonb" if all(sql_type(field.type) for field in column) else None
    if of.is_map(column):
        return "jsonb" if sql_type(column.key_type) and sql_type(column.item_type) else None
    if is_binary(column):
        return "bytea"
    leaf = leaf_of(column)
    return None if leaf is None else _SQL_TYPES.get(leaf.name)


def is_list(column: pa.DataType) -> bool:
    """Whether it is a list, of any layout."""
    return bool(
        pa.types.is_list(column)
        or pa.types.is_large_list(column)
        or pa.types.is_fixed_size_list(column)
    )


def is_array_element(column: pa.DataType) -> bool:
    """Whether lists of it become arrays; else they become jsonb."""
    return not (pa.types.is_nested(column) or pa.types.is_null(column))


_SQL_TYPES: Final = {
    "boolean": "boolean",
    "tinyint": "smallint",
    "smallint": "smallint",
    "int": "integer",
    "bigint": "bigint",
    "uint8": "smallint",
    "uint16": "integer",
    "uint32": "bigint",
    "uint64": "numeric(20, 0)",
    "halffloat": "real",
    "float": "real",
    "double": "double precision",
    "string": "text",
    "date": "date",
    "time": "time",
    "timestamp": "timestamp with time zone",
    "timestamp_ntz": "timestamp",
    "void": "text",
}
"""Types of PostgreSQL by the names of leaf types (`types.arrow`)."""

_JSON: Final = frozenset({"json", "jsonb"})
_NOT_FROM_TEXT: Final = frozenset(
    [
        "bool",
        "int2",
        "int4",
        "int8",
        "float4",
        "float8",
        "numeric",
        "money",
        "date",
        "time",
        "timetz",
        "timestamp",
        "timestamptz",
        "interval",
        "bytea",
    ]
)


def fits(column: pa.DataType, target: TableColumn) -> bool:
    """Whether a column takes values of an Arrow type unchanged, or refuses single ones.

    Text may go into any type that is written as text (uuid, json, inet, enumerations),
    an integer into any number; the server refuses what is out of range.
    """
    if pa.types.is_dictionary(column):
        return fits(column.value_type, target)
    if pa.types.is_null(column):
        return True
    if pa.types.is_nested(column):
        if is_list(column) and target.is_array:
            element = TableColumn(target.name, target.type, target.modifier)
            return is_array_element(column.value_type) and fits(column.value_type, element)
        return target.type in _JSON and not target.is_array
    if target.is_array:
        return False
    if sql_type(column) == "text":
        return target.type not in _NOT_FROM_TEXT
    return target.type in _targets(column) and not _could_round(column, target)


def _could_round(column: pa.DataType, target: TableColumn) -> bool:
    """Whether a float may lose digits; decimals are checked value by value."""
    return bool(pa.types.is_floating(column)) and target.scale is not None


def _targets(column: pa.DataType) -> frozenset[str]:
    leaf = leaf_of(column)
    if leaf is None:
        return _TARGETS[bytes.__name__] if is_binary(column) else frozenset()
    targets = _TARGETS.get(leaf.family, frozenset())
    return targets | {"float4"} if _SQL_TYPES.get(leaf.name) == "real" else targets


_TARGETS: Final = {
    "bool": frozenset({"bool"}),
    "int": frozenset({"int2", "int4", "int8", "float8", "numeric"}),
    "float": frozenset({"float8", "numeric"}),
    "Decimal": frozenset({"numeric"}),
    "bytes": frozenset({"bytea"}),
    "date": frozenset({"date"}),
    "time": frozenset({"time"}),
    "datetime": frozenset({"timestamptz"}),
    "datetime_ntz": frozenset({"timestamp"}),
}
"""Types of a table's column that take the values of a family of leaf types (`types.arrow`)."""
