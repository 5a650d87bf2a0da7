"""Savepoints from elsewhere: nothing in them runs where they are restored or rewritten."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from holdfast import ValueStateDescriptor
from holdfast.checkpoint.files.metadata import OperatorSnapshot, StoreSnapshot
from holdfast.checkpoint.restore.pointer import find_snapshot
from holdfast.checkpoint.savepoint.parts import SavepointTarget, write_part
from holdfast.checkpoint.savepoint.storage import new_savepoint, store_savepoint
from holdfast.checkpoint.transfer import download_snapshot
from holdfast.config.backends import backend_named
from holdfast.savepoints import rewrite_max_parallelism
from holdfast.state.key_groups import key_groups
from holdfast.state.restore import restore_store
from holdfast.state.store.snapshot import CANONICAL
from holdfast.storage.file_system import FileSystemFiles
from tests.support.checkpoints import checkpoint
from tests.support.state_tables import State

if TYPE_CHECKING:
    from pathlib import Path


class Intruder:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return open, (str(self.file), "w")


def test_no_value_is_unpickled_but_by_the_function_that_reads_it(tmp_path: Path) -> None:
    left = tmp_path / "left"
    state = State(tmp_path / "local")
    handle = state.register(ValueStateDescriptor("anything"))
    state.current.key = 7
    handle.update(Intruder(left))
    state.keyed.commit("1-test", tmp_path / "local" / "store-snapshot")
    (tmp_path / "part").mkdir()
    (tmp_path / "local" / "store-snapshot").rename(tmp_path / "part" / "store")
    files = new_savepoint(str(tmp_path / "savepoints"), "job")
    target = SavepointTarget(files, backend_named("hashmap"), canonical=True, alone=True)
    part = write_part(tmp_path / "part", target, uid="any", subtask=0, checkpoint_id=7)
    store = StoreSnapshot(
        subtask=0,
        backend="canonical",
        version="1-test",
        key_groups=(0, 127),
        files=part.files,
        full_size=part.size,
        uploaded_size=part.size,
    )
    operator = OperatorSnapshot(
        uid="any",
        name="Any",
        parallelism=1,
        max_parallelism=128,
        states=[{"name": "anything", "kind": "value", "schema": [{"kind": "pickle"}]}],
        key="int",
        subtasks=[store],
    )
    metadata = msgspec.structs.replace(checkpoint(7), is_savepoint=True, operators=[operator])
    store_savepoint(files, metadata)

    rewritten = rewrite_max_parallelism(files.root, str(tmp_path / "again"), 16)
    found, metadata = find_snapshot(rewritten)
    assert isinstance(found, FileSystemFiles)
    download_snapshot(metadata.operators[0].subtasks[0].files, found, tmp_path / "downloaded")
    restore_store(
        backend_named("rocksdb"),
        [tmp_path / "downloaded"],
        tmp_path / "restored",
        version="r",
        key_groups=key_groups(0, 1, 16),
        whole=False,
        operator_state=None,
        kind=CANONICAL,
    )
    assert not left.exists()
    # It is there all the same, for a function that declares a state without a type.
    restored = State(
        tmp_path, "rocksdb", max_parallelism=16, epoch=2, store=tmp_path / "restored", version="r"
    )
    read = restored.register(ValueStateDescriptor("anything"))
    restored.current.key = 7
    read.value().close()
    assert left.exists()
