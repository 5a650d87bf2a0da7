"""Codecs of Arrow and Spark types.

A struct takes a tuple, a named tuple, a Row or a dict, and returns events; arrays are lists
and maps are dicts. Values keep more than a column would: a decimal its digits, a timestamp
its zone, a float its precision. A value that does not fit a column of the type is refused.
"""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from types import GenericAlias
from typing import TYPE_CHECKING, Any, Optional

import pyarrow as pa

from holdfast.serde.codec import Codec, Reading
from holdfast.serde.exact import advice_for
from holdfast.serde.msgpack import class_check, python_codec, refusal, refuse
from holdfast.serde.reading import typed_reading
from holdfast.types.arrow import canonical, ddl_of, leaf_of
from holdfast.types.event import Event, event_class
from holdfast.types.mismatch import ValueMismatch
from holdfast.types.schema import columns_schema

if TYPE_CHECKING:
    from collections.abc import Callable

    Lower = Callable[[Any], Any]
    """From a value to a value of the Python type."""

    Raise = Callable[[Any], Any]
    """From a value of the Python type to the value that readers get."""


def columns_codec(column: pa.DataType) -> Codec:
    """Codec of an Arrow type.

    Raises:
        TypeDeclarationError: The type cannot be used.
    """
    column = canonical(column)
    spec = _python_type(column)
    base = python_codec(spec)
    raised = _raising(column)
    schema = columns_schema(column)
    is_scalar = not pa.types.is_nested(column)
    classes = frozenset({base.exact_type}) if base.exact_type and is_scalar else frozenset()
    return Codec(
        encode=_refusing(column, _lowering(column), base.encode),
        decode=_raised(raised, base.decode),
        check=class_check(classes, ddl_of(column)) if classes else _kind_check(column),
        schema=schema,
        exact_type=base.exact_type if is_scalar else None,
        # A struct may be written as another class than it is read as, so readers must not
        # get the object that was written.
        immutable=base.immutable and is_scalar,
        canonical=base.canonical and is_scalar,
        reading=lambda stored: _reading(
            typed_reading(stored, schema, spec, _null, base.decode), raised
        ),
    )


def _reading(reading: Reading, raised: Raise | None) -> Reading:
    if reading.decode is None:
        return reading
    return Reading(reading.resolution, _raised(raised, reading.decode))


def _raised(raised: Raise | None, decode: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    return decode if raised is None else lambda data: raised(decode(data))


def _null(struct: str, name: str) -> None:
    """Default of a field that was not stored; only nullable fields can be added."""


def _python_type(column: pa.DataType) -> Any:
    of = pa.types
    if of.is_struct(column):
        return GenericAlias(tuple, tuple(_of_field(field) for field in column))
    if of.is_map(column):
        return GenericAlias(dict, (_python_type(column.key_type), _of_field(column.item_field)))
    if of.is_nested(column):
        return GenericAlias(list, (_of_field(column.value_field),))
    leaf = leaf_of(column)
    assert leaf is not None
    return leaf.python


def _of_field(field: pa.Field) -> Any:
    python = _python_type(field.type)
    return Optional[python] if field.nullable else python  # noqa: UP045


def _kind_check(column: pa.DataType) -> Callable[[Any], None]:
    wanted: tuple[type, ...] = (list, tuple)
    if pa.types.is_struct(column):
        wanted = (tuple, dict)
    elif pa.types.is_map(column):
        wanted = (dict,)

    def check(value: Any) -> None:
        if not isinstance(value, wanted):
            refuse(ddl_of(column), value)

    return check


def _lowering(column: pa.DataType) -> Lower:
    of = pa.types
    if of.is_struct(column):
        return _lower_struct(column)
    if of.is_map(column):
        return _lower_map(column)
    if of.is_nested(column):
        return _lower_list(column)
    if of.is_integer(column):
        return _lower_integer(column)
    if of.is_decimal(column):
        return _lower_decimal(column)
    if of.is_timestamp(column):
        return _lower_timestamp(column)
    return _lower_exact(column)


def _mismatch(column: pa.DataType, value: Any, advice: str = "") -> ValueMismatch:
    declared = ddl_of(column)
    return ValueMismatch(0, value, advice or advice_for(declared, value), declared)


def _refusing(column: pa.DataType, lower: Lower, encode: Callable[[Any], bytes]) -> Any:
    whole = ddl_of(column)

    def lowered(value: Any) -> bytes:
        try:
            return encode(lower(value))
        except ValueMismatch as mismatch:
            raise refusal(whole, mismatch) from None

    return lowered


def _lower_exact(column: pa.DataType) -> Lower:
    cls = _python_type(column)

    def lower(value: Any) -> Any:
        if type(value) is not cls:
            raise _mismatch(column, value)
        return value

    return lower


def _lower_integer(column: pa.DataType) -> Lower:
    limit = 1 << (column.bit_width - 1)

    def lower(value: Any) -> Any:
        if type(value) is not int:
            raise _mismatch(column, value)
        if not -limit <= value < limit:
            raise _mismatch(column, value, "it is out of range; declare a wider type")
        return value

    return lower


def _lower_decimal(column: pa.DataType) -> Lower:
    whole, scale = column.precision - column.scale, column.scale
    advice = f"it has more than {whole} digits before the point or {scale} after it"

    def lower(value: Any) -> Any:
        if type(value) is not Decimal:
            raise _mismatch(column, value)
        if not value.is_finite():
            raise _mismatch(column, value, "a decimal is a finite number")
        if (value and value.adjusted() >= whole) or value.as_tuple().exponent < -scale:
            raise _mismatch(column, value, advice)
        return value

    return lower


def _lower_timestamp(column: pa.DataType) -> Lower:
    zoned = column.tz is not None
    advice = "give it a zone, or declare timestamp_ntz" if zoned else "take its zone away"

    def lower(value: Any) -> Any:
        if type(value) is not datetime:
            raise _mismatch(column, value)
        if (value.tzinfo is not None) is not zoned:
            raise _mismatch(column, value, advice)
        return value

    return lower


def _lower_list(column: pa.DataType) -> Lower:
    item = _lower_field(column.value_field)

    def lower(value: Any) -> Any:
        if not isinstance(value, list | tuple):
            raise _mismatch(column, value)
        lowered: list[Any] = []
        try:
            lowered.extend(map(item, value))
        except ValueMismatch as mismatch:
            mismatch.path = f"[{len(lowered)}]{mismatch.path}"
            raise
        return lowered

    return lower


def _lower_map(column: pa.DataType) -> Lower:
    key, item = _lowering(column.key_type), _lower_field(column.item_field)

    def lower(value: Any) -> Any:
        if not isinstance(value, dict):
            raise _mismatch(column, value)
        lowered = {}
        for name, inner in value.items():
            try:
                lowered[key(name)] = item(inner)
            except ValueMismatch as mismatch:
                mismatch.path = f"[{name!r}]{mismatch.path}"
                raise
        return lowered

    return lower


def _lower_struct(column: pa.DataType) -> Lower:
    names = tuple(field.name for field in column)
    fields = [_lower_field(field) for field in column]
    advice = f"a struct takes a tuple, Row or dict with the fields {', '.join(names)}"

    def lower(value: Any) -> Any:
        values = value if type(value) is tuple else _field_values(value, names)
        if values is None or len(values) != len(fields):
            raise _mismatch(column, value, advice)
        lowered: list[Any] = []
        try:
            for field, inner in zip(fields, values, strict=True):
                lowered.append(field(inner))
        except ValueMismatch as mismatch:
            mismatch.path = f".{names[len(lowered)]}{mismatch.path}"
            raise
        return tuple(lowered)

    return lower


def _lower_field(field: pa.Field) -> Lower:
    lower = _lowering(field.type)
    if not field.nullable:
        return lower
    return lambda value: None if value is None else lower(value)


def _field_values(value: Any, names: tuple[str, ...]) -> tuple[Any, ...] | None:
    """Values in the order of the names; None if the value has other fields."""
    if isinstance(value, dict):
        if value.keys() != set(names):
            return None
        return tuple(value[name] for name in names)
    if not isinstance(value, tuple) or len(value) != len(names):
        return None
    own = value._columns if isinstance(value, Event) else getattr(value, "_fields", None)
    own = tuple(getattr(value, "__fields__", own or names))
    if own == names or not set(own) & set(names):
        return tuple(value)
    if set(own) != set(names):
        return None
    by_name = dict(zip(own, tuple(value), strict=True))
    return tuple(map(by_name.__getitem__, names))


def _raising(column: pa.DataType) -> Raise | None:
    of = pa.types
    if of.is_struct(column):
        return _raise_struct(column)
    if of.is_map(column):
        return _raise_map(column)
    if of.is_nested(column):
        item = _raising(column.value_type)
        return item and (lambda values: [v if v is None else item(v) for v in values])
    return None


def _raise_map(column: pa.DataType) -> Raise | None:
    key, item = _raising(column.key_type), _raising(column.item_type)
    if key is None and item is None:
        return None
    return lambda values: {
        key(name) if key else name: item(inner) if item and inner is not None else inner
        for name, inner in values.items()
    }


def _raise_struct(column: pa.DataType) -> Raise:
    cls = event_class(tuple(field.name for field in column))
    fields = [_raising(field.type) for field in column]
    if not any(fields):
        return cls
    return lambda values: cls(
        field(inner) if field and inner is not None else inner
        for field, inner in zip(fields, values, strict=True)
    )
