"""What a place for files promises, whatever it is made of, and how it fails.

Names are relative to the place, with `/` between their parts.
"""

from __future__ import annotations

import errno
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO, Final, Protocol
from urllib.parse import urlsplit

from holdfast.errors import ConfigurationError, HoldfastError, SinkError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_ADVICE: Final = {
    errno.ENOSPC: "free some space; nothing of the epoch was published",
    errno.EDQUOT: "free some space, or raise the quota",
    errno.EFBIG: "let the sink roll files earlier: lower `max_file_bytes`",
    errno.EACCES: "let the driver and every executor write there",
    errno.EPERM: "let the driver and every executor write there",
    errno.EROFS: "give the sink a path that can be written to",
    errno.ENAMETOOLONG: "partition by shorter values",
    errno.ENOTDIR: "give the sink the path of a directory",
    errno.EEXIST: "give the sink the path of a directory",
    errno.EXDEV: "keep all of the sink's directory on one disk",
}


class Place(Protocol):
    """A directory that holds staged and published files.

    Whatever the storage raises comes out as SinkError, which names the file and the reason.
    """

    @property
    def root(self) -> str:
        """The directory: an absolute path or a URL."""

    def create(self, name: str) -> BinaryIO:
        """A new file to write to, with the directories it needs."""

    def finish(self, name: str, file: BinaryIO, size: int) -> None:
        """Close a file that `create` gave, and in which `size` bytes were written, durably."""

    def size(self, name: str) -> int | None:
        """Length of a file in bytes; None if there is none."""

    def move(self, source: str, target: str, size: int) -> None:
        """Let a file of `size` bytes appear as `target`, whole, and be gone as `source`.

        Does nothing if `source` is gone.
        """

    def sync(self, names: Iterable[str]) -> None:
        """Wait until the names of these files, and of their directories, are durable."""

    def delete(self, name: str) -> None:
        """Remove a file, if it is there."""

    def entries(self, directory: str) -> list[str]:
        """Names of what lies directly in a directory; none if it is not there."""

    def delete_tree(self, directory: str) -> None:
        """Remove a directory with all that is in it, if it is there."""

    def delete_if_empty(self, directory: str) -> None:
        """Remove a directory, if nothing is in it."""


def absolute(path: str | os.PathLike[str]) -> str:
    """The path or URL as any process, with any working directory, can use it.

    Raises:
        ConfigurationError: It is empty, or holds a password.
    """
    given = os.fspath(path)
    if not given:
        raise ConfigurationError("the path of a FileSink is empty; give it a directory or a URL")
    if "://" not in given and "::" not in given:
        return os.path.abspath(os.path.expanduser(given))
    if "://" in given and urlsplit(given).password is not None:
        scheme, _, rest = given.partition("://")
        raise ConfigurationError(
            f"{scheme}://...@{rest.rpartition('@')[2]}: the path of a FileSink holds a password, "
            "which would be shown in logs; set it in `storage_options`, in fsspec's configuration "
            "or in the environment"
        )
    return given


@contextmanager
def sink_errors(doing: str, path: object) -> Iterator[None]:
    """Turn whatever storage raises into SinkError."""
    try:
        yield
    except HoldfastError:
        raise
    # Each kind of storage raises the errors of its own client library.
    except Exception as error:
        raise sink_error(doing, str(path), error) from error


def sink_error(doing: str, path: str, error: Exception) -> SinkError:
    """The error for `doing` something at `path` that failed with `error`."""
    number = error.errno if isinstance(error, OSError) else None
    reason = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
    advice = _ADVICE.get(number or 0, "check that the sink's storage can be reached")
    return SinkError(f"{path}: {doing} failed ({reason}); {advice}")


def check_size(path: str, written: int, there: int | None) -> None:
    """Raise SinkError if a file is not there, or not as long as what was written."""
    if there != written:
        found = "is not there" if there is None else f"has {there}"
        raise SinkError(
            f"{path}: {written} bytes were written, and the file {found}; check the storage, it "
            "may be full, or something else removes or changes files there"
        )
