"""How values of one type lie in an Arrow column: types without parts.

A shape goes both ways. MessagePack is decoded as `decoded`; `array` makes a column of that,
and `plain` makes of a column what encodes to the same MessagePack. A shape may fail, or change
a value, where the column cannot hold it: what comes back is always compared (`values.py`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final, Optional

import msgspec
import pyarrow as pa

from holdfast.types.arrow import LEAVES, UTC_TIMESTAMP

NIL: Final = b"\xc0"
"""MessagePack of None."""

_EPOCH: Final = datetime(1970, 1, 1)
_EPOCH_UTC: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Shape(ABC):
    """How values of one type lie in a column."""

    python: Any
    """What MessagePack of a value that is not None is decoded as."""
    nullable = False
    """Whether None is a value of the type."""
    hashable = True
    """Whether what is decoded, and what is plain, can be the key of a dict."""
    reorders = False
    """Whether what is plain may have its fields in another order."""

    @property
    @abstractmethod
    def arrow(self) -> pa.DataType:
        """Type of the column."""

    @property
    def decoded(self) -> Any:
        """What MessagePack of a value is decoded as."""
        return Optional[self.python] if self.nullable else self.python  # noqa: UP045

    @abstractmethod
    def array(self, values: list[Any]) -> pa.Array:
        """Column of decoded values; where there is a None, whatever the type, a null."""

    @abstractmethod
    def plain(self, array: pa.Array) -> list[Any]:
        """Values of a column, fit for MessagePack; None for a null."""


class ScalarColumn(Shape):
    """Values that Arrow takes and gives back as they are."""

    def __init__(self, python: Any, arrow: pa.DataType) -> None:
        """Values of a Python type in a column of `arrow`."""
        self.python = python
        self._arrow = arrow
        self.nullable = pa.types.is_null(arrow)

    @property
    def arrow(self) -> pa.DataType:
        """See `Shape.arrow`."""
        return self._arrow

    def array(self, values: list[Any]) -> pa.Array:
        """See `Shape.array`."""
        return pa.array(values, self._arrow)

    def plain(self, array: pa.Array) -> list[Any]:
        """See `Shape.plain`."""
        return listed(array)


class TimestampColumn(Shape):
    """Datetimes; by the first ones it is decided whether the column has a zone, which is UTC."""

    python = datetime

    def __init__(self, arrow: pa.DataType | None = None) -> None:
        """Of that type of timestamps, if it is known."""
        self._arrow = arrow

    @property
    def arrow(self) -> pa.DataType:
        """See `Shape.arrow`; from now on it stays."""
        if self._arrow is None:
            self._arrow = UTC_TIMESTAMP
        return self._arrow

    def array(self, values: list[Any]) -> pa.Array:
        """See `Shape.array`."""
        if self._arrow is None:
            zoned = [value.tzinfo is not None for value in values if value is not None]
            if zoned:
                self._arrow = UTC_TIMESTAMP if 2 * sum(zoned) >= len(zoned) else pa.timestamp("us")
        return pa.array(values, self.arrow)

    def plain(self, array: pa.Array) -> list[Any]:
        """See `Shape.plain`."""
        epoch = _EPOCH if array.type.tz is None else _EPOCH_UTC
        micros = listed(array.cast(pa.timestamp("us", array.type.tz)).cast(pa.int64()))
        return [None if n is None else epoch + timedelta(microseconds=n) for n in micros]


class DecimalColumn(Shape):
    """Decimals of a declared number of digits; in MessagePack they are text."""

    python = str

    def __init__(self, arrow: pa.DataType) -> None:
        """In a column of that decimal type."""
        self._arrow = arrow

    @property
    def arrow(self) -> pa.DataType:
        """See `Shape.arrow`."""
        return self._arrow

    def array(self, values: list[Any]) -> pa.Array:
        """See `Shape.array`."""
        return pa.array([None if v is None else Decimal(v) for v in values], self._arrow)

    def plain(self, array: pa.Array) -> list[Any]:
        """See `Shape.plain`."""
        return [None if value is None else str(value) for value in array.to_pylist()]


class OpaqueColumn(Shape):
    """Parts of a value for which there is no column: their MessagePack, as it is."""

    python = msgspec.Raw
    nullable = True
    hashable = False

    @property
    def arrow(self) -> pa.DataType:
        """See `Shape.arrow`."""
        return pa.binary()

    @property
    def decoded(self) -> Any:
        """See `Shape.decoded`."""
        return msgspec.Raw

    def array(self, values: list[Any]) -> pa.Array:
        """See `Shape.array`."""
        found = [None if value is None else bytes(value) for value in values]
        return pa.array([None if data == NIL else data for data in found], pa.binary())

    def plain(self, array: pa.Array) -> list[Any]:
        """See `Shape.plain`."""
        return [None if data is None else msgspec.Raw(data) for data in array.to_pylist()]


def listed(array: pa.Array) -> list[Any]:
    """Values of a column without parts, as Python has them; None for a null."""
    column = array.type
    if pa.types.is_time64(column):
        array = array.cast(pa.time64("us"))
    elif array.null_count == 0 and (pa.types.is_integer(column) or pa.types.is_floating(column)):
        numbers: list[Any] = array.to_numpy(zero_copy_only=False).tolist()
        return numbers
    values: list[Any] = array.to_pylist()
    return values


def scalar_shape(name: str) -> Shape | None:
    """Shape of a scalar type of a description; None for `any`, which has none."""
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
    # As text they keep their digits.
    "uuid": (str, pa.string()),
    "decimal": (str, pa.string()),
    **{leaf.described: (leaf.python, leaf.arrow) for leaf in LEAVES if leaf.described},
}
