"""The interface of local stores.

A store belongs to one subtask of one operator. It is a sorted map from bytes to bytes. All
changes of an epoch are committed together with a new version, or not at all.

Keys have at least one byte; keys and values have at most 2,147,483,647 bytes.

The version identifies the attempt and the epoch that wrote the store last. An epoch opens the
store with the version that it continues from; a store with another version is never used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path


class StateStore(Protocol):
    """Local store of one subtask, open for one epoch."""

    @property
    def version(self) -> str | None:
        """Version of the store when it was opened; None if it is new."""

    def get(self, key: bytes) -> bytes | None:
        """Value of `key`, uncommitted or committed; None if there is none."""

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Values of many keys, in order."""

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

    @property
    def is_changed(self) -> bool:
        """Whether there are uncommitted changes."""

    def leave(self) -> StoreStatistics:
        """Close a store without changes; it keeps its version."""

    def abort(self) -> None:
        """Drop all changes and close the store. Idempotent."""


@dataclass(frozen=True, slots=True)
class StoreStatistics:
    """Size of a store when it was closed."""

    entries: int
    """Number of entries, estimated if counting would take a scan."""
    bytes_on_disk: int
    """Disk usage in bytes."""
