"""Map state: every entry of every key's map is an entry of the store.

A value is stored as 0x00 if it is None, else as 0x01 and its bytes; likewise a map key. A
lookup reads one entry; iterating reads all entries of the current key once.

If equal map keys may have different bytes, the first use of a key reads all its entries, and
equal map keys keep the bytes of the first. All NaNs are one map key.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from typing_extensions import override

from holdfast.api.names import public_name
from holdfast.api.state import MapState
from holdfast.errors import StateValueError
from holdfast.state.map_keys import MapKeys, unhashable
from holdfast.state.table import NO_KEY, NONE, SOME, StateTable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from holdfast.serde.codec import Codec

_ABSENT: Final = object()


class _Entry:
    """Cache entry of one key's map."""

    __slots__ = ("complete", "dirty", "emptied", "prefix", "stored_keys", "values")

    def __init__(self, prefix: bytes) -> None:
        self.prefix = prefix
        """Prefix of the store keys of its entries."""
        self.values: dict[Any, Any] = {}
        """Cached entries; `_ABSENT` for those known not to exist."""
        self.dirty: set[Any] = set()
        """Map keys written since the last drain."""
        self.complete = False
        """Whether `values` has every entry of the store."""
        self.emptied = False
        """Whether to delete the store's entries first."""
        self.stored_keys: dict[Any, bytes] = {}
        """Stored bytes of map keys, if equal keys may have different bytes."""

    def copy(self) -> _Entry:
        other = _Entry(self.prefix)
        other.values, other.dirty = dict(self.values), set(self.dirty)
        other.complete, other.emptied = self.complete, self.emptied
        other.stored_keys = dict(self.stored_keys)
        return other


@public_name("MapState")
class MapTable(StateTable, MapState[Any, Any]):
    """A map per key."""

    __slots__ = ("_at_most", "_canonical", "_dirty", "_freeze", "_key_codec", "_keys", "_thaw")
    _cache: dict[Any, _Entry]

    def __init__(self, *args: Any, key_codec: Codec) -> None:
        """See `StateTable`; `key_codec` is the codec of map keys."""
        super().__init__(*args)
        self._key_codec = key_codec
        self._keys = MapKeys(key_codec)
        self._canonical = key_codec.canonical
        self._dirty: set[Any] = set()
        self._at_most = 0
        """Entries in the cache at most: counting them takes a look at every key."""
        immutable = self._codec.immutable
        self._freeze = None if immutable else self._codec.encode
        self._thaw = None if immutable else self._codec.decode

    def get(self, key: Any) -> Any:
        """Value under `key`, or None."""
        value = self._find(self._entry(), key)
        if value is _ABSENT or value is None:
            return None
        return value if self._thaw is None else self._thaw(value)

    def contains(self, key: Any) -> bool:
        """Whether `key` has an entry."""
        return self._find(self._entry(), key) is not _ABSENT

    def put(self, key: Any, value: Any) -> None:
        """Set the value under `key`."""
        self._write(self._entry(), key, self._frozen(value))

    def put_all(self, entries: Mapping[Any, Any]) -> None:
        """Set all of `entries`, or none if one is invalid."""
        if entries is None:
            raise StateValueError(f"map state {self.name!r} takes a mapping, not None")
        entry = self._entry()
        frozen = [(self._own_key(entry, k), self._frozen(v)) for k, v in entries.items()]
        for key, value in frozen:
            self._write(entry, key, value)

    def remove(self, key: Any) -> None:
        """Remove the entry under `key`."""
        entry = self._entry()
        if entry.complete and self._find(entry, key) is _ABSENT:
            return
        self._write(entry, key, _ABSENT)

    def items(self) -> Iterator[tuple[Any, Any]]:
        """Current entries, as a snapshot."""
        entry = self._complete()
        thaw = self._thaw
        return iter(
            [
                (key, value if thaw is None or value is None else thaw(value))
                for key, value in entry.values.items()
                if value is not _ABSENT
            ]
        )

    def is_empty(self) -> bool:
        """Whether there is no entry."""
        return all(value is _ABSENT for value in self._complete().values.values())

    def clear(self) -> None:
        """Remove the current key's map."""
        entry = self._entry()
        entry.values.clear()
        entry.stored_keys.clear()
        entry.dirty.clear()
        entry.complete = entry.emptied = True
        self._dirty.add(self._current.key)

    @override
    def drain(self) -> Iterable[tuple[bytes, bytes | None]]:
        writes: list[tuple[bytes, bytes | None]] = []
        for key in self._dirty:
            entry = self._cache[key]
            prefix = entry.prefix
            if entry.emptied:
                writes.extend((stored, None) for stored, _ in self._store.scan(prefix))
            values = entry.values
            try:
                writes.extend(
                    (prefix + self._key_bytes(entry, k), self._stored(values[k]))
                    for k in entry.dirty
                )
            except StateValueError as error:
                raise self._unfit(key, error) from error
            # Entries that are removed would fill the cache, and every iteration would walk them.
            for removed in [k for k in entry.dirty if values[k] is _ABSENT]:
                del values[removed]
            if not values:
                del self._cache[key]
            entry.dirty.clear()
            entry.emptied = False
        self._dirty.clear()
        return writes

    @override
    def cached(self) -> int:
        self._at_most = sum(1 + len(entry.values) for entry in self._cache.values())
        return self._at_most

    @override
    def cached_at_most(self) -> int:
        return self._at_most

    @override
    def evict(self) -> None:
        super().evict()
        self._at_most = 0

    @override
    def save_point(self, key: Any) -> object:
        entry = self._cache.get(key)
        return None if entry is None else entry.copy(), key in self._dirty

    @override
    def roll_back(self, key: Any, saved: Any) -> None:
        entry, dirty = saved
        if entry is None:
            self._cache.pop(key, None)
        else:
            self._cache[key] = entry
        if not dirty:
            self._dirty.discard(key)

    def _entry(self) -> _Entry:
        key = self._current.key
        entry = self._cache.get(key)
        if entry is None:
            if key is NO_KEY:
                raise self._no_key()
            entry = self._cache[key] = _Entry(self._entry_prefix(key))
            self._at_most += 1
            if not self._canonical:
                # Only reading all entries shows which one a key equals.
                self._complete()
        return entry

    def _find(self, entry: _Entry, key: Any) -> Any:
        try:
            return entry.values[key]
        except KeyError:
            pass
        except TypeError as error:
            raise self._unhashable(key, error) from None
        if entry.complete:
            if self._canonical:
                return _ABSENT
            return entry.values.get(self._keys.unified(key), _ABSENT)
        own = self._key_bytes(entry, key)
        stored = self._store.get(entry.prefix + own)
        value = entry.values[key] = _ABSENT if stored is None else self._loaded(stored)
        self._at_most += 1
        return value

    def _write(self, entry: _Entry, key: Any, value: Any) -> None:
        key = self._own_key(entry, key)
        entry.values[key] = value
        self._at_most += 1
        entry.dirty.add(key)
        self._dirty.add(self._current.key)

    def _complete(self) -> _Entry:
        entry = self._entry()
        if not entry.complete:
            self._read_all(entry)
            entry.complete = True
        return entry

    def _read_all(self, entry: _Entry) -> None:
        prefix, known, stored_keys = entry.prefix, entry.values, entry.stored_keys
        repeated: list[tuple[bytes, None]] = []
        for stored_key, stored in self._store.scan(prefix):
            own = stored_key[len(prefix) :]
            key = None if own == NONE else self._keys.decode(own[1:])
            if not self._canonical and stored_keys.setdefault(key, own) != own:
                # Two keys that differed when they were written are equal now.
                repeated.append((stored_key, None))
            elif key not in known:
                known[key] = self._loaded(stored)
                self._at_most += 1
        if repeated:
            self._store.write(repeated)

    def _loaded(self, stored: bytes) -> Any:
        if stored == NONE:
            return None
        return stored[1:] if self._thaw else self._codec.decode(stored[1:])

    def _stored(self, value: Any) -> bytes | None:
        if value is _ABSENT:
            return None
        if value is None:
            return NONE
        return SOME + (value if self._freeze else self._codec.encode(value))

    def _frozen(self, value: Any) -> Any:
        if value is None:
            return None
        codec = self._codec
        if type(value) is not codec.exact_type:
            codec.check(value)
        return value if self._freeze is None else self._freeze(value)

    def _own_key(self, entry: _Entry, key: Any) -> Any:
        """The cached form of a key to be written."""
        if key is None:
            return None
        codec = self._key_codec
        if type(key) is not codec.exact_type:
            codec.check(key)
        try:
            hash(key)
        except TypeError as error:
            raise self._unhashable(key, error) from None
        if self._canonical or key in entry.stored_keys:
            return key
        key = self._keys.unified(key)
        try:
            self._key_bytes(entry, key)
        except StateValueError as error:
            raise StateValueError(f"map state {self.name!r}: {error}") from error
        return key

    def _key_bytes(self, entry: _Entry, key: Any) -> bytes:
        if key is None:
            return NONE
        if self._canonical:
            return SOME + self._keys.encode(key)
        known = entry.stored_keys.get(key)
        if known is None:
            known = entry.stored_keys[key] = SOME + self._keys.encode(key)
        return known

    def _unhashable(self, key: Any, error: TypeError) -> StateValueError:
        return StateValueError(f"map state {self.name!r}: {unhashable(key, error)}")
