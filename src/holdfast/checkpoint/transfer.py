"""Transfers local snapshots to checkpoint storage and back."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Final, TypeVar

import xxhash

from holdfast.checkpoint.files.layout import shared_name
from holdfast.errors import CheckpointError
from holdfast.job.threads import in_threads
from holdfast.storage.files import MOST_INLINE, check_cancelled, checked_name, never, storage_error
from holdfast.storage.handles import FileHandle, Handle, InlineHandle, inline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from holdfast.storage.files import Cancelled, JobCheckpointFiles

T = TypeVar("T")
"""Result of a transfer."""

_SHAREABLE: Final = ".sst"
_VERIFIED_AT_ONCE: Final = 1024 * 1024
_at_a_time: Final = ContextVar("files_at_a_time", default=1)
_NONE: Final[dict[str, FileHandle]] = {}


@contextmanager
def files_at_a_time(number: int) -> Iterator[None]:
    """Within the block, transfers of this thread move `number` files of a store at a time."""
    token = _at_a_time.set(max(number, 1))
    try:
        yield
    finally:
        _at_a_time.reset(token)


def upload_snapshot(
    directory: Path,
    files: JobCheckpointFiles,
    checkpoint_id: int,
    *,
    expected: Mapping[str, int] | None = None,
    known: Mapping[str, FileHandle] = _NONE,
    inline_below: int = 0,
    inline_at_most: int = MOST_INLINE,
    incremental: bool = False,
    owner: str = "",
    cancelled: Cancelled = never,
) -> tuple[dict[str, Handle], int]:
    """Upload a local snapshot; returns its files by name, and the number of bytes uploaded.

    The files are shared: a later checkpoint refers to them too if the store has not changed. No
    checkpoint refers to the files of a failed upload, and `delete_unfinished` deletes them.

    Args:
        directory: The local snapshot; nothing may change it meanwhile.
        files: The target.
        checkpoint_id: The checkpoint that the snapshot belongs to.
        expected: Size of every file of the snapshot, by name; other files are ignored. None
            uploads all files.
        known: Shared files of the last completed checkpoint of this subtask in the same
            job attempt, by local name. In another job attempt a name may stand for other
            bytes.
        inline_below: Files smaller than this are stored inside the metadata.
        inline_at_most: Most bytes of all inline files together; the smallest come first.
        incremental: Whether to take files that never change from `known`.
        owner: The operator and subtask, for error messages.
        cancelled: Called between chunks.

    Raises:
        CheckpointStorageError: Storage failed, is full, or holds no state of that size.
        CheckpointError: The transfer was cancelled, or the snapshot is missing or incomplete.
    """
    sizes = _sizes(directory) if expected is None else whole_snapshot(directory, expected)
    _check_limits(files, sizes, owner or str(directory))
    handles: dict[str, Handle] = {}
    written: dict[str, Callable[[], Handle]] = {}
    for name, size in sorted(sizes.items(), key=itemgetter(1)):
        shareable = incremental and name.endswith(_SHAREABLE)
        base = known.get(name) if shareable else None
        if base is not None and base.size == size:
            handles[name] = base
        elif size == 0 or (size < inline_below and size <= inline_at_most):
            handles[name] = _inline_file(directory / name)
            inline_at_most -= size
        else:
            target = shared_name(checkpoint_id)
            written[name] = partial(_write_file, directory / name, files, target, cancelled)
    handles |= zip(written, _all_done(written.values()), strict=True)
    uploaded = sum(size for name, size in sizes.items() if handles[name] is not known.get(name))
    return {name: handles[name] for name in sizes}, uploaded


def upload_bytes(
    data: bytes, files: JobCheckpointFiles, checkpoint_id: int, *, inline_below: int = 0
) -> Handle:
    """Store `data` inside its handle if it is small, else in a file."""
    if not data or len(data) < inline_below:
        return inline(data)
    return files.write_bytes(shared_name(checkpoint_id), data)


def download_snapshot(
    handles: Mapping[str, Handle], files: JobCheckpointFiles, directory: Path
) -> None:
    """Download a local snapshot, and verify every file.

    After an error the directory is incomplete and must be deleted.

    Raises:
        CorruptCheckpointError: A file is missing, or has changed since the checkpoint.
        CheckpointStorageError: Storage or the local disk failed.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise storage_error("writing the local copy", str(directory), error) from error
    targets = {name: directory / checked_name(name) for name in handles}
    _all_done(partial(files.download, handle, targets[name]) for name, handle in handles.items())


def _all_done(calls: Iterable[Callable[[], T]]) -> list[T]:
    """Run all calls, some of them at a time; after an error no further call begins."""
    threads = _at_a_time.get()
    if threads == 1:
        return [call() for call in calls]
    numbered = enumerate(calls)
    done = in_threads(lambda one: (one[0], one[1]()), numbered, threads, "holdfast-file")
    return [result for _, result in sorted(done, key=itemgetter(0))]


def difference(handles: Mapping[str, Handle], directory: Path) -> str | None:
    """The first difference between a local directory and the handles; None if there is none.

    Files without a handle are ignored.

    Raises:
        OSError: A file is missing, or cannot be read.
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


def whole_snapshot(directory: Path, expected: Mapping[str, int]) -> dict[str, int]:
    """Check that a local snapshot is complete; returns the sizes of its files, by name.

    Args:
        directory: The snapshot. Other files in it are ignored.
        expected: Size of every file when the snapshot was taken.

    Raises:
        CheckpointError: A file is missing, or its size has changed.
    """
    sizes = _sizes(directory)
    for name, size in expected.items():
        if name not in sizes:
            raise _not_whole(directory, f"{name} is gone")
        if sizes[name] != size:
            raise _not_whole(directory, f"{name} has {sizes[name]} bytes, and {size} were written")
    if not expected:
        raise _not_whole(directory, "no file of it was reported")
    return {name: size for name, size in sizes.items() if name in expected}


def _sizes(directory: Path) -> dict[str, int]:
    try:
        found = sorted(path for path in directory.rglob("*") if path.is_file())
        sizes = {path.relative_to(directory).as_posix(): path.stat().st_size for path in found}
    except OSError as error:
        raise storage_error("reading the local snapshot", str(directory), error) from error
    if not sizes:
        # Also if the directory does not exist.
        raise _not_whole(directory, "there are no files")
    return sizes


def _not_whole(directory: Path, why: str) -> CheckpointError:
    return CheckpointError(
        f"{directory}: the local snapshot is incomplete ({why}), so its checkpoint cannot "
        "complete; only Holdfast may remove files in `state.local-dir`"
    )


def _check_limits(files: JobCheckpointFiles, sizes: Mapping[str, int], owner: str) -> None:
    if files.limits is None:
        return
    for name, size in sizes.items():
        files.limits.check_state(size, f"the state of {owner} in {name!r}")
    files.limits.check_message(sum(sizes.values()), f"the state of {owner}")


def _write_file(
    local: Path, files: JobCheckpointFiles, target: str, cancelled: Cancelled
) -> Handle:
    check_cancelled(cancelled, str(local))
    return files.write_file(local, target, cancelled)


def _inline_file(path: Path) -> Handle:
    try:
        return inline(path.read_bytes())
    except OSError as error:
        raise storage_error("reading the local snapshot", str(path), error) from error
