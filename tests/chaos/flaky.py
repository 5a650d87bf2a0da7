"""A file system over local files that fails, lingers or is full while the weather is bad.

It is no local disk for Holdfast, but remote storage. What fails may have happened all the
same: a request was carried out, and the answer got lost. A write that fails leaves half of
it behind.
"""

from __future__ import annotations

import errno
import os
import time
import uuid
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fsspec.implementations.local import LocalFileOpener, LocalFileSystem

from tests.chaos.seams import CALM, DIRECTORY, PROTOCOL, Glance, Seams, chance

if TYPE_CHECKING:
    from collections.abc import Iterator

LOST_ANSWERS: Final = 0.5
"""Share of what fails that has happened all the same."""


class FlakyFileSystem(LocalFileSystem):  # type: ignore[misc]
    """Files of this machine, by URLs such as `flaky:///tmp/checkpoints`."""

    protocol = PROTOCOL

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        named = os.environ.get(DIRECTORY)
        self._weather = Glance(Seams(Path(named)).weather if named else lambda: CALM)
        self._chance = chance()

    def _open(self, path: str, mode: str = "rb", *given: Any, **options: Any) -> Any:
        if "r" in mode:
            with self._request(path):
                return super()._open(path, mode, *given, **options)
        weather = self._weather()
        self._linger()
        if weather.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        file = super()._open(path, mode, *given, **options)
        return HalfWritten(file, path) if self._chance.random() < weather.failing else file

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        """Write a whole file at once; nobody sees half of it."""
        path = self._strip_protocol(path)
        if self._weather().full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        aside = Path(path).with_name(f".{uuid.uuid4().hex}")
        with self._request(path):
            try:
                aside.write_bytes(value)
                if mode == "create":
                    os.link(aside, path)
                else:
                    aside.replace(path)
            finally:
                aside.unlink(missing_ok=True)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Make a directory, and those above it."""
        with self._request(path):
            super().makedirs(path, exist_ok)

    def info(self, path: Any, **options: Any) -> Any:
        """What is known of a file."""
        with self._request(path):
            return super().info(path, **options)

    def ls(self, path: str, detail: bool = False, **options: Any) -> Any:
        """What is in a directory."""
        with self._request(path):
            # Not through `info` of this class: a listing is one request.
            return LocalFileSystem().ls(self._strip_protocol(path), detail, **options)

    def rm_file(self, path: str) -> None:
        """Remove a file."""
        with self._request(path):
            super().rm_file(path)

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        """Remove files, or a whole directory."""
        with self._request(str(path)):
            super().rm(path, recursive, maxdepth)

    def rmdir(self, path: str) -> None:
        """Remove an empty directory."""
        with self._request(path):
            super().rmdir(path)

    @contextmanager
    def _request(self, path: Any) -> Iterator[None]:
        """Let something happen, or not, or let its answer get lost."""
        fails = self._chance.random() < self._weather().failing
        lost = fails and self._chance.random() < LOST_ANSWERS
        self._linger()
        if fails and not lost:
            raise self._failure(path)
        yield
        if lost:
            raise self._failure(path)

    def _linger(self) -> None:
        weather = self._weather()
        if self._chance.random() < weather.slow:
            time.sleep(self._chance.uniform(0.0, weather.delay))

    def _failure(self, path: Any) -> OSError:
        number = self._chance.choice([errno.EIO, errno.ETIMEDOUT])
        return OSError(number, os.strerror(number), str(path))


class HalfWritten:
    """A file that takes half of what is written first, and then fails."""

    def __init__(self, file: LocalFileOpener, path: str) -> None:
        self._file = file
        self._path = path

    def __enter__(self) -> HalfWritten:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def write(self, data: bytes) -> int:
        """Fail."""
        self._file.write(data[: len(data) // 2])
        raise OSError(errno.EIO, os.strerror(errno.EIO), self._path)

    def close(self) -> None:
        """Keep what was written."""
        self._file.close()
