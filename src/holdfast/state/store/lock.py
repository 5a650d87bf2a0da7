"""Lock on a store's directory: one writer per store.

The kernel releases the lock when its process ends. Such a lock belongs to the whole process
and does not stop a second attempt in the same process, so a table in this process also
records the locks.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING, Final

from holdfast.errors import StoreError, StoreVersionError
from holdfast.state.store.directories import make_private
from holdfast.state.store.header import missing_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

LOCK_FILE: Final = "holdfast.lock"
"""Name of the lock file inside a store's directory."""

PATIENCE: Final = 3.0
"""Default number of seconds to wait for a cancelled attempt to end."""

_PAUSE: Final = 0.01

_guard = Lock()
_held: set[tuple[int, int]] = set()
# A forked child does not inherit its parent's locks.
os.register_at_fork(after_in_child=_held.clear)


class StoreLock:
    """A lock on one store."""

    __slots__ = ("_descriptor", "_identity")

    def __init__(self, descriptor: int, identity: tuple[int, int]) -> None:
        """Wrap a lock that is held; call `acquire` instead."""
        self._descriptor: int | None = descriptor
        self._identity = identity

    @classmethod
    def acquire(cls, directory: Path, patience: float = PATIENCE) -> StoreLock:
        """Lock the store in `directory`; wait at most `patience` seconds.

        Raises:
            StoreError: Another attempt still uses the store.
        """
        path = directory / LOCK_FILE
        lock = cls._try(path)
        for _ in range(int(patience / _PAUSE)):
            if lock is not None:
                break
            time.sleep(_PAUSE)
            lock = cls._try(path)
        if lock is None:
            raise StoreError(
                f"{directory}: another attempt of this subtask still uses the store after "
                f"{patience:g} s; only one may. Let the cancelled attempt end, or end its "
                "worker process, and try again"
            )
        return lock

    @classmethod
    def _try(cls, path: Path) -> StoreLock | None:
        with _guard:
            # Checked before the file is opened: closing a second descriptor of it would
            # release the lock that this process already holds.
            if _identity(path) in _held:
                return None
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                os.close(descriptor)
                if error.errno in (errno.EACCES, errno.EAGAIN):
                    return None
                raise
            found = os.fstat(descriptor)
            lock = cls(descriptor, (found.st_dev, found.st_ino))
            _held.add(lock._identity)
            return lock

    def release(self) -> None:
        """Release the lock. Idempotent."""
        with _guard:
            if self._descriptor is not None:
                os.close(self._descriptor)
                self._descriptor = None
                _held.discard(self._identity)


@contextmanager
def entered_directory(
    directory: Path, expected: str | None, is_own: Callable[[str], bool], patience: float
) -> Iterator[StoreLock]:
    """Lock the directory of a store; creates it for a new store.

    The lock stays if the block succeeds.

    Args:
        directory: Directory of the store.
        expected: Version that the store must have; None to create a new store.
        is_own: Whether a store of the caller's kind has files with such a name.
        patience: Seconds to wait for another attempt to release the store.

    Raises:
        StoreVersionError: The directory is missing, or a new store cannot be created
            because the directory has other files.
        StoreError: Another attempt still uses the store.
    """
    if expected is None:
        make_private(directory)
    elif not directory.is_dir():
        raise missing_store(expected, directory)
    lock = StoreLock.acquire(directory, patience)
    try:
        if expected is None:
            _require_only(is_own, directory)
        yield lock
    except BaseException:
        lock.release()
        raise


def _require_only(is_own: Callable[[str], bool], directory: Path) -> None:
    strange = sorted(n for n in os.listdir(directory) if n != LOCK_FILE and not is_own(n))
    if strange:
        raise StoreVersionError(
            f"{directory}: expected no store here, but the directory already holds "
            f"{strange[0]!r}, which this state backend did not write; start in a new directory"
        )


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return (found.st_dev, found.st_ino)
