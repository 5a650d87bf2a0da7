"""Savepoints made without a job, and what a restored operator finds in them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from holdfast.api.time import Duration
from holdfast.checkpoint.files.metadata import OperatorSnapshot, StoreSnapshot
from holdfast.checkpoint.restore.operator_states import read_operator_states
from holdfast.checkpoint.savepoint.parts import SavepointTarget, write_part
from holdfast.checkpoint.savepoint.storage import load_savepoint, new_savepoint, store_savepoint
from holdfast.checkpoint.transfer import download_snapshot
from holdfast.config.backends import backend_named
from holdfast.runtime.report import OPERATOR_STATE, STORE
from holdfast.serde.keys import key_group_of
from holdfast.state.backend import KeyedStateBackend
from holdfast.state.key_groups import key_groups, subtask_of
from holdfast.state.restore import restore_store
from holdfast.state.store.opening import open_store
from holdfast.state.store.snapshot import CANONICAL
from holdfast.state.table import CurrentKey
from holdfast.state.timers.table import EVENT_TIMERS, PROCESSING_TIMERS
from holdfast.state.ttl.states import ClockTime, TtlContext
from holdfast.storage.file_system import FileSystemFiles
from holdfast.testing.clock import ManualClock
from tests.support.checkpoints import checkpoint
from tests.support.functions import Mean, plus

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.checkpoint.files.metadata import CheckpointMetadata
    from holdfast.state.operator.redistribution import OperatorStateSnapshot

TTL = StateTtlConfig.new_builder(Duration.of_hours(1)).build()
DESCRIPTORS: dict[str, Any] = {
    descriptor.name: descriptor
    for descriptor in [
        ValueStateDescriptor("value", str),
        ListStateDescriptor("list", int),
        MapStateDescriptor("map", str, int),
        ReducingStateDescriptor("sum", plus, int),
        AggregatingStateDescriptor("mean", Mean(), list[int]),
        ValueStateDescriptor("timed", int, ttl=TTL),
        MapStateDescriptor("timed-map", int, str, ttl=TTL),
    ]
}
WINDOWED = ListStateDescriptor("windowed", int)
WINDOWS = (b"first", b"w" * 16)
UID = "Op/1"


@dataclass
class Operator:
    """An operator with keyed state of all kinds, on some subtasks, in one epoch."""

    directory: Path
    backend: str = "hashmap"
    parallelism: int = 2
    max_parallelism: int = 4
    own: list[OperatorStateSnapshot | None] | None = None
    """Operator state of the subtasks."""
    keyed: bool = True
    """Whether it is recorded as one whose rows come by key."""
    used: list[str] = field(default_factory=lambda: list(DESCRIPTORS))
    uid: str = UID

    def savepoint(self, keys: list[Any], *, canonical: bool = True, **changes: Any) -> str:
        """Fill the state of all keys, and save it; other metadata may be given."""
        files = new_savepoint(str(self.directory / "savepoints"), "job-id")
        target = SavepointTarget(files, backend_named(self.backend), canonical, alone=True)
        stores, states = [], dict[str, Any]()
        for subtask in range(self.parallelism):
            groups = key_groups(subtask, self.parallelism, self.max_parallelism)
            local = self.directory / f"local-{subtask}"
            keyed = self._fill(local, groups, keys)
            states |= {state["name"]: state for state in keyed.state_descriptions()}
            own = None if self.own is None else self.own[subtask]
            if own is not None:
                (local / OPERATOR_STATE).write_bytes(own.encode())
            part = write_part(local, target, uid=self.uid, subtask=subtask, checkpoint_id=7)
            stores.append(
                StoreSnapshot(
                    subtask=subtask,
                    backend=CANONICAL if canonical else self.backend,  # type: ignore[arg-type]
                    version="70-a",
                    key_groups=(groups.start, groups.stop - 1) if self.keyed else None,
                    files=part.files,
                    full_size=part.size,
                    uploaded_size=part.size,
                    operator_state=part.operator_state,
                    operator_tables=part.operator_tables,
                )
            )
        operator = OperatorSnapshot(
            uid=self.uid,
            name="Operator",
            parallelism=self.parallelism,
            max_parallelism=self.max_parallelism,
            states=list(states.values()),
            key=keyed.key_shape,
            subtasks=stores,
        )
        metadata = msgspec.structs.replace(
            checkpoint(7),
            is_savepoint=True,
            operators=[operator],
            **changes,
        )
        store_savepoint(files, metadata)
        return files.root

    def _fill(self, local: Path, groups: range, keys: list[Any]) -> KeyedStateBackend:
        (local / STORE).parent.mkdir(parents=True)
        keyed, current = opened(self.backend, local / "store-itself", None, self.max_parallelism)
        # Ids of states are drawn in the order in which they are registered.
        order = self.used if groups.start % 2 else self.used[::-1]
        handles = {name: keyed.register(DESCRIPTORS[name]) for name in order}
        scope = keyed.namespaced()
        windowed: Any = keyed.register(WINDOWED, scope)
        for number, key in enumerate(keys):
            if key_group_of(key, self.max_parallelism) not in groups:
                continue
            current.key = key
            for name, handle in handles.items():
                fill(handle, name, number)
            for window in WINDOWS:
                scope.current.key = (key, window)
                windowed.add(number)
            for name in (EVENT_TIMERS, PROCESSING_TIMERS):
                keyed.timers(name).register(number - 1, WINDOWS[number % 2])
                keyed.timers(name).register(1000 - number)
        keyed.commit("70-a", local / STORE)
        return keyed


def opened(
    backend: str, directory: Path, version: str | None, max_parallelism: int
) -> tuple[KeyedStateBackend, CurrentKey]:
    """The keyed state in a store."""
    current = CurrentKey()
    store = open_store(backend_named(backend), directory, version)
    keyed = KeyedStateBackend(
        store,
        max_parallelism=max_parallelism,
        epoch=1 if version is None else 2,
        current=current,
        ttl=TtlContext(ClockTime(ManualClock(1_000))),
    )
    return keyed, current


def fill(state: Any, name: str, number: int) -> None:
    """Give a state some content for the current key."""
    match name:
        case "value":
            state.update(f"v{number}")
        case "timed":
            state.update(number)
        case "list":
            state.add_all(range(number % 5 + 1))
        case "map":
            state.put_all({str(i): i for i in range(number % 4)} | {"m" * 600: None})
        case "timed-map":
            state.put(number, "x" * number)
        case _:
            state.add(number)


def content(state: Any, name: str) -> Any:
    """What a state holds for the current key."""
    match name:
        case "value" | "timed":
            return state.value()
        case "map" | "timed-map":
            return dict(state.items())
        case _:
            return state.get()


def expected(number: int) -> dict[str, Any]:
    """What the key with that number has in all states."""
    return {
        "value": f"v{number}",
        "list": list(range(number % 5 + 1)),
        "map": {str(i): i for i in range(number % 4)} | {"m" * 600: None},
        "sum": number,
        "mean": number,
        "timed": number,
        "timed-map": {number: "x" * number},
        "windowed": [[number], [number]],
    }


class Restored:
    """The operator's stores, restored from a savepoint on some number of subtasks."""

    version = "restored"
    """At which the stores stand."""

    def __init__(
        self, path: str, directory: Path, backend: str, parallelism: int, uid: str = UID
    ) -> None:
        files = FileSystemFiles(path)
        self.metadata: CheckpointMetadata = load_savepoint(files)
        (self.snapshot,) = (op for op in self.metadata.operators if op.uid == uid)
        self.own = read_operator_states(self.snapshot, files)
        self.backend = backend
        self.parallelism = parallelism
        self._directory = directory
        sources = []
        for store in self.snapshot.subtasks:
            assert store.backend == CANONICAL
            sources.append(directory / f"downloaded-{store.subtask}")
            download_snapshot(store.files, files, sources[-1])
        for subtask in range(parallelism):
            restore_store(
                backend_named(backend),
                sources,
                self._store(subtask),
                version=self.version,
                key_groups=key_groups(subtask, parallelism, self.snapshot.max_parallelism),
                whole=False,
                operator_state=None,
                kind=CANONICAL,
            )

    def contents(self, keys: list[Any]) -> dict[Any, dict[str, Any]]:
        """What every key has, read where it belongs; nothing may lie elsewhere."""
        limit = self.snapshot.max_parallelism
        found: dict[Any, dict[str, Any]] = {}
        for subtask in range(self.parallelism):
            keyed, current = opened(self.backend, self._store(subtask), self.version, limit)
            handles = {name: keyed.register(each) for name, each in DESCRIPTORS.items()}
            scope = keyed.namespaced()
            windowed: Any = keyed.register(WINDOWED, scope)
            for key in keys:
                current.key = key
                mine = {name: content(handle, name) for name, handle in handles.items()}
                mine["windowed"] = []
                for window in WINDOWS:
                    scope.current.key = (key, window)
                    mine["windowed"].append(windowed.get())
                if subtask_of(key_group_of(key, limit), self.parallelism, limit) == subtask:
                    found[key] = mine
                else:
                    assert not any(any(v) if k == "windowed" else v for k, v in mine.items())
            keyed.abort()
        return found

    def timers(self, name: str) -> set[tuple[int, Any, bytes]]:
        """All timers of a time domain, each found where it belongs."""
        limit, found = self.snapshot.max_parallelism, list[Any]()
        for subtask in range(self.parallelism):
            keyed, _ = opened(self.backend, self._store(subtask), self.version, limit)
            due = list(keyed.timers(name).due(10_000, 10_000))
            groups = key_groups(subtask, self.parallelism, limit)
            assert {key_group_of(timer.key, limit) for timer in due} <= set(groups)
            found += map(tuple, due)
            keyed.abort()
        assert len(set(found)) == len(found)
        return set(found)

    def _store(self, subtask: int) -> Path:
        return self._directory / f"restored-{subtask}"


def expected_timers(keys: list[Any]) -> set[tuple[int, Any, bytes]]:
    """All timers of either time domain."""
    long = {(number - 1, key, WINDOWS[number % 2]) for number, key in enumerate(keys)}
    return long | {(1000 - number, key, b"") for number, key in enumerate(keys)}
