"""Which columns give keys that can be equal."""

from __future__ import annotations

import pyarrow as pa


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
