"""Rows between stages: packed onto a exchange and taken off it again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from holdfast.api.streams.graph import FORWARD, Partitioner, Partitioning
from holdfast.runtime.exchange import (
    CHANNEL,
    SUBTASK,
    ExchangeReader,
    ExchangeWriter,
    appended,
    exchange_schema,
    payload_name,
)
from holdfast.runtime.plan import ORDER, TIME, Channel, Exchange
from holdfast.types.stream_type import StreamType

WORDS = pa.schema([pa.field("k", pa.string()), pa.field("n", pa.int64())])
NUMBERS = pa.schema([pa.field("n", pa.int64(), nullable=False)])


def channel(number: int, schema: pa.Schema) -> Channel:
    return Channel(number, StreamType.of(schema), 1, FORWARD, None, 2, 128)


def exchange(*schemas: pa.Schema, routed: bool = True) -> Exchange:
    """A exchange with one channel for every schema; channel ids are 10, 11, ..."""
    channels = tuple(channel(10 + i, schema) for i, schema in enumerate(schemas))
    payloads = tuple(dict.fromkeys(schemas))
    payload_of = {c.id: payloads.index(s) for c, s in zip(channels, schemas, strict=True)}
    return Exchange(channels, payloads, payload_of, routed)


def words(*rows: tuple[str | None, int | None]) -> pa.RecordBatch:
    columns = [list(column) for column in zip(*rows, strict=True)] or [[], []]
    return pa.RecordBatch.from_arrays(
        [pa.array(c, f.type) for c, f in zip(columns, WORDS, strict=True)], schema=WORDS
    )


def numbers(*values: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(values, pa.int64())], schema=NUMBERS)


def subtasks(*values: int) -> pa.Array:
    return pa.array(values, pa.int32())


def arrived(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch as a task receives it: the shuffle has used up the routing column."""
    return batch.drop_columns([SUBTASK]) if SUBTASK in batch.schema.names else batch


def unpacked(on: Exchange, batch: pa.RecordBatch) -> dict[int, list[dict[str, Any]]]:
    return {c.id: rows.to_pylist() for c, rows in ExchangeReader(on).unpack(arrived(batch))}


@pytest.mark.parametrize(
    ("on", "names"),
    [
        (exchange(WORDS), [SUBTASK, "k", "n"]),
        (exchange(WORDS, routed=False), ["k", "n"]),
        (exchange(WORDS, WORDS), [SUBTASK, CHANNEL, "k", "n"]),
        (exchange(WORDS, WORDS, routed=False), [CHANNEL, "k", "n"]),
        (exchange(WORDS, NUMBERS), [SUBTASK, CHANNEL, payload_name(0), payload_name(1)]),
        (exchange(NUMBERS, WORDS, NUMBERS), [SUBTASK, CHANNEL, payload_name(0), payload_name(1)]),
        (exchange(routed=False), []),
    ],
    ids=["flat", "last", "tagged", "last tagged", "payloads", "shared slot", "nothing leaves"],
)
def test_a_exchange_has_the_columns_that_its_channels_need(on: Exchange, names: list[str]) -> None:
    assert exchange_schema(on).names == names


def test_slots_are_structs_that_may_be_null() -> None:
    schema = exchange_schema(exchange(WORDS, NUMBERS))
    assert schema.field(payload_name(0)).type == pa.struct(list(WORDS))
    assert all(schema.field(payload_name(i)).nullable for i in range(2))


@pytest.mark.parametrize("routed", [True, False])
@pytest.mark.parametrize(
    "schemas",
    [(WORDS,), (WORDS, WORDS), (WORDS, NUMBERS), (NUMBERS, WORDS, NUMBERS, WORDS)],
    ids=["one", "two alike", "two kinds", "two of each"],
)
def test_what_is_packed_is_unpacked(schemas: tuple[pa.Schema, ...], routed: bool) -> None:
    on = exchange(*schemas, routed=routed)
    packer = ExchangeWriter(on)
    for sent, schema in zip(on.channels, schemas, strict=True):
        rows = words(("a", 1), (None, None)) if schema is WORDS else numbers(7, 8)
        batch = packer.pack(sent, rows, subtasks(0, 1) if routed else None)
        assert batch.schema == exchange_schema(on)
        assert batch.num_rows == 2
        if routed:
            assert batch.column(SUBTASK).to_pylist() == [0, 1]
        [(received, payload)] = ExchangeReader(on).unpack(arrived(batch))
        assert received is sent
        assert payload.to_pylist() == rows.to_pylist()
        assert payload.schema.names == schema.names


def test_channels_that_were_mixed_on_the_way_are_told_apart() -> None:
    on = exchange(WORDS, NUMBERS, WORDS)
    packer = ExchangeWriter(on)
    first, second, third = on.channels
    parts = [
        packer.pack(first, words(("a", 1), ("b", 2)), subtasks(0, 0)),
        packer.pack(second, numbers(5), subtasks(0)),
        packer.pack(third, words(("c", 3)), subtasks(0)),
        packer.pack(first, words((None, None)), subtasks(0)),
    ]
    mixed = pa.Table.from_batches(parts).take([4, 1, 2, 3, 0]).combine_chunks().to_batches()[0]
    assert unpacked(on, mixed) == {
        10: [{"k": None, "n": None}, {"k": "b", "n": 2}, {"k": "a", "n": 1}],
        11: [{"n": 5}],
        12: [{"k": "c", "n": 3}],
    }


def test_a_part_of_a_batch_is_unpacked_as_that_part() -> None:
    on = exchange(WORDS, NUMBERS)
    batch = ExchangeWriter(on).pack(
        on.channels[0], words(("a", 1), ("b", 2), ("c", 3)), subtasks(0, 0, 0)
    )
    assert unpacked(on, batch.slice(1, 1)) == {10: [{"k": "b", "n": 2}]}


def test_channels_without_rows_are_left_out() -> None:
    on = exchange(WORDS, NUMBERS, WORDS)
    batch = ExchangeWriter(on).pack(on.channels[2], words(("a", 1)), subtasks(0))
    assert list(unpacked(on, batch)) == [12]


def test_an_empty_batch_of_several_channels_has_none_of_them() -> None:
    on = exchange(WORDS, NUMBERS)
    batch = ExchangeWriter(on).pack(on.channels[0], words(), subtasks())
    assert unpacked(on, batch) == {}


def test_columns_that_spark_gave_another_layout_are_brought_back() -> None:
    on = exchange(WORDS, NUMBERS)
    large = pa.schema([("k", pa.large_string()), ("n", pa.int64())])
    rows = words(("a", 1)).cast(large)
    batch = ExchangeWriter(on).pack(on.channels[0], rows, subtasks(0))
    assert batch.schema == exchange_schema(on)
    assert unpacked(on, batch) == {10: [{"k": "a", "n": 1}]}


# Event time, and the place of broadcast rows


def with_channels(*channels: Channel, routed: bool = True) -> Exchange:
    schemas = [c.type.schema for c in channels]
    payloads: list[pa.Schema] = []
    for schema in schemas:
        if schema not in payloads:
            payloads.append(schema)
    payload_of = {c.id: payloads.index(s) for c, s in zip(channels, schemas, strict=True)}
    return Exchange(channels, tuple(payloads), payload_of, routed)


def timed(number: int, schema: pa.Schema) -> Channel:
    return replace(channel(number, schema), timed=True)


def broadcast(number: int, schema: pa.Schema) -> Channel:
    return replace(channel(number, schema), partitioning=Partitioning(Partitioner.BROADCAST))


def stamped(rows: pa.RecordBatch, name: str, *values: int | None) -> pa.RecordBatch:
    return appended(rows, name, pa.array(values, pa.int64()))


@pytest.mark.parametrize(
    ("on", "names"),
    [
        (with_channels(timed(1, WORDS)), [SUBTASK, TIME, "k", "n"]),
        (with_channels(timed(1, WORDS), routed=False), [TIME, "k", "n"]),
        (with_channels(broadcast(1, WORDS)), [SUBTASK, ORDER, "k", "n"]),
        (
            with_channels(timed(1, WORDS), channel(2, NUMBERS), broadcast(3, NUMBERS)),
            [SUBTASK, CHANNEL, TIME, ORDER, payload_name(0), payload_name(1)],
        ),
        (
            with_channels(timed(1, WORDS), broadcast(2, WORDS)),
            [SUBTASK, CHANNEL, TIME, ORDER, "k", "n"],
        ),
    ],
    ids=["timed", "last timed", "broadcast", "payloads", "shared slot"],
)
def test_a_exchange_has_columns_for_times_and_places_if_a_channel_needs_them(
    on: Exchange, names: list[str]
) -> None:
    assert exchange_schema(on).names == names


def test_event_times_cross_the_exchange_and_untimed_channels_have_none() -> None:
    on = with_channels(timed(1, WORDS), channel(2, WORDS), timed(3, NUMBERS))
    packer = ExchangeWriter(on)
    first, second, third = on.channels
    parts = [
        packer.pack(first, stamped(words(("a", 1), ("b", 2)), TIME, 10, None), subtasks(0, 0)),
        packer.pack(second, words(("c", 3)), subtasks(0)),
        packer.pack(third, stamped(numbers(7), TIME, -5), subtasks(0)),
    ]
    assert all(part.schema == exchange_schema(on) for part in parts)
    assert [part.column(TIME).to_pylist() for part in parts] == [[10, None], [None], [-5]]
    mixed = pa.Table.from_batches(parts).combine_chunks().to_batches()[0]
    assert unpacked(on, mixed) == {
        1: [{"k": "a", "n": 1, TIME: 10}, {"k": "b", "n": 2, TIME: None}],
        2: [{"k": "c", "n": 3}],
        3: [{"n": 7, TIME: -5}],
    }


def test_a_single_channel_keeps_its_times_and_places() -> None:
    both = replace(broadcast(1, WORDS), timed=True)
    on = with_channels(both)
    rows = stamped(stamped(words(("a", 1), ("b", 2)), TIME, 5, 6), ORDER, 100, 101)
    [(received, payload)] = ExchangeReader(on).unpack(
        arrived(ExchangeWriter(on).pack(both, rows, subtasks(0, 0)))
    )
    assert received is both
    assert payload.schema == both.schema
    assert payload.to_pylist() == rows.to_pylist()


def test_broadcast_rows_of_a_batch_are_unpacked_before_the_others() -> None:
    on = with_channels(channel(1, WORDS), broadcast(2, NUMBERS), channel(3, NUMBERS))
    packer = ExchangeWriter(on)
    parts = [
        packer.pack(on.channels[0], words(("a", 1)), subtasks(0)),
        packer.pack(on.channels[2], numbers(5), subtasks(0)),
        packer.pack(on.channels[1], stamped(numbers(8, 9), ORDER, 3, 4), subtasks(0, 0)),
    ]
    mixed = arrived(pa.Table.from_batches(parts).combine_chunks().to_batches()[0])
    assert [c.id for c, _ in ExchangeReader(on).unpack(mixed)] == [2, 1, 3]
    assert unpacked(on, mixed)[2] == [{"n": 8, ORDER: 3}, {"n": 9, ORDER: 4}]


def test_places_of_rows_that_are_not_broadcast_are_null_so_that_they_sort_last() -> None:
    on = with_channels(channel(1, WORDS), broadcast(2, WORDS))
    batch = ExchangeWriter(on).pack(on.channels[0], words(("a", 1)), subtasks(0))
    assert batch.column(ORDER).to_pylist() == [None]
