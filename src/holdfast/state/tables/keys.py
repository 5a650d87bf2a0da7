"""Converts keys and namespaces to columns, and back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from holdfast.errors import StateError
from holdfast.serde.key_reader import length_prefixed
from holdfast.serde.keys import framed
from holdfast.state.tables.shapes import with_nulls
from holdfast.state.tables.times import TIMESTAMP, is_near, time_array, times_of

if TYPE_CHECKING:
    from collections.abc import Sequence


WINDOWS: Final = ("window_start", "window_end")
"""Columns of time windows."""

NAMESPACE: Final = "namespace"
"""Column of other namespaces."""


_SIGN: Final = 1 << 63

_bounds: Final = Struct(">QQ")

_NO_WINDOW: Final = (None, None)


def namespace_arrays(namespaces: Sequence[bytes]) -> dict[str, pa.Array]:
    """The columns that the namespaces need."""
    known = {namespace: _window(namespace) for namespace in set(namespaces)}
    arrays: dict[str, pa.Array] = {}
    if any(known.values()):
        for place, name in enumerate(WINDOWS):
            bounds = [(known[namespace] or _NO_WINDOW)[place] for namespace in namespaces]
            arrays[name] = time_array(bounds)
    if any(namespace and window is None for namespace, window in known.items()):
        others = [None if known[n] is not None or not n else n for n in namespaces]
        arrays[NAMESPACE] = pa.array(others, pa.binary())
    return arrays


def namespace_type(name: str) -> pa.DataType:
    """Type of a namespace column."""
    return pa.binary() if name == NAMESPACE else TIMESTAMP


def namespaces_of(columns: dict[str, pa.Array], count: int) -> list[bytes]:
    """Namespaces of `count` rows, from the columns that exist."""
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
    """Bounds of a time window within the years 1 to 9999; None for other namespaces."""
    if len(namespace) != _bounds.size:
        return None
    start, end = (bound - _SIGN for bound in _bounds.unpack(namespace))
    return (start, end) if is_near(start) and is_near(end) else None


_ZEROS: Final = bytes(8)


class KeyColumn(ABC):
    """Column of keys of one type."""

    arrow: pa.DataType
    """Type of the column."""

    @abstractmethod
    def array(self, keys: Sequence[bytes | None]) -> pa.Array:
        """Column from canonical bytes; null for None.

        Raises:
            ValueError, pa.ArrowException: The bytes are not keys of the type.
        """

    @abstractmethod
    def keys(self, array: pa.Array) -> list[bytes | None]:
        """Canonical bytes from a column; None for null."""


class _Binary(KeyColumn):
    """Keys stored as their bytes: `bytes`, text, and keys of unknown type."""

    def __init__(self, arrow: pa.DataType) -> None:
        self.arrow = arrow

    def array(self, keys: Sequence[bytes | None]) -> pa.Array:
        return pa.array(keys, pa.binary()).cast(self.arrow)

    def keys(self, array: pa.Array) -> list[bytes | None]:
        found: list[bytes | None] = array.cast(pa.binary()).to_pylist()
        return found


class _Fixed(KeyColumn):
    """Keys of 8 bytes: numbers, dates and timestamps."""

    def __init__(self, arrow: pa.DataType) -> None:
        self.arrow = arrow
        self._numbers = np.dtype("<f8" if pa.types.is_floating(arrow) else "<i8")
        self._between = pa.int32() if pa.types.is_date32(arrow) else pa.int64()
        if pa.types.is_floating(arrow):
            self._between = arrow

    def array(self, keys: Sequence[bytes | None]) -> pa.Array:
        absent = np.array([key is None for key in keys], np.bool_)
        data = b"".join([_ZEROS if key is None else key for key in keys])
        if len(data) != 8 * len(keys):
            raise ValueError("a number has 8 bytes")
        numbers = np.frombuffer(data, self._numbers)
        mask = absent if absent.any() else None
        return pa.array(numbers, mask=mask).cast(self._between).cast(self.arrow)

    def keys(self, array: pa.Array) -> list[bytes | None]:
        column = array.cast(self._between).cast(pa.from_numpy_dtype(self._numbers))
        numbers = column.fill_null(0).to_numpy(zero_copy_only=False)
        if self._numbers.kind == "f":
            # One zero and one NaN, even if another program wrote the column.
            numbers = np.where(np.isnan(numbers), np.nan, numbers + 0.0)
        numbers = np.ascontiguousarray(numbers, self._numbers)
        return with_nulls(numbers.view("V8").tolist(), array)


class _Tuples(KeyColumn):
    """Tuples: a struct of their components."""

    def __init__(self, components: list[KeyColumn]) -> None:
        self._components = components
        fields = [(f"_{number}", one.arrow) for number, one in enumerate(components, 1)]
        self.arrow = pa.struct(fields)

    def array(self, keys: Sequence[bytes | None]) -> pa.Array:
        rows = [_split(key or b"", len(self._components)) for key in keys]
        columns = list(zip(*rows, strict=True)) or [()] * len(self._components)
        arrays = [one.array(column) for one, column in zip(self._components, columns, strict=True)]
        return pa.StructArray.from_arrays(arrays, fields=list(self.arrow))

    def keys(self, array: pa.Array) -> list[bytes | None]:
        columns = [one.keys(array.field(place)) for place, one in enumerate(self._components)]
        return [
            b"".join([b"\x00" if part is None else b"\x01" + framed(part) for part in row])
            for row in zip(*columns, strict=True)
        ]


def key_column(shape: str | None) -> KeyColumn:
    """Column of keys of a `KeyShape`; None before the first key."""
    if shape is None or shape == "tuple[]":
        return _Binary(pa.binary())
    if shape.startswith("tuple["):
        names = shape.removeprefix("tuple[").removesuffix("]").split(", ")
        return _Tuples([key_column(name) for name in names])
    arrow = _ARROW[shape]
    binary = pa.types.is_binary(arrow) or pa.types.is_string(arrow)
    return _Binary(arrow) if binary else _Fixed(arrow)


_ARROW: Final = {
    "bool": pa.bool_(),
    "int": pa.int64(),
    "float": pa.float64(),
    "str": pa.string(),
    "bytes": pa.binary(),
    "date": pa.date32(),
    "datetime": pa.timestamp("us", tz="UTC"),
    "datetime_ntz": pa.timestamp("us"),
    "Decimal": pa.string(),
    # A component that was always null.
    "?": pa.binary(),
}


def key_array(column: KeyColumn, keys: list[bytes], where: str) -> pa.Array:
    """Column of keys, verified to return the same bytes.

    Raises:
        StateError: The bytes of a key are not a key of the type.
    """
    problem: Any = "they are not canonical"
    try:
        array = column.array(keys)
        if column.keys(array) == keys:
            return array
    except (ValueError, IndexError, pa.ArrowException) as error:
        problem = error
    raise StateError(
        f"{where}: bytes of keys are of no key of the type {column.arrow} ({problem}); the "
        "snapshot is damaged. Make another savepoint, or restore from a checkpoint"
    )


def _split(key: bytes, count: int) -> list[bytes | None]:
    parts: list[bytes | None] = []
    at = 0
    for _ in range(count if key else 0):
        mark, at = key[at], at + 1
        part: bytes | None = None
        if mark:
            part, at = length_prefixed(key, at)
        parts.append(part)
    if at != len(key):
        raise ValueError(f"{len(key) - at} bytes are left over")
    return parts or [None] * count
