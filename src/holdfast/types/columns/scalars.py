"""Converts values of other classes to the class of a column, without loss.

Arrow's own conversion is lenient: it truncates 3.5 in an integer column, and accepts a
naive datetime as UTC and bytes as text. Here a value is converted without loss, or refused
with advice.

    integers    subclasses of int, NumPy integers; neither bool nor float
    floats      integers a double holds exactly, NumPy numbers; not bool
    decimal     int; digits beyond the scale or precision are refused later, by Arrow
    string      subclasses of str
    binary      bytearray, memoryview
    timestamp   aware datetimes, of any zone; for timestamp_ntz naive ones
"""

from __future__ import annotations

from datetime import date, datetime, time
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from holdfast.types.arrow import leaf_of
from holdfast.types.mismatch import Unfit

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa


def scalar(column: pa.DataType) -> tuple[type, Callable[[Any], Any]]:
    """Class of a column's values, and the conversion of values of other classes.

    The conversion raises `Unfit` for a value that it cannot convert without loss.
    """
    leaf = leaf_of(column)
    assert leaf is not None
    return (_NaiveTime if leaf.python is time else leaf.python), _CONVERSIONS[leaf.python]


class _NaiveTime:
    """Class without instances, so that every time of day is checked for a zone."""


def _as_int(value: Any) -> int:
    if isinstance(value, bool | np.bool_):
        raise Unfit("a bool is no number here; write int(value), or declare boolean")
    if isinstance(value, int | np.integer):
        return int(value)
    if isinstance(value, float | np.floating):
        raise Unfit("a float is not rounded; write int(value), or declare double")
    raise Unfit("yield an int, or declare the type it has")


def _as_float(value: Any) -> float:
    if isinstance(value, bool | np.bool_):
        raise Unfit("a bool is no number here; write float(value), or declare boolean")
    if isinstance(value, float | np.floating):
        return float(value)
    if isinstance(value, int | np.integer):
        whole = int(value)
        if abs(whole) > 2**1023 or int(float(whole)) != whole:
            raise Unfit("a double does not hold this integer exactly; write float(value)")
        return float(whole)
    raise Unfit("yield a float, or declare the type it has")


def _as_str(value: Any) -> str:
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, bytes | bytearray):
        raise Unfit("bytes are not decoded; write value.decode(), or declare binary")
    raise Unfit("yield a str, or declare the type it has")


def _as_bytes(value: Any) -> bytes:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if isinstance(value, str):
        raise Unfit("text is not encoded; write value.encode(), or declare string")
    raise Unfit("yield bytes, or declare the type it has")


def _as_bool(value: Any) -> bool:
    if isinstance(value, bool | np.bool_):
        return bool(value)
    raise Unfit("yield a bool, for example bool(value)")


def _as_decimal(value: Any) -> Decimal:
    if isinstance(value, Decimal):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return Decimal(value)
    raise Unfit("yield a Decimal, for example Decimal(str(value))")


def _as_date(value: Any) -> date:
    if isinstance(value, datetime):
        raise Unfit("a datetime is not cut to its date; write value.date()")
    if isinstance(value, date):
        return date(value.year, value.month, value.day)
    raise Unfit("yield a datetime.date")


def _as_time(value: Any) -> time:
    if not isinstance(value, time):
        raise Unfit("yield a datetime.time")
    if value.tzinfo is not None:
        raise Unfit("a time of day has no zone here; write value.replace(tzinfo=None)")
    return value


def _as_null(value: Any) -> None:
    raise Unfit("a void column holds nothing but None; declare the type it has")


_CONVERSIONS: Final[dict[type, Callable[[Any], Any]]] = {
    bool: _as_bool,
    int: _as_int,
    float: _as_float,
    Decimal: _as_decimal,
    str: _as_str,
    bytes: _as_bytes,
    date: _as_date,
    time: _as_time,
    type(None): _as_null,
}


def as_moment(value: Any, *, zoned: bool) -> datetime:
    """Plain datetime for a timestamp column.

    Raises:
        Unfit: It is no datetime, or has a zone where there must be none, or the reverse.
    """
    if not isinstance(value, datetime):
        raise Unfit("yield a datetime.datetime")
    if getattr(value, "nanosecond", 0):
        raise Unfit("a timestamp holds microseconds; round its nanoseconds first")
    if zoned and value.utcoffset() is None:
        raise Unfit(
            "a naive datetime names no instant; give it a zone, for example "
            "value.replace(tzinfo=UTC), or declare timestamp_ntz"
        )
    if not zoned and value.tzinfo is not None:
        raise Unfit("it has a zone; write value.replace(tzinfo=None), or declare timestamp")
    return datetime(
        value.year, value.month, value.day, value.hour, value.minute, value.second,
        value.microsecond, value.tzinfo, fold=value.fold,
    )  # fmt: skip
