"""What a path stands for, and snapshots that belong to the user or were claimed."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from holdfast.checkpoint.files import completed
from holdfast.checkpoint.files.completed import completed_checkpoints, load, store_metadata
from holdfast.checkpoint.files.fence import take_fence
from holdfast.checkpoint.files.job_files import JobStorage
from holdfast.checkpoint.files.layout import metadata_name
from holdfast.checkpoint.files.metadata import encode_metadata, identity_of
from holdfast.checkpoint.restore.pointer import find_snapshot
from holdfast.checkpoint.savepoint.ownership import ClaimedSnapshot
from holdfast.checkpoint.savepoint.storage import (
    discard_unfinished,
    load_savepoint,
    new_savepoint,
    operator_directory,
    store_savepoint,
)
from holdfast.errors import CheckpointStorageError, CorruptCheckpointError, RestoreError
from holdfast.savepoints import dispose_savepoint
from tests.support.checkpoints import checkpoint

if TYPE_CHECKING:
    from holdfast.checkpoint.files.fence import Fence
    from holdfast.checkpoint.files.metadata import CheckpointMetadata
    from holdfast.storage.file_system import FileSystemFiles
    from holdfast.storage.handles import Handle


def complete(files: FileSystemFiles, number: int, fence: Fence, *shared: str) -> None:
    """Store a checkpoint with a file of its own, and others that it shares."""
    handles: dict[str, Handle] = {"1.mdb": files.write_bytes(f"chk-{number}/data", b"state")}
    handles |= {name: files.write_bytes(name, b"shared") for name in shared}
    store_metadata(files, checkpoint(number, handles, fence=fence.number), fence)


def savepoint(target: Path, number: int = 7) -> tuple[FileSystemFiles, CheckpointMetadata]:
    """A complete savepoint with one file."""
    files = new_savepoint(str(target), "0123456789")
    handle = files.write_bytes("count/keyed/count/part-00000.parquet", b"rows")
    metadata = msgspec.structs.replace(
        checkpoint(number, {"keyed/count.parquet": handle}),
        is_savepoint=True,
        fence=0,
    )
    store_savepoint(files, metadata)
    return files, metadata


@pytest.mark.parametrize("pointer", ["chk-1", "chk-1/", "chk-1/_metadata", "", "/"])
@pytest.mark.parametrize("scheme", ["", "file://"])
def test_a_pointer_may_be_a_checkpoint_its_metadata_or_the_job(files, tmp_path, scheme, pointer):
    complete(files, 1, take_fence(files))
    found, metadata = find_snapshot(f"{scheme}{tmp_path}/job/{pointer}")
    assert (found.root, metadata.checkpoint_id) == (files.root, 1)


def test_a_job_stands_for_its_newest_checkpoint_that_can_be_read(files, caplog):
    fence = take_fence(files)
    for number in (1, 2, 3):
        complete(files, number, fence)
    files.delete("chk-3/data")
    assert find_snapshot(files.root)[1].checkpoint_id == 2
    assert "chk-3/data" in caplog.text
    for number in (1, 2):
        files.delete(f"chk-{number}/data")
    with pytest.raises(RestoreError, match="no checkpoint there can be restored"):
        find_snapshot(files.root)


@pytest.mark.parametrize("gone", ["chk-3", "chk-3/data"])
def test_a_job_whose_newest_checkpoint_is_lost_does_not_stand_for_an_older_one(files, gone):
    """What was published since would come again."""
    storage = JobStorage(files, take_fence(files))
    for number in (2, 3):
        handle = files.write_bytes(f"chk-{number}/data", b"state")
        storage.complete(checkpoint(number, {"data": handle}))
    assert find_snapshot(files.root, accepts_older=False)[1].checkpoint_id == 3
    files.delete_tree(gone) if gone == "chk-3" else files.delete(gone)
    with pytest.raises(RestoreError, match=r"newest checkpoint, 3, .*name it: .*job/chk-2; or set"):
        find_snapshot(files.root, accepts_older=False)
    assert find_snapshot(f"{files.root}/chk-2", accepts_older=False)[1].checkpoint_id == 2
    assert find_snapshot(files.root)[1].checkpoint_id == 2


def test_metadata_that_was_cut_off_before_its_record_does_not_matter(files):
    """Nothing of it was published."""
    JobStorage(files, take_fence(files)).complete(checkpoint(7))
    files.create_exclusive(metadata_name(8), encode_metadata(checkpoint(8))[:100])
    assert find_snapshot(files.root, accepts_older=False)[1].checkpoint_id == 7


def test_a_job_that_has_lost_its_only_checkpoint_says_so(files):
    JobStorage(files, take_fence(files)).complete(checkpoint(3))
    files.delete_tree("chk-3")
    with pytest.raises(RestoreError, match=r"can be restored \(.*chk-3.*bring it back"):
        find_snapshot(files.root)


def test_a_job_that_runs_may_retire_its_newest_checkpoint_meanwhile(files, monkeypatch):
    storage = JobStorage(files, take_fence(files))
    storage.complete(checkpoint(1))
    loaded = completed.load

    def goes_on(files, checkpoint_id):
        if checkpoint_id == 1:
            storage.complete(checkpoint(2))
            storage.delete(1)
        return loaded(files, checkpoint_id)

    monkeypatch.setattr(completed, "load", goes_on)
    assert find_snapshot(files.root, accepts_older=False)[1].checkpoint_id == 2


def test_a_job_does_not_stand_for_a_checkpoint_that_was_completed_too_late(files):
    """Another driver had gone back behind it."""
    old, new = take_fence(files), take_fence(files)
    last = take_fence(files)
    for metadata in (checkpoint(7, fence=old.number), checkpoint(8, fence=new.number)):
        files.create_exclusive(metadata_name(metadata.checkpoint_id), encode_metadata(metadata))
    last.going_back(old.number, 7)
    assert find_snapshot(files.root, accepts_older=False)[1].checkpoint_id == 7


@pytest.mark.parametrize("pointer", ["chk-1", "chk-2/_metadata", "", "elsewhere"])
def test_a_pointer_to_nothing_says_what_is_wanted(files, tmp_path, pointer):
    files.write_bytes("chk-1/data", b"")
    with pytest.raises(RestoreError, match=r"never completed|no complete savepoint or checkpoint;"):
        find_snapshot(f"{tmp_path}/job/{pointer}")


def test_a_pointer_may_be_relative(files, tmp_path, monkeypatch):
    complete(files, 1, take_fence(files))
    for place, pointers in (("", ["chk-1", "."]), ("chk-1", [".", "_metadata"])):
        monkeypatch.chdir(tmp_path / "job" / place)
        for pointer in pointers:
            found, metadata = find_snapshot(pointer)
            assert (found.root, metadata.checkpoint_id) == (files.root, 1)


@pytest.mark.parametrize("pointer", ["", "/", "/_metadata"])
def test_a_savepoint_is_found_wherever_it_is_moved_to(tmp_path, pointer):
    files, written = savepoint(tmp_path / "target")
    assert files.root.startswith(f"{tmp_path}/target/savepoint-012345-")
    for name in ("moved", "savepoint-of-monday"):
        shutil.copytree(files.root, tmp_path / name)
        found, metadata = find_snapshot(f"{tmp_path}/{name}{pointer}")
        assert found.root == f"{tmp_path}/{name}"
        assert identity_of(metadata) == identity_of(written)


@pytest.mark.parametrize("uid", ["_metadata", "sources", "shared", "Sources", "../up", "sources~"])
def test_every_uid_has_a_directory_of_its_own_in_a_savepoint(uid):
    others = {operator_directory(other) for other in ("count", "sources~~", "_metadata~")}
    assert operator_directory(uid) not in others | {"_metadata", "sources", "shared"}
    assert "/" not in operator_directory(uid)


def test_two_savepoints_never_share_a_directory(tmp_path):
    roots = {new_savepoint(str(tmp_path), "0123456789").root for _ in range(20)}
    assert len(roots) == 20


def test_a_savepoint_is_written_once_and_only_whole(tmp_path):
    files, metadata = savepoint(tmp_path)
    with pytest.raises(CheckpointStorageError, match="complete already"):
        store_savepoint(files, metadata)
    other = new_savepoint(str(tmp_path), "job")
    with pytest.raises(CorruptCheckpointError, match="is gone"):
        store_savepoint(other, metadata)
    with pytest.raises(RestoreError, match="never completed"):
        load_savepoint(other)


def test_a_checkpoint_that_was_copied_away_is_no_savepoint(files, tmp_path):
    complete(files, 3, take_fence(files))
    shutil.copytree(tmp_path / "job" / "chk-3", tmp_path / "copied")
    with pytest.raises(RestoreError, match="checkpoint 3 of job 'job', which cannot be moved"):
        find_snapshot(str(tmp_path / "copied"))


def test_a_savepoint_is_disposed_of_by_any_of_its_names(tmp_path):
    for name in ("", "/", "/_metadata"):
        files, _ = savepoint(tmp_path / "target")
        dispose_savepoint(files.root + name)
    files, _ = savepoint(tmp_path / "target")
    dispose_savepoint(Path(files.root))
    assert list((tmp_path / "target").iterdir()) == []


def test_nothing_but_a_readable_savepoint_is_disposed_of(files, tmp_path):
    complete(files, 1, take_fence(files))
    for pointer in (files.root, f"{files.root}/chk-1"):
        with pytest.raises(RestoreError, match=r"no savepoint here|cannot be moved"):
            dispose_savepoint(pointer)
    damaged, _ = savepoint(tmp_path / "target")
    (tmp_path / "target").joinpath(damaged.root, "_metadata").write_text("?")
    with pytest.raises(CorruptCheckpointError, match="not a Holdfast checkpoint"):
        dispose_savepoint(damaged.root)
    assert damaged.exists("count/keyed/count/part-00000.parquet")
    assert completed_checkpoints(files) == [(1, 1)]


def test_an_unfinished_savepoint_is_removed_with_all_that_was_written(tmp_path):
    files = new_savepoint(str(tmp_path), "job")
    files.write_bytes("count/native/part-00000/state-1.mdb", b"half")
    discard_unfinished(files)
    assert list(tmp_path.iterdir()) == []
    discard_unfinished(files)


FOREIGN = [
    "README.md",
    "notes/part-00000.parquet",
    "count/keyed/count/analysis.sql",
    "count/keyed/count/deep/er/part-00000.parquet",
    "count/native/part-00000/backup.zip",
    "shared/mine.txt",
]


def foreign(files: FileSystemFiles) -> list[str]:
    """Files that somebody has put into the directory of a savepoint."""
    for name in FOREIGN:
        files.write_bytes(name, b"mine")
    return sorted(f"{files.root}/{name}" for name in FOREIGN)


def all_files(directory: Path) -> list[str]:
    return sorted(str(path) for path in directory.rglob("*") if path.is_file())


def test_disposing_of_a_savepoint_leaves_files_that_are_not_its_own(tmp_path):
    files, _ = savepoint(tmp_path)
    files.write_bytes("other/native/part-00012/000001.sst", b"of an attempt that failed")
    mine = foreign(files)
    dispose_savepoint(files.root)
    assert all_files(tmp_path) == mine
    assert not (Path(files.root) / "other").exists(), "directories go when they are empty"


def test_giving_up_a_savepoint_leaves_files_that_are_not_its_own(tmp_path):
    files = new_savepoint(str(tmp_path), "job")
    for name in (
        "count/keyed_states/part-00000.parquet",
        "count/keyed/count/part-00000.parquet",
        "count/native/part-00001/MANIFEST-000004",
        "count/native/part-00001/CURRENT",
        "count/native/part-00001/operator-state",
        "shared/7-0123456789abcdef",
        "sources/events/parts-00000",
    ):
        files.write_bytes(name, b"half")
    mine = foreign(files)
    discard_unfinished(files)
    assert all_files(tmp_path) == mine


def test_a_file_that_only_the_metadata_knows_is_disposed_of(tmp_path):
    """A savepoint of another release may have other names."""
    files = new_savepoint(str(tmp_path), "job")
    handle = files.write_bytes("count/a/b/c/d.bin", b"rows")
    metadata = msgspec.structs.replace(checkpoint(7, {"d": handle}), is_savepoint=True, fence=0)
    store_savepoint(files, metadata)
    dispose_savepoint(files.root)
    assert list(tmp_path.iterdir()) == []


def test_a_claimed_savepoint_leaves_files_that_are_not_its_own(tmp_path):
    files, metadata = savepoint(tmp_path)
    mine = foreign(files)
    ClaimedSnapshot(files, metadata).release()
    assert all_files(tmp_path) == mine


def test_a_claimed_checkpoint_goes_with_the_files_that_no_other_one_uses(files):
    fence = take_fence(files)
    complete(files, 1, fence, "shared/1-a", "shared/1-b")
    complete(files, 2, fence, "shared/1-b", "shared/2-c")
    ClaimedSnapshot(files, load(files, 2)).delete()
    assert completed_checkpoints(files) == [(1, 1)]
    assert set(files.entries("shared")) == {"1-a", "1-b"}
    assert not files.entries("chk-2")


def test_a_claimed_checkpoint_stays_if_it_is_not_known_what_others_use(files, caplog):
    fence = take_fence(files)
    complete(files, 1, fence)
    complete(files, 2, fence)
    path = f"{files.root}/chk-1/_metadata"
    with open(path, "rb+") as file:
        file.seek(-1, 2)
        file.truncate()
    ClaimedSnapshot(files, load(files, 2)).release()
    assert files.exists("chk-2/_metadata")
    assert "was claimed but not deleted" in caplog.text


def test_a_claimed_savepoint_goes_as_a_whole(tmp_path):
    files, metadata = savepoint(tmp_path / "target")
    ClaimedSnapshot(files, metadata).release()
    assert list((tmp_path / "target").iterdir()) == []
