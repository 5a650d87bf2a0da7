"""What every kind of checkpoint storage promises.

A subclass opens the files of a job; all else is the same for all.
"""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

import pytest

from holdfast.checkpoint.files.cleanup import delete_job
from holdfast.checkpoint.files.completed import load_newest, store_metadata
from holdfast.checkpoint.files.fence import take_fence
from holdfast.checkpoint.transfer import download_snapshot, upload_snapshot
from holdfast.errors import CheckpointError, CorruptCheckpointError
from holdfast.storage.handles import FileHandle, inline
from tests.support.checkpoints import checkpoint

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.storage.files import JobCheckpointFiles

CONTENTS = [b"", b"x", bytes(range(256)) * 9000]


class CheckpointFilesContract:
    """Tests of the `JobCheckpointFiles` protocol."""

    def open(self, directory: Path) -> JobCheckpointFiles:
        """Files of a job; the same ones for the same directory."""
        raise NotImplementedError

    @pytest.fixture
    def files(self, tmp_path):
        files = self.open(tmp_path / "job")
        yield files
        delete_job(files)

    @pytest.mark.parametrize("content", CONTENTS, ids=["empty", "small", "large"])
    def test_a_file_comes_back_as_it_was_written(self, files, tmp_path, content):
        local = tmp_path / "local"
        local.write_bytes(content)
        handle = files.write_file(local, "chk-1/a")
        assert handle.size == len(content)
        assert files.read_bytes(handle) == content
        files.download(handle, tmp_path / "new" / "copy")
        assert (tmp_path / "new" / "copy").read_bytes() == content

    @pytest.mark.parametrize("content", CONTENTS, ids=["empty", "small", "large"])
    def test_bytes_come_back_as_they_were_written(self, files, content):
        assert files.read_bytes(files.write_bytes("chk-1/a", content)) == content

    def test_inline_handles_need_no_storage(self, files, tmp_path):
        assert files.read_bytes(inline(b"abc")) == b"abc"
        files.download(inline(b"abc"), tmp_path / "copy")
        assert (tmp_path / "copy").read_bytes() == b"abc"

    def test_a_missing_file_makes_the_checkpoint_corrupt(self, files, tmp_path):
        gone = FileHandle(path="chk-1/gone", size=3, checksum="0" * 32)
        with pytest.raises(CorruptCheckpointError, match="chk-1/gone"):
            files.read_bytes(gone)
        with pytest.raises(CorruptCheckpointError, match="chk-1/gone"):
            files.download(gone, tmp_path / "copy")

    def test_a_cancelled_transfer_stops(self, files, tmp_path):
        local = tmp_path / "local"
        local.write_bytes(b"x" * 10)
        with pytest.raises(CheckpointError, match="cancelled"):
            files.write_file(local, "chk-1/a", lambda: True)
        assert files.entries("chk-1") == {}

    def test_a_file_is_created_only_once(self, files):
        assert files.create_exclusive("chk-1/_metadata", b"first")
        assert not files.create_exclusive("chk-1/_metadata", b"second")
        assert files.read("chk-1/_metadata") == b"first"
        assert files.entries("chk-1") == {"_metadata": 5}

    def test_the_beginning_of_a_file_can_be_read(self, files):
        files.create_exclusive("chk-1/_metadata", b"abcdef")
        assert files.read("chk-1/_metadata", 3) == b"abc"
        assert files.read("chk-1/_metadata", 100) == b"abcdef"
        assert files.read("chk-2/_metadata") is None

    def test_a_listing_tells_files_from_directories(self, files):
        assert files.entries() == {}
        files.create_exclusive("chk-1/_metadata", b"abc")
        files.create_exclusive("top", b"")
        assert files.entries() == {"chk-1": None, "top": 0}
        assert files.entries("chk-1") == {"_metadata": 3}
        assert files.entries("chk-2") == {}
        files.delete("top")

    def test_only_files_exist(self, files):
        files.create_exclusive("chk-1/_metadata", b"abc")
        assert files.exists("chk-1/_metadata")
        assert not files.exists("chk-1/other")
        assert not files.exists("chk-1")

    def test_deleting_twice_is_as_good_as_once(self, files):
        files.create_exclusive("chk-1/a", b"")
        files.create_exclusive("chk-1/b", b"")
        files.create_exclusive("chk-11/c", b"")
        for _ in range(2):
            files.delete("chk-1/a")
            assert files.entries("chk-1") == {"b": 0}
        for _ in range(2):
            files.delete_tree("chk-1")
            assert files.entries("chk-1") == {}
        assert files.entries("chk-11") == {"c": 0}

    def test_many_files_are_deleted_at_once_whether_they_are_there_or_not(self, files):
        for name in ("chk-1/a", "chk-1/b", "chk-1/c", "chk-2/a"):
            files.create_exclusive(name, b"x")
        for _ in range(2):
            files.delete_all(["chk-1/a", "chk-1/b", "chk-9/gone"])
            assert files.entries("chk-1") == {"c": 1}
        assert files.entries("chk-2") == {"a": 1}
        files.delete_all([])

    def test_only_an_empty_directory_is_deleted_as_such(self, files):
        files.create_exclusive("chk-1/deep/a", b"x")
        for directory in ("chk-1", "chk-1/deep", "nowhere"):
            files.delete_if_empty(directory)
        assert files.entries("chk-1/deep") == {"a": 1}
        files.delete("chk-1/deep/a")
        files.delete_if_empty("chk-1/deep")
        files.delete_if_empty("chk-1")
        assert "chk-1" not in files.entries()
        assert files.create_exclusive("chk-1/deep/a", b"x")

    def test_a_deleted_directory_can_be_written_again(self, files):
        files.create_exclusive("chk-1/a", b"1")
        files.delete_tree("chk-1")
        assert files.create_exclusive("chk-1/a", b"2")
        assert files.read("chk-1/a") == b"2"

    @pytest.mark.parametrize("name", ["../a", "/a", "chk-1/../../a", "", "a//b", "./a", "a\\b"])
    def test_a_name_never_leads_out_of_the_job(self, files, name):
        with pytest.raises(CorruptCheckpointError, match="leads out"):
            files.read(name)
        with pytest.raises(CorruptCheckpointError, match="leads out"):
            files.create_exclusive(name, b"")

    def test_a_pickled_copy_sees_the_same_files(self, files):
        copy = pickle.loads(pickle.dumps(files))
        assert copy.root == files.root
        assert copy.limits == files.limits
        handle = copy.write_bytes("chk-1/a", b"abc")
        copy.create_exclusive("chk-1/_metadata", b"abc")
        assert files.read_bytes(handle) == b"abc"
        assert files.read("chk-1/_metadata") == b"abc"

    def test_opening_again_finds_what_was_written(self, files, tmp_path):
        files.create_exclusive("chk-1/_metadata", b"abc")
        assert self.open(tmp_path / "job").read("chk-1/_metadata") == b"abc"
        assert self.open(tmp_path / "other").read("chk-1/_metadata") is None

    def test_a_checkpoint_is_taken_and_restored(self, files, tmp_path):
        snapshot = tmp_path / "snapshot"
        (snapshot / "deep").mkdir(parents=True)
        (snapshot / "000001.sst").write_bytes(CONTENTS[2])
        (snapshot / "deep" / "CURRENT").write_bytes(b"tiny")
        handles, uploaded = upload_snapshot(snapshot, files, 1, inline_below=100, incremental=True)
        assert uploaded == len(CONTENTS[2]) + 4
        store_metadata(files, checkpoint(1, handles), take_fence(files))
        newest, refusals = load_newest(files)
        assert newest is not None
        assert refusals == {}
        download_snapshot(newest.operators[0].subtasks[0].files, files, tmp_path / "copy")
        assert (tmp_path / "copy" / "000001.sst").read_bytes() == CONTENTS[2]
        assert (tmp_path / "copy" / "deep" / "CURRENT").read_bytes() == b"tiny"

    def test_a_deleted_job_leaves_nothing(self, files):
        take_fence(files)
        files.create_exclusive("chk-1/_metadata", b"abc")
        files.write_bytes("shared/1-ab", b"abc")
        delete_job(files)
        assert files.entries() == {}
        delete_job(files)


class AtomicCreation:
    """Tests of storage on which a file is created by exactly one of many."""

    def test_of_many_racing_writers_exactly_one_wins(self, files):
        contents = [bytes([n]) * 100_000 for n in range(8)]
        for attempt in range(10):
            name = f"chk-{attempt}/_metadata"
            with ThreadPoolExecutor(8) as threads:
                won = list(threads.map(partial(files.create_exclusive, name), contents))
            assert won.count(True) == 1
            assert files.read(name) == contents[won.index(True)]

    def test_a_reader_never_sees_half_a_file(self, files):
        content = b"x" * 500_000
        for attempt in range(10):
            name = f"chk-{attempt}/_metadata"
            with ThreadPoolExecutor(1) as thread:
                writing = thread.submit(files.create_exclusive, name, content)
                while (seen := files.read(name)) is None:
                    pass
                assert seen == content
                assert writing.result()

    def test_racing_drivers_get_different_fences(self, files):
        with ThreadPoolExecutor(8) as threads:
            fences = list(threads.map(lambda _: take_fence(files).number, range(24)))
        assert sorted(fences) == list(range(1, 25))
