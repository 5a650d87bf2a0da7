"""Tables are ordinary Parquet files: other programs read them, without Holdfast."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from holdfast import ListStateDescriptor, MapStateDescriptor, StateTtlConfig, ValueStateDescriptor
from holdfast.state.timers.table import EVENT_TIMERS
from holdfast.windows import TimeWindow
from tests.support.state_tables import State

if TYPE_CHECKING:
    from pathlib import Path

NOW = 1_794_000_000_000
TEA, OTHER = "1.100000000000000000", "-2.000000000000000000"
TTL = StateTtlConfig.new_builder(3_600_000).build()


@dataclass
class Line:
    item: str
    price: Decimal


@dataclass
class Order:
    number: int
    lines: list[Line]
    by_day: dict[str, list[int]]
    at: datetime
    place: tuple[float, float] | None
    paid: int | str


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tables with values of many types, and some that have no column."""
    state = State(tmp_path_factory.mktemp("tables"), now=NOW)
    orders = state.register(ValueStateDescriptor("orders", Order))
    scalars = state.register(
        MapStateDescriptor("scalars", str, tuple[date, datetime, timedelta, time, bytes, bool])
    )
    names = state.register(ListStateDescriptor("names", str, ttl=TTL))
    counts = state.register(ValueStateDescriptor("counts", int), state.windows)
    rows = state.register(ValueStateDescriptor("rows", "a bigint, b array<string>, c void"))
    state.register(ValueStateDescriptor("empty", list[datetime]))
    for number, key in enumerate([("de", 1), ("fr", None)]):
        state.current.key = key
        orders.update(
            Order(
                number,
                [Line("tea", Decimal("1.10")), Line("ü", Decimal("-2"))],
                {"mon": [1, 2], "tue": []},
                datetime(2026, 11, 15, 12, tzinfo=UTC),
                (1.5, -0.5) if number else None,
                "cash" if number else 7,
            )
        )
        scalars.put(
            "k",
            (
                date(2026, 11, 15),
                datetime(2026, 11, 15, 12, 30),
                timedelta(days=1, microseconds=5),
                time(23, 59, 1),
                b"\x00\xff",
                True,
            ),
        )
        scalars.put("none", None)
        names.add_all(["x", "y"])
        state.windows.current.key = (key, TimeWindow(NOW, NOW + 60_000).to_bytes())
        counts.update(5 if number else 2**70)
        rows.update((number, ["p", None], None))
        state.keyed.timers(EVENT_TIMERS).register(NOW if number else 2**63 - 1)
    return state.written()


BEGINNING = """
import json, sys
sys.modules["holdfast"] = None
try:
    import holdfast
except ImportError:
    pass
else:
    raise AssertionError("holdfast must not be there")
root = sys.argv[1]
"""

DUCKDB = """
import duckdb
def rows(table, columns="*"):
    found = duckdb.sql(f"SELECT {columns} FROM '{root}/{table}.parquet' ORDER BY key")
    return found.fetchall()
duckdb.sql("SET TimeZone = 'UTC'")
"""

PANDAS = """
import pandas
def rows(table):
    frame = pandas.read_parquet(f"{root}/{table}.parquet")
    assert len(frame) > 0
    frame["order"] = [key["_1"] for key in frame["key"]]
    return frame.sort_values("order").to_dict("records")
"""


# Arrow may abort an interpreter that ends while one of its threads is still starting.
# The tests are about the tables, so the programs leave without Arrow's clean-up.
END = """
import os
sys.stdout.flush()
os._exit(0)
"""


def answer(program: str, tables: Path) -> Any:
    """What a program prints as JSON that reads tables without Holdfast."""
    done = subprocess.run(
        [sys.executable, "-I", "-c", program + END, str(tables)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def ask_duckdb(tables: Path, *questions: tuple[str, str]) -> Any:
    """What each of some tables has in some columns."""
    ask = f"print(json.dumps([rows(*question) for question in {questions!r}], default=str))"
    return answer(BEGINNING + DUCKDB + ask, tables)


def test_duckdb_reads_nested_values(tables: Path) -> None:
    columns = (
        "key._1, key._2, value.number, value.lines, value.by_day, value.at, value.place, value.paid"
    )
    [found] = ask_duckdb(tables, ("keyed/orders", columns))
    lines = [{"item": "tea", "price": TEA}, {"item": "ü", "price": OTHER}]
    by_day = {"mon": [1, 2], "tue": []}
    at = "2026-11-15 12:00:00+00:00"
    assert found == [
        ["de", 1, 0, lines, by_day, at, None, {"int": 7, "str": None}],
        ["fr", None, 1, lines, by_day, at, {"_1": 1.5, "_2": -0.5},
         {"int": None, "str": "cash"}],
    ]  # fmt: skip


def test_duckdb_reads_scalars_windows_times_and_timers(tables: Path) -> None:
    scalars, counts, names, timers, rows, empty = ask_duckdb(
        tables,
        (
            "keyed/scalars",
            "map_key, value._1, value._2, value._3, value._4, hex(value._5), value._6",
        ),
        ("keyed/counts", "epoch_ms(window_start), epoch_ms(window_end), value, encoded[:1]"),
        ("keyed/names.ttl", "position, value, epoch_ms(last_access)"),
        ("timers/event", "epoch_ms(timestamp), timestamp_ms"),
        ("keyed/rows", "value"),
        ("keyed/empty", "*"),
    )
    assert sorted(scalars, key=str)[0] == [
        *("k", "2026-11-15", "2026-11-15 12:30:00", 86_400_000_005, "23:59:01", "00FF", True),
    ]
    assert ["none", None, None, None, None, None, None] in scalars
    bounds = [NOW, NOW + 60_000]
    assert counts == [[*bounds, None, "b'\\xc1'"], [*bounds, 5, None]]
    assert sorted(names) == [[0, "x", NOW]] * 2 + [[1, "y", NOW]] * 2
    assert timers == [[None, 2**63 - 1], [NOW, None]]
    assert rows == [
        [{"a": 0, "b": ["p", None], "c": None}],
        [{"a": 1, "b": ["p", None], "c": None}],
    ]
    assert empty == []


def test_duckdb_asks_questions_over_all_of_them(tables: Path) -> None:
    ask = f"""
found = duckdb.sql('''
    SELECT o.key._1, round(sum(line.price), 2)::VARCHAR
    FROM '{tables}/keyed/orders.parquet' o, unnest(o.value.lines) AS l(line)
    GROUP BY ALL ORDER BY ALL
''').fetchall()
print(json.dumps(found))
"""
    assert answer(BEGINNING + DUCKDB + ask, tables) == [["de", "-0.90"], ["fr", "-0.90"]]


def test_pandas_reads_nested_values(tables: Path) -> None:
    ask = """
first, second = rows("keyed/orders")
print(json.dumps([
    first["key"], first["value"]["number"], list(first["value"]["lines"]),
    first["value"]["by_day"], str(first["value"]["at"]), first["value"]["place"],
    second["value"]["place"], second["value"]["paid"],
], default=lambda one: one.tolist() if hasattr(one, "tolist") else str(one)))
"""
    found = answer(BEGINNING + PANDAS + ask, tables)
    assert found == [
        {"_1": "de", "_2": 1},
        0,
        [{"item": "tea", "price": TEA}, {"item": "ü", "price": OTHER}],
        [["mon", [1, 2]], ["tue", []]],
        "2026-11-15 12:00:00+00:00",
        None,
        {"_1": 1.5, "_2": -0.5},
        {"int": None, "str": "cash"},
    ]


def test_pandas_reads_times_and_windows(tables: Path) -> None:
    ask = """
scalars, counts = rows("keyed/scalars"), rows("keyed/counts")
value = [row["value"] for row in scalars if row["map_key"] == "k"][0]
windows = [[row["value"], row["window_start"].timestamp()] for row in counts[1:]]
print(json.dumps([[str(part) for part in value.values()], windows]))
"""
    parts, windows = answer(BEGINNING + PANDAS + ask, tables)
    assert parts == [
        *("2026-11-15", "2026-11-15 12:30:00", "1 day, 0:00:00.000005", "23:59:01"),
        *("b'\\x00\\xff'", "True"),
    ]
    assert windows == [[5, NOW / 1000]]


@pytest.mark.parametrize("first", [True, False])
def test_tables_of_a_subtask_without_keys_are_read_with_the_others(
    tmp_path: Path, first: bool
) -> None:
    """Any tool opens `<state>/*.parquet`, as the docs say."""
    places: list[str] = []
    for number, has_key in enumerate([not first, first]):
        state = State(tmp_path / str(number))
        handle = state.register(ValueStateDescriptor("s", int))
        if has_key:
            state.current.key = 7
            handle.update(1)
        places += map(str, state.written().glob("keyed/s.parquet"))
    assert ds.dataset(places).to_table(columns=["key", "value"]).to_pylist() == [
        {"key": 7, "value": 1}
    ]


def prices_of_two_subtasks(root: Path, *prices: list[str]) -> list[str]:
    """Tables of a state of decimals, a table for each subtask."""
    places: list[str] = []
    for number, own in enumerate(prices):
        state = State(root / str(number))
        handle = state.register(ListStateDescriptor("prices", Decimal))
        state.current.key = number
        handle.add_all(map(Decimal, own))
        places += map(str, state.written().glob("keyed/prices.parquet"))
    return places


@pytest.mark.parametrize("prices", [(["1.5"], ["2.12345"]), ([], ["2.12345"]), (["7"], ["1E-18"])])
def test_decimals_of_all_subtasks_have_one_type_and_no_program_rounds_them(
    tmp_path: Path, prices: tuple[list[str], list[str]]
) -> None:
    places = prices_of_two_subtasks(tmp_path, *prices)
    expected = [Decimal(one) for own in prices for one in own]
    found = ds.dataset(places).to_table(columns=["key", "position", "value"])
    assert found.schema.field("value").type == pa.decimal128(38, 18)
    assert found["value"].to_pylist() == expected
    ask = f"""
import duckdb
found = duckdb.sql("SELECT value FROM read_parquet({places!r}) ORDER BY key")
assert str(found.types) == "[DECIMAL(38,18)]", found.types
print(json.dumps([str(row[0]) for row in found.fetchall()]))
"""
    assert list(map(Decimal, answer(BEGINNING + ask, tmp_path))) == expected
    ask = f"""
import pandas
frames = pandas.concat(pandas.read_parquet(place) for place in {places!r})
print(json.dumps([str(value) for value in frames["value"]]))
"""
    assert list(map(Decimal, answer(BEGINNING + ask, tmp_path))) == expected
