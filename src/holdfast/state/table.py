"""What the states of one operator share: the current key, and how entries are keyed.

Layout of a store key:

    state id (2 bytes, big-endian) | key group | length | key | namespace | user key

Key group, length and key come from `KeyEncoder`. The namespace is a varint length
and that many bytes; user code lives in the void namespace, one zero byte. The user
key is a map's own key, or the number of a list's chunk; nothing for other states.
State id 0 holds the operator's metadata, see `state/backend.py`.
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
    """Stands for the key where there is none."""

    def __repr__(self) -> str:
        """`<no key>`."""
        return "<no key>"


NO_KEY: Final = NoKey()


class CurrentKey:
    """The key in whose name state is used, and the batch of keys it came with."""

    __slots__ = ("_distinct", "batch", "key")

    def __init__(self) -> None:
        """No key is set."""
        self.key: Any = NO_KEY
        self.batch: list[Any] = []
        self._distinct: dict[Any, None] | None = None

    def start_batch(self, keys: list[Any]) -> None:
        """Announce the keys that come next, so that states can read them in one go."""
        self.batch = keys
        self._distinct = None

    def distinct(self) -> dict[Any, None]:
        """The announced keys, each once, in order of appearance."""
        if self._distinct is None:
            self._distinct = dict.fromkeys(self.batch)
        return self._distinct

    def end_batch(self) -> None:
        """No key is set any more."""
        self.key = NO_KEY
        self.start_batch([])


class StateTable(ABC):
    """One state of one operator: a write-back cache over the store.

    Reads load what is missing, writes stay in memory until `drain` hands them to the
    store. A codec of immutable values lets the cache hold the values themselves; of
    others it holds their bytes, so that no two readers ever share an object.
    """

    __slots__ = ("_codec", "_current", "_encoder", "_name", "_prefix", "_store")

    def __init__(
        self,
        name: str,
        state_id: int,
        codec: Codec,
        store: StateStore,
        encoder: KeyEncoder,
        current: CurrentKey,
    ) -> None:
        """A table over the entries of `state_id`."""
        self._name = name
        self._prefix = state_id.to_bytes(2, "big")
        self._codec = codec
        self._store = store
        self._encoder = encoder
        self._current = current

    @property
    def name(self) -> str:
        """Name of the state."""
        return self._name

    @abstractmethod
    def drain(self) -> Iterable[tuple[bytes, bytes | None]]:
        """What was written since the last drain, as entries for the store."""

    @abstractmethod
    def evict(self) -> None:
        """Empty the cache; only after a drain."""

    @abstractmethod
    def cached(self) -> int:
        """Entries in the cache."""

    @abstractmethod
    def save_point(self, key: Any) -> object:
        """What the cache holds for `key`, in a form that `roll_back` takes."""

    @abstractmethod
    def roll_back(self, key: Any, saved: object) -> None:
        """Undo all writes to `key` since `save_point`."""

    def _entry_prefix(self, key: Any) -> bytes:
        return self._encoder.encode(self._prefix, key)

    def _unfit(self, key: Any, error: StateValueError) -> StateValueError:
        """The error for what was kept for `key` and, as it shows now, cannot be stored."""
        return StateValueError(f"state {self._name!r}, key {key!r}: {error}")

    def _no_key(self) -> StateAccessError:
        return StateAccessError(
            f"state {self._name!r} was used with no key set, outside of a keyed context: "
            "open() and close() have no current key; use the handle while processing an element"
        )
