"""Files hold what was written, in every format, and what they cannot hold is refused."""

from __future__ import annotations

import json
import math
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import pyarrow as pa
import pytest
from pyarrow import parquet

from holdfast.connectors.files.formats import FORMATS
from holdfast.connectors.files.sink import FileSink
from holdfast.errors import ConfigurationError
from tests.support.file_sinks import publish, read_as_dataset, read_texts, text_of, visible_files

AT = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)

FLAT = {
    "text": pa.array(["a", "", None, 'quote " comma, line\nbreak \\ ü'], pa.string()),
    "whole": pa.array([1, -(2**63), None, 2**63 - 1], pa.int64()),
    "small": pa.array([1, None, -128, 127], pa.int8()),
    "real": pa.array([0.1, None, -1e300, 5e-324], pa.float64()),
    "flag": pa.array([True, False, None, True], pa.bool_()),
    "day": pa.array([date(2026, 1, 2), None, date(1, 1, 1), date(9999, 12, 31)], pa.date32()),
    "at": pa.array([AT, None, AT, datetime(1969, 12, 31, tzinfo=UTC)], pa.timestamp("us", "UTC")),
    "local": pa.array([AT.replace(tzinfo=None), None, None, None], pa.timestamp("us")),
    "price": pa.array(
        [Decimal("1.50"), None, Decimal("0.00"), Decimal("-123456789012345678.99")],
        pa.decimal128(20, 2),
    ),
}
NESTED = {
    "list": pa.array([[1, None], [], None, [2]], pa.list_(pa.field("element", pa.int64()))),
    "struct": pa.array(
        [{"a": 1, "at": AT}, {"a": None, "at": None}, None, {"a": 2, "at": AT}],
        pa.struct([("a", pa.int64()), ("at", pa.timestamp("us", "UTC"))]),
    ),
    "map": pa.array([[("k", 1.5), ("n", None)], [], None, []], pa.map_(pa.string(), pa.float64())),
    "bytes": pa.array([b"\x00\xff", b"", None, b"abc"], pa.binary()),
}


def lines(sink: FileSink) -> list[dict[str, object]]:
    """The objects of all visible JSON files."""
    return [
        json.loads(line, parse_float=Decimal)
        for name in visible_files(sink)
        for line in text_of(sink, name).splitlines()
    ]


@pytest.mark.parametrize("compression", [None, *FORMATS["parquet"].compressions])
def test_parquet_gives_every_value_back(tmp_path, compression):
    rows = pa.record_batch({**FLAT, **NESTED})
    sink = FileSink(tmp_path, compression=compression)
    publish(sink, [rows])
    assert read_as_dataset(sink).to_pylist() == rows.to_pylist()
    (name,) = visible_files(sink)
    assert name.endswith(".parquet")
    column = parquet.ParquetFile(tmp_path / name).metadata.row_group(0).column(0)
    wanted = {None: "SNAPPY", "none": "UNCOMPRESSED"}.get(compression, str(compression).upper())
    assert column.compression == wanted


@pytest.mark.parametrize("format", ["json", "csv"])
@pytest.mark.parametrize("compression", [None, *FORMATS["json"].compressions])
def test_texts_give_flat_values_back(tmp_path, format, compression):
    rows = pa.record_batch(FLAT)
    sink = FileSink(tmp_path, format, compression=compression)
    publish(sink, [rows])
    assert read_texts(sink, rows.schema) == rows.to_pylist()
    suffix = {"gzip": ".gz", "bz2": ".bz2", "zstd": ".zst"}.get(str(compression), "")
    assert visible_files(sink)[0].endswith(f".{format}{suffix}")


def test_json_leaves_nulls_out_as_spark_does_and_keeps_nested_values(tmp_path):
    sink = FileSink(tmp_path, "json")
    publish(sink, [pa.record_batch(NESTED)])
    at = "2026-01-02T03:04:05.678901Z"
    assert lines(sink) == [
        {
            "list": [1, None],
            "struct": {"a": 1, "at": at},
            "map": {"k": Decimal("1.5"), "n": None},
            "bytes": "AP8=",
        },
        {"list": [], "struct": {}, "map": {}, "bytes": ""},
        {},
        {"list": [2], "struct": {"a": 2, "at": at}, "map": {}, "bytes": "YWJj"},
    ]


def test_json_has_all_digits_of_decimals_and_texts_for_what_is_no_number(tmp_path):
    digits = Decimal("12345678901234567890.123456789012345678")
    nested = pa.list_(pa.field("element", pa.float32()))
    rows = pa.record_batch(
        {
            "d": pa.array([digits] * 2, pa.decimal128(38, 18)),
            "f": [math.nan, math.inf],
            "l": pa.array([[-math.inf, None], [1.5]], nested),
        }
    )
    sink = FileSink(tmp_path, "json")
    publish(sink, [rows])
    assert lines(sink) == [
        {"d": digits, "f": "NaN", "l": ["-Infinity", None]},
        {"d": digits, "f": "Infinity", "l": [Decimal("1.5")]},
    ]


@pytest.mark.parametrize("format", ["json", "csv"])
def test_texts_show_times_of_any_zone_in_utc(tmp_path, format):
    zoned = pa.array([AT], pa.timestamp("ns", "Europe/Vienna"))
    sink = FileSink(tmp_path, format)
    publish(sink, [pa.record_batch({"at": zoned})])
    text = text_of(sink, visible_files(sink)[0]).decode().replace(" ", "T")
    assert "2026-01-02T03:04:05.678901Z" in text


def test_csv_has_names_first_and_tells_null_from_the_empty_text(tmp_path):
    sink = FileSink(tmp_path, "csv")
    publish(sink, [pa.record_batch({"a": ["", None, 'x"y'], "b": [1, 2, None]})])
    assert text_of(sink, visible_files(sink)[0]).decode() == '"a","b"\n"",1\n,2\n"x""y",\n'


@pytest.mark.parametrize(
    ("format", "column", "complaint"),
    [
        ("csv", pa.list_(pa.int64()), "'odd' is array<bigint>: CSV has no nested columns"),
        ("csv", pa.struct([("a", pa.int64())]), "CSV has no nested columns; make columns of"),
        ("csv", pa.binary(), "CSV is text; encode it before the sink.*or write parquet"),
        ("csv", pa.duration("us"), "CSV has no durations"),
        ("json", pa.duration("us"), "JSON has no durations"),
        ("json", pa.struct([("a", pa.list_(pa.duration("us")))]), "JSON has no durations"),
        ("json", pa.map_(pa.int64(), pa.string()), "the keys of a JSON object are texts"),
        ("json", pa.list_(pa.map_(pa.date32(), pa.string())), "the keys of a JSON object"),
        ("parquet", pa.month_day_nano_interval(), "parquet cannot hold it"),
    ],
)
def test_a_column_that_a_format_cannot_hold_is_refused_by_name(tmp_path, format, column, complaint):
    with pytest.raises(ConfigurationError, match=f"column 'odd'.*{complaint.split(': ')[-1]}"):
        FileSink(tmp_path, format).check(pa.schema([("fine", pa.int64()), ("odd", column)]))


@pytest.mark.parametrize("format", list(FORMATS))
def test_every_flat_column_fits_in_every_format(tmp_path, format):
    FileSink(tmp_path, format).check(pa.record_batch(FLAT).schema)


@pytest.mark.parametrize("format", ["parquet", "json"])
def test_nested_columns_fit_in_parquet_and_json(tmp_path, format):
    FileSink(tmp_path, format).check(pa.record_batch(NESTED).schema)


def test_parquet_keeps_durations(tmp_path):
    sink = FileSink(tmp_path)
    rows = pa.record_batch({"d": pa.array([timedelta(seconds=1)], pa.duration("us"))})
    sink.check(rows.schema)
    publish(sink, [rows])
    assert read_as_dataset(sink).to_pylist() == rows.to_pylist()


@pytest.mark.parametrize(
    ("format", "compression", "complaint"),
    [
        ("parquett", None, r"no file format 'parquett'; use .*did you mean 'parquet'\?"),
        ("avro", None, "no file format 'avro'; use parquet, json, csv$"),
        ("json", "snappy", "json files cannot be compressed with 'snappy'; use none, gzip"),
        ("csv", "gz", r"did you mean 'gzip'\?"),
        ("parquet", "bz2", "parquet files cannot be compressed with 'bz2'; use snappy, zstd"),
    ],
)
def test_a_format_or_compression_that_does_not_exist_is_refused(
    tmp_path, format, compression, complaint
):
    with pytest.raises(ConfigurationError, match=complaint):
        FileSink(tmp_path, format, compression=compression)
