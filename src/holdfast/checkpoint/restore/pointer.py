"""Finds the checkpoint or savepoint at a path or URL."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Final

from holdfast.checkpoint.files.completed import load, load_newest, written_ids
from holdfast.checkpoint.files.layout import METADATA, metadata_name
from holdfast.checkpoint.savepoint.storage import load_savepoint
from holdfast.errors import RestoreError
from holdfast.storage.file_system import FileSystemFiles

if TYPE_CHECKING:
    from holdfast.checkpoint.files.metadata import CheckpointMetadata
    from holdfast.config.options import PathLike

logger = logging.getLogger("holdfast")

_CHECKPOINT: Final = re.compile(r"chk-(\d+)")


def find_snapshot(url: PathLike) -> tuple[FileSystemFiles, CheckpointMetadata]:
    """Find the files and the metadata of a snapshot.

    The path may be the directory of a savepoint or checkpoint, its `_metadata` file, or a job's
    directory, which stands for the newest checkpoint.

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
    if written_ids(files):
        return files, _newest(files, url)
    raise RestoreError(
        f"{url}: there is no complete savepoint or checkpoint; give the directory of a savepoint "
        f"(savepoint-...), that of a checkpoint (chk-7), the {METADATA} file in one, or the "
        "directory of a job that holds checkpoints"
    )


def _newest(files: FileSystemFiles, url: PathLike) -> CheckpointMetadata:
    metadata, refusals = load_newest(files)
    for checkpoint_id, why in refusals.items():
        logger.warning("checkpoint %d: %s", checkpoint_id, why)
    if metadata is None:
        raise RestoreError(f"{url}: no checkpoint there can be restored; the log says why")
    return metadata
