"""The protocol of checkpoint storage: named files, their errors, and limits on inline state."""

from __future__ import annotations

import errno
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from holdfast.errors import (
    CheckpointError,
    CheckpointStorageError,
    CorruptCheckpointError,
    HoldfastError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from holdfast.storage.handles import Handle


if TYPE_CHECKING:
    Cancelled: TypeAlias = Callable[[], bool]

_MIB: Final = 1024 * 1024

MOST_INLINE: Final = 2 * _MIB


"""Bytes of state that may travel within the metadata of one checkpoint, and as many of rows.

Each part of it may take its share, so that the metadata stays small with many subtasks.
"""

_ADVICE: Final = {
    errno.ENOSPC: "free some space, or keep fewer checkpoints",
    errno.EDQUOT: "free some space, raise the quota, or keep fewer checkpoints",
    errno.EACCES: "let the driver and every executor write there",
    errno.EPERM: "let the driver and every executor write there",
    errno.EROFS: "set `execution.checkpointing.dir` to a place that can be written to",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class InlineLimits:
    """How much state may travel through the driver's memory."""

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
    """Small files of one job, found by their names.

    Whatever the storage raises comes out as CheckpointStorageError, which names the
    place and the reason. It may pass by itself, so it never means that a checkpoint is
    bad; CorruptCheckpointError always does.
    """

    @property
    def root(self) -> str:
        """The job's directory, for people to read."""

    def read(self, name: str, limit: int | None = None) -> bytes | None:
        """First `limit` bytes of a file, or all; None if there is no such file."""

    def create_exclusive(self, name: str, data: bytes) -> bool:
        """Create a whole file, or return False and change nothing if `name` exists."""

    def exists(self, name: str) -> bool:
        """Whether there is such a file."""

    def entries(self, directory: str = "") -> dict[str, int | None]:
        """What lies directly in a directory: sizes of files, None for directories."""

    def delete(self, name: str) -> None:
        """Remove a file, if it is there."""

    def delete_all(self, names: Iterable[str]) -> None:
        """Remove files, those that are there."""

    def delete_if_empty(self, directory: str) -> None:
        """Remove a directory, if nothing is in it."""

    def delete_tree(self, directory: str) -> None:
        """Remove a directory with all that is in it, if it is there."""

    def delete_empty_root(self) -> None:
        """Remove the job's directory itself, if nothing is left in it."""


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

    def download(self, handle: Handle, local: Path, cancelled: Cancelled = ...) -> None:
        """Copy the content of `handle` to a local file, verified as by `read_bytes`."""


def never() -> bool:
    """The transfer is not cancelled."""
    return False


def check_cancelled(cancelled: Cancelled, path: str) -> None:
    """Raise CheckpointError if the transfer of `path` has been cancelled."""
    if cancelled():
        raise CheckpointError(f"{path}: the transfer was cancelled, with its checkpoint")


def checked_name(name: str) -> str:
    """`name`, once it is certain that it stays within the job's directory."""
    if any(part in ("", ".", "..") for part in name.split("/")) or "\\" in name:
        raise CorruptCheckpointError(
            f"{name!r}: this name leads out of the job's checkpoint directory; the metadata that "
            "holds it was not written by Holdfast"
        )
    return name


def verify(data_size: int, checksum: str | None, handle: Handle, where: str) -> None:
    """Raise CorruptCheckpointError if what was read is not what `handle` names."""
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


@contextmanager
def storage_errors(doing: str, path: str) -> Iterator[None]:
    """Turn whatever storage raises into CheckpointStorageError, but for missing files."""
    try:
        yield
    except (HoldfastError, FileNotFoundError):
        raise
    # Each kind of storage raises the errors of its own client library.
    except Exception as error:
        raise storage_error(doing, path, error) from error


def storage_error(doing: str, path: str, error: Exception) -> CheckpointStorageError:
    """The error for `doing` something at `path` that failed with `error`."""
    number = error.errno if isinstance(error, OSError) else None
    reason = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
    advice = _ADVICE.get(number or 0, "check that checkpoint storage can be reached")
    return CheckpointStorageError(f"{path}: {doing} failed ({reason}); {advice}")


def _check(size: int, limit: int, what: str, scope: str) -> None:
    if size > limit:
        raise CheckpointStorageError(
            f"{what} takes {size} bytes, and the driver's memory takes at most {limit} for "
            f"{scope}; keep checkpoints in files: set `execution.checkpointing.storage` to "
            "`filesystem` and `execution.checkpointing.dir` to a directory or URL"
        )
