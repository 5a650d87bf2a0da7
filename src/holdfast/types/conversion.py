"""Converts values of a stored type to the declared type.

Works on plain values, as MessagePack decodes them without a type.
"""

from __future__ import annotations

from datetime import datetime, time
from typing import TYPE_CHECKING, Any, Final

from holdfast.errors import StateValueError
from holdfast.types.arrow import LEAVES
from holdfast.types.resolution import tag_of
from holdfast.types.trees import children_of, kind_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from holdfast.types.resolution import TypeResolver
    from holdfast.types.trees import Tree

    Convert = Callable[[Any], Any]
    Default = Callable[[str, str], Any]
    """Default of a field, by the names of its class and itself."""


class TypeConversion:
    """Conversions between types that a resolver has found compatible."""

    def __init__(self, resolver: TypeResolver, default: Default) -> None:
        """Conversions of a resolver's types; `default` fills in fields that were not stored."""
        self._resolver = resolver
        self._default = default
        self._classes: dict[tuple[str, str], list[Convert]] = {}

    def whole(self) -> Convert:
        """Conversion of the whole stored type to the declared type."""
        resolver = self._resolver
        return self._of(resolver.stored.root, resolver.declared.root) or (lambda value: value)

    def _of(self, stored: Tree, declared: Tree) -> Convert | None:
        """Conversion of one pair of types; None if values stay as they are."""
        options = self._resolver.options(stored, declared)
        members = [(member, self._pair(member, self._choice(member, o))) for member, o in options]
        if len(members) == 1:
            return members[0][1]
        if all(convert is None for _, convert in members):
            return None
        tests = [(_belonging(member), convert) for member, convert in members]

        def convert_member(value: Any) -> Any:
            for belongs, convert in tests:
                if belongs(value):
                    return value if convert is None else convert(value)
            raise StateValueError(f"{value!r} is of none of the types that the state had")

        return convert_member

    def _choice(self, member: Tree, options: list[Tree]) -> Tree:
        if len(options) == 1:
            return options[0]
        compared = self._resolver.compared
        fitting = (o for o in options if not compared(member, o, "", False, frozenset()).problems)
        return next(fitting)

    def _pair(self, stored: Tree, declared: Tree) -> Convert | None:
        kind = kind_of(declared)
        match kind_of(stored):
            case "class":
                return self._class_pair(stored, declared)
            case "dict" if kind == "dict":
                return _each_value(self._of(stored["dict"][1], declared["dict"][1]))
            case "tuple" if kind in ("tuple", "list", "tuple_of"):
                parts = children_of(stored)
                targets = declared["tuple"] if kind == "tuple" else [declared[kind]] * len(parts)
                return _each(map(self._of, parts, targets))
            case "list" | "tuple_of" | "set" | "frozenset" as name if kind != "any":
                return _each_item(self._of(stored[name], declared[kind]))
        return None

    def _class_pair(self, stored: Tree, declared: Tree) -> Convert:
        pair = (stored["class"], declared["class"])
        cell = self._classes.get(pair)
        if cell is None:
            cell = self._classes[pair] = []
            cell.append(self._class(stored, declared))
        return lambda value: cell[0](value)

    def _class(self, stored: Tree, declared: Tree) -> Convert:
        old = {field["name"]: field["type"] for field in stored["fields"]}
        new = {field["name"]: field["type"] for field in declared["fields"]}
        converts = {
            name: self._of(old[name], tree) or _same for name, tree in new.items() if name in old
        }
        read = _same if stored["wire"] == "map" else _array_reader(stored, list(old))
        tag = tag_of(declared)

        def converted(value: Any) -> dict[str, Any]:
            fields = read(value)
            return {name: f(fields[name]) for name, f in converts.items() if name in fields}

        if declared["wire"] == "map":
            head = {} if tag is None else dict([tag])
            return lambda value: head | converted(value)
        default, cls = self._default, declared["class"]

        def as_array(value: Any) -> list[Any]:
            fields = converted(value)
            items = [fields[n] if n in fields else default(cls, n) for n in new]
            return items if tag is None else [tag[1], *items]

        return as_array


def _same(value: Any) -> Any:
    return value


def _array_reader(stored: Tree, names: list[str]) -> Convert:
    head = 0 if tag_of(stored) is None else 1
    return lambda value: dict(zip(names, value[head:], strict=False))


def _each_value(convert: Convert | None) -> Convert | None:
    if convert is None:
        return None
    return lambda value: {key: convert(inner) for key, inner in value.items()}


def _each_item(convert: Convert | None) -> Convert | None:
    return None if convert is None else (lambda value: list(map(convert, value)))


def _each(converts: Iterable[Convert | None]) -> Convert | None:
    parts = [convert or _same for convert in converts]
    if all(part is _same for part in parts):
        return None
    return lambda value: [part(item) for part, item in zip(parts, value, strict=True)]


_DECODED: Final[dict[type, tuple[type, ...]]] = {
    bool: (bool,),
    int: (int,),
    float: (float,),
    bytes: (bytes,),
    datetime: (str, datetime),
    time: (str, time),
}
"""Classes that MessagePack decodes without a type; values of all other classes are str."""

_CLASSES: Final[dict[str, tuple[type, ...]]] = {
    "none": (type(None),),
    **{python.__name__: classes for python, classes in _DECODED.items()},
    **{leaf.described: _DECODED[leaf.python] for leaf in LEAVES if leaf.python in _DECODED},
    "bytearray": (bytes,),
    "dict": (dict,),
    "list": (list, tuple),
    "tuple": (list, tuple),
    "tuple_of": (list, tuple),
    "set": (list, tuple),
    "frozenset": (list, tuple),
}
"""Classes of plain values by kind; all other scalars are str."""


def _belonging(member: Tree) -> Callable[[Any], bool]:
    """Test whether a plain value belongs to a member of a union."""
    kind = kind_of(member)
    if kind == "class":
        return _class_test(member)
    if kind in ("literal", "enum"):
        classes = tuple({type(v) for v in member["values" if kind == "enum" else kind]})
    else:
        classes = _CLASSES.get(kind, (str,))
    return lambda value: type(value) in classes


def _class_test(member: Tree) -> Callable[[Any], bool]:
    tag = tag_of(member)
    if member["wire"] == "map":
        if tag is None:
            return lambda value: type(value) is dict
        name, mark = tag
        return lambda value: type(value) is dict and value.get(name) == mark
    if tag is None:
        return lambda value: isinstance(value, list | tuple)
    mark = tag[1]
    return lambda value: isinstance(value, list | tuple) and value[:1] in ([mark], (mark,))
