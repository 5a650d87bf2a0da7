"""Deletes a claimed snapshot once the job no longer needs it."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.checkpoint.files.cleanup import delete_checkpoint
from holdfast.checkpoint.files.completed import load, written_ids
from holdfast.checkpoint.files.layout import SHARED
from holdfast.checkpoint.files.ledger import note_claimed
from holdfast.checkpoint.files.metadata import paths_of
from holdfast.checkpoint.savepoint.storage import delete_savepoint
from holdfast.errors import HoldfastError

if TYPE_CHECKING:
    from holdfast.checkpoint.files.metadata import CheckpointMetadata
    from holdfast.storage.file_system import FileSystemFiles

logger = logging.getLogger("holdfast")


@dataclass(frozen=True)
class ClaimedSnapshot:
    """A savepoint, or another job's checkpoint, that this job owns."""

    files: FileSystemFiles
    metadata: CheckpointMetadata
    by: str = ""
    """Id of this job."""

    def release(self) -> None:
        """Delete it; an error is logged."""
        try:
            self.delete()
            logger.info("deleted the snapshot that the job began from: %s", self.files.root)
        except HoldfastError as error:
            logger.warning("%s was claimed but not deleted: %s", self.files.root, error)

    def delete(self) -> None:
        """Delete it; files that other checkpoints of its job use stay.

        Raises:
            CorruptCheckpointError: Another checkpoint cannot be read, so its files are unknown;
                nothing is deleted.
            CheckpointStorageError: Storage failed.
        """
        if self.metadata.is_savepoint:
            delete_savepoint(self.files, self.metadata)
            return
        mine = self.metadata.checkpoint_id
        used: set[str] = set()
        for checkpoint_id in written_ids(self.files) - {mine}:
            used |= paths_of(load(self.files, checkpoint_id))
        note_claimed(self.files, self.metadata, self.by)
        shared = (path for path in paths_of(self.metadata) if path.startswith(f"{SHARED}/"))
        delete_checkpoint(self.files, mine, [path for path in shared if path not in used])
