"""Converts milliseconds since 1970 to timestamps that all Parquet readers support.

Parquet stores any 64-bit time, but many readers support only the years 1 to 9999. Other times
occur, such as the end of time; they are stored as numbers in a separate column.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

from holdfast.state.tables.shapes import listed

if TYPE_CHECKING:
    from collections.abc import Sequence

TIMESTAMP: Final = pa.timestamp("ms", tz="UTC")
"""Type of the columns."""

_FIRST: Final = -62_135_596_800_000
"""Start of the year 1."""
_AFTER: Final = 253_402_300_800_000
"""End of the year 9999."""


def is_near(time: int) -> bool:
    """Whether the time is in the years 1 to 9999."""
    return _FIRST <= time < _AFTER


def time_array(times: Sequence[int | None]) -> pa.Array:
    """Column of times in the years 1 to 9999."""
    return pa.array(times, pa.int64()).cast(TIMESTAMP)


def times_of(array: pa.Array) -> list[int | None]:
    """The times in a column of timestamps."""
    return listed(array.cast(TIMESTAMP).cast(pa.int64()))
