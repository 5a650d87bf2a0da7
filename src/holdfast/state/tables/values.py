"""Converts stored bytes of one type to a column, and back.

`typed` converts every value back and compares it. Bytes that do not come back go into a separate
column. If they stand for the value that the typed column shows, it shows that; else it is null.
So "1.1" among prices such as "1.10" is a number for other programs, and "1.1" for the store.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import pyarrow as pa
from typing_extensions import override

from holdfast.serde import extended
from holdfast.state.schemas import HEAD, MARK, SchemaHistory
from holdfast.state.tables.decimals import decimals_in
from holdfast.state.tables.described_shapes import shape_of
from holdfast.state.tables.shapes import OpaqueColumn, encode_one, spread, unpacked
from holdfast.state.tables.times import TIMESTAMP, is_near, time_array, times_of
from holdfast.types.arrow import same_values
from holdfast.types.schema import described_tree

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from holdfast.state.tables.decimals import DecimalColumn
    from holdfast.state.tables.shapes import Shape

# Errors of decoding, and of building a column, for values that do not fit.
_UNFIT: Final = (
    msgspec.MsgspecError, pa.ArrowException, ValueError, TypeError, ArithmeticError, LookupError,
)  # fmt: skip


class Typed(NamedTuple):
    """Stored bytes as a typed column."""

    column: pa.Array
    rest: list[int]
    """Rows whose bytes do not come back from the column, in order; it may be null there."""


class ValueColumn(ABC):
    """How stored values are represented in a column."""

    @property
    def arrow(self) -> pa.DataType:
        """Type of the column."""
        return self.array([]).type

    @abstractmethod
    def array(self, blobs: list[bytes]) -> pa.Array:
        """Column of stored bytes; null for bytes that it cannot represent."""

    @abstractmethod
    def stored(self, array: pa.Array) -> list[bytes | None]:
        """Stored bytes from a column; None for null."""

    @abstractmethod
    def reads(self, found: pa.DataType) -> bool:
        """Whether a column of a table can have this type."""

    def decimals(self) -> list[DecimalColumn]:
        """Columns in it of decimals without a declared scale, in the order of the type."""
        return []

    def typed(self, blobs: list[bytes]) -> Typed:
        """Column of stored bytes; null for bytes whose value it cannot represent."""
        array = self.array(blobs)
        back = self.stored(array)
        if back == blobs:
            return Typed(array, [])
        pairs = enumerate(zip(blobs, back, strict=True))
        rest = [
            row for row, (data, other) in pairs if data != other and not self._is_same(data, other)
        ]
        lost = {row for row in rest if not self._is_shown(blobs[row], back[row])}
        if lost:
            kept = [None if row in lost else row for row in range(len(blobs))]
            array = array.take(pa.array(kept, pa.int64()))
        return Typed(array, rest)

    def is_equal(self, data: bytes, back: bytes) -> bool:
        """Whether stored bytes have the value of the bytes that came back."""
        return data == back

    def _is_shown(self, data: bytes, back: bytes | None) -> bool:
        return back is not None and self.is_equal(data, back)

    def _is_same(self, data: bytes, back: bytes | None) -> bool:
        return data == back


class Bytes(ValueColumn):
    """Opaque bytes, of types that only the program can read."""

    @override
    def array(self, blobs: list[bytes]) -> pa.Array:
        return pa.array(blobs, pa.binary())

    @override
    def stored(self, array: pa.Array) -> list[bytes | None]:
        found: list[bytes | None] = array.to_pylist()
        return found

    @override
    def reads(self, found: pa.DataType) -> bool:
        return same_values(found, pa.binary())


class Packed(ValueColumn):
    """MessagePack.

    Values in the extended form (`serde/extended.py`) are null, except for datetimes: those of
    other zones are shown in UTC.
    """

    def __init__(self, shape: Shape) -> None:
        """Store values of a shape."""
        self._shape = shape
        self._unpack = unpacked(shape.decoded)
        self._decode = msgspec.msgpack.Decoder(shape.decoded).decode

    @override
    def array(self, blobs: list[bytes]) -> pa.Array:
        fitting = list(self._fitting(blobs, range(len(blobs))))
        if not fitting:
            return pa.nulls(len(blobs), self.arrow)
        rows, array = fitting[0]
        if len(fitting) > 1:
            rows = list(chain.from_iterable(rows for rows, _ in fitting))
            array = pa.concat_arrays([array for _, array in fitting])
        return spread(array, rows, len(blobs))

    def _fitting(
        self, blobs: list[bytes], rows: Sequence[int]
    ) -> Iterator[tuple[Sequence[int], pa.Array]]:
        """Columns of the rows that fit, with the numbers of these rows."""
        some = blobs if len(rows) == len(blobs) else [blobs[row] for row in rows]
        try:
            array = self._shape.array(self._decoded(some))
        except _UNFIT:
            narrow = rows
            if not self._shape.moments:
                narrow = [row for row in rows if blobs[row][:1] != extended.MARK]
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

    @override
    def reads(self, found: pa.DataType) -> bool:
        return self._shape.reads(found)

    @override
    def decimals(self) -> list[DecimalColumn]:
        return decimals_in(self._shape)

    @override
    def is_equal(self, data: bytes, back: bytes) -> bool:
        # By themselves: bytes that are no message may be one together with those of other rows.
        try:
            return self._shape.same(self._decode(_plain(data)), self._decode(back))
        except _UNFIT:
            return False

    def _decoded(self, blobs: list[bytes]) -> list[Any]:
        try:
            return self._unpack(blobs)
        except msgspec.MsgspecError:
            if not self._shape.moments or not any(d.startswith(extended.MARK) for d in blobs):
                raise
        return self._unpack(list(map(_plain, blobs)))

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

    @override
    def array(self, blobs: list[bytes]) -> pa.Array:
        times = [int.from_bytes(d[1:9], "big", signed=True) if d[0] else None for d in blobs]
        values = self._value.array([data[9 if data[0] else 1 :] for data in blobs])
        near = [time if time is not None and is_near(time) else None for time in times]
        return pa.StructArray.from_arrays([time_array(near), values], ["timestamp", "value"])

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

    @override
    def reads(self, found: pa.DataType) -> bool:
        if not _has_fields(found, "timestamp", "value"):
            return False
        return same_values(found[0].type, TIMESTAMP) and self._value.reads(found[1].type)

    @override
    def decimals(self) -> list[DecimalColumn]:
        return self._value.decimals()

    @override
    def is_equal(self, data: bytes, back: bytes) -> bool:
        end = 9 if data[0] else 1
        return data[:end] == back[:end] and self._value.is_equal(data[end:], back[end:])


class Either(ValueColumn):
    """A struct of a left or a right value (`serde/tagged.py`)."""

    def __init__(self, left: ValueColumn, right: ValueColumn) -> None:
        """Combine two columns."""
        self._sides = (left, right)

    @override
    def array(self, blobs: list[bytes]) -> pa.Array:
        arrays = []
        for side, column in enumerate(self._sides):
            rows = [row for row, data in enumerate(blobs) if data[0] == side]
            found = column.array([blobs[row][1:] for row in rows])
            arrays.append(spread(found, rows, len(blobs)))
        return pa.StructArray.from_arrays(arrays, ["left", "right"])

    @override
    def stored(self, array: pa.Array) -> list[bytes | None]:
        found: list[bytes | None] = [None] * len(array)
        for side, column in enumerate(self._sides):
            for row, data in enumerate(column.stored(array.field(side))):
                if data is not None:
                    found[row] = bytes((side,)) + data
        return found

    @override
    def reads(self, found: pa.DataType) -> bool:
        if not _has_fields(found, "left", "right"):
            return False
        return all(one.reads(field.type) for one, field in zip(self._sides, found, strict=True))

    @override
    def decimals(self) -> list[DecimalColumn]:
        return [found for column in self._sides for found in column.decimals()]

    @override
    def is_equal(self, data: bytes, back: bytes) -> bool:
        return data[0] == back[0] and self._sides[data[0]].is_equal(data[1:], back[1:])


class Evolved(ValueColumn):
    """Values of several schemas (`state/schemas.py`), one of which is current.

    The column has the type of the current schema. Values of other schemas stay encoded, even if
    their column type is the same: only the program knows how to convert them, for example which
    defaults to add.
    """

    def __init__(self, column: ValueColumn, head: bytes) -> None:
        """Store the values of the current schema in `column`.

        Args:
            column: Column of the current schema.
            head: First bytes of its values: a mark and the id of the schema, or nothing.
        """
        self._column = column
        self._head = head

    @override
    def array(self, blobs: list[bytes]) -> pa.Array:
        return self.typed(blobs).column

    @override
    def typed(self, blobs: list[bytes]) -> Typed:
        rows = [row for row, data in enumerate(blobs) if _schema_head(data) == self._head]
        found = self._column.typed([blobs[row][len(self._head) :] for row in rows])
        others = set(range(len(blobs))).difference(rows)
        rest = sorted(others.union(rows[row] for row in found.rest))
        return Typed(spread(found.column, rows, len(blobs)), rest)

    @override
    def stored(self, array: pa.Array) -> list[bytes | None]:
        return [None if data is None else self._head + data for data in self._column.stored(array)]

    @override
    def reads(self, found: pa.DataType) -> bool:
        return self._column.reads(found)

    @override
    def decimals(self) -> list[DecimalColumn]:
        return self._column.decimals()


def state_value_column(entry: dict[str, Any]) -> ValueColumn:
    """Column of a state's values, from the entry about the state in its store."""
    history = SchemaHistory.of_entry(entry)
    column = value_column(history.declared[0])
    # Opaque bytes keep their marks.
    if not history.others or isinstance(column, Bytes):
        return column
    return Evolved(column, b"" if history.now is None else MARK + bytes.fromhex(history.now))


def _schema_head(data: bytes) -> bytes:
    return data[:HEAD] if data.startswith(MARK) else b""


def value_column(schema: dict[str, Any]) -> ValueColumn:
    """Column of the values that a schema describes."""
    match schema.get("kind"):
        case "msgpack" | "columns":
            shape = shape_of(described_tree(schema))
            return Bytes() if isinstance(shape, OpaqueColumn) else Packed(shape)
        case "timestamped":
            return Timestamped(value_column(schema["of"][0]))
        case "either":
            return Either(*map(value_column, schema["of"]))
    return Bytes()


def _has_fields(found: pa.DataType, *names: str) -> bool:
    return pa.types.is_struct(found) and [field.name for field in found] == list(names)


def _plain(data: bytes) -> bytes:
    return extended.in_utc(data) if data.startswith(extended.MARK) else data


_decode_any: Final[Callable[[bytes], Any]] = msgspec.msgpack.Decoder().decode
_in_order_of_names: Final = msgspec.msgpack.Encoder(order="deterministic").encode


def _in_order(data: bytes) -> bytes:
    return _in_order_of_names(_decode_any(data))
