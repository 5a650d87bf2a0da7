"""Snapshots: copies of a store at one commit, each in its own directory.

The directory of a snapshot is flat and immutable:

    state-<n>.mdb                               of an LMDB store: one compacted file
    <n>.sst, MANIFEST-<n>, CURRENT, OPTIONS-<n> of a RocksDB store: its files, hard-linked

It is written as `<name>.partial-<random>` and renamed when it is complete.

Files `<n>.sst` can be shared: as long as a store stays in one directory, a file name means
the same bytes in all its snapshots. In another directory, such as after a restore, the same
name may mean other bytes.
"""

from __future__ import annotations

import os
import re
import shutil
import uuid
from abc import ABC, abstractmethod
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from holdfast._faults import fault_point
from holdfast.errors import HoldfastError, StateError
from holdfast.state.store.directories import make_private
from holdfast.state.store.header import decode_record

if TYPE_CHECKING:
    from collections.abc import Iterator


CANONICAL: Final = "canonical"
"""Kind of a snapshot in tables, for any backend."""


SNAPSHOT_FILE: Final = r"state-\d+\.mdb|\d+\.sst|(MANIFEST|OPTIONS)-\d+|CURRENT"
"""Names of the files of a snapshot, as a regular expression."""


# Readers of a RocksDB snapshot create logs and locks beside these.
_FILES: Final = re.compile(SNAPSHOT_FILE)


class Closing(ABC):
    """Base of objects that a `with` statement closes."""

    @abstractmethod
    def close(self) -> None:
        """Close the files. Idempotent."""

    def __enter__(self) -> Self:
        """Return the object itself."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close."""
        self.close()


class ReadOnlySnapshot(Closing):
    """An open snapshot, which any machine can read."""

    version: str
    """Version of the store when the snapshot was taken."""
    boot: str | None = None
    """Boot id of the machine that wrote it; None if unknown."""

    @abstractmethod
    def scan(
        self, prefix: bytes, start: bytes = b"", stop: bytes | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        """Entries whose key starts with `prefix`, in key order.

        Args:
            prefix: Prefix of the keys.
            start: Smallest key to return.
            stop: Smallest key not to return; None for no limit.
        """


def snapshot_files(directory: Path) -> list[Path]:
    """Files of the snapshot, relative to its directory, sorted by name.

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
    """Sizes of the snapshot's files, by name.

    Raises:
        StateError: There is no snapshot in the directory.
    """
    return {str(name): (directory / name).stat().st_size for name in snapshot_files(directory)}


def is_shareable(file: Path) -> bool:
    """Whether later snapshots of the store may have the same file under the same name."""
    return file.suffix == ".sst"


def recorded_origin(record: bytes | None, directory: Path) -> tuple[str, str]:
    """Version and boot id in the record of a snapshot.

    Raises:
        StateError: The record is missing, is not a Holdfast record, or has a later format.
    """
    if record is None:
        raise missing_snapshot(directory)
    return decode_record(record, directory)


def missing_snapshot(directory: Path) -> StateError:
    """The error for a missing snapshot."""
    return StateError(
        f"{directory}: there is no snapshot of this state backend here; it was never completed, "
        "was removed, or was made by another backend. Restore from another checkpoint, or with "
        "the backend that wrote it"
    )


@contextmanager
def built_aside(directory: Path) -> Iterator[Path]:
    """Temporary path for a directory, renamed to `directory` if the block succeeds.

    Raises:
        StateError: The directory exists already.
    """
    if directory.exists():
        raise StateError(f"{directory}: the directory exists already; give every attempt a new one")
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
    """Temporary path for a snapshot of a store that was just committed.

    Raises:
        StateError: The snapshot failed.
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
