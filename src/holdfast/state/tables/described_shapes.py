"""Builds the column shape of a described type.

Works on descriptions (`types/schema.py`), without classes. A type that has no column type, or
whose struct would have no fields or ambiguous names, stays encoded: as a whole, or as a part
of another type.

A union is a struct with a field per member type, one of which is not null. The first byte of a
value's MessagePack, or its tag, identifies the type.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypedDict

import msgspec
import pyarrow as pa
from typing_extensions import override

from holdfast.state.tables.decimals import DecimalColumn
from holdfast.state.tables.nested_shapes import (
    ArrayStructColumn,
    ListColumn,
    MapColumn,
    MapStructColumn,
    nulls,
    reads_struct,
)
from holdfast.state.tables.shapes import (
    OpaqueColumn,
    Shape,
    packed,
    scalar_shape,
    spread,
    unpacked,
)
from holdfast.types.trees import short_name

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

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
_TAG_FIELD: Final = "type"
"""Default name of the tag field."""


def shape_of(described: Any) -> Shape:
    """Shape of a described type."""
    match described:
        case "decimal":
            return DecimalColumn()
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
        None if tag is None else (described.get("tag_field", _TAG_FIELD), tag),
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


def _several(members: list[_Member | None]) -> Shape:
    known = [member for member in members if member is not None]
    names = {member.name.casefold() for member in known}
    if not known or len(names) < len(members) or not _are_distinct(known):
        return OpaqueColumn()
    return UnionColumn(known)


def _member(described: Any) -> _Member | None:
    """A type as a member of a union; None if it cannot be distinguished from others."""
    shape = shape_of(described)
    if isinstance(described, str):
        wires = frozenset(_SCALAR_WIRES.get(described, _TEXT))
        return None if described == "any" else _Member(described, shape, wires)
    match described:
        case {"class": name, "wire": wire}:
            tag, field = described.get("tag"), described.get("tag_field", _TAG_FIELD)
            return _Member(short_name(name), shape, frozenset({wire}), tag, field)
        case {"dict": _}:
            return _Member("dict", shape, frozenset({"map"}))
        case {"enum": name, "values": values}:
            return _Member(short_name(name), shape, frozenset(map(_type_of, values)))
        case {"literal": values}:
            return _Member("literal", shape, frozenset(map(_type_of, values)) - {"none"})
    for name in _ARRAYS:
        if name in described:
            return _Member(name, shape, frozenset({"array"}))
    return None


def _type_of(value: Any) -> str:
    """Scalar type of a member of a literal or an enum."""
    return "none" if value is None else type(value).__name__


class _Member(NamedTuple):
    """A member type of a union."""

    name: str
    shape: Shape
    wires: frozenset[str]
    """MessagePack types of its values, see `_WIRES`."""
    tag: Any = None
    tag_field: str = _TAG_FIELD
    """Name of the tag field; not used for arrays, whose first element is the tag."""


class UnionColumn(Shape):
    """A struct column for values of several types."""

    python = msgspec.Raw
    hashable = False

    def __init__(self, members: Sequence[_Member]) -> None:
        """Union of `members`, which must be distinct."""
        self._members = list(members)
        self.parts = [member.shape for member in members]
        self._places = {
            (wire, member.tag): place
            for place, member in enumerate(members)
            for wire in member.wires
        }
        self._tags = {
            wire: _tag_reader(wire, member.tag_field)
            for member in members
            for wire in member.wires
            if member.tag is not None
        }
        self._unpack = [unpacked(member.shape.decoded) for member in members]
        self.reorders = any(member.shape.reorders for member in members)
        self.moments = any(member.shape.moments for member in members)

    @override
    def reads(self, found: pa.DataType) -> bool:
        names = [member.name for member in self._members]
        return reads_struct(found, names, self.parts)

    @override
    def same(self, one: Any, other: Any) -> bool:
        data, back = packed([one, other])
        if data is None or back is None:
            return data is back
        place = self._place(data)
        if place != self._place(back):
            return False
        (value,), (shown,) = self._unpack[place]([data]), self._unpack[place]([back])
        return self.parts[place].same(value, shown)

    @override
    def array(self, values: list[Any]) -> pa.Array:
        blobs = packed(values)
        own: list[tuple[list[int], list[bytes]]] = [([], []) for _ in self._members]
        for row, data in enumerate(blobs):
            if data is not None:
                rows, found = own[self._place(data)]
                rows.append(row)
                found.append(data)
        arrays = [
            spread(member.shape.array(unpack(found)), rows, len(blobs))
            for member, unpack, (rows, found) in zip(self._members, self._unpack, own, strict=True)
        ]
        names = [member.name for member in self._members]
        return pa.StructArray.from_arrays(arrays, names, mask=nulls(blobs))

    @override
    def plain(self, array: pa.Array) -> list[Any]:
        found: list[Any] = [None] * len(array)
        for place, member in enumerate(self._members):
            for row, value in enumerate(member.shape.plain(array.field(place))):
                if value is not None:
                    found[row] = value
        return found

    def _place(self, data: bytes) -> int:
        wire = _WIRES[data[0]]
        read = self._tags.get(wire)
        return self._places[wire, None if read is None else read(data)]


def _are_distinct(members: Sequence[_Member]) -> bool:
    """Whether MessagePack identifies the type of every value."""
    seen = [(wire, member.tag) for member in members for wire in member.wires]
    tagged = {wire for wire, tag in seen if tag is not None}
    bare = {wire for wire, tag in seen if tag is None}
    return len(set(seen)) == len(seen) and not tagged & bare


def _tag_reader(wire: str, field: str) -> Callable[[bytes], Any]:
    """Function that reads the tag from a struct's MessagePack."""
    if wire == "array":
        decode_array = msgspec.msgpack.Decoder(list[Any]).decode
        return lambda data: decode_array(data)[0]
    tagged = TypedDict("tagged", {field: Any}, total=False)  # type: ignore[misc]
    decode = msgspec.msgpack.Decoder(tagged).decode
    return lambda data: decode(data).get(field)


def _wires() -> list[str]:
    named = [
        (range(0x00, 0x80), "int"), (range(0x80, 0x90), "map"), (range(0x90, 0xA0), "array"),
        (range(0xA0, 0xC0), "str"), (range(0xC0, 0xC1), "nil"), (range(0xC1, 0xC2), "none"),
        (range(0xC2, 0xC4), "bool"), (range(0xC4, 0xC7), "bytes"), (range(0xC7, 0xCA), "ext"),
        (range(0xCA, 0xCC), "float"), (range(0xCC, 0xD4), "int"), (range(0xD4, 0xD9), "ext"),
        (range(0xD9, 0xDC), "str"), (range(0xDC, 0xDE), "array"), (range(0xDE, 0xE0), "map"),
        (range(0xE0, 0x100), "int"),
    ]  # fmt: skip
    return [wire for span, wire in named for _ in span]


_WIRES: Final = _wires()
"""MessagePack types by the first byte of a value: `int`, `map`, `array`, `str` and so on."""
