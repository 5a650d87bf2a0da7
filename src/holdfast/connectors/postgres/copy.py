r"""Rows as the CSV that PostgreSQL's COPY takes.

Arrow writes numbers, strings and times. Binary, arrays and JSON are formatted here,
value by value, since Arrow has no text form for them. A null is an empty field; an
empty string is a pair of quotes.

    binary         \x0aff
    list           {1,2,NULL}, strings in quotes; as JSON if the column is json or jsonb
    struct, map    JSON: binary as base64, NaN and infinities as strings
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa
from pyarrow import csv

from holdfast.connectors.json_values import json_float
from holdfast.connectors.postgres.statements import is_list
from holdfast.errors import SinkError
from holdfast.types.arrow import is_binary

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.connectors.postgres.statements import TableColumn

_OPTIONS: Final = csv.WriteOptions(include_header=False, quoting_style="needed")
_JSON: Final = msgspec.json.Encoder(decimal_format="number")


def as_csv(rows: pa.RecordBatch, columns: Sequence[TableColumn], first: int | None) -> bytes:
    """Format rows, with numbers from `first` on as one more column unless it is None.

    Raises:
        SinkError: A value does not fit its column without loss.
    """
    arrays = [_text(array, to) for array, to in zip(rows.columns, columns, strict=True)]
    if first is not None:
        arrays.append(pa.array(range(first, first + rows.num_rows), pa.int64()))
    out = io.BytesIO()
    batch = pa.RecordBatch.from_arrays(arrays, [str(n) for n in range(len(arrays))])
    csv.write_csv(batch, out, _OPTIONS)
    return out.getvalue()


def _text(array: pa.Array, to: TableColumn) -> pa.Array:
    """An array that Arrow writes in the form that the column reads."""
    kind = array.type
    if pa.types.is_dictionary(kind):
        return _text(array.dictionary_decode(), to)
    if pa.types.is_nested(kind):
        if not to.is_array:
            return _texts(array, _json(kind))
        exact = pa.list_(_exact(kind.value_type, to))
        return _texts(_unchanged(array, exact, to), _literal)
    if is_binary(kind):
        return _texts(array, _hex)
    return _unchanged(array, _exact(kind, to), to)


def _unchanged(array: pa.Array, exact: pa.DataType, to: TableColumn) -> pa.Array:
    if array.type == exact:
        return array
    try:
        return array.cast(exact)
    except pa.ArrowInvalid as error:
        raise SinkError(
            f"column {to.name!r} of the table would change a value of type {array.type}: {error}; "
            "round it in the stream, or give the table's column more digits"
        ) from None


def _exact(kind: pa.DataType, to: TableColumn) -> pa.DataType:
    """A type with no more digits than the column; casting to it fails if digits would be lost."""
    if pa.types.is_decimal(kind) and to.scale is not None and to.scale < kind.scale:
        make = pa.decimal256 if kind.precision > 38 else pa.decimal128
        return make(76 if kind.precision > 38 else 38, to.scale)
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", "UTC" if kind.tz else None)
    if pa.types.is_time64(kind):
        return pa.time64("us")
    if pa.types.is_float16(kind):
        return pa.float32()
    return kind


def _texts(array: pa.Array, text: Callable[[Any], str]) -> pa.Array:
    values = [None if value is None else text(value) for value in array.to_pylist()]
    return pa.array(values, pa.large_string())


def _hex(value: bytes) -> str:
    return "\\x" + value.hex()


def _literal(value: Any) -> str:
    """A value of an array column, or of one of its elements."""
    match value:
        case None:
            return "NULL"
        case list():
            return "{" + ",".join(map(_literal, value)) + "}"
        case bytes():
            return f'"\\{_hex(value)}"'
        case str():
            return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
        case float() | int():
            return repr(value).lower()
        case _:
            return f'"{value}"'


def _json(kind: pa.DataType) -> Callable[[Any], str]:
    plain = _plain(kind)

    def encode(value: Any) -> str:
        return _JSON.encode(plain(value)).decode()

    return encode


def _plain(kind: pa.DataType) -> Callable[[Any], Any]:
    """Function that turns values of a type into their JSON form."""
    if pa.types.is_struct(kind):
        fields = [(field.name, _plain(field.type)) for field in kind]
        return lambda value: value and {name: plain(value[name]) for name, plain in fields}
    if pa.types.is_map(kind):
        items = _plain(kind.item_type)
        return lambda value: None if value is None else {_key(k): items(v) for k, v in value}
    if is_list(kind):
        element = _plain(kind.value_type)
        return lambda value: None if value is None else [element(e) for e in value]
    return json_float if pa.types.is_floating(kind) else lambda value: value


def _key(value: Any) -> str:
    return value if isinstance(value, str) else _JSON.encode(value).decode().strip('"')
