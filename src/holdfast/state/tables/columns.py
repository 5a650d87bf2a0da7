"""Converts rows of keyed state to the columns of a table, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from holdfast.errors import StateError
from holdfast.state.tables.keys import (
    NAMESPACE,
    WINDOWS,
    key_array,
    key_column,
    namespace_arrays,
    namespace_type,
    namespaces_of,
)
from holdfast.state.tables.rows import Rows, TableKind
from holdfast.state.tables.shapes import listed, spread
from holdfast.state.tables.times import TIMESTAMP, is_near, time_array, times_of
from holdfast.state.tables.values import state_value_column, value_column
from holdfast.state.timers.layout import FIRST_TIME

if TYPE_CHECKING:
    from collections.abc import Collection

    from holdfast.state.tables.files import Digits
    from holdfast.state.tables.values import ValueColumn

_ORDER: Final = (
    "key_group", "timestamp", "timestamp_ms", "key", *WINDOWS, NAMESPACE, "position", "map_key",
    "map_key_encoded", "last_access", "last_access_ms", "value", "encoded",
)  # fmt: skip
_OPTIONAL: Final = {
    "timestamp_ms", *WINDOWS, NAMESPACE, "map_key_encoded", "last_access_ms", "encoded",
}  # fmt: skip
"""Columns that a table has only if a row needs them."""


class TypedColumns:
    """A typed column of stored bytes, and one of the bytes that do not come back from it."""

    def __init__(self, column: ValueColumn, typed: str = "value", encoded: str = "encoded") -> None:
        """Columns of these names."""
        self._column = column
        self._typed = typed
        self._encoded = encoded

    @staticmethod
    def of_map_keys(schema: dict[str, Any]) -> TypedColumns:
        """Columns of the keys of a map."""
        return TypedColumns(value_column(schema), "map_key", "map_key_encoded")

    def types(self) -> dict[str, pa.DataType]:
        """Types of the columns; the first values may decide them."""
        return {self._typed: self._column.arrow, self._encoded: pa.binary()}

    def digits(self) -> Digits:
        """Digits of the decimals, for the metadata of the table; nothing if it has none."""
        found = [column.digits or 0 for column in self._column.decimals()]
        return {self._typed: found} if found else {}

    def expect(self, digits: Digits) -> None:
        """Read a table with such digits. One of format 1 has none.

        Raises:
            KeyError, ValueError: They are not those of these columns.
        """
        found = self._column.decimals()
        for column, own in zip(found, digits[self._typed] if found else (), strict=True):
            if not isinstance(own, int) or own < 0:
                raise ValueError(f"{own!r} digits after the point")
            column.digits = own

    def arrays(self, blobs: list[bytes | None]) -> dict[str, pa.Array]:
        """Columns of stored bytes; null for None. The second is left out if it is not needed."""
        present = [data for data in blobs if data is not None]
        column, rest = self._column.typed(present)
        arrays = {self._typed: column}
        if rest:
            encoded = pa.array([present[row] for row in rest], pa.binary())
            arrays[self._encoded] = spread(encoded, rest, len(present))
        if len(present) < len(blobs):
            rows = np.flatnonzero([data is not None for data in blobs])
            arrays = {name: spread(one, rows, len(blobs)) for name, one in arrays.items()}
        return arrays

    def stored(self, columns: dict[str, pa.Array]) -> list[bytes | None]:
        """Stored bytes from the columns of a table; None where both are null.

        Raises:
            KeyError: There is no typed column.
            TypeError: The typed column has the wrong type.
        """
        typed, encoded = columns[self._typed], columns.get(self._encoded)
        if not self._column.reads(typed.type):
            raise TypeError(f"{self._typed} is {typed.type} and should be {self._column.arrow}")
        found = self._column.stored(typed)
        if encoded is None or encoded.null_count == len(found):
            return found
        others = encoded.to_pylist()
        return [data if other is None else other for data, other in zip(found, others, strict=True)]


class TypedTable:
    """A table with typed columns."""

    def __init__(self, *typed: TypedColumns | None) -> None:
        """The typed columns that are there."""
        self._typed = [one for one in typed if one is not None]

    def digits(self) -> Digits:
        """Digits of the decimals in the typed columns; see `TypedColumns.digits`."""
        return {name: own for one in self._typed for name, own in one.digits().items()}

    def expect(self, digits: Digits) -> None:
        """Read a table with such digits; see `TypedColumns.expect`."""
        for columns in self._typed:
            columns.expect(digits)


class Columns(TypedTable):
    """The columns of one state's table."""

    def __init__(self, entry: dict[str, Any], key: str | None) -> None:
        """Columns of a state.

        Args:
            entry: Its catalog entry.
            key: Name of the type of the keys; None before the first key.
        """
        self.kind = TableKind.of(entry)
        self._where = f"state {entry.get('name')!r}"
        self._key = key_column(key)
        self._value = self._map_key = None
        if self.kind.kind != "timers":
            self._value = TypedColumns(state_value_column(entry))
        if self.kind.kind == "map":
            self._map_key = TypedColumns.of_map_keys(entry["schema"][1])
        super().__init__(self._map_key, self._value)
        self._time = "timestamp" if self.kind.kind == "timers" else "last_access"
        self._unknown = FIRST_TIME if self.kind.timed else None
        """Time that stands for none; null in the table."""

    def schema(self, wanted: Collection[str]) -> pa.Schema:
        """Schema of the table, with the wanted optional columns."""
        types = {"key_group": pa.int32(), "key": self._key.arrow}
        types |= {name: namespace_type(name) for name in (*WINDOWS, NAMESPACE)}
        if self.kind.timed or self.kind.kind == "timers":
            types |= {self._time: TIMESTAMP, f"{self._time}_ms": pa.int64()}
        if self.kind.kind == "list":
            types["position"] = pa.int64()
        for columns in self._typed:
            types |= columns.types()
        return pa.schema(
            [
                (name, types[name])
                for name in _ORDER
                if name in types and (name in wanted or name not in _OPTIONAL)
            ]
        )

    def arrays(self, rows: Rows) -> dict[str, pa.Array]:
        """Columns of the rows, with the optional columns that they need."""
        groups = np.frombuffer(b"".join(rows.groups), ">u2").astype(np.int32)
        arrays = {"key_group": pa.array(groups)}
        arrays["key"] = key_array(self._key, rows.keys, self._where)
        arrays |= namespace_arrays(rows.namespaces)
        if rows.times is not None:
            arrays |= self._time_arrays(rows.times)
        if rows.positions is not None:
            arrays["position"] = pa.array(rows.positions, pa.int64())
        for columns, blobs in ((self._map_key, rows.map_keys), (self._value, rows.values)):
            if columns is not None:
                assert blobs is not None
                arrays |= columns.arrays(blobs)
        return arrays

    def rows(self, columns: dict[str, pa.Array]) -> Rows:
        """Rows from the columns of a table.

        Raises:
            StateError: A column is missing or has the wrong type.
        """
        try:
            return self._rows(columns)
        except (KeyError, TypeError, ValueError, AttributeError, pa.ArrowException) as error:
            raise StateError(
                f"{self._where}: its table does not have the expected columns "
                f"({type(error).__name__}: {error}); it has been changed since it was written"
            ) from error

    def _rows(self, columns: dict[str, pa.Array]) -> Rows:
        groups = columns["key_group"].to_numpy(zero_copy_only=False)
        keys = self._key.keys(columns["key"])
        if columns["key_group"].null_count or None in keys:
            raise ValueError("a key is null")
        rows = Rows(
            groups.astype(">u2").view("V2").tolist(),
            keys,  # type: ignore[arg-type]
            namespaces_of(columns, len(keys)),
        )
        if self.kind.timed or self.kind.kind == "timers":
            rows.times = self._times(columns)
        if self.kind.kind == "list":
            rows.positions = listed(columns["position"])
        if self._map_key is not None:
            rows.map_keys = self._map_key.stored(columns)
        if self._value is not None:
            rows.values = self._value.stored(columns)
        return rows

    def _time_arrays(self, times: list[int]) -> dict[str, pa.Array]:
        near = [time if is_near(time) else None for time in times]
        arrays = {self._time: time_array(near)}
        far = [None if is_near(t) or t == self._unknown else t for t in times]
        if any(time is not None for time in far):
            arrays[f"{self._time}_ms"] = pa.array(far, pa.int64())
        return arrays

    def _times(self, columns: dict[str, pa.Array]) -> list[int]:
        times = times_of(columns[self._time])
        far = columns.get(f"{self._time}_ms")
        if far is not None:
            pairs = zip(times, listed(far), strict=True)
            times = [number if time is None else time for time, number in pairs]
        if self.kind.timed:
            return [FIRST_TIME if time is None else time for time in times]
        if None in times:
            raise ValueError("the time of a timer is null")
        return times  # type: ignore[return-value]
