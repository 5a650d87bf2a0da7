"""Record batches as lists of a stream's elements."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any, NoReturn

from holdfast.errors import TypeDeclarationError
from holdfast.runtime.column_readers import column_reader
from holdfast.runtime.rows import column_hints, row_builder

if TYPE_CHECKING:
    import pyarrow as pa

    from holdfast.api.types import StreamType


class Reader:
    """Reads a stream's elements from record batches.

    The stream's columns come first in a batch; further ones are left alone. A reader
    remembers how the last batch was best read, so keep one per stream and task.
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
        if batch.schema.names[: len(self._names)] != self._names:
            self._refuse(batch)
        columns = [read(batch.column(i)) for i, read in enumerate(self._columns)]
        if self._kind == "row":
            return self._rows(columns)
        if self._kind == "object":
            return list(map(pickle.loads, columns[0]))
        return columns[0]

    def column(self, batch: pa.RecordBatch, place: int) -> list[Any]:
        """Values of one column of the batch; of an object stream, the objects."""
        values = self._columns[place](batch.column(place))
        return list(map(pickle.loads, values)) if self._kind == "object" else values

    def _refuse(self, batch: pa.RecordBatch) -> NoReturn:
        raise TypeDeclarationError(
            f"a stream declared with the columns {', '.join(self._names)} receives a batch with "
            f"{', '.join(batch.schema.names)}; declare the columns it has, or select them before"
        )
