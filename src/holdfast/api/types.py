"""What a stream carries, and how it was declared."""

from __future__ import annotations

import builtins
import collections.abc
import functools
import inspect
import types
import typing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

import pyarrow as pa

from holdfast.api.annotations import (
    Annotation,
    column_type,
    described,
    needs_rebuilding,
    origin_of,
    struct_members,
    unwrapped,
)
from holdfast.api.ddl import array_of, ddl_of, map_of, parse_ddl, parse_json
from holdfast.api.output import OutputTag
from holdfast.errors import TypeDeclarationError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from holdfast.api.compatibility import StateCompatibility

Kind = Literal["row", "value", "object"]
"""How a stream's elements lie in columns; see `StreamType`."""

VALUE_COLUMN = "value"
"""Name of the only column of a stream of bare values or of objects."""


@runtime_checkable
class StateSerializer(Protocol):
    """How a user's own class becomes bytes in state, and comes back.

    `deserialize(serialize(value))` must equal `value`, in every later version of the
    program that is to read the state.
    """

    def serialize(self, value: Any, /) -> bytes:
        """Bytes of a value."""

    def deserialize(self, data: bytes, /) -> Any:
        """Value of bytes that `serialize` once gave."""


@runtime_checkable
class EvolvingStateSerializer(StateSerializer, Protocol):
    """A serializer whose bytes may change from one version of the program to the next.

    A serializer may have either method, or both. Without `compatibility`, state is read by a
    serializer of the same class and the same snapshot only.
    """

    def snapshot(self) -> dict[str, Any]:
        """What a later version has to know to read the bytes; stored with the state, as JSON."""

    def compatibility(self, stored: dict[str, Any], /) -> StateCompatibility:
        """Whether and how this serializer reads bytes that were written under a snapshot.

        Args:
            stored: What `snapshot` gave when the state was written; empty if the serializer
                had no such method then.
        """


@dataclass(frozen=True, slots=True)
class StreamType:
    """What a stream carries.

    A `row` has named columns; its elements are events, or instances of `element`. A
    `value` is one bare value, in the column "value". An `object` is any Python object,
    pickled into that column: it needs no declaration, and is the slowest.
    """

    kind: Kind
    schema: pa.Schema
    element: Annotation = None
    """Declared Python type, where columns alone do not give its values back."""

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
        if isinstance(spec, str):
            return _of_columns(parse_ddl(spec))
        if isinstance(spec, pa.Schema | pa.DataType):
            return _of_columns(spec)
        if (json := spark_json(spec)) is not None:
            return _of_columns(parse_json(json))
        if spec is Any or spec is object:
            return OBJECTS
        return _of_annotation(spec)

    @property
    def columns(self) -> tuple[str, ...]:
        """Column names, in order."""
        return tuple(self.schema.names)

    @property
    def nullable(self) -> StreamType:
        """The same type, with every column allowed to be null."""
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


def declared_output(fn: Callable[..., Any], *, per_element: bool) -> StreamType | None:
    """Stream type a function's return annotation declares, or None.

    None also stands for an annotation that has no columnar form or names something
    that does not exist at run time: an annotation describes, it does not oblige.

    Args:
        fn: Function, method, `functools.partial`, class, or object with `__call__`.
        per_element: The function returns one element, as for `map`. Otherwise it
            returns or yields many, and the annotation's item counts; a member
            `tuple[OutputTag, X]` of a union there is a side output and is left out.
    """
    annotation = return_annotation(fn)
    if not per_element:
        annotation = _main_output(_item(annotation))
    if annotation in (None, type(None), inspect.Signature.empty, Any, object):
        return None
    try:
        return StreamType.of(annotation)
    except TypeDeclarationError:
        return None


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
        return _canonical_field(field)
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


def return_annotation(fn: Callable[..., Any]) -> Annotation:
    """What a function says that it returns; None if nothing, or nothing that can be found."""
    if isinstance(fn, functools.partial):
        return return_annotation(fn.func)
    if isinstance(fn, type):
        return fn
    if not isinstance(fn, types.FunctionType | types.MethodType):
        fn = getattr(fn, "__call__", fn)  # noqa: B004
    annotation = getattr(fn, "__annotations__", {}).get("return")
    return _resolved(annotation, fn) if isinstance(annotation, str) else annotation


def _resolved(annotation: str, fn: Callable[..., Any]) -> Annotation:
    inner = inspect.unwrap(fn)
    # Names imported for type checkers only are mostly these, so offer them.
    scope = vars(builtins) | vars(typing) | vars(collections.abc) | {"OutputTag": OutputTag}
    scope |= getattr(inner, "__globals__", {}) | _closure(inner)
    try:
        return eval(annotation, scope)
    except Exception:
        return None


def _closure(fn: Callable[..., Any]) -> dict[str, Any]:
    code = getattr(fn, "__code__", None)
    cells = getattr(fn, "__closure__", None) or ()
    filled = {}
    for name, cell in zip(code.co_freevars if code else (), cells, strict=False):
        try:
            filled[name] = cell.cell_contents
        except ValueError:
            continue
    return filled


def _item(annotation: Annotation) -> Annotation:
    core, _ = unwrapped(annotation)
    origin = origin_of(core)
    arguments = typing.get_args(core)
    iterable = isinstance(origin, type) and issubclass(origin, collections.abc.Iterable)
    if not iterable or not arguments or issubclass(origin, collections.abc.Mapping):
        return None
    if origin is tuple and arguments[1:] != (...,):
        return None
    return arguments[0]


def _main_output(annotation: Annotation) -> Annotation:
    if origin_of(annotation) not in (typing.Union, types.UnionType):
        return None if _is_tagged(annotation) else annotation
    kept = [member for member in typing.get_args(annotation) if not _is_tagged(member)]
    return functools.reduce(lambda left, right: left | right, kept) if kept else None


def _is_tagged(annotation: Annotation) -> bool:
    arguments = typing.get_args(annotation)
    return origin_of(annotation) is tuple and arguments[:1] == (OutputTag,)
