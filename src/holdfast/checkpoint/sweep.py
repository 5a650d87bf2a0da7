"""Removing checkpoints, and what unfinished ones left behind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.checkpoint.completed import checkpoint_ids, load
from holdfast.checkpoint.metadata import paths_of
from holdfast.checkpoint.stopped import STOPPED, note_stopped
from holdfast.checkpoint.storage import (
    FENCES,
    SHARED,
    STAGED,
    TASK_OWNED,
    checkpoint_directory,
    first_user,
    metadata_name,
)
from holdfast.errors import CorruptCheckpointError, RestoreError

if TYPE_CHECKING:
    from collections.abc import Collection

    from holdfast.checkpoint.fence import Fence
    from holdfast.checkpoint.storage import NamedFiles


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
    unused: Collection[str] = (),
    *,
    fence: Fence | None = None,
) -> None:
    """Remove a checkpoint and the shared files that no other one uses.

    The metadata goes first: a deletion that is interrupted leaves something for the
    sweep, never a checkpoint that looks complete.

    Raises:
        FencedError: Another driver has taken over and may need it; nothing is removed.
    """
    if fence is not None:
        fence.check()
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
    fence.check()
    removed = _sweep_unfinished(files, below)
    used, unreadable = _references(files)
    if not unreadable:
        removed += _sweep_shared(files, below, used.union(in_use))
    return Swept(tuple(removed), tuple(unreadable))


def delete_job(files: NamedFiles, *, savepoint: str | None = None) -> None:
    """Remove everything that the job has in checkpoint storage.

    Args:
        files: The job's files.
        savepoint: What the job was ended with; a note of it stays.
    """
    if savepoint is None:
        files.delete(STOPPED)
    else:
        note_stopped(files, savepoint)
    for checkpoint_id in checkpoint_ids(files):
        delete_checkpoint(files, checkpoint_id)
    # The fence last: until then a driver that was replaced can still tell.
    for directory in (SHARED, STAGED, TASK_OWNED, FENCES):
        files.delete_tree(directory)
    files.delete_empty_root()


def _sweep_unfinished(files: NamedFiles, below: int) -> list[str]:
    removed = []
    for checkpoint_id in checkpoint_ids(files):
        if checkpoint_id < below and not files.exists(metadata_name(checkpoint_id)):
            directory = checkpoint_directory(checkpoint_id)
            files.delete_tree(directory)
            removed.append(directory)
    return removed


def _references(files: NamedFiles) -> tuple[set[str], list[str]]:
    used: set[str] = set()
    unreadable: list[str] = []
    for checkpoint_id in checkpoint_ids(files):
        if not files.exists(metadata_name(checkpoint_id)):
            continue
        try:
            used |= paths_of(load(files, checkpoint_id))
        except RestoreError:
            # Deleted meanwhile: it refers to nothing any more.
            continue
        except CorruptCheckpointError as error:
            unreadable.append(str(error))
    return used, unreadable


def _sweep_shared(files: NamedFiles, below: int, used: set[str]) -> list[str]:
    removed = [
        path
        for path in sorted(f"{SHARED}/{name}" for name in files.entries(SHARED))
        if (first := first_user(path)) is not None and first < below and path not in used
    ]
    files.delete_all(removed)
    return removed


def files_of(files: NamedFiles, checkpoint_id: int) -> set[str]:
    """Shared files that were written for a checkpoint, which may not be complete."""
    found = (f"{SHARED}/{name}" for name in files.entries(SHARED))
    return {path for path in found if first_user(path) == checkpoint_id}
