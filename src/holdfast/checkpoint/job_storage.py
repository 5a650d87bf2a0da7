"""What one job has in checkpoint storage, and which checkpoint uses which file."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from holdfast.api.sink import OPENED
from holdfast.checkpoint.completed import store_metadata
from holdfast.checkpoint.ledger import record_completed, record_name, recorded_checkpoints
from holdfast.checkpoint.metadata import paths_of
from holdfast.checkpoint.registry import SharedFiles
from holdfast.checkpoint.storage import (
    SHARED,
    STAGED,
    checkpoint_directory,
    is_own,
    metadata_name,
)
from holdfast.checkpoint.sweep import delete_checkpoint, files_of, sweep
from holdfast.errors import HoldfastError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.checkpoint.fence import Fence
    from holdfast.checkpoint.metadata import CheckpointMetadata
    from holdfast.checkpoint.storage import JobCheckpointFiles

FENCE_EVERY_MS = 2_000
"""How often an epoch makes sure that no other driver has taken over."""


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
        self._fence_checked: int | None = None
        self._lock = threading.Lock()
        self._shared = SharedFiles()
        self._staged = SharedFiles()
        self._complete: dict[int, int] = {}
        """Checkpoints whose files are all known, with the fence under which each was written."""
        self._doomed: dict[int, tuple[int | None, set[str]]] = {}
        """What goes with checkpoints whose deletion has begun, should it have to be repeated."""
        for metadata in completed:
            self.adopt(metadata)

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

    def check_fence_sometimes(self, now: int) -> None:
        """Do so, if it is some time since that was done last.

        Args:
            now: Milliseconds on a clock that never goes back.
        """
        last = self._fence_checked
        if last is None or now - last >= FENCE_EVERY_MS:
            self._fence_checked = now
            self._fence.check()

    def adopt(self, metadata: CheckpointMetadata) -> None:
        """Keep the files of a complete checkpoint that was found in storage."""
        with self._lock:
            self._complete[metadata.checkpoint_id] = metadata.fence
            self._shared.adopt(metadata.checkpoint_id, _paths(metadata, SHARED))
            self._staged.adopt(metadata.checkpoint_id, _paths(metadata, STAGED))

    def build_upon(self, checkpoint_id: int, base: CheckpointMetadata | None) -> None:
        """Keep the files of `base` for a checkpoint that is about to be uploaded."""
        if base is not None:
            with self._lock:
                self._shared.register(checkpoint_id, _paths(base, SHARED))

    def keep_staged(self, metadata: CheckpointMetadata) -> None:
        """Note which staged rows a checkpoint needs that has been completed for good."""
        with self._lock:
            self._staged.adopt(metadata.checkpoint_id, _paths(metadata, STAGED))

    def release_staged(self, paths: Iterable[str]) -> None:
        """Remove staged rows, but for those that a checkpoint needs."""
        with self._lock:
            unused = set(paths) - self._staged.in_use
        self.files.delete_all(unused)

    def sweep_staged(self, incarnation: str | None) -> None:
        """Remove what incarnations other than this one have staged and no checkpoint needs."""
        with self._lock:
            in_use = self._staged.in_use
        # Notes go when what they speak of is listed by a checkpoint, or aborted.
        kept = (OPENED,) if incarnation is None else (OPENED, f"{incarnation}-")
        there = (name for name in self.files.entries(STAGED) if is_own(STAGED, name))
        found = [name for name in there if not name.startswith(kept)]
        # Looked at only now: what another driver stages comes after its fence.
        self._fence.check()
        for path in (f"{STAGED}/{name}" for name in found):
            if path not in in_use:
                self.files.delete(path)

    def complete(self, metadata: CheckpointMetadata) -> None:
        """Write the metadata, last of all, and record that.

        Raises as `store_metadata` and `register` do.

        Files that it could have built upon, and does not, go if no other checkpoint uses them.
        """
        paths = _paths(metadata, SHARED)
        with self._lock:
            # Before it is complete: what is missing cannot be restored.
            self._shared.register(metadata.checkpoint_id, paths)
        store_metadata(self.files, metadata, self._fence)
        record_completed(self.files, metadata)
        with self._lock:
            unused = self._shared.settle(metadata.checkpoint_id, paths)
            self._complete[metadata.checkpoint_id] = metadata.fence
        # What cannot be removed now is left for a sweep.
        with suppress(HoldfastError):
            self.files.delete_all(unused)

    def is_gone(self, checkpoint_id: int) -> bool:
        """Whether it is certain that nobody can find a checkpoint complete."""
        try:
            return not self.files.exists(metadata_name(checkpoint_id))
        except HoldfastError:
            return False

    def delete(self, checkpoint_id: int) -> None:
        """Remove a checkpoint, complete or not, and what no other one uses of its files.

        What one has staged that was never completed for good is the next one's to list.

        Raises:
            FencedError: Another driver has taken over and may need it; nothing is removed.
            CheckpointStorageError: Storage failed; it can be tried again.
        """
        self._fence.check()
        with self._lock:
            if checkpoint_id not in self._doomed:
                unused = self._shared.unregister(checkpoint_id)
                unused |= self._staged.unregister(checkpoint_id)
                written_under = self._complete.pop(checkpoint_id, None)
                self._doomed[checkpoint_id] = (written_under, unused)
            written_under, unused = self._doomed[checkpoint_id]
        if written_under is not None:
            fences = [written_under]
        else:
            # Nobody knows what was uploaded of it, and nobody else uses that. A driver that was
            # replaced may have completed one of that id, too late to count.
            unused = unused | files_of(self.files, checkpoint_id)
            recorded = recorded_checkpoints(self.files)
            fences = [fence for fence, one in recorded if one == checkpoint_id]
        # Before the metadata: a record without a checkpoint means that somebody else deleted it.
        self.files.delete_all([record_name(fence, checkpoint_id) for fence in fences])
        delete_checkpoint(self.files, checkpoint_id, unused)
        with self._lock:
            self._doomed.pop(checkpoint_id, None)

    def sweep(self, below: int) -> None:
        """Remove what checkpoints with ids under `below` left without completing."""
        with self._lock:
            in_use = self._shared.in_use
        sweep(self.files, below=below, fence=self._fence, in_use=in_use)


def _paths(metadata: CheckpointMetadata, directory: str) -> list[str]:
    return [path for path in paths_of(metadata) if path.startswith(f"{directory}/")]
