"""Checkpoint storage: what is particular to each kind, and how it fails."""

from __future__ import annotations

import errno
import os
import pickle
from pathlib import Path

import pytest

from holdfast.checkpoint.files.cleanup import delete_job, delete_unfinished
from holdfast.checkpoint.files.completed import load_newest, store_metadata
from holdfast.checkpoint.files.fence import Fence, take_fence
from holdfast.checkpoint.files.job_files import open_files
from holdfast.config.storage import FileSystemCheckpointStorage, JobManagerCheckpointStorage
from holdfast.errors import CheckpointStorageError, ConfigurationError, CorruptCheckpointError
from holdfast.storage.file_system import FileSystemFiles
from holdfast.storage.files import InlineLimits
from holdfast.storage.handles import FileHandle, InlineHandle, inline
from holdfast.storage.memory import InlineFiles, MemoryNames
from tests.support.checkpoints import checkpoint


def test_a_job_has_a_directory_of_its_own_unless_told_otherwise(tmp_path):
    storage = FileSystemCheckpointStorage(f"{tmp_path}/")
    assert open_files(storage, "job").root == str(tmp_path / "job")
    assert open_files(storage, "job", create_subdir=False).root == str(tmp_path)


def test_a_relative_path_stays_where_it_was_when_the_working_directory_changes(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    pickled = pickle.dumps(FileSystemFiles("checkpoints/job"))
    monkeypatch.chdir("/")
    assert pickle.loads(pickled).root == str(tmp_path / "checkpoints" / "job")


@pytest.mark.parametrize("url", ["memory://", "memory://a", "memory://a/", "file:///"])
def test_the_root_of_a_file_system_can_hold_jobs(url):
    storage = FileSystemCheckpointStorage(url)
    files = open_files(storage, "job")
    copy = pickle.loads(pickle.dumps(files))
    assert copy.root == files.root
    assert files.root in ("memory://job", "memory://a/job", "/job")
    bare = open_files(storage, "job", create_subdir=False)
    assert pickle.loads(pickle.dumps(bare)).root == bare.root
    assert bare.root in ("memory://", "memory://a", "/")
    assert "job" not in bare.entries()


def test_opening_creates_nothing(tmp_path):
    files = FileSystemFiles(str(tmp_path / "job"))
    assert files.entries() == {}
    assert not files.exists("chk-1/_metadata")
    assert list(tmp_path.iterdir()) == []


def test_a_password_in_the_url_is_refused_and_not_repeated():
    with pytest.raises(ConfigurationError, match=r"ftp://\.\.\.@host/dir: .* password") as caught:
        FileSystemFiles("ftp://me:hunter2@host/dir")
    assert "hunter2" not in str(caught.value)


def test_an_unknown_kind_of_url_says_so():
    with pytest.raises(CheckpointStorageError, match="nosuch://bucket/job: opening"):
        FileSystemFiles("nosuch://bucket/job")


def test_a_changed_file_is_found_by_its_checksum(files, tmp_path):
    handle = files.write_bytes("chk-1/a", b"abc")
    (tmp_path / "job" / "chk-1" / "a").write_bytes(b"xyz")
    with pytest.raises(CorruptCheckpointError, match="chk-1/a: the content has changed"):
        files.read_bytes(handle)
    with pytest.raises(CorruptCheckpointError, match="chk-1/a: the content has changed"):
        files.download(handle, tmp_path / "copy")


def test_a_shortened_file_is_found_by_its_size(files, tmp_path):
    handle = files.write_bytes("chk-1/a", b"abc")
    (tmp_path / "job" / "chk-1" / "a").write_bytes(b"ab")
    with pytest.raises(CorruptCheckpointError, match="2 bytes where the checkpoint wrote 3"):
        files.read_bytes(handle)


def test_an_inline_handle_of_another_length_is_refused(files):
    with pytest.raises(CorruptCheckpointError, match="1 bytes where the checkpoint wrote 2"):
        files.read_bytes(InlineHandle(data=b"x", size=2))


def test_a_full_disk_is_named_and_leaves_no_half_file(tmp_path):
    files = FileSystemFiles(f"fulldisk://{tmp_path}/job")
    with pytest.raises(
        CheckpointStorageError, match=r"job/chk-1/a: writing failed \(No space left.*free some"
    ):
        files.write_bytes("chk-1/a", b"x" * 500)
    assert files.entries("chk-1") == {}
    with pytest.raises(CheckpointStorageError, match="No space left"):
        files.create_exclusive("chk-1/_metadata", b"x" * 500)


def test_storage_that_cannot_be_asked_never_answers_no(tmp_path):
    local = FileSystemFiles(str(tmp_path / "job"))
    fence = take_fence(local)
    store_metadata(local, checkpoint(1), fence)
    files = FileSystemFiles(f"unreachable://{tmp_path}/job")
    with pytest.raises(CheckpointStorageError, match=r"looking for a file failed \(timed out\)"):
        files.exists("chk-1/_metadata")
    with pytest.raises(CheckpointStorageError, match="timed out"):
        Fence(files, fence.number, fence.holder).check()
    with pytest.raises(CheckpointStorageError, match="timed out"):
        delete_unfinished(files, below=9, fence=fence)
    with pytest.raises(CheckpointStorageError, match="timed out"):
        files.create_exclusive("chk-1/_metadata", b"other")
    assert load_newest(local)[0] == checkpoint(1)


def test_a_full_local_disk_is_named_when_downloading(files, tmp_path):
    handle = files.write_bytes("chk-1/a", b"abc")
    (tmp_path / "blocked").write_bytes(b"")
    with pytest.raises(CheckpointStorageError, match="blocked/copy: writing the local copy"):
        files.download(handle, tmp_path / "blocked" / "copy")


def test_a_local_snapshot_that_is_gone_is_named(files, tmp_path):
    with pytest.raises(CheckpointStorageError, match="gone: reading the local snapshot"):
        files.write_file(tmp_path / "gone", "chk-1/a")
    with pytest.raises(CheckpointStorageError, match="gone: reading the local snapshot"):
        open_files(JobManagerCheckpointStorage(), "x").write_file(tmp_path / "gone", "chk-1/a")


def test_a_local_snapshot_that_changes_under_the_upload_is_refused(tmp_path):
    files = FileSystemFiles(str(tmp_path / "job"), chunk=10)
    local = tmp_path / "local"
    local.write_bytes(b"x" * 20)

    def grow() -> bool:
        local.write_bytes(b"x" * 25)
        return False

    with pytest.raises(CheckpointStorageError, match="20 bytes when its upload began"):
        files.write_file(local, "chk-1/a", grow)
    assert files.entries("chk-1") == {}


def test_a_directory_that_is_a_file_is_a_storage_error(files, tmp_path):
    (tmp_path / "job").write_bytes(b"")
    with pytest.raises(CheckpointStorageError, match="chk-1/a: writing failed"):
        files.write_bytes("chk-1/a", b"abc")
    with pytest.raises(CheckpointStorageError, match="chk-1/a: writing failed"):
        files.create_exclusive("chk-1/a", b"abc")


@pytest.mark.parametrize("refusal", [errno.EPERM, errno.EOPNOTSUPP])
def test_without_hard_links_a_file_is_still_created_only_once(files, monkeypatch, refusal):
    def refuse(*_: object) -> None:
        raise OSError(refusal, "no hard links here")

    monkeypatch.setattr(os, "link", refuse)
    assert files.create_exclusive("chk-1/_metadata", b"first")
    assert not files.create_exclusive("chk-1/_metadata", b"second")
    assert files.entries("chk-1") == {"_metadata": 5}


def test_a_mount_that_fails_to_link_is_a_storage_error(files, monkeypatch):
    def refuse(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(CheckpointStorageError, match="Input/output error"):
        files.create_exclusive("chk-1/_metadata", b"first")
    assert files.entries("chk-1") == {}


def test_state_in_the_driver_is_bounded_by_the_size_of_one_state(tmp_path):
    files = open_files(JobManagerCheckpointStorage(max_state_size=1024), "bounded")
    assert files.write_bytes("chk-1/a", b"x" * 1024) == inline(b"x" * 1024)
    with pytest.raises(CheckpointStorageError, match=r"takes 1025 bytes, .* at most 1024 for one"):
        files.write_bytes("chk-1/a", b"x" * 1025)


def test_too_much_state_in_the_driver_names_the_largest_part():
    limits = InlineLimits(total=6000)
    files = InlineFiles(MemoryNames("total", limits.total), limits)
    fence = take_fence(files)
    state = {"a": inline(b"x" * 900), "b": inline(b"")}
    for checkpoint_id in (1, 2):
        store_metadata(files, checkpoint(checkpoint_id, {**state}), fence)
    with pytest.raises(
        CheckpointStorageError, match=r"largest part is file 'a' of operator 'count'"
    ):
        store_metadata(files, checkpoint(3, {**state}), fence)
    newest, refusals = load_newest(files)
    assert newest is not None
    assert newest.checkpoint_id == 2
    assert refusals == {}
    delete_job(files)


def test_one_checkpoint_too_large_for_the_driver_is_refused_with_metadata_in_files(tmp_path):
    files = InlineFiles(FileSystemFiles(str(tmp_path)), InlineLimits(total=3000))
    with pytest.raises(CheckpointStorageError, match="at most 3000 for all checkpoints kept"):
        files.create_exclusive("chk-1/_metadata", b"x" * 3001)


def test_a_file_of_another_storage_cannot_be_read_from_memory():
    files = open_files(JobManagerCheckpointStorage(), "other")
    with pytest.raises(CorruptCheckpointError, match="checkpoint storage that wrote it"):
        files.read_bytes(FileHandle(path="shared/1-a", size=1, checksum=""))


# What a loss of power leaves


@pytest.fixture
def synced(monkeypatch):
    """Directories and files that were forced to disk, in their order."""
    paths = []
    force = os.fsync

    def fsync(descriptor):
        paths.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        force(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    return paths


@pytest.mark.parametrize("name", ["chk-1/_metadata", "chk-1/a", "shared/1-ab", "op/keyed/s/part"])
@pytest.mark.parametrize("exclusive", [True, False])
def test_the_name_of_a_new_file_is_durable_up_to_the_top(tmp_path, synced, name, exclusive):
    files = FileSystemFiles(str(tmp_path / "new" / "deep" / "job"))
    files.create_exclusive(name, b"x") if exclusive else files.write_bytes(name, b"x")
    path = Path(files.root) / name
    wanted = [p for p in path.parents if p.is_relative_to(tmp_path)]
    assert set(map(str, wanted)) <= set(synced)


def test_directories_of_a_process_that_died_before_they_were_durable_are_made_so(tmp_path, synced):
    root = tmp_path / "job"
    (root / "chk-1").mkdir(parents=True)
    FileSystemFiles(str(root)).create_exclusive("chk-1/_metadata", b"x")
    assert {str(tmp_path), str(root), str(root / "chk-1")} <= set(synced)


def test_directories_are_made_durable_once(tmp_path, synced):
    files = FileSystemFiles(str(tmp_path / "job"))
    files.write_bytes("chk-1/a", b"x")
    synced.clear()
    files.write_bytes("chk-1/b", b"x")
    assert synced == [str(tmp_path / "job/chk-1/b"), str(tmp_path / "job/chk-1")]


def test_where_there_are_no_hard_links_new_names_are_durable_too(tmp_path, synced, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    files = FileSystemFiles(str(tmp_path / "job"))
    files.create_exclusive("chk-1/a", b"x")
    synced.clear()
    assert files.create_exclusive("chk-1/_metadata", b"x")
    assert synced[-1] == str(tmp_path / "job" / "chk-1")


def test_names_that_look_like_patterns_stand_for_themselves(tmp_path):
    root = f"memory://patterns{tmp_path}"
    files, other = FileSystemFiles(f"{root}/job[1]"), FileSystemFiles(f"{root}/job1")
    for each in (files, other):
        each.write_bytes("chk-1/a", b"x")
        each.write_bytes("chk-2/a", b"x")
    files.delete_tree("chk-1")
    files.delete_all(["chk-2/a"])
    files.delete_if_empty("chk-2")
    assert files.entries() == {}
    assert set(other.entries()) == {"chk-1", "chk-2"}
    delete_job(other)
