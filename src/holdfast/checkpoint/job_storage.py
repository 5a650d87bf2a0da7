"""What one job has in checkpoint storage, and which checkpoint uses which file."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from holdfast.checkpoint.completed import store_metadata
from holdfast.checkpoint.metadata import paths_of
from holdfast.checkpoint.registry import SharedFiles
from holdfast.checkpoint.storage import SHARED, checkpoint_directory
from holdfast.checkpoint.sweep import delete_checkpoint, sweep

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.checkpoint.fence import Fence
    from holdfast.checkpoint.metadata import CheckpointMetadata
    from holdfast.checkpoint.storage import JobCheckpointFiles


class JobStorage:
    """Completes and deletes the checkpoints of a job, as its one writer; serves any thread.

    Args:
        files: The job's files.
        fence: This driver's right to write there.
        completed: Complete checkpoints that are there already.
    """

    def __init__(
        self, files: JobCheckpointFiles, fence: Fence, completed: Iterable[CheckpointMetadata] = ()
    ) -> None:
        self.files = files
        self._fence = fence
        self._lock = threading.Lock()
        self._shared = SharedFiles()
        for metadata in completed:
            self._shared.register(metadata.checkpoint_id, _shared_paths(metadata))

    @property
    def fence_number(self) -> int:
        """Number of the fence under which checkpoints are written."""
        return self._fence.number

    def path_of(self, checkpoint_id: int) -> str:
        """Where a checkpoint is, for people to read."""
        return f"{self.files.root}/{checkpoint_directory(checkpoint_id)}"

    def check_fence(self) -> None:
        """Raise FencedError if another driver has taken over."""
        self._fence.check()

    def build_upon(self, checkpoint_id: int, base: CheckpointMetadata | None) -> None:
        """Keep the files of `base` for a checkpoint that is about to be uploaded."""
        if base is not None:
            with self._lock:
                self._shared.register(checkpoint_id, _shared_paths(base))

    def complete(self, metadata: CheckpointMetadata) -> None:
        """Write the metadata, last of all; raises as `store_metadata` does."""
        store_metadata(self.files, metadata, self._fence)
        with self._lock:
            self._shared.register(metadata.checkpoint_id, _shared_paths(metadata))

    def delete(self, checkpoint_id: int) -> None:
        """Remove a checkpoint, complete or not, and what no other one uses of its files."""
        with self._lock:
            unused = self._shared.unregister(checkpoint_id)
        delete_checkpoint(self.files, checkpoint_id, unused, fence=self._fence)

    def sweep(self, below: int) -> None:
        """Remove what checkpoints with ids under `below` left without completing."""
        with self._lock:
            in_use = self._shared.in_use
        sweep(self.files, below=below, fence=self._fence, in_use=in_use)


def _shared_paths(metadata: CheckpointMetadata) -> list[str]:
    return [path for path in paths_of(metadata) if path.startswith(f"{SHARED}/")]
