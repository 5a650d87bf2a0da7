"""Operator state and raw state as tables."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast import HashMapStateBackend, ListStateDescriptor, MapStateDescriptor
from holdfast.errors import StateError
from holdfast.state.operator.backend import OperatorStateBackend
from holdfast.state.operator.redistribution import OperatorStateSnapshot
from holdfast.state.store.opening import open_store
from holdfast.state.tables.operator import read_operator_tables, write_operator_tables
from holdfast.state.tables.rows import Portion
from tests.support.state_tables import rows

if TYPE_CHECKING:
    from pathlib import Path


def exported(tmp_path: Path) -> OperatorStateSnapshot:
    """State of all kinds."""
    store = open_store(HashMapStateBackend(), tmp_path / "store", None)
    backend = OperatorStateBackend(store)
    backend.get_list_state(ListStateDescriptor("offsets", int)).add_all([300, 2**70, -1])
    union = backend.get_union_list_state(ListStateDescriptor("union", dict[str, date]))
    union.add({"a": date(2026, 11, 15)})
    rules = backend.get_broadcast_state(MapStateDescriptor("Rules", str, tuple[int, str]))
    rules.put_all({"one": (1, "a"), "none": None})
    rules.put(None, (0, ""))
    backend.get_list_state(ListStateDescriptor("a", bytes))
    backend.get_list_state(ListStateDescriptor("untyped")).add(("any", 1))
    backend.set_raw_partitions([b"first", b"", b"\x00\xff"])
    backend.set_raw_key_groups({127: b"last", 0: b"zero"})
    found = backend.export()
    assert found is not None
    store.abort()
    return found


def test_operator_state_comes_back_in_its_order(tmp_path: Path) -> None:
    state = exported(tmp_path)
    written = write_operator_tables(state, tmp_path / "tables", subtask=0)
    assert all((tmp_path / "tables" / path).is_file() for path in written)
    assert len(written) == 8
    found = read_operator_tables(tmp_path / "tables")
    assert found == state
    assert [one.name for one in found.states] == ["offsets", "union", "Rules", "a", "untyped"]


def test_elements_and_entries_are_rows(tmp_path: Path) -> None:
    write_operator_tables(exported(tmp_path), tmp_path / "tables", subtask=3)
    tables = tmp_path / "tables"
    found = rows(tables, "operator/offsets")
    assert [(row["position"], row["value"]) for row in found] == [(0, 300), (1, None), (2, -1)]
    assert found[1]["encoded"][:1] == b"\xc1"
    assert rows(tables, "operator/union")[0]["value"] == [("a", date(2026, 11, 15))]
    (name,) = [path.stem for path in (tables / "operator").iterdir() if "Rules" in path.name]
    assert {row["map_key"]: row["value"] for row in rows(tables, f"operator/{name}")} == {
        "one": {"_1": 1, "_2": "a"},
        "none": None,
        None: {"_1": 0, "_2": ""},
    }
    assert [row["data"] for row in rows(tables, "raw/partitions")] == [b"first", b"", b"\x00\xff"]
    assert rows(tables, "raw/key_groups") == [
        {"subtask": 3, "key_group": 0, "data": b"zero"},
        {"subtask": 3, "key_group": 127, "data": b"last"},
    ]


def test_every_row_has_its_subtask_and_the_columns_that_a_row_needs(tmp_path: Path) -> None:
    written = write_operator_tables(exported(tmp_path), tmp_path / "tables", subtask=7)
    columns = {}
    for path in written[:-1]:
        found = pq.read_table(tmp_path / "tables" / path)
        assert found["subtask"].type == pa.int32()
        assert set(found["subtask"].to_pylist()) <= {7}
        columns[path.stem.partition("~")[0]] = found.column_names
    assert columns == {
        "offsets": ["subtask", "position", "value", "encoded"],
        "union": ["subtask", "position", "value"],
        "Rules": ["subtask", "map_key", "value"],
        "a": ["subtask", "position", "value"],
        "untyped": ["subtask", "position", "value"],
        "partitions": ["subtask", "position", "data"],
        "key_groups": ["subtask", "key_group", "data"],
    }


def test_tables_are_read_without_the_number_of_the_subtask(tmp_path: Path) -> None:
    state = exported(tmp_path)
    tables = tmp_path / "tables"
    for path in write_operator_tables(state, tables, subtask=7)[:-1]:
        table = pq.read_table(tables / path)
        pq.write_table(table.drop_columns(["subtask"]), tables / path)
    assert read_operator_tables(tables) == state


def test_decimals_of_lists_and_broadcast_maps_are_numbers_and_exact(tmp_path: Path) -> None:
    store = open_store(HashMapStateBackend(), tmp_path / "store", None)
    backend = OperatorStateBackend(store)
    texts = ["1.10", "1.1", "NaN", "-0", "1E+2", "0.001"]
    prices = list(map(Decimal, texts))
    backend.get_list_state(ListStateDescriptor("all prices", Decimal)).add_all(prices)
    rates = backend.get_broadcast_state(MapStateDescriptor("rates", Decimal, Decimal))
    rates.put_all({one: one for one in prices if one.is_finite()})
    state = backend.export()
    store.abort()
    assert state is not None
    tables = tmp_path / "tables"
    write_operator_tables(state, tables, subtask=0, portion=Portion(rows=2))
    found = pq.read_table(tables / "operator" / "all prices.parquet")
    assert found.schema.field("value").type == pa.decimal128(38, 18)
    assert found["value"].to_pylist() == [*prices[:2], None, *prices[3:]]
    assert found["encoded"].is_valid().to_pylist() == [True, False, True, True, True, False]
    found = pq.read_table(tables / "operator" / "rates.parquet")
    assert set(found.column_names) == {"subtask", "map_key", "map_key_encoded", "value", "encoded"}
    assert read_operator_tables(tables) == state


def test_a_table_lists_the_others(tmp_path: Path) -> None:
    write_operator_tables(exported(tmp_path), tmp_path / "tables", subtask=0)
    listed = pq.read_table(tmp_path / "tables" / "operator_states.parquet").to_pylist()
    assert [(row["kind"], row["rows"]) for row in listed] == [
        ("split", 3),
        ("union", 1),
        ("broadcast", 3),
        ("split", 0),
        ("split", 1),
        ("partitions", 3),
        ("key groups", 2),
    ]


def test_large_lists_are_written_in_parts(tmp_path: Path) -> None:
    state = exported(tmp_path)
    write_operator_tables(state, tmp_path / "tables", subtask=0, portion=Portion(rows=2))
    path = tmp_path / "tables" / "operator" / "offsets.parquet"
    assert pq.ParquetFile(path).num_row_groups == 2
    assert [row["position"] for row in rows(tmp_path / "tables", "operator/offsets")] == [0, 1, 2]
    assert read_operator_tables(tmp_path / "tables") == state


def test_no_state_at_all_comes_back(tmp_path: Path) -> None:
    write_operator_tables(OperatorStateSnapshot(), tmp_path / "tables", subtask=0)
    assert read_operator_tables(tmp_path / "tables") == OperatorStateSnapshot()


def test_tables_that_are_missing_or_short_are_refused(tmp_path: Path) -> None:
    write_operator_tables(exported(tmp_path), tmp_path / "tables", subtask=0)
    path = tmp_path / "tables" / "operator" / "offsets.parquet"
    table = pq.read_table(path)
    pq.write_table(table.slice(1), path)
    with pytest.raises(StateError, match=r"has 2 rows, and operator_states\.parquet lists 3"):
        read_operator_tables(tmp_path / "tables")
    for column in ("value", "encoded"):
        pq.write_table(table.drop_columns([column]), path)
        with pytest.raises(StateError, match="does not have what belongs to it"):
            read_operator_tables(tmp_path / "tables")
    pq.write_table(table, path)
    path = tmp_path / "tables" / "raw" / "partitions.parquet"
    pq.write_table(pq.read_table(path).drop_columns(["position"]), path)
    with pytest.raises(StateError, match="does not have what belongs to it"):
        read_operator_tables(tmp_path / "tables")
    path.unlink()
    with pytest.raises(StateError, match="is not there"):
        read_operator_tables(tmp_path / "tables")
