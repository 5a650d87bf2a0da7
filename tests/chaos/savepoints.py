"""Savepoints of the chaos job: how it is asked for one, and whether those there are whole.

The job is asked by a file in its directory, and stops with a savepoint. Which one that is
it tells when it has ended; of others, nobody knows whether the job has gone on behind them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast import _faults as faults
from holdfast.api.checkpointed import CheckpointListener
from holdfast.checkpoint.files.layout import METADATA
from holdfast.checkpoint.files.metadata import handles_of, paths_of
from holdfast.checkpoint.restore.pointer import find_snapshot
from holdfast.config.checkpoint_options import SavepointFormatType
from holdfast.errors import HoldfastError, RestoreError

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

COMPLETE = "after-savepoint"
"""The point that a driver reaches with a complete savepoint, before the job ends."""
FORMS = (SavepointFormatType.CANONICAL, SavepointFormatType.NATIVE)


def savepoints_in(directory: Path) -> Path:
    """Where the job puts its savepoints."""
    return directory / "savepoints"


def ask(directory: Path, form: SavepointFormatType) -> None:
    """Let the job stop with a savepoint, as soon as it can."""
    fresh = _request(directory).with_suffix(".new")
    fresh.write_text(form.name)
    fresh.rename(_request(directory))


def withdraw(directory: Path) -> None:
    """Ask no longer."""
    _request(directory).unlink(missing_ok=True)


def asked_form(directory: Path) -> SavepointFormatType | None:
    """The form of the savepoint that the job is to stop with, if it is to."""
    request = _request(directory)
    return SavepointFormatType[request.read_text()] if request.exists() else None


def _request(directory: Path) -> Path:
    return directory / "savepoint-asked"


class CompleteSavepoints(CheckpointListener):
    """Passes a point when a savepoint is complete; the job does not end before that."""

    def __init__(self, directory: Path) -> None:
        self._target = savepoints_in(directory)
        self._known = complete_ones(self._target)

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        if complete_ones(self._target) > self._known:
            faults.fault_point(COMPLETE, checkpoint=checkpoint_id)


def complete_ones(target: Path) -> set[Path]:
    """Directories that have what makes a savepoint complete."""
    return {path.parent for path in target.glob(f"*/{METADATA}")}


def wrong_savepoints(
    target: Path, reported: Collection[Path], unreported: int, unfinished: int
) -> list[str]:
    """What must not be in the directory that all savepoints went to.

    Args:
        target: That directory.
        reported: The savepoints that the job has ended with.
        unreported: How many are complete besides, since a driver died before it told.
        unfinished: How many at most are not, since a driver died on the way.
    """
    complete = complete_ones(target)
    parts = {*target.iterdir()} - complete if target.exists() else set()
    lost = {*reported} - complete
    wrong = [f"{path}: the job has ended with it, and it is gone" for path in sorted(lost)]
    wrong += [f"{path}: {why}" for path in sorted(complete) for why in _damage(path)]
    wrong += [f"{path}: accepted without {METADATA}" for path in sorted(parts) if _accepted(path)]
    if len(complete) != len(reported) + unreported:
        wrong.append(
            f"{len(complete)} complete savepoints instead of {len(reported)} and {unreported}"
        )
    if len(parts) > unfinished:
        wrong.append(f"{len(parts)} unfinished savepoints, of {unfinished} that were broken off")
    return wrong


def _damage(path: Path) -> list[str]:
    """What a complete savepoint lacks, or has too much."""
    try:
        files, metadata = find_snapshot(str(path))
        for _, handle in handles_of(metadata):
            files.read_bytes(handle)
    except HoldfastError as error:
        return [str(error)]
    found = {str(file.relative_to(path)) for file in path.rglob("*") if file.is_file()}
    unnamed = sorted(found - paths_of(metadata) - {METADATA})
    return [f"files that it does not name: {unnamed}"] if unnamed else []


def _accepted(path: Path) -> bool:
    try:
        find_snapshot(str(path))
    except RestoreError:
        return False
    return True
