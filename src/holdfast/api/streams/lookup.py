"""What a lookup join does: which columns are compared, and what is added to a row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from holdfast.types.stream_type import StreamType


@dataclass(frozen=True)
class LookupJoin:
    """The join of a stream's rows with a table that is kept in memory."""

    id: str
    """Tells the joins of all jobs apart."""
    load: Callable[[], Any] | None
    """Makes the table's DataFrame anew, on the driver; None in tasks."""
    columns: tuple[int, ...]
    """Positions of the stream's columns that are compared."""
    table: pa.Schema
    """Columns of the table: first those that are compared, then those added to a row."""
    outer: bool
    """Whether rows without a match are kept, with nulls."""
    refresh_ms: int | None
    """How long a copy of the table may be used; None for good."""
    output: StreamType

    def __getstate__(self) -> dict[str, Any]:
        """Everything but how the table is made: tasks are handed a copy of it."""
        return {**self.__dict__, "load": None}
