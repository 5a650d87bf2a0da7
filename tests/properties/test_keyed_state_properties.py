"""Any program on the five states, over epochs, failures and evictions, equals dictionaries."""

from __future__ import annotations

import copy
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
from holdfast.api.backends import backend_named
from holdfast.state import keyed_backend, list_table
from holdfast.state.keyed_backend import KeyedStateBackend
from holdfast.state.open_store import open_store
from holdfast.state.table import CurrentKey
from tests.unit.functions import Mean, plus

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
    ["a", "ab", "", "b" * 600],
    [0, 1, -1, 2**62],
    [("a", 1), ("a", None), (None, 1), ("", -1)],
    [0.0, 1.5, -1.5, float("inf")],
]
"""Keys of four operators; programs name them by their place."""

NUMBERS = st.integers(-3, 3)
LISTS = st.lists(NUMBERS, max_size=3)
OWN_KEYS = {
    "map": st.sampled_from(["x", "xy", "", None, "z" * 600]),
    "floats": st.sampled_from([0.0, -0.0, 1.0, float("inf")]),
}
VALUES = {
    "value": NUMBERS, "default": NUMBERS, "mutable": LISTS, "list": NUMBERS, "lists": LISTS,
    "map": st.none() | NUMBERS, "floats": st.none() | LISTS, "sum": NUMBERS, "mean": NUMBERS,
}  # fmt: skip


def uses(name: str) -> st.SearchStrategy[tuple[Any, ...]]:
    """Ways to use the state of that name: its name, a method, the arguments."""
    value, call = VALUES[name], st.just(name)
    reads_and_clear = st.tuples(call, st.sampled_from(["read", "clear"]))
    if name in ("value", "default", "mutable"):
        return reads_and_clear | st.tuples(call, st.just("update"), st.none() | value)
    if name in ("list", "lists"):
        many = st.tuples(call, st.sampled_from(["update", "add_all"]), st.lists(value, max_size=3))
        return reads_and_clear | many | st.tuples(call, st.just("add"), value)
    if name in ("map", "floats"):
        own = OWN_KEYS[name]
        return (
            reads_and_clear
            | st.tuples(call, st.just("put"), own, value)
            | st.tuples(call, st.just("put_all"), st.dictionaries(own, value, max_size=3))
            | st.tuples(call, st.sampled_from(["get", "contains", "remove"]), own)
            | st.tuples(call, st.just("is_empty"))
        )
    return reads_and_clear | st.tuples(call, st.just("add"), st.none() | value)


PLACES = st.sampled_from([0, 0, 0, 1, 2, 3])
FAILS = st.sampled_from([False, False, True])


@st.composite
def programs(draw: st.DrawFn) -> list[tuple[Any, ...]]:
    """Steps that come back to the same few states and keys, again and again."""
    names = draw(st.lists(st.sampled_from(list(DESCRIPTORS)), min_size=1, max_size=2, unique=True))
    some_uses = st.lists(st.one_of([uses(name) for name in names]), min_size=1, max_size=4)
    row = st.tuples(st.just("row"), PLACES, some_uses, FAILS)
    step = st.one_of(
        row,
        row,
        row,
        st.tuples(st.just("batch"), st.lists(PLACES, max_size=4)),
        st.tuples(st.sampled_from(["relieve", "relieve", "flush", "abort"])),
        st.just(("commit",)),
    )
    return draw(st.lists(step, min_size=4, max_size=16))


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
                return own.get(key)
            case "contains", key:
                return key in own
            case ("is_empty",):
                return not own
            case "remove", key:
                own.pop(key, None)
            case "put", key, value:
                own[key] = value
            case "put_all", entries:
                own.update(entries)
        self._set(state, place, own, empty=not own)
        return None

    def _reducing(self, state: dict[int, Any], place: int, _: str, value: Any) -> None:
        total = None if value is None else state.get(place, 0) + value
        self._set(state, place, total, empty=value is None)

    def _aggregating(self, state: dict[int, Any], place: int, _: str, value: Any) -> None:
        self._set(state, place, [*state.get(place, []), value], empty=value is None)


class Twin:
    """Keyed state on a real store, and its model, through the same steps."""

    def __init__(self, backend: str, directory: Path, keys: list[Any]) -> None:
        self.backend, self.directory, self.keys = backend_named(backend), directory, keys
        self.version: str | None = None
        self.epoch = 0
        self.model, self.committed = Model(), Model()
        self.open()

    def open(self) -> None:
        self.epoch += 1
        self.current = CurrentKey()
        self.store = open_store(self.backend, self.directory, self.version)
        self.state = KeyedStateBackend(
            self.store, max_parallelism=128, epoch=self.epoch, current=self.current
        )
        self.handles: dict[str, Any] = {
            name: self.state.register(descriptor) for name, descriptor in DESCRIPTORS.items()
        }

    def step(self, kind: str, *arguments: Any) -> None:
        getattr(self, kind)(*arguments)

    def row(self, place: int, rows_uses: list[tuple[Any, ...]], fails: bool) -> None:
        """One row: all of its uses of state, undone in the end if it fails."""
        key = self.keys[place]
        self.current.key = key
        tables = self.state.tables
        remembered = [table.remember(key) for table in tables] if fails else []
        before = copy.deepcopy(self.model) if fails else self.model
        for use in rows_uses:
            assert self.real(*use) == self.model.use(place, *use), use
        if fails:
            for table, entry in zip(tables, remembered, strict=True):
                table.put_back(key, entry)
            self.model = before

    def real(self, name: str, method: str, *arguments: Any) -> Any:
        if method != "read":
            return getattr(self.handles[name], method)(*arguments)
        match DESCRIPTORS[name].kind:
            case "value":
                return self.handles[name].value()
            case "map":
                return dict(self.handles[name].items())
            case _:
                return self.handles[name].get()

    def batch(self, places: list[int]) -> None:
        self.current.start_batch([self.keys[place] for place in places])

    def relieve(self) -> None:
        self.state.relieve()

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
            for name in DESCRIPTORS:
                assert self.real(name, "read") == self.model.read(place, name), (key, name)

    def check_entries(self) -> None:
        """What the store holds: an entry for every value, and none for what is empty."""
        ids = {name: i for i, name in enumerate(DESCRIPTORS, 1)}
        counts = Counter(int.from_bytes(key[:2], "big") for key, _ in self.store.scan(b""))
        for name, places in self.model.states.items():
            if DESCRIPTORS[name].kind == "map":
                assert counts[ids[name]] == sum(map(len, places.values()))
            elif DESCRIPTORS[name].kind == "list":
                assert counts[ids[name]] >= len(places)
                assert bool(counts[ids[name]]) == bool(places)
            else:
                assert counts[ids[name]] == len(places)


@pytest.mark.parametrize(("backend", "examples"), [("hashmap", 300), ("rocksdb", 60)])
def test_any_program_on_keyed_state_equals_dictionaries(backend: str, examples: int) -> None:
    @settings(max_examples=examples)
    @given(keys=st.sampled_from(KEYS), program=programs(), limit=st.sampled_from([0, 3]))
    def check(keys: list[Any], program: list[tuple[Any, ...]], limit: int) -> None:
        with TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
            patch.setattr(keyed_backend, "CACHE_LIMIT", limit)
            patch.setattr(list_table, "MAX_CHUNKS", 2)
            twin = Twin(backend, Path(directory) / "store", keys)
            try:
                for step in program:
                    twin.step(*step)
                twin.check_everything()
                twin.commit()
                twin.check_entries()
                twin.check_everything()
            finally:
                twin.state.abort()

    check()
