"""Column shape of unions.

A union is a struct with a field per member type, one of which is not null. The first byte of a
value's MessagePack, or its tag, identifies the type.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypedDict

import msgspec
import pyarrow as pa
from typing_extensions import override

from holdfast.state.tables.nested_shapes import nulls
from holdfast.state.tables.shapes import Shape, packed, spread, unpacked

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


TAG_FIELD: Final = "type"
"""Default name of the tag field."""


class Member(NamedTuple):
    """A member type of a union."""

    name: str
    shape: Shape
    wires: frozenset[str]
    """MessagePack types of its values, see `wire_of`."""
    tag: Any = None
    tag_field: str = TAG_FIELD
    """Name of the tag field; not used for arrays, whose first element is the tag."""


class UnionColumn(Shape):
    """A struct column for values of several types."""

    python = msgspec.Raw
    hashable = False

    def __init__(self, members: Sequence[Member]) -> None:
        """Union of `members`, which must be distinct."""
        self._members = list(members)
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
        wire = wire_of(data)
        read = self._tags.get(wire)
        return self._places[wire, None if read is None else read(data)]


def are_distinct(members: Sequence[Member]) -> bool:
    """Whether MessagePack identifies the type of every value."""
    seen = [(wire, member.tag) for member in members for wire in member.wires]
    tagged = {wire for wire, tag in seen if tag is not None}
    bare = {wire for wire, tag in seen if tag is None}
    return len(set(seen)) == len(seen) and not tagged & bare


def wire_of(data: bytes) -> str:
    """MessagePack type: `int`, `map`, `array`, `str` and so on."""
    return _WIRES[data[0]]


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
