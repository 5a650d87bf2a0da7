"""Writes Python values into Arrow columns, exactly and in bulk.

Every column first counts the values of its own class, in C. Only if some have another
class are values converted one by one (see `scalars`). An array takes lists, tuples, sets
and one-dimensional NumPy arrays, a map takes dicts, a struct any row.
"""

from __future__ import annotations

import enum
from datetime import UTC, datetime, timedelta
from itertools import chain
from operator import attrgetter, countOf
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa

from holdfast.types.annotations import (
    Annotation,
    mapping_parts,
    sequence_parts,
    struct_members,
    unwrapped,
)
from holdfast.types.arrow import ddl_of
from holdfast.types.columns.readers import column_reader, micros_of_python
from holdfast.types.columns.rows import RowSplitter
from holdfast.types.columns.scalars import as_moment, scalar
from holdfast.types.mismatch import Unfit, ValueMismatch

if TYPE_CHECKING:
    from collections.abc import Callable

    WriteDense = Callable[[list[Any]], pa.Array]

_NULL = type(None)
_MICRO = timedelta(microseconds=1)


class WriteColumn(Protocol):
    """Turns the values of one column into Arrow, or into the values that a reader returns."""

    def array(self, values: list[Any], *, nullable: bool) -> pa.Array:
        """Arrow array of the values.

        Raises:
            ValueMismatch: A value does not fit; it is named.
        """

    def settled(self, values: list[Any], *, nullable: bool) -> list[Any]:
        """Values as a reader would return them; the same list if they need no conversion.

        Raises:
            ValueMismatch: A value does not fit; it is named.
        """


def column_writer(column: pa.DataType, hint: Annotation = None) -> WriteColumn:
    """Writer for a column of the declared type."""
    hint, _ = unwrapped(hint)
    of = pa.types
    if of.is_struct(column):
        return _Nested(column, hint, _structs(column, hint))
    if of.is_map(column):
        return _Nested(column, hint, _maps(column, hint))
    if of.is_list(column) or of.is_large_list(column):
        return _Nested(column, hint, _lists(column, hint))
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return _Enums(column, hint)
    if of.is_timestamp(column):
        return _Timestamps(column)
    return _Leaves(column)


class _Leaves:
    """Scalars of one class."""

    def __init__(self, column: pa.DataType) -> None:
        self._column = column
        self._class, self._convert = scalar(column)
        is_integer = pa.types.is_signed_integer(column)
        self._integers = column.to_pandas_dtype() if is_integer else None
        self._is_float32 = pa.types.is_float32(column)
        self._settles = not (pa.types.is_decimal(column) or self._is_float32)
        self._read = column_reader(column)

    def array(self, values: list[Any], *, nullable: bool) -> pa.Array:
        exact = countOf(map(type, values), self._class)
        if exact != len(values):
            values = self._checked(values, exact, nullable)
        try:
            return self._built(values, exact)
        except (ValueError, TypeError, OverflowError) as error:
            raise self._located(values, error) from None

    def settled(self, values: list[Any], *, nullable: bool) -> list[Any]:
        exact = countOf(map(type, values), self._class)
        plain = values if exact == len(values) else self._checked(values, exact, nullable)
        if self._settles and self._integers is None:
            return plain
        # Only building the array reveals integers out of range and rounded numbers.
        try:
            array = self._built(plain, exact)
        except (ValueError, TypeError, OverflowError) as error:
            raise self._located(plain, error) from None
        return plain if self._settles else self._read(array)

    def _built(self, values: list[Any], exact: int) -> pa.Array:
        if self._integers is not None and exact == len(values):
            return pa.array(np.fromiter(values, self._integers, exact))
        array = pa.array(values, self._column)
        if isinstance(array, pa.ChunkedArray):
            raise ValueError("a batch holds over 2 GiB in this column; write fewer at a time")
        if self._is_float32:
            _refuse_new_infinities(values, array)
        return array

    def _checked(self, values: list[Any], exact: int, nullable: bool) -> list[Any]:
        nulls = countOf(map(type, values), _NULL)
        if nulls and not nullable:
            index = next(i for i, value in enumerate(values) if value is None)
            raise ValueMismatch(index, None, _NOT_NULL, _declared(self._column, nullable))
        if exact + nulls == len(values):
            return values
        converted = []
        for index, value in enumerate(values):
            try:
                converted.append(None if value is None else self._convert(value))
            except Unfit as unfit:
                raise ValueMismatch(
                    index, value, str(unfit), _declared(self._column, nullable)
                ) from None
        return converted

    def _located(self, values: list[Any], error: Exception) -> ValueMismatch:
        for index, value in enumerate(values):
            try:
                self._built([value], 0)
            except (ValueError, TypeError, OverflowError) as single:
                return ValueMismatch(index, value, _advice(single), _declared(self._column, True))
        return ValueMismatch(0, values[0], str(error), _declared(self._column, True))


_NOT_NULL = "declare the field `T | None`, or give it a value"


def _declared(column: pa.DataType, nullable: bool) -> str:
    return ddl_of(column) if nullable else f"{ddl_of(column)} NOT NULL"


def _advice(error: Exception) -> str:
    if isinstance(error, UnicodeError):
        return "it is not valid Unicode text; declare binary and encode it yourself"
    if isinstance(error, OverflowError) or "too large" in str(error):
        return "it is beyond the column's range; declare a wider type"
    return f"{error}; declare a type that holds it, or convert it"


def _refuse_new_infinities(values: list[Any], array: pa.Array) -> None:
    if not np.isinf(array.to_numpy(zero_copy_only=False).astype(np.float64)).any():
        return
    for value, written in zip(values, array.to_pylist(), strict=True):
        if written in _INFINITIES and value not in _INFINITIES:
            raise OverflowError


_INFINITIES = (float("inf"), float("-inf"))


class _Timestamps:
    """Timestamps from aware datetimes, or wall-clock times from naive ones."""

    def __init__(self, column: pa.DataType) -> None:
        self._column = column
        self._zoned = column.tz is not None
        # Subtracting an epoch is fast, and raises for the other kind of datetime.
        epoch: Any = datetime(1970, 1, 1, tzinfo=UTC if self._zoned else None)
        self._since: Callable[[datetime], timedelta] = epoch.__rsub__
        self._first, self._last = micros_of_python(column)
        self._read = column_reader(column)

    def array(self, values: list[Any], *, nullable: bool) -> pa.Array:
        if countOf(map(type, values), datetime) != len(values):
            return self._sparse(values, nullable)
        try:
            array = self._built(list(map(self._since, values)))
        except (TypeError, OverflowError):
            return self._sparse(values, nullable)
        # A value that cannot be read must not be written.
        micros = array.view(pa.int64()).to_numpy()
        if len(micros) and not self._first <= micros.min() <= micros.max() <= self._last:
            return self._sparse(values, nullable)
        return array

    def settled(self, values: list[Any], *, nullable: bool) -> list[Any]:
        array = self.array(values, nullable=nullable)
        if array.null_count == 0 and countOf(map(type, values), datetime) == len(values):
            zones = countOf(map(attrgetter("tzinfo"), values), UTC if self._zoned else None)
            if zones == len(values) and self._column.tz in (None, "UTC"):
                return values
        return self._read(array)

    def _sparse(self, values: list[Any], nullable: bool) -> pa.Array:
        spans: list[timedelta | None] = []
        for index, value in enumerate(values):
            if value is None and nullable:
                spans.append(None)
                continue
            try:
                spans.append(self._span(value))
            except Unfit as unfit:
                declared = _declared(self._column, nullable)
                raise ValueMismatch(index, value, str(unfit), declared) from None
        return self._built(spans)

    def _span(self, value: Any) -> timedelta:
        if value is None:
            raise Unfit(_NOT_NULL)
        span = self._since(as_moment(value, zoned=self._zoned))
        if not self._first <= span // _MICRO <= self._last:
            raise Unfit("in the zone of the column it lies outside the years 1 to 9999")
        return span

    def _built(self, spans: list[Any]) -> pa.Array:
        return pa.array(spans, pa.duration("us")).view(self._column)


class _Enums:
    """Members of an enumeration, as their values."""

    def __init__(self, column: pa.DataType, cls: type[enum.Enum]) -> None:
        self._column = column
        self._class = cls
        self._leaves = _Leaves(column)

    def array(self, values: list[Any], *, nullable: bool) -> pa.Array:
        self._check(values, nullable)
        plain = [None if value is None else value.value for value in values]
        return self._leaves.array(plain, nullable=nullable)

    def settled(self, values: list[Any], *, nullable: bool) -> list[Any]:
        self._check(values, nullable)
        return values

    def _check(self, values: list[Any], nullable: bool) -> None:
        for index, value in enumerate(values):
            if value is None and not nullable:
                raise ValueMismatch(index, None, _NOT_NULL, self._class.__name__)
            if value is not None and not isinstance(value, self._class):
                advice = f"yield a member of {self._class.__name__}"
                raise ValueMismatch(index, value, advice, self._class.__name__)


class _Nested:
    """Lists, maps and structs: written without their nulls, which are then put back."""

    def __init__(self, column: pa.DataType, hint: Annotation, dense: WriteDense) -> None:
        self._column = column
        self._dense = dense
        self._read = column_reader(column, hint)

    def array(self, values: list[Any], *, nullable: bool) -> pa.Array:
        present = [index for index, value in enumerate(values) if value is not None]
        if len(present) == len(values):
            return self._dense(values)
        if not nullable:
            index = next(i for i, value in enumerate(values) if value is None)
            raise ValueMismatch(index, None, _NOT_NULL, _declared(self._column, False))
        try:
            array = self._dense([values[index] for index in present])
        except ValueMismatch as mismatch:
            mismatch.index = present[mismatch.index]
            raise
        places: list[int | None] = [None] * len(values)
        for place, index in enumerate(present):
            places[index] = place
        return array.take(pa.array(places, pa.int64()))

    def settled(self, values: list[Any], *, nullable: bool) -> list[Any]:
        return self._read(self.array(values, nullable=nullable))


def _structs(column: pa.DataType, hint: Annotation) -> WriteDense:
    splitter = RowSplitter(tuple(field.name for field in column), hint)
    hints = {member.name: member.annotation for member in struct_members(hint) or ()}
    fields = list(column)
    writers = [column_writer(field.type, hints.get(field.name)) for field in fields]

    def dense(rows: list[Any]) -> pa.Array:
        try:
            columns = splitter.columns(rows)
        except ValueMismatch as mismatch:
            mismatch.declared = mismatch.declared or ddl_of(column)
            raise
        arrays = []
        for field, writer, values in zip(fields, writers, columns, strict=True):
            try:
                arrays.append(writer.array(values, nullable=field.nullable))
            except ValueMismatch as mismatch:
                mismatch.path = f".{field.name}{mismatch.path}"
                raise
        return pa.StructArray.from_arrays(arrays, fields=fields)

    return dense


def _lists(column: pa.DataType, hint: Annotation) -> WriteDense:
    container, item_hint = sequence_parts(hint) or (None, None)
    accepted = _CONTAINERS[container]
    item = column.value_field
    writer = column_writer(item.type, item_hint)
    make = pa.LargeListArray if pa.types.is_large_list(column) else pa.ListArray

    def dense(values: list[Any]) -> pa.Array:
        if not set(map(type, values)) <= accepted:
            values = _as_sequences(values, accepted, ddl_of(column))
        offsets = _offsets(values, column)
        items = list(chain.from_iterable(values))
        try:
            array = writer.array(items, nullable=item.nullable)
        except ValueMismatch as mismatch:
            place = _move_up(mismatch, offsets)
            mismatch.path = f"[{place}]{mismatch.path}"
            raise
        return make.from_arrays(pa.array(offsets), array, type=column)

    return dense


# By declared container; without one, all that can be iterated without surprise.
_CONTAINERS: dict[type | None, frozenset[type]] = {
    list: frozenset({list, tuple}),
    tuple: frozenset({list, tuple}),
    set: frozenset({set, frozenset}),
    frozenset: frozenset({set, frozenset}),
    None: frozenset({list, tuple, set, frozenset}),
}


def _as_sequences(values: list[Any], accepted: frozenset[type], declared: str) -> list[Any]:
    bases = tuple(accepted)
    sequences = []
    for index, value in enumerate(values):
        if isinstance(value, np.ndarray) and list in accepted:
            sequences.append(value.tolist())
        elif isinstance(value, bases):
            sequences.append(value)
        else:
            names = " or ".join(sorted(cls.__name__ for cls in bases))
            raise ValueMismatch(index, value, f"yield a {names}", declared)
    return sequences


def _maps(column: pa.DataType, hint: Annotation) -> WriteDense:
    key_hint, value_hint = mapping_parts(hint) or (None, None)
    keys = column_writer(column.key_type, key_hint)
    items = column_writer(column.item_type, value_hint)
    nullable = column.item_field.nullable

    def dense(values: list[Any]) -> pa.Array:
        for index, value in enumerate(values):
            if not isinstance(value, dict):
                raise ValueMismatch(index, value, "yield a dict", ddl_of(column))
        offsets = _offsets(values, column)
        names = list(chain.from_iterable(values))
        try:
            key_array = keys.array(names, nullable=False)
            flat = list(chain.from_iterable(map(dict.values, values)))
            item_array = items.array(flat, nullable=nullable)
        except ValueMismatch as mismatch:
            key = names[mismatch.index]
            _move_up(mismatch, offsets)
            mismatch.path = f"[{key!r}]{mismatch.path}"
            raise
        return pa.MapArray.from_arrays(pa.array(offsets), key_array, item_array, type=column)

    return dense


def _offsets(values: list[Any], column: pa.DataType) -> Any:
    width = np.int64 if pa.types.is_large_list(column) else np.int32
    offsets = np.zeros(len(values) + 1, width)
    np.cumsum(np.fromiter(map(len, values), width, len(values)), out=offsets[1:])
    return offsets


def _move_up(mismatch: ValueMismatch, offsets: Any) -> int:
    row = int(np.searchsorted(offsets, mismatch.index, side="right")) - 1
    place = mismatch.index - int(offsets[row])
    mismatch.index = row
    return place
