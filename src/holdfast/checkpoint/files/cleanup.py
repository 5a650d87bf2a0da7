"""Deletes checkpoints, jobs, and the files of checkpoints that were never completed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from holdfast.checkpoint.files.completed import (
    checkpoint_ids,
    completed_checkpoints,
    load,
)
from holdfast.checkpoint.files.layout import (
    COMPLETED,
    FENCES,
    SHARED,
    STAGED,
    TASK_OWNED,
    checkpoint_directory,
    first_user,
    is_own,
    metadata_name,
)
from holdfast.checkpoint.files.ledger import record_name, recorded_checkpoints
from holdfast.checkpoint.files.metadata import paths_of
from holdfast.checkpoint.files.used import keep_highest
from holdfast.errors import CorruptCheckpointError, RestoreError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from holdfast.checkpoint.files.fence import Fence
    from holdfast.storage.files import NamedFiles

_HALF_WRITTEN: Final = re.compile(r"\.[0-9a-f]{32}")
"""A temporary file that a killed process has left; see `create_local`."""


def delete_checkpoint(files: NamedFiles, checkpoint_id: int, unused: Iterable[str] = ()) -> None:
    """Delete a checkpoint, and the shared files that no other one uses.

    The metadata goes first: an interrupted deletion leaves files for `delete_unfinished`, never a
    checkpoint that looks complete.
    """
    files.delete(metadata_name(checkpoint_id))
    files.delete_tree(checkpoint_directory(checkpoint_id))
    files.delete_all(unused)


def delete_unfinished(
    files: NamedFiles, *, below: int, fence: Fence, in_use: Collection[str] = ()
) -> list[str]:
    """Delete the files of incomplete checkpoints with ids under `below`.

    Returns the names of the directories, shared files and records that were deleted. If a
    checkpoint cannot be read, all shared files stay, since its files are unknown.

    Args:
        files: The job's files.
        below: The lowest id of a pending checkpoint, or the next id.
        fence: The fence of this driver.
        in_use: Shared files that pending checkpoints build on.

    Raises:
        FencedError: Another driver has taken over; nothing is deleted.
    """
    there = set(checkpoint_ids(files))
    complete = {one for one in there if files.exists(metadata_name(one))}
    stale = _stale_records(files)
    lost = {one for _, one in recorded_checkpoints(files) if one not in complete} - stale.keys()
    unfinished = [checkpoint_directory(one) for one in there - complete - lost if one < below]
    # The metadata of a lost checkpoint may be restored from a backup: keep its files.
    used = None if lost else _references(files, complete)
    unused = [] if used is None else _unused_files(files, below, used.union(in_use))
    # After listing: some of these files may belong to the next driver.
    fence.check()
    files.delete_all([*stale.values(), *unused])
    for directory in unfinished:
        files.delete_tree(directory)
    return sorted([*stale.values(), *unused, *unfinished])


def delete_job(files: NamedFiles, *, runs_again: bool = False) -> None:
    """Delete all files of the job in checkpoint storage, except the notes of how it ended.

    The records of complete checkpoints go first, then the checkpoints, the newest last. After an
    interrupted deletion a start continues from the newest one, or finds nothing.

    Args:
        files: The job's files.
        runs_again: Whether there may be a run under the same job id: then the highest fence and
            checkpoint id are kept, and it uses neither again.
    """
    if runs_again:
        keep_highest(files)
    _delete_own(files, COMPLETED)
    newest_last = [one for _, one in reversed(completed_checkpoints(files))]
    for checkpoint_id in [*(set(checkpoint_ids(files)) - set(newest_last)), *newest_last]:
        delete_checkpoint(files, checkpoint_id)
    # The fence last: a driver that was replaced must notice it until then.
    files.delete_tree(TASK_OWNED)
    for directory in (SHARED, STAGED, FENCES):
        _delete_own(files, directory)
    files.delete_empty_root()


def _stale_records(files: NamedFiles) -> dict[int, str]:
    """Records of missing checkpoints that are older than the newest one."""
    complete = completed_checkpoints(files)
    newest = max(complete, default=(0, 0))
    recorded = recorded_checkpoints(files)
    return {one[1]: record_name(*one) for one in recorded if one < newest and one not in complete}


def _delete_own(files: NamedFiles, directory: str) -> None:
    """Delete the files that Holdfast has written; others may use the directory too."""
    there = files.entries(directory)
    own = [name for name in there if is_own(directory, name) or _HALF_WRITTEN.fullmatch(name)]
    files.delete_all(f"{directory}/{name}" for name in own)
    files.delete_if_empty(directory)


def _references(files: NamedFiles, complete: set[int]) -> set[str] | None:
    """All files that complete checkpoints use; None if one of them cannot be read."""
    used: set[str] = set()
    for checkpoint_id in sorted(complete):
        try:
            used |= paths_of(load(files, checkpoint_id))
        except RestoreError:
            # It was deleted meanwhile.
            continue
        except CorruptCheckpointError:
            return None
    return used


def _unused_files(files: NamedFiles, below: int, used: set[str]) -> list[str]:
    """Shared files of checkpoints under `below` that no checkpoint uses."""
    found = (f"{SHARED}/{name}" for name in files.entries(SHARED))
    return [
        path
        for path in found
        if (first := first_user(path)) is not None and first < below and path not in used
    ]


def files_of(files: NamedFiles, checkpoint_id: int) -> set[str]:
    """Shared files that were written for a checkpoint, complete or not."""
    found = (f"{SHARED}/{name}" for name in files.entries(SHARED))
    return {path for path in found if first_user(path) == checkpoint_id}
