"""The tables of savepoints, format 2.

`savepoint_tables_v2` holds the tables that a small program leaves behind, and the entries of
stores that they stand for. It never changes, like that of format 1.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast import (
    HashMapStateBackend,
    ListStateDescriptor,
    MapStateDescriptor,
    ValueStateDescriptor,
)
from holdfast.state.operator.backend import OperatorStateBackend
from holdfast.state.store.opening import open_store
from holdfast.state.tables.operator import read_operator_tables, write_operator_tables
from holdfast.state.tables.reader import TablesSnapshot
from tests.formats import test_savepoint_tables as first
from tests.formats.test_operator_state_format import run_program as run_operator_program
from tests.support.state_tables import State, kept_entries, restored_entries

if TYPE_CHECKING:
    from holdfast.state.operator.redistribution import OperatorStateSnapshot

GOLDEN = Path(__file__).parent / "savepoint_tables_v2"
EXPECTED = json.loads((GOLDEN / "entries.json").read_text())
FILES = sorted(str(path.relative_to(GOLDEN)) for path in GOLDEN.rglob("*.parquet"))
SUBTASK = 3
PRICES = list(map(Decimal, ("1.10", "2.20", "-0.00", "3", "1E+3", "0.125", "1E-20", "NaN")))
RATES = {price: price for price in PRICES[:5]}
NESTED = ([Decimal("1.5"), None], {"a": Decimal("2.50")}, 7, datetime(2026, 1, 1, tzinfo=UTC))
ZONED = datetime(2026, 11, 15, 12, tzinfo=ZoneInfo("Europe/Berlin"))
MEAN = Decimal(10) / 3
SHOWN = {
    "all prices": pa.decimal128(38, 18),
    "mean of all": pa.decimal128(38, 28),
    "no rows yet": pa.list_(pa.field("element", pa.decimal128(38, 18))),
    "paid": pa.struct([("a", pa.decimal128(7, 2))]),
}


class Handles:
    """The states that format 2 shows in another way than format 1."""

    def __init__(self, state: State) -> None:
        def register(descriptor: Any) -> Any:
            return state.register(descriptor)

        self.prices = register(ListStateDescriptor("all prices", Decimal))
        self.rates = register(MapStateDescriptor("rates by price", Decimal, Decimal))
        self.mean = register(ValueStateDescriptor("mean of all", Decimal))
        self.seen = register(ValueStateDescriptor("seen", datetime))
        self.nested = register(
            ValueStateDescriptor(
                "nested",
                tuple[
                    list[Decimal | None], dict[str, Decimal], int | Decimal | bool, datetime | None
                ],
            )
        )
        self.paid = register(ValueStateDescriptor("paid", "a decimal(7,2)"))
        self.later = register(MapStateDescriptor("no rows yet", str, list[Decimal]))


def run_program(state: State) -> None:
    """What the golden tables were made of."""
    first.run_program(state)
    at = Handles(state)
    for number, state.current.key in enumerate(first.KEYS):
        at.prices.add_all(PRICES)
        at.rates.put_all(RATES)
        at.rates.put(None, None)
        at.mean.update(MEAN * (number + 1))
        at.seen.update(ZONED.astimezone(UTC) if number else ZONED)
        at.nested.update(NESTED if number else (*NESTED[:2], Decimal("0.5"), ZONED))
        at.paid.update((Decimal("1.1" if number else "1.10"),))


def check_program(state: State) -> None:
    """The states hold what the program left in them, to the last digit."""
    at = Handles(state)
    for number, state.current.key in enumerate(first.KEYS):
        assert list(map(str, at.prices.get())) == list(map(str, PRICES))
        rates = {str(key): str(value) for key, value in at.rates.items()}
        assert rates == {str(price): str(price) for price in RATES} | {"None": "None"}
        assert at.mean.value() == MEAN * (number + 1)
        assert repr(at.seen.value()) == repr(ZONED.astimezone(UTC) if number else ZONED)
        expected = NESTED if number else (*NESTED[:2], Decimal("0.5"), ZONED)
        assert str(at.nested.value()) == str(expected)
        assert str(at.paid.value()[0]) == ("1.1" if number else "1.10")
        assert at.later.is_empty()
    first.check_program(state)


def operator_state(directory: Path) -> OperatorStateSnapshot:
    """That of the golden file of operator state, and decimals."""
    store = open_store(HashMapStateBackend(), directory, None)
    backend = OperatorStateBackend(store)
    run_operator_program(backend)
    backend.get_list_state(ListStateDescriptor("all prices", Decimal)).add_all(PRICES)
    backend.get_broadcast_state(MapStateDescriptor("rates", Decimal, Decimal)).put_all(RATES)
    exported = backend.export()
    store.abort()
    assert exported is not None
    return exported


def write_program(root: Path, backend: str) -> Path:
    """Directory of all tables that the program leaves behind today."""
    state = State(root / "run", backend)
    run_program(state)
    tables = state.written()
    with state.snapshot() as snapshot, TablesSnapshot(tables) as opened:
        assert kept_entries(opened) == kept_entries(snapshot)
    write_operator_tables(operator_state(root / "own"), tables / "own", subtask=SUBTASK)
    return tables


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
def test_tables_of_format_2_are_still_written(backend: str, tmp_path: Path) -> None:
    tables = write_program(tmp_path, backend)
    assert sorted(str(path.relative_to(tables)) for path in tables.rglob("*.parquet")) == FILES
    for name in FILES:
        found, golden = pq.read_table(tables / name), pq.read_table(GOLDEN / name)
        assert found.schema.equals(golden.schema, check_metadata=True), name
        # Compared as text, since a NaN equals nothing.
        assert str(found.to_pylist()) == str(golden.to_pylist()), name


def test_tables_of_format_2_hold_the_entries_they_stand_for() -> None:
    with TablesSnapshot(GOLDEN) as opened:
        found = [[key.hex(), value.hex()] for key, value in opened.scan(b"")]
        assert opened.version == "1-test"
    assert found == EXPECTED["keyed"]


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
def test_tables_of_format_2_are_restored(backend: str, tmp_path: Path) -> None:
    restored_entries(backend, [GOLDEN], tmp_path, parallelism=1, max_parallelism=128)
    state = State(tmp_path, backend, now=first.NOW, store=tmp_path / "store-0", version="again")
    check_program(state)
    state.keyed.abort()


def test_operator_state_of_format_2_is_read(tmp_path: Path) -> None:
    found = read_operator_tables(GOLDEN / "own")
    assert found.encode().hex() == EXPECTED["operator"]
    assert found == operator_state(tmp_path)


def test_the_entries_of_format_1_are_in_format_2_too() -> None:
    known = dict(EXPECTED["keyed"])
    assert first.EXPECTED["keyed"]
    assert {key: known.get(key) for key, _ in first.EXPECTED["keyed"]} == dict(
        first.EXPECTED["keyed"]
    )


def test_the_golden_tables_are_all_there_in_their_format() -> None:
    assert {path.split("/")[0] for path in FILES} == {
        *("keyed", "keyed_states.parquet", "own", "timers"),
    }
    assert len(FILES) == 33
    schemas = {name: pq.read_schema(GOLDEN / name) for name in FILES}
    formats = {msgspec.json.decode(one.metadata[b"holdfast"])["format"] for one in schemas.values()}
    assert formats == {2}
    types = {name: schemas[f"keyed/{name}.parquet"].field("value").type for name in SHOWN}
    assert types == SHOWN
