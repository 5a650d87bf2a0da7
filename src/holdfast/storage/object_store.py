"""Directories on any storage that fsspec reaches, and the files of a job in a directory."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO, Final, cast

import fsspec
import xxhash
from fsspec.implementations.local import LocalFileSystem

from holdfast.errors import CheckpointStorageError, CorruptCheckpointError
from holdfast.storage.files import (
    CHECKPOINT_ERRORS,
    Directory,
    NamesElsewhere,
    check_cancelled,
    never,
    refuse_password,
    storage_error,
    verify,
)
from holdfast.storage.handles import FileHandle, Handle, InlineHandle
from holdfast.storage.local import LocalDirectory, write_local

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from holdfast.storage.files import Cancelled, FileErrors

_PATTERN: Final = re.compile(r"[*?\[]")
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


class RemoteDirectory(Directory):
    """A directory on a file system of fsspec, treated as an object store.

    Files are published by a copy within the storage, which an object store shows whole or
    not at all, followed by the removal of the staged file.
    """

    def __init__(self, url: str, fs: Any, path: str, errors: FileErrors) -> None:
        """The directory at `url`, which is `path` to its file system."""
        self.errors = errors
        self._url = re.sub(r"(?<![:/])/+$", "", url)
        self._fs = fs
        self._path = path
        self._made: set[str] = set()

    @property
    def root(self) -> str:
        """URL of the directory."""
        return self._url

    def path_of(self, name: str) -> str:
        """The file's path in its file system."""
        return f"{self._path}/{self.errors.checked_name(name)}"

    def open(self, name: str) -> BinaryIO | None:
        """A file to read from; None if there is none."""
        try:
            return cast("BinaryIO", self._fs.open(self.path_of(name), "rb"))
        except FileNotFoundError:
            return None

    def write(self, name: str, pieces: Iterable[bytes]) -> int:
        """Write a whole file; closing it makes it durable."""
        path, size = self.path_of(name), 0
        with self.errors.translated("writing", path):
            self._make_parent_once(path)
            with self._fs.open(path, "wb") as file:
                for piece in pieces:
                    file.write(piece)
                    size += len(piece)
            self.errors.check_size(path, size, self.size(name))
        return size

    def create_exclusive(self, name: str, data: bytes) -> bool:
        """Create a whole file, or return False and change nothing if `name` exists.

        Atomic where the fsspec implementation makes `pipe_file(mode="create")` atomic;
        elsewhere a check followed by a write.
        """
        path = self.path_of(name)
        with self.errors.translated("writing", path):
            self._make_parent_once(path)
            # Asked first: not every implementation knows the mode.
            if self._info(path) is not None:
                return False
            try:
                self._fs.pipe_file(path, data, mode="create")
            except FileExistsError:
                return False
            return True

    def create(self, name: str) -> BinaryIO:
        """A new file to write to; most stores show it only when it is closed."""
        path = self.path_of(name)
        with self.errors.translated("creating", path):
            self._make_parent(path)
            return cast("BinaryIO", self._fs.open(path, "wb"))

    def finish(self, name: str, file: BinaryIO, size: int) -> None:
        """Close a file, which makes it durable."""
        path = self.path_of(name)
        with self.errors.translated("writing", path):
            file.close()
        self.errors.check_size(path, size, self.size(name))

    def move(self, source: str, target: str, size: int) -> None:
        """Copy a file, then remove `source`; nothing is done if that is gone."""
        old, new = self.path_of(source), self.path_of(target)
        with self.errors.translated("publishing", new):
            self._make_parent(new)
            try:
                self._fs.cp_file(old, new)
            except FileNotFoundError:
                if self.size(source) is None:
                    return
                raise
        self.errors.check_size(new, size, self.size(target))
        self.delete(source)

    def sync(self, names: Iterable[str]) -> None:
        """Does nothing: closed files are durable."""

    def size(self, name: str) -> int | None:
        """Length of a file in bytes; None if there is none."""
        path = self.path_of(name)
        with self.errors.translated("looking for a file", path):
            info = self._info(path)
            return None if info is None else int(info["size"])

    def entries(self, directory: str = "") -> dict[str, int | None]:
        """Entries of a directory: sizes of files, None for subdirectories."""
        path = self.path_of(directory) if directory else self._path or self._fs.root_marker
        with self.errors.translated("listing", path):
            self._fs.invalidate_cache()
            try:
                found = self._fs.ls(path, detail=True)
            except FileNotFoundError:
                return {}
        return {
            entry["name"].rstrip("/").rpartition("/")[2]: (
                None if entry["type"] == "directory" else entry["size"]
            )
            for entry in found
            # Object stores may list the directory's own marker.
            if entry["name"].strip("/") != path.strip("/")
        }

    def delete(self, name: str) -> None:
        """Delete a file, if it exists."""
        path = self.path_of(name)
        with self.errors.translated("deleting", path), suppress(FileNotFoundError):
            self._fs.rm_file(path)

    def delete_all(self, names: Iterable[str]) -> None:
        """Delete files, those that exist."""
        with self.errors.translated("deleting", self._url):
            self._delete_paths([self.path_of(name) for name in names])

    def delete_if_empty(self, directory: str) -> None:
        """Delete a directory, if it is empty."""
        if not self.entries(directory):
            self._remove_directory(self.path_of(directory))

    def delete_tree(self, directory: str) -> None:
        """Delete a directory with its content, if it exists."""
        path = self.path_of(directory)
        with self.errors.translated("deleting", path), suppress(FileNotFoundError):
            self._fs.invalidate_cache()
            found = self._fs.find(path, withdirs=True, detail=True)
            directories = {name for name in found if found[name]["type"] == "directory"}
            self._delete_paths([name for name in found if name not in directories])
            for name in sorted({path, *directories}, reverse=True):
                self._remove_directory(name)

    def delete_empty_root(self) -> None:
        """Delete the directory itself, if it is empty."""
        with suppress(Exception):
            if not self.entries():
                self._remove_directory(self._path)

    def _delete_paths(self, paths: list[str]) -> None:
        # Object stores delete many files in one request, other file systems one at a time.
        # But fsspec takes some names for patterns.
        at_once = len(paths) > 1 and getattr(self._fs, "async_impl", False)
        if at_once and not any(map(_PATTERN.search, paths)):
            with suppress(FileNotFoundError):
                self._fs.rm(paths)
                return
        for path in paths:
            with suppress(FileNotFoundError):
                self._fs.rm_file(path)

    def _remove_directory(self, path: str) -> None:
        self._made.clear()
        # Where directories are only prefixes of names there is nothing to delete, and clients
        # may raise anything. A directory that is not empty after all stays.
        with suppress(Exception):
            self._fs.rmdir(path)

    def _info(self, path: str) -> Any:
        """Information about a file; None if there is none."""
        # fsspec's own `exists` answers no to every failure, and a no may cost a checkpoint.
        self._fs.invalidate_cache()
        try:
            info = self._fs.info(path)
        except FileNotFoundError:
            return None
        return info if info["type"] == "file" else None

    def _make_parent(self, path: str) -> None:
        self._fs.makedirs(path.rpartition("/")[0], exist_ok=True)

    def _make_parent_once(self, path: str) -> None:
        parent = path.rpartition("/")[0]
        if parent not in self._made:
            self._make_parent(path)
            self._made.add(parent)


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
        for piece in self._verified(handle, never):
            content += piece
        return bytes(content)

    def download(self, handle: Handle, local: Path, cancelled: Cancelled = never) -> None:
        """Copy the content of `handle` to a local file, verified as by `read_bytes`."""
        if isinstance(handle, InlineHandle):
            pieces: Iterable[bytes] = [inline_content(handle)]
        else:
            pieces = self._verified(handle, cancelled)
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

    def _verified(self, handle: FileHandle, cancelled: Cancelled) -> Iterator[bytes]:
        path = self._directory.path_of(handle.path)
        size, digest = 0, xxhash.xxh3_128()
        try:
            with CHECKPOINT_ERRORS.translated("reading", path, but=(FileNotFoundError,)):
                source = self._directory.open(handle.path)
                if source is None:
                    raise FileNotFoundError
                with source:
                    while piece := source.read(self._chunk):
                        check_cancelled(cancelled, path)
                        digest.update(piece)
                        size += len(piece)
                        yield piece
        except FileNotFoundError as error:
            raise CorruptCheckpointError(
                f"{path}: the file is gone, and a checkpoint needs it; "
                "restore from another checkpoint"
            ) from error
        verify(size, digest.hexdigest(), handle, path)


def inline_content(handle: InlineHandle) -> bytes:
    """Content of an inline handle, of the length that it names."""
    verify(len(handle.data), None, handle, "state within the metadata")
    return handle.data
