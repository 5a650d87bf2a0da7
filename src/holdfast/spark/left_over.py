"""Files with input that epochs had no time for, from when it is kept to when it is done."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from holdfast.checkpoint.handles import FileHandle
from holdfast.checkpoint.metadata import paths_of
from holdfast.errors import HoldfastError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.checkpoint.job_storage import JobStorage
    from holdfast.checkpoint.metadata import CheckpointMetadata
    from holdfast.runtime.plan import ChannelRows

logger = logging.getLogger("holdfast")


class LeftOver:
    """What one incarnation has kept of its input; serves the epochs' thread and all others."""

    def __init__(self) -> None:
        """Nothing yet."""
        self._lock = threading.Lock()
        self._files: set[str] = set()
        self._waiting: set[str] = set()

    def taken(self, channel_rows: Iterable[ChannelRows]) -> None:
        """An epoch has ended, and this is left over now."""
        handles = (left.rows.handle for left in channel_rows)
        waiting = {handle.path for handle in handles if isinstance(handle, FileHandle)}
        with self._lock:
            self._waiting = waiting
            self._files |= waiting

    def done(self, metadata: CheckpointMetadata, needed: Iterable[str] = ()) -> set[str]:
        """Files that nobody needs any more, now that this checkpoint is complete.

        Args:
            metadata: The checkpoint.
            needed: Files that checkpoints on their way list.
        """
        listed = paths_of(metadata).union(needed)
        with self._lock:
            kept = self._files & (listed | self._waiting)
            done, self._files = self._files - kept, kept
        return done


def release(done: set[str], storage: JobStorage) -> None:
    """Remove files; they are left for a sweep if that fails."""
    try:
        storage.release_staged(done)
    except HoldfastError as error:
        logger.warning("input that was processed was not removed: %s", error)
