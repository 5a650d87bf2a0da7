"""Tables that PostgresSink writes to: their names, their types, and what they refuse."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from holdfast.connectors.postgres.sink import PostgresSink
from holdfast.errors import SinkError
from tests.support.postgres_tools import (
    SCHEMA,
    MemoryStaging,
    batch,
    commit,
    in_log,
    numbers,
    staged,
    writer_context,
)


def test_odd_names_of_schemas_tables_and_columns_are_taken_literally(db):
    db.execute('DROP SCHEMA IF EXISTS "My.Schema" CASCADE; CREATE SCHEMA "My.Schema"')
    db.execute('CREATE TABLE "My.Schema"."a ""b"";%s" ("select" text PRIMARY KEY, "Ü %s{}" bigint)')
    sink = PostgresSink(
        db.url,
        ("My.Schema", 'a "b";%s'),
        mode="upsert",
        key="user",
        columns={"user": "select", "n": "Ü %s{}"},
        commit_table=("My.Schema", "Commits %s"),
    )
    assert commit(sink, staged(sink, batch([("a", 1), ("a", 2)]))) == ["done"]
    assert db.execute('SELECT * FROM "My.Schema"."a ""b"";%s"') == [("a", 2)]
    assert db.execute('SELECT checkpoint_id FROM "My.Schema"."Commits %s"') == [(1,)]


_MOMENT = datetime(2024, 5, 6, 7, 8, 9, 123456)
_ZONED = pa.timestamp("us", "Europe/Berlin")
TYPES: list[tuple[pa.DataType, str, list[Any]]] = [
    (pa.int8(), "smallint", [-128, 127]),
    (pa.int32(), "integer", [-(2**31), 2**31 - 1]),
    (pa.int64(), "bigint", [-(2**63), 2**63 - 1]),
    (pa.float32(), "real", [0.5, float("inf")]),
    (pa.float64(), "double precision", [0.1, 5e-324, 1.7976931348623157e308, float("-inf")]),
    (pa.bool_(), "boolean", [True, False]),
    (pa.string(), "text", ["", "NULL", "\\N", "\\.", "a\"b,\n\r\n\\.\n\t'ü😀", " ", "{}"]),
    (pa.large_string(), "varchar", ["x"]),
    (pa.binary(), "bytea", [b"", b"\x00\xff\\x\n"]),
    (pa.decimal128(38, 18), "numeric(10, 2)", [Decimal("-12345678.25"), Decimal("0.01")]),
    (pa.decimal128(38, 18), "numeric", [Decimal("0.000000000000000001")]),
    (pa.date32(), "date", [date(1, 1, 1), date(9999, 12, 31)]),
    (pa.time64("us"), "time", [time(23, 59, 59, 999999)]),
    (pa.timestamp("us", "UTC"), "timestamptz", [_MOMENT.replace(tzinfo=UTC)]),
    (_ZONED, "timestamptz", [_MOMENT.replace(tzinfo=UTC)]),
    (pa.timestamp("us"), "timestamp", [_MOMENT, datetime(1900, 1, 1)]),
    (pa.timestamp("ns"), "timestamp", [_MOMENT]),
    (pa.list_(pa.int64()), "bigint[]", [[], [1, None, -3]]),
    (pa.list_(pa.float64()), "double precision[]", [[0.1, float("inf")]]),
    (pa.list_(pa.bool_()), "boolean[]", [[True, False, None]]),
    (pa.list_(pa.string()), "text[]", [["", "NULL", 'a"\\,{}\n', None]]),
    (pa.list_(pa.binary()), "bytea[]", [[b"\x00\\", b""]]),
    (pa.list_(pa.decimal128(38, 18)), "numeric(9, 2)[]", [[Decimal("1.25"), None]]),
    (pa.list_(pa.date32()), "date[]", [[date(2024, 1, 2)]]),
    (pa.list_(pa.timestamp("us")), "timestamp[]", [[_MOMENT]]),
    (pa.list_(_ZONED), "timestamptz[]", [[_MOMENT.replace(tzinfo=UTC)]]),
    (pa.list_(pa.list_(pa.int32())), "jsonb", [[[1], [2, None], None]]),
    (pa.struct([("a", pa.int32()), ("s", pa.string())]), "jsonb", [{"a": 1, "s": 'x"\\'}]),
    (pa.struct([("f", pa.float64())]), "json", [{"f": 0.1}, {"f": None}]),
    (pa.null(), "integer", []),
]


@pytest.mark.parametrize(("column", "kind", "values"), TYPES, ids=lambda part: str(part)[:30])
def test_values_of_every_type_come_back_as_they_went(db, column, kind, values):
    db.execute(f"CREATE TABLE typed (id integer, x {kind})")
    sink = PostgresSink(db.url, "typed")
    rows = list(enumerate([*values, None]))
    schema = pa.schema([("id", pa.int32()), ("x", column)])
    sink.check(schema)
    assert commit(sink, staged(sink, batch(rows, schema))) == ["done"]
    assert db.execute("SELECT * FROM typed ORDER BY id") == rows


def test_maps_and_values_that_json_lacks_are_written_as_documented(db):
    db.execute("CREATE TABLE typed (x jsonb)")
    sink = PostgresSink(db.url, "typed")
    inner = pa.struct([("f", pa.float64()), ("b", pa.binary()), ("d", pa.decimal128(38, 18))])
    schema = pa.schema([("x", pa.map_(pa.int32(), inner))])
    value = {"f": float("nan"), "b": b"\x00\x01", "d": Decimal("12345678901234567890.123456789")}
    commit(sink, staged(sink, batch([([(7, value), (8, None)],)], schema)))
    ((text,),) = db.execute("SELECT x::text FROM typed")
    assert json.loads(text, parse_float=Decimal) == {
        "7": {"f": "NaN", "b": "AAE=", "d": Decimal("12345678901234567890.123456789000000000")},
        "8": None,
    }


def test_text_goes_into_types_that_are_written_as_text_and_domains_are_seen_through(db):
    db.execute("CREATE TYPE mood AS ENUM ('sad', 'ok')")
    db.execute("CREATE DOMAIN whole AS bigint")
    db.execute("CREATE DOMAIN positive AS whole CHECK (VALUE > 0)")
    db.execute("CREATE TABLE typed (u uuid, m mood, j jsonb, n positive)")
    sink = PostgresSink(db.url, "typed")
    schema = pa.schema([(name, pa.string()) for name in "umj"] + [("n", pa.int64())])
    row = ("7b0d1f5e-0000-4000-8000-000000000001", "ok", '{"a": 1}', 3)
    commit(sink, staged(sink, batch([row], schema)))
    assert db.execute("SELECT u::text, m::text, j::text, n FROM typed") == [row]


def test_columns_that_the_stream_lacks_get_their_defaults(db, log):
    db.execute("ALTER TABLE log ADD COLUMN written bool DEFAULT true")
    commit(log, staged(log, batch([("a", 1)])))
    assert in_log(db) == [("a", 1, True)]


@pytest.mark.parametrize(
    ("prepare", "options", "message"),
    [
        ("DROP TABLE log", {}, r'no table "log".*CREATE TABLE "log" \("user" text, "n" bigint\)'),
        (
            "ALTER TABLE log DROP COLUMN n",
            {},
            r"no column 'n', only user;.*ADD COLUMN \"n\" bigint",
        ),
        ("ALTER TABLE log ALTER n TYPE text", {}, "'n' of .* is of type text.*make it bigint"),
        ("ALTER TABLE log ALTER n TYPE bigint[] USING NULL", {}, "of type int8\\[\\]"),
        ("SELECT 1", {"mode": "upsert", "key": "user"}, "add a primary key or a unique index"),
    ],
)
@pytest.mark.parametrize("exactly_once", [True, False], ids=["exactly_once", "direct"])
def test_a_table_that_does_not_fit_is_found_out_at_the_first_write(
    db, prepare, options, message, exactly_once
):
    db.execute(prepare)
    sink = PostgresSink(
        f"{db.url}&application_name=t{next(numbers)}", "log", batch_size=1, **options
    )
    writer = sink.create_writer(writer_context(SCHEMA, MemoryStaging() if exactly_once else None))
    with pytest.raises(SinkError, match=message):
        writer.write_rows(batch([("a", 1)]))
    writer.abort()
    writer.close()


@pytest.mark.parametrize(
    ("prepare", "row", "message"),
    [
        ("ALTER TABLE log ALTER n TYPE smallint", ("a", 70_000), 'out of range.*column n: "70000"'),
        ("ALTER TABLE log ADD UNIQUE (n)", ("a", 1), "23505.*use mode='upsert'"),
        ('ALTER TABLE log ALTER "user" SET NOT NULL', (None, 1), "23502.*a value in every row"),
        ("SELECT 1", ("a\0b", 1), "invalid byte sequence"),
    ],
)
def test_a_value_that_the_table_refuses_fails_the_publication_and_leaves_nothing(
    db, prepare, row, message
):
    db.execute(prepare)
    sink = PostgresSink(db.url, "log")
    request = staged(sink, batch([("b", 1)]), batch([row]))
    with pytest.raises(SinkError, match=f"(?s)checkpoint 1 of subtask 0 of sink 'sink'.*{message}"):
        commit(sink, request)
    assert in_log(db) == []
    assert db.execute("SELECT count(*) FROM holdfast_commits") == [(0,)]


def test_a_user_who_may_not_make_the_commit_table_is_told_the_statement(db):
    db.execute(
        "DROP ROLE IF EXISTS app; CREATE ROLE app LOGIN; GRANT USAGE ON SCHEMA public TO app"
    )
    db.execute("GRANT INSERT, SELECT ON log TO app")
    sink = PostgresSink(db.url.replace("user=postgres", "user=app"), "log")
    with pytest.raises(SinkError, match=r'let its owner run: CREATE TABLE.*"holdfast_commits"'):
        commit(sink, staged(sink, batch([("a", 1)])))


def test_a_database_that_does_not_exist_fails_at_once_without_the_password(db):
    url = db.url.replace("/postgres?", "/nowhere?")
    sink = PostgresSink(url, "log", password="s3cret")
    with pytest.raises(SinkError, match="does not exist") as raised:
        staged(sink, batch([("a", 1)]))
    assert "s3cret" not in str(raised.value)
