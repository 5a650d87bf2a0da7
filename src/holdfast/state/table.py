"""Base of all states: the current key, the write-back cache and the layout of store keys.

Layout of a store key:

    state id (2 bytes, big-endian) | key group | length | key | namespace | user key

`KeyEncoder` writes key group, length and key. The namespace is a varint length and that many
bytes; user state is in the void namespace, one zero byte. The user key is a map key or the
number of a list's chunk; other states have none. State id 0 holds the operator's metadata, see
`state/backend.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Final

from holdfast.errors import StateAccessError, StateValueError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.serde.codec import Codec
    from holdfast.serde.keys import KeyEncoder
    from holdfast.state.store.protocol import StateStore


class NoKey:
    """Type of `NO_KEY`, which stands for a missing key."""

    def __repr__(self) -> str:
        """`<no key>`."""
        return "<no key>"


NO_KEY: Final = NoKey()

NONE: Final = b"\x00"
"""Stored bytes of None, where None is a value."""
SOME: Final = b"\x01"
"""Mark before the bytes of any other value."""


class CurrentKey:
    """The key that state belongs to, and the batch of keys around it."""

    __slots__ = ("_distinct", "batch", "key")

    def __init__(self) -> None:
        """No key is set."""
        self.key: Any = NO_KEY
        self.batch: list[Any] = []
        self._distinct: dict[Any, None] | None = None

    def start_batch(self, keys: list[Any]) -> None:
        """Announce the next keys, so that states can read them at once."""
        self.batch = keys
        self._distinct = None

    def distinct(self) -> dict[Any, None]:
        """The announced keys, each once, in order of appearance."""
        if self._distinct is None:
            self._distinct = dict.fromkeys(self.batch)
        return self._distinct

    def end_batch(self) -> None:
        """Unset the key and the batch."""
        self.key = NO_KEY
        self.start_batch([])


class StateTable(ABC):
    """One state of one operator: a write-back cache over the store.

    Reads load missing entries; writes stay in memory until `drain`. The cache keeps immutable
    values as objects and others as bytes, so that no two readers share a mutable object.
    """

    __slots__ = (
        "_cache",
        "_codec",
        "_current",
        "_encoder",
        "_prefix",
        "_store",
        "name",
        "state_id",
    )

    def __init__(
        self,
        name: str,
        state_id: int,
        codec: Codec,
        store: StateStore,
        encoder: KeyEncoder,
        current: CurrentKey,
    ) -> None:
        """Table of the entries of `state_id`."""
        self.name = name
        """Name of the state."""
        self.state_id = state_id
        """Its number in the store."""
        self._prefix = state_id.to_bytes(2, "big")
        self._codec = codec
        self._store = store
        self._encoder = encoder
        self._current = current
        self._cache: dict[Any, Any] = {}
        """Cached entries, by key."""

    @abstractmethod
    def drain(self) -> Iterable[tuple[bytes, bytes | None]]:
        """Writes since the last drain, as store entries."""

    def evict(self) -> None:
        """Empty the cache. Call it only after a drain."""
        self._cache.clear()

    def reload(self) -> None:
        """Drop everything read from the store, since another process has written to it."""
        self.evict()

    def cached(self) -> int:
        """Number of entries in the cache."""
        return len(self._cache)

    def cached_at_most(self) -> int:
        """Upper bound of `cached`, which takes no time."""
        return self.cached()

    @abstractmethod
    def save_point(self, key: Any) -> object:
        """Cached state of `key`, for `roll_back`."""

    @abstractmethod
    def roll_back(self, key: Any, saved: object) -> None:
        """Undo all writes to `key` since `save_point`."""

    def _entry_prefix(self, key: Any) -> bytes:
        return self._encoder.encode(self._prefix, key)

    def _unfit(self, key: Any, error: StateValueError) -> StateValueError:
        """The error for a cached value of `key` that cannot be stored."""
        return StateValueError(f"state {self.name!r}, key {key!r}: {error}")

    def _no_key(self) -> StateAccessError:
        return StateAccessError(
            f"state {self.name!r} was used with no key set, outside of a keyed context: "
            "open() and close() have no current key; use the handle while processing an element"
        )
