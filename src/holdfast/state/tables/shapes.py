"""Column shapes: how values of a type are stored in an Arrow column. Types without parts.

A shape converts in both directions. MessagePack is decoded as `decoded`; `array` builds a
column, and `plain` returns values that encode to the same MessagePack. A shape may fail, or
change a value, if the column cannot represent it, so `values.py` always compares the result:
first the bytes, then with `same` the values.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from datetime import UTC, date, datetime, time, timedelta
from types import GenericAlias
from typing import TYPE_CHECKING, Any, Final, Optional

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from typing_extensions import override

from holdfast.types.arrow import LEAVES, NAIVE_TIMESTAMP, UTC_TIMESTAMP, same_values

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

_NIL: Final = b"\xc0"
_EPOCH: Final = datetime(1970, 1, 1)
_EPOCH_UTC: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_FIRST: Final = (datetime.min - _EPOCH) // _MICROSECOND
_LAST: Final = (datetime.max - _EPOCH) // _MICROSECOND


class Shape(ABC):
    """How values of one type are stored in a column."""

    python: Any
    """Type for decoding a value other than None."""
    nullable = False
    """Whether None is a value of the type."""
    hashable = True
    """Whether decoded and plain values can be keys of a dict."""
    reorders = False
    """Whether plain values may have their fields in another order."""
    moments = False
    """Whether values may contain datetimes, which a column shows in UTC."""
    parts: Sequence[Shape] = ()
    """Shapes of the parts of a value."""

    @property
    def arrow(self) -> pa.DataType:
        """Type of the column."""
        return self.array([]).type

    @property
    def decoded(self) -> Any:
        """Type for decoding a value."""
        # Raw MessagePack may be that of None.
        if self.nullable and self.python is not msgspec.Raw:
            return Optional[self.python]  # noqa: UP045
        return self.python

    @abstractmethod
    def array(self, values: list[Any]) -> pa.Array:
        """Column of decoded values; None becomes null, even if the type is not nullable."""

    @abstractmethod
    def plain(self, array: pa.Array) -> list[Any]:
        """Values of a column for encoding; None for null."""

    def reads(self, found: pa.DataType) -> bool:
        """Whether a column of a table can have this type."""
        return same_values(found, self.arrow)

    def same(self, one: Any, other: Any) -> bool:
        """Whether two decoded values are equal; a NaN equals any NaN."""
        return bool(one == other or (one != one and other != other))


class ScalarColumn(Shape):
    """Values that Arrow preserves unchanged."""

    def __init__(self, python: Any, arrow: pa.DataType) -> None:
        """Values of a Python type in a column of `arrow`."""
        self.python = python
        self._arrow = arrow
        self.nullable = pa.types.is_null(arrow)

    @override
    def array(self, values: list[Any]) -> pa.Array:
        return pa.array(values, self._arrow)

    @override
    def plain(self, array: pa.Array) -> list[Any]:
        return listed(array)


class TimestampColumn(Shape):
    """Datetimes. The first values decide whether the column is in UTC or without a zone."""

    python = datetime
    moments = True

    def __init__(self, arrow: pa.DataType | None = None) -> None:
        """Use this timestamp type, if it is known."""
        self._arrow = arrow

    def array(self, values: list[Any]) -> pa.Array:
        """See `Shape.array`; the type is fixed from the first call on, in UTC without values."""
        if self._arrow is None:
            zoned = [value.tzinfo is not None for value in values if value is not None]
            self._arrow = UTC_TIMESTAMP if 2 * sum(zoned) >= len(zoned) else NAIVE_TIMESTAMP
        array = pa.array(values, self._arrow)
        bounds = pc.min_max(array.cast(pa.int64())).as_py()
        if bounds["min"] is not None and not _FIRST <= bounds["min"] <= bounds["max"] <= _LAST:
            raise OverflowError("a datetime is outside of the years 1 to 9999 in UTC")
        return array

    @override
    def plain(self, array: pa.Array) -> list[Any]:
        epoch = _EPOCH if array.type.tz is None else _EPOCH_UTC
        micros = listed(array.cast(pa.timestamp("us", array.type.tz)).cast(pa.int64()))
        return [None if n is None else epoch + timedelta(microseconds=n) for n in micros]


class OpaqueColumn(Shape):
    """Values without a column type, kept as MessagePack."""

    python = msgspec.Raw
    nullable = True
    hashable = False

    @override
    def array(self, values: list[Any]) -> pa.Array:
        return pa.array(packed(values), pa.binary())

    @override
    def plain(self, array: pa.Array) -> list[Any]:
        return [None if data is None else msgspec.Raw(data) for data in array.to_pylist()]

    @override
    def same(self, one: Any, other: Any) -> bool:
        return packed([one]) == packed([other])


encode_one = msgspec.msgpack.Encoder().encode
"""MessagePack of a value."""


def unpacked(python: Any) -> Callable[[list[bytes]], list[Any]]:
    """Function that decodes a list of separate MessagePack values of a type."""
    decode = msgspec.msgpack.Decoder(GenericAlias(list, (python,))).decode

    def unpack(blobs: list[bytes]) -> list[Any]:
        # Joined as one array, which a single call decodes.
        values: list[Any] = decode(b"\xdd%b%b" % (len(blobs).to_bytes(4, "big"), b"".join(blobs)))
        return values

    return unpack


def packed(values: Sequence[Any]) -> list[bytes | None]:
    """The MessagePack in `msgspec.Raw` values; None for that of None."""
    found = [None if value is None else bytes(value) for value in values]
    return [None if data == _NIL else data for data in found]


def spread(array: pa.Array, rows: Sequence[int] | NDArray[np.intp], count: int) -> pa.Array:
    """Column of `count` rows with the values of `array` in `rows`, which ascend; else null."""
    if len(rows) == count:
        return array
    places, absent = np.zeros(count, np.int64), np.ones(count, np.bool_)
    index = np.asarray(rows, np.int64)
    places[index], absent[index] = np.arange(len(rows)), False
    return array.take(pa.array(places, mask=absent))


def with_nulls(values: list[Any], array: pa.Array) -> list[Any]:
    """The values, with None where the column is null."""
    if array.null_count == 0:
        return values
    valid = array.is_valid().to_pylist()
    return [value if is_there else None for value, is_there in zip(values, valid, strict=True)]


def listed(array: pa.Array) -> list[Any]:
    """Python values of a column without parts; None for null."""
    column = array.type
    if pa.types.is_time64(column):
        array = array.cast(pa.time64("us"))
    elif array.null_count == 0 and (pa.types.is_integer(column) or pa.types.is_floating(column)):
        numbers: list[Any] = array.to_numpy(zero_copy_only=False).tolist()
        return numbers
    values: list[Any] = array.to_pylist()
    return values


def scalar_shape(name: str) -> Shape | None:
    """Shape of a described scalar type; None for `any` and `decimal`, which are not here."""
    if name == "datetime":
        return TimestampColumn()
    if name not in _SCALARS:
        return None
    python, arrow = _SCALARS[name]
    return TimestampColumn(arrow) if python is datetime else ScalarColumn(python, arrow)


_SCALARS: Final[dict[str, tuple[Any, pa.DataType]]] = {
    "none": (None, pa.null()),
    "bool": (bool, pa.bool_()),
    "int": (int, pa.int64()),
    "float": (float, pa.float64()),
    "str": (str, pa.string()),
    "bytes": (bytes, pa.binary()),
    "bytearray": (bytes, pa.binary()),
    "time": (time, pa.time64("us")),
    "date": (date, pa.date32()),
    "timedelta": (timedelta, pa.duration("us")),
    "uuid": (str, pa.string()),
    **{leaf.described: (leaf.python, leaf.arrow) for leaf in LEAVES if leaf.described},
}
