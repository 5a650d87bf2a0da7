"""Savepoints in storage: snapshots of a job that belong to the user.

    <target>/savepoint-<first 6 of the job id>-<random>/_metadata
    <target>/savepoint-.../<operator>/keyed/<state>/part-<subtask>.parquet      canonical format
    <target>/savepoint-.../<operator>/timers/<domain>/part-<subtask>.parquet
    <target>/savepoint-.../<operator>/operator/<state>/part-<subtask>.parquet
    <target>/savepoint-.../<operator>/native/part-<subtask>/<file>              native format
    <target>/savepoint-.../{shared,sources}/...                                 logs of sources

`_metadata` has the format of a checkpoint's (`checkpoint/files/metadata.py`), but its handles are
relative to the savepoint's directory, which can be moved and copied. It is written last: without it
there is no savepoint.
"""

from __future__ import annotations

import re
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from holdfast._faults import fault_point
from holdfast.checkpoint.files.completed import verify_handles
from holdfast.checkpoint.files.layout import METADATA, SHARED
from holdfast.checkpoint.files.metadata import decode_metadata, encode_metadata, paths_of
from holdfast.errors import (
    CheckpointStorageError,
    ConfigurationError,
    HoldfastError,
    RestoreError,
)
from holdfast.state.store.snapshot import SNAPSHOT_FILE
from holdfast.state.tables.names import table_name
from holdfast.storage.file_system import FileSystemFiles
from holdfast.storage.files import never

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.checkpoint.files.metadata import CheckpointMetadata
    from holdfast.config.options import PathLike
    from holdfast.storage.files import Cancelled, NamedFiles
    from holdfast.storage.handles import Handle

_TAKEN: Final = (METADATA, SHARED, "sources")
"""Reserved names, which operators do not get."""
_DEEPEST: Final = 3
"""Depth of the directories in a savepoint."""
_OWN: Final = re.compile(
    r"[^/]+/([^/]+/){1,2}part-\d{5,}\.parquet"
    rf"|[^/]+/native/part-\d{{5,}}/({SNAPSHOT_FILE}|operator-state)"
    rf"|{SHARED}/\d+-[0-9a-f]+"
    r"|sources/[^/]+/[^/]+-\d{5,}"
    # Metadata that was being written.
    r"|\.[0-9a-f]{32}"
)
"""Names of a savepoint's files."""
_NAMED: Final = 10
"""Number of names that a message lists."""


def operator_directory(uid: str) -> str:
    """Directory of an operator's files in a savepoint.

    Example:
        >>> operator_directory("count"), operator_directory("sources")
        ('count', 'sources~')
    """
    # No file name ends in "~", so the directories of operators differ.
    name = table_name(uid)
    return f"{name}~" if name in _TAKEN else name


def new_savepoint(target: PathLike, job_id: str) -> FileSystemFiles:
    """Create the files of a new savepoint, in a new directory below `target`.

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
    """Upload the tables of one subtask's state.

    Returns:
        The handles, by name in the directory; empty if there is no such directory.
    """
    handles: dict[str, Handle] = {}
    for local in sorted(tables.rglob("*.parquet")):
        name = local.relative_to(tables).as_posix()
        table = f"{operator_directory(uid)}/{name.removesuffix('.parquet')}"
        handles[name] = files.write_file(local, f"{table}/part-{subtask:05d}.parquet", cancelled)
    return handles


def store_savepoint(files: FileSystemFiles, metadata: CheckpointMetadata) -> None:
    """Complete a savepoint; every file that it names must be durable.

    Raises:
        CorruptCheckpointError: A file that it names is missing.
        CheckpointStorageError: Storage failed or is full, or there is a savepoint already.
    """
    verify_handles(metadata, files)
    if not files.create_exclusive(METADATA, encode_metadata(metadata)):
        raise CheckpointStorageError(
            f"{files.root}: this savepoint is complete already, and is never written over"
        )


def load_savepoint(files: NamedFiles) -> CheckpointMetadata:
    """Load the metadata of the savepoint in a directory.

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
    """Delete the files of an incomplete savepoint; errors are ignored."""
    with suppress(HoldfastError):
        delete_savepoint(files)


def delete_savepoint(files: FileSystemFiles, metadata: CheckpointMetadata | None = None) -> None:
    """Delete a savepoint; its metadata goes first.

    Deletes the files that its metadata names, other files with the names of a savepoint's files,
    and directories that are empty then. Foreign files in its directory stay.

    Args:
        files: The files of the savepoint.
        metadata: Its metadata; None if it was never completed.
    """
    named = set() if metadata is None else paths_of(metadata)
    files.delete(METADATA)
    for top, size in sorted(files.entries().items()):
        fault_point("during-delete", name=top)
        own = {name for name in named if name.partition("/")[0] == top}
        directories: set[str] = set()
        if size is None:
            _look_through(files, top, own, directories)
        elif _OWN.fullmatch(top):
            own.add(top)
        files.delete_all(sorted(own))
        for directory in sorted(directories | _above(own), reverse=True):
            files.delete_if_empty(directory)
    files.delete_empty_root()


def _look_through(
    files: FileSystemFiles, directory: str, own: set[str], directories: set[str]
) -> None:
    """Collect the savepoint's files and all directories below a directory."""
    directories.add(directory)
    for name, size in files.entries(directory).items():
        path = f"{directory}/{name}"
        if size is not None:
            if _OWN.fullmatch(path):
                own.add(path)
        elif path.count("/") < _DEEPEST:
            _look_through(files, path, own, directories)


def _above(names: set[str]) -> set[str]:
    """All directories that hold the files, directly or not."""
    parts = [name.split("/") for name in names]
    return {"/".join(one[:end]) for one in parts for end in range(1, len(one))}


def dispose_savepoint(path: PathLike) -> None:
    """Delete a savepoint for good.

    The metadata goes first. So an interrupted deletion leaves files that are no savepoint. They
    look like those of a savepoint that is being written, and are not deleted here.

    Args:
        path: The directory of the savepoint, or its `_metadata` file.

    Raises:
        RestoreError: There is no savepoint at the path; nothing is deleted. The message lists
            the files there.
        CorruptCheckpointError: The metadata cannot be read; nothing is deleted.
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
    delete_savepoint(files, load_savepoint(files))
