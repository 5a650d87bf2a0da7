"""Arrow types: their names, canonical forms, and which are alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from holdfast.errors import TypeDeclarationError

if TYPE_CHECKING:
    from collections.abc import Mapping


UTC_TIMESTAMP = pa.timestamp("us", tz="UTC")


ATOMIC: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "byte": pa.int8(),
    "smallint": pa.int16(),
    "short": pa.int16(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "long": pa.int64(),
    "float": pa.float32(),
    "real": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": UTC_TIMESTAMP,
    "timestamp_ltz": UTC_TIMESTAMP,
    "timestamp_ntz": pa.timestamp("us"),
    "void": pa.null(),
}


_NAMES = {str(arrow): name for name, arrow in reversed(ATOMIC.items())} | {"time64[ns]": "time"}


def array_of(element: pa.DataType, *, nullable: bool) -> pa.DataType:
    """Arrow list type, its parts named as Spark names them."""
    return pa.list_(pa.field("element", element, nullable=nullable))


def map_of(key: pa.DataType, value: pa.DataType, *, nullable: bool) -> pa.DataType:
    """Arrow map type, its parts named as Spark names them."""
    return pa.map_(
        pa.field("key", key, nullable=False), pa.field("value", value, nullable=nullable)
    )


def ddl_of(column: pa.DataType) -> str:
    """The type as DDL, for messages: `array<bigint>`."""
    of = pa.types
    if of.is_struct(column):
        return f"struct<{', '.join(f'{field.name}: {ddl_of(field.type)}' for field in column)}>"
    if of.is_map(column):
        return f"map<{ddl_of(column.key_type)}, {ddl_of(column.item_type)}>"
    if of.is_list(column) or of.is_large_list(column):
        return f"array<{ddl_of(column.value_type)}>"
    if of.is_decimal(column):
        return f"decimal({column.precision},{column.scale})"
    if of.is_timestamp(column):
        return "timestamp" if column.tz else "timestamp_ntz"
    return _NAMES.get(str(column).removeprefix("large_"), str(column))


def key_type(column: pa.DataType) -> str:
    """The type that a column's values have as keys: keys of different types are never equal."""
    of = pa.types
    if of.is_boolean(column):
        return "bool"
    if of.is_integer(column):
        return "int"
    if of.is_floating(column):
        return "float"
    if of.is_string(column) or of.is_large_string(column):
        return "str"
    if of.is_binary(column) or of.is_large_binary(column):
        return "bytes"
    if of.is_date(column):
        return "date"
    if of.is_decimal(column):
        return "Decimal"
    if of.is_timestamp(column):
        return "datetime" if column.tz else "datetime_ntz"
    return str(column)


def spark_json(spec: Any) -> str | Mapping[str, Any] | None:
    """JSON value of a Spark type, told by its method `jsonValue`; None for all else."""
    if not hasattr(spec, "jsonValue"):
        return None
    found: str | Mapping[str, Any] = (spec() if isinstance(spec, type) else spec).jsonValue()
    return found


def canonical(column: pa.DataType) -> pa.DataType:
    """The type a column is given for `column`, of those with the same values.

    Raises:
        TypeDeclarationError: Python or Spark cannot hold the type's values exactly.
    """
    of = pa.types
    if of.is_dictionary(column):
        return canonical(column.value_type)
    if of.is_struct(column):
        if column.num_fields == 0:
            raise TypeDeclarationError("a struct without fields cannot be used in a stream")
        return pa.struct([_canonical_field(field) for field in column])
    if of.is_map(column):
        return _canonical_map(column)
    if of.is_large_list(column):
        return pa.large_list(_canonical_field(column.value_field))
    if of.is_list(column):
        return array_of(canonical(column.value_type), nullable=column.value_field.nullable)
    return _canonical_leaf(column)


_SAME = frozenset(
    str(leaf)
    for leaf in (
        pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(),
        pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), pa.date32(),
        pa.time64("ns"), pa.null(),
    )
)  # fmt: skip


def _canonical_leaf(column: pa.DataType) -> pa.DataType:
    of = pa.types
    if str(column) in _SAME or of.is_decimal128(column):
        return column
    if of.is_timestamp(column) and column.unit != "ns":
        return pa.timestamp("us", tz=column.tz)
    if of.is_time(column):
        return pa.time64("ns")
    if of.is_date64(column):
        return pa.date32()
    if column == pa.string_view():
        return pa.string()
    if column == pa.binary_view():
        return pa.binary()
    raise TypeDeclarationError(f"the Arrow type {column} cannot be used in a stream; {_ARROW_HELP}")


_ARROW_HELP = (
    "use one that Spark has: signed integers, float, double, decimal128, string, binary, bool, "
    "date32, timestamp[us], time64, list, map, struct"
)


def _canonical_field(field: pa.Field) -> pa.Field:
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
    """Whether a column of the one type holds values of the other.

    Another program that writes a table anew may call the parts of lists otherwise, and have
    larger offsets. Whether a timestamp has a zone is decided by values, not by the type.
    """
    of = pa.types
    for kind in (of.is_timestamp, _is_text, _is_binary):
        if kind(wanted):
            return bool(kind(found))
    if of.is_struct(wanted):
        return of.is_struct(found) and _have_like_fields(found, wanted)
    if of.is_map(wanted):
        return (
            of.is_map(found)
            and same_values(found.key_type, wanted.key_type)
            and same_values(found.item_type, wanted.item_type)
        )
    if _is_list(wanted):
        return _is_list(found) and same_values(found.value_type, wanted.value_type)
    return bool(found == wanted)


def _have_like_fields(found: pa.DataType, wanted: pa.DataType) -> bool:
    if [field.name for field in found] != [field.name for field in wanted]:
        return False
    return all(same_values(a.type, b.type) for a, b in zip(found, wanted, strict=True))


def _is_text(column: pa.DataType) -> bool:
    return bool(pa.types.is_string(column) or pa.types.is_large_string(column))


def _is_binary(column: pa.DataType) -> bool:
    return bool(pa.types.is_binary(column) or pa.types.is_large_binary(column))


def _is_list(column: pa.DataType) -> bool:
    return bool(pa.types.is_list(column) or pa.types.is_large_list(column))
