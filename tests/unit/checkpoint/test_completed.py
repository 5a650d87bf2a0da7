"""Finding the newest checkpoint that can be used."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from holdfast.checkpoint.files.completed import (
    completed_checkpoints,
    load,
    load_newest,
    store_metadata,
    verify_handles,
)
from holdfast.checkpoint.files.fence import Fence, take_fence
from holdfast.errors import (
    CheckpointError,
    CheckpointStorageError,
    CorruptCheckpointError,
    FencedError,
    RestoreError,
)
from tests.support.checkpoints import checkpoint

if TYPE_CHECKING:
    from holdfast.storage.file_system import FileSystemFiles


def complete(files: FileSystemFiles, checkpoint_id: int, fence: Fence) -> None:
    """Store a checkpoint with one file."""
    handle = files.write_bytes(f"chk-{checkpoint_id}/data", b"state")
    metadata = checkpoint(checkpoint_id, {"data.mdb": handle}, fence=fence.number)
    store_metadata(files, metadata, fence)


def newest_id(files: FileSystemFiles) -> tuple[int | None, list[int]]:
    metadata, refusals = load_newest(files)
    found = None if metadata is None else metadata.checkpoint_id
    return found, list(refusals)


def test_without_checkpoints_there_is_no_newest(files):
    assert load_newest(files) == (None, {})
    assert completed_checkpoints(files) == []


def test_ids_are_ordered_as_numbers(files):
    fence = take_fence(files)
    for checkpoint_id in (9, 10, 100, 11):
        complete(files, checkpoint_id, fence)
    assert completed_checkpoints(files) == [(1, 100), (1, 11), (1, 10), (1, 9)]
    assert newest_id(files) == (100, [])


def test_a_higher_fence_is_newer_than_a_higher_id(files):
    old = take_fence(files)
    complete(files, 10, old)
    new = take_fence(files)
    complete(files, 8, new)
    assert completed_checkpoints(files) == [(2, 8), (1, 10)]
    assert newest_id(files) == (8, [])


def test_a_checkpoint_without_metadata_does_not_count(files):
    complete(files, 1, take_fence(files))
    files.write_bytes("chk-2/data", b"state")
    assert newest_id(files) == (1, [])
    with pytest.raises(
        RestoreError, match=r"chk-2/_metadata: .* never completed; completed checkpoints: 1"
    ):
        load(files, 2)


@pytest.mark.parametrize("bad", [b"", b"garbage", b'{"holdfast":"checkpoint","format":9}\n'])
def test_a_damaged_newest_checkpoint_is_passed_over_and_named(files, tmp_path, bad):
    fence = take_fence(files)
    for checkpoint_id in (1, 2):
        complete(files, checkpoint_id, fence)
    (tmp_path / "job" / "chk-2" / "_metadata").write_bytes(bad)
    assert newest_id(files) == (1, [2])


def test_damage_to_an_older_checkpoint_is_no_refusal(files, tmp_path):
    fence = take_fence(files)
    for checkpoint_id in (1, 2):
        complete(files, checkpoint_id, fence)
    (tmp_path / "job" / "chk-1" / "_metadata").write_bytes(b"garbage")
    assert newest_id(files) == (2, [])


def test_a_missing_or_shortened_file_makes_a_checkpoint_unusable(files, tmp_path):
    fence = take_fence(files)
    for checkpoint_id in (1, 2, 3):
        complete(files, checkpoint_id, fence)
    (tmp_path / "job" / "chk-3" / "data").unlink()
    (tmp_path / "job" / "chk-2" / "data").write_bytes(b"sta")
    metadata, refusals = load_newest(files)
    assert metadata is not None
    assert metadata.checkpoint_id == 1
    assert "'data.mdb' of operator 'count', subtask 0 in checkpoint 3 is gone" in refusals[3]
    assert "has 3 bytes instead of 5" in refusals[2]
    verify_handles(metadata, files)


def test_a_store_without_files_makes_a_checkpoint_unusable(files):
    complete(files, 1, take_fence(files))
    metadata = load(files, 1)
    [operator] = metadata.operators
    store = replace(operator.subtasks[0], files={})
    emptied = replace(metadata, operators=[replace(operator, subtasks=[store])])
    with pytest.raises(CorruptCheckpointError, match=r"'count', subtask 0: .* holds no file"):
        verify_handles(emptied, files)


def test_if_all_are_damaged_all_are_named(files, tmp_path):
    fence = take_fence(files)
    for checkpoint_id in (1, 2):
        complete(files, checkpoint_id, fence)
        (tmp_path / "job" / f"chk-{checkpoint_id}" / "_metadata").write_bytes(b"garbage")
    assert newest_id(files) == (None, [2, 1])


def test_metadata_in_the_directory_of_another_checkpoint_is_refused(files, tmp_path):
    complete(files, 1, take_fence(files))
    (tmp_path / "job" / "chk-1").rename(tmp_path / "job" / "chk-4")
    with pytest.raises(CorruptCheckpointError, match="metadata of checkpoint 1 was put here"):
        load(files, 4)


def test_storage_that_fails_is_no_reason_to_fall_back(files, tmp_path):
    complete(files, 1, take_fence(files))
    (tmp_path / "job" / "chk-2" / "_metadata").mkdir(parents=True)
    with pytest.raises(CheckpointStorageError, match="chk-2/_metadata: reading failed"):
        load_newest(files)


def test_a_complete_checkpoint_is_never_written_over(files):
    fence = take_fence(files)
    complete(files, 1, fence)
    with pytest.raises(CheckpointStorageError, match=r"chk-1/_metadata: .* complete already"):
        store_metadata(files, checkpoint(1), fence)
    assert load(files, 1).operators[0].subtasks[0].files


def test_a_driver_that_was_replaced_completes_nothing(files):
    old = take_fence(files)
    take_fence(files)
    with pytest.raises(FencedError, match="holds fence 1, and another has taken fence 2"):
        complete(files, 1, old)
    assert completed_checkpoints(files) == []


def test_a_checkpoint_made_under_another_fence_is_refused(files):
    with pytest.raises(CheckpointStorageError, match="made under fence 7"):
        store_metadata(files, checkpoint(1, fence=7), take_fence(files))


def test_of_two_drivers_that_race_for_a_checkpoint_one_completes_it(files):
    fence = take_fence(files)

    def attempt(_: int) -> bool:
        try:
            store_metadata(files, checkpoint(1), fence)
        except CheckpointError:
            return False
        return True

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(attempt, range(8))).count(True) == 1
