"""Values of every Spark type come through a job unchanged."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import pytest

from holdfast import KeyedProcessFunction, StreamExecutionEnvironment, ValueStateDescriptor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

SCHEMA = """
    k int, b tinyint, s smallint, i int, l bigint, f float, d double, t string, y binary, o boolean,
    day date, at timestamp, local timestamp_ntz, money decimal(20,4), tags array<string>,
    scores map<string, int>, place struct<x: int, y: struct<z: string, n: array<int>>>,
    deep array<map<string, struct<a: timestamp, b: decimal(5,1)>>>
"""
AT = datetime(2026, 3, 29, 1, 30, 0, 123456, tzinfo=UTC)
FULL: tuple[Any, ...] = (
    1, -128, 32767, -(2**31), 2**63 - 1, 1.5, float("-inf"), "ü😀", b"\x00\xff", True,
    date(1969, 12, 31), AT, datetime(2026, 3, 29, 2, 30), Decimal("12345678.9000"), ["a", None],
    {"x": 1, "y": None}, (7, ("z", [1, None])), [{"k": (AT, Decimal("-0.5"))}, None],
)  # fmt: skip
EMPTY: tuple[Any, ...] = (2, *[None] * 17)
SPARSE: tuple[Any, ...] = (
    3, *[None] * 13, [], {}, (None, None), [{"k": None}, {}],
)  # fmt: skip


class Through(KeyedProcessFunction):
    """Keeps the row in state, and gives back what state gives."""

    def __init__(self, schema: Any) -> None:
        self.schema = schema

    def open(self, ctx: Any) -> None:
        self.row = ctx.get_state(ValueStateDescriptor("row", self.schema))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.row.update(value)
        yield self.row.value()


@pytest.mark.versions
@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/New_York"])
def test_rows_of_every_type_come_through_functions_and_state(
    spark: SparkSession, zone: str
) -> None:
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        frame = spark.createDataFrame([FULL, EMPTY, SPARSE], SCHEMA)
        env = StreamExecutionEnvironment.get_execution_environment(spark).set_parallelism(2)
        # Events of a DataFrame show their timestamps in the zone of the Spark session.
        offset = AT.astimezone(ZoneInfo(zone)).utcoffset()
        rows = env.from_dataframe(frame).filter(lambda r: not r.at or r.at.utcoffset() == offset)
        through = rows.key_by("k").process(Through(frame.schema), frame.schema)
        batches: list[Any] = []
        through.foreach_batch(lambda df, _: batches.extend(df.collect()))
        seen = sorted(through.execute_and_collect())
        expected = sorted(frame.collect())
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(before))
    assert [repr(row) for row in sorted(batches)] == [repr(row) for row in expected]
    full = seen[0]
    assert full.at == AT
    assert full.at.utcoffset() is not None
    assert full.local == datetime(2026, 3, 29, 2, 30)
    assert full.money == Decimal("12345678.9000")
    assert str(full.money) == "12345678.9000"
    assert full.place.y.z == "z"
    assert full.deep[0]["k"].b == Decimal("-0.5")
    assert type(full.y) is bytes
    assert seen[1][1:] == (None,) * 17
    assert seen[2].place == (None, None)


def test_events_are_immutable_named_tuples(spark: SparkSession) -> None:
    env = StreamExecutionEnvironment.get_execution_environment(spark)
    frame = spark.createDataFrame([(1, "x")], "id int, `odd name` string")

    def look(row: Any) -> str:
        number, text = row
        assert row == (1, "x")
        assert row.id == row[0] == row["id"] == number
        assert row["odd name"] == text
        try:
            row.id = 2
        except AttributeError:
            return repr(row)
        raise AssertionError("an event was changed")

    [text] = env.from_dataframe(frame).map(look, str).execute_and_collect()
    assert text.startswith("Event(id=1")


@pytest.mark.parametrize(
    "declared",
    [
        "url string, n bigint",
        "struct<url: string, n: bigint>",
        tuple[str, int],
    ],
    ids=str,
)
def test_output_types_may_be_declared_in_many_ways(spark: SparkSession, declared: Any) -> None:
    env = StreamExecutionEnvironment.get_execution_environment(spark)
    numbers = env.from_collection([1, 2])
    frames: list[Any] = []
    mapped = numbers.map(lambda n: (f"/{n}", n), declared)
    mapped.foreach_batch(lambda df, _: frames.extend(map(tuple, df.collect())))
    env.execute("declared")
    assert sorted(frames) == [("/1", 1), ("/2", 2)]
