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
    first = next(element for element in elements if element is not None)
    if dataclasses.is_dataclass(cls) or issubclass(cls, msgspec.Struct) or _has_hints(cls):
        return StreamType.of(cls)
    try:
        return _columnar(cls, first, elements)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, TypeDeclarationError):
        return StreamType.of(Any)


def _has_hints(cls: type) -> bool:
    return issubclass(cls, tuple) and hasattr(cls, "_fields") and bool(cls.__annotations__)


def _columnar(cls: type, first: Any, elements: Sequence[Any]) -> StreamType:
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
    column = pa.array(list(elements))
    return StreamType.of(_checked(column.type))


def _schema(names: list[str], columns: list[pa.Array]) -> pa.Schema:
    return pa.schema([pa.field(n, _checked(c.type)) for n, c in zip(names, columns, strict=True)])


def _checked(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_null(kind):
        raise TypeDeclarationError("a column of nulls has no type")
    if pa.types.is_decimal(kind):
        # Room for values that come later than the sample's own precision.
        return pa.decimal128(38, 18)
    return kind
