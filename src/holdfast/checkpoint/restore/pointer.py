"""Finds the checkpoint or savepoint at a path or URL."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Final

from holdfast.checkpoint.files.completed import load, load_newest, written_ids
from holdfast.checkpoint.files.layout import METADATA, checkpoint_directory, metadata_name
from holdfast.checkpoint.files.ledger import recorded_checkpoints
from holdfast.checkpoint.savepoint.storage import load_savepoint
from holdfast.config.checkpoint_options import ACCEPT_DUPLICATES
from holdfast.errors import RestoreError
from holdfast.storage.file_system import FileSystemFiles

if TYPE_CHECKING:
    from holdfast.checkpoint.files.metadata import CheckpointMetadata
    from holdfast.config.options import PathLike

logger = logging.getLogger("holdfast")

_LISTINGS: Final = 4
"""How often storage is listed again while a checkpoint cannot be used."""
_CHECKPOINT: Final = re.compile(r"chk-(\d+)")


def find_snapshot(
    url: PathLike, *, accepts_older: bool = True
) -> tuple[FileSystemFiles, CheckpointMetadata]:
    """Find the files and the metadata of a snapshot.

    The path may be the directory of a savepoint or checkpoint, its `_metadata` file, or a job's
    directory, which stands for the newest checkpoint.

    Args:
        url: The path.
        accepts_older: Whether an older checkpoint will do if a job's newest one is lost or damaged.

    Raises:
        RestoreError: There is no snapshot.
        CorruptCheckpointError: The snapshot cannot be used.
    """
    # Made absolute first: a relative path may be just "_metadata".
    place = FileSystemFiles(url).root.removesuffix(f"/{METADATA}")
    parent, _, last = place.rpartition("/")
    match = _CHECKPOINT.fullmatch(last)
    if match:
        files, checkpoint_id = FileSystemFiles(parent or "/"), int(match[1])
        if files.exists(metadata_name(checkpoint_id)):
            return files, load(files, checkpoint_id)
        raise RestoreError(
            f"{url}: there is no {METADATA}: the checkpoint was never completed, or was deleted"
        )
    files = FileSystemFiles(place)
    if files.exists(METADATA):
        return files, load_savepoint(files)
    if written_ids(files) or recorded_checkpoints(files):
        return files, _newest(files, url, accepts_older)
    raise RestoreError(
        f"{url}: there is no complete savepoint or checkpoint; give the directory of a savepoint "
        f"(savepoint-...), that of a checkpoint (chk-7), the {METADATA} file in one, or the "
        "directory of a job that holds checkpoints"
    )


def names_a_job(url: PathLike) -> bool:
    """Whether a path is a job's directory, and so names no snapshot itself."""
    place = FileSystemFiles(url).root.removesuffix(f"/{METADATA}")
    is_checkpoint = _CHECKPOINT.fullmatch(place.rpartition("/")[2]) is not None
    return not is_checkpoint and not FileSystemFiles(place).exists(METADATA)


def _newest(files: FileSystemFiles, url: PathLike, accepts_older: bool) -> CheckpointMetadata:
    metadata, refusals = load_newest(files)
    for _ in range(_LISTINGS):
        # The job may run, and have retired the checkpoint meanwhile.
        if refusals:
            metadata, refusals = load_newest(files)
    for checkpoint_id, why in refusals.items():
        logger.warning("checkpoint %d: %s", checkpoint_id, why)
    if metadata is None:
        why = "; ".join(refusals.values()) or "the log says why"
        raise RestoreError(f"{url}: no checkpoint there can be restored ({why})")
    if refusals and not accepts_older:
        lost = max(refusals)
        older = f"{files.root}/{checkpoint_directory(metadata.checkpoint_id)}"
        raise RestoreError(
            f"{url}: the job's newest checkpoint, {lost}, cannot be restored ({refusals[lost]}), "
            f"and an older one may repeat output that was published since. Bring {lost} back from "
            f"a backup. To start from the older one, name it: {older}; or set "
            f"{ACCEPT_DUPLICATES.key} to true"
        )
    return metadata
