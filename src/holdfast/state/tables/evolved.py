"""Columns of a state whose type has changed.

Its values have several schemas (`state/schemas.py`). The column has the type of the current
schema. Values of other schemas stay encoded, even if their column type is the same: only the
program knows how to convert them, for example which defaults to add.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from typing_extensions import override

from holdfast.state.schemas import HEAD, MARK, SchemaHistory
from holdfast.state.tables.values import Bytes, ValueColumn, gathered, value_column

if TYPE_CHECKING:
    import pyarrow as pa


class Evolved(ValueColumn):
    """Values of several schemas, one of which is current."""

    def __init__(self, column: ValueColumn, head: bytes) -> None:
        """Store the values of the current schema in `column`.

        Args:
            column: Column of the current schema.
            head: First bytes of its values: a mark and the id of the schema, or nothing.
        """
        self._column = column
        self._head = head

    @property
    @override
    def arrow(self) -> pa.DataType:
        return self._column.arrow

    @override
    def array(self, blobs: list[bytes]) -> pa.Array:
        rows = [row for row, data in enumerate(blobs) if _head_of(data) == self._head]
        bare = [blobs[row][len(self._head) :] for row in rows]
        return gathered(len(blobs), [(rows, self._column.typed(bare))], self)

    @override
    def stored(self, array: pa.Array) -> list[bytes | None]:
        return [None if data is None else self._head + data for data in self._column.stored(array)]

    def _is_same(self, data: bytes, back: bytes | None) -> bool:
        """See `ValueColumn._is_same`: the column has only what was compared under its schema."""
        return back is not None


def state_value_column(entry: dict[str, Any]) -> ValueColumn:
    """Column of a state's values, from the entry about the state in its store."""
    history = SchemaHistory.of_entry(entry)
    column = value_column(history.declared[0])
    # Opaque bytes keep their marks.
    if not history.others or isinstance(column, Bytes):
        return column
    return Evolved(column, b"" if history.now is None else MARK + bytes.fromhex(history.now))


def _head_of(data: bytes) -> bytes:
    return data[:HEAD] if data.startswith(MARK) else b""
