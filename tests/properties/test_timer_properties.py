"""Any program on timers equals a set of them that is searched for the next one due."""

from __future__ import annotations

import random
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.config.backends import backend_named
from holdfast.serde.keys import canonical_key, key_bytes, key_group_of, varint
from holdfast.state.backend import KeyedStateBackend
from holdfast.state.key_groups import key_groups, subtask_of
from holdfast.state.restore import restore_store
from holdfast.state.store.opening import open_store
from holdfast.state.table import CurrentKey
from holdfast.state.timers.table import EVENT_TIMERS
from tests.support.in_memory import IN_MEMORY

MAX_PARALLELISM = 6
KEYS: list[list[Any]] = [
    [0, 1, -1, 7, 2**40, -(2**63)],
    ["", "a", "b", "ab", "k" * 130, "k" * 600, "k" * 600 + "l"],
    [("a", None), (None, 1), ("b", 2), ("b" * 520, 2)],
    [0.0, -1.5, canonical_key(float("nan"))],
]
TIMES = [-(2**63), -300, *range(-2, 12), 2**63 - 1]
NAMESPACES = [b"", b"", b"", b"w", b"w" * 200]

Place = tuple[int, int, bytes]
Change = tuple[Any, int, bytes, bool]


def place_of(key: Any, time: int, namespace: bytes) -> Place:
    """What timers are sorted by."""
    data = key_bytes(key)
    tail = varint(len(data)) + data + varint(len(namespace)) + namespace
    return time, key_group_of(key, MAX_PARALLELISM), tail


class Model:
    """All pending timers of a job, by their places."""

    def __init__(self) -> None:
        self.pending: set[Place] = set()
        self.due: set[Place] = set()
        """Those that come in the pass that is under way."""

    def apply(self, changes: list[Change], latest: int | None = None) -> None:
        """Changes of one step, of which the last one for a timer counts."""
        last = {place_of(*change[:3]): change[3] for change in changes}
        for place, wanted in last.items():
            if not wanted:
                self.pending.discard(place)
                self.due.discard(place)
            elif place not in self.pending:
                self.pending.add(place)
                if latest is not None and place[0] <= latest:
                    self.due.add(place)

    def next(self) -> Place | None:
        """The next timer of the pass, which is pending no more."""
        if not self.due:
            return None
        place = min(self.due)
        self.due.discard(place)
        self.pending.discard(place)
        return place


class Job:
    """An operator with timers on some subtasks, and its model."""

    def __init__(self, backend: str, root: Path, chance: random.Random, **limits: Any) -> None:
        self.limits = limits
        self.backend, self.root, self.chance = backend_named(backend), root, chance
        self.keys = chance.choice(KEYS)
        self.model = Model()
        self.committed: set[Place] = set()
        self.parallelism = chance.randint(1, 3)
        self.generation = self.epoch = 0
        self.version: str | None = None
        self.open()

    def groups(self, subtask: int) -> range:
        return key_groups(subtask, self.parallelism, MAX_PARALLELISM)

    def directory(self, subtask: int) -> Path:
        return self.root / f"{self.generation}-{subtask}"

    def open(self) -> None:
        self.epoch += 1
        self.states: list[KeyedStateBackend] = []
        self.currents: list[CurrentKey] = []
        for subtask in range(self.parallelism):
            current = CurrentKey()
            self.states.append(
                KeyedStateBackend(
                    open_store(self.backend, self.directory(subtask), self.version),
                    max_parallelism=MAX_PARALLELISM,
                    epoch=self.epoch,
                    current=current,
                    key_groups=self.groups(subtask),
                    **self.limits,
                )
            )
            self.currents.append(current)

    def abort(self) -> None:
        for state in self.states:
            state.abort()

    def owner(self, key: Any) -> int:
        group = key_group_of(key, MAX_PARALLELISM)
        return subtask_of(group, self.parallelism, MAX_PARALLELISM)

    def changes(self, subtask: int, most: int) -> list[Change]:
        """Some changes of a subtask's timers."""
        keys = [key for key in self.keys if self.owner(key) == subtask]
        if not keys:
            return []
        draw = self.chance
        return [
            (draw.choice(keys), draw.choice(TIMES), draw.choice(NAMESPACES), draw.random() < 0.7)
            for _ in range(draw.randint(0, most))
        ]

    def apply(self, subtask: int, changes: list[Change]) -> None:
        table, current = self.states[subtask].timers(EVENT_TIMERS), self.currents[subtask]
        for current.key, time, namespace, wanted in changes:
            (table.register if wanted else table.delete)(time, namespace)

    # Steps

    def step(self) -> None:
        steps = [self.change, self.change, self.fire, self.fire, self.reopen, self.fail]
        self.chance.choice([*steps, self.rescale, self.flush])()
        self.check_next_times(exact=False)

    def change(self) -> None:
        for subtask in range(self.parallelism):
            changes = self.changes(subtask, 6)
            self.guarded(subtask, changes)

    def guarded(self, subtask: int, changes: list[Change], latest: int | None = None) -> None:
        """Changes of one element, which may fail and be undone."""
        table = self.states[subtask].timers(EVENT_TIMERS)
        fails = self.chance.random() < 0.3
        saved = table.save_point("any") if fails else None
        self.apply(subtask, changes)
        if fails:
            table.roll_back("any", saved)
        else:
            self.model.apply(changes, latest)
            if self.chance.random() < 0.1:
                self.states[subtask].flush()

    def flush(self) -> None:
        for state in self.states:
            state.flush()
            state.evict_if_full()

    def fire(self) -> None:
        until = self.chance.choice(TIMES)
        registered_until = self.chance.choice([None, None, *TIMES])
        latest = until if registered_until is None else min(until, registered_until)
        for subtask in range(self.parallelism):
            self.fire_on(subtask, until, registered_until, latest)
        self.model.due.clear()

    def fire_on(self, subtask: int, until: int, registered_until: int | None, latest: int) -> None:
        table, model = self.states[subtask].timers(EVENT_TIMERS), self.model
        groups = self.groups(subtask)
        model.due = {p for p in model.pending if p[0] <= until and p[1] in groups}
        leaves = self.chance.random() < 0.1
        # Where no timer can be due there is no pass, after which the next time would be exact.
        passes = table.next_time is not None and table.next_time <= until
        budget = 25
        for timer in table.due(until, registered_until):
            assert place_of(timer.key, timer.time, timer.namespace) == model.next()
            if leaves and self.chance.random() < 0.3:
                return
            if budget > 0 and self.chance.random() < 0.6:
                budget -= 1
                self.guarded(subtask, self.changes(subtask, 3), latest)
        assert model.next() is None
        self.check_next_time(subtask, exact=passes)

    def reopen(self) -> None:
        self.version = f"v{self.epoch}"
        for state in self.states:
            state.commit(self.version)
        self.committed = set(self.model.pending)
        self.open()

    def fail(self) -> None:
        self.abort()
        self.model.pending = set(self.committed)
        self.open()

    def rescale(self) -> None:
        snapshots = []
        for subtask, state in enumerate(self.states):
            snapshots.append(self.root / f"snapshot-{self.generation}-{subtask}")
            state.commit("old", snapshots[-1])
        before, self.parallelism = self.parallelism, self.chance.randint(1, 4)
        whole = before == self.parallelism and self.chance.random() < 0.5
        self.generation += 1
        self.version = "restored"
        for subtask in range(self.parallelism):
            restore_store(
                self.backend,
                [snapshots[subtask]] if whole else snapshots,
                self.directory(subtask),
                version=self.version,
                key_groups=self.groups(subtask),
                whole=whole,
                operator_state=None,
            )
        self.committed = set(self.model.pending)
        self.open()

    # Checks

    def check_next_times(self, *, exact: bool) -> None:
        for subtask in range(self.parallelism):
            self.check_next_time(subtask, exact=exact)

    def check_next_time(self, subtask: int, *, exact: bool) -> None:
        if not self.states[subtask].has_timers(EVENT_TIMERS):
            return
        groups = self.groups(subtask)
        times = [time for time, group, _ in self.model.pending if group in groups]
        known = self.states[subtask].timers(EVENT_TIMERS).next_time
        if exact or known is None:
            assert known == min(times, default=None)
        else:
            assert not times or known <= min(times)

    def check_all(self) -> None:
        """Every pending timer comes, and no other."""
        for subtask, state in enumerate(self.states):
            groups = self.groups(subtask)
            expected = sorted(place for place in self.model.pending if place[1] in groups)
            given = state.timers(EVENT_TIMERS).due(2**63 - 1)
            assert [place_of(t.key, t.time, t.namespace) for t in given] == expected


@pytest.mark.parametrize(
    ("backend", "examples"),
    [
        ("hashmap", 50),
        ("rocksdb", 10),
        pytest.param("hashmap", 150, marks=pytest.mark.slow),
        pytest.param("rocksdb", 30, marks=pytest.mark.slow),
    ],
)
def test_any_program_on_timers_equals_a_set_of_them(backend: str, examples: int) -> None:
    @settings(max_examples=examples)
    @given(st.integers(0, 2**64), st.integers(4, 25), st.integers(1, 6), st.integers(0, 3))
    def check(seed: int, length: int, chunk: int, cache_limit: int) -> None:
        with TemporaryDirectory(dir=IN_MEMORY) as root:
            limits = {"timers_at_once": chunk, "cache_limit": cache_limit}
            job = Job(backend, Path(root), random.Random(seed), **limits)
            try:
                for _ in range(length):
                    job.step()
                job.reopen()
                job.check_all()
            finally:
                job.abort()

    check()
