"""Small file systems of their own for what a job writes, which the monkey fills up."""

from __future__ import annotations

import errno
import os
import subprocess
import tempfile
import threading
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MEGABYTES = 64
PIECES = (1 << 20, 1 << 16, 1 << 12)
"""Bytes by which a file that fills a disk grows, as long as there is room for so many."""
LOOK_EVERY = 0.02


@cache
def may_mount() -> bool:
    """Whether this user may make file systems."""
    if os.geteuid() != 0:
        return False
    with tempfile.TemporaryDirectory() as place:
        mounted = _run("mount", "-t", "tmpfs", "-o", "size=64k", "chaos", place)
        return mounted and _run("umount", place)


class SmallDisk:
    """A file system of a few megabytes; what the job uses is the directory `data` on it."""

    def __init__(self, place: Path, megabytes: int = MEGABYTES) -> None:
        place.mkdir(parents=True, exist_ok=True)
        if not _run("mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "chaos", str(place)):
            raise OSError(f"{place}: a file system of {megabytes} MB could not be mounted there")
        self._place = place
        self.data = place / "data"
        self.data.mkdir()

    @contextmanager
    def full(self) -> Iterator[None]:
        """Let no byte be free, however much is deleted meanwhile."""
        freed = threading.Event()
        filling = threading.Thread(target=self._fill, args=(freed,), daemon=True)
        filling.start()
        try:
            yield
        finally:
            freed.set()
            filling.join()

    def _fill(self, freed: threading.Event) -> None:
        filler = self._place / "filler"
        with filler.open("wb", buffering=0) as file:
            while not freed.wait(LOOK_EVERY):
                for piece in PIECES:
                    _grow(file.fileno(), piece)
        filler.unlink()

    def free(self) -> int:
        """Bytes that can be written."""
        figures = os.statvfs(self._place)
        return figures.f_bavail * figures.f_frsize

    def unmount(self) -> None:
        """Let go of it, even if somebody still has a file of it open."""
        _run("umount", "--lazy", str(self._place))


def _grow(descriptor: int, piece: int) -> None:
    """Take what is free, in pieces."""
    try:
        while True:
            os.posix_fallocate(descriptor, os.fstat(descriptor).st_size, piece)
    except OSError as refused:
        if refused.errno != errno.ENOSPC:
            raise


def _run(*command: str) -> bool:
    return subprocess.run(command, check=False, capture_output=True).returncode == 0
