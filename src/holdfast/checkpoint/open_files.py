"""Opening checkpoint storage: the one place that knows its kinds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.api.checkpoint_storage import FileSystemCheckpointStorage
from holdfast.checkpoint.driver_memory import InlineFiles, MemoryNames
from holdfast.checkpoint.files import CHUNK, FileSystemFiles
from holdfast.checkpoint.storage import InlineLimits, checked_name

if TYPE_CHECKING:
    from holdfast.api.checkpoint_storage import JobManagerCheckpointStorage
    from holdfast.checkpoint.storage import JobCheckpointFiles


def open_files(
    storage: FileSystemCheckpointStorage | JobManagerCheckpointStorage,
    job_id: str,
    create_subdir: bool = True,
    *,
    limits: InlineLimits | None = None,
) -> JobCheckpointFiles:
    """Files of one job in `storage`; nothing is created until something is written.

    Args:
        storage: What the user chose.
        job_id: Names the job's own directory.
        create_subdir: Whether the job has a directory of its own below the path.
        limits: For state in the driver's memory; the storage's own size of one state
            is used in place of theirs.
    """
    below = checked_name(job_id) if create_subdir else ""
    if isinstance(storage, FileSystemCheckpointStorage):
        chunk = max(CHUNK, storage.write_buffer_size)
        return FileSystemFiles(_joined(storage.checkpoint_path, below), chunk)
    bounds = limits or InlineLimits()
    bounds = InlineLimits(
        per_state=storage.max_state_size, per_message=bounds.per_message, total=bounds.total
    )
    path = storage.checkpoint_path
    if path is None:
        return InlineFiles(MemoryNames(job_id, bounds.total), bounds)
    return InlineFiles(FileSystemFiles(_joined(path, below)), bounds)


def _joined(path: str, below: str) -> str:
    # The slashes of "memory://" are no separator to be taken off.
    return f"{path}{below}" if path.endswith("/") else f"{path}/{below}"
