"""The layout of a state whose type has changed, byte for byte.

`evolved_layout_v1.json` holds every entry that a small program leaves behind whose types
change twice. Like `store_layout_v1.json`, of whose version 1 it is a part, it never changes.
Ids of schemas are in it: how they are made never changes either.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from holdfast import (
    AvroSchema,
    ListStateDescriptor,
    MapStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from holdfast.serde.keys import key_group_of
from holdfast.serializers import StateCompatibility
from holdfast.state.backend import KeyedStateBackend
from holdfast.state.store.opening import open_store
from holdfast.state.table import CurrentKey
from holdfast.state.ttl.states import ClockTime, TtlContext
from holdfast.testing.clock import ManualClock
from holdfast.types.compatibility import schema_id
from tests.formats.test_store_layout import BACKENDS, MAX_PARALLELISM

if TYPE_CHECKING:
    from holdfast.config.backends import StateBackend

GOLDEN = json.loads((Path(__file__).parent / "evolved_layout_v1.json").read_text())
NOW = 1_794_000_000_000
TTL = StateTtlConfig.new_builder("1 h").disable_cleanup_in_background().build()


@dataclass
class Click1:
    """The class as it was first."""

    n: int
    next: Click1 | None = None


@dataclass
class Click2:
    """And then."""

    n: int | None
    user: str = "nobody"
    next: Click2 | None = None


class Pair1(NamedTuple):
    """The same of a class that is stored as an array."""

    a: int
    b: str


class Pair2(NamedTuple):
    """And then."""

    b: str
    a: int


class Raw:
    """Bytes as they are, under some number."""

    def __init__(self, number: int) -> None:
        self.number = number

    def serialize(self, value: bytes, /) -> bytes:
        return value

    def deserialize(self, data: bytes, /) -> bytes:
        return data

    def snapshot(self) -> dict[str, Any]:
        return {"number": self.number}

    def compatibility(self, stored: dict[str, Any], /) -> StateCompatibility:
        return StateCompatibility.after_migration(self.deserialize)


def avro(*names: str) -> AvroSchema:
    fields = [{"name": name, "type": "long", "default": 0} for name in names]
    return AvroSchema({"type": "record", "name": "Row", "fields": fields})


TYPES: list[dict[str, Any]] = [
    {"class": Click1, "pair": Pair1, "columns": "a int, b string", "raw": Raw(1),
     "avro": avro("a")},
    {"class": Click2, "pair": Pair2, "columns": "b string, a bigint", "raw": Raw(2),
     "avro": avro("a", "b")},
]  # fmt: skip
VALUES: list[dict[str, Any]] = [
    {"class": Click1(1, Click1(2)), "pair": Pair1(1, "x"), "columns": (1, "x"),
     "raw": b"\xc1\xc1abcd", "avro": {"a": 1}},
    {"class": Click2(None, "ann"), "pair": Pair2("y", 2), "columns": ("y", 2),
     "raw": b"\xc1\xc1abcd", "avro": {"a": 1, "b": 2}},
]  # fmt: skip
READ: dict[str, Any] = {
    "class": Click2(1, "nobody", Click2(2)),
    "pair": Pair2("x", 1),
    "columns": ("x", 1),
    "raw": b"\xc1\xc1abcd",
    "avro": {"a": 1, "b": 0},
}


class Epoch:
    """Keyed state for one epoch, with the types of some version of the program."""

    def __init__(self, backend: StateBackend, directory: Path, number: int, version: int) -> None:
        self.number = number
        self.current = CurrentKey()
        expected = None if number == 1 else f"{number - 1}-golden"
        self.state = KeyedStateBackend(
            open_store(backend, directory, expected),
            max_parallelism=MAX_PARALLELISM,
            epoch=number,
            current=self.current,
            ttl=TtlContext(ClockTime(ManualClock(NOW))),
        )
        register: Any = self.state.register
        self.states: dict[str, Any] = {}
        for name, spec in TYPES[version].items():
            self.states[f"{name} value"] = register(ValueStateDescriptor(f"{name} value", spec))
            self.states[f"{name} list"] = register(ListStateDescriptor(f"{name} list", spec))
            self.states[f"{name} map"] = register(
                MapStateDescriptor(f"{name} map", str, spec, ttl=TTL)
            )

    def put(self, version: int) -> None:
        for name, value in VALUES[version].items():
            self.states[f"{name} value"].update(value)
            self.states[f"{name} list"].add(value)
            self.states[f"{name} map"].put_all({self.current.key: value, "none": None})

    def commit(self) -> None:
        self.state.commit(f"{self.number}-golden")


def run_program(backend: StateBackend, directory: Path) -> None:
    """Two versions of a program: what the golden file was made of."""
    for number, (key, version) in enumerate([("a", 0), ("b", 1)], 1):
        epoch = Epoch(backend, directory, number, version)
        epoch.current.key = key
        epoch.put(version)
        epoch.commit()


@BACKENDS
def test_the_bytes_of_evolved_states_are_those_of_version_1(
    backend: StateBackend, tmp_path: Path
) -> None:
    run_program(backend, tmp_path / "store")
    store = open_store(backend, tmp_path / "store", "2-golden")
    found = [[key.hex(), value.hex()] for key, value in store.scan(b"")]
    store.abort()
    assert found == GOLDEN["entries"]


@BACKENDS
def test_evolved_states_of_version_1_can_be_read(backend: StateBackend, tmp_path: Path) -> None:
    store = open_store(backend, tmp_path / "store", None)
    store.write([(bytes.fromhex(key), bytes.fromhex(value)) for key, value in GOLDEN["entries"]])
    store.commit("2-golden")
    epoch = Epoch(backend, tmp_path / "store", 3, 1)
    for key, expected in (("a", READ), ("b", VALUES[1])):
        epoch.current.key = key
        for name, value in expected.items():
            assert epoch.states[f"{name} value"].value() == value
            assert epoch.states[f"{name} list"].get() == [value]
            assert dict(epoch.states[f"{name} map"].items()) == {key: value, "none": None}
    epoch.state.abort()


def test_only_a_value_of_another_schema_than_the_first_has_a_mark() -> None:
    entries = {bytes.fromhex(key): bytes.fromhex(value) for key, value in GOLDEN["entries"]}
    described = json.loads(entries[b"\x00\x00statepair value"])
    ((found, schemas),) = described["others"].items()
    assert described["now"] == found == schema_id(schemas)

    def stored(name: str, key: str) -> bytes:
        state = json.loads(entries[b"\x00\x00state" + name.encode()])
        group = key_group_of(key, MAX_PARALLELISM).to_bytes(2, "big")
        return entries[state["id"].to_bytes(2, "big") + group + b"\x01" + key.encode() + b"\x00"]

    assert stored("pair value", "a") == msgspec.msgpack.encode([1, "x"])
    mark = b"\xc1\xc1" + bytes.fromhex(found)
    assert stored("pair value", "b") == mark + msgspec.msgpack.encode(["y", 2])
    first = json.loads(entries[b"\x00\x00stateraw value"])["schema"]
    own = b"\xc1\xc1" + bytes.fromhex(schema_id(first))
    assert stored("raw value", "a") == own + b"\xc1\xc1abcd"
