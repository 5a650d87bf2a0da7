"""Checkpoint storage in files: a local or mounted directory, or any fsspec URL."""

from __future__ import annotations

import os
import re
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import fsspec
import xxhash
from fsspec.implementations.local import LocalFileSystem

from holdfast.errors import CheckpointStorageError, ConfigurationError, CorruptCheckpointError
from holdfast.storage.files import (
    check_cancelled,
    checked_name,
    never,
    storage_error,
    storage_errors,
    verify,
)
from holdfast.storage.handles import FileHandle, Handle, InlineHandle
from holdfast.storage.local import create_local, make_directory, sync, sync_directory, write_local

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from holdfast.storage.files import Cancelled

_PATTERN: Final = re.compile(r"[*?\[]")
CHUNK: Final = 1024 * 1024
"""Bytes handed to the file system at once, unless more are asked for."""


class FileSystemFiles:
    """The files of one job below a local path or URL.

    Options of the file system (credentials, endpoints) come from its own environment
    or from fsspec's configuration on each host, never from the URL.

    Args:
        url: The job's directory.
        chunk: Bytes handed to the file system at once.
    """

    limits: Final = None

    def __init__(self, url: str, chunk: int = CHUNK) -> None:
        _refuse_password(url)
        with storage_errors("opening the file system", url):
            self._fs, path = fsspec.core.url_to_fs(url)
        self._path = path.rstrip("/")
        self._local = type(self._fs) is LocalFileSystem
        self._chunk = chunk
        self._made: set[str] = set()
        # An executor may have another working directory.
        self._url = (self._path or "/") if self._local else re.sub(r"(?<![:/])/+$", "", url)

    def __reduce__(self) -> tuple[type[FileSystemFiles], tuple[str, int]]:
        return FileSystemFiles, (self._url, self._chunk)

    @property
    def root(self) -> str:
        """The job's directory: a path or a URL."""
        return self._url

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
            self._remove_failed(self._at(name))
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

    def read(self, name: str, limit: int | None = None) -> bytes | None:
        """First `limit` bytes of a file, or all; None if there is no such file."""
        path = self._at(name)
        try:
            with storage_errors("reading", path), self._fs.open(path, "rb") as file:
                return bytes(file.read() if limit is None else file.read(limit))
        except FileNotFoundError:
            return None

    def create_exclusive(self, name: str, data: bytes) -> bool:
        """Create a whole file, or return False and change nothing if `name` exists.

        Atomic on local file systems, and on others whose fsspec implementation makes
        `pipe_file(mode="create")` atomic; elsewhere a check followed by a write.
        """
        path = self._at(name)
        with self._writing(path):
            self._make_parent(path)
            if self._local:
                return create_local(Path(path), data)
            # Asked first: not every implementation knows the mode.
            if self._is_file(path):
                return False
            try:
                self._fs.pipe_file(path, data, mode="create")
            except FileExistsError:
                return False
            return True

    def exists(self, name: str) -> bool:
        """Whether there is such a file."""
        path = self._at(name)
        with storage_errors("looking for a file", path):
            return self._is_file(path)

    def entries(self, directory: str = "") -> dict[str, int | None]:
        """What lies directly in a directory: sizes of files, None for directories."""
        path = self._at(directory) if directory else self._path or self._fs.root_marker
        try:
            with storage_errors("listing", path):
                self._fs.invalidate_cache()
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
        """Remove a file, if it is there."""
        path = self._at(name)
        with suppress(FileNotFoundError), storage_errors("deleting", path):
            self._fs.rm_file(path)

    def delete_all(self, names: Iterable[str]) -> None:
        """Remove files, those that are there."""
        paths = [self._at(name) for name in names]
        with storage_errors("deleting", self._url):
            self._delete_paths(paths)

    def delete_if_empty(self, directory: str) -> None:
        """Remove a directory, if nothing is in it."""
        if not self.entries(directory):
            self._remove_directory(self._at(directory))

    def delete_tree(self, directory: str) -> None:
        """Remove a directory with all that is in it, if it is there."""
        path = self._at(directory)
        with suppress(FileNotFoundError), storage_errors("deleting", path):
            self._fs.invalidate_cache()
            if self._local:
                self._made.clear()
                self._fs.rm(path, recursive=True)
                return
            found = self._fs.find(path, withdirs=True, detail=True)
            directories = {name for name in found if found[name]["type"] == "directory"}
            self._delete_paths([name for name in found if name not in directories])
            for name in sorted({path, *directories}, reverse=True):
                self._remove_directory(name)

    def delete_empty_root(self) -> None:
        """Remove the job's directory itself, if nothing is left in it."""
        with suppress(Exception):
            if not self.entries():
                self._remove_directory(self._path)

    def _delete_paths(self, paths: list[str]) -> None:
        # Object stores remove many in one request, other file systems take one name at a time.
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
        # Where directories are only prefixes of names there is nothing to remove, and a
        # client may say so in any way. One that is not empty after all stays.
        with suppress(Exception):
            self._fs.rmdir(path)

    def _at(self, name: str) -> str:
        return f"{self._path}/{checked_name(name)}"

    def _is_file(self, path: str) -> bool:
        # fsspec's own `exists` answers no to every failure, and a no may cost a checkpoint.
        self._fs.invalidate_cache()
        try:
            return bool(self._fs.info(path)["type"] == "file")
        except FileNotFoundError:
            return False

    def _make_parent(self, path: str) -> None:
        parent = path.rpartition("/")[0]
        if parent not in self._made:
            if self._local:
                make_directory(Path(parent), Path(self._path))
            else:
                self._fs.makedirs(parent, exist_ok=True)
            self._made.add(parent)

    def _write(self, name: str, pieces: Iterable[bytes], cancelled: Cancelled) -> FileHandle:
        path = self._at(name)
        try:
            with self._writing(path):
                self._make_parent(path)
                size, checksum = self._stream(path, pieces, cancelled)
                self._fs.invalidate_cache()
                stored = self._fs.info(path)["size"]
        except BaseException:
            self._remove_failed(path)
            raise
        if stored != size:
            self._remove_failed(path)
            raise CheckpointStorageError(
                f"{path}: {size} bytes were written and {stored} are there; "
                "check the storage, it may be full"
            )
        return FileHandle(path=name, size=size, checksum=checksum)

    def _stream(self, path: str, pieces: Iterable[bytes], cancelled: Cancelled) -> tuple[int, str]:
        size, digest = 0, xxhash.xxh3_128()
        with self._fs.open(path, "wb") as target:
            for piece in pieces:
                check_cancelled(cancelled, path)
                target.write(piece)
                digest.update(piece)
                size += len(piece)
            if self._local:
                sync(target)
        if self._local:
            sync_directory(Path(path).parent)
        return size, digest.hexdigest()

    @contextmanager
    def _writing(self, path: str) -> Iterator[None]:
        try:
            with storage_errors("writing", path):
                yield
        except FileNotFoundError as error:
            raise storage_error("writing", path, error) from error

    def _remove_failed(self, path: str) -> None:
        # The failure itself is what the caller has to hear of; a sweep takes the rest.
        with suppress(Exception):
            self._fs.rm_file(path)

    def _verified(self, handle: FileHandle, cancelled: Cancelled) -> Iterator[bytes]:
        path = self._at(handle.path)
        size, digest = 0, xxhash.xxh3_128()
        try:
            with storage_errors("reading", path), self._fs.open(path, "rb") as source:
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


def _refuse_password(url: str) -> None:
    if "://" in url and urlsplit(url).password is not None:
        scheme, _, rest = url.partition("://")
        raise ConfigurationError(
            f"{scheme}://...@{rest.rpartition('@')[2]}: the checkpoint directory holds a password, "
            "which would be shown in logs; set it in fsspec's configuration or the environment"
        )
