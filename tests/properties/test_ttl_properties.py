"""Any program on states with a time to live, while time passes, equals dictionaries with times."""

from __future__ import annotations

import copy
import random
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
    StateTtlConfig,
    ValueStateDescriptor,
)
from holdfast.config.backends import backend_named
from holdfast.serde.keys import key_group_of
from holdfast.state.backend import KeyedStateBackend
from holdfast.state.key_groups import key_groups, subtask_of
from holdfast.state.restore import restore_store
from holdfast.state.store.opening import open_store
from holdfast.state.table import CurrentKey
from holdfast.state.ttl.states import ClockTime, TtlContext
from holdfast.testing.clock import ManualClock
from tests.support.functions import Mean, plus
from tests.support.in_memory import IN_MEMORY

if TYPE_CHECKING:
    from holdfast.api.descriptors import StateDescriptor

TTL = 10
GROUPS = 8
KEYS = ["a", "b", "c", "long " * 120]
NAMES = ["value", "mutable", "list", "map", "sum", "mean"]
SWEEPS = ["none", "all", "default"]
"""Whether nothing, or all that has expired, or just something is swept when an epoch ends."""

Timed = tuple[int, Any]


def config(chance: random.Random, sweep: str) -> StateTtlConfig:
    """A configuration of some kind."""
    builder = StateTtlConfig.new_builder(TTL)
    if chance.random() < 0.5:
        builder.update_ttl_on_read_and_write()
    # Unless it is known what is swept, it is not known what can be read once more.
    if chance.random() < 0.5 and sweep != "default":
        builder.return_expired_if_not_cleaned_up()
    if sweep == "none":
        builder.disable_cleanup_in_background()
    if sweep == "all":
        builder.cleanup_incrementally(1, True)
    return builder.build()


def descriptors(ttl: StateTtlConfig) -> dict[str, StateDescriptor]:
    return {
        "value": ValueStateDescriptor("value", int, ttl=ttl),
        "mutable": ValueStateDescriptor("mutable", list[int], ttl=ttl),
        "list": ListStateDescriptor("list", int, ttl=ttl),
        "map": MapStateDescriptor("map", str, int, ttl=ttl),
        "sum": ReducingStateDescriptor("sum", plus, int, ttl=ttl),
        "mean": AggregatingStateDescriptor("mean", Mean(), list[int], ttl=ttl),
    }


class Model:
    """What states hold: lists of values with times, whatever the kind."""

    def __init__(self, ttl: StateTtlConfig) -> None:
        self.now = 0
        self.renewed = ttl.update_type is StateTtlConfig.UpdateType.OnReadAndWrite
        self.relaxed = (
            ttl.state_visibility is StateTtlConfig.StateVisibility.ReturnExpiredIfNotCleanedUp
        )
        self.single: dict[tuple[str, str], Timed] = {}
        self.lists: dict[str, list[Timed]] = {}
        self.maps: dict[str, dict[str, Timed]] = {}

    def expired(self, pair: Timed) -> bool:
        return pair[0] + TTL <= self.now

    def sweep(self) -> None:
        """Remove all that has expired."""
        self.single = {at: pair for at, pair in self.single.items() if not self.expired(pair)}
        for key, pairs in self.lists.items():
            self.lists[key] = [pair for pair in pairs if not self.expired(pair)]
        for key, entries in self.maps.items():
            self.maps[key] = {k: pair for k, pair in entries.items() if not self.expired(pair)}

    def use(self, key: str, name: str, method: str, *arguments: Any) -> Any:
        if name == "list":
            return self._list(key, method, *arguments)
        if name == "map":
            return self._map(key, method, *arguments)
        return self._single((name, key), method, *arguments)

    def _single(self, at: tuple[str, str], method: str, *arguments: Any) -> Any:
        found = self._read(self.single, at) if method in ("read", "add") else None
        value = None if found is None else found[1]
        if method == "read":
            if at[0] == "mean" and value is not None:
                return value[0] / value[1]
            return value
        if method == "clear" or arguments == (None,):
            self.single.pop(at, None)
        elif at[0] == "sum":
            self.single[at] = (self.now, (value or 0) + arguments[0])
        elif at[0] == "mean":
            total, count = value or (0, 0)
            self.single[at] = (self.now, (total + arguments[0], count + 1))
        else:
            self.single[at] = (self.now, arguments[0])
        return None

    def _read(self, pairs: dict[Any, Timed], at: Any) -> Timed | None:
        pair = pairs.get(at)
        if pair is None:
            return None
        if self.expired(pair):
            del pairs[at]
            return pair if self.relaxed else None
        if self.renewed:
            pairs[at] = (self.now, pair[1])
        return pair

    def _list(self, key: str, method: str, *arguments: Any) -> Any:
        pairs = self.lists.setdefault(key, [])
        if method != "read":
            added = [arguments[0]] if method == "add" else [v for a in arguments for v in a]
            kept = pairs if method in ("add", "add_all") else []
            self.lists[key] = [*kept, *((self.now, value) for value in added)]
            return None
        alive = [pair for pair in pairs if not self.expired(pair)]
        if not alive:
            self.lists[key] = []
        elif self.renewed:
            self.lists[key] = [(self.now, value) for _, value in alive]
        return [value for _, value in (pairs if self.relaxed else alive)]

    def _map(self, key: str, method: str, *arguments: Any) -> Any:
        entries = self.maps.setdefault(key, {})
        match method, *arguments:
            case ("read",):
                read = {own: self._read(entries, own) for own in list(entries)}
                return {own: pair[1] for own, pair in read.items() if pair is not None}
            case "get", own:
                pair = self._read(entries, own)
                return None if pair is None else pair[1]
            case "contains", own:
                return self._read(entries, own) is not None
            case ("is_empty",):
                return not entries
            case "put", own, value:
                entries[own] = (self.now, value)
            case "put_all", more:
                entries.update({own: (self.now, value) for own, value in more.items()})
            case "remove", own:
                entries.pop(own, None)
            case _:
                entries.clear()
        return None


class Twin:
    """States on real stores, on some number of subtasks, and their model."""

    def __init__(self, backend: str, root: Path, seed: int, sweep: str) -> None:
        self.chance = random.Random(seed)
        self.backend, self.root, self.swept = backend_named(backend), root, sweep
        self.ttl = config(self.chance, sweep)
        self.clock = ManualClock(0)
        self.model = Model(self.ttl)
        self.committed = copy.deepcopy(self.model)
        self.parallelism, self.epoch, self.restores = 1, 0, 0
        self.version: str | None = None
        self.open()

    def open(self) -> None:
        self.epoch += 1
        self.current = CurrentKey()
        self.states = [
            KeyedStateBackend(
                open_store(self.backend, self.directory(subtask), self.version),
                max_parallelism=GROUPS,
                epoch=self.epoch,
                current=self.current,
                ttl=TtlContext(ClockTime(self.clock), records=lambda: 1_000_000),
                max_chunks=2,
            )
            for subtask in range(self.parallelism)
        ]
        self.handles: list[dict[str, Any]] = [
            {name: state.register(of) for name, of in descriptors(self.ttl).items()}
            for state in self.states
        ]

    def directory(self, subtask: int) -> Path:
        return self.root / f"{self.restores}-{subtask}"

    def run(self, length: int) -> None:
        for _ in range(length):
            step = self.chance.choices(
                [self.use, self.wait, self.undo, self.commit, self.fail, self.rescale],
                [20, 8, 2, 3, 1, 1],
            )[0]
            step()
        for key in KEYS:
            for name in NAMES:
                self.check(key, name, "read")

    def use(self) -> None:
        name = self.chance.choice(NAMES)
        self.check(self.chance.choice(KEYS), name, *self.call(name))

    def call(self, name: str) -> tuple[Any, ...]:
        """Some call of a state's method."""
        chance, number = self.chance, self.chance.randint(0, 9)
        numbers = [number] * chance.randint(0, 2)
        own = chance.choice("xy")
        calls: list[tuple[Any, ...]] = [("read",), ("read",), ("clear",)]
        match name:
            case "value":
                calls += [("update", number)] * 3 + [("update", None)]
            case "mutable":
                calls += [("update", numbers)] * 3
            case "list":
                calls += [("add", number)] * 3 + [("add_all", numbers), ("update", numbers)]
            case "map":
                calls += [("get", own), ("contains", own), ("remove", own)]
                calls += [("put", own, number)] * 3 + [("put", own, None)]
                calls += [("put_all", dict.fromkeys("xyz"[: len(numbers)], number))]
                # What is there though it has expired is only known if it is known what is swept.
                calls += [("is_empty",)] * (self.swept != "default")
            case _:
                calls += [("add", number)] * 4
        return chance.choice(calls)

    def check(self, key: str, name: str, method: str, *arguments: Any) -> None:
        owner = subtask_of(key_group_of(key, GROUPS), self.parallelism, GROUPS)
        self.current.key = key
        handle = self.handles[owner][name]
        if method == "read":
            method = {"value": "value", "mutable": "value", "map": "items"}.get(name, "get")
            real = getattr(handle, method)()
            found = dict(real) if name == "map" else real
            assert found == self.model.use(key, name, "read")
        else:
            found = getattr(handle, method)(*arguments)
            assert found == self.model.use(key, name, method, *arguments)

    def wait(self) -> None:
        self.clock.advance(self.chance.choice([1, 3, TTL - 1, TTL]))
        self.model.now = self.clock.now_ms()

    def undo(self) -> None:
        """An element on which the function fails: nothing of it stays."""
        before = copy.deepcopy(self.model)
        key = self.chance.choice(KEYS)
        tables = [table for state in self.states for table in state.tables]
        saved = [table.save_point(key) for table in tables]
        for _ in range(3):
            name = self.chance.choice(NAMES)
            self.check(key, name, *self.call(name))
        for table, entry in zip(tables, saved, strict=True):
            table.roll_back(key, entry)
        self.model = before

    def commit(self, snapshots: Path | None = None) -> None:
        self.version = f"v{self.epoch}"
        for subtask, state in enumerate(self.states):
            state.commit(self.version, None if snapshots is None else snapshots / str(subtask))
        if self.swept == "all":
            self.model.sweep()
        self.committed = copy.deepcopy(self.model)
        if snapshots is None:
            self.open()

    def fail(self) -> None:
        self.close()
        self.model = copy.deepcopy(self.committed)
        self.model.now = self.clock.now_ms()
        self.open()

    def rescale(self) -> None:
        """Go on from snapshots, on another number of subtasks or on the same."""
        snapshots = self.root / f"snapshots-{self.epoch}"
        snapshots.mkdir()
        self.commit(snapshots)
        before, self.parallelism = self.parallelism, self.chance.choice([1, 2, 3])
        self.restores += 1
        whole = before == self.parallelism
        for subtask in range(self.parallelism):
            sources = [subtask] if whole else list(range(before))
            restore_store(
                self.backend,
                [snapshots / str(source) for source in sources],
                self.directory(subtask),
                version="restored",
                key_groups=key_groups(subtask, self.parallelism, GROUPS),
                whole=whole,
                operator_state=None,
            )
        self.version = "restored"
        self.open()

    def close(self) -> None:
        for state in self.states:
            state.abort()


@pytest.mark.parametrize(("backend", "examples"), [("hashmap", 40), ("rocksdb", 6)])
@pytest.mark.parametrize("sweep", SWEEPS)
def test_any_program_on_states_with_a_ttl_equals_dictionaries_with_times(
    sweep: str, backend: str, examples: int
) -> None:
    @settings(max_examples=examples)
    @given(st.integers(0, 2**64), st.integers(10, 80))
    def check(seed: int, length: int) -> None:
        with TemporaryDirectory(dir=IN_MEMORY) as directory:
            twin = Twin(backend, Path(directory), seed, sweep)
            try:
                twin.run(length)
            finally:
                twin.close()

    check()
