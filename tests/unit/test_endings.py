"""The notes of jobs that have ended for good."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from holdfast.checkpoint.endings import (
    FINISHED,
    STOPPED,
    check_not_stopped,
    finished_at,
    forget_ending,
    note_finished,
    note_stopped,
)
from holdfast.checkpoint.files import FileSystemFiles
from holdfast.checkpoint.metadata import encode_metadata, identity_of
from holdfast.checkpoint.storage import metadata_name
from holdfast.checkpoint.sweep import delete_job
from holdfast.errors import RestoreError
from tests.unit.checkpoints import checkpoint

if TYPE_CHECKING:
    from pathlib import Path

STOPPED_V1 = b'{"format":1,"savepoint":"/savepoints/one"}'
FINISHED_V1 = b'{"format":1,"job_name":"orders","finished_ms":1767225600000}'
"""As the first release writes them; later ones must read them."""


@pytest.fixture
def files(tmp_path: Path) -> FileSystemFiles:
    files = FileSystemFiles(str(tmp_path / "job"))
    files.create_exclusive(metadata_name(3), b"a checkpoint")
    return files


def test_a_job_that_finished_says_when(files: FileSystemFiles) -> None:
    assert finished_at(files) is None
    note_finished(files, "orders", 1767225600000)
    assert files.read(FINISHED) == FINISHED_V1
    assert finished_at(files) == "at 2026-01-01 00:00:00 UTC"


@pytest.mark.parametrize(
    "data", [b"", b"{", b'{"format":2}', b'{"format":1,"job_name":"","finished_ms":1e99}']
)
def test_a_finished_job_whose_note_cannot_be_read_has_still_finished(
    files: FileSystemFiles, data: bytes
) -> None:
    files.create_exclusive(FINISHED, data)
    assert finished_at(files) is not None


def test_the_checkpoints_go_and_the_notes_stay(files: FileSystemFiles) -> None:
    note_stopped(files, "/savepoints/one")
    note_finished(files, "orders", 1767225600000)
    delete_job(files)
    assert files.entries() == {STOPPED: len(STOPPED_V1), FINISHED: len(FINISHED_V1)}
    assert files.read(STOPPED) == STOPPED_V1
    with pytest.raises(RestoreError, match=r"'/savepoints/one'.*from_savepoint.*stopped\.json"):
        check_not_stopped(files)


def test_the_newest_savepoint_counts(files: FileSystemFiles) -> None:
    note_stopped(files, "/savepoints/one")
    note_stopped(files, "/savepoints/two")
    with pytest.raises(RestoreError, match="'/savepoints/two'"):
        check_not_stopped(files)


def test_a_stopped_job_starts_from_its_savepoint_alone(
    files: FileSystemFiles, tmp_path: Path
) -> None:
    """A program that names an older one is started again by a supervisor, say."""
    stopped_with, older = (
        msgspec.structs.replace(checkpoint(number), format=3, is_savepoint=True)
        for number in (7, 2)
    )
    place = FileSystemFiles(str(tmp_path / "savepoint-1"))
    place.create_exclusive("_metadata", encode_metadata(stopped_with))
    note_stopped(files, place.root)
    assert identity_of(stopped_with) in str(files.read(STOPPED))
    check_not_stopped(files, stopped_with)
    with pytest.raises(RestoreError, match=r"begin from another one.*comes again.*stopped\.json"):
        check_not_stopped(files, older)


def test_a_job_that_ends_otherwise_leaves_nothing(files: FileSystemFiles, tmp_path: Path) -> None:
    note_stopped(files, "/savepoints/one")
    note_finished(files, "orders", 1)
    forget_ending(files)
    delete_job(files)
    check_not_stopped(files)
    assert not (tmp_path / "job").exists()


@pytest.mark.parametrize("data", [b"", b"{", b'{"format":2}', b"[1]"])
def test_a_stop_whose_note_cannot_be_read_still_refuses(
    files: FileSystemFiles, data: bytes
) -> None:
    files.create_exclusive(STOPPED, data)
    with pytest.raises(RestoreError, match="does not name in a way"):
        check_not_stopped(files)
