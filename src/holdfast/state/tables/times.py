"""Milliseconds since 1970 as timestamps that every reader takes.

Parquet holds any 64 bits; readers often hold no time beyond the years 1 to 9999. Such times
are real: the end of time is one. They are numbers in a column of their own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from holdfast.state.tables.shapes import listed

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

TIMESTAMP: Final = pa.timestamp("ms", tz="UTC")
"""Type of the columns."""

_FIRST: Final = -62_135_596_800_000
"""Beginning of the year 1."""
_AFTER: Final = 253_402_300_800_000
"""End of the year 9999."""


def is_near(time: int) -> bool:
    """Whether every reader takes the time."""
    return _FIRST <= time < _AFTER


def far_times(times: Iterable[int | None]) -> bool:
    """Whether there is a time that readers do not take."""
    return any(time is not None and not is_near(time) for time in times)


def time_array(times: Sequence[int | None]) -> pa.Array:
    """Column of times that every reader takes."""
    return pa.array(times, pa.int64()).cast(TIMESTAMP)


def times_of(array: pa.Array) -> list[int | None]:
    """The times in a column of timestamps."""
    return listed(array.cast(TIMESTAMP).cast(pa.int64()))


def stored_times(blobs: Sequence[bytes]) -> list[int]:
    """Times that were stored in 8 bytes each, big-endian, sign bit flipped."""
    unsigned: NDArray[np.uint64] = np.frombuffer(b"".join(blobs), ">u8").astype(np.uint64)
    times: list[int] = (unsigned ^ np.uint64(1 << 63)).view(np.int64).tolist()
    return times
