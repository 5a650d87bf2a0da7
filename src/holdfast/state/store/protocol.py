"""The interface of local stores.

A store belongs to one subtask of one operator. It is a sorted map from bytes to bytes. All
changes of an epoch are committed together with a new version, or not at all.

Keys have at least one byte; keys and values have at most 2,147,483,647 bytes.

The version identifies the attempt and the epoch that wrote the store last. An epoch opens the
store with the version that it continues from; a store with another version is never used. The
same object may be opened again for a later epoch, so that whoever holds it can keep it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.errors import StateError
from holdfast.state.store.lock import PATIENCE, entered_directory
from holdfast.state.store.write_buffer import WriteBuffer

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from holdfast.state.store.lock import StoreLock


class StateStore(ABC):
    """Local store of one subtask, open for one epoch at a time."""

    version: str | None
    """Version of the store when it was opened; None if it is new."""

    def __init__(self, directory: Path, expected: str | None, lock: StoreLock) -> None:
        """Open the store in a locked directory, without uncommitted changes.

        Args:
            directory: Directory of the store.
            expected: Version that the store must have; None to create a new store.
            lock: Lock on the store, released when it is closed.
        """
        self._directory = directory
        self._buffer = WriteBuffer()
        self._closed = True
        self._open(expected, lock)

    def reopen(self, expected: str, patience: float = PATIENCE) -> None:
        """Open a closed store again, as `open_store` does."""
        assert self._closed, "the store is open"
        with entered_directory(self._directory, expected, lambda name: True, patience) as lock:
            self._open(expected, lock)

    def _open(self, expected: str | None, lock: StoreLock) -> None:
        self.place = self._directory
        """File or directory of the store, for messages."""
        self._open_files(expected)
        self._lock = lock
        self._closed = False

    @abstractmethod
    def _open_files(self, expected: str | None) -> None:
        """Open the files, check the version and set `version`; leaves none open if it fails."""

    def get(self, key: bytes) -> bytes | None:
        """Value of `key`, uncommitted or committed; None if there is none."""
        self._require_open()
        staged = self._buffer.entries
        return staged[key] if key in staged else self._committed(key)

    @abstractmethod
    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Values of many keys, in order."""

    @abstractmethod
    def scan(self, prefix: bytes, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Entries whose key starts with `prefix`, in key order, including uncommitted ones.

        Do not write to the store while iterating.

        Args:
            prefix: Prefix of the keys.
            start: Smallest key to return. The scan seeks it, so entries and tombstones before
                it cost nothing.
        """

    def write(self, items: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Write entries without committing them; None deletes. Later items replace earlier ones.

        Raises:
            StateValueError: A key is empty, or a key or value is too large; the call then
                writes nothing.
        """
        self._require_open()
        self._buffer.put(items)

    @abstractmethod
    def reclaim(self, prefix: bytes) -> None:
        """Free disk space at the commit, since most entries under `prefix` are deleted."""

    def commit(self, version: str, snapshot: Path | None = None) -> StoreStatistics:
        """Commit all changes and `version` atomically, then close the store.

        If the process dies at any moment, the store has the old version or the new one. The
        store is closed even if the commit fails.

        Args:
            version: New version of the store.
            snapshot: Directory to create with a copy of the committed store; see
                `state/store/snapshot.py`.

        Raises:
            StoreFullError: The disk is full; the store keeps its old version.
            StateError: The store has the new version, but the snapshot failed.
        """
        self._require_open()
        try:
            return self._commit(version, snapshot)
        finally:
            self.abort()

    @property
    def is_changed(self) -> bool:
        """Whether there are uncommitted changes."""
        return bool(self._buffer.entries)

    def leave(self) -> StoreStatistics:
        """Close a store without changes; it keeps its version."""
        self._require_open()
        try:
            return self._statistics()
        finally:
            self.abort()

    def abort(self) -> None:
        """Drop all changes and close the store. Idempotent."""
        if not self._closed:
            self._closed = True
            self._buffer.clear()
            try:
                self._close()
            finally:
                self._lock.release()

    def _require_open(self) -> None:
        if self._closed:
            raise StateError(f"{self.place}: the store was used after its commit or abort")

    @abstractmethod
    def _committed(self, key: bytes) -> bytes | None:
        """Committed value of `key`; None if there is none."""

    @abstractmethod
    def _commit(self, version: str, snapshot: Path | None) -> StoreStatistics:
        """See `commit`, which closes the store."""

    @abstractmethod
    def _statistics(self) -> StoreStatistics:
        """Size of the store, without uncommitted changes."""

    @abstractmethod
    def _close(self) -> None:
        """Close the files; called once."""


@dataclass(frozen=True, slots=True)
class StoreStatistics:
    """Size of a store when it was closed."""

    entries: int
    """Number of entries, estimated if counting would take a scan."""
    bytes_on_disk: int
    """Disk usage in bytes."""
