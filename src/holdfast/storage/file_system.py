"""Directories by path or URL, and the files of a job in one: on a local disk, or elsewhere."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import fsspec
import xxhash
from fsspec.implementations.local import LocalFileSystem

from holdfast.errors import CheckpointStorageError, CorruptCheckpointError
from holdfast.storage.files import (
    CHECKPOINT_ERRORS,
    NamesElsewhere,
    check_cancelled,
    inline_content,
    never,
    refuse_password,
    storage_error,
    verify,
)
from holdfast.storage.handles import FileHandle, Handle, InlineHandle
from holdfast.storage.local import LocalDirectory, write_local
from holdfast.storage.object_store import RemoteDirectory

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from holdfast.storage.files import Cancelled, Directory, FileErrors

CHUNK: Final = 1024 * 1024
"""Bytes handed to the file system at once, unless more are asked for."""


def open_directory(url: str, errors: FileErrors, **storage_options: Any) -> Directory:
    """The directory at a path or URL; does no I/O.

    Raises whatever fsspec raises if there is no such file system.
    """
    fs, path = fsspec.core.url_to_fs(url, **storage_options)
    path = path.rstrip("/")
    if type(fs) is LocalFileSystem:
        return LocalDirectory(path or "/", errors)
    return RemoteDirectory(url, fs, path, errors)


class FileSystemFiles(NamesElsewhere):
    """The files of one job below a local path or URL.

    Options of the file system (credentials, endpoints) come from its own environment
    or from fsspec's configuration on each host, never from the URL.

    Args:
        url: The job's directory.
        chunk: Bytes handed to the file system at once.
    """

    limits: Final = None

    def __init__(self, url: str | os.PathLike[str], chunk: int = CHUNK) -> None:
        url = os.fspath(url)
        refuse_password(
            url, "the checkpoint directory", "fsspec's configuration or the environment"
        )
        with CHECKPOINT_ERRORS.translated("opening the file system", url):
            self._directory = open_directory(url, CHECKPOINT_ERRORS)
        super().__init__(self._directory)
        self._chunk = chunk

    def __reduce__(self) -> tuple[type[FileSystemFiles], tuple[str, int]]:
        # The root of a local directory is absolute: an executor may have another working directory.
        return FileSystemFiles, (self.root, self._chunk)

    def write_file(self, local: Path, name: str, cancelled: Cancelled = never) -> FileHandle:
        """Copy a local file to `name`, durably; a failed copy is removed if possible."""
        try:
            source = local.open("rb")
        except OSError as error:
            raise storage_error("reading the local snapshot", str(local), error) from error
        with source:
            size = os.fstat(source.fileno()).st_size
            handle = self._write(name, iter(partial(source.read, self._chunk), b""), cancelled)
        if handle.size != size:
            self._remove_failed(name)
            raise CheckpointStorageError(
                f"{local}: the file had {size} bytes when its upload began and {handle.size} when "
                "it ended; a local snapshot must not change: look for another writer"
            )
        return handle

    def write_bytes(self, name: str, data: bytes) -> FileHandle:
        """Write `data` to `name`, durably."""
        return self._write(name, [data], never)

    def read_bytes(self, handle: Handle) -> bytes:
        """Content of `handle`; CorruptCheckpointError if it is gone or has changed."""
        if isinstance(handle, InlineHandle):
            return inline_content(handle)
        content = bytearray()
        for piece in self._verified(handle):
            content += piece
        return bytes(content)

    def download(self, handle: Handle, local: Path) -> None:
        """Copy the content of `handle` to a local file, verified as by `read_bytes`."""
        if isinstance(handle, InlineHandle):
            pieces: Iterable[bytes] = [inline_content(handle)]
        else:
            pieces = self._verified(handle)
        write_local(local, pieces)

    def _write(self, name: str, pieces: Iterable[bytes], cancelled: Cancelled) -> FileHandle:
        path, digest = self._directory.path_of(name), xxhash.xxh3_128()

        def digested() -> Iterator[bytes]:
            for piece in pieces:
                check_cancelled(cancelled, path)
                digest.update(piece)
                yield piece

        try:
            size = self._directory.write(name, digested())
        except BaseException:
            self._remove_failed(name)
            raise
        return FileHandle(path=name, size=size, checksum=digest.hexdigest())

    def _remove_failed(self, name: str) -> None:
        # Report the failure itself; a sweep deletes the rest.
        with suppress(Exception):
            self._directory.delete(name)

    def _verified(self, handle: FileHandle) -> Iterator[bytes]:
        path = self._directory.path_of(handle.path)
        size, digest = 0, xxhash.xxh3_128()
        try:
            with CHECKPOINT_ERRORS.translated("reading", path, but=(FileNotFoundError,)):
                source = self._directory.open(handle.path)
                if source is None:
                    raise FileNotFoundError
                with source:
                    while piece := source.read(self._chunk):
                        digest.update(piece)
                        size += len(piece)
                        yield piece
        except FileNotFoundError as error:
            raise CorruptCheckpointError(
                f"{path}: the file is gone, and a checkpoint needs it; "
                "restore from another checkpoint"
            ) from error
        verify(size, digest.hexdigest(), handle, path)
