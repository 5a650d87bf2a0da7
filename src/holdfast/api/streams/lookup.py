"""The settings of a lookup join."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from holdfast.types.stream_type import StreamType


@dataclass(frozen=True)
class LookupJoin:
    """Joins a stream's rows with a table in memory."""

    id: str
    """Unique among the joins of all jobs."""
    load: Callable[[], Any] | None
    """Creates the table's DataFrame again, on the driver; None in tasks."""
    columns: tuple[int, ...]
    """Positions of the stream's join columns."""
    table: pa.Schema
    """Columns of the table: first the join columns, then those added to a row."""
    outer: bool
    """Whether rows without a match are kept, with nulls."""
    refresh_ms: int | None
    """How long a copy of the table may be used; None for the whole job."""
    output: StreamType

    def __getstate__(self) -> dict[str, Any]:
        """Everything except `load`: tasks get a copy of the table."""
        return {**self.__dict__, "load": None}
