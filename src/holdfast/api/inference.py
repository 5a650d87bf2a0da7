"""The type of a collection, from its elements."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from holdfast.api.types import StreamType
from holdfast.errors import TypeDeclarationError

if TYPE_CHECKING:
    from collections.abc import Sequence


def infer_type(elements: Sequence[Any]) -> StreamType:
    """Type that all of `elements` have; pickled objects if they have none in common."""
    if not elements:
        raise TypeDeclarationError(
            "the type of an empty collection cannot be inferred; give type_info, such as "
            '"url string, count bigint"'
        )
    classes = {type(element) for element in elements if element is not None}
    if len(classes) != 1:
        return StreamType.of(Any)
    cls = classes.pop()
    # No row is None, and a column would give the others back as lists and bytes.
    has_none = any(element is None for element in elements)
    if (has_none and _is_row(cls)) or issubclass(cls, set | frozenset | bytearray):
        return StreamType.of(Any)
    try:
        return StreamType.of(cls) if _has_hints(cls) else _columnar(cls, elements)
    except _NO_COLUMNS:
        return StreamType.of(Any)


_NO_COLUMNS = (
    OverflowError,
    UnicodeEncodeError,
    TypeDeclarationError,
    pa.ArrowInvalid,
    pa.ArrowTypeError,
    pa.ArrowNotImplementedError,
)


def _is_row(cls: type) -> bool:
    return _has_hints(cls) or issubclass(cls, tuple | dict)


def _has_hints(cls: type) -> bool:
    if issubclass(cls, tuple):
        return hasattr(cls, "_fields") and bool(cls.__annotations__)
    return dataclasses.is_dataclass(cls) or issubclass(cls, msgspec.Struct)


def _columnar(cls: type, elements: Sequence[Any]) -> StreamType:
    first = next(element for element in elements if element is not None)
    if issubclass(cls, tuple):
        names = getattr(first, "_fields", None) or getattr(first, "__fields__", None)
        names = list(names or [f"f{i}" for i in range(len(first))])
        if {len(element) for element in elements} != {len(names)}:
            return StreamType.of(Any)
        columns = [pa.array(list(column)) for column in zip(*elements, strict=True)]
        return StreamType.of(_schema(names, columns))
    if issubclass(cls, dict) and all(isinstance(name, str) for name in first):
        if any(element.keys() != first.keys() for element in elements):
            return StreamType.of(Any)
        columns = [pa.array([element[name] for element in elements]) for name in first]
        return StreamType.of(_schema(list(first), columns))
    return StreamType.of(_type_of(pa.array(list(elements))))


def _schema(names: list[str], columns: list[pa.Array]) -> pa.Schema:
    return pa.schema([pa.field(n, _type_of(c)) for n, c in zip(names, columns, strict=True)])


def _type_of(column: pa.Array) -> pa.DataType:
    if pa.types.is_null(column.type):
        raise TypeDeclarationError("a column of nulls has no type")
    if pa.types.is_decimal(column.type):
        return _decimal(column.type)
    return column.type


def _decimal(kind: pa.DataType) -> pa.DataType:
    common = pa.decimal128(38, 18)
    if kind.scale > common.scale or kind.precision - kind.scale > common.precision - common.scale:
        raise TypeDeclarationError(f"{kind} does not fit into {common}")
    return common
