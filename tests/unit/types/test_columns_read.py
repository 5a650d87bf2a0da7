"""The physical forms a column may arrive in."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal

import pyarrow as pa
import pytest

from holdfast.errors import TypeDeclarationError
from holdfast.types.columns.batches import BatchReader, BatchWriter
from holdfast.types.stream_type import StreamType


@pytest.mark.parametrize(
    ("spec", "array"),
    [
        ("string", pa.array(["a", None, "a"]).dictionary_encode()),
        ("string", pa.array(["a", None, "a"], pa.large_string())),
        ("string", pa.array(["a", None, "a"], pa.string_view())),
        ("string", pa.array(["a", None, "a"], pa.string_view()).cast(pa.string())),
        ("binary", pa.array([b"a", None, b"a"], pa.large_binary())),
        ("binary", pa.array([b"a", None, b"a"], pa.binary_view())),
        ("bigint", pa.array([1, None, 1]).dictionary_encode()),
        ("bigint", pa.array([1, None, 1], pa.int8())),
        ("double", pa.array([0.5, None, 0.5], pa.float32())),
        ("decimal(10,2)", pa.array([Decimal("1.5"), None, Decimal("1.5")], pa.decimal128(5, 1))),
        ("date", pa.array([date(2024, 1, 1), None, date(2024, 1, 1)], pa.date64())),
        ("time", pa.array([time(1), None, time(1)], pa.time32("s"))),
        ("timestamp_ntz", pa.array([datetime(2024, 1, 1), None, datetime.min], pa.timestamp("s"))),
        ("array<string>", pa.array([["a"], None, ["a"]], pa.large_list(pa.large_string()))),
        ("array<int>", pa.array([[1, 2], None, [1, 2]], pa.list_(pa.int32(), 2))),
        ("array<string>", pa.array([["a"], None, ["a"]], pa.list_(pa.string_view()))),
    ],
)
def test_any_physical_form_of_a_declared_type_is_read(spec, array):
    reader = BatchReader(StreamType.of(spec))
    batch = pa.record_batch([array], names=["value"])
    expected = pa.array(array.to_pylist())
    assert reader.elements(batch) == expected.to_pylist()
    assert reader.elements(batch.slice(1)) == expected.to_pylist()[1:]


def test_a_session_zone_does_not_change_the_declared_one():
    array = pa.array([datetime(2024, 1, 1, tzinfo=UTC)], pa.timestamp("us", tz="Asia/Tokyo"))
    (found,) = BatchReader(StreamType.of("timestamp")).elements(pa.record_batch([array], ["value"]))
    assert found == datetime(2024, 1, 1, tzinfo=UTC)
    assert found.tzinfo is UTC


@pytest.mark.parametrize(
    ("spec", "array"),
    [
        ("bigint", pa.array(["1"])),
        ("bigint", pa.array([True])),
        ("bigint", pa.array([timedelta(1)])),
        ("string", pa.array([1])),
        ("string", pa.array([b"a"])),
        ("timestamp", pa.array([1])),
        ("timestamp", pa.array([1], pa.timestamp("us"))),
        ("timestamp_ntz", pa.array([1], pa.timestamp("us", tz="UTC"))),
        ("tinyint", pa.array([300])),
        ("array<int>", pa.array([1])),
        ("struct<a:struct<b:int>>", pa.array([{"b": 1, "c": 2}])),
    ],
)
def test_a_column_of_another_type_is_refused(spec, array):
    stream = StreamType.of(spec)
    with pytest.raises(TypeDeclarationError, match=r"a column declared .* arrives as .*"):
        BatchReader(stream).elements(pa.record_batch([array], names=list(stream.columns)))


def test_columns_of_other_names_are_refused_and_further_ones_left_alone():
    reader = BatchReader(StreamType.of("a int, b int"))
    batch = pa.record_batch([pa.array([1], pa.int32())] * 3, names=["a", "b", "subtask"])
    assert reader.elements(batch) == [(1, 1)]
    with pytest.raises(TypeDeclarationError, match="the columns a, b receives a batch with b, a"):
        reader.elements(batch.select([1, 0]))


def test_one_column_is_read_by_itself():
    stream = StreamType.of("a int, b array<struct<c:int>>")
    batch = BatchWriter(stream).batch([(1, [(2,)]), (3, None)])
    assert BatchReader(stream).column(batch, 0) == [1, 3]
    assert BatchReader(stream).column(batch, 1) == [[(2,)], None]
    objects = StreamType.of(object)
    assert BatchReader(objects).column(BatchWriter(objects).batch([{1}]), 0) == [{1}]


def test_sliced_batches_are_read_from_where_they_start():
    spec = "a int, b array<string>, c map<string,int>, d struct<e:array<int>>"
    rows: list[tuple[object, ...]] = [
        (i, [str(i)] * (i % 3), {str(i): i}, ([i, i],)) for i in range(10)
    ]
    rows[4:5] = [(4, None, None, None)]
    stream = StreamType.of(spec)
    batch = BatchWriter(stream).batch(rows)
    for start in range(10):
        assert BatchReader(stream).elements(batch.slice(start, 3)) == rows[start : start + 3]


def test_strings_that_repeat_become_one_object():
    stream = StreamType.of("string")
    reader = BatchReader(stream)
    repeated = BatchWriter(stream).batch(["".join(["some ", "text"]) for _ in range(8)] + [None])
    found = reader.elements(repeated)
    assert found == ["some text"] * 8 + [None]
    assert len(set(map(id, found))) == 2


def test_distinct_strings_are_read_plainly_and_repetition_is_noticed_again():
    stream = StreamType.of("string")
    reader = BatchReader(stream)
    distinct = [str(i) for i in range(100)]
    repeated = ["some text"] * 100
    assert reader.elements(BatchWriter(stream).batch(distinct)) == distinct
    kinds = []
    for _ in range(20):
        found = reader.elements(BatchWriter(stream).batch(repeated))
        assert found == repeated
        kinds.append(len(set(map(id, found))) == 1)
    assert not kinds[0]
    assert kinds[-1]
