"""Removing checkpoints, and what unfinished ones left behind."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from holdfast.checkpoint.completed import (
    checkpoint_ids,
    completed_checkpoints,
    load,
    lost_reason,
)
from holdfast.checkpoint.ledger import record_name, recorded_checkpoints
from holdfast.checkpoint.metadata import paths_of
from holdfast.checkpoint.storage import (
    COMPLETED,
    FENCES,
    SHARED,
    STAGED,
    TASK_OWNED,
    checkpoint_directory,
    metadata_name,
)
from holdfast.errors import CorruptCheckpointError, RestoreError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from holdfast.checkpoint.fence import Fence
    from holdfast.checkpoint.storage import NamedFiles

_SHARED_FILE: Final = re.compile(r"(\d+)-[0-9a-f]+")


@dataclass(frozen=True, slots=True)
class Swept:
    """What a sweep removed, and what kept it from removing more."""

    removed: tuple[str, ...] = ()
    """Directories of unfinished checkpoints, and shared files."""
    unreadable: tuple[str, ...] = ()
    """Why checkpoints could not be read. Then all shared files stay: theirs are unknown."""


def delete_checkpoint(
    files: NamedFiles,
    checkpoint_id: int,
    unused: Iterable[str] = (),
) -> None:
    """Remove a checkpoint and the shared files that no other one uses.

    The metadata goes first: a deletion that is interrupted leaves something for the
    sweep, never a checkpoint that looks complete.
    """
    files.delete(metadata_name(checkpoint_id))
    files.delete_tree(checkpoint_directory(checkpoint_id))
    for path in unused:
        files.delete(path)


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
    fence.check()
    removed = _sweep_records(files)
    lost = {one for _, one in recorded_checkpoints(files)} - _complete(files)
    removed += _sweep_unfinished(files, below, but=lost)
    used, unreadable = _references(files)
    # Somebody may bring its metadata back, and then all of it must be there.
    unreadable += [lost_reason(files, one) for one in sorted(lost)]
    if not unreadable:
        removed += _sweep_shared(files, below, used.union(in_use))
    return Swept(tuple(removed), tuple(unreadable))


def delete_job(files: NamedFiles) -> None:
    """Remove all that the job has in checkpoint storage, but for notes of how it ended.

    The records of complete checkpoints go first, then the checkpoints, the newest last. A start
    after a deletion that broke off goes on from the newest one, or finds nothing.
    """
    files.delete_tree(COMPLETED)
    for checkpoint_id in checkpoint_ids(files):
        delete_checkpoint(files, checkpoint_id)
    # The fence last: until then a driver that was replaced can still tell.
    for directory in (SHARED, STAGED, TASK_OWNED, FENCES):
        files.delete_tree(directory)
    files.delete_empty_root()


def _complete(files: NamedFiles) -> set[int]:
    """Ids of all checkpoints that have metadata, readable or not."""
    ids = checkpoint_ids(files)
    return {one for one in ids if files.exists(metadata_name(one))}


def _sweep_unfinished(files: NamedFiles, below: int, but: Collection[int]) -> list[str]:
    removed = []
    for checkpoint_id in sorted(set(checkpoint_ids(files)) - _complete(files) - set(but)):
        if checkpoint_id < below:
            directory = checkpoint_directory(checkpoint_id)
            files.delete_tree(directory)
            removed.append(directory)
    return removed


def _sweep_records(files: NamedFiles) -> list[str]:
    """Remove records of checkpoints that are gone, and older than the newest one there is."""
    complete = completed_checkpoints(files)
    newest = max(complete, default=(0, 0))
    stale = [one for one in recorded_checkpoints(files) if one < newest and one not in complete]
    for one in stale:
        files.delete(record_name(*one))
    return [record_name(*one) for one in stale]


def _references(files: NamedFiles) -> tuple[set[str], list[str]]:
    used: set[str] = set()
    unreadable: list[str] = []
    for checkpoint_id in sorted(_complete(files)):
        try:
            used |= paths_of(load(files, checkpoint_id))
        except RestoreError:
            # Deleted meanwhile: it refers to nothing any more.
            continue
        except CorruptCheckpointError as error:
            unreadable.append(str(error))
    return used, unreadable


def _sweep_shared(files: NamedFiles, below: int, used: set[str]) -> list[str]:
    removed = []
    for name in sorted(files.entries(SHARED)):
        match = _SHARED_FILE.fullmatch(name)
        path = f"{SHARED}/{name}"
        if match and int(match[1]) < below and path not in used:
            files.delete(path)
            removed.append(path)
    return removed
