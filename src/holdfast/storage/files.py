"""The protocols of stored files: names, errors, and limits on inline state.

A `Directory` is a directory somewhere, for any use. The files of a job in checkpoint storage
are `JobCheckpointFiles`. Names are relative, with `/` between their parts.
"""

from __future__ import annotations

import errno
from abc import abstractmethod
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, BinaryIO, Final, Protocol, TypeAlias
from urllib.parse import urlsplit

from holdfast.errors import (
    CheckpointError,
    CheckpointStorageError,
    ConfigurationError,
    CorruptCheckpointError,
    HoldfastError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from holdfast.storage.handles import Handle, InlineHandle


if TYPE_CHECKING:
    Cancelled: TypeAlias = Callable[[], bool]

_MIB: Final = 1024 * 1024

MOST_INLINE: Final = 2 * _MIB
"""Most bytes of state in the metadata of one checkpoint, and most bytes of rows.

Each part gets its share, so that the metadata stays small with many subtasks.
"""


@dataclass(frozen=True)
class FileErrors:
    """Reports the failures of a directory."""

    error: type[HoldfastError]
    directory: str
    """What messages call the directory."""
    otherwise: str
    """Advice for all other failures."""
    advice: Mapping[int, str] = field(default_factory=dict)
    """Advice for the error numbers of the operating system."""

    def of(self, doing: str, path: object, error: Exception) -> HoldfastError:
        """The error for `doing` something at `path` that failed with `error`."""
        number = error.errno if isinstance(error, OSError) else None
        reason = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
        return self.error(
            f"{path}: {doing} failed ({reason}); {self.advice.get(number or 0, self.otherwise)}"
        )

    @contextmanager
    def translated(
        self, doing: str, path: object, but: tuple[type[Exception], ...] = ()
    ) -> Iterator[None]:
        """Turn whatever storage raises into an error that names the path and the reason.

        Args:
            doing: The operation.
            path: Where.
            but: Exceptions that the caller handles.
        """
        try:
            yield
        # Each kind of storage raises the errors of its own client library.
        except Exception as error:
            if isinstance(error, (HoldfastError, *but)):
                raise
            raise self.of(doing, path, error) from error

    def check_size(self, path: object, written: int, there: int | None) -> None:
        """Raise if a file is not there, or not as long as what was written."""
        if there != written:
            found = "is not there" if there is None else f"has {there}"
            raise self.error(
                f"{path}: {written} bytes were written, and the file {found}; check the storage, "
                "it may be full, or something else removes or changes files there"
            )

    def checked_name(self, name: str) -> str:
        """`name`, if it stays within the directory; else raises CorruptCheckpointError."""
        if any(part in ("", ".", "..") for part in name.split("/")) or "\\" in name:
            raise CorruptCheckpointError(
                f"{name!r}: this name leads out of {self.directory}; the metadata that holds it "
                "was not written by Holdfast"
            )
        return name


CHECKPOINT_ERRORS: Final = FileErrors(
    CheckpointStorageError,
    "the job's checkpoint directory",
    "check that checkpoint storage can be reached",
    {
        errno.ENOSPC: "free some space, or keep fewer checkpoints",
        errno.EDQUOT: "free some space, raise the quota, or keep fewer checkpoints",
        errno.EACCES: "let the driver and every executor write there",
        errno.EPERM: "let the driver and every executor write there",
        errno.EROFS: "set `execution.checkpointing.dir` to a place that can be written to",
    },
)
"""Failures of checkpoint storage.

They may pass by themselves, so they never mean that a checkpoint is bad; CorruptCheckpointError
always does.
"""
checked_name = CHECKPOINT_ERRORS.checked_name
storage_error = CHECKPOINT_ERRORS.of


@dataclass(frozen=True, slots=True, kw_only=True)
class InlineLimits:
    """Limits on state in the driver's memory."""

    per_state: int = 5 * _MIB
    """Bytes of one file of state."""
    per_message: int = 10 * _MIB
    """Bytes of all state that one subtask acknowledges."""
    total: int = 512 * _MIB
    """Bytes of all checkpoints kept in the driver."""

    def check_state(self, size: int, what: str) -> None:
        """Raise CheckpointStorageError if one state of `size` bytes is too large."""
        _check(size, self.per_state, what, "one state")

    def check_message(self, size: int, what: str) -> None:
        """Raise CheckpointStorageError if one subtask sends too many bytes."""
        _check(size, self.per_message, what, "all state of one subtask")

    def check_total(self, size: int, what: str) -> None:
        """Raise CheckpointStorageError if the driver would hold too many bytes."""
        _check(size, self.total, what, "all checkpoints kept in the driver")


class NamedFiles(Protocol):
    """Small files of one directory, by name."""

    @property
    def root(self) -> str:
        """The directory, for people to read."""

    def read(self, name: str, limit: int | None = None) -> bytes | None:
        """First `limit` bytes of a file, or all; None if it does not exist."""

    def create_exclusive(self, name: str, data: bytes) -> bool:
        """Create a whole file, durably, or return False and change nothing if `name` exists."""

    def exists(self, name: str) -> bool:
        """Whether the file exists."""

    def entries(self, directory: str = "") -> dict[str, int | None]:
        """Entries of a directory: sizes of files, None for subdirectories."""

    def delete(self, name: str) -> None:
        """Delete a file, if it exists."""

    def delete_all(self, names: Iterable[str]) -> None:
        """Delete files, those that exist."""

    def delete_if_empty(self, directory: str) -> None:
        """Delete a directory, if it is empty."""

    def delete_tree(self, directory: str) -> None:
        """Delete a directory with its content, if it exists."""

    def delete_empty_root(self) -> None:
        """Delete the directory itself, if it is empty."""


class Directory(NamedFiles, Protocol):
    """A directory on a local disk or on any storage that fsspec reaches.

    All failures of the storage are raised as the error class of `errors`.
    """

    errors: FileErrors

    @abstractmethod
    def open(self, name: str) -> BinaryIO | None:
        """A file to read from; None if there is none. Reading it raises errors of the storage."""

    @abstractmethod
    def write(self, name: str, pieces: Iterable[bytes]) -> int:
        """Write a whole file, durably; returns its length. The caller deletes it on failure."""

    @abstractmethod
    def create(self, name: str) -> BinaryIO:
        """A new file to write to, with the directories it needs; `finish` makes it durable."""

    @abstractmethod
    def finish(self, name: str, file: BinaryIO, size: int) -> None:
        """Close a file that `create` gave, and in which `size` bytes were written, durably."""

    @abstractmethod
    def move(self, source: str, target: str, size: int) -> None:
        """Move a file of `size` bytes; `target` appears whole or not at all.

        Does nothing if `source` is gone.
        """

    @abstractmethod
    def sync(self, names: Iterable[str]) -> None:
        """Wait until the names of these files, and of their directories, are durable."""

    @abstractmethod
    def size(self, name: str) -> int | None:
        """Length of a file in bytes; None if there is none."""

    @abstractmethod
    def path_of(self, name: str) -> str:
        """The file's path, for people to read."""

    def read(self, name: str, limit: int | None = None) -> bytes | None:
        """First `limit` bytes of a file, or all; None if it does not exist."""
        with self.errors.translated("reading", self.path_of(name)), suppress(FileNotFoundError):
            file = self.open(name)
            if file is not None:
                with file:
                    return bytes(file.read() if limit is None else file.read(limit))
        return None

    def exists(self, name: str) -> bool:
        """Whether the file exists."""
        return self.size(name) is not None


class JobCheckpointFiles(NamedFiles, Protocol):
    """All files of one job in checkpoint storage; pickles, and serves any thread."""

    @property
    def limits(self) -> InlineLimits | None:
        """Bounds on state that is kept in the driver; None if it is kept elsewhere."""

    def write_file(self, local: Path, name: str, cancelled: Cancelled = ...) -> Handle:
        """Copy a local file to `name`, durably; a failed copy is removed if possible."""

    def write_bytes(self, name: str, data: bytes) -> Handle:
        """Write `data` to `name`, durably."""

    def read_bytes(self, handle: Handle) -> bytes:
        """Content of `handle`; CorruptCheckpointError if it is gone or has changed."""

    def download(self, handle: Handle, local: Path) -> None:
        """Copy the content of `handle` to a local file, verified as by `read_bytes`."""


class NamesElsewhere:
    """Passes all methods of `NamedFiles` on to another object."""

    def __init__(self, names: NamedFiles) -> None:
        self._names = names

    @property
    def root(self) -> str:
        """The directory, for people to read."""
        return self._names.root

    def read(self, name: str, limit: int | None = None) -> bytes | None:
        """First `limit` bytes of a file, or all; None if it does not exist."""
        return self._names.read(name, limit)

    def create_exclusive(self, name: str, data: bytes) -> bool:
        """Create a whole file, or return False and change nothing if `name` exists."""
        return self._names.create_exclusive(name, data)

    def exists(self, name: str) -> bool:
        """Whether the file exists."""
        return self._names.exists(name)

    def entries(self, directory: str = "") -> dict[str, int | None]:
        """Entries of a directory: sizes of files, None for subdirectories."""
        return self._names.entries(directory)

    def delete(self, name: str) -> None:
        """Delete a file, if it exists."""
        self._names.delete(name)

    def delete_all(self, names: Iterable[str]) -> None:
        """Delete files, those that exist."""
        self._names.delete_all(names)

    def delete_if_empty(self, directory: str) -> None:
        """Delete a directory, if it is empty."""
        self._names.delete_if_empty(directory)

    def delete_tree(self, directory: str) -> None:
        """Delete a directory with its content, if it exists."""
        self._names.delete_tree(directory)

    def delete_empty_root(self) -> None:
        """Delete the directory itself, if it is empty."""
        self._names.delete_empty_root()


def never() -> bool:
    """The transfer is not cancelled."""
    return False


def check_cancelled(cancelled: Cancelled, path: str) -> None:
    """Raise CheckpointError if the transfer of `path` has been cancelled."""
    if cancelled():
        raise CheckpointError(f"{path}: the transfer was cancelled, with its checkpoint")


def refuse_password(url: str, what: str, instead: str) -> None:
    """Raise ConfigurationError if a URL holds a password, which messages would show.

    Args:
        url: The URL, or a path.
        what: Name of the setting, for the message.
        instead: Where passwords belong.
    """
    if "://" in url and urlsplit(url).password is not None:
        scheme, _, rest = url.partition("://")
        raise ConfigurationError(
            f"{scheme}://...@{rest.rpartition('@')[2]}: {what} holds a password, which would be "
            f"shown in logs; set it in {instead}"
        )


def verify(data_size: int, checksum: str | None, handle: Handle, where: str) -> None:
    """Raise CorruptCheckpointError if the content does not match `handle`."""
    if data_size != handle.size:
        raise CorruptCheckpointError(
            f"{where}: {data_size} bytes where the checkpoint wrote {handle.size}; "
            "restore from another checkpoint"
        )
    if checksum is not None and checksum != getattr(handle, "checksum", checksum):
        raise CorruptCheckpointError(
            f"{where}: the content has changed since the checkpoint wrote it (checksum "
            f"{checksum}); restore from another checkpoint"
        )


def inline_content(handle: InlineHandle) -> bytes:
    """Content of an inline handle, of the length that it names."""
    verify(len(handle.data), None, handle, "state within the metadata")
    return handle.data


def _check(size: int, limit: int, what: str, scope: str) -> None:
    if size > limit:
        raise CheckpointStorageError(
            f"{what} takes {size} bytes, and the driver's memory takes at most {limit} for "
            f"{scope}; keep checkpoints in files: set `execution.checkpointing.storage` to "
            "`filesystem` and `execution.checkpointing.dir` to a directory or URL"
        )
