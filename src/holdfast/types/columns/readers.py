"""Reads Arrow columns into lists of Python values, exactly and in bulk.

A reader for a declared type accepts every physical form of it: large and view variants,
dictionaries, another zone. Values have the declared form.
"""

from __future__ import annotations

import enum
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa

from holdfast.errors import TypeDeclarationError
from holdfast.types.annotations import (
    Annotation,
    mapping_parts,
    sequence_parts,
    struct_members,
    unwrapped,
)
from holdfast.types.arrow import ddl_of, key_type
from holdfast.types.columns.rows import row_builder

if TYPE_CHECKING:
    from collections.abc import Callable

    ReadColumn = Callable[[pa.Array], list[Any]]

_HOUR = 3_600_000_000
_DAY = 24 * _HOUR
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_DAY = (date.min - date(1970, 1, 1)).days
_LAST_DAY = (date.max - date(1970, 1, 1)).days
_FIRST_MICRO = (datetime.min - datetime(1970, 1, 1)) // timedelta(microseconds=1)
_LAST_MICRO = (datetime.max - datetime(1970, 1, 1)) // timedelta(microseconds=1)
_UTC_NAMES = frozenset({"UTC", "Etc/UTC", "Z", "+00:00"})


def column_reader(column: pa.DataType, hint: Annotation = None) -> ReadColumn:
    """Function from a column of the declared type to its values; None where null."""
    hint, _ = unwrapped(hint)
    of = pa.types
    if of.is_struct(column):
        return partial(_dense, column, _struct_reader(column, hint))
    if of.is_map(column):
        return partial(_dense, column, _map_reader(column, hint))
    if of.is_list(column) or of.is_large_list(column):
        return partial(_dense, column, _list_reader(column, hint))
    leaf = _leaf_reader(column)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return partial(_enum_values, leaf, hint)
    return leaf


def zone_of(name: str) -> tzinfo:
    """Time zone of an Arrow or Spark zone name."""
    if name in _UTC_NAMES:
        return UTC
    if name[:1] in "+-":
        hours, _, minutes = name[1:].partition(":")
        offset = timedelta(hours=int(hours), minutes=int(minutes or 0))
        return timezone(-offset if name[0] == "-" else offset)
    return ZoneInfo(name)


def micros_of_python(column: pa.DataType) -> tuple[int, int]:
    """First and last microsecond since 1970 that Python can represent in the column's zone."""
    # Near the ends, the year in the column's zone may be outside Python's range.
    margin = 0 if column.tz is None or column.tz in _UTC_NAMES else _DAY
    return _FIRST_MICRO + margin, _LAST_MICRO - margin


def _leaf_reader(column: pa.DataType) -> ReadColumn:
    match key_type(column):
        case "str":
            return _Strings().read
        case "datetime_ntz":
            return partial(_physical, column, _naive_timestamps)
        case "datetime":
            return partial(_physical, column, _ZonedTimestamps(zone_of(column.tz)).read)
        case "date":
            return partial(_physical, column, _dates)
        case "Decimal" | "time":
            return partial(_physical, column, _objects)
    return partial(_physical, column, _numbers)


def _physical(column: pa.DataType, read: ReadColumn, array: pa.Array) -> list[Any]:
    return read(array if array.type == column else _conformed(array, column))


def _conformed(array: pa.Array, column: pa.DataType) -> pa.Array:
    if isinstance(array, pa.DictionaryArray):
        array = array.dictionary_decode()
    # Arrow would also parse strings into numbers and cast numbers to timestamps.
    problem: object = "the types are not related"
    if _family(array.type) == _family(column):
        try:
            return array.cast(column)
        except pa.ArrowException as error:
            problem = error
    raise _other_type(column, array.type, problem)


def _other_type(column: pa.DataType, found: pa.DataType, problem: object) -> TypeDeclarationError:
    return TypeDeclarationError(
        f"a column declared {ddl_of(column)} arrives as {ddl_of(found)}: {problem}; "
        "declare the type it has, or cast it before"
    )


def _family(column: pa.DataType) -> str:
    of = pa.types
    if of.is_map(column):
        return "map"
    if of.is_struct(column):
        return "struct"
    return "list" if of.is_nested(column) else key_type(column)


def _dense(column: pa.DataType, read: ReadColumn, array: pa.Array) -> list[Any]:
    if array.type.id != column.id:
        array = _conformed(array, column)
    if not array.null_count:
        return read(array)
    try:
        present = array.drop_null()
    except pa.ArrowNotImplementedError:
        # Arrow cannot filter view arrays; the declared type has none.
        present = _conformed(array, column).drop_null()
    values = iter(read(present))
    return [next(values) if valid else None for valid in array.is_valid().to_pylist()]


def _numbers(array: pa.Array) -> list[Any]:
    values: list[Any] = array.to_pylist()
    return values


def _objects(array: pa.Array) -> list[Any]:
    values: list[Any] = array.to_numpy(zero_copy_only=False).tolist()
    return values


class _Strings:
    """Reads strings through a dictionary for as long as they repeat.

    Repeated strings are then one object, whose hash is computed once. A column of distinct
    strings is tried again every `RETRY_AFTER` batches.
    """

    RETRY_AFTER = 16
    REPEATS = 4

    def __init__(self) -> None:
        self._plain_batches = 0

    def read(self, array: pa.Array) -> list[Any]:
        if isinstance(array, pa.DictionaryArray):
            return self._looked_up(array)
        if self._plain_batches:
            self._plain_batches -= 1
        elif len(array) >= self.REPEATS:
            encoded = _text(array).dictionary_encode()
            if len(encoded.dictionary) * self.REPEATS <= len(array):
                return self._looked_up(encoded)
            self._plain_batches = self.RETRY_AFTER
        return _numbers(_text(array))

    def _looked_up(self, array: pa.DictionaryArray) -> list[Any]:
        # The last place holds the None for nulls.
        words = [*_numbers(_text(array.dictionary)), None]
        places = array.indices
        if array.null_count:
            places = places.fill_null(len(words) - 1)
        found: list[Any] = np.array(words, dtype=object).take(places.to_numpy()).tolist()
        return found


def _text(array: pa.Array) -> pa.Array:
    of = pa.types
    if of.is_string(array.type) or of.is_large_string(array.type):
        return array
    return _conformed(array, pa.string())


def _dates(array: pa.Array) -> list[Any]:
    _refuse_other_years(array, _counts(array, pa.int32()), _FIRST_DAY, _LAST_DAY)
    return _objects(array)


def _naive_timestamps(array: pa.Array) -> list[Any]:
    _refuse_other_years(array, _counts(array, pa.int64()), *micros_of_python(array.type))
    return _objects(array)


def _counts(array: pa.Array, integer: pa.DataType) -> Any:
    return array.view(integer).fill_null(0).to_numpy()


def _refuse_other_years(array: pa.Array, counts: Any, first: int, last: int) -> None:
    # Beyond these, NumPy returns integers instead of dates.
    if len(counts) and not first <= counts.min() <= counts.max() <= last:
        raise TypeDeclarationError(
            f"a {ddl_of(array.type)} column holds times outside the years 1 to 9999, which Python "
            "cannot hold; filter those rows, or cast the column to bigint, before the stream"
        )


class _ZonedTimestamps:
    """Reads timestamps as datetimes in one zone.

    The UTC offset of a zone is constant for months. While it is, a batch takes one addition;
    around a change, and for batches that span days, each value is converted separately.
    """

    LOOK_BACK = 25  # hours; no zone ever repeated more than a day
    SPAN = 48  # hours

    def __init__(self, zone: tzinfo) -> None:
        self._zone = zone
        self._epoch = datetime(1970, 1, 1, tzinfo=zone)
        self._offsets: dict[int, int] = {}

    def read(self, array: pa.Array) -> list[Any]:
        micros = _counts(array, pa.int64())
        _refuse_other_years(array, micros, *micros_of_python(array.type))
        values = self._values(micros)
        if array.null_count:
            valid = array.is_valid().to_pylist()
            return [value if known else None for value, known in zip(values, valid, strict=True)]
        return values

    def _values(self, micros: Any) -> list[Any]:
        offset = self._steady_offset(micros)
        if offset is None:
            instants = map(_EPOCH.__add__, micros.view("m8[us]").tolist())
            return [instant.astimezone(self._zone) for instant in instants]
        return list(map(self._epoch.__add__, (micros + offset).view("m8[us]").tolist()))

    def _steady_offset(self, micros: Any) -> int | None:
        if isinstance(self._zone, timezone) or not len(micros):
            return self._offset(0)
        first, last = int(micros.min()) // _HOUR, int(micros.max()) // _HOUR
        if last - first > self.SPAN:
            return None
        hours = range(first - self.LOOK_BACK, last + 2)
        offsets = {self._offset(hour) for hour in hours}
        return offsets.pop() if len(offsets) == 1 else None

    def _offset(self, hour: int) -> int:
        offset = self._offsets.get(hour)
        if offset is None:
            local = (_EPOCH + timedelta(hours=hour)).astimezone(self._zone)
            offset = (local.utcoffset() or timedelta()) // timedelta(microseconds=1)
            self._offsets[hour] = offset
        return offset


def _enum_values(read: ReadColumn, cls: type[enum.Enum], array: pa.Array) -> list[Any]:
    known: dict[Any, Any] = {member.value: member for member in cls}
    known[None] = None
    values = read(array)
    # A combination of flags is not listed as a member, but the class accepts it.
    known |= {value: cls(value) for value in set(values) - known.keys()}
    return list(map(known.__getitem__, values))


def _struct_reader(column: pa.DataType, hint: Annotation) -> ReadColumn:
    names = tuple(field.name for field in column)
    hints = {member.name: member.annotation for member in struct_members(hint) or ()}
    readers = [column_reader(field.type, hints.get(field.name)) for field in column]
    build = row_builder(hint, names)

    def read(array: pa.Array) -> list[Any]:
        if tuple(field.name for field in array.type) != names:
            raise _other_type(column, array.type, "their fields differ")
        return build([read_field(array.field(i)) for i, read_field in enumerate(readers)])

    return read


def _list_reader(column: pa.DataType, hint: Annotation) -> ReadColumn:
    container, item = sequence_parts(hint) or (list, None)
    read_items = column_reader(column.value_type, item)

    def read(array: pa.Array) -> list[Any]:
        bounds, first, length = _bounds(array)
        items: Any = read_items(array.values.slice(first, length))
        if container is tuple:
            items = tuple(items)
        slices = [items[start:stop] for start, stop in pairwise(bounds)]
        return slices if container in (list, tuple) else list(map(container, slices))

    return read


def _map_reader(column: pa.DataType, hint: Annotation) -> ReadColumn:
    key, value = mapping_parts(hint) or (None, None)
    read_keys = column_reader(column.key_type, key)
    read_values = column_reader(column.item_type, value)

    def read(array: pa.Array) -> list[Any]:
        bounds, first, length = _bounds(array)
        keys = read_keys(array.keys.slice(first, length))
        values = read_values(array.items.slice(first, length))
        key_slices = [keys[start:stop] for start, stop in pairwise(bounds)]
        value_slices = [values[start:stop] for start, stop in pairwise(bounds)]
        return list(map(dict, map(zip, key_slices, value_slices)))

    return read


def _bounds(array: pa.Array) -> tuple[list[int], int, int]:
    offsets = array.offsets.to_numpy()
    first, last = int(offsets[0]), int(offsets[-1])
    bounds: list[int] = (offsets - first).tolist()
    return bounds, first, last - first
