"""Spark reads back what a FileSink has written, with the schema and the options documented."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from holdfast.connectors.files.sink import FileSink
from holdfast.types.ddl import parse_ddl
from tests.support.file_sinks import publish, stage

if TYPE_CHECKING:
    from pathlib import Path

AT = datetime(2026, 1, 2, 3, 4, 5, 678901)
FLAT = (
    "s string, i bigint, b tinyint, d double, f float, t boolean, day date, "
    "at timestamp, local timestamp_ntz, m decimal(38,18)"
)
NESTED = (
    "l array<double>, st struct<a: bigint, at: timestamp>, mp map<string,decimal(10,2)>, x binary"
)
DIGITS = Decimal("12345678901234567890.123456789012345678")
FLAT_ROWS: list[list[Any]] = [
    ["a", "", None, 'quote " comma, line\nbreak \\ ü'],
    [1, -(2**63), None, 2**63 - 1],
    [1, -128, None, 127],
    [0.1, math.inf, None, 5e-324],
    [0.5, -math.inf, None, math.nan],
    [True, False, None, True],
    [date(2026, 1, 2), date(1900, 1, 1), None, date(9999, 12, 31)],
    [AT.replace(tzinfo=UTC), datetime(1969, 12, 31, tzinfo=UTC), None, AT.replace(tzinfo=UTC)],
    [AT, datetime(1969, 12, 31), None, AT],
    [DIGITS, Decimal("1E-18"), None, -DIGITS],
]
NESTED_ROWS: list[list[Any]] = [
    [[1.5, None], [], None, [math.inf]],
    [{"a": 1, "at": AT.replace(tzinfo=UTC)}, {"a": None, "at": None}, None, {"a": 2, "at": None}],
    [[("k", Decimal("1.50")), ("n", None)], [], None, []],
    [b"\x00\xff", b"", None, b"abc"],
]
OPTIONS = {
    "parquet": {},
    "json": {},
    "csv": {
        "header": True,
        "escape": '"',
        "multiLine": True,
        "nullValue": "\0",
        "nanValue": "nan",
        "positiveInf": "inf",
        "negativeInf": "-inf",
    },
}


@pytest.mark.versions
@pytest.mark.parametrize("format", ["parquet", "json", "csv"])
def test_spark_reads_every_value_back(spark, tmp_path: Path, format: str) -> None:
    ddl = FLAT if format == "csv" else f"{FLAT}, {NESTED}"
    columns = FLAT_ROWS if format == "csv" else FLAT_ROWS + NESTED_ROWS
    schema = parse_ddl(f"part string, {ddl}")
    parts = ["a b", "c=d", "e", "50%"]
    arrays = [
        pa.array(values, field.type)
        for values, field in zip([parts, *columns], schema, strict=True)
    ]
    rows = pa.record_batch(arrays, schema=schema)
    sink = FileSink(tmp_path / "out", format, partition_by=["part"])
    sink.check(schema)
    publish(sink, [rows])
    stage(sink, [rows], epoch=2)
    read = spark.read.options(**OPTIONS[format]).schema(f"{ddl}, part string").format(format)
    names = [name for name in schema.names if name != "part"]
    found = read.load(sink.path).orderBy("part").select("part", *names).toArrow()
    wanted = pa.Table.from_batches([rows]).sort_by("part")
    assert repr(found.to_pylist()) == repr(wanted.cast(found.schema).to_pylist())
