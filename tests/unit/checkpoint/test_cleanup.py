"""Removing checkpoints, and what unfinished ones left."""

from __future__ import annotations

import pytest

from holdfast.checkpoint.files.cleanup import delete_checkpoint, delete_job, delete_unfinished
from holdfast.checkpoint.files.completed import completed_checkpoints, load_newest, store_metadata
from holdfast.checkpoint.files.fence import take_fence
from holdfast.checkpoint.files.job_files import JobStorage
from holdfast.errors import CheckpointStorageError, FencedError
from holdfast.storage.file_system import FileSystemFiles
from tests.support.checkpoints import checkpoint


@pytest.fixture(params=["", "memory://cleanup"], ids=["local", "memory"])
def files(tmp_path, request):
    files = FileSystemFiles(f"{request.param}{tmp_path}/job")
    yield files
    delete_job(files)


@pytest.fixture
def fence(files):
    return take_fence(files)


def complete(files, checkpoint_id, fence, *shared):
    """Store a checkpoint with a private file and the shared ones named."""
    handles = {"data": files.write_bytes(f"chk-{checkpoint_id}/data", b"state")}
    for path in shared:
        handles[path] = files.write_bytes(path, path.encode())
    store_metadata(files, checkpoint(checkpoint_id, handles, fence=fence.number), fence)


def test_unfinished_checkpoints_below_are_removed(files, fence):
    complete(files, 1, fence)
    for unfinished in (2, 3, 10):
        files.write_bytes(f"chk-{unfinished}/data", b"state")
    assert delete_unfinished(files, below=10, fence=fence) == ["chk-2", "chk-3"]
    assert set(files.entries()) == {"chk-1", "chk-10", "fence"}


def test_shared_files_that_no_complete_checkpoint_uses_are_removed(files, fence):
    complete(files, 1, fence, "shared/1-aa")
    complete(files, 4, fence, "shared/1-bb", "shared/4-cc")
    for orphan in ("shared/1-dd", "shared/3-ee", "shared/5-ff", "shared/10-aa"):
        files.write_bytes(orphan, b"")
    assert delete_unfinished(files, below=5, fence=fence) == ["shared/1-dd", "shared/3-ee"]
    assert set(files.entries("shared")) == {"1-aa", "1-bb", "4-cc", "5-ff", "10-aa"}


def test_files_that_a_checkpoint_under_way_builds_upon_stay(files, fence):
    files.write_bytes("shared/1-aa", b"")
    assert delete_unfinished(files, below=5, fence=fence, in_use={"shared/1-aa"}) == []
    assert delete_unfinished(files, below=5, fence=fence) == ["shared/1-aa"]


def test_what_a_killed_driver_has_half_written_goes_with_the_job(files):
    for directory in ("completed", "fence"):
        files.write_bytes(f"{directory}/.{'0' * 32}", b"half")
    delete_job(files)
    assert files.entries() == {}


def test_files_of_others_stay(files, fence):
    files.write_bytes("shared/readme", b"")
    files.write_bytes("savepoint-1/data", b"")
    assert delete_unfinished(files, below=100, fence=fence) == []
    files.write_bytes("fence/notes.txt", b"")
    files.write_bytes("staged/mine.parquet", b"")
    files.write_bytes("staged/1-1-abc-4-0-3-main~0123456789ab", b"rows")
    files.write_bytes("shared/7-ab", b"")
    delete_job(files)
    assert set(files.entries()) == {"savepoint-1", "shared", "fence", "staged"}
    assert set(files.entries("shared")) == {"readme"}
    assert set(files.entries("fence")) == {"notes.txt"}
    assert set(files.entries("staged")) == {"mine.parquet"}
    for directory in list(files.entries()):
        files.delete_tree(directory)


def test_with_a_checkpoint_that_cannot_be_read_all_shared_files_stay(files, fence):
    files.create_exclusive("chk-1/_metadata", b"garbage")
    files.write_bytes("shared/1-aa", b"")
    files.write_bytes("chk-2/data", b"")
    assert delete_unfinished(files, below=5, fence=fence) == ["chk-2"]
    assert set(files.entries("shared")) == {"1-aa"}


def test_a_driver_that_was_replaced_removes_nothing(files, fence):
    complete(files, 1, fence)
    files.write_bytes("chk-2/data", b"state")
    take_fence(files)
    with pytest.raises(FencedError):
        delete_unfinished(files, below=5, fence=fence)
    with pytest.raises(FencedError):
        JobStorage(files, fence).delete(1)
    assert {"chk-1", "chk-2"} < set(files.entries())


def test_a_deleted_checkpoint_takes_its_unused_files_with_it(files, fence):
    complete(files, 1, fence, "shared/1-aa", "shared/1-bb")
    complete(files, 2, fence, "shared/1-bb")
    for _ in range(2):
        delete_checkpoint(files, 1, ["shared/1-aa"])
    assert completed_checkpoints(files) == [(1, 2)]
    assert set(files.entries("shared")) == {"1-bb"}
    assert load_newest(files)[1] == {}


class Interrupted(FileSystemFiles):
    """Files whose deletions stop after a number of them, as if the driver had died."""

    left = 0

    def delete(self, name: str) -> None:
        self._count()
        super().delete(name)

    def delete_all(self, names) -> None:
        for name in names:
            self.delete(name)

    def delete_tree(self, directory: str) -> None:
        self._count()
        super().delete_tree(directory)

    def _count(self) -> None:
        if self.left == 0:
            raise CheckpointStorageError("the driver died")
        self.left -= 1


@pytest.mark.parametrize("deletions", range(4))
def test_an_interrupted_deletion_leaves_no_checkpoint_that_looks_complete(tmp_path, deletions):
    files = Interrupted(str(tmp_path / "job"))
    fence = take_fence(files)
    complete(files, 1, fence, "shared/1-aa", "shared/1-bb")
    files.left = deletions
    with pytest.raises(CheckpointStorageError):
        delete_checkpoint(files, 1, ["shared/1-aa", "shared/1-bb"])
    newest, refusals = load_newest(files)
    assert refusals == {}
    assert (newest is None) == (deletions > 0)
    files.left = 1000
    if newest is None:
        delete_unfinished(files, below=2, fence=fence)
        assert set(files.entries()) == {"fence", "shared"}
        assert files.entries("shared") == {}


class TakenOver(FileSystemFiles):
    """Files that another driver takes over while somebody looks at them."""

    def entries(self, directory: str = "") -> dict[str, int | None]:
        found = super().entries(directory)
        if directory == "shared":
            other = FileSystemFiles(self.root)
            take_fence(other)
            other.write_bytes("chk-2/data", b"of the next driver")
        return found


def test_what_appears_with_the_next_driver_is_not_swept(tmp_path):
    files = TakenOver(str(tmp_path / "job"))
    fence = take_fence(files)
    files.write_bytes("chk-1/data", b"unfinished")
    with pytest.raises(FencedError):
        delete_unfinished(files, below=5, fence=fence)
    assert {"chk-1", "chk-2"} < set(files.entries())
