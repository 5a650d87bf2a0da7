"""The layout of states with a time to live in the local store, byte for byte.

`ttl_layout_v1.json` holds every entry that a small program leaves behind. Like
`store_layout_v1.json`, of whose version 1 it is a part, it never changes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from holdfast.serde.keys import key_group_of
from holdfast.state.backend import KeyedStateBackend
from holdfast.state.store.opening import open_store
from holdfast.state.table import CurrentKey
from holdfast.state.timers.layout import FIRST_TIME
from holdfast.state.ttl.states import ClockTime, TtlContext
from holdfast.testing.clock import ManualClock
from tests.formats.test_store_layout import BACKENDS, MAX_PARALLELISM
from tests.support.functions import Mean, plus

if TYPE_CHECKING:
    from holdfast.config.backends import StateBackend

GOLDEN = json.loads((Path(__file__).parent / "ttl_layout_v1.json").read_text())
NOW = 1_794_000_000_000
HOUR = 3_600_000
TTL = StateTtlConfig.new_builder("1 h").build()
DESCRIPTORS = [
    ValueStateDescriptor("value", int, ttl=TTL),
    ValueStateDescriptor("mutable", list[str], ttl=TTL),
    ListStateDescriptor("list", int, ttl=TTL),
    MapStateDescriptor("map", str, float, ttl=TTL),
    ReducingStateDescriptor("sum", plus, int, ttl=TTL),
    AggregatingStateDescriptor("mean", Mean(), list[int], ttl=TTL),
]


class Epoch:
    """Keyed state for one epoch, at some time."""

    def __init__(self, backend: StateBackend, directory: Path, number: int, now: int) -> None:
        self.number = number
        self.current = CurrentKey()
        expected = None if number == 1 else f"{number - 1}-golden"
        self.state = KeyedStateBackend(
            open_store(backend, directory, expected),
            max_parallelism=MAX_PARALLELISM,
            epoch=number,
            current=self.current,
            ttl=TtlContext(ClockTime(ManualClock(now))),
        )
        register: Any = self.state.register
        (self.value, self.mutable, self.list, self.map, self.sum, self.mean) = map(
            register, DESCRIPTORS
        )

    def commit(self) -> None:
        self.state.commit(f"{self.number}-golden")


def run_program(backend: StateBackend, directory: Path) -> None:
    """Three epochs: what the golden file was made of."""
    first = Epoch(backend, directory, 1, NOW)
    for first.current.key in ("a", "gone"):
        first.value.update(-1)
        first.mutable.update(["x", "y"])
        first.list.add_all([1, 2])
        first.map.put_all({"a": 1.5, "": None, "m" * 600: 0.0})
        first.sum.add(2)
        first.mean.add(7)
    first.commit()
    second = Epoch(backend, directory, 2, NOW + HOUR // 2)
    second.current.key = "a"
    second.value.update(5)
    second.list.add(3)
    second.map.put("b", 2.5)
    second.sum.add(2)
    second.commit()
    unknown = Epoch(backend, directory, 3, FIRST_TIME)
    unknown.current.key = "b"
    unknown.value.update(6)
    unknown.list.add(4)
    unknown.map.put("c", None)
    unknown.commit()
    Epoch(backend, directory, 4, NOW + HOUR).commit()


@BACKENDS
def test_the_bytes_of_states_with_a_ttl_are_those_of_version_1(
    backend: StateBackend, tmp_path: Path
) -> None:
    run_program(backend, tmp_path / "store")
    store = open_store(backend, tmp_path / "store", "4-golden")
    found = [[key.hex(), value.hex()] for key, value in store.scan(b"")]
    store.abort()
    assert found == GOLDEN["entries"]


@BACKENDS
def test_states_with_a_ttl_of_version_1_can_be_read(backend: StateBackend, tmp_path: Path) -> None:
    store = open_store(backend, tmp_path / "store", None)
    store.write([(bytes.fromhex(key), bytes.fromhex(value)) for key, value in GOLDEN["entries"]])
    store.commit("4-golden")
    epoch = Epoch(backend, tmp_path / "store", 5, NOW + HOUR)
    epoch.current.key = "a"
    assert epoch.value.value() == 5
    assert epoch.mutable.value() is None
    assert epoch.list.get() == [3]
    assert dict(epoch.map.items()) == {"b": 2.5}
    assert epoch.sum.get() == 4
    assert epoch.mean.get() is None
    epoch.current.key = "b"
    assert epoch.value.value() == 6
    assert epoch.list.get() == [4]
    assert dict(epoch.map.items()) == {"c": None}
    epoch.state.abort()


def test_a_value_is_preceded_by_its_time_and_a_mark() -> None:
    entries = dict(GOLDEN["entries"])
    group = key_group_of("a", MAX_PARALLELISM).to_bytes(2, "big")
    written = (NOW + HOUR // 2 + 2**63).to_bytes(8, "big")

    def stored(state_id: int, user_key: bytes = b"") -> bytes:
        key = state_id.to_bytes(2, "big") + group + b"\x01a\x00" + user_key
        return bytes.fromhex(entries[key.hex()])

    assert stored(1) == written + b"\x01\x05"
    assert stored(4, b"\x01\xa1b") == b"\x01" + written + b"\x01" + stored(4, b"\x01\xa1b")[10:]
    chunk = stored(3, (2).to_bytes(8, "big") + (1).to_bytes(4, "big"))
    assert chunk == b"\x91\xc4\x0a" + written + b"\x01\x03"
    name = b"value\x00ttl"
    described = json.loads(bytes.fromhex(entries[(b"\x00\x00state" + name).hex()]))
    assert described["ttl"] is True
    assert described["id"] == 1
    began = (NOW + HOUR + 2**63).to_bytes(8, "big")
    looked, removed = (3).to_bytes(8, "big"), (1).to_bytes(8, "big")
    assert bytes.fromhex(entries[(b"\x00\x00sweep" + name).hex()]) == began + looked + removed
