"""A completed checkpoint that is lost is missed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from holdfast.checkpoint.files.cleanup import delete_job, delete_unfinished
from holdfast.checkpoint.files.completed import (
    checkpoint_ids,
    completed_checkpoints,
    load_newest,
    store_metadata,
)
from holdfast.checkpoint.files.fence import take_fence
from holdfast.checkpoint.files.job_files import JobStorage
from holdfast.checkpoint.files.layout import metadata_name
from holdfast.checkpoint.files.ledger import lost_checkpoint, record_completed, recorded_checkpoints
from holdfast.checkpoint.files.metadata import encode_metadata
from holdfast.errors import CheckpointStorageError
from holdfast.storage.file_system import FileSystemFiles
from tests.support.checkpoints import checkpoint

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from holdfast.storage.handles import FileHandle, Handle


class Died(BaseException):
    """The driver is dead."""


class Mortal(FileSystemFiles):
    """Files whose driver dies after a number of changes, before or after the next one."""

    left = 1_000
    after = False

    def create_exclusive(self, name: str, data: bytes) -> bool:
        self._count()
        created = super().create_exclusive(name, data)
        self._die()
        return created

    def write_bytes(self, name: str, data: bytes) -> FileHandle:
        self._count()
        handle = super().write_bytes(name, data)
        self._die()
        return handle

    def delete(self, name: str) -> None:
        self._count()
        super().delete(name)
        self._die()

    def delete_tree(self, directory: str) -> None:
        self._count()
        super().delete_tree(directory)
        self._die()

    def _count(self) -> None:
        self.left -= 1
        if self.left < 0 or (self.left == 0 and not self.after):
            raise Died

    def _die(self) -> None:
        if self.left == 0 and self.after:
            raise Died


def lost(files: FileSystemFiles, unwanted: Collection[int] = ()) -> int | None:
    written = [one for one in checkpoint_ids(files) if files.exists(metadata_name(one))]
    records = recorded_checkpoints(files)
    return lost_checkpoint(files, records, completed_checkpoints(files), written, unwanted)


def complete(files: FileSystemFiles, *ids: int) -> JobStorage:
    storage = JobStorage(files, take_fence(files))
    for checkpoint_id in ids:
        storage.complete(checkpoint(checkpoint_id, fence=storage.fence.number))
    return storage


@pytest.mark.parametrize("gone", ["chk-7", "chk-7/_metadata"])
def test_a_newest_checkpoint_that_somebody_deleted_is_missed(
    files: FileSystemFiles, gone: str
) -> None:
    complete(files, 6, 7)
    assert lost(files) is None
    files.delete_tree(gone) if gone == "chk-7" else files.delete(gone)
    assert lost(files) == 7
    newest, refusals = load_newest(files)
    assert newest is not None
    assert newest.checkpoint_id == 6
    assert [(one, "no longer there" in why) for one, why in refusals.items()] == [(7, True)]


def test_the_only_checkpoint_is_missed(files: FileSystemFiles) -> None:
    complete(files, 7)
    files.delete_tree("chk-7")
    assert lost(files) == 7


def test_an_older_checkpoint_is_not_missed(files: FileSystemFiles) -> None:
    complete(files, 6, 7)
    files.delete_tree("chk-6")
    assert lost(files) is None


def test_a_checkpoint_that_the_job_itself_deleted_is_not_missed(files: FileSystemFiles) -> None:
    """A discarded one, say, or one that retention no longer keeps."""
    storage = complete(files, 6, 7)
    storage.delete(7)
    assert lost(files) is None
    assert recorded_checkpoints(files) == [(1, 6)]
    storage.delete(6)
    assert recorded_checkpoints(files) == []


def test_a_checkpoint_of_the_driver_before_goes_with_its_record(files: FileSystemFiles) -> None:
    complete(files, 6)
    storage = JobStorage(files, take_fence(files), [checkpoint(6)])
    storage.complete(checkpoint(7, fence=2))
    storage.delete(6)
    assert recorded_checkpoints(files) == [(2, 7)]


def test_one_that_a_replaced_driver_completed_under_the_same_id_goes_with_its_record(
    files: FileSystemFiles,
) -> None:
    """The next driver cannot complete one of that id, and discards it."""
    old, new = take_fence(files), take_fence(files)
    storage = JobStorage(files, new)
    late = checkpoint(1, fence=old.number)
    files.create_exclusive(metadata_name(1), encode_metadata(late))
    record_completed(files, late)
    with pytest.raises(CheckpointStorageError, match="complete already"):
        storage.complete(checkpoint(1, fence=new.number))
    storage.delete(1)
    assert lost(files) is None
    assert recorded_checkpoints(files) == []


def test_one_that_was_given_up_is_not_missed(files: FileSystemFiles) -> None:
    """Its metadata was written while the job gave it up, and is being deleted."""
    complete(files, 6, 7)
    files.delete_tree("chk-7")
    assert lost(files, unwanted={7}) is None


def test_what_a_replaced_driver_completed_too_late_is_not_missed(files: FileSystemFiles) -> None:
    old = complete(files, 6)
    new = take_fence(files)
    new.going_back(1, 6)
    late = checkpoint(7, fence=old.fence.number)
    record_completed(files, late)
    assert lost(files) is None


def test_a_checkpoint_without_a_record_is_not_missed(files: FileSystemFiles) -> None:
    """Its driver died before the record, or was of a release that wrote none."""
    store_metadata(files, checkpoint(6), take_fence(files))
    assert lost(files) is None
    files.delete_tree("chk-6")
    assert lost(files) is None


def test_records_of_what_is_long_gone_are_swept(files: FileSystemFiles) -> None:
    complete(files, 6, 7)
    files.delete_tree("chk-6")
    fence = take_fence(files)
    assert delete_unfinished(files, below=8, fence=fence) == ["completed/1-6"]
    files.delete_tree("chk-7")
    assert delete_unfinished(files, below=8, fence=fence) == []
    assert lost(files) == 7


def test_what_is_left_of_a_lost_checkpoint_is_not_swept(files: FileSystemFiles) -> None:
    """Somebody may bring its metadata back."""
    handles: dict[str, Handle] = {
        name: files.write_bytes(name, b"state") for name in ("chk-7/a", "shared/7-aa")
    }
    fence = take_fence(files)
    JobStorage(files, fence).complete(checkpoint(7, handles))
    files.delete(metadata_name(7))
    files.write_bytes("chk-8/a", b"unfinished")
    assert delete_unfinished(files, below=9, fence=fence) == ["chk-8"]
    assert all(map(files.exists, handles))


def test_a_record_that_cannot_be_written_fails_the_checkpoint(
    files: FileSystemFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = complete(files, 6)
    create = files.create_exclusive

    def full(name: str, data: bytes) -> bool:
        if name.startswith("completed/"):
            raise CheckpointStorageError("no room")
        return create(name, data)

    monkeypatch.setattr(files, "create_exclusive", full)
    with pytest.raises(CheckpointStorageError):
        storage.complete(checkpoint(7))
    storage.delete(7)
    assert lost(files) is None
    assert [one for _, one in completed_checkpoints(files)] == [6]


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("changes", range(1, 22))
def test_no_death_of_the_driver_makes_a_checkpoint_look_lost(
    tmp_path: Path, changes: int, after: bool
) -> None:
    """Completing, discarding and retiring checkpoints, and the end of the job."""
    files = Mortal(str(tmp_path / "job"))
    files.left, files.after = changes, after
    newest = 0
    try:
        storage = complete(files, 1)
        newest = 1
        storage.complete(checkpoint(2))
        newest = 2
        storage.delete(1)
        storage.complete(checkpoint(3))
        storage.delete(3)
        storage.complete(checkpoint(4))
        newest = 4
        storage.delete(2)
        newest = 0
        delete_job(files)
    except Died:
        files.left = 1_000
    assert lost(files) is None
    assert newest <= max((one for _, one in completed_checkpoints(files)), default=0)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("changes", range(1, 14))
def test_a_deletion_that_breaks_off_leaves_the_newest_checkpoint_or_none(
    tmp_path: Path, changes: int, after: bool
) -> None:
    """An older one would publish again what came after it."""
    files = Mortal(str(tmp_path / "job"))
    complete(files, 1, 2, 3)
    files.left, files.after = changes, after
    try:
        delete_job(files)
    except Died:
        files.left = 1_000
    newest, refusals = load_newest(files)
    assert refusals == {}
    assert newest is None or newest.checkpoint_id == 3
