"""Values of a state whose type has changed: stored under several schemas.

How they tell theirs is in `state/schema_history.py`. The column has the type of the schema that
is declared now. A value of another schema is in it if that has the same column, and is stored
under the schema of now when it is read again; else it is kept as it is encoded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.state.schema_history import HEAD, MARK, SchemaHistory
from holdfast.state.schema_resolution import schema_id
from holdfast.state.tables.forms import Bytes, Form, form_of, gathered

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa


class Evolved(Form):
    """Values of several schemas."""

    def __init__(self, forms: Mapping[bytes, Form], now: bytes) -> None:
        """Values of several forms.

        Args:
            forms: By what a value begins with: a mark and a name, or nothing.
            now: That of the schema that is declared now.
        """
        self._forms = forms
        self._now = now

    @property
    def arrow(self) -> pa.DataType:
        """See `Form.arrow`."""
        return self._forms[self._now].arrow

    def column(self, blobs: list[bytes]) -> pa.Array:
        """See `Form.column`."""
        rows: dict[bytes, list[int]] = {self._now: []}
        for row, data in enumerate(blobs):
            head = data[:HEAD] if data.startswith(MARK) else b""
            rows.setdefault(head, []).append(row)
        return gathered(len(blobs), self._of_one_type(blobs, rows), self)

    def _of_one_type(
        self, blobs: list[bytes], rows: dict[bytes, list[int]]
    ) -> Iterator[tuple[list[int], pa.Array]]:
        """Columns of the type of now; values of that schema come first, and decide about it."""
        for head, found in rows.items():
            form = self._forms.get(head)
            if form is not None and found:
                array = form.typed([blobs[row][len(head) :] for row in found])
                if array.type == self.arrow:
                    yield found, array

    def typed(self, blobs: list[bytes]) -> pa.Array:
        """See `Form.typed`: each value was compared under its own schema."""
        return self.column(blobs)

    def stored(self, array: pa.Array) -> list[bytes | None]:
        """See `Form.stored`."""
        found = self._forms[self._now].stored(array)
        return [None if data is None else self._now + data for data in found]


def value_form(entry: dict[str, Any]) -> Form:
    """Form of the values of a state, given what its store knows of it."""
    history = SchemaHistory.of_entry(entry)
    bare = form_of(history.first[0])
    if not history.others:
        return bare
    forms = {_head(name): form_of(schemas[0]) for name, schemas in history.others.items()}
    forms |= {b"": bare, _head(schema_id(history.first)): bare}
    now = b"" if history.now is None else _head(history.now)
    # Bytes that only their owner can read are kept with their marks.
    return forms[now] if isinstance(forms[now], Bytes) else Evolved(forms, now)


def _head(schema: str) -> bytes:
    return MARK + bytes.fromhex(schema)
