"""Copies of a store as one commit left it, each in a directory of its own.

A snapshot's directory is flat and never changes once it is there:

    state-<n>.mdb                               of an LMDB store: one compacted file
    <n>.sst, MANIFEST-<n>, CURRENT, OPTIONS-<n> of a RocksDB store: its files, hard-linked

It is written under another name and renamed when it is whole; what a process leaves
that dies on the way, `<name>.partial-<random>`, is never read.

Files `<n>.sst` are shared: while a store lives in one directory, a name stands for the
same bytes in all of its snapshots. In another directory, as after a restore, the same
name may stand for others.
"""

from __future__ import annotations

import os
import re
import shutil
import uuid
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, Self

from holdfast._faults import fault_point
from holdfast.errors import HoldfastError, StateError
from holdfast.state.store.directories import make_private
from holdfast.state.store.header import decode_record

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType


CANONICAL: Final = "canonical"
"""Kind of a snapshot that is made of tables, whatever the backend."""


SNAPSHOT_FILE: Final = r"state-\d+\.mdb|\d+\.sst|(MANIFEST|OPTIONS)-\d+|CURRENT"
"""Names of the files of a snapshot, as a regular expression."""


# Readers of a RocksDB snapshot leave logs and locks of their own beside these.
_FILES: Final = re.compile(SNAPSHOT_FILE)


class ReadOnlySnapshot(Protocol):
    """An open snapshot; it can be read on any machine and after any restart of it."""

    @property
    def version(self) -> str:
        """Version that the store stood at when the snapshot was made."""

    @property
    def boot(self) -> str | None:
        """Boot of the machine that it was written in; None if that is not known."""

    def scan(
        self, prefix: bytes, start: bytes = b"", stop: bytes | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        """Entries whose key starts with `prefix`, in key order.

        Args:
            prefix: Beginning of the keys.
            start: Smallest key of interest.
            stop: Smallest key no longer of interest; None if there is no end.
        """

    def close(self) -> None:
        """Let go of the files. Idempotent."""

    def __enter__(self) -> Self:
        """Itself."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close."""


def snapshot_files(directory: Path) -> list[Path]:
    """Files that make up the snapshot, relative to its directory, in order of name.

    Raises:
        StateError: There is no snapshot in the directory.
    """
    try:
        names = sorted(filter(_FILES.fullmatch, os.listdir(directory)))
    except FileNotFoundError:
        names = []
    if not names:
        raise missing_snapshot(directory)
    return [Path(name) for name in names]


def snapshot_sizes(directory: Path) -> dict[str, int]:
    """Size of every file that makes up the snapshot, by name.

    Raises:
        StateError: There is no snapshot in the directory.
    """
    return {str(name): (directory / name).stat().st_size for name in snapshot_files(directory)}


def is_shareable(file: Path) -> bool:
    """Whether later snapshots of the same store may hold the same file by that name."""
    return file.suffix == ".sst"


def recorded_origin(record: bytes | None, directory: Path) -> tuple[str, str]:
    """Version and boot in the record of a snapshot, which any machine may read.

    Raises:
        StateError: The record is missing, not one of Holdfast's, or of a later format.
    """
    if record is None:
        raise missing_snapshot(directory)
    return decode_record(record, directory)


def missing_snapshot(directory: Path) -> StateError:
    """The error for a directory in which a snapshot was expected and none is."""
    return StateError(
        f"{directory}: there is no snapshot of this state backend here; it was never completed, "
        "was removed, or was made by another backend. Restore from another checkpoint, or with "
        "the backend that wrote it"
    )


@contextmanager
def built_aside(directory: Path) -> Iterator[Path]:
    """Path to build a directory at, which takes its place if the block ends well.

    Raises:
        StateError: The directory exists already.
    """
    if directory.exists():
        raise StateError(
            f"{directory}: was to be made, and exists already; give every attempt a directory "
            "of its own"
        )
    make_private(directory.parent)
    aside = directory.with_name(f"{directory.name}.partial-{uuid.uuid4().hex}")
    try:
        yield aside
        aside.chmod(0o700)
        aside.rename(directory)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise


@contextmanager
def new_snapshot(directory: Path, version: str) -> Iterator[Path]:
    """Path to make a snapshot at, of a store that was just committed.

    Raises:
        StateError: The snapshot could not be made.
    """
    epoch = version.partition("-")[0]
    fault_point("before-snapshot", epoch=int(epoch) if epoch.isdecimal() else None)
    try:
        with built_aside(directory) as aside:
            yield aside
    except Exception as error:
        reason = error if isinstance(error, HoldfastError) else f"{directory}: {error}"
        raise StateError(
            f"no snapshot could be made of the store at {version!r}, which is committed and "
            f"whole ({reason}); this checkpoint cannot complete. If the disk is full, free space "
            "there, or set `state.local-dir` to a larger one"
        ) from error
