"""A savepoint with another max parallelism: all that was there, where it belongs now."""

from __future__ import annotations

import logging
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow.parquet as pq
import pytest

from holdfast import ValueStateDescriptor
from holdfast.checkpoint.files.layout import metadata_name
from holdfast.checkpoint.files.metadata import (
    ChannelState,
    CheckpointMetadata,
    Committable,
    SourceSnapshot,
    StagedHandle,
    encode_metadata,
    identity_of,
)
from holdfast.checkpoint.savepoint.storage import load_savepoint
from holdfast.config.parallelism import default_max_parallelism
from holdfast.errors import (
    CheckpointStorageError,
    ConfigurationError,
    CorruptCheckpointError,
    RestoreError,
    StoreFullError,
)
from holdfast.runtime.report import STORE
from holdfast.savepoints import rewrite_max_parallelism
from holdfast.serde.keys import key_group_of
from holdfast.state.operator.redistribution import NamedState, OperatorStateSnapshot, redistribute
from holdfast.state.timers.table import EVENT_TIMERS, PROCESSING_TIMERS
from holdfast.state_processor.regroup import regroup
from holdfast.storage.file_system import FileSystemFiles
from holdfast.storage.handles import inline
from tests.support.in_memory import IN_MEMORY
from tests.support.offline_savepoints import (
    UID,
    Operator,
    Restored,
    expected,
    expected_timers,
    opened,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.state.backend import KeyedStateBackend

KEYS: dict[str, list[Any]] = {
    "str": [f"key-{i}" for i in range(40)] + ["k" * 700, "", "ä"],
    "int": [*range(-20, 40), 2**63 - 1, -(2**63)],
    "bool": [True, False],
    "float": [0.5, -1.5, float("inf"), 1e300, *map(float, range(20))],
    "bytes": [bytes([i] * i) for i in range(20)],
    "date": [date(2024, 1, day) for day in range(1, 20)],
    "datetime": [datetime(2024, 1, day, tzinfo=UTC) for day in range(1, 20)],
    "datetime_ntz": [datetime(2024, 1, day, 3) for day in range(1, 20)],
    "Decimal": [Decimal(i) / 8 for i in range(20)],
    "tuple": [(f"a{i}", None if i % 3 else i, date(2024, 1, 1)) for i in range(20)],
}


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory in memory: what is written must be durable, which takes its time on a disk."""
    with TemporaryDirectory(dir=IN_MEMORY) as directory:
        scratch = Path(directory, "scratch")
        scratch.mkdir()
        monkeypatch.setattr("tempfile.tempdir", str(scratch))
        yield Path(directory)


def contents_of(keys: list[Any]) -> dict[Any, dict[str, Any]]:
    return {key: expected(number) for number, key in enumerate(keys)}


def element(name: str, mode: Any, *elements: bytes) -> NamedState:
    return NamedState(name, mode, [{"format": 1, "kind": "pickle"}], list(elements))


def own_state(*elements: bytes, **changes: Any) -> OperatorStateSnapshot:
    """Split and union state of the same elements, and a broadcast map."""
    state = OperatorStateSnapshot(
        [
            element("split", "split", *elements),
            element("union", "union", *elements),
            NamedState(
                "all", "broadcast", [{"format": 1, "kind": "pickle"}] * 2, [], [(b"\1k", b"\0")]
            ),
        ],
        [b"raw " + one for one in elements],
    )
    return msgspec.structs.replace(state, **changes)


def tree(path: str) -> dict[str, bytes]:
    files = [file for file in Path(path).rglob("*") if file.is_file()]
    return {str(file.relative_to(path)): file.read_bytes() for file in files}


@pytest.mark.parametrize("kind", KEYS)
def test_every_key_of_every_type_has_all_its_state_under_its_new_key_group(
    kind: str, root: Path
) -> None:
    keys = KEYS[kind]
    path = Operator(root).savepoint(keys)
    new = rewrite_max_parallelism(path, str(root / "new"), 128)
    restored = Restored(new, root / "restored", "hashmap", 3)
    assert restored.snapshot.key is not None
    assert restored.snapshot.key.startswith(kind)
    assert restored.contents(keys) == contents_of(keys)
    assert restored.timers(EVENT_TIMERS) == expected_timers(keys)
    assert restored.timers(PROCESSING_TIMERS) == expected_timers(keys)


@pytest.mark.parametrize(
    ("canonical", "before", "after", "parallelism", "old", "new"),
    [
        (True, "hashmap", "rocksdb", 4, 4, 128),
        (True, "rocksdb", "hashmap", 3, 128, 2),
        (False, "hashmap", "hashmap", 3, 128, 2),
        (False, "rocksdb", "rocksdb", 4, 4, 128),
        (True, "rocksdb", "rocksdb", 2, 8, 8),
        (False, "hashmap", "rocksdb", 2, 8, 8),
    ],
)
def test_both_forms_of_both_backends_are_rewritten(
    *, canonical: bool, before: str, after: str, parallelism: int, old: int, new: int, root: Path
) -> None:
    keys = KEYS["str"]
    operator = Operator(root, before, parallelism, old)
    path = operator.savepoint(keys, canonical=canonical)
    untouched = tree(path)
    written = rewrite_max_parallelism(path, str(root / "new"), new)
    assert tree(path) == untouched
    restored = Restored(written, root / "restored", after, min(2, new))
    assert restored.snapshot.max_parallelism == new
    assert restored.snapshot.parallelism == min(parallelism, new)
    assert restored.contents(keys) == contents_of(keys)
    assert restored.timers(EVENT_TIMERS) == expected_timers(keys)


def test_every_row_lies_in_the_file_of_the_subtask_that_owns_its_key_group(root: Path) -> None:
    path = Operator(root, parallelism=3).savepoint(KEYS["str"])
    new = rewrite_max_parallelism(path, str(root / "new"), 64)
    snapshot = load_savepoint(FileSystemFiles(new)).operators[0]
    rows = 0
    for store in snapshot.subtasks:
        assert store.key_groups is not None
        first, last = store.key_groups
        for name, handle in store.files.items():
            if name.startswith("keyed/"):
                table = pq.read_table(Path(new, handle.path)).to_pylist()  # type: ignore[union-attr]
                for row in table:
                    assert row["key_group"] == key_group_of(row["key"], 64)
                    assert first <= row["key_group"] <= last
                rows += len(table)
    assert rows > len(KEYS["str"])


def test_entries_that_come_in_many_chunks_are_sorted_all_the_same(
    root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    in_chunks = partial(regroup, chunk_bytes=5_000)
    monkeypatch.setattr("holdfast.state_processor.rewrite.regroup", in_chunks)
    keys = KEYS["int"]
    path = Operator(root).savepoint(keys)
    with caplog.at_level(logging.INFO, "holdfast"):
        new = rewrite_max_parallelism(path, str(root / "new"), 1000)
    assert len([line for line in caplog.messages if "have their new key groups" in line]) > 10
    assert "operator 'Op/1': max parallelism 4 becomes 1000" in caplog.messages
    assert Restored(new, root / "restored", "rocksdb", 2).contents(keys) == contents_of(keys)


EARLIER, NOW = ValueStateDescriptor("e", int), ValueStateDescriptor("e", int | str)


class Evolving(Operator):
    """An operator whose state has got another type between two epochs."""

    def _fill(self, local: Path, groups: range, keys: list[Any]) -> KeyedStateBackend:
        local.mkdir(parents=True)
        where = (self.backend, local / "store-itself")
        for epoch, (descriptor, value) in enumerate([(EARLIER, int), (NOW, str)]):
            version = "1-a" if epoch else None
            keyed, current = opened(*where, version, self.max_parallelism)
            state: Any = keyed.register(descriptor)
            for current.key in keys[epoch::2]:
                if key_group_of(current.key, self.max_parallelism) in groups:
                    state.update(value(current.key))
            keyed.commit("70-a" if epoch else "1-a", local / STORE if epoch else None)
        return keyed


@pytest.mark.parametrize("canonical", [True, False])
def test_values_of_an_earlier_type_are_still_read(*, canonical: bool, root: Path) -> None:
    keys = KEYS["int"]
    path = Evolving(root).savepoint(keys, canonical=canonical)
    new = rewrite_max_parallelism(path, str(root / "new"), 128)
    restored = Restored(new, root / "restored", "hashmap", 1)
    keyed, current = opened("hashmap", root / "restored" / "restored-0", "restored", 128)
    state: Any = keyed.register(NOW)
    found = {}
    for current.key in keys:
        found[current.key] = state.value()
    keyed.abort()
    assert found == {key: str(key) if place % 2 else key for place, key in enumerate(keys)}
    assert restored.snapshot.states[0]["others"]


def test_an_operator_that_never_had_a_key_is_rewritten(root: Path) -> None:
    path = Operator(root).savepoint([])
    new = rewrite_max_parallelism(path, str(root / "new"), 128)
    restored = Restored(new, root / "restored", "hashmap", 2)
    assert restored.snapshot.key is None
    assert restored.timers(EVENT_TIMERS) == set()


def test_operator_state_is_copied_subtask_by_subtask(root: Path) -> None:
    own: list[Any] = [own_state(b"a", b"b"), None, own_state(b"c")]
    for canonical in (True, False):
        operator = Operator(root / str(canonical), parallelism=3, own=own)
        path = operator.savepoint(KEYS["bool"], canonical=canonical)
        new = rewrite_max_parallelism(path, str(root / "new"), 128)
        assert Restored(new, root / f"restored-{canonical}", "hashmap", 1).own == own


def test_operator_state_of_fewer_subtasks_comes_to_the_same_when_restored(root: Path) -> None:
    own = [own_state(b"a", b"b", b"c"), own_state(b"d"), own_state(b"e")]
    path = Operator(root, parallelism=3, own=list(own)).savepoint(KEYS["bool"])
    new = rewrite_max_parallelism(path, str(root / "new"), 2)
    restored = Restored(new, root / "restored", "hashmap", 1)
    assert restored.snapshot.parallelism == 2
    assert redistribute(restored.own, 1, 2) == redistribute(list(own), 1, 4)
    [first, second] = redistribute(restored.own, 2, 2)
    assert first.states[0].elements == [b"a", b"b", b"c"]
    assert second.states[0].elements == [b"d", b"e"]
    assert first.states[1].elements == second.states[1].elements == [b"a", b"b", b"c", b"d", b"e"]


def test_raw_keyed_state_is_refused_and_nothing_is_written(root: Path) -> None:
    own = [own_state(b"a"), own_state(b"b", raw_key_groups={3: b"raw"})]
    path = Operator(root, own=list(own)).savepoint(KEYS["bool"])
    with pytest.raises(RestoreError, match=r"'Op/1'\) has raw keyed state.*in `operators`"):
        rewrite_max_parallelism(path, str(root / "new"), 128)
    assert not (root / "new").exists()
    # It stays where it is, if the operator does.
    new = rewrite_max_parallelism(path, str(root / "new"), 4)
    assert Restored(new, root / "restored", "hashmap", 1).own == own


def second_operator(metadata: CheckpointMetadata) -> CheckpointMetadata:
    [one] = metadata.operators
    other = msgspec.structs.replace(one, uid="other", name="Other")
    return msgspec.structs.replace(metadata, operators=[one, other])


def change(path: str, how: Any) -> str:
    """Write the savepoint's metadata anew."""
    files = FileSystemFiles(path)
    metadata = how(load_savepoint(files))
    Path(path, "_metadata").write_bytes(encode_metadata(metadata))
    return path


@pytest.mark.parametrize("canonical", [True, False])
def test_only_the_named_operators_change(*, canonical: bool, root: Path) -> None:
    keys = KEYS["int"]
    path = Operator(root).savepoint(keys, canonical=canonical)
    change(path, second_operator)
    new = rewrite_max_parallelism(path, str(root / "new"), 128, operators=["other"])
    restored = Restored(new, root / "restored", "hashmap", 2)
    assert [op.max_parallelism for op in restored.metadata.operators] == [4, 128]
    assert restored.contents(keys) == contents_of(keys)
    with pytest.raises(ConfigurationError, match=r"no state of an operator 'no'.*'Op/1', 'other'"):
        rewrite_max_parallelism(path, str(root / "new"), 128, operators=["no"])


def test_windows_over_all_elements_keep_their_one_key_group(root: Path) -> None:
    operator = Operator(root, parallelism=1, max_parallelism=1, keyed=False)
    for canonical in (True, False):
        operator.directory = root / str(canonical)
        path = operator.savepoint([0], canonical=canonical)
        new = rewrite_max_parallelism(path, str(root / "new"), 128)
        restored = Restored(new, root / f"restored-{canonical}", "hashmap", 1)
        assert restored.snapshot.max_parallelism == 1
        assert restored.contents([0]) == contents_of([0])
        with pytest.raises(ConfigurationError, match="windows over all elements"):
            rewrite_max_parallelism(path, str(root / "new"), 128, [UID])


def test_sources_go_on_where_they_were_and_the_savepoint_is_another_one(root: Path) -> None:
    source = SourceSnapshot(uid="in/put", position={"offset": 3}, logs={"parts": [inline(b"part")]})

    def with_source(metadata: CheckpointMetadata) -> CheckpointMetadata:
        log = FileSystemFiles(path).write_bytes("shared/7-log", b"a log")
        logs = {"parts": [*source.logs["parts"], log]}
        return msgspec.structs.replace(
            metadata, sources=[msgspec.structs.replace(source, logs=logs)]
        )

    path = Operator(root).savepoint(KEYS["bool"])
    change(path, with_source)
    new = rewrite_max_parallelism(Path(path), root / "new", 128)
    files = FileSystemFiles(new)
    old, metadata = load_savepoint(FileSystemFiles(path)), load_savepoint(files)
    [found] = metadata.sources
    assert (found.uid, found.position) == (source.uid, source.position)
    assert [files.read_bytes(one) for one in found.logs["parts"]] == [b"part", b"a log"]
    assert (metadata.epoch, metadata.batch_id) == (old.epoch, old.batch_id)
    # A job that has begun from the one must not take the other for it.
    assert identity_of(metadata) != identity_of(old)
    assert Path(new).parent == root / "new"


def test_a_retained_checkpoint_becomes_a_savepoint(root: Path) -> None:
    keys = KEYS["int"]
    savepoint = Path(Operator(root, "rocksdb").savepoint(keys, canonical=False))
    metadata = msgspec.structs.replace(
        load_savepoint(FileSystemFiles(str(savepoint))), is_savepoint=False
    )
    (savepoint / "_metadata").unlink()
    (savepoint / metadata_name(7)).parent.mkdir()
    (savepoint / metadata_name(7)).write_bytes(encode_metadata(metadata))
    for name in ("", "chk-7", "chk-7/_metadata"):
        new = rewrite_max_parallelism(str(savepoint / name), str(root / "new"), 64)
        assert load_savepoint(FileSystemFiles(new)).fence == 0
    assert Restored(new, root / "restored", "hashmap", 2).contents(keys) == contents_of(keys)
    with pytest.raises(ConfigurationError, match="within the old one"):
        rewrite_max_parallelism(str(savepoint / "chk-7"), str(savepoint / "chk-8"), 64)


STAGED = StagedHandle(handle=inline(b"rows"), rows=1)


@pytest.mark.parametrize(
    ("waiting", "what"),
    [
        ({"committables": [Committable(uid="s", checkpoint_id=7, epoch=1, subtask=0)]}, "output"),
        (
            {
                "channel_state": [
                    ChannelState(
                        uid=UID, input=0, subtask=0, parallelism=2, max_parallelism=4, rows=STAGED
                    )
                ]
            },
            "input",
        ),
    ],
)
def test_a_checkpoint_in_which_something_waits_is_refused(
    waiting: dict[str, Any], what: str, root: Path
) -> None:
    path = Operator(root).savepoint(KEYS["bool"], **waiting)
    with pytest.raises(RestoreError, match=rf"checkpoint 7 holds {what} .*stop it with a savepoi"):
        rewrite_max_parallelism(path, str(root / "new"), 128)
    assert not (root / "new").exists()


@pytest.mark.parametrize("number", [0, -1, 32769])
def test_a_number_out_of_bounds_is_refused(number: int, root: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"must be within 1\.\.32768"):
        rewrite_max_parallelism(str(root), str(root / "new"), number)


def test_a_number_as_text_is_refused(root: Path) -> None:
    with pytest.raises(
        ConfigurationError, match="expected an integer as max parallelism, got '64'"
    ):
        rewrite_max_parallelism(root, root / "new", "64")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="got True"):
        rewrite_max_parallelism(root, root / "new", True)


@pytest.mark.parametrize("number", [1, 32768, default_max_parallelism(100)])
def test_the_bounds_themselves_are_not(number: int, root: Path) -> None:
    keys = KEYS["int"]
    path = Operator(root).savepoint(keys)
    new = rewrite_max_parallelism(path, str(root / "new"), number)
    assert Restored(new, root / "restored", "hashmap", 1).contents(keys) == contents_of(keys)


def test_a_target_within_the_savepoint_is_refused(root: Path) -> None:
    path = Operator(root).savepoint(KEYS["bool"])
    untouched = tree(path)
    for target in (path, f"{path}/", f"{path}/below", f"{path}/../{Path(path).name}/below"):
        with pytest.raises(ConfigurationError, match="would lie within the old one"):
            rewrite_max_parallelism(path, target, 128)
    assert tree(path) == untouched
    # A neighbour whose name begins alike is outside.
    assert rewrite_max_parallelism(path, f"{path}-new", 128).startswith(f"{path}-new/savepoint-")


def test_what_is_no_savepoint_or_damaged_is_refused_and_leaves_nothing(root: Path) -> None:
    target = root / "new"
    with pytest.raises(RestoreError, match="no complete savepoint or checkpoint"):
        rewrite_max_parallelism(str(root), str(target), 128)
    path = Operator(root).savepoint(KEYS["str"])
    [table] = Path(path).glob("*/keyed/value/part-00001.parquet")
    data = bytearray(table.read_bytes())
    data[len(data) // 2] ^= 0xFF
    table.write_bytes(data)
    with pytest.raises(CorruptCheckpointError, match="the content has changed"):
        rewrite_max_parallelism(path, str(target), 128)
    assert not target.exists() or not list(target.iterdir())
    table.unlink()
    with pytest.raises(CorruptCheckpointError, match="is gone"):
        rewrite_max_parallelism(path, str(target), 128)


def test_a_failure_on_the_way_leaves_nothing_behind(root: Path) -> None:
    path = Operator(root).savepoint(KEYS["str"])
    with pytest.raises(CheckpointStorageError, match="No space left"):
        rewrite_max_parallelism(path, f"fulldisk://{root}/full", 128)
    assert not list((root / "full").iterdir())
    assert not list((root / "scratch").iterdir())


def test_a_full_disk_for_temporary_files_is_named(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise StoreFullError("there is no room")

    path = Operator(root).savepoint(KEYS["bool"])
    monkeypatch.setattr("holdfast.state_processor.rewrite.regroup", full)
    with pytest.raises(StoreFullError, match=r"no room .*/scratch/holdfast-rewrite.*set TMPDIR"):
        rewrite_max_parallelism(path, str(root / "new"), 128)
    assert not (root / "new").exists() or not list((root / "new").iterdir())
