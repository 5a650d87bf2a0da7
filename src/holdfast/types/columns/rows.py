"""Splits rows into columns and builds rows from columns.

Both directions work on whole lists. Single rows are handled only if the rows of a list
have different classes, or one of them does not fit.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from functools import partial
from itertools import chain, repeat
from operator import attrgetter, countOf, itemgetter
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from holdfast.types.annotations import (
    Annotation,
    is_row_class,
    is_typed_dict,
    origin_of,
    struct_members,
    unwrapped,
)
from holdfast.types.event import Event, event_class
from holdfast.types.mismatch import ValueMismatch

if TYPE_CHECKING:
    from holdfast.types.stream_type import StreamType

Columns = list[list[Any]]
"""One list of values per column."""

Split = Callable[[list[Any]], Columns]
"""Splits rows of one class into columns."""


class RowSplitter:
    """Splits rows of any accepted class into the declared columns."""

    def __init__(self, names: tuple[str, ...], hint: Annotation) -> None:
        self._names = names
        optional = (m.name for m in struct_members(hint) or () if not m.required)
        self._optional = frozenset(optional)
        self._splits: dict[type, Split] = {}

    def columns(self, rows: list[Any]) -> Columns:
        """Values of the rows by column.

        Raises:
            ValueMismatch: An element is not a row, or has other fields.
        """
        if not rows:
            return [[] for _ in self._names]
        first = type(rows[0])
        if countOf(map(type, rows), first) == len(rows):
            return self._split(first)(rows)
        classes = set(map(type, rows))
        splits = {self._split(cls) for cls in classes}
        if len(splits) == 1:
            return splits.pop()(rows)
        return self._one_by_one(rows, [self._split(type(row)) for row in rows])

    def _one_by_one(self, rows: list[Any], splits: list[Split]) -> Columns:
        columns: Columns = [[] for _ in self._names]
        for index, (row, split) in enumerate(zip(rows, splits, strict=True)):
            try:
                single = split([row])
            except ValueMismatch as mismatch:
                mismatch.index = index
                raise
            for column, values in zip(columns, single, strict=True):
                column.extend(values)
        return columns

    def _split(self, cls: type) -> Split:
        split = self._splits.get(cls)
        if split is None:
            split = self._splits[cls] = self._make_split(cls)
        return split

    def _make_split(self, cls: type) -> Split:
        if cls is tuple:
            return self._by_position
        if issubclass(cls, Event):
            return self._named_tuple(cls._columns)
        if issubclass(cls, tuple) and hasattr(cls, "_fields"):
            return self._named_tuple(cls._fields)
        if issubclass(cls, tuple):
            # A Spark Row has its field names on the instance, or none.
            return self._spark_rows
        if issubclass(cls, dict):
            return self._sparse_dicts if self._optional else self._dicts
        if dataclasses.is_dataclass(cls):
            return self._objects(tuple(field.name for field in dataclasses.fields(cls)))
        if issubclass(cls, msgspec.Struct):
            return self._objects(cls.__struct_fields__)
        return self._not_rows

    def _by_position(self, rows: list[Any]) -> Columns:
        width = len(self._names)
        if countOf(map(len, rows), width) != len(rows):
            self._refuse_width(rows)
        values = list(chain.from_iterable(rows))
        return [values[place::width] for place in range(width)]

    def _named_tuple(self, fields: tuple[str, ...]) -> Split:
        if fields == self._names or not set(fields) & set(self._names):
            return self._by_position
        if set(fields) == set(self._names) and len(fields) == len(self._names):
            return partial(self._reordered, [fields.index(name) for name in self._names])
        return partial(self._wrong_names, fields)

    def _reordered(self, places: list[int], rows: list[Any]) -> Columns:
        return [[tuple.__getitem__(row, place) for row in rows] for place in places]

    def _spark_rows(self, rows: list[Any]) -> Columns:
        fields = [tuple(getattr(row, "__fields__", self._names)) for row in rows]
        if countOf(fields, fields[0]) == len(rows):
            return self._named_tuple(fields[0])(rows)
        return self._one_by_one(rows, [self._named_tuple(names) for names in fields])

    def _dicts(self, rows: list[Any]) -> Columns:
        if countOf(map(len, rows), len(self._names)) != len(rows):
            self._refuse_keys(rows)
        try:
            return [list(map(itemgetter(name), rows)) for name in self._names]
        except KeyError:
            self._refuse_keys(rows)

    def _sparse_dicts(self, rows: list[Any]) -> Columns:
        required = set(self._names) - self._optional
        for index, row in enumerate(rows):
            if not required <= row.keys() <= set(self._names):
                self._refuse_keys(rows)
            for name in self._optional & row.keys():
                if row[name] is None:
                    raise ValueMismatch(index, None, "leave the key out instead", path=f".{name}")
        return [[row.get(name) for row in rows] for name in self._names]

    def _objects(self, fields: tuple[str, ...]) -> Split:
        if set(fields) != set(self._names):
            return partial(self._wrong_names, fields)
        return self._attributes

    def _attributes(self, rows: list[Any]) -> Columns:
        return [list(map(attrgetter(name), rows)) for name in self._names]

    def _refuse_width(self, rows: list[Any]) -> NoReturn:
        width = len(self._names)
        index = next(i for i, row in enumerate(rows) if len(row) != width)
        raise ValueMismatch(
            index,
            rows[index],
            f"it has {len(rows[index])} fields and the columns are {width}: {self._listed()}",
        )

    def _refuse_keys(self, rows: list[Any]) -> NoReturn:
        wanted, required = set(self._names), set(self._names) - self._optional
        index = next(i for i, row in enumerate(rows) if not required <= row.keys() <= wanted)
        self._wrong_names(tuple(rows[index]), rows[index:], index)

    def _wrong_names(self, fields: tuple[str, ...], rows: list[Any], index: int = 0) -> NoReturn:
        missing = [name for name in self._names if name not in {*fields, *self._optional}]
        extra = [name for name in fields if name not in self._names]
        problems = [f"it lacks {', '.join(map(repr, missing))}"] if missing else []
        problems += [f"it also has {', '.join(map(repr, extra))}"] if extra else []
        reason = f"{' and '.join(problems)}; the columns are {self._listed()}"
        raise ValueMismatch(index, rows[0], reason)

    def _not_rows(self, rows: list[Any]) -> NoReturn:
        raise ValueMismatch(
            0,
            rows[0],
            "a row is a tuple, a dict, a dataclass, a msgspec.Struct or a Row with the columns "
            f"{self._listed()}",
        )

    def _listed(self) -> str:
        return ", ".join(self._names)


def row_builder(hint: Annotation, names: tuple[str, ...]) -> Callable[[Columns], list[Any]]:
    """Function that builds rows of the declared class, or events, from columns."""
    if not is_row_class(hint):
        return _tuples_of(event_class(names))
    if is_typed_dict(hint):
        optional = frozenset(m.name for m in struct_members(hint) or () if not m.required)
        return partial(_dicts_of, names, optional)
    if issubclass(hint, tuple):
        return _tuples_of(partial(tuple.__new__, hint))
    parameters = _constructor(hint)
    if parameters is None:
        return partial(_filled, hint, names, ())
    positional = all(p.kind is p.POSITIONAL_OR_KEYWORD for p in parameters)
    taken = tuple(p.name for p in parameters)
    if positional and taken == names:
        return lambda columns: list(map(hint, *columns))
    return partial(_filled, hint, names, taken)


def column_hints(stream_type: StreamType) -> list[Annotation]:
    """Declared Python type of each column, where there is one."""
    if stream_type.kind != "row":
        return [stream_type.element]
    core, _ = unwrapped(stream_type.element)
    hints = {member.name: member.annotation for member in struct_members(core) or ()}
    return [hints.get(name) for name in stream_type.columns]


def row_class(hint: Annotation, names: tuple[str, ...]) -> type:
    """Class of the rows that `row_builder` makes."""
    if not is_row_class(hint):
        return event_class(names)
    found: type = dict if is_typed_dict(hint) else (origin_of(hint) or hint)
    return found


def _tuples_of(make: Callable[[Any], Any]) -> Callable[[Columns], list[Any]]:
    return lambda columns: list(map(make, zip(*columns, strict=True)))


def _dicts_of(names: tuple[str, ...], optional: frozenset[str], columns: Columns) -> list[Any]:
    rows: list[Any] = list(map(dict, map(zip, repeat(names), zip(*columns, strict=True))))
    for name in optional:
        for row in rows:
            if row[name] is None:
                del row[name]
    return rows


def _constructor(cls: type) -> list[inspect.Parameter] | None:
    parameters = getattr(cls, "__dataclass_params__", None)
    if parameters is not None and not parameters.init:
        return None
    return list(inspect.signature(cls).parameters.values())


def _filled(
    cls: type, names: tuple[str, ...], taken: tuple[str, ...], columns: Columns
) -> list[Any]:
    rest = [name for name in names if name not in taken]
    rows = []
    for values in zip(*columns, strict=True):
        fields = dict(zip(names, values, strict=True))
        row = cls(**{name: fields[name] for name in taken}) if taken else object.__new__(cls)
        for name in rest:
            object.__setattr__(row, name, fields[name])
        rows.append(row)
    return rows
