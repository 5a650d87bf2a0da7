"""The seam between typed state and the bytes it is kept in.

A store belongs to one subtask of one operator. It is a sorted map from bytes to
bytes that changes once per epoch: everything staged between `open` and `commit`
becomes visible together with the new version, or not at all.

Keys have at least one byte; keys and values have at most 2,147,483,647 of them.

The version says which attempt of which epoch wrote the store last. An epoch names
the version it continues from; a store found at another one is reported, never used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path


class StateStore(Protocol):
    """One subtask's open local store, between two of its versions."""

    @property
    def version(self) -> str | None:
        """Version the store stood at when it was opened; None if it is new."""

    def get(self, key: bytes) -> bytes | None:
        """Value staged or committed under `key`, or None."""

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Values of `keys`, in their order; the batched form of `get`."""

    def scan(self, prefix: bytes, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Entries whose key starts with `prefix`, in key order, staged ones included.

        The store must not be written to while the iterator is in use.

        Args:
            prefix: Beginning of the keys.
            start: Smallest key of interest. It is sought, so that what lies before it costs
                nothing, be it entries or traces of deleted ones.
        """

    def write(self, items: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Stage entries; a value of None deletes. Later items win over earlier ones.

        Raises:
            StateValueError: A key is empty, or a key or value is too large; nothing of
                this call is staged.
        """

    def reclaim(self, prefix: bytes) -> None:
        """Let the commit give room on the disk back: most entries under `prefix` are gone."""

    def commit(self, version: str, snapshot: Path | None = None) -> StoreStatistics:
        """Make everything staged, and `version`, durable in one atomic step; then close.

        Durable means that the death of the process, at any moment, leaves the store at
        one version or the other. The store is closed even if the commit fails.

        Args:
            version: Version that the store stands at afterwards.
            snapshot: Directory to be made, with a copy of exactly what was committed; see
                `state/store/snapshot.py`.

        Raises:
            StoreFullError: There is no room; the store stays at its old version.
            StateError: The store stands at `version`, but its snapshot could not be made.
        """

    @property
    def is_changed(self) -> bool:
        """Whether anything is staged."""

    def leave(self) -> StoreStatistics:
        """Close a store of which nothing is staged; it stays at its version."""

    def abort(self) -> None:
        """Drop everything staged and close; the store stays as it was. Idempotent."""


@dataclass(frozen=True, slots=True)
class StoreStatistics:
    """What a store holds, once it is closed."""

    entries: int
    """Entries in the store, or an estimate of them where counting would be a scan."""
    bytes_on_disk: int
    """Bytes that the store takes on its disk."""
