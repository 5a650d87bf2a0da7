"""What typed columns show and what is kept beside them: both columns, and when they are there."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast import MapStateDescriptor, StateTtlConfig, ValueStateDescriptor
from holdfast.serde.keys import key_group_of
from holdfast.state.tables.rows import Portion
from holdfast.state.timers.layout import LAST_TIME
from holdfast.windows import TimeWindow
from tests.support.state_tables import State, require_same_state, rows

if TYPE_CHECKING:
    from pathlib import Path

NOW = 1_794_000_000_000
TTL = StateTtlConfig.new_builder(3_600_000).disable_cleanup_in_background().build()


def test_what_a_column_cannot_hold_is_encoded_beside_a_null(tmp_path: Path) -> None:
    state = State(tmp_path)
    big = state.register(MapStateDescriptor("big", int, int))
    state.current.key = "k"
    big.put_all({1: 2**70, 2**64: 1})
    tables = state.written()
    found = {row["map_key"]: row for row in rows(tables, "keyed/big")}
    assert found[1]["value"] is None
    assert found[1]["encoded"][:1] == b"\xc1"
    assert found[None]["value"] == 1
    assert found[None]["map_key_encoded"][:1] == b"\xc1"
    require_same_state(state, tables)


def test_only_a_table_with_a_row_that_needs_them_has_encoded_columns(tmp_path: Path) -> None:
    state = State(tmp_path)
    state.current.key = "k"
    columns = {}
    for number, entry in enumerate([(1, 1), (1, 2**70), (2**70, 1), (2**70, 2**70)]):
        state.register(MapStateDescriptor(f"m{number}", int, int)).put(*entry)
    tables = state.written()
    for number in range(4):
        found = pq.read_schema(tables / "keyed" / f"m{number}.parquet").names
        columns[number] = [name for name in found if name.endswith("encoded")]
    assert list(columns.values()) == [
        [],
        ["encoded"],
        ["map_key_encoded"],
        ["map_key_encoded", "encoded"],
    ]
    require_same_state(state, tables)


def test_a_decimal_is_a_number_and_its_digits_are_kept(tmp_path: Path) -> None:
    state = State(tmp_path)
    price = state.register(ValueStateDescriptor("price", Decimal))
    rates = state.register(MapStateDescriptor("rates", Decimal, Decimal, ttl=TTL))
    prices = ["1.10", "1.1", "-0", "1E+3", "NaN", "0.125", "7"]
    for state.current.key, text in enumerate(prices):
        price.update(Decimal(text))
        rates.put_all({Decimal(text): Decimal("0.5"), Decimal("0.25"): None})
    tables = state.written()
    found = {row["key"]: row for row in rows(tables, "keyed/price")}
    assert [found[key]["value"] for key in range(7)] == [
        *map(Decimal, ("1.1", "1.1", "0", "1000")),
        None,
        *map(Decimal, ("0.125", "7")),
    ]
    encoded = {key: row["encoded"] for key, row in found.items() if row["encoded"] is not None}
    # All that is not the shortest text of a number.
    assert encoded == {key: msgspec.msgpack.encode(prices[key]) for key in (0, 2, 3, 4)}
    types = pq.read_schema(tables / "keyed" / "rates.ttl.parquet")
    assert types.field("map_key").type == types.field("value").type == pa.decimal128(38, 18)
    about = msgspec.json.decode(types.metadata[b"holdfast"])
    assert about["digits"] == {"map_key": [0], "value": [0]}
    require_same_state(state, tables)


def test_the_first_rows_decide_the_digits_and_later_ones_are_exact(tmp_path: Path) -> None:
    state = State(tmp_path)
    price = state.register(ValueStateDescriptor("price", Decimal))
    keys = sorted(range(9), key=lambda key: key_group_of(key, 128))
    texts = ["1.10", "2.20", "3.30", "4.4", "5.555", "6.60", "7", "NaN", "9.99"]
    for state.current.key, text in zip(keys, texts, strict=True):
        price.update(Decimal(text))
    tables = state.written(portion=Portion(rows=2))
    file = pq.ParquetFile(tables / "keyed" / "price.parquet")
    sizes = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
    assert sizes == [2, 2, 2, 2, 1]
    found = file.read()
    about = msgspec.json.decode(found.schema.metadata[b"holdfast"])
    assert about["digits"] == {"value": [2]}
    shown = [None if text == "NaN" else Decimal(text) for text in texts]
    assert found["value"].to_pylist() == shown
    assert found["encoded"].is_valid().to_pylist() == [
        text in ("4.4", "7", "NaN") for text in texts
    ]
    assert sorted(path.name for path in (tables / "keyed").iterdir()) == ["price.parquet"]
    require_same_state(state, tables)


def test_a_datetime_of_another_zone_is_shown_in_utc_and_keeps_its_zone(tmp_path: Path) -> None:
    state = State(tmp_path)
    seen = state.register(ValueStateDescriptor("seen", datetime))
    zoned = datetime(2026, 11, 15, 12, tzinfo=ZoneInfo("Europe/Berlin"))
    for state.current.key, when in enumerate((zoned, zoned.astimezone(UTC), datetime(2026, 1, 1))):
        seen.update(when)
    tables = state.written()
    found = {row["key"]: row for row in rows(tables, "keyed/seen")}
    noon = datetime(2026, 11, 15, 11, tzinfo=UTC)
    assert [found[key]["value"] for key in range(3)] == [noon, noon, None]
    assert [found[key]["encoded"] is None for key in range(3)] == [False, True, False]
    require_same_state(state, tables)


def test_columns_that_only_later_rows_need_are_there_for_all(tmp_path: Path) -> None:
    state = State(tmp_path)
    calls = state.register(ValueStateDescriptor("calls", int, ttl=TTL), state.windows)
    windows = [b""] * 9
    windows[5], windows[7] = TimeWindow(0, 10).to_bytes(), b"other"
    for number, key in enumerate(sorted(range(9), key=lambda key: key_group_of(key, 128))):
        state.clock.set(LAST_TIME if number == 8 else number)
        state.windows.current.key = (key, windows[number])
        calls.update(number)
    state.clock.set(0)
    tables = state.written(portion=Portion(rows=2))
    found = pq.read_table(tables / "keyed" / "calls.ttl.parquet")
    assert found.column_names == [
        *("key_group", "key", "window_start", "window_end", "namespace"),
        *("last_access", "last_access_ms", "value"),
    ]
    assert [found[name].null_count for name in found.column_names[2:7]] == [8, 8, 8, 1, 8]
    require_same_state(state, tables)


@pytest.mark.parametrize(
    ("spec", "value"),
    [
        (list[list[str]], [["a"], []]),
        (dict[str, dict[str, int | None]], {"a": {"b": None}}),
        (dict[str, tuple[date, timedelta, time]], {"a": (date(2026, 1, 1), timedelta(1), time(1))}),
        (list[int | str], ["a", 1]),
        (list[Any], [1, None, "a"]),
        (tuple[datetime, datetime], (datetime(2026, 1, 1), datetime(2026, 1, 1, tzinfo=UTC))),
        (tuple[float, None], (0.5, None)),
        (dict[Decimal, list[Decimal]], {Decimal("1.10"): [Decimal(1)]}),
        ("a decimal(5,2), b map<string, struct<c: time, d: void>>", (None, {"a": (time(1), None)})),
    ],
    ids=str,
)
def test_rows_are_copied_as_they_are_when_later_ones_need_more_columns(
    tmp_path: Path, spec: Any, value: Any
) -> None:
    state = State(tmp_path, now=NOW)
    values = state.register(MapStateDescriptor("m", int, spec, ttl=TTL), state.windows)
    keys = sorted(range(6), key=lambda key: key_group_of(key, 128))
    for number, key in enumerate(keys):
        window = TimeWindow(0, 10).to_bytes() if number > 3 else b""
        state.windows.current.key = (key, window)
        values.put(2**70 if number > 1 else number, value)
    tables = state.written(portion=Portion(rows=1))
    file = pq.ParquetFile(tables / "keyed" / "m.ttl.parquet")
    assert file.num_row_groups == 6
    found = file.read()
    assert found["map_key_encoded"].null_count == 2
    assert found["window_start"].null_count == 4
    assert found["value"].null_count == 0
    assert [path.name for path in (tables / "keyed").iterdir()] == ["m.ttl.parquet"]
    require_same_state(state, tables)
