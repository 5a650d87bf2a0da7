"""The notes of jobs that have ended for good."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from holdfast.checkpoint.files.cleanup import delete_job
from holdfast.checkpoint.files.endings import (
    FINISHED,
    STOPPED,
    check_not_ended,
    delete_finished,
    finished_at,
    forget_ending,
    note_finished,
    note_stopped,
)
from holdfast.checkpoint.files.fence import take_fence
from holdfast.checkpoint.files.layout import metadata_name
from holdfast.checkpoint.files.metadata import encode_metadata, identity_of
from holdfast.errors import RestoreError
from holdfast.storage.file_system import FileSystemFiles
from tests.support.checkpoints import checkpoint

if TYPE_CHECKING:
    from pathlib import Path

JOB = "orders"
STOPPED_V1 = b'{"format":1,"savepoint":"/savepoints/one","job_id":"orders"}'
FINISHED_V1 = b'{"format":1,"job_id":"orders","fence":3,"finished_ms":1767225600000}'
"""As the first release writes them; later ones must read them."""


@pytest.fixture
def files(tmp_path: Path) -> FileSystemFiles:
    files = FileSystemFiles(str(tmp_path / "job"))
    files.create_exclusive(metadata_name(3), b"a checkpoint")
    return files


def test_a_job_that_finished_says_when(files: FileSystemFiles) -> None:
    assert finished_at(files, JOB) is None
    note_finished(files, JOB, 3, 1767225600000)
    assert files.read(FINISHED) == FINISHED_V1
    assert finished_at(files, JOB) == "at 2026-01-01 00:00:00 UTC"


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b'{"format":2}', b'{"format":1,"job_id":"orders","fence":1,"finished_ms":1e99}'],
)
def test_a_finished_job_whose_note_cannot_be_read_has_still_finished(
    files: FileSystemFiles, data: bytes
) -> None:
    files.create_exclusive(FINISHED, data)
    assert finished_at(files, JOB) is not None


def test_the_checkpoints_go_and_the_notes_stay(files: FileSystemFiles) -> None:
    note_stopped(files, JOB, "/savepoints/one")
    delete_job(files)
    assert files.entries() == {STOPPED: len(STOPPED_V1)}
    assert files.read(STOPPED) == STOPPED_V1
    with pytest.raises(RestoreError, match=r"'/savepoints/one'.*from_savepoint.*stopped\.json"):
        check_not_ended(files, JOB)


def test_the_newest_savepoint_counts(files: FileSystemFiles) -> None:
    note_stopped(files, JOB, "/savepoints/one")
    note_stopped(files, JOB, "/savepoints/two")
    with pytest.raises(RestoreError, match="'/savepoints/two'"):
        check_not_ended(files, JOB)


def test_a_stopped_job_starts_from_its_savepoint_alone(
    files: FileSystemFiles, tmp_path: Path
) -> None:
    """A program that names an older one is started again by a supervisor, say."""
    stopped_with, older = (
        msgspec.structs.replace(checkpoint(number), is_savepoint=True) for number in (7, 2)
    )
    place = FileSystemFiles(str(tmp_path / "savepoint-1"))
    place.create_exclusive("_metadata", encode_metadata(stopped_with))
    note_stopped(files, JOB, place.root)
    assert identity_of(stopped_with) in str(files.read(STOPPED))
    check_not_ended(files, JOB, stopped_with)
    with pytest.raises(
        RestoreError, match=r"start from another one.*publish its output again.*stopped\.json"
    ):
        check_not_ended(files, JOB, older)


def test_a_job_that_ends_otherwise_leaves_nothing(files: FileSystemFiles, tmp_path: Path) -> None:
    note_stopped(files, JOB, "/savepoints/one")
    note_finished(files, JOB, 3, 1)
    forget_ending(files)
    delete_job(files)
    check_not_ended(files, JOB)
    assert not (tmp_path / "job").exists()


@pytest.mark.parametrize("data", [b"", b"{", b'{"format":2}', b"[1]"])
def test_a_stop_whose_note_cannot_be_read_still_refuses(
    files: FileSystemFiles, data: bytes
) -> None:
    files.create_exclusive(STOPPED, data)
    with pytest.raises(RestoreError, match="does not name in a way"):
        check_not_ended(files, JOB)


def test_one_ending_takes_the_place_of_another(files: FileSystemFiles) -> None:
    note_stopped(files, JOB, "/savepoints/one")
    note_finished(files, JOB, 3, 1)
    assert not files.exists(STOPPED)
    note_stopped(files, JOB, "/savepoints/two")
    assert finished_at(files, JOB) is None


def test_a_note_speaks_of_its_own_job(files: FileSystemFiles) -> None:
    """Several jobs may share a directory, one after the other."""
    note_finished(files, "another", 3, 1)
    assert finished_at(files, JOB) is None
    check_not_ended(files, JOB)
    note_stopped(files, "another", "/savepoints/one")
    check_not_ended(files, JOB)


def test_a_job_that_finished_while_another_driver_was_starting_does_not_begin_anew(
    files: FileSystemFiles,
) -> None:
    note_finished(files, JOB, 3, 1)
    with pytest.raises(RestoreError, match="another driver of this job has finished it"):
        check_not_ended(files, JOB)


def test_what_a_finished_job_left_goes_unless_somebody_runs_there(files: FileSystemFiles) -> None:
    take_fence(files)
    note_finished(files, JOB, 1, 1)
    take_fence(files)
    delete_finished(files)
    assert files.exists(metadata_name(3))
    note_finished(files, JOB, 2, 1)
    delete_finished(files)
    assert set(files.entries()) == {FINISHED, "used"}
