"""Removing checkpoints, and what unfinished ones left behind."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from holdfast.checkpoint.files.completed import (
    checkpoint_ids,
    completed_checkpoints,
    load,
    lost_reason,
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
from holdfast.errors import CorruptCheckpointError, RestoreError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from holdfast.checkpoint.files.fence import Fence
    from holdfast.storage.files import NamedFiles

_HALF_WRITTEN: Final = re.compile(r"\.[0-9a-f]{32}")
"""A file that a process which was killed has not given its name yet; see `create_local`."""


@dataclass(frozen=True, slots=True)
class Swept:
    """What a sweep removed, and what kept it from removing more."""

    removed: tuple[str, ...] = ()
    """Directories of unfinished checkpoints, shared files and records, by name."""
    unreadable: tuple[str, ...] = ()
    """Why checkpoints could not be read. Then all shared files stay: theirs are unknown."""


def delete_checkpoint(files: NamedFiles, checkpoint_id: int, unused: Iterable[str] = ()) -> None:
    """Remove a checkpoint and the shared files that no other one uses.

    The metadata goes first: a deletion that is interrupted leaves something for the
    sweep, never a checkpoint that looks complete.
    """
    files.delete(metadata_name(checkpoint_id))
    files.delete_tree(checkpoint_directory(checkpoint_id))
    files.delete_all(unused)


def sweep(files: NamedFiles, *, below: int, fence: Fence, in_use: Collection[str] = ()) -> Swept:
    """Remove what checkpoints with ids under `below` left without completing.

    Args:
        files: The job's files.
        below: Lowest id of the checkpoints that are under way, or the next one.
        fence: The driver's own.
        in_use: Shared files that checkpoints under way build upon.

    Raises:
        FencedError: Another driver has taken over; nothing is removed.
    """
    there = set(checkpoint_ids(files))
    complete = {one for one in there if files.exists(metadata_name(one))}
    stale = _stale_records(files)
    lost = {one for _, one in recorded_checkpoints(files) if one not in complete} - stale.keys()
    used, unreadable = _references(files, complete)
    # Somebody may bring its metadata back, and then all of it must be there.
    unreadable += [lost_reason(files, one) for one in sorted(lost)]
    unfinished = [checkpoint_directory(one) for one in there - complete - lost if one < below]
    unused = [] if unreadable else _unused_files(files, below, used.union(in_use))
    # Now, and not before it was seen what there is: that may be the next driver's.
    fence.check()
    files.delete_all([*stale.values(), *unused])
    for directory in unfinished:
        files.delete_tree(directory)
    return Swept(tuple(sorted([*stale.values(), *unused, *unfinished])), tuple(unreadable))


def delete_job(files: NamedFiles) -> None:
    """Remove all that the job has in checkpoint storage, but for notes of how it ended.

    The records of complete checkpoints go first, then the checkpoints, the newest last. A start
    after a deletion that broke off goes on from the newest one, or finds nothing.
    """
    _delete_own(files, COMPLETED)
    newest_last = [one for _, one in reversed(completed_checkpoints(files))]
    for checkpoint_id in [*(set(checkpoint_ids(files)) - set(newest_last)), *newest_last]:
        delete_checkpoint(files, checkpoint_id)
    # The fence last: until then a driver that was replaced can still tell.
    files.delete_tree(TASK_OWNED)
    for directory in (SHARED, STAGED, FENCES):
        _delete_own(files, directory)
    files.delete_empty_root()


def _stale_records(files: NamedFiles) -> dict[int, str]:
    """Records of checkpoints that are gone, and older than the newest one there is."""
    complete = completed_checkpoints(files)
    newest = max(complete, default=(0, 0))
    recorded = recorded_checkpoints(files)
    return {one[1]: record_name(*one) for one in recorded if one < newest and one not in complete}


def _delete_own(files: NamedFiles, directory: str) -> None:
    """Remove what Holdfast has put into a directory; others may use one of that name too."""
    there = files.entries(directory)
    own = [name for name in there if is_own(directory, name) or _HALF_WRITTEN.fullmatch(name)]
    files.delete_all(f"{directory}/{name}" for name in own)
    files.delete_if_empty(directory)


def _references(files: NamedFiles, complete: set[int]) -> tuple[set[str], list[str]]:
    used: set[str] = set()
    unreadable: list[str] = []
    for checkpoint_id in sorted(complete):
        try:
            used |= paths_of(load(files, checkpoint_id))
        except RestoreError:
            # Deleted meanwhile: it refers to nothing any more.
            continue
        except CorruptCheckpointError as error:
            unreadable.append(str(error))
    return used, unreadable


def _unused_files(files: NamedFiles, below: int, used: set[str]) -> list[str]:
    """Shared files of checkpoints under `below` that none uses."""
    found = (f"{SHARED}/{name}" for name in files.entries(SHARED))
    return [
        path
        for path in found
        if (first := first_user(path)) is not None and first < below and path not in used
    ]


def files_of(files: NamedFiles, checkpoint_id: int) -> set[str]:
    """Shared files that were written for a checkpoint, which may not be complete."""
    found = (f"{SHARED}/{name}" for name in files.entries(SHARED))
    return {path for path in found if first_user(path) == checkpoint_id}
