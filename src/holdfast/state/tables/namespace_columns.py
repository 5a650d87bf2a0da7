"""Namespaces of keys as columns, and back: time windows by their bounds, others by their bytes."""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from holdfast.state.tables.times import TIMESTAMP, is_near, time_array, times_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

WINDOWS: Final = ("window_start", "window_end")
"""Columns of time windows."""
NAMESPACE: Final = "namespace"
"""Column of other namespaces."""

_SIGN: Final = 1 << 63
_bounds: Final = Struct(">QQ")
_NO_WINDOW: Final = (None, None)


def needed_columns(namespaces: Iterable[bytes]) -> set[str]:
    """Columns that the namespaces need."""
    needed: set[str] = set()
    for namespace in set(namespaces) - {b""}:
        needed.update([NAMESPACE] if _window(namespace) is None else WINDOWS)
    return needed


def namespace_arrays(namespaces: Sequence[bytes], wanted: Iterable[str]) -> dict[str, pa.Array]:
    """The wanted columns of namespaces, which need no others."""
    known = {namespace: _window(namespace) for namespace in set(namespaces)}
    arrays: dict[str, pa.Array] = {}
    for place, name in enumerate(WINDOWS):
        if name in wanted:
            bounds = [(known[namespace] or _NO_WINDOW)[place] for namespace in namespaces]
            arrays[name] = time_array(bounds)
    if NAMESPACE in wanted:
        others = [None if known[n] is not None or not n else n for n in namespaces]
        arrays[NAMESPACE] = pa.array(others, pa.binary())
    return arrays


def namespace_type(name: str) -> pa.DataType:
    """Type of one of the columns."""
    return pa.binary() if name == NAMESPACE else TIMESTAMP


def namespaces_of(columns: dict[str, pa.Array], count: int) -> list[bytes]:
    """The namespaces of as many rows, of those columns that there are."""
    found: list[bytes] = [b""] * count
    if NAMESPACE in columns:
        found = [namespace or b"" for namespace in columns[NAMESPACE].to_pylist()]
    if WINDOWS[0] in columns:
        bounds = zip(*(times_of(columns[name]) for name in WINDOWS), strict=True)
        found = [
            other if start is None or end is None else _bounds.pack(start + _SIGN, end + _SIGN)
            for other, (start, end) in zip(found, bounds, strict=True)
        ]
    return found


def _window(namespace: bytes) -> tuple[int, int] | None:
    """Bounds of a time window that every reader takes; None of any other namespace."""
    if len(namespace) != _bounds.size:
        return None
    start, end = (bound - _SIGN for bound in _bounds.unpack(namespace))
    return (start, end) if is_near(start) and is_near(end) else None
