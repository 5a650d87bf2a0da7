"""The files of a savepoint have names that people read, and rows that say where they are from."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pyarrow.dataset as ds
import pytest

from holdfast.savepoints import rewrite_max_parallelism
from holdfast.serde.factory import codec_for
from holdfast.state.operator.redistribution import NamedState, OperatorStateSnapshot
from holdfast.state.store.directories import file_name
from tests.support.in_memory import IN_MEMORY
from tests.support.offline_savepoints import Operator, Restored, expected

if TYPE_CHECKING:
    from collections.abc import Iterator

UID = "my operator"
KEYS = list(range(20))
TEXT = codec_for(str)


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory in memory: what is written must be durable, which takes its time on a disk."""
    with TemporaryDirectory(dir=IN_MEMORY) as directory:
        monkeypatch.setattr("tempfile.tempdir", directory)
        yield Path(directory)


def own_state(*elements: str) -> OperatorStateSnapshot:
    """A list and a broadcast map, whose names have spaces."""
    texts = list(map(TEXT.encode, elements))
    entries = [(b"\1" + TEXT.encode("rule"), b"\1" + TEXT.encode("on"))]
    return OperatorStateSnapshot(
        [
            NamedState("my list", "split", [TEXT.schema], texts),
            NamedState("my rules", "broadcast", [TEXT.schema, TEXT.schema], entries=entries),
        ],
        [b"raw"],
    )


def operator(root: Path) -> Operator:
    own: list[Any] = [own_state("a"), own_state("b", "c")]
    return Operator(root, own=own, uid=UID)


def directories(path: str) -> set[str]:
    return {str(file.parent.relative_to(path)) for file in Path(path).rglob("*.parquet")}


def require_all(path: str, directory: Path) -> None:
    restored = Restored(path, directory, "hashmap", 3, UID)
    assert restored.contents(KEYS) == {key: expected(key) for key in KEYS}
    found = [state for state in restored.own if state is not None]
    elements = [data for state in found for data in state.states[0].elements]
    assert sorted(map(TEXT.decode, elements)) == ["a", "b", "c"]


def test_an_operator_and_a_state_with_spaces_are_found_by_people_and_programs(root: Path) -> None:
    path = operator(root).savepoint(KEYS)
    assert {"my operator/operator/my list", "my operator/operator/my rules"} < directories(path)
    require_all(path, root / "restored")
    rewritten = rewrite_max_parallelism(path, str(root / "new"), 128)
    assert directories(rewritten) == directories(path)
    require_all(rewritten, root / "again")


def test_a_savepoint_with_the_names_of_an_earlier_release_is_restored(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as earlier:
        for module in ("checkpoint.savepoint.storage", "state.tables.writer"):
            earlier.setattr(f"holdfast.{module}.table_name", file_name)
        earlier.setattr("holdfast.state.tables.operator.table_name", file_name)
        path = operator(root).savepoint(KEYS)
    assert not any(" " in directory for directory in directories(path))
    require_all(path, root / "restored")
    require_all(rewrite_max_parallelism(path, str(root / "new"), 128), root / "again")


def test_rows_of_operator_state_say_their_subtask_in_rewritten_savepoints_too(root: Path) -> None:
    path = operator(root).savepoint(KEYS)
    rewritten = rewrite_max_parallelism(path, str(root / "new"), 1)
    for savepoint, subtasks in ((path, [0, 1]), (rewritten, [0])):
        files = Path(savepoint, UID, "operator")
        rules = ds.dataset(files / "my rules").to_table().to_pylist()
        entry = {"map_key": "rule", "value": "on"}
        assert rules == [{"subtask": subtask, **entry} for subtask in subtasks]
        listed = ds.dataset(files / "my list").to_table()
        assert set(listed["subtask"].to_pylist()) == set(subtasks)
        assert sorted(listed["value"].to_pylist()) == ["a", "b", "c"]
        raw = ds.dataset(Path(savepoint, UID, "raw", "partitions")).to_table()
        assert set(raw["subtask"].to_pylist()) == set(subtasks)
