"""Keyed state and timers as tables: what is in them, and that it comes back."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from holdfast.errors import StateError
from holdfast.serde.keys import key_group_of
from holdfast.state.snapshots import open_snapshot_of
from holdfast.state.store.directories import file_name
from holdfast.state.store.snapshot import CANONICAL
from holdfast.state.tables.files import TableFile
from holdfast.state.tables.reader import TablesSnapshot
from holdfast.state.tables.rows import Portion
from holdfast.state.tables.writer import write_tables
from holdfast.state.timers.layout import FIRST_TIME, LAST_TIME
from holdfast.state.timers.table import EVENT_TIMERS, PROCESSING_TIMERS
from holdfast.windows import GlobalWindow, TimeWindow
from tests.support.functions import Mean, plus
from tests.support.state_tables import State, require_same_state, restored_entries, rows

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NOW = 1_794_000_000_000
TTL = StateTtlConfig.new_builder(3_600_000).disable_cleanup_in_background().build()
BACKEND = pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
OTHER = {"hashmap": "rocksdb", "rocksdb": "hashmap"}


def moment(time: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=time)


@BACKEND
def test_a_value_is_a_row(tmp_path: Path, backend: str) -> None:
    state = State(tmp_path, backend)
    count = state.register(ValueStateDescriptor("count", int))
    total = state.register(ReducingStateDescriptor("total", plus, int))
    mean = state.register(AggregatingStateDescriptor("mean", Mean(), list[int]))
    for number, state.current.key in enumerate("ab"):
        count.update(number)
        total.add(number + 5)
        mean.add(number + 7)
    tables = state.written()
    keyed = sorted(rows(tables, "keyed/count"), key=lambda row: row["key"])
    assert keyed == [
        {"key_group": key_group_of(key, 128), "key": key, "value": number}
        for number, key in enumerate("ab")
    ]
    assert [row["value"] for row in rows(tables, "keyed/total")] in ([5, 6], [6, 5])
    assert [7, 1] in [row["value"] for row in rows(tables, "keyed/mean")]
    require_same_state(state, tables)


@BACKEND
def test_rows_lie_in_the_order_of_the_store_in_the_columns_that_they_need(
    tmp_path: Path, backend: str
) -> None:
    state = State(tmp_path, backend)
    count = state.register(ValueStateDescriptor("count", int))
    for state.current.key in range(300):
        count.update(1)
    found = pq.read_table(state.written() / "keyed" / "count.parquet")
    assert found.column_names == ["key_group", "key", "value"]
    assert found["key_group"].to_pylist() == sorted(found["key_group"].to_pylist())


@BACKEND
def test_an_element_of_a_list_is_a_row(tmp_path: Path, backend: str) -> None:
    state = State(tmp_path, backend)
    names = state.register(ListStateDescriptor("names", str))
    for state.current.key in (1, 2):
        names.add_all(["x", "y"])
        state.keyed.flush()
        names.add("z")
    tables = state.written()
    found = rows(tables, "keyed/names")
    assert [(row["key"], row["position"], row["value"]) for row in found[:3]] == [
        (found[0]["key"], 0, "x"),
        (found[0]["key"], 1, "y"),
        (found[0]["key"], 2, "z"),
    ]
    assert len(found) == 6
    require_same_state(state, tables)


@BACKEND
def test_an_entry_of_a_map_is_a_row(tmp_path: Path, backend: str) -> None:
    state = State(tmp_path, backend)
    scores = state.register(MapStateDescriptor("scores", str, float))
    state.current.key = "k"
    scores.put_all({"one": 1.5, "none": None})
    scores.put(None, 2.5)
    tables = state.written()
    found = rows(tables, "keyed/scores")
    assert [(row["map_key"], row["value"]) for row in found] == [
        (None, 2.5),
        ("one", 1.5),
        ("none", None),
    ]
    require_same_state(state, tables)


KEYS: dict[str, tuple[list[Any], Callable[[Any], Any]]] = {
    "bool": ([True, False], bool),
    "int": ([0, -1, 2**63 - 1], int),
    "float": ([0.0, -1.5, float("inf")], float),
    "str": (["", "ü", "long " * 120], str),
    "bytes": ([b"", b"\x00\xff"], bytes),
    "date": ([date(2026, 11, 15), date(1, 1, 1)], lambda key: key),
    "datetime": ([datetime(2026, 11, 15, 4, 30, 0, 123456, UTC)], lambda key: key),
    "datetime_ntz": ([datetime(1969, 12, 31, 23, 59, 59)], lambda key: key),
    "Decimal": ([Decimal("1.10"), Decimal("-3E+2")], lambda key: f"{key.normalize():f}"),
    "tuple": (
        [("a", 1), ("b", None), ("a", -1)],
        lambda key: {"_1": key[0], "_2": key[1]},
    ),
    "nulls": ([("a", None)], lambda key: {"_1": key[0], "_2": None}),
    "empty": ([()], lambda key: b""),
}


@BACKEND
@pytest.mark.parametrize("kind", KEYS)
def test_keys_are_in_a_column_of_their_type(tmp_path: Path, backend: str, kind: str) -> None:
    keys, shown = KEYS[kind]
    state = State(tmp_path, backend)
    value = state.register(ValueStateDescriptor("v", int))
    timers = state.keyed.timers(EVENT_TIMERS)
    for number, state.current.key in enumerate(keys):
        value.update(number)
        timers.register(number)
    tables = state.written()
    found = {row["value"]: row["key"] for row in rows(tables, "keyed/v")}
    assert [found[number] for number in range(len(keys))] == list(map(shown, keys))
    require_same_state(state, tables)


def test_a_nan_is_a_key_like_others(tmp_path: Path) -> None:
    state = State(tmp_path)
    state.current.key = float("nan")
    state.register(ValueStateDescriptor("v", int)).update(1)
    tables = state.written()
    (row,) = rows(tables, "keyed/v")
    assert row["key"] != row["key"]
    require_same_state(state, tables)


def test_keys_that_another_program_wrote_anew_are_canonical(tmp_path: Path) -> None:
    state = State(tmp_path)
    for state.current.key in (0.0, float("nan")):
        state.register(ValueStateDescriptor("v", int)).update(1)
    tables = state.written()
    with TablesSnapshot(tables) as opened:
        expected = list(opened.scan(b""))
    path = tables / "keyed" / "v.parquet"
    table = pq.read_table(path)
    other = {0.0: -0.0}
    keys = pa.array([other.get(key, -float("nan")) for key in table["key"].to_pylist()])
    pq.write_table(table.set_column(1, "key", keys), path)
    with TablesSnapshot(tables) as opened:
        assert list(opened.scan(b"")) == expected


@BACKEND
def test_windows_are_shown_by_their_bounds_and_others_by_their_bytes(
    tmp_path: Path, backend: str
) -> None:
    state = State(tmp_path, backend)
    calls = state.register(ValueStateDescriptor("calls", int), state.windows)
    alone = state.register(ValueStateDescriptor("calls", int))
    state.current.key = "k"
    alone.update(0)
    namespaces = [
        TimeWindow(NOW, NOW + 60_000).to_bytes(),
        TimeWindow(0, LAST_TIME).to_bytes(),
        GlobalWindow.get().to_bytes(),
    ]
    for number, namespace in enumerate(namespaces, 1):
        state.windows.current.key = ("k", namespace)
        calls.update(number)
    tables = state.written()
    found = {row.pop("value"): row for row in rows(tables, "keyed/calls")}
    shown = [
        tuple(found[n][name] for name in ("window_start", "window_end", "namespace"))
        for n in range(4)
    ]
    assert shown == [
        (None, None, None),
        (moment(NOW), moment(NOW + 60_000), None),
        (None, None, namespaces[1]),
        (None, None, namespaces[2]),
    ]
    require_same_state(state, tables)


@BACKEND
def test_a_state_with_a_time_to_live_shows_its_times(tmp_path: Path, backend: str) -> None:
    state = State(tmp_path, backend, now=NOW)
    value = state.register(ValueStateDescriptor("v", int, ttl=TTL))
    names = state.register(ListStateDescriptor("l", str, ttl=TTL))
    scores = state.register(MapStateDescriptor("m", str, int, ttl=TTL))
    state.current.key = "k"
    value.update(5)
    names.add("x")
    scores.put_all({"a": 1, "b": None})
    state.clock.set(NOW + 1)
    names.add("y")
    tables = state.written()
    (row,) = rows(tables, "keyed/v.ttl")
    assert (row["value"], row["last_access"]) == (5, moment(NOW))
    assert [row["last_access"] for row in rows(tables, "keyed/l.ttl")] == [
        moment(NOW),
        moment(NOW + 1),
    ]
    found = [(row["map_key"], row["value"]) for row in rows(tables, "keyed/m.ttl")]
    assert found == [("a", 1), ("b", None)]
    require_same_state(state, tables)


def test_times_that_are_unknown_or_far_away_come_back(tmp_path: Path) -> None:
    state = State(tmp_path)
    value = state.register(ValueStateDescriptor("v", int, ttl=TTL))
    for state.current.key, now in enumerate((FIRST_TIME, LAST_TIME, FIRST_TIME + 1, 0)):
        state.clock.set(now)
        value.update(5)
    state.clock.set(0)
    tables = state.written()
    found = {row["key"]: row for row in rows(tables, "keyed/v.ttl")}
    shown = [(found[n]["last_access"], found[n]["last_access_ms"]) for n in range(4)]
    assert shown == [
        (None, None),
        (None, LAST_TIME),
        (None, FIRST_TIME + 1),
        (moment(0), None),
    ]
    require_same_state(state, tables)


@BACKEND
def test_a_timer_is_a_row(tmp_path: Path, backend: str) -> None:
    state = State(tmp_path, backend)
    window = TimeWindow(NOW, NOW + 60_000).to_bytes()
    state.current.key = "k"
    state.keyed.timers(EVENT_TIMERS).register(NOW, window)
    for time in (FIRST_TIME, -1, NOW, LAST_TIME):
        state.keyed.timers(PROCESSING_TIMERS).register(time)
    tables = state.written()
    (row,) = rows(tables, "timers/event")
    assert (row["timestamp"], row["key"], row["window_start"]) == (moment(NOW), "k", moment(NOW))
    found = [(row["timestamp"], row["timestamp_ms"]) for row in rows(tables, "timers/processing")]
    assert found == [
        (None, FIRST_TIME),
        (moment(-1), None),
        (moment(NOW), None),
        (None, LAST_TIME),
    ]
    require_same_state(state, tables)


@BACKEND
def test_a_state_without_entries_has_a_table(tmp_path: Path, backend: str) -> None:
    state = State(tmp_path, backend)
    for descriptor in (
        ValueStateDescriptor("value", datetime),
        ListStateDescriptor("list", int),
        MapStateDescriptor("map", str, float),
        ValueStateDescriptor("timed", int, ttl=TTL),
    ):
        state.register(descriptor)
    state.keyed.timers(EVENT_TIMERS)
    tables = state.written()
    listed = pq.read_table(tables / "keyed_states.parquet").to_pylist()
    assert [(row["table"], row["name"], row["kind"], row["rows"]) for row in listed] == [
        ("without_keys/keyed/value", "value", "value", 0),
        ("without_keys/keyed/list", "list", "list", 0),
        ("without_keys/keyed/map", "map", "map", 0),
        ("without_keys/keyed/timed.ttl", "timed", "value", 0),
        ("without_keys/timers/event", "timers:event", "timers", 0),
    ]
    require_same_state(state, tables)


def test_an_operator_without_states_has_a_list_of_none(tmp_path: Path) -> None:
    state = State(tmp_path)
    with state.commit() as snapshot:
        assert list(map(str, write_tables(snapshot, tmp_path / "tables"))) == [
            "keyed_states.parquet"
        ]
    require_same_state(state, tmp_path / "tables")


def test_tables_say_all_that_the_store_knows_of_the_state(tmp_path: Path) -> None:
    state = State(tmp_path)
    state.current.key = "k"
    state.register(ValueStateDescriptor("Grüße/1", list[int])).update([1])
    tables = state.written()
    (path,) = (tables / "keyed").iterdir()
    about = msgspec.json.decode(pq.read_schema(path).metadata[b"holdfast"])
    schema = about["state"].pop("schema")
    assert about == {
        "format": 2,
        "store_format": 1,
        "version": "1-test",
        "max_parallelism": 128,
        "key": "str",
        "state": {"name": "Grüße/1", "id": 1, "kind": "value"},
    }
    assert schema == [{"format": 1, "kind": "msgpack", "type": {"list": "int"}}]


def test_fields_of_a_catalog_that_are_not_known_are_kept(tmp_path: Path) -> None:
    state = State(tmp_path)
    described = {"id": 9, "kind": "value", "schema": [{"kind": "new"}], "later": [1], "ttl": True}
    key = b"\x00\x00statex\x00ttl"
    state.keyed._store.write([(key, msgspec.json.encode(described))])
    tables = state.written()
    with TablesSnapshot(tables) as opened:
        assert msgspec.json.decode(dict(opened.scan(key))[key]) == described


def test_names_that_only_their_case_tells_apart_have_tables_of_their_own(tmp_path: Path) -> None:
    state = State(tmp_path)
    state.current.key = "k"
    for number, name in enumerate(["a", "A", "ä", "a.ttl", "timers/event", "../a", "x" * 300]):
        state.register(ValueStateDescriptor(name, int)).update(number)
    state.register(ValueStateDescriptor("a ", int, ttl=TTL)).update(9)
    tables = state.written()
    assert len({path.name.casefold() for path in (tables / "keyed").iterdir()}) == 8
    require_same_state(state, tables)


def test_words_with_spaces_stay_in_the_names_of_tables(tmp_path: Path) -> None:
    state = State(tmp_path)
    state.current.key = "k"
    for number, name in enumerate(["my state", "my_state", "my  state", "My state"]):
        state.register(ValueStateDescriptor(name, int)).update(number)
    state.register(ValueStateDescriptor("my state too", int, ttl=TTL)).update(9)
    tables = state.written()
    assert [row["value"] for row in rows(tables, "keyed/my state")] == [0]
    assert [row["value"] for row in rows(tables, "keyed/my state too.ttl")] == [9]
    assert len({path.name.casefold() for path in (tables / "keyed").iterdir()}) == 5
    require_same_state(state, tables)


def test_tables_are_found_under_the_names_that_earlier_releases_gave_them(tmp_path: Path) -> None:
    state = State(tmp_path)
    state.current.key = "k"
    state.register(ValueStateDescriptor("my state", int)).update(7)
    tables = state.written()
    before = file_name("my state")
    (tables / "keyed" / "my state.parquet").rename(tables / "keyed" / f"{before}.parquet")
    index = pq.read_table(tables / "keyed_states.parquet")
    listed = index.set_column(0, "table", pa.array([f"keyed/{before}"]))
    pq.write_table(listed, tables / "keyed_states.parquet")
    require_same_state(state, tables)


@BACKEND
def test_large_states_are_written_and_read_in_parts(tmp_path: Path, backend: str) -> None:
    state = State(tmp_path, backend)
    names = state.register(ListStateDescriptor("names", str))
    count = state.register(ValueStateDescriptor("count", int))
    for state.current.key in range(30):
        names.add_all(map(str, range(state.current.key)))
        count.update(state.current.key)
    state.current.key = 4
    state.keyed.flush()
    names.add_all(["more"] * 20)
    tables = state.written(portion=Portion(rows=7))
    file = pq.ParquetFile(tables / "keyed" / "names.parquet")
    sizes = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
    assert max(sizes) == 7
    assert sum(sizes) == sum(range(30)) + 20
    require_same_state(state, tables)


def test_parts_are_bounded_in_bytes_too(tmp_path: Path) -> None:
    state = State(tmp_path)
    names = state.register(ListStateDescriptor("names", str))
    long = state.register(ValueStateDescriptor("long", str))
    for state.current.key in range(5):
        names.add_all(["x" * 400] * 20)
        long.update("y" * 700)
    tables = state.written(portion=Portion(bytes=1000))
    for table, least in (("names", 30), ("long", 3)):
        assert pq.ParquetFile(tables / "keyed" / f"{table}.parquet").num_row_groups >= least
    require_same_state(state, tables)


def test_only_wanted_key_groups_are_written(tmp_path: Path) -> None:
    state = State(tmp_path)
    value = state.register(ValueStateDescriptor("v", int))
    for state.current.key in range(100):
        value.update(1)
    tables = state.written(key_groups=range(10, 20))
    groups = {row["key_group"] for row in rows(tables, "keyed/v")}
    assert groups == {key_group_of(key, 128) for key in range(100)} & set(range(10, 20))
    with state.snapshot() as snapshot:
        write_tables(snapshot, tmp_path / "none", key_groups=range(0))
    assert rows(tmp_path / "none", "keyed/v") == []


def test_only_row_groups_with_wanted_key_groups_are_read(tmp_path: Path) -> None:
    state = State(tmp_path)
    value = state.register(ValueStateDescriptor("v", int))
    for state.current.key in range(200):
        value.update(1)
    tables = state.written(portion=Portion(rows=10))
    with TableFile(tables / "keyed" / "v.parquet") as file:
        assert sum(1 for _ in file.parts()) == 20
        assert sum(1 for _ in file.parts(range(60, 64))) <= 2
    with TablesSnapshot(tables) as opened:
        start, stop = b"\x00\x01\x00\x3c", b"\x00\x01\x00\x40"
        found = [key for key, _ in opened.scan(b"\x00\x01", start, stop)]
        assert found == [key for key, _ in opened.scan(b"\x00\x01") if start <= key < stop]
        assert len(found) == sum(key_group_of(key, 128) in range(60, 64) for key in range(200))


def test_scans_of_tables_are_bounded_by_prefix_start_and_stop(tmp_path: Path) -> None:
    state = State(tmp_path, max_parallelism=4)
    value = state.register(ValueStateDescriptor("v", int))
    names = state.register(ListStateDescriptor("l", int))
    for state.current.key in range(12):
        value.update(1)
        names.add_all(range(5))
    with TablesSnapshot(state.written(portion=Portion(rows=3))) as opened:
        everything = [key for key, _ in opened.scan(b"")]
        some = [*everything[::9], *(key[:n] for key in everything[::11] for n in range(3, 6))]
        bounds = [b"", b"\x00", b"\x00\x00", b"\x00\x01\x00\x03", b"\xff", *some]
        for prefix in bounds[::4]:
            for start in bounds[::3]:
                for stop in (None, *bounds[1::3]):
                    expected = [
                        key
                        for key in everything
                        if key.startswith(prefix) and key >= start and (stop is None or key < stop)
                    ]
                    found = [key for key, _ in opened.scan(prefix, start, stop)]
                    assert found == expected, (prefix, start, stop)


@BACKEND
def test_what_is_appended_to_a_restored_list_comes_last(tmp_path: Path, backend: str) -> None:
    state = State(tmp_path / "old", backend)
    names = state.register(ListStateDescriptor("names", int))
    state.current.key = "k"
    names.add_all([1, 2])
    state.keyed.flush()
    names.add_all([3, 4])
    tables = state.written()
    (tmp_path / "new").mkdir()
    restored_entries(backend, [tables], tmp_path / "new", parallelism=1, max_parallelism=128)
    again = State(tmp_path, backend, store=tmp_path / "new" / "store-0", version="again")
    names = again.register(ListStateDescriptor("names", int))
    again.current.key = "k"
    names.add(5)
    assert names.get() == [1, 2, 3, 4, 5]
    again.keyed.abort()


@BACKEND
def test_a_state_whose_type_has_changed_comes_back(tmp_path: Path, backend: str) -> None:
    state = State(tmp_path / "first", backend)
    first, other = ValueStateDescriptor("v", int), ListStateDescriptor("l", int)
    for state.current.key in range(4):
        state.register(first).update(state.current.key)
        state.register(other).add(1)
    state.keyed.commit("1-test")
    store = tmp_path / "first" / "store"
    state = State(tmp_path, backend, epoch=2, store=store, version="1-test")
    value: Any = ValueStateDescriptor("v", int | str)
    names: Any = ListStateDescriptor("l", int | None)
    for state.current.key in (0, 1):
        state.register(value).update("new")
        state.register(names).add(2)
    tables = state.written()
    found = {row["key"]: row for row in rows(tables, "keyed/v")}
    assert [found[key]["value"] for key in range(4)] == [{"int": None, "str": "new"}] * 2 + [
        None
    ] * 2
    assert found[3]["encoded"] == b"\x03"
    listed = [(row["value"], row["encoded"]) for row in rows(tables, "keyed/l")]
    assert Counter(listed) == {(None, b"\x01"): 4, (2, None): 2}
    for other_backend in OTHER:
        root = tmp_path / other_backend
        restored_entries(other_backend, [tables], root, parallelism=1, max_parallelism=128)
        again = State(root, other_backend, epoch=3, store=root / "store-0", version="again")
        for again.current.key in range(4):
            read = again.register(value).value()
            assert read == ("new" if again.current.key < 2 else again.current.key)
            assert again.register(names).get() == ([1, 2] if again.current.key < 2 else [1])
        again.keyed.abort()


def test_a_snapshot_of_tables_is_opened_by_its_kind_and_closed_at_any_time(tmp_path: Path) -> None:
    state = State(tmp_path)
    value = state.register(ValueStateDescriptor("v", int))
    for state.current.key in range(100):
        value.update(1)
    opened = open_snapshot_of(CANONICAL, state.written())
    half_read = opened.scan(b"")
    next(half_read)
    opened.close()
    opened.close()


def test_tables_are_never_written_over_others_and_appear_whole(tmp_path: Path) -> None:
    state = State(tmp_path)
    tables = state.written()
    with state.snapshot() as snapshot, pytest.raises(StateError, match="exists already"):
        write_tables(snapshot, tables)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["snapshot", "store", "tables"]


@pytest.mark.parametrize(
    ("key", "data"),
    [
        (5, b"\x02ab"),
        (0.5, b"\x08" + bytes(7) + b"\x80"),
        ("a", b"\x01\xff"),
        (("a", 1), b"\x05\x01\x01a\x00\x00"),
        (("a", 1), b"\x03\x01\x05a"),
    ],
    ids=str,
)
def test_a_snapshot_with_bytes_of_no_key_is_refused_and_leaves_nothing(
    tmp_path: Path, key: Any, data: bytes
) -> None:
    state = State(tmp_path)
    state.current.key = key
    state.register(ValueStateDescriptor("v", int)).update(1)
    state.keyed._store.write([(b"\x00\x01\x00\x00" + data + b"\x00", b"\x01")])
    with state.commit() as snapshot, pytest.raises(StateError, match="are of no key of the type"):
        write_tables(snapshot, tmp_path / "tables")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["snapshot", "store"]
