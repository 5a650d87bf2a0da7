"""Places for files: a local directory, or any that fsspec can reach.

On a local or mounted disk a file is published by renaming it; anywhere else by a copy
within the storage, which an object store shows whole or not at all, followed by the
removal of the staged file.
"""

from __future__ import annotations

import errno
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, cast

import fsspec
from fsspec.implementations.local import LocalFileSystem

from holdfast.connectors.files.places import check_size, sink_error, sink_errors
from holdfast.errors import ConfigurationError
from holdfast.storage.files import checked_name
from holdfast.storage.local import sync, sync_directory

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from holdfast.connectors.files.places import Place

_BUFFER: Final = 1024 * 1024
_TRIES: Final = 5


def open_place(url: str, storage_options: Mapping[str, Any]) -> Place:
    """The place at a path or URL; nothing is created, nor looked for.

    Raises:
        ConfigurationError: There is no such file system, or it refuses the options.
    """
    try:
        fs, path = fsspec.core.url_to_fs(url, **storage_options)
    except (ImportError, ValueError, TypeError) as error:
        raise ConfigurationError(
            f"{url}: the file system cannot be opened ({error}); install what it needs on the "
            "driver and every executor, or correct the path or `storage_options`"
        ) from error
    except Exception as error:
        raise sink_error("opening the file system", url, error) from error
    if type(fs) is LocalFileSystem:
        return LocalPlace(Path(path))
    return RemotePlace(url, fs, path.rstrip("/"))


class LocalPlace:
    """A directory on a local or mounted disk."""

    def __init__(self, root: Path) -> None:
        self._root = root

    @property
    def root(self) -> str:
        """Absolute path of the directory."""
        return str(self._root)

    def create(self, name: str) -> BinaryIO:
        """A new file to write to, with the directories it needs."""
        path = self._at(name)
        with sink_errors("creating", path):
            for _ in range(_TRIES):
                self._make(path.parent)
                # Another job that ends may remove the directory while it is empty.
                with suppress(FileNotFoundError):
                    return path.open("xb", buffering=_BUFFER)
            raise FileNotFoundError(errno.ENOENT, "its directory was removed again and again")

    def finish(self, name: str, file: BinaryIO, size: int) -> None:
        """Close a file when its content is on disk."""
        path = self._at(name)
        with sink_errors("writing", path):
            sync(file)
            file.close()
        check_size(str(path), size, self.size(name))

    def size(self, name: str) -> int | None:
        """Length of a file in bytes; None if there is none."""
        path = self._at(name)
        with sink_errors("looking for a file", path):
            try:
                return path.stat().st_size
            except FileNotFoundError:
                return None

    def move(self, source: str, target: str, size: int) -> None:
        """Rename a file; nothing is done if `source` is gone."""
        old, new = self._at(source), self._at(target)
        with sink_errors("publishing", new):
            self._make(new.parent)
            try:
                os.rename(old, new)
            except FileNotFoundError:
                if old.exists():
                    raise

    def sync(self, names: Iterable[str]) -> None:
        """Wait until the names of these files, and of their directories, are on disk."""
        directories = {above for name in names for above in self._within(self._at(name).parent)}
        for directory in sorted(directories, key=lambda path: -len(path.parts)):
            # Whoever reads published files may also remove their directory.
            with sink_errors("syncing", directory), suppress(FileNotFoundError):
                sync_directory(directory)

    def delete(self, name: str) -> None:
        """Remove a file, if it is there."""
        path = self._at(name)
        with sink_errors("deleting", path):
            path.unlink(missing_ok=True)

    def entries(self, directory: str) -> list[str]:
        """Names of what lies directly in a directory; none if it is not there."""
        path = self._at(directory)
        with sink_errors("listing", path):
            try:
                return sorted(os.listdir(path))
            except FileNotFoundError:
                return []

    def delete_tree(self, directory: str) -> None:
        """Remove a directory with all that is in it, if it is there."""
        path = self._at(directory)
        with sink_errors("deleting", path), suppress(FileNotFoundError):
            shutil.rmtree(path)

    def delete_if_empty(self, directory: str) -> None:
        """Remove a directory, if nothing is in it."""
        with suppress(OSError):
            self._at(directory).rmdir()

    def _at(self, name: str) -> Path:
        return self._root / checked_name(name)

    def _within(self, directory: Path) -> Iterator[Path]:
        yield directory
        while directory != self._root:
            directory = directory.parent
            yield directory

    def _make(self, directory: Path) -> None:
        if directory.is_dir():
            return
        new = [] if self._root.is_dir() else [self._root, *self._root.parents]
        created = [path for path in new if not path.is_dir()]
        directory.mkdir(parents=True, exist_ok=True)
        for path in created:
            # What is above the place may be closed to us for reading.
            with suppress(PermissionError):
                sync_directory(path.parent)


class RemotePlace:
    """A directory on a file system that fsspec knows, taken for an object store."""

    def __init__(self, url: str, fs: Any, path: str) -> None:
        self._url = url
        self._fs = fs
        self._path = path

    @property
    def root(self) -> str:
        """URL of the directory."""
        return self._url

    def create(self, name: str) -> BinaryIO:
        """A new file to write to; most stores show it only when it is closed."""
        path = self._at(name)
        with sink_errors("creating", path):
            self._make_parent(path)
            return cast("BinaryIO", self._fs.open(path, "wb"))

    def finish(self, name: str, file: BinaryIO, size: int) -> None:
        """Close a file, which makes it durable."""
        path = self._at(name)
        with sink_errors("writing", path):
            file.close()
        check_size(path, size, self.size(name))

    def size(self, name: str) -> int | None:
        """Length of a file in bytes; None if there is none."""
        path = self._at(name)
        with sink_errors("looking for a file", path):
            # fsspec's own `exists` answers no to every failure.
            self._fs.invalidate_cache()
            try:
                info = self._fs.info(path)
            except FileNotFoundError:
                return None
            return int(info["size"]) if info["type"] == "file" else None

    def move(self, source: str, target: str, size: int) -> None:
        """Copy a file, then remove `source`; nothing is done if that is gone."""
        old, new = self._at(source), self._at(target)
        with sink_errors("publishing", new):
            self._make_parent(new)
            try:
                self._fs.cp_file(old, new)
            except FileNotFoundError:
                if self.size(source) is None:
                    return
                raise
        check_size(new, size, self.size(target))
        self.delete(source)

    def sync(self, names: Iterable[str]) -> None:
        """Nothing: what is closed is durable."""

    def delete(self, name: str) -> None:
        """Remove a file, if it is there."""
        path = self._at(name)
        with sink_errors("deleting", path), suppress(FileNotFoundError):
            self._fs.rm_file(path)

    def entries(self, directory: str) -> list[str]:
        """Names of what lies directly in a directory; none if it is not there."""
        path = self._at(directory)
        with sink_errors("listing", path):
            self._fs.invalidate_cache()
            try:
                found = self._fs.ls(path, detail=False)
            except FileNotFoundError:
                return []
        # Object stores may list the directory's own marker.
        names = (entry.rstrip("/") for entry in found if entry.strip("/") != path.strip("/"))
        return sorted(name.rpartition("/")[2] for name in names)

    def delete_tree(self, directory: str) -> None:
        """Remove a directory with all that is in it, if it is there."""
        path = self._at(directory)
        with sink_errors("deleting", path):
            self._fs.invalidate_cache()
            # Not `rm`, which takes a `*` or `[` in the path for a pattern.
            found = self._fs.find(path, withdirs=True, detail=True)
            for name in sorted(found, reverse=True):
                if found[name]["type"] == "directory":
                    self._remove_directory(name)
                else:
                    with suppress(FileNotFoundError):
                        self._fs.rm_file(name)
        self._remove_directory(path)

    def delete_if_empty(self, directory: str) -> None:
        """Remove a directory, if nothing is in it."""
        if not self.entries(directory):
            self._remove_directory(self._at(directory))

    def _remove_directory(self, path: str) -> None:
        # Where directories are only prefixes of names there is nothing to remove, and a
        # client may say so in any way.
        with suppress(Exception):
            self._fs.rmdir(path)

    def _at(self, name: str) -> str:
        return f"{self._path}/{checked_name(name)}"

    def _make_parent(self, path: str) -> None:
        self._fs.makedirs(path.rpartition("/")[0], exist_ok=True)
