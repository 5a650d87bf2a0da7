"""What PostgresSink says to the database, and what it refuses before it says anything."""

from __future__ import annotations

import builtins
import pickle
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from holdfast.connectors.postgres.connection import Address
from holdfast.connectors.postgres.copy import as_csv
from holdfast.connectors.postgres.sink import PostgresSink
from holdfast.connectors.postgres.statements import (
    TableColumn,
    create_buffer,
    create_table,
    fits,
    merge_buffer,
    quoted,
    sql_type,
    table_name,
)
from holdfast.errors import ConfigurationError, SinkError

URL = "postgresql://app@db.example:5433/shop"
SCHEMA = pa.schema([("user", pa.string()), ("n", pa.int64())])


def numeric(precision: int, scale: int) -> TableColumn:
    return TableColumn("x", "numeric", ((precision << 16) | (scale & 0x7FF)) + 4)


def test_names_are_divided_at_dots_and_quoted_whatever_they_contain():
    assert quoted(table_name("a.b")) == '"a"."b"'
    assert quoted(table_name(("a.b", 'c"d'))) == '"a.b"."c""d"'


def test_an_upsert_keeps_the_newest_row_of_every_key():
    statement = merge_buffer(("t",), ["k", "v"], ["k"])
    assert statement == (
        'INSERT INTO "t" ("k", "v") SELECT "k", "v" FROM (SELECT DISTINCT ON ("k") * FROM '
        '"pg_temp"."holdfast_rows" ORDER BY "k", "position" DESC) AS newest '
        'ON CONFLICT ("k") DO UPDATE SET "v" = EXCLUDED."v"'
    )


def test_an_upsert_of_nothing_but_a_key_updates_nothing():
    assert merge_buffer(("t",), ["k"], ["k"]).endswith('ON CONFLICT ("k") DO NOTHING')


def test_the_place_of_a_row_gets_a_name_that_no_column_has():
    columns = ["position", "position_"]
    assert 'AS "position__"' in create_buffer(("t",), columns)
    assert 'ORDER BY "position", "position__" DESC' in merge_buffer(("t",), columns, ["position"])


def test_a_table_is_proposed_that_the_rows_fit_in():
    fields = [
        ("k", pa.string()),
        ("amount", pa.decimal128(12, 2)),
        ("at", pa.timestamp("us", "UTC")),
        ("tags", pa.list_(pa.string())),
        ("grid", pa.list_(pa.list_(pa.int32()))),
        ("where", pa.struct([("x", pa.float64())])),
    ]
    assert create_table(("s", "t"), fields, ["k"]) == (
        'CREATE TABLE "s"."t" ("k" text, "amount" numeric(12, 2), '
        '"at" timestamp with time zone, "tags" text[], "grid" jsonb, "where" jsonb, '
        'PRIMARY KEY ("k"))'
    )


@pytest.mark.parametrize(
    ("column", "target"),
    [
        (pa.int64(), TableColumn("x", "int2")),
        (pa.int32(), numeric(10, 2)),
        (pa.float32(), TableColumn("x", "float4")),
        (pa.float64(), TableColumn("x", "numeric")),
        (pa.string(), TableColumn("x", "uuid")),
        (pa.dictionary(pa.int32(), pa.string()), TableColumn("x", "text")),
        (pa.decimal128(38, 18), numeric(10, 2)),
        (pa.list_(pa.int32()), TableColumn("x", "int4", is_array=True)),
        (pa.list_(pa.int32()), TableColumn("x", "jsonb")),
        (pa.map_(pa.string(), pa.int32()), TableColumn("x", "json")),
        (pa.binary(), TableColumn("x", "bytea")),
    ],
    ids=str,
)
def test_values_fit_a_column_that_keeps_or_refuses_each_of_them(column, target):
    assert fits(column, target)


@pytest.mark.parametrize(
    ("column", "target"),
    [
        (pa.int64(), TableColumn("x", "text")),
        (pa.int64(), TableColumn("x", "float4")),
        (pa.float64(), TableColumn("x", "float4")),
        (pa.float64(), numeric(10, 2)),
        (pa.string(), TableColumn("x", "int8")),
        (pa.string(), TableColumn("x", "text", is_array=True)),
        (pa.timestamp("us", "UTC"), TableColumn("x", "timestamp")),
        (pa.timestamp("us"), TableColumn("x", "timestamptz")),
        (pa.timestamp("us"), TableColumn("x", "date")),
        (pa.list_(pa.string()), TableColumn("x", "int4", is_array=True)),
        (pa.list_(pa.list_(pa.int32())), TableColumn("x", "int4", is_array=True)),
        (pa.struct([("a", pa.int32())]), TableColumn("x", "text")),
        (pa.bool_(), TableColumn("x", "int4")),
    ],
    ids=str,
)
def test_values_do_not_fit_a_column_that_would_change_them(column, target):
    assert not fits(column, target)


def test_the_scale_of_a_numeric_is_read_as_postgres_keeps_it():
    assert [numeric(10, 2).scale, numeric(5, -2).scale, TableColumn("x", "numeric").scale] == [
        2,
        -2,
        None,
    ]


@pytest.mark.parametrize("is_array", [False, True], ids=["alone", "in an array"])
def test_a_decimal_is_refused_rather_than_rounded(is_array: bool):
    to = replace(numeric(10, 2), is_array=is_array)
    kind = pa.list_(pa.decimal128(38, 18)) if is_array else pa.decimal128(38, 18)

    def csv(value: str) -> bytes:
        number = Decimal(value)
        rows = pa.record_batch({"x": pa.array([[number] if is_array else number], kind)})
        return as_csv(rows, [to], None)

    assert csv("1.25") == (b'"{""1.25""}"\n' if is_array else b"1.25\n")
    with pytest.raises(SinkError, match="column 'x' of the table would change"):
        csv("1.255")


def test_rows_become_csv_with_nulls_apart_from_empty_strings():
    rows = pa.record_batch({"s": pa.array([None, "", 'a"\n'])})
    assert as_csv(rows, [TableColumn("s", "text")], 7) == b',7\n"",8\n"a""\n",9\n'


def test_types_without_a_column_are_refused_when_the_program_is_built():
    assert sql_type(pa.list_(pa.duration("us"))) is None
    schema = pa.schema([("took", pa.struct([("d", pa.duration("us"))]))])
    with pytest.raises(ConfigurationError, match=r"no column for 'took'.*convert it"):
        PostgresSink(URL, "t").check(schema)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mode": "merge"}, "'insert' or 'upsert', not 'merge'"),
        ({"mode": "upsert"}, "needs `key`"),
        ({"key": "user"}, "give mode='upsert' too"),
        ({"table": "a.b.c"}, "'schema.table'"),
        ({"commit_table": ""}, "`commit_table`"),
        ({"batch_size": 0}, "`batch_size` must be 1 or more"),
        ({"max_retries": -1}, "`max_retries` must be 0 or more"),
        ({"url": "mysql://db/shop"}, "must begin with postgresql://"),
    ],
)
def test_wrong_arguments_are_refused_with_advice(arguments: dict[str, Any], message: str):
    with pytest.raises(ConfigurationError, match=message):
        PostgresSink(**{"url": URL, "table": "t", **arguments})


@pytest.mark.parametrize(
    ("arguments", "schema", "message"),
    [
        ({"mode": "upsert", "key": "id"}, SCHEMA, "`key` of PostgresSink names 'id'"),
        ({"columns": {"id": "x"}}, SCHEMA, "`columns` of PostgresSink names 'id'"),
        ({"columns": {"user": "n"}}, SCHEMA, "two columns of the stream go to column 'n'"),
        ({}, pa.schema([]), "has no column to write"),
        ({"url": URL + "?currentSchema=x"}, SCHEMA, "use options of libpq"),
    ],
)
def test_a_stream_that_does_not_suit_the_sink_is_refused(arguments, schema, message):
    with pytest.raises(ConfigurationError, match=message):
        PostgresSink(**{"url": URL, "table": "t", **arguments}).check(schema)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://app:s3cr%40t@db.example/shop",
        "jdbc:postgresql://db.example/shop?user=app&password=s3cr%40t",
        "postgres://app:s3cr@t@db.example/shop",
    ],
)
def test_a_password_is_taken_out_of_the_url_and_shown_nowhere(url: str):
    address = Address(url, None)
    assert "s3cr" not in address.url + repr(address) + repr(PostgresSink(url, "t"))
    assert address.scrubbed("bad s3cr@t") == "bad ***"
    assert pickle.loads(pickle.dumps(address)).scrubbed("s3cr@t") == "***"


@pytest.mark.parametrize(
    "url",
    ["postgresql://app:s3/cr@db/shop", "postgresql://app:12/s3cr@db/x", "postgresql://a:s3#cr@b"],
)
def test_a_url_that_a_password_breaks_is_refused_without_showing_it(url: str):
    with pytest.raises(ConfigurationError, match="percent-encoded") as raised:
        PostgresSink(url, "t")
    assert "cr" not in str(raised.value).replace("percent-encoded", "")


def test_several_hosts_sockets_and_options_stay_in_the_url():
    for url in (
        "postgresql://app@a:5432,b:5433/shop?target_session_attrs=read-write",
        "postgresql:///shop?host=/run/postgresql&user=app",
        "postgresql://app@[::1]:5432/shop",
    ):
        assert Address(url, None).url == url


def test_a_missing_driver_is_answered_with_what_to_install(monkeypatch: pytest.MonkeyPatch):
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name == "psycopg":
            raise ImportError("No module named 'psycopg'")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigurationError, match=r"pip install holdfast\[postgres\]"):
        PostgresSink(URL, "t").check(SCHEMA)
