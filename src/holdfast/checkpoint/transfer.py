"""Moving local snapshots to checkpoint storage and back."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

import xxhash

from holdfast.checkpoint.handles import FileHandle, Handle, InlineHandle, inline
from holdfast.checkpoint.storage import (
    check_cancelled,
    checked_name,
    never,
    private_name,
    shared_name,
    storage_error,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from holdfast.checkpoint.storage import Cancelled, JobCheckpointFiles

_SHAREABLE: Final = ".sst"
_DOWNLOADS: Final = 4
_VERIFIED_AT_ONCE: Final = 1024 * 1024
_NONE: Final[dict[str, FileHandle]] = {}


def upload_snapshot(
    directory: Path,
    files: JobCheckpointFiles,
    checkpoint_id: int,
    *,
    known: Mapping[str, FileHandle] = _NONE,
    inline_below: int = 0,
    incremental: bool = False,
    owner: str = "",
    cancelled: Cancelled = never,
) -> tuple[dict[str, Handle], int]:
    """Upload a local snapshot directory; its files by name, and the bytes uploaded.

    What a failed upload leaves behind is referred to by nothing, and goes with the
    next sweep.

    Args:
        directory: The local snapshot; nobody may change it meanwhile.
        files: Where to.
        checkpoint_id: The checkpoint it belongs to.
        known: Shared files of the last completed checkpoint of this subtask in the same
            incarnation, by local name. In another lineage a name may stand for other
            bytes.
        inline_below: Files smaller than this travel within the metadata.
        incremental: Whether files that never change are shared between checkpoints.
        owner: The operator and subtask, for error messages.
        cancelled: Asked between chunks.

    Raises:
        CheckpointStorageError: Storage failed, is full, or holds no state of that size.
        CheckpointError: The transfer was cancelled.
    """
    sizes = _sizes(directory)
    _check_limits(files, sizes, owner or str(directory))
    handles: dict[str, Handle] = {}
    uploaded = 0
    for name, size in sizes.items():
        check_cancelled(cancelled, f"{directory}/{name}")
        shareable = incremental and name.endswith(_SHAREABLE)
        base = known.get(name) if shareable else None
        if base is not None and base.size == size:
            handles[name] = base
            continue
        if size == 0 or size < inline_below:
            handles[name] = _inline_file(directory / name)
        else:
            target = shared_name(checkpoint_id) if shareable else private_name(checkpoint_id)
            handles[name] = files.write_file(directory / name, target, cancelled)
        uploaded += size
    return handles, uploaded


def upload_bytes(
    data: bytes, files: JobCheckpointFiles, checkpoint_id: int, *, inline_below: int = 0
) -> Handle:
    """Handle of `data`: within the metadata if it is small, else in a file."""
    if not data or len(data) < inline_below:
        return inline(data)
    return files.write_bytes(private_name(checkpoint_id), data)


def download_snapshot(
    handles: Mapping[str, Handle],
    files: JobCheckpointFiles,
    directory: Path,
    *,
    cancelled: Cancelled = never,
) -> None:
    """Build the directory of a local snapshot again, every file verified.

    After an error the directory is incomplete and has to be thrown away.

    Raises:
        CorruptCheckpointError: A file is gone, or is not what the checkpoint wrote.
        CheckpointStorageError: Storage or the local disk failed.
        CheckpointError: The transfer was cancelled.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise storage_error("writing the local copy", str(directory), error) from error
    with ThreadPoolExecutor(_DOWNLOADS, "holdfast-download") as threads:
        copies = [
            threads.submit(files.download, handle, directory / checked_name(name), cancelled)
            for name, handle in handles.items()
        ]
        try:
            for copy in copies:
                copy.result()
        except BaseException:
            threads.shutdown(wait=False, cancel_futures=True)
            raise


def difference(handles: Mapping[str, Handle], directory: Path) -> str | None:
    """What is not as the handles name it in a local directory; None if all of it is.

    Files that the handles do not name are not looked at.

    Raises:
        OSError: A file is not there, or cannot be read.
    """
    for name, handle in handles.items():
        path = directory / checked_name(name)
        size = path.stat().st_size
        if size != handle.size:
            return f"{path} has {size} bytes, and {handle.size} were written"
        if not _holds(path, handle):
            return f"the content of {path} is not what was written"
    return None


def _holds(path: Path, handle: Handle) -> bool:
    if isinstance(handle, InlineHandle):
        return path.read_bytes() == handle.data
    digest = xxhash.xxh3_128()
    with path.open("rb") as file:
        while piece := file.read(_VERIFIED_AT_ONCE):
            digest.update(piece)
    return digest.hexdigest() == handle.checksum


def _sizes(directory: Path) -> dict[str, int]:
    try:
        found = sorted(path for path in directory.rglob("*") if path.is_file())
        return {path.relative_to(directory).as_posix(): path.stat().st_size for path in found}
    except OSError as error:
        raise storage_error("reading the local snapshot", str(directory), error) from error


def _check_limits(files: JobCheckpointFiles, sizes: Mapping[str, int], owner: str) -> None:
    if files.limits is None:
        return
    for name, size in sizes.items():
        files.limits.check_state(size, f"the state of {owner} in {name!r}")
    files.limits.check_message(sum(sizes.values()), f"the state of {owner}")


def _inline_file(path: Path) -> Handle:
    try:
        return inline(path.read_bytes())
    except OSError as error:
        raise storage_error("reading the local snapshot", str(path), error) from error
