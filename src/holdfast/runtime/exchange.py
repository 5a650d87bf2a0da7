"""Rows between two levels: packing what operators give out, unpacking it again.

See `Wire` in `runtime/plan.py` for the columns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.runtime.plan import ORDER, TIME

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from holdfast.runtime.plan import Channel, Wire

SUBTASK: Final = "_hf_subtask"
"""Column with the subtask that a row goes to."""
CHANNEL: Final = "_hf_channel"
"""Column with the channel that a row is on."""


def slot_name(slot: int) -> str:
    """Name of a payload's struct column."""
    return f"_hf_slot_{slot}"


def wire_schema(wire: Wire) -> pa.Schema:
    """Columns of a wire."""
    fields = [pa.field(SUBTASK, pa.int32())] if wire.routed else []
    if wire.tagged:
        fields.append(pa.field(CHANNEL, pa.int32()))
    if wire.timed:
        fields.append(pa.field(TIME, pa.int64()))
    if wire.ordered:
        fields.append(pa.field(ORDER, pa.int64()))
    if wire.flat:
        fields += [f for schema in wire.slots for f in schema]
    else:
        fields += [
            pa.field(slot_name(i), pa.struct(list(schema))) for i, schema in enumerate(wire.slots)
        ]
    return pa.schema(fields)


class Packer:
    """Puts a channel's rows on the wire."""

    def __init__(self, wire: Wire) -> None:
        """A packer for one wire."""
        self._wire = wire
        self._schema = wire_schema(wire)

    def pack(
        self, channel: Channel, rows: pa.RecordBatch, subtasks: pa.Array | None
    ) -> pa.RecordBatch:
        """`rows`, in the channel's columns, in the wire's; `subtasks` if it is routed."""
        wire, count = self._wire, rows.num_rows
        columns: list[pa.Array] = [subtasks] if wire.routed else []
        if wire.tagged:
            columns.append(pa.repeat(pa.scalar(channel.id, pa.int32()), count))
        if wire.timed:
            columns.append(rows.column(TIME) if channel.timed else pa.nulls(count, pa.int64()))
        if wire.ordered:
            place = rows.column(ORDER) if channel.broadcast else pa.nulls(count, pa.int64())
            columns.append(place)
        payload = rows.columns[: len(channel.type.columns)]
        if wire.flat:
            columns += payload
        else:
            mine = wire.slot_of[channel.id]
            for slot, schema in enumerate(wire.slots):
                if slot == mine:
                    # Spark may have given a string or binary column its large layout.
                    own = pa.RecordBatch.from_arrays(payload, schema=schema)
                    columns.append(pa.StructArray.from_arrays(own.columns, fields=list(schema)))
                else:
                    columns.append(pa.nulls(count, pa.struct(list(schema))))
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


class Unpacker:
    """Takes rows off the wire, channel by channel."""

    def __init__(self, wire: Wire, alike: Iterable[tuple[Channel, ...]] | None = None) -> None:
        """An unpacker for one wire; its rows have arrived, without the routing column.

        Args:
            wire: The wire.
            alike: All channels, in groups whose rows can be taken together, as one channel's: so
                they stay in order among each other. Each by itself, if None.
        """
        self._wire = wire
        groups = [(channel,) for channel in wire.channels] if alike is None else alike
        # What is broadcast comes before the other rows of its batch, as before those of others.
        self._groups = sorted(groups, key=lambda group: not group[0].broadcast)
        self._stamped = [channel for channel in wire.channels if channel.stamped_by is not None]

    def unpack(self, batch: pa.RecordBatch) -> Iterator[tuple[Channel, pa.RecordBatch]]:
        """Rows of every group that has any in `batch`, in the columns of its first channel."""
        wire = self._wire
        if not wire.tagged:
            yield wire.channels[0], self._payload(wire.channels[0], batch)
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

    def stamped(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Rows whose event time is new, by the uid of what has given it to them."""
        for channel in self._stamped:
            assert channel.stamped_by is not None
            rows = batch
            if self._wire.tagged:
                rows = batch.filter(pc.equal(batch.column(CHANNEL), channel.id))
            if rows.num_rows:
                yield channel.stamped_by, rows

    def _payload(self, channel: Channel, rows: pa.RecordBatch) -> pa.RecordBatch:
        wire = self._wire
        slot = wire.slot_of[channel.id]
        columns = (
            rows.columns[wire.tagged + wire.timed + wire.ordered :]
            if wire.flat
            else rows.column(slot_name(slot)).flatten()
        )
        names = list(wire.slots[slot].names)
        if channel.timed:
            columns.append(rows.column(TIME))
            names.append(TIME)
        if channel.broadcast:
            columns.append(rows.column(ORDER))
            names.append(ORDER)
        return pa.RecordBatch.from_arrays(columns, names=names)
