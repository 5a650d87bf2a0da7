"""A job's files in checkpoint storage: opens them, and completes and deletes checkpoints."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from holdfast.api.sinks import OPENED
from holdfast.checkpoint.files.cleanup import delete_checkpoint, delete_unfinished, files_of
from holdfast.checkpoint.files.completed import store_metadata
from holdfast.checkpoint.files.layout import (
    SHARED,
    STAGED,
    checkpoint_directory,
    first_user,
    is_own,
    metadata_name,
)
from holdfast.checkpoint.files.ledger import record_completed, record_name, recorded_checkpoints
from holdfast.checkpoint.files.metadata import paths_of
from holdfast.config.storage import FileSystemCheckpointStorage
from holdfast.errors import CheckpointError, HoldfastError
from holdfast.storage.file_system import CHUNK, FileSystemFiles
from holdfast.storage.files import InlineLimits, checked_name
from holdfast.storage.memory import InlineFiles, MemoryNames

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.checkpoint.files.fence import Fence
    from holdfast.checkpoint.files.metadata import CheckpointMetadata
    from holdfast.config.options import PathLike
    from holdfast.config.storage import JobManagerCheckpointStorage
    from holdfast.storage.files import JobCheckpointFiles


def open_files(
    storage: FileSystemCheckpointStorage | JobManagerCheckpointStorage,
    job_id: str,
    create_subdir: bool = True,
) -> JobCheckpointFiles:
    """Open the files of one job; nothing is created before the first write.

    Args:
        storage: The configured storage.
        job_id: Names the job's directory.
        create_subdir: Whether the job has a subdirectory below the path.
    """
    below = checked_name(job_id) if create_subdir else ""
    if isinstance(storage, FileSystemCheckpointStorage):
        chunk = max(CHUNK, storage.write_buffer_size)
        return FileSystemFiles(_joined(storage.checkpoint_path, below), chunk)
    limits = InlineLimits(per_state=storage.max_state_size)
    path = storage.checkpoint_path
    if path is None:
        return InlineFiles(MemoryNames(job_id, limits.total), limits)
    return InlineFiles(FileSystemFiles(_joined(path, below)), limits)


def _joined(path: PathLike, below: str) -> str:
    # The slashes of "memory://" must stay.
    return f"{path}{below}" if str(path).endswith("/") else f"{path}/{below}"


class SharedFiles:
    """Tracks which checkpoints use which shared files, without I/O.

    Register a checkpoint with the files it builds on before its upload begins, and settle it with
    the files it uses when it completes. Then no other checkpoint can release these files in
    between.

    Example:
        >>> shared = SharedFiles()
        >>> shared.adopt(1, ["shared/1-a", "shared/1-b"])
        >>> shared.register(2, ["shared/1-b"])
        >>> shared.settle(2, ["shared/1-b", "shared/2-c"])
        set()
        >>> sorted(shared.unregister(1))
        ['shared/1-a']
    """

    def __init__(self) -> None:
        self._files: dict[int, set[str]] = {}
        """By checkpoint."""

    def adopt(self, checkpoint_id: int, paths: Iterable[str]) -> None:
        """Record that a complete checkpoint in storage uses `paths`."""
        self._files.setdefault(checkpoint_id, set()).update(paths)

    def register(self, checkpoint_id: int, paths: Iterable[str]) -> None:
        """Record that a checkpoint also uses `paths`.

        Raises:
            CheckpointError: A file is neither in use nor written for this checkpoint, so it may
                have been deleted; nothing is registered.
        """
        paths = set(paths)
        gone = sorted(path for path in paths - self.in_use if first_user(path) != checkpoint_id)
        if gone:
            raise CheckpointError(
                f"checkpoint {checkpoint_id} uses {gone[0]}, which no other checkpoint uses "
                "and which may be deleted; abort it, and take the next one in full"
            )
        self.adopt(checkpoint_id, paths)

    def settle(self, checkpoint_id: int, paths: Iterable[str]) -> set[str]:
        """Record that a complete checkpoint uses `paths` and nothing else.

        Returns:
            Files to delete: it was registered with them, and no other checkpoint uses them.

        Raises:
            CheckpointError: See `register`.
        """
        paths = set(paths)
        self.register(checkpoint_id, paths)
        registered, self._files[checkpoint_id] = self._files[checkpoint_id], paths
        return registered - self.in_use

    def unregister(self, checkpoint_id: int) -> set[str]:
        """Forget a checkpoint, and return the files to delete: those that no other one uses."""
        return self._files.pop(checkpoint_id, set()) - self.in_use

    @property
    def in_use(self) -> set[str]:
        """All files that registered checkpoints use."""
        return set().union(*self._files.values())


FENCE_EVERY_MS = 2_000
"""Milliseconds between two checks of the fence by epochs."""


class JobStorage:
    """Completes and deletes the checkpoints of a job, as its only writer; thread-safe.

    Args:
        files: The job's files.
        fence: This driver's right to write there.
        completed: Checkpoints that are complete already.
    """

    def __init__(
        self, files: JobCheckpointFiles, fence: Fence, completed: Iterable[CheckpointMetadata] = ()
    ) -> None:
        self.files = files
        self.fence = fence
        self._fence_checked: int | None = None
        self._lock = threading.Lock()
        self._shared = SharedFiles()
        self._staged = SharedFiles()
        self._complete: dict[int, int] = {}
        """Completed checkpoints, whose files are all known, and their fences."""
        self._doomed: dict[int, tuple[int | None, set[str]]] = {}
        """Fence and files of checkpoints whose deletion has begun, in case it must be repeated."""
        for metadata in completed:
            self.adopt(metadata)

    def path_of(self, checkpoint_id: int) -> str:
        """Path of a checkpoint."""
        return f"{self.files.root}/{checkpoint_directory(checkpoint_id)}"

    def check_fence_sometimes(self, now: int) -> None:
        """Check the fence if the last call of this method is some time ago.

        Args:
            now: Milliseconds on a monotonic clock.
        """
        last = self._fence_checked
        if last is None or now - last >= FENCE_EVERY_MS:
            self._fence_checked = now
            self.fence.check()

    def adopt(self, metadata: CheckpointMetadata) -> None:
        """Keep the files of a complete checkpoint in storage.

        Storage may have failed to delete it before; it is needed again.
        """
        with self._lock:
            self._doomed.pop(metadata.checkpoint_id, None)
            self._complete[metadata.checkpoint_id] = metadata.fence
            self._shared.adopt(metadata.checkpoint_id, _paths(metadata, SHARED))
            self._staged.adopt(metadata.checkpoint_id, _paths(metadata, STAGED))

    def build_upon(self, checkpoint_id: int, base: CheckpointMetadata | None) -> None:
        """Keep the files of `base` for a checkpoint before its upload."""
        if base is not None:
            with self._lock:
                self._shared.register(checkpoint_id, _paths(base, SHARED))

    def keep_staged(self, metadata: CheckpointMetadata) -> None:
        """Keep the staged rows of a completed checkpoint."""
        with self._lock:
            self._staged.adopt(metadata.checkpoint_id, _paths(metadata, STAGED))

    def release_staged(self, paths: Iterable[str]) -> None:
        """Delete staged rows, except those that a checkpoint needs."""
        with self._lock:
            unused = set(paths) - self._staged.in_use
        self.files.delete_all(unused)

    def delete_unlisted(self, job_attempt: str | None) -> None:
        """Delete rows that other job attempts have staged and no checkpoint needs."""
        with self._lock:
            in_use = self._staged.in_use
        # Notes are deleted elsewhere: when a checkpoint lists their content, or it is aborted.
        kept = (OPENED,) if job_attempt is None else (OPENED, f"{job_attempt}-")
        there = (name for name in self.files.entries(STAGED) if is_own(STAGED, name))
        found = [name for name in there if not name.startswith(kept)]
        # Only now: another driver stages rows after it has taken its fence.
        self.fence.check()
        for path in (f"{STAGED}/{name}" for name in found):
            if path not in in_use:
                self.files.delete(path)

    def complete(self, metadata: CheckpointMetadata) -> None:
        """Write the metadata, last of all, and the record of the checkpoint.

        Deletes files that it was registered with and that no checkpoint uses. Raises as
        `store_metadata` and `SharedFiles.register` do.
        """
        paths = _paths(metadata, SHARED)
        with self._lock:
            # Before it is complete: it must not refer to a deleted file.
            self._shared.register(metadata.checkpoint_id, paths)
        store_metadata(self.files, metadata, self.fence)
        record_completed(self.files, metadata)
        with self._lock:
            unused = self._shared.settle(metadata.checkpoint_id, paths)
            self._complete[metadata.checkpoint_id] = metadata.fence
        # `delete_unfinished` deletes the rest.
        with suppress(HoldfastError):
            self.files.delete_all(unused)

    def is_gone(self, checkpoint_id: int) -> bool:
        """Whether the checkpoint is certainly not complete in storage."""
        try:
            return not self.files.exists(metadata_name(checkpoint_id))
        except HoldfastError:
            return False

    def delete(self, checkpoint_id: int) -> None:
        """Delete a checkpoint, complete or not, and its files that no other one uses.

        Staged rows of an aborted checkpoint stay: the next checkpoint lists them.

        Raises:
            FencedError: Another driver has taken over and may need it; nothing is deleted.
            CheckpointStorageError: Storage failed; call this again later.
        """
        self.fence.check()
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
            # Its uploads are not known, so they are listed. A driver that was replaced may have
            # completed a checkpoint of that id, too late to count.
            unused = unused | files_of(self.files, checkpoint_id)
            recorded = recorded_checkpoints(self.files)
            fences = [fence for fence, one in recorded if one == checkpoint_id]
        # Before the metadata: a record without a checkpoint means a lost checkpoint.
        self.files.delete_all([record_name(fence, checkpoint_id) for fence in fences])
        delete_checkpoint(self.files, checkpoint_id, unused)
        with self._lock:
            self._doomed.pop(checkpoint_id, None)

    def delete_unfinished(self, below: int) -> None:
        """Delete the files of incomplete checkpoints with ids under `below`."""
        with self._lock:
            in_use = self._shared.in_use
        delete_unfinished(self.files, below=below, fence=self.fence, in_use=in_use)


def _paths(metadata: CheckpointMetadata, directory: str) -> list[str]:
    return [path for path in paths_of(metadata) if path.startswith(f"{directory}/")]
