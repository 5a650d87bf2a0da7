"""Builds the column shape of a described type.

Works on descriptions (`types/schema.py`), without classes. A type that has no column type, or
whose struct would have no fields or ambiguous names, stays encoded: as a whole, or as a part
of another type.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from holdfast.state.tables.nested_shapes import (
    ArrayStructColumn,
    ListColumn,
    MapColumn,
    MapStructColumn,
)
from holdfast.state.tables.shapes import (
    DecimalColumn,
    OpaqueColumn,
    Shape,
    scalar_shape,
)
from holdfast.state.tables.union_shapes import TAG_FIELD, Member, UnionColumn, are_distinct
from holdfast.types.trees import short_name

if TYPE_CHECKING:
    from collections.abc import Sequence

_ARRAYS: Final = ("tuple", "list", "tuple_of", "set", "frozenset")
_SCALAR_WIRES: Final = {
    "bool": {"bool"},
    "int": {"int"},
    "float": {"float"},
    "bytes": {"bytes"},
    "bytearray": {"bytes"},
    "datetime": {"str", "ext"},
}
_TEXT: Final = frozenset({"str"})


def shape_of(described: Any) -> Shape:
    """Shape of a described type."""
    match described:
        case str():
            return scalar_shape(described) or OpaqueColumn()
        case {"union": members}:
            return _union(members)
        case {"literal": values} | {"enum": _, "values": values}:
            return _union(list(dict.fromkeys(map(_type_of, values))))
        case {"tuple": items}:
            names = [f"_{number}" for number in range(1, len(items) + 1)]
            return _array_struct(names, [shape_of(item) for item in items])
        case {"dict": [key, value]}:
            return _dict(shape_of(key), shape_of(value))
        case {"class": _}:
            return _class(described)
        case {"decimal": [precision, scale]}:
            return DecimalColumn(pa.decimal128(precision, scale))
        case {"list": item} | {"tuple_of": item} | {"set": item} | {"frozenset": item}:
            return ListColumn(shape_of(item))
    return OpaqueColumn()


def _class(described: dict[str, Any]) -> Shape:
    fields, tag = described["fields"], described.get("tag")
    names = [field["name"] for field in fields]
    parts = [shape_of(field["type"]) for field in fields]
    if described["wire"] == "array":
        return _array_struct(names, parts, tag)
    if not _are_fields(names):
        return OpaqueColumn()
    # A field that may be None is most likely left out because None is its default.
    optional = [field["name"] for field in fields if not field["required"]]
    return MapStructColumn(
        names,
        parts,
        None if tag is None else (described.get("tag_field", TAG_FIELD), tag),
        left_out=frozenset(optional if described.get("omits") else ()),
        reorders=described["kind"] == "typed_dict",
    )


def _array_struct(names: list[str], parts: list[Shape], tag: Any = None) -> Shape:
    return ArrayStructColumn(names, parts, tag) if _are_fields(names) else OpaqueColumn()


def _are_fields(names: list[str]) -> bool:
    """Whether a struct can have these fields: at least one, with names that differ in any case."""
    return bool(names) and "" not in names and len({n.casefold() for n in names}) == len(names)


def _dict(key: Shape, value: Shape) -> Shape:
    return MapColumn(key, value) if key.hashable and not key.nullable else OpaqueColumn()


def _union(described: Sequence[Any]) -> Shape:
    types = [one for one in described if one != "none"]
    shape = shape_of(types[0]) if len(types) == 1 else _several(list(map(_member, types)))
    shape.nullable |= len(types) < len(described)
    return shape


def _several(members: list[Member | None]) -> Shape:
    known = [member for member in members if member is not None]
    names = {member.name.casefold() for member in known}
    if not known or len(names) < len(members) or not are_distinct(known):
        return OpaqueColumn()
    return UnionColumn(known)


def _member(described: Any) -> Member | None:
    """A type as a member of a union; None if it cannot be distinguished from others."""
    shape = shape_of(described)
    if isinstance(described, str):
        wires = frozenset(_SCALAR_WIRES.get(described, _TEXT))
        return None if described == "any" else Member(described, shape, wires)
    match described:
        case {"class": name, "wire": wire}:
            tag, field = described.get("tag"), described.get("tag_field", TAG_FIELD)
            return Member(short_name(name), shape, frozenset({wire}), tag, field)
        case {"dict": _}:
            return Member("dict", shape, frozenset({"map"}))
        case {"enum": name, "values": values}:
            return Member(short_name(name), shape, frozenset(map(_type_of, values)))
        case {"literal": values}:
            return Member("literal", shape, frozenset(map(_type_of, values)) - {"none"})
    for name in _ARRAYS:
        if name in described:
            return Member(name, shape, frozenset({"array"}))
    return None


def _type_of(value: Any) -> str:
    """Scalar type of a member of a literal or an enum."""
    return "none" if value is None else type(value).__name__
