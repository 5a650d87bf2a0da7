"""The tables of savepoints, format 1.

`savepoint_tables_v1` holds the tables that a small program leaves behind, and the entries of
stores that they stand for. It never changes: a new format gets a new number and a directory of
its own, and this one stays, to show that tables of format 1 are still read. Only tables of
format 2 are written now (`test_savepoint_tables_2.py`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from holdfast import (
    AggregatingStateDescriptor,
    HashMapStateBackend,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from holdfast.serde.factory import codec_for
from holdfast.serde.tagged import either, timestamped
from holdfast.state.operator.backend import OperatorStateBackend
from holdfast.state.store.opening import open_store
from holdfast.state.tables.operator import read_operator_tables
from holdfast.state.tables.reader import TablesSnapshot
from holdfast.state.timers.table import EVENT_TIMERS, PROCESSING_TIMERS
from holdfast.windows import GlobalWindow, TimeWindow
from tests.formats.test_operator_state_format import run_program as run_operator_program
from tests.support.functions import Mean, plus
from tests.support.state_tables import State, restored_entries

if TYPE_CHECKING:
    from holdfast.api.state import State as Handle
    from holdfast.state.operator.redistribution import OperatorStateSnapshot

GOLDEN = Path(__file__).parent / "savepoint_tables_v1"
EXPECTED = json.loads((GOLDEN / "entries.json").read_text())
FILES = sorted(str(path.relative_to(GOLDEN)) for path in GOLDEN.rglob("*.parquet"))
NOW = 1_794_000_000_000
TTL = StateTtlConfig.new_builder(3_600_000).disable_cleanup_in_background().build()
WINDOW = TimeWindow(NOW, NOW + 60_000).to_bytes()
KEYS = [("de", 1), ("fr", None)]


@dataclass
class Line:
    item: str
    price: Decimal
    tags: frozenset[str]


class Pair(NamedTuple):
    left: int
    right: datetime | None


@dataclass
class Order:
    number: int
    lines: list[Line]
    pairs: dict[str, Pair]
    due: date | None = None
    paid: int | str = 0


ORDER = Order(
    7,
    [Line("tea", Decimal("1.10"), frozenset({"a"})), Line("ü", Decimal("-2"), frozenset())],
    {"x": Pair(1, datetime(2026, 11, 15, 12, tzinfo=UTC)), "": Pair(-1, None)},
    date(2026, 11, 15),
    "cash",
)


class Handles:
    """The states of the program, all registered in one order."""

    def __init__(self, state: State) -> None:
        def register(descriptor: Any, *scope: Any) -> Any:
            handle: Handle = state.register(descriptor, *scope)
            return handle

        self.order = register(ValueStateDescriptor("order", Order))
        self.big = register(ValueStateDescriptor("Big", int))
        self.names = register(ListStateDescriptor("names", str))
        self.scores = register(MapStateDescriptor("scores", str, float))
        self.sum = register(ReducingStateDescriptor("sum", plus, int))
        self.mean = register(AggregatingStateDescriptor("mean", Mean(), list[int]))
        self.row = register(
            ValueStateDescriptor("row", "a bigint, b array<string>, c decimal(5,2)")
        )
        self.untyped = register(ValueStateDescriptor("untyped"))
        self.fresh = register(ValueStateDescriptor("fresh", int, ttl=TTL))
        self.fresh_names = register(ListStateDescriptor("fresh-names", str, ttl=TTL))
        self.fresh_scores = register(MapStateDescriptor("fresh-scores", str, float, ttl=TTL))
        self.calls = register(ValueStateDescriptor("calls", int), state.windows)
        both = timestamped(either(codec_for(int), codec_for(str)))
        self.held = register(ListStateDescriptor("held", both), state.windows)
        register(ValueStateDescriptor("empty", list[datetime]))


def run_program(state: State) -> None:
    """What the golden tables were made of."""
    at = Handles(state)
    events, clock = state.keyed.timers(EVENT_TIMERS), state.keyed.timers(PROCESSING_TIMERS)
    for number, state.current.key in enumerate(KEYS):
        at.order.update(ORDER)
        at.big.update(2**70 if number else 7)
        at.names.add_all(["x", "y"])
        state.keyed.flush()
        at.names.add("z")
        at.scores.put_all({"one": 1.5, "none": None})
        at.scores.put(None, -0.0)
        at.sum.add(number)
        at.mean.add(number)
        at.row.update((number, ["p", None], Decimal("1.10")))
        at.untyped.update(("any", number))
        for now in (NOW, 2**63 - 1) if number else (-(2**63), NOW):
            state.clock.set(now)
            at.fresh.update(number)
            at.fresh_names.add(str(number))
            at.fresh_scores.put_all({str(now): 0.5, "none": None})
        for namespace in (WINDOW, GlobalWindow.get().to_bytes()):
            state.windows.current.key = (state.current.key, namespace)
            at.calls.update(number)
            at.held.add_all([((0, 5), NOW), ((1, "a"), None), ((0, 2**64), 1)])
            events.register(NOW + number, namespace)
        clock.register(NOW)
        clock.register(2**63 - 1)
    state.clock.set(NOW)


def check_program(state: State) -> None:
    """The states hold what the program left in them."""
    at = Handles(state)
    for number, state.current.key in enumerate(KEYS):
        assert at.order.value() == ORDER
        assert at.big.value() == (2**70 if number else 7)
        assert at.names.get() == ["x", "y", "z"]
        assert dict(at.scores.items()) == {"one": 1.5, "none": None, None: 0.0}
        assert at.sum.get() == number
        assert at.mean.get() == number
        assert at.row.value() == (number, ["p", None], Decimal("1.10"))
        assert at.untyped.value() == ("any", number)
        assert at.fresh.value() == number
        assert at.fresh_names.get() == [str(number)] * 2
        assert len(dict(at.fresh_scores.items())) == 3
        for namespace in (WINDOW, GlobalWindow.get().to_bytes()):
            state.windows.current.key = (state.current.key, namespace)
            assert at.calls.value() == number
            assert at.held.get() == [((0, 5), NOW), ((1, "a"), None), ((0, 2**64), 1)]
    fired = [timer.time for timer in state.keyed.timers(EVENT_TIMERS).due(2**63 - 1)]
    assert fired == [NOW, NOW, NOW + 1, NOW + 1]
    fired = [timer.time for timer in state.keyed.timers(PROCESSING_TIMERS).due(2**63 - 1)]
    assert fired == [NOW, NOW, 2**63 - 1, 2**63 - 1]


def operator_state(directory: Path) -> OperatorStateSnapshot:
    """That of the golden file of operator state."""
    store = open_store(HashMapStateBackend(), directory, None)
    backend = OperatorStateBackend(store)
    run_operator_program(backend)
    exported = backend.export()
    store.abort()
    assert exported is not None
    return exported


def test_tables_of_format_1_hold_the_entries_they_stand_for() -> None:
    with TablesSnapshot(GOLDEN) as opened:
        found = [[key.hex(), value.hex()] for key, value in opened.scan(b"")]
        assert opened.version == "1-test"
    assert found == EXPECTED["keyed"]


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
def test_tables_of_format_1_are_restored(backend: str, tmp_path: Path) -> None:
    restored_entries(backend, [GOLDEN], tmp_path, parallelism=1, max_parallelism=128)
    state = State(tmp_path, backend, now=NOW, store=tmp_path / "store-0", version="again")
    check_program(state)
    state.keyed.abort()


def test_operator_state_of_format_1_is_read(tmp_path: Path) -> None:
    found = read_operator_tables(GOLDEN / "own")
    assert found.encode().hex() == EXPECTED["operator"]
    assert found == operator_state(tmp_path)


def test_the_golden_tables_are_all_there() -> None:
    assert {path.split("/")[0] for path in FILES} == {
        *("keyed", "keyed_states.parquet", "own", "timers"),
    }
    assert len(FILES) == 24
