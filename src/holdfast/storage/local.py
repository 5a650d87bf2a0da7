"""Files on a local or mounted disk: durable, and whole or not there at all."""

from __future__ import annotations

import errno
import os
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, BinaryIO, Final

from holdfast.storage.files import storage_error

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_NO_LINKS: Final = (errno.EPERM, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)


def write_local(local: Path, pieces: Iterable[bytes]) -> None:
    """Write `pieces` to a local file.

    Raises:
        CheckpointStorageError: The local disk is full, or refuses.
    """
    try:
        local.parent.mkdir(parents=True, exist_ok=True)
        target = local.open("wb")
    except OSError as error:
        raise storage_error("writing the local copy", str(local), error) from error
    with target:
        for piece in pieces:
            try:
                target.write(piece)
            except OSError as error:
                raise storage_error("writing the local copy", str(local), error) from error


def make_directory(directory: Path, root: Path) -> None:
    """Make a directory, and what is missing above it, so that it outlasts a loss of power.

    What is in a directory is durable only if its own name in the one above is, and so on:
    up to the name of `root`, and of all that was made above it. Those that are there already
    are looked after as well, since whoever has made one may have died before it was durable.
    """
    above = (directory, *directory.parents)
    missing = [path for path in above if not path.exists()]
    directory.mkdir(parents=True, exist_ok=True)
    for path in dict.fromkeys([*missing, *(path for path in above if path.is_relative_to(root))]):
        # What lies above the root may be closed to us for reading.
        with suppress(PermissionError):
            sync_directory(path.parent)


def create_local(path: Path, data: bytes) -> bool:
    """Create a whole file durably, or return False and change nothing if it exists."""
    # A link appears at once, with all its content, and never replaces what is there.
    aside = path.with_name(f".{uuid.uuid4().hex}")
    try:
        with aside.open("xb") as file:
            file.write(data)
            sync(file)
        try:
            os.link(aside, path)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            if not _create_unlinked(path, data):
                return False
    finally:
        aside.unlink(missing_ok=True)
    sync_directory(path.parent)
    return True


def _create_unlinked(path: Path, data: bytes) -> bool:
    # Mounted buckets know no hard links. A reader may then meet half a file, and can tell.
    try:
        with path.open("xb") as file:
            file.write(data)
            sync(file)
    except FileExistsError:
        return False
    return True


def sync(file: BinaryIO) -> None:
    """Wait until the content of an open file is on disk."""
    file.flush()
    os.fsync(file.fileno())


def sync_directory(directory: Path) -> None:
    """Wait until the names in a directory are on disk, like those of new files."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
