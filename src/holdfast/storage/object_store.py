"""A directory on any storage that fsspec reaches, treated as an object store."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any, BinaryIO, Final, cast

from holdfast.storage.files import Directory

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.storage.files import FileErrors

_PATTERN: Final = re.compile(r"[*?\[]")


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
