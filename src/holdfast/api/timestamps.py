"""Checks of a watermark strategy against the stream that it is given to."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

import pyarrow as pa

from holdfast.api.time import WatermarkStrategy
from holdfast.errors import JobGraphError

if TYPE_CHECKING:
    from holdfast.api.types import StreamType

_METHOD = "assign_timestamps_and_watermarks"


def check_strategy(strategy: object, stream: StreamType, *, timed: bool) -> None:
    """Refuse what is no strategy, or one whose timestamps the stream does not have.

    Raises:
        JobGraphError: The message says what to give instead.
    """
    if not isinstance(strategy, WatermarkStrategy):
        raise JobGraphError(f"{_METHOD} takes a WatermarkStrategy, not {type(strategy).__name__}")
    if strategy.assigner is None and not timed:
        raise JobGraphError(
            f"{_METHOD}: the strategy does not say where timestamps come from, and the stream has "
            'none yet; add .with_timestamp_assigner("column"), or give it a function'
        )
    if isinstance(strategy.assigner, str):
        _check_column(strategy.assigner, stream)


def _check_column(column: str, stream: StreamType) -> None:
    names = list(stream.columns)
    if stream.kind != "row" or column not in names:
        near = difflib.get_close_matches(column, names, n=1) if stream.kind == "row" else []
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise JobGraphError(
            f"{_METHOD}: there is no column {column!r} in a stream of {stream}{hint}"
        )
    kind = stream.schema.field(column).type
    if not (pa.types.is_timestamp(kind) or pa.types.is_integer(kind) or pa.types.is_date(kind)):
        raise JobGraphError(
            f"{_METHOD}: column {column!r} is of type {kind}, which is no time; a timestamp, a "
            "date, or a whole number of milliseconds since 1970 is wanted, or a function"
        )
