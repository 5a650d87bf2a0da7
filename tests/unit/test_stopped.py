"""The note of a job that was ended with a savepoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from holdfast.checkpoint.files import FileSystemFiles
from holdfast.checkpoint.stopped import STOPPED, check_not_stopped, note_stopped
from holdfast.checkpoint.storage import metadata_name
from holdfast.checkpoint.sweep import delete_job
from holdfast.errors import CheckpointStorageError, RestoreError

if TYPE_CHECKING:
    from pathlib import Path

WRITTEN = b'{"format":1,"savepoint":"/savepoints/one"}'
"""As the first release writes it; later ones must read it."""


@pytest.fixture
def files(tmp_path: Path) -> FileSystemFiles:
    files = FileSystemFiles(str(tmp_path / "job"))
    files.create_exclusive(metadata_name(3), b"a checkpoint")
    return files


def test_the_checkpoints_go_and_the_note_stays(files: FileSystemFiles) -> None:
    delete_job(files, savepoint="/savepoints/one")
    assert files.entries() == {STOPPED: len(WRITTEN)}
    assert files.read(STOPPED) == WRITTEN
    with pytest.raises(RestoreError, match=r"'/savepoints/one'.*from_savepoint.*stopped\.json"):
        check_not_stopped(files)


def test_the_newest_savepoint_counts(files: FileSystemFiles) -> None:
    note_stopped(files, "/savepoints/one")
    note_stopped(files, "/savepoints/two")
    with pytest.raises(RestoreError, match="'/savepoints/two'"):
        check_not_stopped(files)


def test_no_checkpoint_goes_before_the_note_is_there(
    files: FileSystemFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(name: str, data: bytes) -> bool:
        raise CheckpointStorageError(f"{name}: no room for {len(data)} bytes")

    monkeypatch.setattr(files, "create_exclusive", full)
    with pytest.raises(CheckpointStorageError):
        delete_job(files, savepoint="/savepoints/one")
    assert files.exists(metadata_name(3))


def test_a_job_that_ends_otherwise_leaves_nothing(files: FileSystemFiles, tmp_path: Path) -> None:
    note_stopped(files, "/savepoints/one")
    delete_job(files)
    check_not_stopped(files)
    assert not (tmp_path / "job").exists()


@pytest.mark.parametrize("data", [b"", b"{", b'{"format":2}', b"[1]"])
def test_a_note_that_cannot_be_read_still_refuses(files: FileSystemFiles, data: bytes) -> None:
    files.create_exclusive(STOPPED, data)
    with pytest.raises(RestoreError, match="does not name in a way"):
        check_not_stopped(files)
