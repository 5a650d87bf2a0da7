"""Local snapshots on their way to checkpoint storage and back."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from holdfast.checkpoint.files.cleanup import delete_unfinished
from holdfast.checkpoint.files.completed import load_newest
from holdfast.checkpoint.files.fence import take_fence
from holdfast.checkpoint.transfer import (
    download_snapshot,
    files_at_a_time,
    upload_bytes,
    upload_snapshot,
)
from holdfast.errors import CheckpointError, CheckpointStorageError, CorruptCheckpointError
from holdfast.storage.file_system import FileSystemFiles
from holdfast.storage.files import InlineLimits
from holdfast.storage.handles import FileHandle, InlineHandle, inline
from holdfast.storage.memory import InlineFiles, MemoryNames
from tests.support.checkpoints import FullDisk

SNAPSHOT = {
    "000007.sst": b"a" * 500,
    "000009.sst": b"b" * 700,
    "MANIFEST-000005": b"m" * 300,
    "CURRENT": b"MANIFEST-000005\n",
    "empty": b"",
}


@pytest.fixture
def snapshot(tmp_path):
    directory = tmp_path / "snapshot"
    directory.mkdir()
    for name, content in SNAPSHOT.items():
        (directory / name).write_bytes(content)
    return directory


class Asked:
    """Counts how often it is asked, and cancels at one of these times."""

    def __init__(self, stop_at: int | None = None) -> None:
        self.times = 0
        self.stop_at = stop_at

    def __call__(self) -> bool:
        self.times += 1
        return self.times - 1 == self.stop_at


def contents(directory):
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_small_files_travel_inline_and_others_can_be_shared(files, snapshot):
    handles, uploaded = upload_snapshot(snapshot, files, 3, inline_below=100, incremental=True)
    assert uploaded == sum(map(len, SNAPSHOT.values()))
    assert list(handles) == sorted(SNAPSHOT)
    assert sorted(files.entries("shared").values()) == [300, 500, 700]
    assert all(name.startswith("3-") for name in files.entries("shared"))
    assert handles["CURRENT"] == inline(b"MANIFEST-000005\n")
    assert handles["empty"] == inline(b"")


def test_a_known_file_of_the_same_size_is_not_uploaded_again(files, snapshot):
    first, _ = upload_snapshot(snapshot, files, 1, inline_below=100, incremental=True)
    known = {name: handle for name, handle in first.items() if isinstance(handle, FileHandle)}
    (snapshot / "000009.sst").unlink()
    (snapshot / "000012.sst").write_bytes(b"c" * 900)
    (snapshot / "000007.sst").write_bytes(b"a" * 501)
    second, uploaded = upload_snapshot(
        snapshot, files, 2, known=known, inline_below=100, incremental=True
    )
    assert uploaded == 900 + 501 + 300 + 16
    assert second["000007.sst"] != first["000007.sst"]
    third, uploaded = upload_snapshot(
        snapshot,
        files,
        3,
        known={n: h for n, h in second.items() if isinstance(h, FileHandle)},
        inline_below=100,
        incremental=True,
    )
    assert uploaded == 300 + 16
    assert third["000012.sst"] == second["000012.sst"]
    assert third["MANIFEST-000005"] != second["MANIFEST-000005"]


def test_known_files_are_ignored_by_a_full_checkpoint(files, snapshot):
    first, _ = upload_snapshot(snapshot, files, 1, incremental=True)
    known = {name: handle for name, handle in first.items() if isinstance(handle, FileHandle)}
    second, uploaded = upload_snapshot(snapshot, files, 2, known=known)
    assert uploaded == sum(map(len, SNAPSHOT.values()))
    paths = [h.path for h in second.values() if isinstance(h, FileHandle)]
    assert len(paths) == 4
    assert all(path.startswith("shared/2-") for path in paths)


def test_a_downloaded_snapshot_is_the_uploaded_one(files, snapshot, tmp_path):
    handles, _ = upload_snapshot(snapshot, files, 1, inline_below=100, incremental=True)
    download_snapshot(handles, files, tmp_path / "copy")
    assert contents(tmp_path / "copy") == SNAPSHOT


@pytest.mark.parametrize("made", [True, False])
def test_where_nothing_is_there_is_nothing_to_upload(files, tmp_path, made):
    if made:
        (tmp_path / "none").mkdir()
    with pytest.raises(CheckpointError, match=r"is incomplete \(there are no files\)"):
        upload_snapshot(tmp_path / "none", files, 1)


def test_only_the_files_that_were_reported_are_uploaded(files, snapshot):
    expected = {name: len(content) for name, content in SNAPSHOT.items()}
    (snapshot / "LOCK").write_bytes(b"of a reader")
    handles, _ = upload_snapshot(snapshot, files, 1, expected=expected)
    assert list(handles) == sorted(SNAPSHOT)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda snapshot: (snapshot / "CURRENT").unlink(), "CURRENT is gone"),
        (lambda snapshot: (snapshot / "CURRENT").write_bytes(b"M"), "CURRENT has 1 bytes"),
    ],
)
def test_a_snapshot_that_is_partly_removed_is_not_uploaded(files, snapshot, change, why):
    expected = {name: len(content) for name, content in SNAPSHOT.items()}
    change(snapshot)
    with pytest.raises(CheckpointError, match=why):
        upload_snapshot(snapshot, files, 1, expected=expected)
    assert files.entries("shared") == {}


def test_a_snapshot_of_which_nothing_was_reported_is_not_uploaded(files, snapshot):
    with pytest.raises(CheckpointError, match="no file of it was reported"):
        upload_snapshot(snapshot, files, 1, expected={})


def test_a_file_that_changed_in_storage_stops_the_download(files, snapshot, tmp_path):
    handles, _ = upload_snapshot(snapshot, files, 1, incremental=True)
    shared = tmp_path / "job" / "shared"
    next(shared.iterdir()).write_bytes(b"z")
    with pytest.raises(CorruptCheckpointError, match="shared/1-"):
        download_snapshot(handles, files, tmp_path / "copy")


def test_a_name_that_leads_out_of_the_directory_is_refused(files, tmp_path):
    with pytest.raises(CorruptCheckpointError, match="leads out"):
        download_snapshot({"../x": inline(b"")}, files, tmp_path / "copy")
    assert not (tmp_path / "x").exists()


def test_a_directory_that_cannot_be_made_is_named(files, tmp_path):
    (tmp_path / "blocked").write_bytes(b"")
    with pytest.raises(CheckpointStorageError, match="blocked/copy: writing the local copy"):
        download_snapshot({}, files, tmp_path / "blocked" / "copy")


def test_an_upload_interrupted_anywhere_leaves_nothing_to_restore_and_a_later_deletion_clears_it(
    tmp_path, snapshot
):
    files = FileSystemFiles(str(tmp_path / "job"), chunk=100)
    fence = take_fence(files)
    whole, _ = upload_snapshot(snapshot, files, 1, incremental=True, cancelled=(asked := Asked()))
    for moment in range(asked.times):
        with pytest.raises(CheckpointError, match="cancelled"):
            upload_snapshot(
                snapshot, files, 2 + moment, incremental=True, cancelled=Asked(stop_at=moment)
            )
        assert load_newest(files) == (None, {})
    assert asked.times > len(whole)
    delete_unfinished(files, below=1000, fence=fence)
    assert set(files.entries()) == {"fence", "shared"}
    assert files.entries("shared") == {}


@pytest.mark.parametrize("moment", [0, 7, 19])
def test_a_process_killed_in_mid_upload_leaves_nothing_to_restore(tmp_path, snapshot, moment):
    program = f"""
import os
from itertools import count
from pathlib import Path
from holdfast.storage.file_system import FileSystemFiles
from holdfast.checkpoint.transfer import upload_snapshot
asked = count()
upload_snapshot(
    Path({str(snapshot)!r}), FileSystemFiles({str(tmp_path / "job")!r}, chunk=100), 1,
    incremental=True, cancelled=lambda: next(asked) == {moment} and os.kill(os.getpid(), 9),
)
"""
    assert subprocess.run([sys.executable, "-c", program]).returncode == -9
    files = FileSystemFiles(str(tmp_path / "job"))
    fence = take_fence(files)
    assert load_newest(files) == (None, {})
    assert bool(delete_unfinished(files, below=2, fence=fence)) == (moment > 0)
    assert files.entries("shared") == files.entries("chk-1") == {}


def test_a_full_disk_in_the_middle_leaves_nothing_to_restore(tmp_path, snapshot):
    files = FileSystemFiles(f"{FullDisk.protocol}://{tmp_path}/job")
    fence = take_fence(files)
    with pytest.raises(CheckpointStorageError, match="No space left"):
        upload_snapshot(snapshot, files, 1, incremental=True)
    assert load_newest(files) == (None, {})
    delete_unfinished(files, below=2, fence=fence)
    assert files.entries("shared") == {}


def test_too_large_a_state_for_the_driver_names_the_operator(snapshot):
    limits = InlineLimits(per_state=600, per_message=1400)
    files = InlineFiles(MemoryNames("transfer", limits.total), limits)
    with pytest.raises(
        CheckpointStorageError,
        match=r"state of operator 'count', subtask 2 in '000009.sst' takes 700 bytes.*filesystem",
    ):
        upload_snapshot(snapshot, files, 1, owner="operator 'count', subtask 2")


def test_too_large_a_message_for_the_driver_names_the_operator(snapshot):
    limits = InlineLimits(per_state=700, per_message=1400)
    files = InlineFiles(MemoryNames("transfer", limits.total), limits)
    with pytest.raises(
        CheckpointStorageError,
        match=r"operator 'count' takes 1516 bytes.* all state of one subtask",
    ):
        upload_snapshot(snapshot, files, 1, owner="operator 'count'")


def test_state_for_the_driver_travels_inline(snapshot):
    limits = InlineLimits()
    files = InlineFiles(MemoryNames("transfer", limits.total), limits)
    handles, _ = upload_snapshot(snapshot, files, 1, incremental=True)
    assert all(isinstance(handle, InlineHandle) for handle in handles.values())


def test_bytes_travel_inline_if_they_are_small(files):
    assert upload_bytes(b"abc", files, 1, inline_below=4) == inline(b"abc")
    assert upload_bytes(b"", files, 1) == inline(b"")
    handle = upload_bytes(b"abc", files, 1, inline_below=3)
    assert isinstance(handle, FileHandle)
    assert files.read_bytes(handle) == b"abc"


def test_small_files_travel_inline_as_long_as_there_is_room(files, snapshot):
    sizes = {name: len(content) for name, content in SNAPSHOT.items()}
    handles, uploaded = upload_snapshot(snapshot, files, 1, inline_below=1000, inline_at_most=816)
    inlined = {name for name, handle in handles.items() if isinstance(handle, InlineHandle)}
    assert inlined == {"empty", "CURRENT", "MANIFEST-000005", "000007.sst"}
    assert sum(sizes[name] for name in inlined) == 816
    assert uploaded == sum(sizes.values())


def test_files_of_a_store_are_moved_at_the_same_time(files, snapshot, tmp_path, monkeypatch):
    meeting = threading.Barrier(4, timeout=30)
    met = set()

    def together() -> bool:
        if threading.get_ident() not in met:
            met.add(threading.get_ident())
            meeting.wait()
        return False

    def download(handle, local, download=files.download):
        together()
        download(handle, local)

    with files_at_a_time(4):
        handles, _ = upload_snapshot(snapshot, files, 1, cancelled=together)
        met.clear()
        monkeypatch.setattr(files, "download", download)
        download_snapshot(handles, files, tmp_path / "copy")
    assert contents(tmp_path / "copy") == SNAPSHOT


def test_one_file_that_fails_fails_the_upload(files, snapshot):
    with files_at_a_time(4), pytest.raises(CheckpointError, match="cancelled"):
        upload_snapshot(snapshot, files, 1, cancelled=Asked(stop_at=3))
