"""Bringing one subtask's state back, where Spark may try that again."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from holdfast import EmbeddedRocksDBStateBackend, HashMapStateBackend
from holdfast.checkpoint.files import FileSystemFiles
from holdfast.checkpoint.transfer import upload_snapshot
from holdfast.errors import StoreVersionError
from holdfast.spark.snapshot_transfer import Restore, StoredCopy, restore_one
from holdfast.state.machine import ProcessIdentity
from holdfast.state.open_store import open_store

if TYPE_CHECKING:
    from pathlib import Path

BACKENDS = [HashMapStateBackend(), EmbeddedRocksDBStateBackend()]


@pytest.fixture(params=BACKENDS, ids=lambda backend: backend.name)
def restore(request: Any, tmp_path: Path) -> tuple[Restore, FileSystemFiles]:
    backend = request.param
    files = FileSystemFiles(str(tmp_path / "checkpoints"))
    store = open_store(backend, tmp_path / "store", None)
    store.write([(b"\x01key", b"value")])
    store.commit("1-1", tmp_path / "snapshot")
    handles, _ = upload_snapshot(tmp_path / "snapshot", files, 1)
    order = Restore(
        job_id="job",
        incarnation="2-1",
        local_dir=str(tmp_path / "local"),
        owner=ProcessIdentity.current(),
        backend=backend,
        uid="count",
        subtask=0,
        version="restored-1-2-1",
        copies=(StoredCopy(handles, "1-1"),),
        kind=backend.name,
        whole=True,
        key_groups=range(128),
        operator_state=None,
    )
    return order, files


def test_a_restore_that_is_tried_again_finds_what_the_first_try_has_finished(
    restore: tuple[Restore, FileSystemFiles],
) -> None:
    order, files = restore
    first = restore_one(order, files=files)
    again = restore_one(order, files=files)
    assert first.downloaded > 0
    assert (again.uid, again.subtask, again.version) == ("count", 0, "restored-1-2-1")
    assert again.downloaded == 0


def test_a_store_of_something_else_is_never_taken_for_the_restored_one(
    restore: tuple[Restore, FileSystemFiles],
) -> None:
    order, files = restore
    restore_one(order, files=files)
    with pytest.raises(StoreVersionError):
        restore_one(replace(order, version="restored-7-2-1"), files=files)
