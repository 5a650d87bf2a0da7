"""Reads, writes and copies batches of a stream's elements.

A value either comes back equal and of the declared class, or is refused when it is
written. The declared type itself makes three exceptions: a `float` column rounds to single
precision, a `decimal` has its scale, and a timestamp comes back in the column's zone.
"""

from __future__ import annotations

import pickle
from operator import countOf
from typing import TYPE_CHECKING, Any, NoReturn

import pyarrow as pa

from holdfast.errors import OutputTypeError, TypeDeclarationError
from holdfast.types.columns.pickling import pickled
from holdfast.types.columns.readers import column_reader
from holdfast.types.columns.rows import (
    RowSplitter,
    column_hints,
    row_builder,
    row_class,
)
from holdfast.types.columns.writers import column_writer
from holdfast.types.event import Event
from holdfast.types.mismatch import ValueMismatch, shown

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.types.columns.rows import Columns
    from holdfast.types.stream_type import StreamType


def element_copier(stream: StreamType) -> Callable[[list[Any]], list[Any]]:
    """Function that copies elements; `no_copy` if they are immutable."""
    if stream.kind == "object":
        return lambda elements: list(map(pickle.loads, pickled(elements)))
    element = stream.element
    immutable = element is None or (isinstance(element, type) and issubclass(element, tuple))
    if immutable and not any(pa.types.is_nested(field.type) for field in stream.schema):
        return no_copy
    writer, reader = BatchWriter(stream), BatchReader(stream)
    return lambda elements: reader.elements(writer.batch(elements))


def no_copy(elements: list[Any]) -> list[Any]:
    """The elements themselves."""
    return elements


class BatchReader:
    """Reads a stream's elements from record batches.

    The stream's columns come first in a batch; others are ignored. A reader adapts to the
    batches that it has seen, so keep one per stream and task.
    """

    def __init__(self, stream_type: StreamType) -> None:
        self._kind = stream_type.kind
        self._names = list(stream_type.columns)
        hints = column_hints(stream_type)
        self._columns = [
            column_reader(field.type, hint)
            for field, hint in zip(stream_type.schema, hints, strict=True)
        ]
        self._rows = row_builder(stream_type.element, stream_type.columns)

    def elements(self, batch: pa.RecordBatch) -> list[Any]:
        """Elements of the batch, in its order."""
        return self.read(batch)[0]

    def read(self, batch: pa.RecordBatch) -> tuple[list[Any], Columns]:
        """Elements of the batch, in its order, and the columns that they were made of."""
        if batch.schema.names[: len(self._names)] != self._names:
            self._refuse(batch)
        columns = [read(batch.column(i)) for i, read in enumerate(self._columns)]
        if self._kind == "row":
            return self._rows(columns), columns
        if self._kind == "object":
            columns = [list(map(pickle.loads, columns[0]))]
        return columns[0], columns

    def column(self, batch: pa.RecordBatch, place: int) -> list[Any]:
        """Values of one column of the batch; of an object stream, the objects."""
        values = self._columns[place](batch.column(place))
        return list(map(pickle.loads, values)) if self._kind == "object" else values

    def _refuse(self, batch: pa.RecordBatch) -> NoReturn:
        raise TypeDeclarationError(
            f"a stream declared with the columns {', '.join(self._names)} receives a batch with "
            f"{', '.join(batch.schema.names)}; declare the columns it has, or select them before"
        )


class BatchWriter:
    """Writes a stream's elements to record batches.

    A row may be a tuple, a named tuple or Row (by name where the names are those of
    the columns, else by position), a dict, a dataclass or a `msgspec.Struct`; rows of
    different classes may be mixed.
    """

    def __init__(self, stream_type: StreamType) -> None:
        self._kind = stream_type.kind
        self._schema = stream_type.schema
        hints = column_hints(stream_type)
        self._columns = [
            column_writer(field.type, hint) for field, hint in zip(self._schema, hints, strict=True)
        ]
        self._splitter = RowSplitter(stream_type.columns, stream_type.element)
        self._rows = row_builder(stream_type.element, stream_type.columns)
        self._row_class = row_class(stream_type.element, stream_type.columns)

    def batch(self, elements: list[Any]) -> pa.RecordBatch:
        """Record batch of the elements, in their order.

        Raises:
            OutputTypeError: An element does not fit the declared type; nothing is written.
        """
        arrays = []
        for place, values in enumerate(self._split(elements)):
            field = self._schema.field(place)
            try:
                arrays.append(self._columns[place].array(values, nullable=field.nullable))
            except ValueMismatch as mismatch:
                raise self._error(mismatch, field.name) from None
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def normalise(self, elements: list[Any]) -> list[Any]:
        """Elements as a reader would return them, without building Arrow arrays.

        Checks widths and classes, and converts values, as writing does. Problems that only
        the bytes show, such as invalid Unicode, may pass. Elements that need no conversion are
        returned uncopied.

        Raises:
            OutputTypeError: An element does not fit the declared type.
        """
        if self._kind == "object" or not elements:
            return elements
        columns = self._split(elements)
        settled = [self._settled(place, values) for place, values in enumerate(columns)]
        if self._kind == "value":
            return settled[0]
        same = all(new is old for new, old in zip(settled, columns, strict=True))
        if not same:
            return self._rows(settled)
        if countOf(map(type, elements), self._row_class) == len(elements):
            return elements
        if issubclass(self._row_class, Event) and set(map(type, elements)) == {tuple}:
            return list(map(self._row_class, elements))
        return self._rows(columns)

    def _settled(self, place: int, values: list[Any]) -> list[Any]:
        field = self._schema.field(place)
        try:
            return self._columns[place].settled(values, nullable=field.nullable)
        except ValueMismatch as mismatch:
            raise self._error(mismatch, field.name) from None

    def _split(self, elements: list[Any]) -> Columns:
        if self._kind == "object":
            return [pickled(elements)]
        if self._kind == "value":
            return [elements]
        try:
            return self._splitter.columns(elements)
        except ValueMismatch as mismatch:
            raise self._error(mismatch, "") from None

    def _error(self, mismatch: ValueMismatch, column: str) -> OutputTypeError:
        if self._kind == "value":
            where = f"the value {mismatch.path}" if mismatch.path else "the value"
        else:
            field = f"{column}{mismatch.path}".removeprefix(".")
            where = f"the field {field}" if field else "the row"
        declared = f" is declared {mismatch.declared} and" if mismatch.declared else ""
        return OutputTypeError(
            f"output {mismatch.index} of the batch does not fit the declared type: "
            f"{where}{declared} got {shown(mismatch.value)}; {mismatch.reason}",
            mismatch.index,
        )
