"""No id and no fence is used twice, however often a job ends and begins anew."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from holdfast.checkpoint.files.cleanup import delete_job
from holdfast.checkpoint.files.completed import completed_checkpoints
from holdfast.checkpoint.files.endings import (
    FINISHED,
    delete_finished,
    forget_ending,
    note_finished,
)
from holdfast.checkpoint.files.fence import take_fence
from holdfast.checkpoint.files.job_files import JobStorage
from holdfast.checkpoint.files.used import highest_used
from holdfast.checkpoint.restore.restorer import Restorer
from holdfast.errors import FencedError
from tests.support.checkpoints import checkpoint
from tests.unit.checkpoint.test_ledger import Died, Mortal

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.storage.file_system import FileSystemFiles


def run(files: FileSystemFiles, *ids: int) -> JobStorage:
    """A driver that completes checkpoints."""
    storage = JobStorage(files, take_fence(files, highest_used(files)[0]))
    for checkpoint_id in ids:
        storage.complete(checkpoint(checkpoint_id, fence=storage.fence.number))
    return storage


def next_id(files: FileSystemFiles) -> int:
    return Restorer(files, None, ignore_unclaimed=False).next_id()


def test_a_job_that_was_cancelled_and_runs_again_counts_on(files: FileSystemFiles) -> None:
    """A table that skips ids that it has seen would lose the rows of the next run."""
    run(files, 1, 2)
    run(files, 3)
    forget_ending(files)
    delete_job(files, runs_again=True)
    assert files.entries().keys() == {"used"}
    assert files.read("used/2-3") == b'{"format":1,"checkpoint_id":3,"fence":2}'
    assert next_id(files) == 4
    assert run(files, 4).fence.number == 3


def test_what_is_kept_does_not_grow(files: FileSystemFiles) -> None:
    for number in range(1, 6):
        run(files, next_id(files))
        delete_job(files, runs_again=True)
        assert files.entries("used").keys() == {f"{number}-{number}"}


def test_a_run_without_a_checkpoint_forgets_nothing(files: FileSystemFiles) -> None:
    run(files, 7)
    delete_job(files, runs_again=True)
    run(files)
    delete_job(files, runs_again=True)
    assert files.entries("used").keys() == {"2-7"}
    assert next_id(files) == 8


def test_a_job_that_never_had_a_checkpoint_leaves_nothing(files: FileSystemFiles) -> None:
    run(files)
    delete_job(files, runs_again=True)
    assert files.entries() == {}


def test_a_job_that_nobody_can_start_again_leaves_nothing(files: FileSystemFiles) -> None:
    run(files, 1)
    delete_job(files)
    assert files.entries() == {}


def test_a_finished_job_that_is_allowed_to_run_again_counts_on(files: FileSystemFiles) -> None:
    """Its driver died before anything was deleted; later somebody removes the note."""
    storage = run(files, 1, 2)
    note_finished(files, "job", storage.fence.number, 1)
    delete_finished(files)
    files.delete(FINISHED)
    assert completed_checkpoints(files) == []
    assert next_id(files) == 3


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("changes", range(1, 16))
def test_an_interrupted_deletion_forgets_no_id(tmp_path: Path, changes: int, after: bool) -> None:
    files = Mortal(str(tmp_path / "job"))
    run(files, 1, 2)
    delete_job(files, runs_again=True)
    run(files, 3)
    files.left, files.after = changes, after
    try:
        delete_job(files, runs_again=True)
    except Died:
        files.left = 1_000
    assert highest_used(files) == (2, 3)


def test_a_driver_that_was_replaced_notices_though_the_fence_behind_its_own_is_lost(
    files: FileSystemFiles,
) -> None:
    run(files)
    old = run(files)
    run(files, 7)
    files.delete("fence/3")
    new = run(files)
    assert new.fence.number == 4
    with pytest.raises(FencedError, match="another has taken fence 4"):
        old.fence.check()
    new.fence.check()
    assert run(files).fence.number == 5


@pytest.mark.parametrize("lost", ["records", "checkpoints", "neither"])
def test_fences_count_on_when_their_directory_is_lost(files: FileSystemFiles, lost: str) -> None:
    """Otherwise an old checkpoint, of a high fence, would count as the newest."""
    run(files)
    run(files)
    old = run(files, 7)
    files.delete_tree("fence")
    if lost == "records":
        files.delete_tree("completed")
    if lost == "checkpoints":
        files.delete_tree("chk-7")
    run(files, 8)
    assert completed_checkpoints(files)[0] == (old.fence.number + 1, 8)
