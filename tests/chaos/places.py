"""What a job keeps on disks: its checkpoints, and its local state."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.api.sinks import OPENED
from holdfast.checkpoint.files.completed import checkpoint_ids, load
from holdfast.checkpoint.files.layout import FENCES, STAGED, metadata_name
from holdfast.checkpoint.files.ledger import record_name
from holdfast.checkpoint.files.metadata import paths_of
from holdfast.errors import CheckpointError
from holdfast.storage.file_system import FileSystemFiles

if TYPE_CHECKING:
    from holdfast.checkpoint.files.metadata import CheckpointMetadata
    from tests.chaos.job import JobOptions


def checkpoints_of(directory: Path, options: JobOptions) -> Path:
    """Where all jobs keep their checkpoints."""
    return Path(options.checkpoints or directory / "checkpoints")


def storage_of(directory: Path, options: JobOptions) -> Path:
    """Where a job keeps its checkpoints."""
    return checkpoints_of(directory, options) / options.job_id


def state_of(directory: Path, options: JobOptions) -> Path:
    """Where all jobs keep local state."""
    return Path(options.state or directory / "local")


def orphans(storage: Path) -> list[str]:
    """Files in a job's checkpoint storage that no complete checkpoint needs.

    Notes of what writers have opened count as needed: the next start reads them.
    """
    files = FileSystemFiles(str(storage))
    needed = set()
    for checkpoint_id in checkpoint_ids(files):
        if files.exists(metadata_name(checkpoint_id)):
            metadata = load(files, checkpoint_id)
            needed |= {metadata_name(checkpoint_id), *paths_of(metadata)}
            needed.add(record_name(metadata.fence, checkpoint_id))
    found = {str(path.relative_to(storage)) for path in storage.rglob("*") if path.is_file()}
    kept = (f"{FENCES}/", f"{STAGED}/{OPENED}")
    return sorted(name for name in found - needed if not name.startswith(kept))


def newest_checkpoint(storage: Path) -> CheckpointMetadata | None:
    """The checkpoint that a job would go back to now."""
    files = FileSystemFiles(str(storage))
    for checkpoint_id in sorted(checkpoint_ids(files), reverse=True):
        # One may go, or not be complete: the job goes on meanwhile.
        with suppress(CheckpointError):
            return load(files, checkpoint_id)
    return None


def holds_input(storage: Path) -> bool:
    """Whether the newest checkpoint holds input that was not processed."""
    newest = newest_checkpoint(storage)
    return newest is not None and bool(newest.channel_state)


def lists_output(storage: Path) -> bool:
    """Whether a job that goes back to the newest checkpoint has something to publish."""
    newest = newest_checkpoint(storage)
    return newest is not None and bool(newest.committables)


def missing(storage: Path) -> list[str]:
    """Files that complete checkpoints need and storage does not hold."""
    files = FileSystemFiles(str(storage))
    return sorted(
        path
        for checkpoint_id in checkpoint_ids(files)
        for path in paths_of(load(files, checkpoint_id))
        if not (storage / path).exists()
    )


def local_leftovers(directory: Path, options: JobOptions) -> list[str]:
    """Directories of Holdfast on the machine's own disk, the lock file aside."""
    places = {state_of(directory, options), directory / "local", directory / "tmp"}
    found = [path for place in places for path in place.rglob("*holdfast-*") if path.is_dir()]
    return sorted(str(path.relative_to(directory)) for path in found)
