"""StreamType: the type of a stream's elements, declared or inferred."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import pyarrow as pa

from holdfast.errors import TypeDeclarationError
from holdfast.types.annotations import (
    Annotation,
    column_type,
    described,
    needs_rebuilding,
    struct_members,
    unwrapped,
)
from holdfast.types.arrow import PYTHON_TYPES, canonical, canonical_field, ddl_of
from holdfast.types.ddl import declared_columns

if TYPE_CHECKING:
    from collections.abc import Sequence


def infer_type(elements: Sequence[Any]) -> StreamType:
    """Common type of the elements; pickled objects if there is none."""
    if not elements:
        raise TypeDeclarationError(
            "the type of an empty collection cannot be inferred; give type_info, such as "
            '"url string, count bigint"'
        )
    classes = {type(element) for element in elements if element is not None}
    if len(classes) != 1:
        return StreamType.of(Any)
    cls = classes.pop()
    # A row cannot be None, and columns return sets as lists and bytearrays as bytes.
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
    common = PYTHON_TYPES[Decimal]
    if kind.scale > common.scale or kind.precision - kind.scale > common.precision - common.scale:
        raise TypeDeclarationError(f"{kind} does not fit into {common}")
    return common


Kind = Literal["row", "value", "object"]
"""How elements map to columns; see `StreamType`."""


VALUE_COLUMN = "value"
"""Name of the only column of a stream of bare values or of objects."""


@dataclass(frozen=True, slots=True)
class StreamType:
    """Type of a stream's elements.

    A `row` has named columns; its elements are events, or instances of `element`. A
    `value` is a single value in the column "value". An `object` is any Python object,
    pickled into that column; this is the slowest kind.
    """

    kind: Kind
    schema: pa.Schema
    element: Annotation = None
    """Declared Python type, if columns alone cannot restore its values."""

    @staticmethod
    def of(spec: Any) -> StreamType:
        """Stream type declared by `spec`.

        Args:
            spec: A Python type (builtin, container, dataclass, `NamedTuple`, `TypedDict`,
                `msgspec.Struct`; `Any` for pickled objects), an Arrow schema or type, a
                Spark type, a DDL string such as "url string, n bigint", or a StreamType.

        Raises:
            TypeDeclarationError: The type has no columnar form; the message says why.
        """
        if isinstance(spec, StreamType):
            return spec
        columns = declared_columns(spec)
        if columns is not None:
            return _of_columns(columns)
        if spec is Any or spec is object:
            return OBJECTS
        return _of_annotation(spec)

    @property
    def columns(self) -> tuple[str, ...]:
        """Column names, in order."""
        return tuple(self.schema.names)

    @property
    def nullable(self) -> StreamType:
        """The same type with all columns nullable."""
        fields = [pa.field(field.name, field.type) for field in self.schema]
        return StreamType(self.kind, pa.schema(fields), self.element)

    def __str__(self) -> str:
        """The type in words, for messages: `url string, n bigint`."""
        if self.kind == "object":
            return "untyped objects"
        if self.kind == "value":
            return ddl_of(self.schema.field(0).type)
        return ", ".join(f"{field.name} {ddl_of(field.type)}" for field in self.schema)


OBJECTS = StreamType("object", pa.schema([pa.field(VALUE_COLUMN, pa.binary(), nullable=False)]))
"""A stream of any Python objects, pickled."""

UNDECLARED = replace(OBJECTS)
"""The same where nobody has asked for it: equal to `OBJECTS`, but another object."""


def _of_columns(columns: pa.Schema | pa.DataType) -> StreamType:
    if isinstance(columns, pa.Schema) or pa.types.is_struct(columns):
        return _row(list(columns))
    return StreamType("value", pa.schema([pa.field(VALUE_COLUMN, canonical(columns))]))


def _row(fields: list[pa.Field], element: Annotation = None) -> StreamType:
    names = [field.name for field in fields]
    if not names:
        raise TypeDeclarationError("a stream of rows needs at least one column")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise TypeDeclarationError(
            f"two columns are named {twice[0]!r}; rename one, for example with select or alias"
        )
    return StreamType("row", pa.schema([_named(field) for field in fields]), element)


def _named(field: pa.Field) -> pa.Field:
    try:
        return canonical_field(field)
    except TypeDeclarationError as error:
        raise TypeDeclarationError(f"column {field.name!r}: {error}") from None


def _of_annotation(annotation: Annotation) -> StreamType:
    core, nullable = unwrapped(annotation)
    column, nullable = column_type(annotation)
    element = core if needs_rebuilding(core) else None
    if struct_members(core) is None:
        field = pa.field(VALUE_COLUMN, canonical(column), nullable=nullable)
        return StreamType("value", pa.schema([field]), annotation if element else None)
    if nullable:
        raise TypeDeclarationError(
            f"a stream of {described(annotation)} would carry rows that are None; leave them out "
            f"of the stream and declare {described(core)}"
        )
    return _row(list(column), element)
