"""Operator state and raw state as tables."""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING

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
    written = write_operator_tables(state, tmp_path / "tables")
    assert all((tmp_path / "tables" / path).is_file() for path in written)
    assert len(written) == 8
    found = read_operator_tables(tmp_path / "tables")
    assert found == state
    assert [one.name for one in found.states] == ["offsets", "union", "Rules", "a", "untyped"]


def test_elements_and_entries_are_rows(tmp_path: Path) -> None:
    write_operator_tables(exported(tmp_path), tmp_path / "tables")
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
        {"key_group": 0, "data": b"zero"},
        {"key_group": 127, "data": b"last"},
    ]


def test_a_table_lists_the_others(tmp_path: Path) -> None:
    write_operator_tables(exported(tmp_path), tmp_path / "tables")
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
    write_operator_tables(state, tmp_path / "tables", portion=Portion(rows=2))
    path = tmp_path / "tables" / "operator" / "offsets.parquet"
    assert pq.ParquetFile(path).num_row_groups == 2
    assert [row["position"] for row in rows(tmp_path / "tables", "operator/offsets")] == [0, 1, 2]
    assert read_operator_tables(tmp_path / "tables") == state


def test_no_state_at_all_comes_back(tmp_path: Path) -> None:
    write_operator_tables(OperatorStateSnapshot(), tmp_path / "tables")
    assert read_operator_tables(tmp_path / "tables") == OperatorStateSnapshot()


def test_tables_that_are_missing_or_short_are_refused(tmp_path: Path) -> None:
    write_operator_tables(exported(tmp_path), tmp_path / "tables")
    path = tmp_path / "tables" / "operator" / "offsets.parquet"
    table = pq.read_table(path)
    pq.write_table(table.slice(1), path)
    with pytest.raises(StateError, match=r"has 2 rows, and operator_states\.parquet lists 3"):
        read_operator_tables(tmp_path / "tables")
    pq.write_table(table.drop_columns(["value"]), path)
    with pytest.raises(StateError, match="does not have what belongs to it"):
        read_operator_tables(tmp_path / "tables")
    path.unlink()
    with pytest.raises(StateError, match="is not there"):
        read_operator_tables(tmp_path / "tables")
