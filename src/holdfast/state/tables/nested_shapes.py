"""Column shapes of nested types: lists, structs and maps."""

from __future__ import annotations

from itertools import pairwise
from types import GenericAlias
from typing import TYPE_CHECKING, Any, TypedDict

import pyarrow as pa
from typing_extensions import override

from holdfast.state.tables.shapes import Shape, with_nulls
from holdfast.types.arrow import array_of, map_of

if TYPE_CHECKING:
    from collections.abc import Sequence


class ListColumn(Shape):
    """A list column, for lists, variable-length tuples and sets."""

    def __init__(self, item: Shape) -> None:
        """Lists of `item`."""
        self._item = item
        self.parts = [item]
        # Tuples rather than lists, since they may be keys of a dict.
        self.python = GenericAlias(tuple, (item.decoded, ...))
        self.hashable = item.hashable
        self.reorders = item.reorders
        self.moments = item.moments

    @override
    def array(self, values: list[Any]) -> pa.Array:
        flat: list[Any] = []
        offsets = [0]
        for value in values:
            flat += value or ()
            offsets.append(len(flat))
        items = self._item.array(flat)
        column = array_of(items.type, nullable=True)
        return pa.ListArray.from_arrays(offsets, items, type=column, mask=nulls(values))

    @override
    def plain(self, array: pa.Array) -> list[Any]:
        items = self._item.plain(array.values)
        found = [tuple(items[a:b]) for a, b in pairwise(array.offsets.to_pylist())]
        return with_nulls(found, array)

    @override
    def reads(self, found: pa.DataType) -> bool:
        is_list = pa.types.is_list(found) or pa.types.is_large_list(found)
        return bool(is_list) and self._item.reads(found.value_type)

    @override
    def same(self, one: Any, other: Any) -> bool:
        if one is None or other is None:
            return one is other
        return len(one) == len(other) and all(map(self._item.same, one, other))


class MapColumn(Shape):
    """A map column, for dicts in their order."""

    hashable = False

    def __init__(self, key: Shape, value: Shape) -> None:
        """Dicts of `key` and `value`; the key must be hashable and not nullable."""
        self._key = key
        self._value = value
        self.parts = [key, value]
        self.python = GenericAlias(dict, (key.decoded, value.decoded))
        self.reorders = value.reorders
        self.moments = key.moments or value.moments

    @override
    def array(self, values: list[Any]) -> pa.Array:
        keys, items, offsets = list[Any](), list[Any](), [0]
        for value in values:
            if value:
                keys += value
                items += value.values()
            offsets.append(len(keys))
        of_keys, of_items = self._key.array(keys), self._value.array(items)
        column = map_of(of_keys.type, of_items.type, nullable=True)
        places = pa.array(offsets, pa.int32())
        return pa.MapArray.from_arrays(places, of_keys, of_items, type=column, mask=nulls(values))

    @override
    def plain(self, array: pa.Array) -> list[Any]:
        keys, items = self._key.plain(array.keys), self._value.plain(array.items)
        found = [
            dict(zip(keys[a:b], items[a:b], strict=True))
            for a, b in pairwise(array.offsets.to_pylist())
        ]
        return with_nulls(found, array)

    @override
    def reads(self, found: pa.DataType) -> bool:
        if not pa.types.is_map(found):
            return False
        return self._key.reads(found.key_type) and self._value.reads(found.item_type)

    @override
    def same(self, one: Any, other: Any) -> bool:
        if one is None or other is None:
            return one is other
        same = self._value.same
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)


class _Struct(Shape):
    """A struct column."""

    def __init__(self, names: Sequence[str], parts: Sequence[Shape]) -> None:
        self._names = list(names)
        self.parts = list(parts)
        self.moments = any(part.moments for part in parts)

    @override
    def reads(self, found: pa.DataType) -> bool:
        return reads_struct(found, self._names, self.parts)

    def _of_columns(self, columns: Sequence[Sequence[Any]], mask: pa.Array | None) -> pa.Array:
        arrays = [
            part.array(list(column)) for part, column in zip(self.parts, columns, strict=True)
        ]
        return pa.StructArray.from_arrays(arrays, self._names, mask=mask)

    def _columns_of(self, array: pa.Array) -> list[list[Any]]:
        return [part.plain(array.field(place)) for place, part in enumerate(self.parts)]


class ArrayStructColumn(_Struct):
    """A struct column for MessagePack arrays: tuples, named tuples and array-like structs."""

    def __init__(self, names: Sequence[str], parts: Sequence[Shape], tag: Any = None) -> None:
        """Fields in order, after the tag if there is one."""
        super().__init__(names, parts)
        self._tag = tag
        tags = () if tag is None else (type(tag),)
        self.python = GenericAlias(tuple, (*tags, *(part.decoded for part in parts)))
        self.hashable = all(part.hashable for part in parts)
        self.reorders = any(part.reorders for part in parts)

    @override
    def array(self, values: list[Any]) -> pa.Array:
        nothing = (None,) * len(self.python.__args__)
        columns = list(zip(*(value or nothing for value in values), strict=True))
        columns = columns or [()] * len(nothing)
        return self._of_columns(columns[len(columns) - len(self.parts) :], nulls(values))

    @override
    def plain(self, array: pa.Array) -> list[Any]:
        columns = self._columns_of(array)
        if self._tag is not None:
            columns.insert(0, [self._tag] * len(array))
        return with_nulls(list(zip(*columns, strict=True)), array)

    @override
    def same(self, one: Any, other: Any) -> bool:
        if one is None or other is None:
            return one is other
        count = len(one) - len(self.parts)
        pairs = zip(self.parts, one[count:], other[count:], strict=True)
        return bool(one[:count] == other[:count]) and all(p.same(a, b) for p, a, b in pairs)


class MapStructColumn(_Struct):
    """A struct column for MessagePack maps: dataclasses, structs and typed dicts."""

    hashable = False

    def __init__(
        self,
        names: Sequence[str],
        parts: Sequence[Shape],
        tag: tuple[str, Any] | None = None,
        *,
        left_out: frozenset[str] = frozenset(),
        reorders: bool = False,
    ) -> None:
        """Fields by name.

        Args:
            names: Names of the fields.
            parts: Shapes of the fields.
            tag: Name and value of the tag field, if the class has a tag.
            left_out: Fields that are omitted rather than None.
            reorders: Whether fields may have another order.
        """
        super().__init__(names, parts)
        types = {name: part.decoded for name, part in zip(names, parts, strict=True)}
        self.python = TypedDict("Fields", types, total=False)  # type: ignore[misc]
        self.reorders = reorders or any(part.reorders for part in parts)
        self._tag = tag
        self._left_out = left_out | {n for n, p in zip(names, parts, strict=True) if not p.nullable}

    def array(self, values: list[Any]) -> pa.Array:
        """See `Shape.array`. An omitted field is null."""
        columns = [
            [None if value is None else value.get(name) for value in values] for name in self._names
        ]
        return self._of_columns(columns, nulls(values))

    @override
    def plain(self, array: pa.Array) -> list[Any]:
        names, columns = self._names, self._columns_of(array)
        if self._tag is not None:
            names = [self._tag[0], *names]
            columns.insert(0, [self._tag[1]] * len(array))
        found = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
        for place, name in enumerate(self._names):
            column = array.field(place)
            if column.null_count and name in self._left_out:
                for row, is_there in zip(found, column.is_valid().to_pylist(), strict=True):
                    if not is_there:
                        del row[name]
        return with_nulls(found, array)

    @override
    def same(self, one: Any, other: Any) -> bool:
        if one is None or other is None:
            return one is other
        parts = zip(self._names, self.parts, strict=True)
        return one.keys() == other.keys() and all(
            part.same(one[name], other[name]) for name, part in parts if name in one
        )


def reads_struct(found: pa.DataType, names: Sequence[str], parts: Sequence[Shape]) -> bool:
    """Whether a type is a struct of fields that the parts read."""
    if not pa.types.is_struct(found) or [field.name for field in found] != list(names):
        return False
    return all(part.reads(field.type) for part, field in zip(parts, found, strict=True))


def nulls(values: list[Any]) -> pa.Array | None:
    """Mask of the values that are None; None if there are none."""
    # By identity: a value may define its own comparison.
    mask = [value is None for value in values]
    return pa.array(mask, pa.bool_()) if any(mask) else None
