"""Turns Python's type annotations into Arrow types.

Classes that name their fields (dataclasses, `msgspec.Struct`, `NamedTuple`,
`TypedDict`) become structs, containers become lists and maps, `T | None` makes a
column nullable; without it the column is NOT NULL.
"""

from __future__ import annotations

import collections.abc as abc
import dataclasses
import enum
import types
import typing
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

import msgspec
import pyarrow as pa

from holdfast.errors import TypeDeclarationError
from holdfast.types.arrow import PYTHON_TYPES, array_of, map_of

Annotation = Any
"""A Python type as written in an annotation."""

_SEQUENCES: dict[Annotation, type] = {
    list: list,
    abc.Sequence: list,
    abc.MutableSequence: list,
    abc.Collection: list,
    abc.Iterable: list,
    tuple: tuple,
    set: set,
    abc.Set: set,
    abc.MutableSet: set,
    frozenset: frozenset,
}

_MAPPINGS = (dict, abc.Mapping, abc.MutableMapping)

_ADVICE: dict[Annotation, str] = {
    timedelta: "declare int and store a number of microseconds",
    UUID: "declare str and store str(value)",
    complex: "declare tuple[float, float]",
    bytearray: "declare bytes",
    memoryview: "declare bytes",
    Any: "declare what it holds; only a whole element may be Any, and is then pickled",
    object: "declare what it holds; only a whole element may be object, and is then pickled",
}

_UNIONS = (typing.Union, types.UnionType)
_WRAPPERS = (typing.Annotated, typing.Required, typing.NotRequired)


@dataclass(frozen=True, slots=True)
class Member:
    """One field of a class that describes rows."""

    name: str
    annotation: Annotation
    required: bool = True
    """False for a `TypedDict` key that may be left out."""


def column_type(annotation: Annotation) -> tuple[pa.DataType, bool]:
    """Arrow type of an annotation, and whether it includes None.

    Raises:
        TypeDeclarationError: The annotation has no columnar form.
    """
    return _column_type(annotation, ())


def unwrapped(annotation: Annotation) -> tuple[Annotation, bool]:
    """Annotation without aliases and without None, and whether None was in it."""
    nullable = False
    while True:
        origin = origin_of(annotation)
        if origin in _WRAPPERS:
            annotation = typing.get_args(annotation)[0]
        elif isinstance(annotation, typing.NewType):
            annotation = annotation.__supertype__
        elif type(annotation).__name__ == "TypeAliasType":
            annotation = annotation.__value__
        elif origin in _UNIONS:
            others = [arg for arg in typing.get_args(annotation) if arg is not type(None)]
            if len(others) == len(typing.get_args(annotation)) or len(others) > 1:
                return annotation, nullable
            annotation, nullable = others[0], True
        else:
            return annotation, nullable


def origin_of(annotation: Annotation) -> Annotation:
    """Origin of a parametrised annotation: `list` for `list[int]`; else None."""
    return typing.get_origin(annotation)


def is_row_class(annotation: Annotation) -> bool:
    """Whether the annotation is a class that names its fields."""
    return isinstance(annotation, type) and (
        dataclasses.is_dataclass(annotation)
        or issubclass(annotation, msgspec.Struct)
        or _is_named_tuple(annotation)
        or is_typed_dict(annotation)
    )


def is_typed_dict(annotation: Annotation) -> bool:
    """Whether the annotation is a `TypedDict`, from `typing` or `typing_extensions`."""
    return (
        isinstance(annotation, type)
        and issubclass(annotation, dict)
        and hasattr(annotation, "__required_keys__")
    )


def members(cls: type) -> tuple[Member, ...]:
    """Fields of a class that describes rows, in order.

    Raises:
        TypeDeclarationError: A field's annotation cannot be resolved.
    """
    hints = _hints(cls)
    if dataclasses.is_dataclass(cls):
        return tuple(Member(field.name, hints[field.name]) for field in dataclasses.fields(cls))
    if issubclass(cls, msgspec.Struct):
        return tuple(Member(name, hints[name]) for name in cls.__struct_fields__)
    if issubclass(cls, tuple):
        names: tuple[str, ...] = getattr(cls, "_fields", ())
        return tuple(Member(name, hints[name]) for name in names)
    required: frozenset[str] = getattr(cls, "__required_keys__", frozenset())
    return tuple(
        Member(name, hint, _is_required(hint, default=name in required))
        for name, hint in hints.items()
    )


def sequence_parts(annotation: Annotation) -> tuple[type, Annotation] | None:
    """Container class and item type of `list[T]`, `tuple[T, ...]` and `set[T]`; else None."""
    origin = origin_of(annotation)
    arguments = typing.get_args(annotation)
    if origin not in _SEQUENCES or (origin is tuple and arguments[1:] != (...,)):
        return None
    return _SEQUENCES[origin], arguments[0]


def mapping_parts(annotation: Annotation) -> tuple[Annotation, Annotation] | None:
    """Key and value types of `dict[K, V]`; else None."""
    if origin_of(annotation) not in _MAPPINGS:
        return None
    key, value = typing.get_args(annotation)
    return key, value


def struct_members(annotation: Annotation) -> tuple[Member, ...] | None:
    """Fields of a row class, or of `tuple[A, B]` as f0 and f1; else None."""
    if is_row_class(annotation):
        return members(annotation)
    if origin_of(annotation) is tuple and typing.get_args(annotation)[1:] != (...,):
        return tuple(Member(f"f{i}", arg) for i, arg in enumerate(typing.get_args(annotation)))
    return None


def needs_rebuilding(annotation: Annotation) -> bool:
    """Whether values read from columns must be converted to classes of the annotation."""
    core, _ = unwrapped(annotation)
    if is_row_class(core) or (isinstance(core, type) and issubclass(core, enum.Enum)):
        return True
    if parts := sequence_parts(core):
        return parts[0] is not list or needs_rebuilding(parts[1])
    return any(needs_rebuilding(arg) for arg in _inner(core))


def described(annotation: Annotation) -> str:
    """The annotation as its author would write it."""
    if origin_of(annotation) is None and isinstance(annotation, type):
        return annotation.__qualname__
    return str(annotation).replace("typing.", "")


def _inner(core: Annotation) -> tuple[Annotation, ...]:
    if parts := mapping_parts(core):
        return parts
    return tuple(member.annotation for member in struct_members(core) or ())


def _column_type(annotation: Annotation, inside: tuple[type, ...]) -> tuple[pa.DataType, bool]:
    core, nullable = unwrapped(annotation)
    if core in PYTHON_TYPES:
        return PYTHON_TYPES[core], nullable or core is type(None)
    if parts := sequence_parts(core):
        item, item_nullable = _column_type(parts[1], inside)
        return array_of(item, nullable=item_nullable), nullable
    if pair := mapping_parts(core):
        return _map_type(pair, inside), nullable
    fields = struct_members(core)
    if fields is not None:
        return _struct_type(core, fields, inside), nullable
    if origin_of(core) is typing.Literal:
        return _values_type(core, typing.get_args(core)), nullable
    if isinstance(core, type) and issubclass(core, enum.Enum):
        return _values_type(core, tuple(member.value for member in core)), nullable
    raise TypeDeclarationError(_refusal(core))


def _map_type(pair: tuple[Annotation, Annotation], inside: tuple[type, ...]) -> pa.DataType:
    key, key_nullable = _column_type(pair[0], inside)
    if key_nullable:
        raise TypeDeclarationError("the keys of a map cannot be None; declare them without it")
    value, nullable = _column_type(pair[1], inside)
    return map_of(key, value, nullable=nullable)


def _struct_type(
    core: Annotation, fields: tuple[Member, ...], inside: tuple[type, ...]
) -> pa.DataType:
    if core in inside:
        raise TypeDeclarationError(
            f"{described(core)} contains itself and has no columnar form; "
            "declare Any to pickle it whole"
        )
    columns = []
    for field in fields:
        try:
            column, nullable = _column_type(field.annotation, (*inside, core))
        except TypeDeclarationError as error:
            raise TypeDeclarationError(f"{described(core)}.{field.name}: {error}") from None
        if nullable and not field.required:
            raise TypeDeclarationError(
                f"{described(core)}.{field.name}: a key that may be left out cannot also be None, "
                "a column has one null for both; declare one of the two"
            )
        columns.append(pa.field(field.name, column, nullable=nullable or not field.required))
    if not columns:
        raise TypeDeclarationError(f"{described(core)} has no fields, so it has no columns")
    return pa.struct(columns)


def _values_type(core: Annotation, values: tuple[object, ...]) -> pa.DataType:
    classes = {int if issubclass(type(v), int) else type(v) for v in values}
    if any(isinstance(v, bool) for v in values) or classes not in ({int}, {str}):
        raise TypeDeclarationError(
            f"{described(core)} has no columnar form: its values must be all str or all int"
        )
    return PYTHON_TYPES[classes.pop()]


def _refusal(core: Annotation) -> str:
    advice = _ADVICE.get(core)
    if advice is None and (core in _SEQUENCES or core in _MAPPINGS):
        example = "dict[str, int]" if core in _MAPPINGS else "list[int]"
        advice = f"say what it holds, as in {example}"
    if advice is None and origin_of(core) in _UNIONS:
        advice = "a column has one type; declare it, or Any to pickle whole elements"
    if advice is None:
        advice = (
            "declare a builtin type, a dataclass, NamedTuple, TypedDict or msgspec.Struct, "
            "or Any to pickle whole elements"
        )
    return f"{described(core)} has no columnar form; {advice}"


def _hints(cls: type) -> dict[str, Annotation]:
    try:
        hints = typing.get_type_hints(cls, include_extras=True)
    except NameError as error:
        raise TypeDeclarationError(
            f"{cls.__qualname__}: the annotation of a field names {error.name!r}, which cannot be "
            "found; define it at the top level of the module, outside `if TYPE_CHECKING`"
        ) from None
    for name, hint in hints.items():
        if isinstance(hint, dataclasses.InitVar):
            raise TypeDeclarationError(
                f"{cls.__qualname__}.{name}: an InitVar is not kept, so rows cannot be rebuilt; "
                "make it a field"
            )
    return hints


def _is_named_tuple(cls: type) -> bool:
    fields: tuple[str, ...] = getattr(cls, "_fields", ())
    declared: dict[str, Annotation] = getattr(cls, "__annotations__", {})
    return issubclass(cls, tuple) and bool(fields) and declared.keys() >= set(fields)


def _is_required(hint: Annotation, *, default: bool) -> bool:
    # With postponed annotations the class itself does not see these wrappers.
    origin = origin_of(hint)
    if origin is typing.NotRequired:
        return False
    return default or origin is typing.Required
