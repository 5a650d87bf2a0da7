"""Packs and unpacks the rows that cross between two stages.

See `Exchange` in `runtime/plan.py` for the columns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.runtime.plan import ORDER, TIME

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from holdfast.runtime.plan import Channel, Exchange

SUBTASK: Final = "_hf_subtask"
"""Column with the receiving subtask of a row."""
CHANNEL: Final = "_hf_channel"
"""Column with the channel of a row."""


def payload_name(payload: int) -> str:
    """Name of a payload's struct column."""
    return f"_hf_slot_{payload}"


def exchange_schema(exchange: Exchange) -> pa.Schema:
    """Columns of an exchange."""
    fields = [pa.field(SUBTASK, pa.int32())] if exchange.routed else []
    if exchange.tagged:
        fields.append(pa.field(CHANNEL, pa.int32()))
    if exchange.timed:
        fields.append(pa.field(TIME, pa.int64()))
    if exchange.ordered:
        fields.append(pa.field(ORDER, pa.int64()))
    if exchange.flat:
        fields += [f for schema in exchange.payloads for f in schema]
    else:
        fields += [
            pa.field(payload_name(i), pa.struct(list(schema)))
            for i, schema in enumerate(exchange.payloads)
        ]
    return pa.schema(fields)


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


def appended(rows: pa.RecordBatch, name: str, column: pa.Array) -> pa.RecordBatch:
    """Rows with one more column at the end."""
    return pa.RecordBatch.from_arrays([*rows.columns, column], names=[*rows.schema.names, name])


class ExchangeWriter:
    """Puts a channel's rows on the exchange."""

    def __init__(self, exchange: Exchange) -> None:
        """A writer for one exchange."""
        self._exchange = exchange
        self._schema = exchange_schema(exchange)

    def pack(
        self, channel: Channel, rows: pa.RecordBatch, subtasks: pa.Array | None
    ) -> pa.RecordBatch:
        """Convert rows of a channel to the exchange's columns; `subtasks` if it is routed."""
        exchange, count = self._exchange, rows.num_rows
        columns: list[pa.Array] = [subtasks] if exchange.routed else []
        if exchange.tagged:
            columns.append(pa.repeat(pa.scalar(channel.id, pa.int32()), count))
        if exchange.timed:
            columns.append(rows.column(TIME) if channel.timed else pa.nulls(count, pa.int64()))
        if exchange.ordered:
            place = rows.column(ORDER) if channel.broadcast else pa.nulls(count, pa.int64())
            columns.append(place)
        mine = rows.columns[: len(channel.type.columns)]
        if exchange.flat:
            columns += mine
        else:
            own_payload = exchange.payload_of[channel.id]
            for payload, schema in enumerate(exchange.payloads):
                if payload == own_payload:
                    # Spark may have given a string or binary column its large layout.
                    own = pa.RecordBatch.from_arrays(mine, schema=schema)
                    columns.append(pa.StructArray.from_arrays(own.columns, fields=list(schema)))
                else:
                    columns.append(pa.nulls(count, pa.struct(list(schema))))
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


class ExchangeReader:
    """Takes rows off the exchange, channel by channel."""

    def __init__(
        self, exchange: Exchange, alike: Iterable[tuple[Channel, ...]] | None = None
    ) -> None:
        """A reader for rows that have arrived, without the routing column.

        Args:
            exchange: The exchange.
            alike: All channels, in groups whose rows are read together, which keeps their
                order. If None, every channel is read by itself.
        """
        self._exchange = exchange
        groups = [(channel,) for channel in exchange.channels] if alike is None else alike
        # Broadcast rows come before all other rows, in this batch too.
        self._groups = sorted(groups, key=lambda group: not group[0].broadcast)
        self._stamped = [channel for channel in exchange.channels if channel.stamped_by is not None]

    def unpack(self, batch: pa.RecordBatch) -> Iterator[tuple[Channel, pa.RecordBatch]]:
        """Rows of every group that is in `batch`, in the columns of its first channel."""
        exchange = self._exchange
        if not exchange.tagged:
            yield exchange.channels[0], self._payload(exchange.channels[0], batch)
            return
        tags = batch.column(CHANNEL)
        present = set(pc.unique(tags).to_pylist())
        for group in self._groups:
            mine = [channel.id for channel in group if channel.id in present]
            if not mine:
                continue
            rows = batch
            if len(mine) < len(present):
                rows = batch.filter(pc.is_in(tags, pa.array(mine, pa.int32())))
            yield group[0], self._payload(group[0], rows)

    def counts(self, batch: pa.RecordBatch) -> dict[int, int]:
        """Number of rows in `batch`, by channel id."""
        if not self._exchange.tagged:
            return {self._exchange.channels[0].id: batch.num_rows}
        found = pc.value_counts(batch.column(CHANNEL))
        return dict(
            zip(found.field("values").to_pylist(), found.field("counts").to_pylist(), strict=True)
        )

    def stamped(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Rows with a new event time, by the uid of the operator that gave it."""
        for channel in self._stamped:
            assert channel.stamped_by is not None
            rows = batch
            if self._exchange.tagged:
                rows = batch.filter(pc.equal(batch.column(CHANNEL), channel.id))
            if rows.num_rows:
                yield channel.stamped_by, rows

    def _payload(self, channel: Channel, rows: pa.RecordBatch) -> pa.RecordBatch:
        exchange = self._exchange
        payload = exchange.payload_of[channel.id]
        columns = (
            rows.columns[exchange.tagged + exchange.timed + exchange.ordered :]
            if exchange.flat
            else rows.column(payload_name(payload)).flatten()
        )
        names = list(exchange.payloads[payload].names)
        if channel.timed:
            columns.append(rows.column(TIME))
            names.append(TIME)
        if channel.broadcast:
            columns.append(rows.column(ORDER))
            names.append(ORDER)
        return pa.RecordBatch.from_arrays(columns, names=names)
