"""Event times of elements, as lists and as a column of their rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from holdfast.api.outputs import OutputTag
from holdfast.runtime.operators.base import Output
from holdfast.runtime.plan import TIME

if TYPE_CHECKING:
    from holdfast.runtime.operators.base import Times


def times_of(rows: pa.RecordBatch) -> list[int | None] | None:
    """Event time of every row, None for a row without one; None if there is no such column."""
    place = rows.schema.get_field_index(TIME)
    if place < 0:
        return None
    column = rows.column(place)
    found: list[int | None] = (
        column.to_pylist() if column.null_count else column.to_numpy().tolist()
    )
    return found


def time_array(times: Times | None, count: int) -> pa.Array:
    """Event times as a column; all nulls if `times` is None."""
    return pa.nulls(count, pa.int64()) if times is None else pa.array(times, pa.int64())


def appended(rows: pa.RecordBatch, name: str, column: pa.Array) -> pa.RecordBatch:
    """Rows with one more column at the end."""
    return pa.RecordBatch.from_arrays([*rows.columns, column], names=[*rows.schema.names, name])


def by_tag(output: Output) -> tuple[Output, dict[str, Output]]:
    """Split an output into the part without a tag and one part per tag, with event times."""
    out, times = output
    # Jobs with a side output run this for every output: no calls here.
    tagged = [
        place
        for place, value in enumerate(out)
        if type(value) is tuple and len(value) == 2 and type(value[0]) is OutputTag
    ]
    if not tagged:
        return output, {}
    by_name: dict[str, list[int]] = {}
    for place in tagged:
        by_name.setdefault(out[place][0].tag_id, []).append(place)
    aside = set(tagged)
    main = [place for place in range(len(out)) if place not in aside]
    sides = {
        tag: Output([out[place][1] for place in places], _chosen(times, places))
        for tag, places in by_name.items()
    }
    return Output([out[place] for place in main], _chosen(times, main)), sides


def _chosen(times: Times | None, places: list[int]) -> Times | None:
    return None if times is None else [times[place] for place in places]
