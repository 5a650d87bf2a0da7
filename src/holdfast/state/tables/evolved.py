"""Values of a state whose type has changed: stored under several schemas.

How they tell theirs is in `state/schemas.py`. The column has the type of the schema that
is declared now. A value of another schema is kept as it is encoded, even where both have the
same column: only the program knows what becomes of it, such as which defaults it gets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.state.schemas import HEAD, MARK, SchemaHistory
from holdfast.state.tables.values import Bytes, Form, form_of, gathered

if TYPE_CHECKING:
    import pyarrow as pa


class Evolved(Form):
    """Values of several schemas, of which one is declared now."""

    def __init__(self, form: Form, head: bytes) -> None:
        """Values of that schema in a form.

        Args:
            form: The form.
            head: What such a value begins with: a mark and a name, or nothing.
        """
        self._form = form
        self._head = head

    @property
    def arrow(self) -> pa.DataType:
        """See `Form.arrow`."""
        return self._form.arrow

    def column(self, blobs: list[bytes]) -> pa.Array:
        """See `Form.column`."""
        rows = [row for row, data in enumerate(blobs) if _head_of(data) == self._head]
        bare = [blobs[row][len(self._head) :] for row in rows]
        return gathered(len(blobs), [(rows, self._form.typed(bare))], self)

    def stored(self, array: pa.Array) -> list[bytes | None]:
        """See `Form.stored`."""
        return [None if data is None else self._head + data for data in self._form.stored(array)]

    def _is_same(self, data: bytes, back: bytes | None) -> bool:
        """See `Form._is_same`: the column has only what was compared under its schema."""
        return back is not None


def value_form(entry: dict[str, Any]) -> Form:
    """Form of the values of a state, given what its store knows of it."""
    history = SchemaHistory.of_entry(entry)
    form = form_of(history.declared[0])
    # Bytes that only their owner can read are kept with their marks.
    if not history.others or isinstance(form, Bytes):
        return form
    return Evolved(form, b"" if history.now is None else MARK + bytes.fromhex(history.now))


def _head_of(data: bytes) -> bytes:
    return data[:HEAD] if data.startswith(MARK) else b""
