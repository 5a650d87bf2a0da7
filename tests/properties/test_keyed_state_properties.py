"""Any program on the five states, over epochs, failures and evictions, equals dictionaries."""

from __future__ import annotations

import copy
import random
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from holdfast.config.backends import backend_named
from holdfast.state.backend import KeyedStateBackend
from holdfast.state.store.opening import open_store
from holdfast.state.table import CurrentKey
from tests.support.functions import Mean, plus
from tests.support.in_memory import IN_MEMORY

if TYPE_CHECKING:
    from holdfast.api.descriptors import StateDescriptor

DESCRIPTORS: dict[str, StateDescriptor] = {
    descriptor.name: descriptor
    for descriptor in (
        ValueStateDescriptor("value", int),
        ValueStateDescriptor("mutable", list[int]),
        ValueStateDescriptor("default", int, default=7),
        ListStateDescriptor("list", int),
        ListStateDescriptor("lists", list[int]),
        MapStateDescriptor("map", str, int),
        MapStateDescriptor("floats", float, list[int]),
        ReducingStateDescriptor("sum", plus, int),
        AggregatingStateDescriptor("mean", Mean(), list[int]),
    )
}
KEYS = [
    ["a", "ab"],
    ["b" * 600, ""],
    [0, 2**62],
    [("a", None), (None, 1)],
    [0.0, 1.5],
]
"""Pairs of keys, of one type each; programs name them by their place."""

"""Where the stores lie: RocksDB syncs its files at every open, which a busy disk makes slow."""
OWN_KEYS: dict[str, list[Any]] = {
    "map": ["x", "xy", None, "z" * 600],
    "floats": [0.0, -0.0, 1.0, float("nan"), -float("nan")],
}


def told(key: Any) -> Any:
    """The own key of a map as a dictionary tells it apart: all NaN are one."""
    return "NaN" if key != key else key


class Author:
    """Writes programs: each comes back to the same few states and keys, again and again.

    A longer program of the same seed begins with the shorter one, so that the length of a
    failing program can shrink.
    """

    def __init__(self, seed: int, names: list[str]) -> None:
        self.random = random.Random(seed)
        self.names = names

    def program(self, length: int) -> list[tuple[Any, ...]]:
        return [self.step() for _ in range(length)]

    def step(self) -> tuple[Any, ...]:
        choose = self.random.choice
        match choose(
            ["row"] * 6 + ["batch", "evict_if_full", "evict_if_full", "flush", "commit", "abort"]
        ):
            case "row":
                uses = [self.use(choose(self.names)) for _ in range(choose([1, 1, 2, 3]))]
                return "row", self.place(), uses, choose([False, False, True])
            case "batch":
                return "batch", [self.place() for _ in range(3)]
            case other:
                return (other,)

    def place(self) -> int:
        return self.random.choice([0, 0, 0, 1])

    def use(self, name: str) -> tuple[Any, ...]:
        """A way to use the state of that name: its name, a method, the arguments."""
        choose = self.random.choice
        if self.random.random() < 0.3:
            return name, choose(["read", "clear"])
        match DESCRIPTORS[name].kind:
            case "value":
                return name, "update", choose([None, self.value(name), self.value(name)])
            case "list":
                method = choose(["add", "add", "add_all", "update"])
                several = [self.value(name) for _ in range(choose([0, 1, 2]))]
                return name, method, self.value(name) if method == "add" else several
            case "map":
                return name, *self.use_of_map(name)
            case _:
                return name, "add", choose([None, self.value(name), self.value(name)])

    def use_of_map(self, name: str) -> tuple[Any, ...]:
        choose = self.random.choice
        own = choose(OWN_KEYS[name])
        match choose(["put", "put", "put_all", "get", "contains", "remove", "is_empty"]):
            case "put":
                return "put", own, choose([None, self.value(name)])
            case "put_all":
                some = self.random.sample(OWN_KEYS[name], 2)
                return "put_all", {key: self.value(name) for key in some}
            case "is_empty":
                return ("is_empty",)
            case other:
                return other, own

    def value(self, name: str) -> Any:
        number = self.random.randint(-3, 3)
        return [number] * (number % 3) if name in ("mutable", "lists", "floats") else number


class Model:
    """The states as dictionaries."""

    def __init__(self) -> None:
        self.states: dict[str, dict[int, Any]] = {name: {} for name in DESCRIPTORS}

    def use(self, place: int, name: str, method: str, *arguments: Any) -> Any:
        kind, state = DESCRIPTORS[name].kind, self.states[name]
        if method == "clear":
            state.pop(place, None)
            return None
        if method == "read":
            return self.read(place, name)
        return getattr(self, f"_{kind}")(state, place, method, *copy.deepcopy(arguments))

    def read(self, place: int, name: str) -> Any:
        found = copy.deepcopy(self.states[name].get(place))
        if found is None:
            return {"default": 7, "list": [], "lists": [], "map": {}, "floats": {}}.get(name)
        return sum(found) / len(found) if name == "mean" else found

    def _set(self, state: dict[int, Any], place: int, value: Any, *, empty: bool) -> None:
        if empty:
            state.pop(place, None)
        else:
            state[place] = value

    def _value(self, state: dict[int, Any], place: int, _: str, value: Any) -> None:
        self._set(state, place, value, empty=value is None)

    def _list(self, state: dict[int, Any], place: int, method: str, value: Any) -> None:
        added = [value] if method == "add" else value
        whole = added if method == "update" else [*state.get(place, []), *added]
        self._set(state, place, whole, empty=not whole)

    def _map(self, state: dict[int, Any], place: int, method: str, *arguments: Any) -> Any:
        own = state.get(place, {})
        match method, *arguments:
            case "get", key:
                return own.get(told(key))
            case "contains", key:
                return told(key) in own
            case ("is_empty",):
                return not own
            case "remove", key:
                own.pop(told(key), None)
            case "put", key, value:
                own[told(key)] = value
            case "put_all", entries:
                own.update({told(key): value for key, value in entries.items()})
        self._set(state, place, own, empty=not own)
        return None

    def _reducing(self, state: dict[int, Any], place: int, _: str, value: Any) -> None:
        total = None if value is None else state.get(place, 0) + value
        self._set(state, place, total, empty=value is None)

    def _aggregating(self, state: dict[int, Any], place: int, _: str, value: Any) -> None:
        self._set(state, place, [*state.get(place, []), value], empty=value is None)


class Twin:
    """Keyed state on a real store, and its model, through the same steps."""

    def __init__(
        self, backend: str, directory: Path, keys: list[Any], names: list[str], cache_limit: int
    ) -> None:
        self.cache_limit = cache_limit
        self.backend, self.directory = backend_named(backend), directory
        self.keys, self.names = keys, names
        self.version: str | None = None
        self.epoch = 0
        self.model, self.committed = Model(), Model()
        self.open()

    def open(self) -> None:
        self.epoch += 1
        self.current = CurrentKey()
        self.store = open_store(self.backend, self.directory, self.version)
        self.state = KeyedStateBackend(
            self.store,
            max_parallelism=128,
            epoch=self.epoch,
            current=self.current,
            cache_limit=self.cache_limit,
            max_chunks=2,
        )
        self.handles: dict[str, Any] = {
            name: self.state.register(DESCRIPTORS[name]) for name in self.names
        }

    def step(self, kind: str, *arguments: Any) -> None:
        getattr(self, kind)(*arguments)

    def row(self, place: int, rows_uses: list[tuple[Any, ...]], fails: bool) -> None:
        """One row: all of its uses of state, undone in the end if it fails."""
        key = self.keys[place]
        self.current.key = key
        tables = self.state.tables
        saved = [table.save_point(key) for table in tables] if fails else []
        before = copy.deepcopy(self.model) if fails else self.model
        for use in rows_uses:
            assert self.real(*use) == self.model.use(place, *use), use
        if fails:
            for table, entry in zip(tables, saved, strict=True):
                table.roll_back(key, entry)
            self.model = before

    def real(self, name: str, method: str, *arguments: Any) -> Any:
        if method != "read":
            return getattr(self.handles[name], method)(*arguments)
        match DESCRIPTORS[name].kind:
            case "value":
                return self.handles[name].value()
            case "map":
                items = list(self.handles[name].items())
                found = {told(key): value for key, value in items}
                assert len(found) == len(items)
                return found
            case _:
                return self.handles[name].get()

    def batch(self, places: list[int]) -> None:
        self.current.start_batch([self.keys[place] for place in places])

    def evict_if_full(self) -> None:
        self.state.evict_if_full()

    def flush(self) -> None:
        self.state.flush()

    def commit(self) -> None:
        self.version = f"{self.epoch}-test"
        self.state.commit(self.version)
        self.committed = copy.deepcopy(self.model)
        self.open()

    def abort(self) -> None:
        self.state.abort()
        self.model = copy.deepcopy(self.committed)
        self.open()

    def check_everything(self) -> None:
        for place, key in enumerate(self.keys):
            self.current.key = key
            for name in self.names:
                assert self.real(name, "read") == self.model.read(place, name), (key, name)

    def check_entries(self) -> None:
        """What the store holds: an entry for every value, and none for what is empty."""
        counts = Counter(int.from_bytes(key[:2], "big") for key, _ in self.store.scan(b""))
        for state_id, name in enumerate(self.names, 1):
            places, count = self.model.states[name], counts[state_id]
            if DESCRIPTORS[name].kind == "map":
                assert count == sum(map(len, places.values()))
            elif DESCRIPTORS[name].kind == "list":
                assert count >= len(places)
                assert bool(count) == bool(places)
            else:
                assert count == len(places)


@pytest.mark.parametrize(("backend", "examples"), [("hashmap", 80), ("rocksdb", 20)])
@pytest.mark.parametrize(
    "names",
    [["value", "mutable", "default"], ["sum", "mean"], ["list", "lists"], ["map"], ["floats"]],
    ids=" ".join,
)
def test_any_program_on_keyed_state_equals_dictionaries(
    names: list[str], backend: str, examples: int
) -> None:
    @settings(max_examples=examples)
    @given(st.integers(0, 2**64), st.integers(8, 40), st.sampled_from(KEYS), st.integers(0, 2))
    def check(seed: int, length: int, keys: list[Any], cache_limit: int) -> None:
        with TemporaryDirectory(dir=IN_MEMORY) as directory:
            twin = Twin(backend, Path(directory) / "store", keys, names, cache_limit)
            try:
                for step in Author(seed, names).program(length):
                    twin.step(*step)
                twin.check_everything()
                twin.commit()
                twin.check_entries()
                twin.check_everything()
            finally:
                twin.state.abort()

    check()
