"""Event times beside elements, and in a column beside their rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from holdfast.api.output import OutputTag
from holdfast.runtime.operators import Output
from holdfast.runtime.plan import TIME

if TYPE_CHECKING:
    from collections.abc import Sequence


def times_of(rows: pa.RecordBatch) -> list[int | None] | None:
    """Event time of every row, None where there is none; None if they have no such column."""
    place = rows.schema.get_field_index(TIME)
    if place < 0:
        return None
    column = rows.column(place)
    found: list[int | None] = (
        column.to_pylist() if column.null_count else column.to_numpy().tolist()
    )
    return found


def time_array(times: Sequence[int | None] | None, count: int) -> pa.Array:
    """Event times as a column; nulls if there are none."""
    return pa.nulls(count, pa.int64()) if times is None else pa.array(times, pa.int64())


def appended(rows: pa.RecordBatch, name: str, column: pa.Array) -> pa.RecordBatch:
    """Rows with one more column, the last."""
    return pa.RecordBatch.from_arrays([*rows.columns, column], names=[*rows.schema.names, name])


def by_tag(output: Output) -> tuple[Output, dict[str, Output]]:
    """The outputs without a tag, and those of every tag; each with its event times."""
    out, times = output
    places: dict[str | None, list[int]] = {None: []}
    for place, value in enumerate(out):
        tag = value[0].tag_id if is_tagged(value) else None
        places.setdefault(tag, []).append(place)
    if len(places) == 1:
        return output, {}
    parts = {
        tag: Output(
            [out[i] if tag is None else out[i][1] for i in chosen],
            None if times is None else [times[i] for i in chosen],
        )
        for tag, chosen in places.items()
    }
    main = parts.pop(None)
    return main, {tag: part for tag, part in parts.items() if tag is not None}


def is_tagged(value: Any) -> bool:
    """Whether an output is for a side output."""
    return type(value) is tuple and len(value) == 2 and type(value[0]) is OutputTag
