"""A directory on a local or mounted disk, in which files are durable and whole."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import uuid
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

from holdfast.storage.files import Directory, storage_error

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from holdfast.storage.files import FileErrors

_NO_LINKS: Final = (errno.EPERM, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)
_BUFFER: Final = 1024 * 1024
_TRIES: Final = 5


class LocalDirectory(Directory):
    """A directory on a local or mounted disk; files are published by renaming them."""

    def __init__(self, root: str, errors: FileErrors) -> None:
        """The directory at an absolute path; it is created when something is written."""
        self.errors = errors
        self._root = Path(root)
        self._given = root
        self._durable: set[Path] = set()
        """Directories whose names are on disk."""

    @property
    def root(self) -> str:
        """Absolute path of the directory."""
        return self._given

    def path_of(self, name: str) -> str:
        """The file's path."""
        return str(self._at(name))

    def open(self, name: str) -> BinaryIO | None:
        """A file to read from; None if there is none."""
        try:
            return self._at(name).open("rb")
        except FileNotFoundError:
            return None

    def write(self, name: str, pieces: Iterable[bytes]) -> int:
        """Write a whole file; content and name are on disk when it returns."""
        path, size = self._at(name), 0
        with self.errors.translated("writing", path):
            self._make_durable(path.parent)
            with path.open("wb") as file:
                for piece in pieces:
                    size += file.write(piece)
                sync(file)
            sync_directory(path.parent)
            self.errors.check_size(path, size, path.stat().st_size)
        return size

    def create_exclusive(self, name: str, data: bytes) -> bool:
        """Create a whole file, durably, or return False and change nothing if `name` exists."""
        path = self._at(name)
        with self.errors.translated("writing", path):
            self._make_durable(path.parent)
            return create_local(path, data)

    def create(self, name: str) -> BinaryIO:
        """A new file to write to, with the directories it needs."""
        path = self._at(name)
        with self.errors.translated("creating", path):
            for _ in range(_TRIES):
                self._make(path.parent)
                # Another job that ends may remove the directory while it is empty.
                with suppress(FileNotFoundError):
                    return path.open("xb", buffering=_BUFFER)
            raise FileNotFoundError(errno.ENOENT, "its directory was removed again and again")

    def finish(self, name: str, file: BinaryIO, size: int) -> None:
        """Close a file when its content is on disk."""
        path = self._at(name)
        with self.errors.translated("writing", path):
            sync(file)
            file.close()
        self.errors.check_size(path, size, self.size(name))

    def move(self, source: str, target: str, size: int) -> None:
        """Rename a file; nothing is done if `source` is gone."""
        old, new = self._at(source), self._at(target)
        with self.errors.translated("publishing", new):
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
            # Readers of published files may also delete their directory.
            with self.errors.translated("syncing", directory), suppress(FileNotFoundError):
                sync_directory(directory)

    def size(self, name: str) -> int | None:
        """Length of a file in bytes; None if there is none."""
        path = self._at(name)
        with self.errors.translated("looking for a file", path), suppress(FileNotFoundError):
            found = path.stat()
            return found.st_size if stat.S_ISREG(found.st_mode) else None
        return None

    def entries(self, directory: str = "") -> dict[str, int | None]:
        """Entries of a directory: sizes of files, None for subdirectories."""
        path, found = self._at(directory) if directory else self._root, {}
        with (
            self.errors.translated("listing", path),
            suppress(FileNotFoundError, NotADirectoryError),
            os.scandir(path) as entries,
        ):
            for entry in entries:
                # It may be deleted meanwhile.
                with suppress(FileNotFoundError):
                    is_directory = entry.is_dir(follow_symlinks=False)
                    found[entry.name] = None if is_directory else entry.stat().st_size
        return found

    def delete(self, name: str) -> None:
        """Delete a file, if it exists."""
        path = self._at(name)
        with self.errors.translated("deleting", path):
            path.unlink(missing_ok=True)

    def delete_all(self, names: Iterable[str]) -> None:
        """Delete files, those that exist."""
        for name in names:
            self.delete(name)

    def delete_if_empty(self, directory: str) -> None:
        """Delete a directory, if it is empty."""
        self._durable.clear()
        with suppress(OSError):
            self._at(directory).rmdir()

    def delete_tree(self, directory: str) -> None:
        """Delete a directory with its content, if it exists."""
        path = self._at(directory)
        self._durable.clear()
        with self.errors.translated("deleting", path), suppress(FileNotFoundError):
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    def delete_empty_root(self) -> None:
        """Delete the directory itself, if it is empty."""
        self._durable.clear()
        with suppress(OSError):
            self._root.rmdir()

    def _at(self, name: str) -> Path:
        return self._root / self.errors.checked_name(name)

    def _within(self, directory: Path) -> Iterator[Path]:
        yield directory
        while directory != self._root:
            directory = directory.parent
            yield directory

    def _make(self, directory: Path) -> None:
        """Make a directory and its missing parents.

        Only the names of the root and its parents are on disk then: `sync` is for the others.
        """
        if directory.is_dir():
            return
        new = [] if self._root.is_dir() else [self._root, *self._root.parents]
        created = [path for path in new if not path.is_dir()]
        directory.mkdir(parents=True, exist_ok=True)
        self._sync_names(created)

    def _make_durable(self, directory: Path) -> None:
        """Make a directory and its missing parents, so that they survive a loss of power.

        A file is durable only if the name of its directory is, and so on: up to the name of the
        root, and of all parents that were made. Existing directories are synced as well, since
        the process that made one may have died before it was durable.
        """
        if directory in self._durable:
            return
        above = (directory, *directory.parents)
        missing = [path for path in above if not path.exists()]
        directory.mkdir(parents=True, exist_ok=True)
        self._sync_names([*missing, *self._within(directory)])
        self._durable.add(directory)

    def _sync_names(self, directories: Iterable[Path]) -> None:
        for path in dict.fromkeys(directories):
            # We may not be allowed to read the parents of the root.
            with suppress(PermissionError):
                sync_directory(path.parent)


def write_local(local: Path, pieces: Iterable[bytes]) -> None:
    """Write `pieces` to a local file.

    Raises:
        CheckpointStorageError: The local disk is full or cannot be written to.
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


def create_local(path: Path, data: bytes) -> bool:
    """Create a whole file durably, or return False and change nothing if it exists."""
    # A link appears at once, with all its content, and never replaces a file.
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
    # Mounted buckets have no hard links. A reader may then see half a file, and notices.
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
    """Wait until the names in a directory are on disk."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
