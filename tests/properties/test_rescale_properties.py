"""Keyed state on another number of subtasks: every key once, where it belongs, unchanged."""

from __future__ import annotations

import random
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
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
from holdfast.serde.keys import key_group_of
from holdfast.state.backend import KeyedStateBackend
from holdfast.state.catalog import STATE_PREFIX
from holdfast.state.key_groups import key_groups, subtask_of
from holdfast.state.restore import restore_store
from holdfast.state.snapshots import open_snapshot
from holdfast.state.store.opening import open_store
from holdfast.state.table import CurrentKey
from tests.support.functions import Mean, plus
from tests.support.in_memory import IN_MEMORY

DESCRIPTORS = [
    ValueStateDescriptor("value", str),
    ListStateDescriptor("list", int),
    MapStateDescriptor("map", str, int),
    ReducingStateDescriptor("sum", plus, int),
    AggregatingStateDescriptor("mean", Mean(), list[int]),
]
MAX_PARALLELISM = 12
KEYS = [f"key-{i}" for i in range(25)] + ["k" * 700 + str(i) for i in range(3)]

Entry = tuple[str, bytes, bytes]


def fill(state: Any, name: str, number: int) -> None:
    """Give a state some content for the current key."""
    match name:
        case "value":
            state.update(f"v{number}")
        case "list":
            state.add_all(range(number % 5 + 1))
        case "map":
            state.put_all({str(i): i for i in range(number % 4)} | {"m" * 600: None})
        case _:
            state.add(number)


def content(state: Any, name: str) -> Any:
    """What a state holds for the current key."""
    match name:
        case "value":
            return state.value()
        case "map":
            return dict(state.items())
        case _:
            return state.get()


class Job:
    """One operator with keyed state, on some number of subtasks."""

    def __init__(self, backend: str, root: Path, chance: random.Random) -> None:
        self.backend = backend_named(backend)
        self.root, self.chance = root, chance
        self.model: dict[tuple[str, str], Any] = {}

    def run(self, subtask: int, parallelism: int, directory: Path, version: str | None) -> Path:
        """An epoch of one subtask: it changes some of its keys, and makes a snapshot."""
        current = CurrentKey()
        store = open_store(self.backend, directory, version)
        epoch = 1 if version is None else 2
        keyed = KeyedStateBackend(
            store, max_parallelism=MAX_PARALLELISM, epoch=epoch, current=current
        )
        chosen = self.chance.sample(DESCRIPTORS, self.chance.randint(0, len(DESCRIPTORS)))
        handles = {descriptor.name: keyed.register(descriptor) for descriptor in chosen}
        for key in KEYS:
            if subtask_of(key_group_of(key, MAX_PARALLELISM), parallelism, MAX_PARALLELISM) != (
                subtask
            ):
                continue
            current.key = key
            for name, handle in handles.items():
                if self.chance.random() < 0.6:
                    fill(handle, name, self.chance.randint(0, 9))
                if self.chance.random() < 0.1:
                    handle.clear()
                self.model[name, key] = content(handle, name)
        snapshot = self.root / f"snapshot-{epoch}-{parallelism}-{subtask}"
        keyed.commit("filled", snapshot)
        return snapshot

    def check(self, subtask: int, parallelism: int, directory: Path) -> None:
        """Every key of the subtask has what the model has."""
        current = CurrentKey()
        store = open_store(self.backend, directory, "restored")
        keyed = KeyedStateBackend(store, max_parallelism=MAX_PARALLELISM, epoch=9, current=current)
        for descriptor in DESCRIPTORS:
            handle = keyed.register(descriptor)
            for key in KEYS:
                group = key_group_of(key, MAX_PARALLELISM)
                owned = subtask_of(group, parallelism, MAX_PARALLELISM) == subtask
                current.key = key
                empty = content(keyed.register(descriptor), descriptor.name) in (None, [], {})
                if owned and (descriptor.name, key) in self.model:
                    expected = self.model[descriptor.name, key]
                    assert content(handle, descriptor.name) == expected
                else:
                    assert empty
        keyed.abort()

    def entries(self, snapshots: list[Path]) -> list[Entry]:
        """Entries of all keys, by the names of their states."""
        found: list[Entry] = []
        for path in snapshots:
            with open_snapshot(self.backend, path) as snapshot:
                names = {
                    msgspec.json.decode(value)["id"]: key[len(STATE_PREFIX) :].decode()
                    for key, value in snapshot.scan(STATE_PREFIX)
                }
                for key, value in snapshot.scan(b""):
                    state_id = int.from_bytes(key[:2], "big")
                    if state_id:
                        found.append((names[state_id], key[2:], value))
        return sorted(found)


# Stores differ in how they are opened and read; what goes where is decided above them.
EXAMPLES = pytest.mark.parametrize(("backend", "share"), [("hashmap", 1), ("rocksdb", 3)])


@EXAMPLES
def test_every_key_is_found_once_with_its_owner_on_any_number_of_subtasks(backend, share):
    @settings(max_examples=25 // share)
    @given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 2**32))
    def check(old, new, seed):
        check_rescaled(backend, old, new, seed)

    check()


def check_rescaled(backend, old, new, seed):
    with TemporaryDirectory(dir=IN_MEMORY) as root:
        job = Job(backend, Path(root), random.Random(seed))
        snapshots = [job.run(i, old, Path(root) / f"old-{i}", None) for i in range(old)]
        before = job.entries(snapshots)
        again = []
        for subtask in range(new):
            directory = Path(root) / f"new-{subtask}"
            groups = key_groups(subtask, new, MAX_PARALLELISM)
            restore_store(
                job.backend,
                [snapshots[subtask]] if new == old else snapshots,
                directory,
                version="restored",
                key_groups=groups,
                whole=new == old,
                operator_state=None,
            )
            job.check(subtask, new, directory)
            open_store(job.backend, directory, "restored").commit("x", directory / "snapshot")
            again.append(directory / "snapshot")
        assert job.entries(again) == before


@EXAMPLES
def test_a_rescaled_job_runs_on_and_is_rescaled_again(backend, share):
    @settings(max_examples=9 // share)
    @given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4), st.integers(0, 2**32))
    def check(first, second, third, seed):
        check_rescaled_twice(backend, first, second, third, seed)

    check()


def check_rescaled_twice(backend, first, second, third, seed):
    with TemporaryDirectory(dir=IN_MEMORY) as root:
        job = Job(backend, Path(root), random.Random(seed))
        snapshots = [job.run(i, first, Path(root) / f"1-{i}", None) for i in range(first)]
        for run, parallelism in ((2, second), (3, third)):
            following = []
            for subtask in range(parallelism):
                directory = Path(root) / f"{run}-{subtask}"
                restore_store(
                    job.backend,
                    snapshots,
                    directory,
                    version="restored",
                    key_groups=key_groups(subtask, parallelism, MAX_PARALLELISM),
                    whole=False,
                    operator_state=None,
                )
                job.check(subtask, parallelism, directory)
                if run == 2:
                    following.append(job.run(subtask, parallelism, directory, "restored"))
            snapshots = following
