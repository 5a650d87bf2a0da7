"""Chooses the codec of a declared type.

`decode(encode(value))` returns an equal value of the same classes, or `encode` raises:

* Classes are exact at every level: a bool is not an int, an int is not a float, a tuple is
  not a list, and an instance of a subclass is not of the declared class.
* Integers may be of any size. NaN, the digits of a Decimal and the order of a dict are
  kept. A naive datetime stays naive; an aware one keeps its `timezone` or `ZoneInfo`
  and its `fold`; other zone classes are refused.
* Untyped parts (`Any` inside a container, a bare `list` or `dict`) may contain None, bool,
  int, float, str, bytes, and lists and dicts of them.
* A dataclass, a Struct or a NamedTuple keeps its declared fields and no other attributes;
  `__post_init__` runs when it is read.

`encode` checks the whole value, `check` only its class. Call `check` when a value is set, so
that a mistake is reported where it was made.
"""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa

from holdfast.errors import StateValueError
from holdfast.serde.arrow import columns_codec
from holdfast.serde.avro import avro_codec
from holdfast.serde.codec import Codec, let_pass
from holdfast.serde.custom import serializer_codec
from holdfast.serde.msgpack import python_codec
from holdfast.types.avro import AvroSchema
from holdfast.types.columns.pickling import pickle_one
from holdfast.types.ddl import declared_columns
from holdfast.types.schema import FORMAT
from holdfast.types.serializers import StateSerializer

__all__ = ["Codec", "codec_for"]


def codec_for(spec: Any) -> Codec:
    """Codec of a state declared with `spec`.

    Args:
        spec: A Python type (builtin, container, dataclass, `msgspec.Struct`, `NamedTuple`,
            `TypedDict`, Enum), an Arrow or Spark type or DDL string, an `AvroSchema`, an
            object with `serialize` and `deserialize`, or None or Any for pickled values.

    Raises:
        StateDescriptorError: The type cannot be stored exactly; the message says why.
        TypeDeclarationError: The Arrow, Spark or DDL type cannot be used.
    """
    if isinstance(spec, Codec):
        return spec
    if spec is None or spec is Any or spec is object:
        return _PICKLED
    if isinstance(spec, AvroSchema):
        return avro_codec(spec)
    if isinstance(spec, StateSerializer):
        return serializer_codec(spec)
    columns = declared_columns(spec)
    if columns is None:
        return python_codec(spec)
    is_row = isinstance(columns, pa.Schema)
    return columns_codec(pa.struct(list(columns)) if is_row else columns)


def _pickle(value: Any) -> bytes:
    try:
        return pickle_one(value)
    except Exception as error:
        raise StateValueError(
            f"a state without a type cannot hold a {type(value).__name__}, which does not pickle: "
            f"{error}; declare a type, or pass an object with serialize and deserialize"
        ) from error


_PICKLED = Codec(
    encode=_pickle,
    decode=pickle.loads,
    check=let_pass,
    schema={"format": FORMAT, "kind": "pickle"},
    pickled=True,
)
