"""Checks that a value comes back from its bytes unchanged.

msgspec checks nothing when it encodes, and decodes by the declared type: a tuple in a
`list[int]` would return as a list, a datetime in Berlin as one in UTC. So a check with exact
classes at every level is compiled from the type's tree.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, time, timezone
from operator import countOf
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import msgspec.inspect as mi

from holdfast.errors import StateDescriptorError
from holdfast.types.mismatch import ValueMismatch
from holdfast.types.schema import (
    COLLECTIONS,
    PLAIN,
    SCALARS,
    ClassNode,
    class_of,
    name_of,
    own_classes,
    walk,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    Fits = Callable[[Any], bool]


_LIMITS = (
    "gt", "ge", "lt", "le", "multiple_of", "min_length", "max_length", "pattern", "tz",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Check:
    """Check whether a value comes back exactly."""

    fits: Fits
    classes: frozenset[type] | None = None
    """Classes that fit, if the class alone decides."""


def tree(spec: Any) -> mi.Type:
    """Tree of a Python type.

    Raises:
        StateDescriptorError: State cannot hold the type; the message says why.
    """
    try:
        root = mi.type_info(spec)
    except NameError as error:
        raise StateDescriptorError(
            f"the type {spec!r} names {error.name!r}, which cannot be found; define it at the top "
            "level of its module, outside `if TYPE_CHECKING`"
        ) from None
    except (TypeError, ValueError) as error:
        raise StateDescriptorError(f"state cannot hold the type {spec!r}: {error}") from None
    for node in walk(root):
        if isinstance(node, mi.CustomType | mi.RawType | mi.ExtType):
            cls = getattr(node, "cls", type(node))
            raise StateDescriptorError(
                f"state cannot hold the type {cls.__qualname__}; declare a dataclass, or pass an "
                "object with serialize(value) and deserialize(data) as the type"
            )
    return root


def is_limited(root: mi.Type) -> bool:
    """Whether the type has limits that only decoding checks, such as `Meta(gt=0)`."""
    return any(getattr(node, limit, None) is not None for node in walk(root) for limit in _LIMITS)


def compiled(root: mi.Type) -> Check:
    """Check whether plain MessagePack preserves a value of the type."""
    return _Compiler(_is_native_datetime, _is_native_time).check(root)


def compiled_extended(root: mi.Type) -> Check:
    """Check whether the extended form preserves a value of the type."""
    return _Compiler(_is_datetime, _is_time).check(root)


def mismatch_in(node: mi.Type, value: Any, path: str = "") -> ValueMismatch:
    """The innermost mismatch in a value that does not fit."""
    for step, child, inner in _parts(node, value):
        if not compiled_extended(child).fits(inner):
            return mismatch_in(child, inner, path + step)
    declared = name_of(node)
    return ValueMismatch(0, value, advice_for(declared, value), declared, path)


def advice_for(declared: str, value: Any) -> str:
    """Advice for a value that is not of the declared type."""
    if hasattr(value, "dtype"):
        return "write value.item() to get a Python number"
    if declared == "float" and type(value) is int:
        return "write float(value): an int would come back as a float"
    if declared == "any":
        return "an untyped place holds None, bool, int, float, str, bytes, list and dict"
    if isinstance(value, int) and declared == "int":
        return "write int(value): classes are kept exactly"
    return "convert it, or declare the type it has; classes are kept exactly"


class _Compiler:
    """Builds checks bottom up; a recursive class refers to its own cell."""

    def __init__(self, is_datetime: Fits, is_time: Fits) -> None:
        self._is_datetime = is_datetime
        self._is_time = is_time
        self._cells: dict[int, list[Fits]] = {}

    def check(self, node: mi.Type) -> Check:
        match node:
            case mi.Metadata():
                return self.check(node.type)
            case mi.AnyType():
                return Check(is_plain)
            case mi.EnumType():
                return _exactly(node.cls)
            case mi.DateTimeType():
                return Check(self._is_datetime)
            case mi.TimeType():
                return Check(self._is_time)
            case mi.LiteralType():
                allowed = frozenset((type(value), value) for value in node.values)
                return Check(lambda value: (type(value), value) in allowed)
            case mi.UnionType():
                return _any_of([self.check(member) for member in node.types])
            case mi.DictType():
                return self._dict(node)
            case mi.TupleType():
                return self._tuple(node)
            case mi.TypedDictType():
                return self._cell(node, self._typed_dict)
            case mi.DataclassType() | mi.StructType() | mi.NamedTupleType():
                return self._cell(node, self._class)
        if type(node) in COLLECTIONS:
            return self._collection(node)
        return _exactly(SCALARS[type(node)])

    def _cell(self, node: Any, build: Callable[[Any], Fits]) -> Check:
        cell = self._cells.get(id(node))
        if cell is None:
            cell = self._cells[id(node)] = []
            cell.append(build(node))
            return Check(cell[0])
        return Check(cell[0] if cell else lambda value: cell[0](value))

    def _collection(self, node: Any) -> Check:
        cls, all_fit = COLLECTIONS[type(node)], _all_fit(self.check(node.item_type))
        return Check(lambda value: type(value) is cls and all_fit(value))

    def _dict(self, node: mi.DictType) -> Check:
        if isinstance(node.key_type, mi.AnyType):
            keys_fit: Fits = _plain_keys
        else:
            keys_fit = _all_fit(self.check(node.key_type))
        values_fit = _all_fit(self.check(node.value_type))
        return Check(lambda v: type(v) is dict and keys_fit(v) and values_fit(v.values()))

    def _tuple(self, node: mi.TupleType) -> Check:
        parts = [(f"v[{i}]", self.check(item)) for i, item in enumerate(node.item_types)]
        return Check(_all_parts(tuple, f"len(v) == {len(parts)}", parts))

    def _typed_dict(self, node: mi.TypedDictType) -> Fits:
        checks = {field.name: self.check(field.type).fits for field in node.fields}
        required = {field.name for field in node.fields if field.required}

        def fits(value: Any) -> bool:
            return (
                type(value) is dict
                and required <= value.keys() <= checks.keys()
                and all(checks[name](item) for name, item in value.items())
            )

        return fits

    def _class(self, node: ClassNode) -> Fits:
        parts = [(f"v.{field.name}", self.check(field.type)) for field in node.fields]
        return _all_parts(class_of(node), "True", parts)


def _all_parts(cls: type, whole: str, parts: list[tuple[str, Check]]) -> Fits:
    # One generated expression takes half the time of a loop over the parts, and the check
    # runs on every update of a mutable value.
    names: dict[str, Any] = {"cls": cls}
    tests = ["type(v) is cls", whole]
    for place, (part, check) in enumerate(parts):
        name = f"n{place}"
        if check.classes is None:
            names[name], test = check.fits, f"{name}({part})"
        elif len(check.classes) == 1:
            (names[name],), test = check.classes, f"type({part}) is {name}"
        else:
            names[name], test = check.classes, f"type({part}) in {name}"
        tests.append(test)
    fits: Fits = eval(f"lambda v: {' and '.join(tests)}", names)
    return fits


def _exactly(cls: type) -> Check:
    return Check(lambda value: type(value) is cls, frozenset({cls}))


def _any_of(checks: list[Check]) -> Check:
    classes: frozenset[type] = frozenset().union(*(check.classes or () for check in checks))
    others = [check.fits for check in checks if check.classes is None]
    if not others:
        return Check(lambda value: type(value) in classes, classes)
    return Check(lambda value: type(value) in classes or any(fits(value) for fits in others))


def _all_fit(item: Check) -> Fits:
    if item.classes is None:
        fits = item.fits
        return lambda values: all(map(fits, values))
    if len(item.classes) == 1:
        (cls,) = item.classes
        return lambda values: countOf(map(type, values), cls) == len(values)
    classes = item.classes
    return lambda values: classes.issuperset(map(type, values))


def is_plain(value: Any) -> bool:
    """Whether an untyped value comes back unchanged: scalars, lists and dicts."""
    cls = type(value)
    if cls in PLAIN:
        return True
    if cls is list:
        return all(map(is_plain, value))
    return cls is dict and _plain_keys(value) and all(map(is_plain, value.values()))


def _plain_keys(keys: Any) -> bool:
    return all(type(key) in PLAIN or (type(key) is tuple and _plain_keys(key)) for key in keys)


def _is_native_datetime(value: Any) -> bool:
    # By identity: a zone equal to UTC may have another name, which would be lost.
    if type(value) is not datetime or value.fold:
        return False
    return value.tzinfo is None or value.tzinfo is UTC


def _is_native_time(value: Any) -> bool:
    return type(value) is time and value.tzinfo is None and value.fold == 0


def _is_datetime(value: Any) -> bool:
    return type(value) is datetime and _is_kept(value.tzinfo)


def _is_time(value: Any) -> bool:
    return type(value) is time and _is_kept(value.tzinfo)


def _is_kept(zone: Any) -> bool:
    return (
        zone is None
        or isinstance(zone, timezone)
        or (type(zone) is ZoneInfo and zone.key is not None)
    )


def _parts(node: mi.Type, value: Any) -> list[tuple[str, mi.Type, Any]]:
    """Parts of a value; empty if the value is not of the node's class."""
    if type(value) not in own_classes(node):
        return []
    match node:
        case mi.Metadata():
            return [("", node.type, value)]
        case mi.UnionType():
            fitting = [member for member in node.types if type(value) in own_classes(member)]
            return [("", member, value) for member in fitting]
        case mi.ListType() | mi.VarTupleType() | mi.SetType() | mi.FrozenSetType():
            return [(f"[{i}]", node.item_type, item) for i, item in enumerate(value)]
        case mi.TupleType() if len(value) == len(node.item_types):
            pairs = zip(node.item_types, value, strict=True)
            return [(f"[{i}]", child, item) for i, (child, item) in enumerate(pairs)]
        case mi.DictType():
            return _dict_parts(node, value)
        case mi.TypedDictType():
            types = {field.name: field.type for field in node.fields}
            known = [name for name in value if name in types]
            return [(f"[{name!r}]", types[name], value[name]) for name in known]
        case mi.DataclassType() | mi.StructType() | mi.NamedTupleType():
            return [(f".{f.name}", f.type, getattr(value, f.name)) for f in node.fields]
    return []


def _dict_parts(node: mi.DictType, value: dict[Any, Any]) -> list[tuple[str, mi.Type, Any]]:
    keys = [] if isinstance(node.key_type, mi.AnyType) else list(value)
    parts = [(f"[key {key!r}]", node.key_type, key) for key in keys]
    return parts + [(f"[{key!r}]", node.value_type, inner) for key, inner in value.items()]
