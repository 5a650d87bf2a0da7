"""Converts stored bytes of one type to a column, and back.

`typed` converts every value back and compares it. Bytes that do not come back are null in the
typed column and go into a separate column.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import pyarrow as pa
from typing_extensions import override

from holdfast.serde.extended import MARK
from holdfast.state.tables.described_shapes import shape_of
from holdfast.state.tables.packed import encode_one, unpacked
from holdfast.state.tables.shapes import OpaqueColumn
from holdfast.state.tables.times import TIMESTAMP, far_times, time_array, times_of
from holdfast.types.schema import described_tree

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from holdfast.state.tables.shapes import Shape

# Errors of decoding, and of building a column, for values that do not fit.
_UNFIT: Final = (
    msgspec.MsgspecError, pa.ArrowException, ValueError, TypeError, ArithmeticError, LookupError,
)  # fmt: skip


class ValueColumn(ABC):
    """How stored values are represented in a column."""

    @property
    @abstractmethod
    def arrow(self) -> pa.DataType:
        """Type of the column."""

    @abstractmethod
    def array(self, blobs: list[bytes]) -> pa.Array:
        """Column of stored bytes; null for bytes that it cannot represent."""

    @abstractmethod
    def stored(self, array: pa.Array) -> list[bytes | None]:
        """Stored bytes from a column; None for null."""

    def typed(self, blobs: list[bytes]) -> pa.Array:
        """Column of stored bytes; null for bytes that would not come back."""
        array = self.array(blobs)
        back = self.stored(array)
        if back == blobs:
            return array
        kept = [
            row if self._is_same(data, other) else None
            for row, (data, other) in enumerate(zip(blobs, back, strict=True))
        ]
        return array.take(pa.array(kept, pa.int64()))

    def _is_same(self, data: bytes, back: bytes | None) -> bool:
        return data == back


class Bytes(ValueColumn):
    """Opaque bytes, of types that only the program can read."""

    @property
    @override
    def arrow(self) -> pa.DataType:
        return pa.binary()

    @override
    def array(self, blobs: list[bytes]) -> pa.Array:
        return pa.array(blobs, pa.binary())

    @override
    def stored(self, array: pa.Array) -> list[bytes | None]:
        found: list[bytes | None] = array.to_pylist()
        return found


class Packed(ValueColumn):
    """MessagePack. Values in the extended form (`serde/extended.py`) are null."""

    def __init__(self, shape: Shape) -> None:
        """Store values of a shape."""
        self._shape = shape
        self._unpack = unpacked(shape.decoded)

    @property
    @override
    def arrow(self) -> pa.DataType:
        return self._shape.arrow

    @override
    def array(self, blobs: list[bytes]) -> pa.Array:
        return gathered(len(blobs), self._fitting(blobs, range(len(blobs))), self)

    def _fitting(
        self, blobs: list[bytes], rows: Sequence[int]
    ) -> Iterator[tuple[Sequence[int], pa.Array]]:
        """Columns of the rows that fit, with the numbers of these rows."""
        some = blobs if len(rows) == len(blobs) else [blobs[row] for row in rows]
        try:
            array = self._shape.array(self._unpack(some))
        except _UNFIT:
            narrow = [row for row in rows if blobs[row][:1] != MARK]
            if len(narrow) < len(rows):
                yield from self._fitting(blobs, narrow)
            elif len(rows) > 1:
                middle = len(rows) // 2
                yield from self._fitting(blobs, rows[:middle])
                yield from self._fitting(blobs, rows[middle:])
        else:
            yield rows, array

    @override
    def stored(self, array: pa.Array) -> list[bytes | None]:
        return [None if value is None else encode_one(value) for value in self._shape.plain(array)]

    def _is_same(self, data: bytes, back: bytes | None) -> bool:
        if data == back or back is None or not self._shape.reorders:
            return data == back
        try:
            return _in_order(data) == _in_order(back)
        except _UNFIT:
            return False


class Timestamped(ValueColumn):
    """A struct of an optional event time and a value (`serde/tagged.py`)."""

    def __init__(self, value: ValueColumn) -> None:
        """Add times to the values of a column."""
        self._value = value

    @property
    @override
    def arrow(self) -> pa.DataType:
        return pa.struct([("timestamp", TIMESTAMP), ("value", self._value.arrow)])

    @override
    def array(self, blobs: list[bytes]) -> pa.Array:
        times = [int.from_bytes(d[1:9], "big", signed=True) if d[0] else None for d in blobs]
        values = self._value.array([data[9 if data[0] else 1 :] for data in blobs])
        near = [None if time is None or far_times([time]) else time for time in times]
        return pa.StructArray.from_arrays(
            [time_array(near), values],
            fields=[pa.field("timestamp", TIMESTAMP), pa.field("value", values.type)],
        )

    @override
    def stored(self, array: pa.Array) -> list[bytes | None]:
        times, values = times_of(array.field(0)), self._value.stored(array.field(1))
        valid = array.is_valid().to_pylist()
        return [
            None
            if not is_there or value is None
            else b"\x00" + value
            if time is None
            else b"\x01" + time.to_bytes(8, "big", signed=True) + value
            for is_there, time, value in zip(valid, times, values, strict=True)
        ]


class Either(ValueColumn):
    """A struct of a left or a right value (`serde/tagged.py`)."""

    def __init__(self, left: ValueColumn, right: ValueColumn) -> None:
        """Combine two columns."""
        self._sides = (left, right)

    @property
    @override
    def arrow(self) -> pa.DataType:
        left, right = self._sides
        return pa.struct([("left", left.arrow), ("right", right.arrow)])

    @override
    def array(self, blobs: list[bytes]) -> pa.Array:
        sides = np.array([data[0] for data in blobs], np.int64)
        arrays = []
        for side, column in enumerate(self._sides):
            own = sides == side
            found = column.array([data[1:] for data in blobs if data[0] == side])
            arrays.append(found.take(pa.array(np.cumsum(own) - 1, pa.int64(), mask=~own)))
        names = ("left", "right")
        fields = [pa.field(n, array.type) for n, array in zip(names, arrays, strict=True)]
        return pa.StructArray.from_arrays(arrays, fields=fields)

    @override
    def stored(self, array: pa.Array) -> list[bytes | None]:
        found: list[bytes | None] = [None] * len(array)
        for side, column in enumerate(self._sides):
            for row, data in enumerate(column.stored(array.field(side))):
                if data is not None:
                    found[row] = bytes((side,)) + data
        return found


def value_column(schema: dict[str, Any]) -> ValueColumn:
    """Column of the values that a schema describes."""
    match schema.get("kind"):
        case "msgpack" | "columns":
            return _packed(shape_of(described_tree(schema)))
        case "timestamped":
            return Timestamped(value_column(schema["of"][0]))
        case "either":
            return Either(*map(value_column, schema["of"]))
    return Bytes()


def _packed(shape: Shape) -> ValueColumn:
    return Bytes() if isinstance(shape, OpaqueColumn) else Packed(shape)


def gathered(
    count: int, parts: Iterable[tuple[Sequence[int], pa.Array]], column: ValueColumn
) -> pa.Array:
    """One column of `count` rows from columns for some of them; null for the others."""
    arrays, places = list[pa.Array](), list[int | None]([None] * count)
    held = 0
    for rows, array in parts:
        for place, row in enumerate(rows, held):
            places[row] = place
        arrays.append(array)
        held += len(array)
    if not arrays:
        return pa.nulls(count, column.arrow)
    if len(arrays) == 1 and held == count:
        return arrays[0]
    return pa.concat_arrays(arrays).take(pa.array(places, pa.int64()))


def encoded_column(blobs: Sequence[bytes | None], typed: pa.Array) -> pa.Array:
    """Column of the stored bytes that are null in the typed column."""
    if typed.null_count == 0:
        return pa.nulls(len(blobs), pa.binary())
    valid = typed.is_valid().to_pylist()
    return pa.array(
        [None if is_there else data for data, is_there in zip(blobs, valid, strict=True)],
        pa.binary(),
    )


_decode_any: Final[Callable[[bytes], Any]] = msgspec.msgpack.Decoder().decode
_in_order_of_names: Final = msgspec.msgpack.Encoder(order="deterministic").encode


def _in_order(data: bytes) -> bytes:
    return _in_order_of_names(_decode_any(data))
