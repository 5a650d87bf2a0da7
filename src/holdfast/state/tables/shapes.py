"""Column shapes: how values of a type are stored in an Arrow column. Types without parts.

A shape converts in both directions. MessagePack is decoded as `decoded`; `array` builds a
column, and `plain` returns values that encode to the same MessagePack. A shape may fail, or
change a value, if the column cannot represent it, so `values.py` always compares the result.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final, Optional

import msgspec
import pyarrow as pa
from typing_extensions import override

from holdfast.types.arrow import LEAVES, UTC_TIMESTAMP

NIL: Final = b"\xc0"
"""MessagePack of None."""

_EPOCH: Final = datetime(1970, 1, 1)
_EPOCH_UTC: Final = datetime(1970, 1, 1, tzinfo=UTC)


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

    @property
    @abstractmethod
    def arrow(self) -> pa.DataType:
        """Type of the column."""

    @property
    def decoded(self) -> Any:
        """Type for decoding a value."""
        return Optional[self.python] if self.nullable else self.python  # noqa: UP045

    @abstractmethod
    def array(self, values: list[Any]) -> pa.Array:
        """Column of decoded values; None becomes null, even if the type is not nullable."""

    @abstractmethod
    def plain(self, array: pa.Array) -> list[Any]:
        """Values of a column for encoding; None for null."""


class ScalarColumn(Shape):
    """Values that Arrow preserves unchanged."""

    def __init__(self, python: Any, arrow: pa.DataType) -> None:
        """Values of a Python type in a column of `arrow`."""
        self.python = python
        self._arrow = arrow
        self.nullable = pa.types.is_null(arrow)

    @property
    @override
    def arrow(self) -> pa.DataType:
        return self._arrow

    @override
    def array(self, values: list[Any]) -> pa.Array:
        return pa.array(values, self._arrow)

    @override
    def plain(self, array: pa.Array) -> list[Any]:
        return listed(array)


class TimestampColumn(Shape):
    """Datetimes. The first values decide whether the column is in UTC or without a zone."""

    python = datetime

    def __init__(self, arrow: pa.DataType | None = None) -> None:
        """Use this timestamp type, if it is known."""
        self._arrow = arrow

    @property
    def arrow(self) -> pa.DataType:
        """See `Shape.arrow`; fixed from the first call on."""
        if self._arrow is None:
            self._arrow = UTC_TIMESTAMP
        return self._arrow

    @override
    def array(self, values: list[Any]) -> pa.Array:
        if self._arrow is None:
            zoned = [value.tzinfo is not None for value in values if value is not None]
            if zoned:
                self._arrow = UTC_TIMESTAMP if 2 * sum(zoned) >= len(zoned) else pa.timestamp("us")
        return pa.array(values, self.arrow)

    @override
    def plain(self, array: pa.Array) -> list[Any]:
        epoch = _EPOCH if array.type.tz is None else _EPOCH_UTC
        micros = listed(array.cast(pa.timestamp("us", array.type.tz)).cast(pa.int64()))
        return [None if n is None else epoch + timedelta(microseconds=n) for n in micros]


class DecimalColumn(Shape):
    """Decimals with precision and scale, which are text in MessagePack."""

    python = str

    def __init__(self, arrow: pa.DataType) -> None:
        """Use this decimal type."""
        self._arrow = arrow

    @property
    @override
    def arrow(self) -> pa.DataType:
        return self._arrow

    @override
    def array(self, values: list[Any]) -> pa.Array:
        return pa.array([None if v is None else Decimal(v) for v in values], self._arrow)

    @override
    def plain(self, array: pa.Array) -> list[Any]:
        return [None if value is None else str(value) for value in array.to_pylist()]


class OpaqueColumn(Shape):
    """Values without a column type, kept as MessagePack."""

    python = msgspec.Raw
    nullable = True
    hashable = False

    @property
    @override
    def arrow(self) -> pa.DataType:
        return pa.binary()

    @property
    @override
    def decoded(self) -> Any:
        return msgspec.Raw

    @override
    def array(self, values: list[Any]) -> pa.Array:
        found = [None if value is None else bytes(value) for value in values]
        return pa.array([None if data == NIL else data for data in found], pa.binary())

    @override
    def plain(self, array: pa.Array) -> list[Any]:
        return [None if data is None else msgspec.Raw(data) for data in array.to_pylist()]


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
    """Shape of a described scalar type; None for `any`, which has none."""
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
    # Text keeps their digits.
    "uuid": (str, pa.string()),
    "decimal": (str, pa.string()),
    **{leaf.described: (leaf.python, leaf.arrow) for leaf in LEAVES if leaf.described},
}
