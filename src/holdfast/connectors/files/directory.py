"""Opens the directory of a FileSink, and says how its failures are reported."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Any, Final

from holdfast.errors import ConfigurationError, SinkError
from holdfast.storage.file_system import open_directory
from holdfast.storage.files import FileErrors, refuse_password

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.storage.files import Directory

SINK_ERRORS: Final = FileErrors(
    SinkError,
    "the sink's directory",
    "check that the sink's storage can be reached",
    {
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
    },
)
"""Failures of the sink's storage."""


def open_sink_directory(url: str, storage_options: Mapping[str, Any]) -> Directory:
    """The sink's directory at a path or URL; does no I/O.

    Raises:
        ConfigurationError: There is no such file system, or it refuses the options.
    """
    try:
        return open_directory(url, SINK_ERRORS, **storage_options)
    except (ImportError, ValueError, TypeError) as error:
        raise ConfigurationError(
            f"{url}: the file system cannot be opened ({error}); install what it needs on the "
            "driver and every executor, or correct the path or `storage_options`"
        ) from error
    except Exception as error:
        raise SINK_ERRORS.of("opening the file system", url, error) from error


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
    refuse_password(
        given,
        "the path of a FileSink",
        "`storage_options`, in fsspec's configuration or in the environment",
    )
    return given
