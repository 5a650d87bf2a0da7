"""Keys of maps that Python tells apart, or takes for one, as bytes do not: over every backend."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from datetime import timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np
import pytest

from holdfast import MapStateDescriptor, StateTtlConfig
from holdfast.config.backends import backend_named
from holdfast.errors import StateValueError
from holdfast.serde.factory import codec_for
from holdfast.serde.keys import key_group_of
from holdfast.state.backend import KeyedStateBackend
from holdfast.state.key_groups import key_groups
from holdfast.state.operator.backend import OperatorStateBackend
from holdfast.state.operator.layout import SUBTASK_PREFIX
from holdfast.state.restore import restore_store
from holdfast.state.store.opening import open_store
from holdfast.state.table import CurrentKey
from holdfast.types.avro import AvroSchema

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

GROUPS = 128
KEYS = ["a", "b", "c"]


@dataclass(frozen=True)
class Frozen:
    """A key of two fields."""

    name: str
    at: float


@dataclass(frozen=True, slots=True)
class WithPayloads:
    """A key whose field holds others."""

    inner: tuple[Frozen, ...]


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Slotted:
    """A key in slots, of which a part does not count."""

    at: float
    note: int = field(compare=False)


class Named(NamedTuple):
    """A key that is a tuple."""

    at: float
    price: Decimal


class Record(msgspec.Struct, frozen=True, cache_hash=True):
    """A key that remembers its hash."""

    at: float


@dataclass(frozen=True)
class Noted:
    """A key of which a part does not count."""

    number: int
    note: str = field(default="", compare=False)


@dataclass(frozen=True, eq=False)
class Alone:
    """A key that equals nothing but itself."""

    number: int


class OnlyItself:
    """The same, without a type."""


def nan(bits: int) -> float:
    """One of the many NaN."""
    found: float = struct.unpack("<d", struct.pack("<Q", bits))[0]
    assert found != found
    return found


QUIET, NEGATIVE = nan(0x7FF8000000000000), nan(0xFFF8000000000000)
PAYLOAD, SIGNALING = nan(0x7FF8000000000123), nan(0x7FF0000000000001)
NAN, MINUS_NAN = Decimal("NaN"), Decimal("-NaN77")

SAME: dict[str, tuple[Any, list[Any]]] = {
    "float": (float, [QUIET, NEGATIVE, PAYLOAD, SIGNALING, float("nan")]),
    "column": ("double", [QUIET, NEGATIVE]),
    "Decimal": (Decimal, [NAN, Decimal("NaN"), MINUS_NAN]),
    "union": (float | str, [QUIET, NEGATIVE]),
    "tuple": (tuple[str, float], [("a", QUIET), ("a", NEGATIVE)]),
    "struct": ("struct<name: string, at: double>", [("a", QUIET), ("a", NEGATIVE)]),
    "frozenset": (frozenset[float], [frozenset([QUIET, 1.0]), frozenset([NEGATIVE, 1.0])]),
    "named tuple": (Named, [Named(QUIET, NAN), Named(PAYLOAD, MINUS_NAN)]),
    "dataclass": (Frozen, [Frozen("a", QUIET), Frozen("a", PAYLOAD)]),
    "nested": (
        WithPayloads,
        [WithPayloads((Frozen("a", QUIET),)), WithPayloads((Frozen("a", NEGATIVE),))],
    ),
    "slots": (Slotted, [Slotted(QUIET, 1), Slotted(NEGATIVE, 2)]),
    "Struct": (Record, [Record(QUIET), Record(NEGATIVE)]),
    "Avro": (AvroSchema('"double"'), [QUIET, NEGATIVE]),
    "untyped float": (None, [QUIET, NEGATIVE, np.float64("nan")]),
    "untyped Decimal": (None, [NAN, MINUS_NAN]),
    "untyped tuple": (None, [(1, (QUIET, "a")), (1, (PAYLOAD, "a"))]),
    "bool and int": (bool | int, [1, True]),
    "what does not count": (Noted, [Noted(1, "a"), Noted(1, "b")]),
}
"""By a name: the type of a map's keys, and keys that are one."""


class Epochs:
    """A map of one operator, epoch after epoch, on any number of subtasks."""

    def __init__(self, backend: str, directory: Path, descriptor: Any) -> None:
        self.backend, self.directory = backend_named(backend), directory
        self.descriptor = descriptor
        self.epoch, self.parallelism = 0, 1
        self.versions: dict[int, str | None] = {0: None}

    def run(self, use: Callable[[Any], Any]) -> Any:
        """What `use` gives of the map of every key, in an epoch that is committed."""
        self.epoch += 1
        given: dict[str, Any] = {}
        for subtask in range(self.parallelism):
            current, groups = CurrentKey(), self._groups(subtask)
            state = KeyedStateBackend(
                open_store(self.backend, self._store(subtask), self.versions[subtask]),
                max_parallelism=GROUPS,
                epoch=self.epoch,
                current=current,
                key_groups=groups,
            )
            handle = state.register(self.descriptor)
            for current.key in [key for key in KEYS if key_group_of(key, GROUPS) in groups]:
                given[current.key] = use(handle)
            self.versions[subtask] = version = f"{self.epoch}-{subtask}"
            state.commit(version, self._snapshot(subtask))
        (same,) = {repr(one): one for one in given.values()}.values()
        assert len(given) == len(KEYS)
        return same

    def rescale(self, parallelism: int) -> None:
        """Restore what the last epoch left, on another number of subtasks."""
        snapshots = [self._snapshot(subtask) for subtask in range(self.parallelism)]
        self.epoch, self.parallelism = self.epoch + 1, parallelism
        for subtask in range(parallelism):
            self.versions[subtask] = f"restored in {self.epoch}"
            restore_store(
                self.backend,
                snapshots,
                self._store(subtask),
                version=f"restored in {self.epoch}",
                key_groups=self._groups(subtask),
                whole=False,
                operator_state=None,
            )

    def entries(self) -> int:
        """Entries of the map, of all keys."""
        found = 0
        for subtask in range(self.parallelism):
            store = open_store(self.backend, self._store(subtask), self.versions[subtask])
            found += sum(1 for _ in store.scan(b"\x00\x01"))
            store.abort()
        return found

    def _groups(self, subtask: int) -> range:
        return key_groups(subtask, self.parallelism, GROUPS)

    def _store(self, subtask: int) -> Path:
        return self.directory / f"store-{self.parallelism}-{subtask}"

    def _snapshot(self, subtask: int) -> Path:
        return self.directory / f"snapshot-{self.epoch}-{subtask}"


@pytest.fixture(params=["hashmap", "rocksdb"])
def backend(request: pytest.FixtureRequest) -> str:
    """Every backend."""
    name: str = request.param
    return name


TTL = StateTtlConfig.new_builder(timedelta(days=1)).build()


def everything(state: Any, keys: list[Any], value: int) -> None:
    """Any of the keys is the one that was put."""
    assert [state.get(key) for key in keys] == [value] * len(keys)
    assert all(state.contains(key) for key in keys)
    assert list(state.values()) == [value]
    assert not state.is_empty()


@pytest.mark.parametrize(
    ("name", "ttl"), [*((name, None) for name in SAME), ("float", TTL), ("untyped tuple", TTL)]
)
def test_keys_of_a_map_that_are_one_stay_one(
    backend: str, tmp_path: Path, name: str, ttl: Any
) -> None:
    key_type, keys = SAME[name]
    first, last = keys[0], keys[-1]

    def begin(state: Any) -> None:
        for value, key in enumerate(keys):
            state.put(key, value)
            everything(state, keys, value)
        state.remove(last)
        assert state.is_empty()
        assert not state.contains(first)
        state.put_all({key: value for value, key in enumerate(keys)})
        everything(state, keys, len(keys) - 1)

    def go_on(state: Any) -> None:
        everything(state, keys, len(keys) - 1)
        state.put(last, 70)
        state.put(first, 71)
        everything(state, keys, 71)

    def end(state: Any) -> None:
        everything(state, keys, 71)
        state.put(first, 72)
        state.remove(last)
        assert [state.get(key) for key in keys] == [None] * len(keys)
        assert list(state.items()) == []

    epochs = Epochs(backend, tmp_path, MapStateDescriptor("map", key_type, int, ttl=ttl))
    epochs.run(begin)
    assert epochs.entries() == len(KEYS)
    epochs.run(go_on)
    epochs.rescale(2)
    epochs.run(end)
    assert epochs.entries() == 0


@pytest.mark.parametrize("name", SAME)
def test_keys_of_a_broadcast_map_that_are_one_stay_one(
    backend: str, tmp_path: Path, name: str
) -> None:
    key_type, keys = SAME[name]
    descriptor = MapStateDescriptor("map", key_type, int)
    version: str | None = None
    for epoch in range(3):
        store = open_store(backend_named(backend), tmp_path / "store", version)
        operator_state = OperatorStateBackend(store)
        state = operator_state.get_broadcast_state(descriptor)
        if epoch:
            everything(state, keys, epoch * 10 + len(keys) - 1)
        for value, key in enumerate(keys):
            state.put(key, (epoch + 1) * 10 + value)
        if epoch == 2:
            state.remove(keys[0])
            assert state.is_empty()
        operator_state.flush()
        exported = operator_state.export()
        assert exported is not None
        assert len(exported.states[0].entries) == (epoch < 2)
        version = f"v{epoch}"
        store.commit(version)


def test_entries_of_a_map_that_were_two_become_one(backend: str, tmp_path: Path) -> None:
    """As a store of an earlier version may hold them, which told two NaN apart."""
    key = codec_for(float).encode
    assert key(QUIET) != key(NEGATIVE)
    epochs = Epochs(backend, tmp_path, MapStateDescriptor("map", float, int))
    epochs.run(lambda state: state.put(QUIET, 1))
    store = open_store(epochs.backend, tmp_path / "store-1-0", "1-0")
    for stored, value in list(store.scan(b"\x00\x01")):
        store.write([(stored.replace(key(QUIET), key(NEGATIVE)), value)])
    store.commit("1-0")
    assert epochs.entries() == 2 * len(KEYS)
    epochs.run(lambda state: everything(state, [QUIET, NEGATIVE], 1))
    assert epochs.entries() == len(KEYS)
    epochs.run(lambda state: state.remove(QUIET))
    assert epochs.entries() == 0


def test_entries_of_a_broadcast_map_that_were_two_become_one(backend: str, tmp_path: Path) -> None:
    key = codec_for(float).encode
    version: str | None = None
    for epoch in range(3):
        store = open_store(backend_named(backend), tmp_path / "store", version)
        operator_state = OperatorStateBackend(store)
        state = operator_state.get_broadcast_state(MapStateDescriptor("map", float, int))
        if epoch == 0:
            state.put(QUIET, 1)
        else:
            assert len(list(state.items())) == 2 - epoch
            state.remove(NEGATIVE)
        operator_state.flush()
        if epoch == 0:
            for stored, value in list(store.scan(SUBTASK_PREFIX)):
                store.write([(stored.replace(key(QUIET), key(NEGATIVE)), value)])
        version = f"v{epoch}"
        store.commit(version)


@pytest.mark.parametrize(
    ("key_type", "key", "message"),
    [
        (None, complex("nan"), "does not equal the original"),
        (None, OnlyItself(), "does not equal the original"),
        (Alone, Alone(1), "does not equal the original"),
        (Decimal, Decimal("sNaN"), "Cannot hash a signaling NaN"),
        (None, ("a", Decimal("sNaN")), "Cannot hash a signaling NaN"),
        (None, [1], "unhashable type: 'list'"),
    ],
)
def test_a_key_that_could_not_be_found_again_is_refused(
    backend: str, tmp_path: Path, key_type: Any, key: Any, message: str
) -> None:
    epochs = Epochs(backend, tmp_path, MapStateDescriptor("map", key_type, int))
    with pytest.raises(StateValueError, match=f"map state 'map'.*{message}"):
        epochs.run(lambda state: state.put(key, 1))
    store = open_store(epochs.backend, tmp_path / "broadcast", None)
    state = OperatorStateBackend(store).get_broadcast_state(epochs.descriptor)
    with pytest.raises(StateValueError, match=f"operator state 'map'.*{message}"):
        state.put(key, 1)
    assert state.is_empty()
