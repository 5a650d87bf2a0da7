"""Converts between Spark types and Arrow types.

The runtime uses Arrow types; Spark types are needed where a DataFrame comes in or goes
out. Spark's `timestamp` has no zone: the Arrow column gets the zone that its datetimes
should have, UTC by default.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.types import ArrayType, MapType, StringType, StructType

from holdfast.errors import KeyTypeError
from holdfast.spark.versions import from_arrow_schema, from_arrow_type
from holdfast.types.arrow import array_of, canonical, canonical_field, map_of
from holdfast.types.ddl import parse_json
from holdfast.types.stream_type import StreamType

if TYPE_CHECKING:
    from pyspark.sql.types import DataType


def spark_schema(schema: pa.Schema) -> StructType:
    """Spark form of an Arrow schema; nullability is kept.

    Raises:
        TypeDeclarationError: A column's type is one that Spark does not have.
    """
    return from_arrow_schema(pa.schema(list(map(canonical_field, schema))))


def spark_type(column: pa.DataType) -> DataType:
    """Spark form of an Arrow type.

    Raises:
        TypeDeclarationError: Spark does not have the type.
    """
    return from_arrow_type(canonical(column))


def arrow_schema(schema: StructType, *, zone: str = "UTC") -> pa.Schema:
    """Arrow form of a DataFrame's schema; nullability is kept.

    Args:
        schema: Schema of a DataFrame.
        zone: Zone of the datetimes that timestamps are read as.

    Raises:
        TypeDeclarationError: A column is of a type without a Python form: an interval,
            a variant, a user-defined type; the message names it and says what to do.
    """
    return pa.schema(list(arrow_type(schema, zone=zone)))


def arrow_type(data_type: DataType, *, zone: str = "UTC") -> pa.DataType:
    """Arrow form of a Spark type, its timestamps in `zone`; see `arrow_schema`."""
    return _in_zone(canonical(parse_json(data_type.jsonValue())), zone)


def stream_type_of(schema: StructType, *, zone: str = "UTC") -> StreamType:
    """Type of a stream made from a DataFrame with this schema: rows, as events.

    Args:
        schema: Schema of the DataFrame.
        zone: Zone of the datetimes that timestamps are read as.

    Raises:
        TypeDeclarationError: A column cannot be used in a stream; see `arrow_schema`.
    """
    return StreamType.of(arrow_schema(schema, zone=zone))


def refuse_collated_keys(schema: StructType, columns: tuple[str, ...]) -> None:
    """Check that equal values of key columns have equal bytes.

    Under a collation, strings with different bytes can be equal, and a key is its bytes.

    Raises:
        KeyTypeError: One of the columns holds strings under a collation.
    """
    for name in columns:
        if is_collated(schema[name].dataType):
            raise KeyTypeError(
                f"the column {name!r} cannot be a key: its strings have the collation "
                f"{schema[name].dataType.simpleString()}, under which different bytes are equal; "
                f"key by an expression such as lower({name}), cast to string collate UTF8_BINARY"
            )


def is_collated(data_type: DataType) -> bool:
    """Whether a type is, or holds, strings under a collation other than by bytes."""
    match data_type:
        case StringType():
            return not data_type.isUTF8BinaryCollation()
        case ArrayType():
            return is_collated(data_type.elementType)
        case MapType():
            return is_collated(data_type.keyType) or is_collated(data_type.valueType)
        case StructType():
            return any(is_collated(field.dataType) for field in data_type.fields)
    return False


def _in_zone(column: pa.DataType, zone: str) -> pa.DataType:
    of = pa.types
    if of.is_timestamp(column):
        return pa.timestamp("us", tz=zone) if column.tz else column
    if of.is_struct(column):
        fields = [pa.field(f.name, _in_zone(f.type, zone), nullable=f.nullable) for f in column]
        return pa.struct(fields)
    if of.is_map(column):
        key, value = _in_zone(column.key_type, zone), _in_zone(column.item_type, zone)
        return map_of(key, value, nullable=column.item_field.nullable)
    if of.is_list(column):
        item = column.value_field
        return array_of(_in_zone(item.type, zone), nullable=item.nullable)
    return column
