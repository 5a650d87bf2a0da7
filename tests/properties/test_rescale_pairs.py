"""All that a savepoint holds of an operator, on any other number of subtasks.

Built by what a start builds stores with: keyed state of all kinds, windows, timers, and operator
state in its three modes.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from holdfast.checkpoint.restore.assignment import assign_state
from holdfast.checkpoint.restore.download import RestoreTarget, restore_one
from holdfast.checkpoint.savepoint.storage import load_savepoint
from holdfast.config.backends import backend_named
from holdfast.job.model import JobIdentity
from holdfast.serde.factory import codec_for
from holdfast.state.operator.layout import SUBTASK_PREFIX, read_layout
from holdfast.state.operator.redistribution import NamedState, OperatorStateSnapshot
from holdfast.state.store.directories import store_directory
from holdfast.state.store.opening import open_store
from holdfast.state.store.process import ProcessIdentity
from holdfast.state.timers.table import EVENT_TIMERS, PROCESSING_TIMERS
from holdfast.storage.file_system import FileSystemFiles
from tests.support.functions import Count
from tests.support.in_memory import IN_MEMORY
from tests.support.offline_savepoints import (
    UID,
    Operator,
    Restored,
    expected,
    expected_timers,
)
from tests.support.programs import Program
from tests.support.task_epochs import ROWS

PARALLELISM = [1, 2, 3, 4, 7, 15, 77, 128]
BACKENDS = st.sampled_from(["hashmap", "rocksdb"])
KEYS = [f"key-{number}" for number in range(40)]
TEXT = codec_for(str)
RULES = [
    (b"\x01" + TEXT.encode("rule"), b"\x01" + TEXT.encode("yes")),
    (b"\x01" + TEXT.encode("other"), b"\x00"),
]


def own_state(subtask: int) -> OperatorStateSnapshot:
    """Operator state of a subtask: as many elements as its number says, up to four."""
    elements = [TEXT.encode(f"{subtask}-{number}") for number in range(subtask % 5)]
    return OperatorStateSnapshot(
        [
            NamedState("split", "split", [TEXT.schema], elements),
            NamedState("union", "union", [TEXT.schema], elements),
            NamedState("rules", "broadcast", [TEXT.schema] * 2, [], RULES),
        ]
    )


class Rescaled(Restored):
    """The stores that a start from the savepoint builds."""

    def __init__(self, path: str, directory: Path, backend: str, parallelism: int) -> None:
        files = FileSystemFiles(path)
        self.metadata = load_savepoint(files)
        (self.snapshot,) = self.metadata.operators
        self.backend = backend
        self.parallelism = parallelism
        self._directory = directory
        program = Program(parallelism=parallelism, max_parallelism=128)
        program.source(ROWS).uid("events").key_by("k").process(Count(), ROWS).uid(UID)
        job = JobIdentity("job", "Job", str(directory / "local"), "2-1")
        ground = RestoreTarget(job, ProcessIdentity.current(), backend_named(backend))
        for restore in assign_state(self.metadata, program.compile(), ground, files, {}):
            assert len(restore.copies) <= -(-self.snapshot.parallelism // parallelism) + 1
            self.version = restore_one(restore, files=files).version

    def _store(self, subtask: int) -> Path:
        return store_directory(str(self._directory / "local"), "job", "2-1", UID, subtask)

    def own_states(self) -> list[dict[str, NamedState]]:
        """Operator state of every subtask, by name."""
        found = []
        for subtask in range(self.parallelism):
            store = open_store(backend_named(self.backend), self._store(subtask), self.version)
            layout = read_layout(store.scan(SUBTASK_PREFIX))
            store.abort()
            found.append({state.name: state for state in layout.states})
        return found


@pytest.mark.parametrize(
    ("some", "most", "examples"), [(7, 15, 2), pytest.param(77, 128, 8, marks=pytest.mark.slow)]
)
def test_everything_is_found_once_where_it_belongs_on_any_number_of_subtasks(
    some: int, most: int, examples: int
) -> None:
    parallelism = st.sampled_from([n for n in PARALLELISM if n <= most])

    @settings(max_examples=examples, suppress_health_check=[HealthCheck.too_slow])
    @given(parallelism, parallelism, BACKENDS, BACKENDS, st.booleans())
    @example(some, most, "hashmap", "rocksdb", True)
    @example(most, some, "rocksdb", "hashmap", False)
    def check(before: int, after: int, old: str, new: str, canonical: bool) -> None:
        with TemporaryDirectory(dir=IN_MEMORY) as root:
            own: list[Any] = [own_state(subtask) for subtask in range(before)]
            operator = Operator(Path(root), old, before, max_parallelism=128, own=own)
            path = operator.savepoint(KEYS, canonical=canonical, sources=[])
            rescaled = Rescaled(path, Path(root) / "new", new, after)
            assert rescaled.contents(KEYS) == {key: expected(n) for n, key in enumerate(KEYS)}
            for name in (EVENT_TIMERS, PROCESSING_TIMERS):
                assert rescaled.timers(name) == expected_timers(KEYS)
            states = rescaled.own_states()
            everything = [element for state in own for element in state.states[0].elements]
            split = [state["split"].elements for state in states]
            assert [element for elements in split for element in elements] == everything
            if before != after:
                assert max(map(len, split)) - min(map(len, split)) <= 1
            assert all(state["union"].elements == everything for state in states)
            assert all(sorted(state["rules"].entries) == sorted(RULES) for state in states)

    check()
