"""Bringing one subtask's state back, where Spark may try that again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast import EmbeddedRocksDBStateBackend, HashMapStateBackend
from holdfast.checkpoint.restore.download import Restore, RestoreTarget, StoredCopy, restore_one
from holdfast.checkpoint.savepoint.parts import SavepointTarget
from holdfast.checkpoint.subtask_upload import Upload, upload_one
from holdfast.checkpoint.transfer import upload_snapshot
from holdfast.errors import CheckpointError, CheckpointStorageError, StoreVersionError
from holdfast.job.model import JobIdentity
from holdfast.runtime.report import OPERATOR_STATE, STORE
from holdfast.state.store.opening import open_store
from holdfast.state.store.process import ProcessIdentity
from holdfast.state.store.snapshot import snapshot_sizes
from holdfast.storage.file_system import FileSystemFiles

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
        target=RestoreTarget(
            JobIdentity("job", "Job", str(tmp_path / "local"), "2-1"),
            ProcessIdentity.current(),
            backend,
        ),
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


class _Flaky(FileSystemFiles):
    """Storage that fails once."""

    failed = False

    def write_file(self, *args: Any, **options: Any) -> Any:
        if not self.failed:
            self.failed = True
            raise CheckpointStorageError("the connection was reset")
        return super().write_file(*args, **options)


@pytest.fixture(params=BACKENDS, ids=lambda backend: backend.name)
def upload(request: Any, tmp_path: Path) -> Upload:
    store = open_store(request.param, tmp_path / "store", None)
    store.write([(b"\x01key", b"value")])
    directory = tmp_path / "0-1"
    directory.mkdir()
    store.commit("1-1", directory / STORE)
    (directory / OPERATOR_STATE).write_bytes(b"operator state")
    return Upload(
        1,
        1,
        "count",
        0,
        str(directory),
        incremental=False,
        inline_below=0,
        files=snapshot_sizes(directory / STORE),
        has_operator_state=True,
    )


def test_an_upload_that_failed_can_be_tried_again(upload: Upload, tmp_path: Path) -> None:
    files = _Flaky(str(tmp_path / "checkpoints"))
    with pytest.raises(CheckpointStorageError):
        upload_one(upload, files=files)
    done = upload_one(upload, files=files)
    assert set(done.files) == set(upload.files)
    assert done.operator_state is not None
    assert not Path(upload.directory).exists()


def test_an_upload_that_is_tried_again_after_its_snapshot_went_fails(
    upload: Upload, tmp_path: Path
) -> None:
    files = FileSystemFiles(str(tmp_path / "checkpoints"))
    upload_one(upload, files=files)
    with pytest.raises(CheckpointError, match="is incomplete"):
        upload_one(upload, files=files)


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("what", [OPERATOR_STATE, STORE])
def test_of_a_snapshot_that_is_partly_removed_nothing_is_uploaded(
    upload: Upload, tmp_path: Path, what: str, alone: bool
) -> None:
    """Neither for a checkpoint, nor for a savepoint that is taken without one."""
    files = FileSystemFiles(str(tmp_path / "checkpoints"))
    gone = Path(upload.directory) / what
    if gone.is_dir():
        gone /= min(upload.files)
    gone.unlink()
    target = SavepointTarget(files, HashMapStateBackend(), canonical=False, alone=True)
    with pytest.raises(CheckpointError, match="so its checkpoint cannot complete"):
        upload_one(replace(upload, savepoint=target if alone else None), files=files)
    assert not (tmp_path / "checkpoints").exists()
