"""Arrow types: the table of leaf types, names, canonical forms and comparison.

A leaf type has no parts: a number, a string, a date. `LEAVES` describes each of them;
readers, writers, codecs and stored descriptions look them up there.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa

from holdfast.errors import TypeDeclarationError

UTC_TIMESTAMP = pa.timestamp("us", tz="UTC")
NAIVE_TIMESTAMP = pa.timestamp("us")


@dataclass(frozen=True, slots=True)
class Leaf:
    """A column type without parts."""

    name: str
    """Name in DDL; precision and scale follow that of a decimal."""
    arrow: pa.DataType
    """Arrow type of a column declared by that name."""
    python: type
    """Class of its values."""
    family: str
    """Type of its values as keys. Values of different families are never equal, and are not
    cast to each other."""
    described: str = ""
    """Name in stored descriptions (`types/schema.py`)."""
    aliases: tuple[str, ...] = ()
    """Other names in DDL."""
    layouts: tuple[pa.DataType, ...] = ()
    """Other Arrow types with the same values; a column keeps them."""
    replaced: tuple[pa.DataType, ...] = ()
    """Other Arrow types with the same values; a column gets `arrow` instead."""


# The last leaf of a Python class is the column type of that class.
LEAVES: Final = (
    Leaf("boolean", pa.bool_(), bool, "bool", "bool"),
    Leaf("tinyint", pa.int8(), int, "int", "int8", ("byte",)),
    Leaf("smallint", pa.int16(), int, "int", "int16", ("short",)),
    Leaf("int", pa.int32(), int, "int", "int32", ("integer",)),
    Leaf("bigint", pa.int64(), int, "int", "int64", ("long",)),
    Leaf("float", pa.float32(), float, "float", "float32", ("real",)),
    Leaf("double", pa.float64(), float, "float", "float64"),
    Leaf("decimal", pa.decimal128(38, 18), Decimal, "Decimal"),
    Leaf(
        "string", pa.string(), str, "str", "string",
        layouts=(pa.large_string(),), replaced=(pa.string_view(),),
    ),
    Leaf(
        "binary", pa.binary(), bytes, "bytes", "binary",
        layouts=(pa.large_binary(),), replaced=(pa.binary_view(),),
    ),
    Leaf("date", pa.date32(), date, "date", "date32", replaced=(pa.date64(),)),
    Leaf("time", pa.time64("ns"), time, "time", "time64", replaced=(pa.time32("ms"),)),
    Leaf("timestamp_ntz", NAIVE_TIMESTAMP, datetime, "datetime_ntz", "timestamp_ntz"),
    Leaf("timestamp", UTC_TIMESTAMP, datetime, "datetime", "timestamp", ("timestamp_ltz",)),
    Leaf("void", pa.null(), type(None), "void", "null"),
)  # fmt: skip
"""All leaf types of columns."""

# Never the type of a column: arrays of these types are cast to the declared type.
_FOREIGN: Final = tuple(
    Leaf(str(arrow), arrow, python, python.__name__)
    for python, arrows in {
        int: (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
        float: (pa.float16(),),
        Decimal: (pa.decimal32(9), pa.decimal64(18), pa.decimal256(76)),
    }.items()
    for arrow in arrows
)

DDL_TYPES: Final = {name: leaf.arrow for leaf in LEAVES for name in (leaf.name, *leaf.aliases)}
"""Arrow types by their names in DDL."""

PYTHON_TYPES: Final[dict[Any, pa.DataType]] = {leaf.python: leaf.arrow for leaf in LEAVES}
"""Arrow types of columns declared by a Python class."""

_BY_ID: Final[dict[int, Leaf]] = {
    arrow.id: leaf
    for leaf in (*LEAVES, *_FOREIGN)
    for arrow in (leaf.arrow, *leaf.layouts, *leaf.replaced)
}
_ZONED: Final = _BY_ID[UTC_TIMESTAMP.id]
_NAIVE: Final = next(leaf for leaf in LEAVES if leaf.arrow == NAIVE_TIMESTAMP)


def leaf_of(column: pa.DataType) -> Leaf | None:
    """Leaf type of a column; None if it is nested or unsupported."""
    leaf = _BY_ID.get(column.id)
    return _NAIVE if leaf is _ZONED and column.tz is None else leaf


def is_binary(column: pa.DataType) -> bool:
    """Whether the values are bytes, in any layout."""
    leaf = leaf_of(column)
    return (leaf is not None and leaf.python is bytes) or pa.types.is_fixed_size_binary(column)


def array_of(element: pa.DataType, *, nullable: bool) -> pa.DataType:
    """Arrow list type with Spark's field names."""
    return pa.list_(pa.field("element", element, nullable=nullable))


def map_of(key: pa.DataType, value: pa.DataType, *, nullable: bool) -> pa.DataType:
    """Arrow map type with Spark's field names."""
    return pa.map_(
        pa.field("key", key, nullable=False), pa.field("value", value, nullable=nullable)
    )


def ddl_of(column: pa.DataType) -> str:
    """The type as DDL, for messages, such as `array<bigint>`."""
    of = pa.types
    if of.is_struct(column):
        return f"struct<{', '.join(f'{field.name}: {ddl_of(field.type)}' for field in column)}>"
    if of.is_map(column):
        return f"map<{ddl_of(column.key_type)}, {ddl_of(column.item_type)}>"
    if of.is_list(column) or of.is_large_list(column):
        return f"array<{ddl_of(column.value_type)}>"
    leaf = leaf_of(column)
    if leaf is None:
        return str(column)
    return f"decimal({column.precision},{column.scale})" if leaf.python is Decimal else leaf.name


def key_type(column: pa.DataType) -> str:
    """Type of a column's values as keys; keys of different types are never equal."""
    leaf = leaf_of(column)
    return str(column) if leaf is None else leaf.family


def canonical(column: pa.DataType) -> pa.DataType:
    """The one Arrow type that Holdfast uses for values of `column`.

    Raises:
        TypeDeclarationError: Python or Spark cannot hold the type's values exactly.
    """
    of = pa.types
    if of.is_dictionary(column):
        return canonical(column.value_type)
    if of.is_struct(column):
        if column.num_fields == 0:
            raise TypeDeclarationError("a struct without fields cannot be used in a stream")
        return pa.struct([canonical_field(field) for field in column])
    if of.is_map(column):
        return _canonical_map(column)
    if of.is_large_list(column):
        return pa.large_list(canonical_field(column.value_field))
    if of.is_list(column):
        return array_of(canonical(column.value_type), nullable=column.value_field.nullable)
    return _canonical_leaf(column)


def _canonical_leaf(column: pa.DataType) -> pa.DataType:
    leaf = leaf_of(column)
    is_nanos = pa.types.is_timestamp(column) and column.unit == "ns"
    if leaf is None or leaf in _FOREIGN or is_nanos:
        raise TypeDeclarationError(
            f"the Arrow type {column} cannot be used in a stream; {_ARROW_HELP}"
        )
    if pa.types.is_timestamp(column):
        return pa.timestamp("us", tz=column.tz)
    return column if pa.types.is_decimal(column) or column in leaf.layouts else leaf.arrow


_ARROW_HELP = (
    "use one that Spark has: signed integers, float, double, decimal128, string, binary, bool, "
    "date32, timestamp[us], time64, list, map, struct"
)


def canonical_field(field: pa.Field) -> pa.Field:
    """The field with the canonical form of its type."""
    return pa.field(field.name, canonical(field.type), nullable=field.nullable)


def _canonical_map(column: pa.DataType) -> pa.DataType:
    key = canonical(column.key_type)
    if not _hashable(key):
        raise TypeDeclarationError(
            f"a map with keys of type {key} cannot be used in a stream: they cannot be the keys "
            "of a dict; use an array of structs"
        )
    return map_of(key, canonical(column.item_type), nullable=column.item_field.nullable)


def _hashable(column: pa.DataType) -> bool:
    if pa.types.is_struct(column):
        return all(_hashable(field.type) for field in column)
    return not pa.types.is_nested(column)


def same_values(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether two column types without parts have the same values.

    Ignores differences that do not change values: the width of offsets and the zone of
    timestamps. A program that rewrites a table may introduce them.
    """
    if pa.types.is_timestamp(wanted):
        return bool(pa.types.is_timestamp(found))
    leaf = leaf_of(wanted)
    return bool(found == wanted or (leaf and leaf.layouts and leaf_of(found) is leaf))
