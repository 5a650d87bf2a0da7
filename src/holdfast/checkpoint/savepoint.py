"""Savepoints in storage: snapshots of a job that belong to the user.

    <target>/savepoint-<first 6 of the job id>-<random>/_metadata
    <target>/savepoint-.../<operator>/keyed/<state>/part-<subtask>.parquet      canonical form
    <target>/savepoint-.../<operator>/timers/<domain>/part-<subtask>.parquet
    <target>/savepoint-.../<operator>/operator/<state>/part-<subtask>.parquet
    <target>/savepoint-.../<operator>/native/part-<subtask>/<file>              native form
    <target>/savepoint-.../{shared,sources}/...                    what sources have to remember

`_metadata` is that of a checkpoint (`checkpoint/metadata.py`), in format 3: its handles are
relative to the savepoint's directory, which can be moved and copied. It is written last:
without it there is no savepoint.
"""

from __future__ import annotations

import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from holdfast import faults
from holdfast.checkpoint.completed import verify_handles
from holdfast.checkpoint.files import FileSystemFiles
from holdfast.checkpoint.metadata import decode_metadata, encode_metadata
from holdfast.checkpoint.storage import METADATA, SHARED, never
from holdfast.errors import (
    CheckpointStorageError,
    ConfigurationError,
    HoldfastError,
    RestoreError,
)
from holdfast.state.directories import file_name

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.checkpoint.handles import Handle
    from holdfast.checkpoint.metadata import CheckpointMetadata
    from holdfast.checkpoint.storage import Cancelled, NamedFiles

_TAKEN: Final = (METADATA, SHARED, "sources")
"""Names that are not those of operators."""
_NAMED: Final = 10
"""Most names that a message lists."""


def operator_directory(uid: str) -> str:
    """Directory of an operator's files in a savepoint.

    Example:
        >>> operator_directory("count"), operator_directory("sources")
        ('count', 'sources~')
    """
    # No file name ends in that mark, so no two operators share a directory.
    name = file_name(uid)
    return f"{name}~" if name in _TAKEN else name


def new_savepoint(target: str, job_id: str) -> FileSystemFiles:
    """Files of a savepoint that is to be written, in a directory below `target` of its own.

    Raises:
        ConfigurationError: The target is itself a savepoint.
    """
    files = FileSystemFiles(target)
    if files.exists(METADATA):
        raise ConfigurationError(
            f"{target}: there is a savepoint or checkpoint here, and one within it would be "
            "deleted with it; give another directory"
        )
    root = files.root.rstrip("/")
    return FileSystemFiles(f"{root}/savepoint-{job_id[:6]}-{uuid.uuid4().hex[:12]}")


def upload_tables(
    tables: Path, files: FileSystemFiles, uid: str, subtask: int, cancelled: Cancelled = never
) -> dict[str, Handle]:
    """Upload the tables of one subtask's state, each to a place beside those of other subtasks.

    Returns:
        Their handles, by name in their directory; nothing if there is no such directory.
    """
    handles: dict[str, Handle] = {}
    for local in sorted(tables.rglob("*.parquet")):
        name = local.relative_to(tables).as_posix()
        table = f"{operator_directory(uid)}/{name.removesuffix('.parquet')}"
        handles[name] = files.write_file(local, f"{table}/part-{subtask:05d}.parquet", cancelled)
    return handles


def store_savepoint(files: FileSystemFiles, metadata: CheckpointMetadata) -> None:
    """Complete a savepoint; every file that it names must be durable by now.

    Raises:
        CorruptCheckpointError: A file that it names is not there.
        CheckpointStorageError: Storage failed or is full, or there is a savepoint already.
    """
    verify_handles(metadata, files)
    if not files.create_exclusive(METADATA, encode_metadata(metadata)):
        raise CheckpointStorageError(
            f"{files.root}: this savepoint is complete already, and is never written over"
        )


def load_savepoint(files: NamedFiles) -> CheckpointMetadata:
    """Metadata of the savepoint in a directory.

    Raises:
        RestoreError: There is no savepoint, or it was never completed; or it is a checkpoint
            that was copied away from the files it needs.
        CorruptCheckpointError: Its metadata cannot be used.
    """
    where = f"{files.root}/{METADATA}"
    data = files.read(METADATA)
    if data is None:
        raise RestoreError(
            f"{where}: there is no such file, so there is no savepoint here: it was never "
            "completed, or was disposed of"
        )
    metadata = decode_metadata(data, where)
    if not metadata.is_savepoint:
        raise RestoreError(
            f"{where}: this is checkpoint {metadata.checkpoint_id} of job {metadata.job_id!r}, "
            "which cannot be moved: restore it from where it was written, or take a savepoint"
        )
    return metadata


def discard_unfinished(files: FileSystemFiles) -> None:
    """Remove what is there of a savepoint that will not be completed; as far as possible."""
    with suppress(HoldfastError):
        delete_savepoint(files)


def delete_savepoint(files: FileSystemFiles) -> None:
    """Remove a savepoint's directory; what is left after an interruption is no savepoint."""
    files.delete(METADATA)
    for name, size in sorted(files.entries().items()):
        faults.reach("during-delete", name=name)
        if size is None:
            files.delete_tree(name)
        else:
            files.delete(name)
    files.delete_empty_root()


def dispose_savepoint(path: str) -> None:
    """Delete a savepoint for good.

    Its metadata goes first. So a deletion that is broken off leaves files that are no savepoint;
    they are not told from those of a savepoint that is being written, and not deleted here.

    Args:
        path: Its directory, or the `_metadata` file in it.

    Raises:
        RestoreError: There is no savepoint at the path; nothing is deleted. It says what there
            is instead.
        CorruptCheckpointError: What is there cannot be read; nothing is deleted.
        CheckpointStorageError: Storage failed.
    """
    files = FileSystemFiles(FileSystemFiles(path).root.removesuffix(f"/{METADATA}"))
    left = sorted(files.entries())
    if left and METADATA not in left:
        named = ", ".join(map(repr, left[:_NAMED]))
        more = f" and {len(left) - _NAMED} more" if len(left) > _NAMED else ""
        raise RestoreError(
            f"{files.root}: there is no {METADATA}, so there is no savepoint here, and nothing was "
            f"deleted. There is {named}{more}: if that is left of a savepoint whose deletion or "
            "writing was broken off, and nobody is writing it now, delete the directory yourself"
        )
    load_savepoint(files)
    delete_savepoint(files)
