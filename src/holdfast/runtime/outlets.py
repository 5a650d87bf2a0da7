"""Turns the output of an operator into batches for the exchange and for chained operators."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from holdfast.api.outputs import OutputTag
from holdfast.errors import OutputTypeError
from holdfast.runtime.exchange import appended
from holdfast.runtime.operators.base import Output
from holdfast.runtime.partitioners import partitioner
from holdfast.runtime.plan import TIME
from holdfast.types.columns.batches import BatchWriter, element_copier

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.runtime.operators.base import Times
    from holdfast.runtime.plan import Channel, Outlet, StagePlan


class OutletWriter:
    """One outlet of an operator on one subtask: what it feeds, and in which form."""

    def __init__(self, outlet: Outlet, stage: StagePlan, subtask: int, operator: str) -> None:
        """An outlet of the operator that messages call `operator`."""
        self.channels = outlet.channels
        self.by_row = [i for i in outlet.operators if stage.operators[i].takes_rows]
        self.by_element = [i for i in outlet.operators if not stage.operators[i].takes_rows]
        self.copied = element_copier(outlet.type)
        self.routes = {
            channel.id: partitioner(channel, subtask, operator)
            for channel in outlet.channels
            if stage.writes.routed and not channel.broadcast
        }
        self._operator = operator
        self._writer = BatchWriter(outlet.type)

    def batch(self, output: Output) -> OutletBatch:
        """The output in the forms that the outlet's channels and operators take.

        Raises:
            OutputTypeError: An element does not fit the declared type.
        """
        try:
            chained = self._writer.normalise(output.elements) if self.by_element else []
            needs_rows = self.channels or self.by_row
            rows = self._writer.batch(output.elements) if needs_rows else None
        except OutputTypeError as error:
            raise OutputTypeError(f"{self._operator}: {error}", error.row_index) from error
        return OutletBatch(self, output, rows, chained)


@dataclass(frozen=True, slots=True)
class OutletBatch:
    """The output of an operator on one outlet."""

    outlet: OutletWriter
    output: Output
    """As the function gave it out."""
    rows: pa.RecordBatch | None
    """None if neither a channel nor an operator takes rows."""
    _chained: list[Any]
    """The elements as a reader would give them; empty if no operator takes elements."""

    def by_channel(self) -> Iterator[tuple[Channel, pa.RecordBatch, pa.Array | None]]:
        """The rows for every channel, and the subtask of each row if the channel routes them."""
        elements, times = self.output
        for channel in self.outlet.channels:
            rows = self.rows
            if channel.timed:
                rows = appended(rows, TIME, time_array(times, len(elements)))
            route = self.outlet.routes.get(channel.id)
            yield channel, rows, None if route is None else route.subtasks(elements, rows)

    def by_operator(self) -> Iterator[tuple[int, list[Any]]]:
        """The elements for every chained operator that takes elements.

        All but the last get copies, which nothing has changed since.
        """
        last = len(self.outlet.by_element) - 1
        for position, index in enumerate(self.outlet.by_element):
            yield index, self._chained if position == last else self.outlet.copied(self._chained)


def time_array(times: Times | None, count: int) -> pa.Array:
    """Event times as a column; all nulls if `times` is None."""
    return pa.nulls(count, pa.int64()) if times is None else pa.array(times, pa.int64())


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
