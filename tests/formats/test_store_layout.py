"""The layout of the local store, byte for byte.

`store_layout_v1.json` holds every entry that a small program leaves behind, for keys of
every type. It never changes: a new layout gets a new version and a file of its own, and
this one stays, to show that stores of version 1 are still read.
"""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from holdfast import (
    AggregatingStateDescriptor,
    EmbeddedRocksDBStateBackend,
    HashMapStateBackend,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from holdfast.serde.keys import key_bytes, key_group_of
from holdfast.state.backend import KeyedStateBackend
from holdfast.state.store.opening import open_store
from holdfast.state.table import CurrentKey
from tests.support.functions import Mean, plus

if TYPE_CHECKING:
    from holdfast.config.backends import StateBackend

GOLDEN = json.loads((Path(__file__).parent / "store_layout_v1.json").read_text())
MAX_PARALLELISM = 128
KEYS: dict[str, list[Any]] = {
    "bool": [True, False],
    "int": [0, -1, 2**63 - 1],
    "float": [0.0, -1.5, float("nan"), float("inf")],
    "str": ["", "a", "ü", "long " * 120],
    "bytes": [b"", b"\x00\xff"],
    "date": [date(2026, 11, 15), date(1969, 12, 31)],
    "datetime": [datetime(2026, 11, 15, 4, 30, 0, 123456, UTC)],
    "datetime_ntz": [datetime(1969, 12, 31, 23, 59, 59)],
    "Decimal": [Decimal("1.10"), Decimal("-3E+2")],
    "tuple": [("a", 1), ("a", None), (None, None)],
}
VALUE = ValueStateDescriptor("value", int)
MUTABLE = ValueStateDescriptor("mutable", list[str])
LIST = ListStateDescriptor("list", int)
MAP = MapStateDescriptor("map", str, float)
SUM = ReducingStateDescriptor("sum", plus, int)
MEAN = AggregatingStateDescriptor("mean", Mean(), list[int])
BACKENDS = pytest.mark.parametrize(
    "backend", [HashMapStateBackend(), EmbeddedRocksDBStateBackend()], ids=["hashmap", "rocksdb"]
)
KEY_TYPES = pytest.mark.parametrize("key_type", KEYS)


class Epoch:
    """Keyed state for one epoch, with all states registered in one order."""

    def __init__(self, backend: StateBackend, directory: Path, number: int) -> None:
        expected = None if number == 1 else f"{number - 1}-golden"
        self.number = number
        self.current = CurrentKey()
        self.store = open_store(backend, directory, expected)
        self.state = KeyedStateBackend(
            self.store, max_parallelism=MAX_PARALLELISM, epoch=number, current=self.current
        )
        register: Any = self.state.register
        self.value, self.mutable = register(VALUE), register(MUTABLE)
        self.list, self.map = register(LIST), register(MAP)
        self.sum, self.mean = register(SUM), register(MEAN)

    def commit(self) -> None:
        self.state.commit(f"{self.number}-golden")


def run_program(backend: StateBackend, directory: Path, keys: list[Any]) -> None:
    """Two epochs over all states: what the golden file was made of."""
    first = Epoch(backend, directory, 1)
    for number, first.current.key in enumerate(keys):
        first.value.update(number)
        first.mutable.update(["x", str(number)])
        first.list.add_all([number, -number])
        first.map.put_all({"one": 1.5, "": None})
        first.map.put(None, -0.0)
        first.sum.add(1)
        first.mean.add(number)
    first.commit()
    second = Epoch(backend, directory, 2)
    for number, second.current.key in enumerate(keys):
        second.list.add(300)
        second.sum.add(number)
        second.map.remove("one")
    second.current.key = keys[0]
    second.value.clear()
    second.commit()


@BACKENDS
@KEY_TYPES
def test_the_bytes_in_a_store_are_those_of_version_1(
    backend: StateBackend, key_type: str, tmp_path: Path
) -> None:
    run_program(backend, tmp_path / "store", KEYS[key_type])
    store = open_store(backend, tmp_path / "store", "2-golden")
    found = [[key.hex(), value.hex()] for key, value in store.scan(b"")]
    store.abort()
    assert found == GOLDEN["stores"][key_type]


@BACKENDS
@KEY_TYPES
def test_a_store_of_version_1_can_be_read(
    backend: StateBackend, key_type: str, tmp_path: Path
) -> None:
    store = open_store(backend, tmp_path / "store", None)
    entries = GOLDEN["stores"][key_type]
    store.write([(bytes.fromhex(key), bytes.fromhex(value)) for key, value in entries])
    store.commit("2-golden")
    epoch = Epoch(backend, tmp_path / "store", 3)
    for number, epoch.current.key in enumerate(KEYS[key_type]):
        assert epoch.value.value() == (number or None)
        assert epoch.mutable.value() == ["x", str(number)]
        assert epoch.list.get() == [number, -number, 300]
        assert dict(epoch.map.items()) == {"": None, None: 0.0}
        assert epoch.sum.get() == 1 + number
        assert epoch.mean.get() == number
    epoch.state.abort()


def test_the_golden_file_covers_every_type_of_key() -> None:
    assert list(GOLDEN["stores"]) == list(KEYS)
    assert GOLDEN["max_parallelism"] == MAX_PARALLELISM


@KEY_TYPES
def test_an_entry_is_state_group_length_key_namespace_and_own_key(key_type: str) -> None:
    found = {bytes.fromhex(key) for key, _ in GOLDEN["stores"][key_type]}
    map_id = b"\x00\x04"
    for key in KEYS[key_type]:
        data = key_bytes(key)
        group = key_group_of(key, MAX_PARALLELISM).to_bytes(2, "big")
        length = bytes([len(data)]) if len(data) < 128 else b"\xd8\x04"
        beginning = map_id + group + length + data + b"\x00"
        own_keys = {entry[len(beginning) :] for entry in found if entry.startswith(beginning)}
        assert own_keys == {b"\x00", b"\x01\xa0"}
