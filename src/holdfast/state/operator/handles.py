"""Handles to operator state: lists, union lists and broadcast maps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.api.names import public_name
from holdfast.api.state import ListState, MapState
from holdfast.errors import StateValueError
from holdfast.serde.reading import reading_of
from holdfast.state.map_keys import MapKeys, unhashable
from holdfast.state.operator.layout import content_prefix, number_bytes
from holdfast.state.schemas import migration_error
from holdfast.state.table import NONE, SOME

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from holdfast.serde.codec import Codec
    from holdfast.state.operator.redistribution import Mode, NamedState


def converted(state: NamedState, codecs: list[Codec], schema: list[Any]) -> NamedState:
    """Convert a stored state to the declared type.

    Args:
        state: The stored state.
        codecs: Codec of its elements, or of a map's values and keys.
        schema: Their schemas.

    Raises:
        StateMigrationError: It cannot be read as the declared type.
    """
    changes = _changes(state, codecs)
    try:
        elements = list(map(changes[0], state.elements))
        entries = [
            (_some(changes[-1], key), _some(changes[0], value)) for key, value in state.entries
        ]
    except StateValueError as error:
        raise migration_error(f"operator state {state.name!r}", [str(error)]) from error
    if entries and changes[1] is not _same:
        decode = MapKeys(codecs[1]).decode
        keys = [None if key == NONE else decode(key[1:]) for key, _ in entries]
        if len(set(keys)) < len(keys):
            problem = "keys, two of them are equal once they are read as the declared type"
            raise migration_error(f"operator state {state.name!r}", [problem])
    return msgspec.structs.replace(state, schema=schema, elements=elements, entries=entries)


def _changes(state: NamedState, codecs: list[Codec]) -> list[Callable[[bytes], bytes]]:
    """Conversions of stored bytes to bytes of the declared type, per type."""
    readings = list(map(reading_of, state.schema, codecs))
    problems = [
        name + problem
        for name, reading in zip(("", "keys, "), readings, strict=False)
        for problem in reading.resolution.problems
    ]
    if problems:
        raise migration_error(f"operator state {state.name!r}", problems)
    return [
        _same if reading.resolution.verdict == "as is" else _change(reading.decode, codec)
        for reading, codec in zip(readings, codecs, strict=True)
    ]


def _same(data: bytes) -> bytes:
    return data


def _change(read: Any, codec: Codec) -> Callable[[bytes], bytes]:
    return lambda data: codec.encode(read(data))


def _some(change: Callable[[bytes], bytes], data: bytes) -> bytes:
    return NONE if data == NONE else SOME + change(data[1:])


@public_name("ListState")
class ElementList(ListState[Any]):
    """A split or union list; elements are kept as bytes, so that no object is shared."""

    __slots__ = ("_codec", "_elements", "_kept", "_state", "_stored")

    def __init__(self, state: NamedState, codec: Codec, stored: NamedState) -> None:
        """A list; `stored` is its state in the store, possibly of an older type."""
        self._state = state
        self._codec = codec
        self._elements = list(state.elements)
        self._stored = len(stored.elements)
        """Elements in the store."""
        self._kept = len(state.elements) if stored is state else 0
        """Number of leading elements that the store already has."""

    def reload(self, stored: NamedState | None) -> None:
        """Take over what the store has now; None if it has no such state."""
        self._elements = [] if stored is None else list(stored.elements)
        self._stored = self._kept = len(self._elements)

    @property
    def name(self) -> str:
        """Name of the list."""
        return self._state.name

    @property
    def mode(self) -> Mode:
        """Redistribution mode of the list."""
        return self._state.mode

    def get(self) -> list[Any]:
        """Elements, in a new list."""
        return list(map(self._codec.decode, self._elements))

    def add(self, value: Any) -> None:
        """Append one element, which must not be None."""
        self._elements.append(self._encoded(value))

    def add_all(self, values: Iterable[Any]) -> None:
        """Append all of `values`, or none if one is invalid."""
        self._elements += self._all_encoded(values)

    def update(self, values: Iterable[Any]) -> None:
        """Replace the list; if a value is invalid, the list does not change."""
        fresh = self._all_encoded(values)
        kept = 0
        # A function that sets its whole list in every epoch writes only the difference.
        for old, new in zip(self._elements[: self._kept], fresh, strict=False):
            if old != new:
                break
            kept += 1
        self._elements, self._kept = fresh, kept

    def clear(self) -> None:
        """Remove all elements."""
        self.update(())

    def drain(self) -> list[tuple[bytes, bytes | None]]:
        """Changes since the last drain, as store entries."""
        prefix, now = content_prefix(self._state.name), len(self._elements)
        changes: list[tuple[bytes, bytes | None]] = [
            (prefix + number_bytes(i), self._elements[i]) for i in range(self._kept, now)
        ]
        changes += [(prefix + number_bytes(i), None) for i in range(now, self._stored)]
        self._stored = self._kept = now
        return changes

    def export(self) -> NamedState:
        """The current state."""
        return msgspec.structs.replace(self._state, elements=list(self._elements))

    def _all_encoded(self, values: Iterable[Any]) -> list[bytes]:
        if values is None:
            raise StateValueError(
                f"operator state {self._state.name!r} takes an iterable of elements, not None; "
                "clear() empties it"
            )
        return [self._encoded(value) for value in values]

    def _encoded(self, value: Any) -> bytes:
        if value is None:
            raise StateValueError(f"operator state {self._state.name!r} cannot hold None")
        return _named(self._state.name, self._codec.encode, value)


@public_name("MapState")
class BroadcastMap(MapState[Any, Any]):
    """A broadcast map; mutable values are decoded anew on every read."""

    __slots__ = ("_changed", "_codec", "_entries", "_keys", "_state")

    def __init__(self, state: NamedState, codec: Codec, keys: Codec, stored: NamedState) -> None:
        """A map; `stored` is its state in the store, possibly of an older type."""
        self._state = state
        self._codec = codec
        self._keys = MapKeys(keys)
        self._entries: dict[Any, tuple[bytes, bytes, Any]] = {}
        """By key: the bytes of key and value, and the value if it is immutable."""
        self._changed: dict[bytes, bytes | None] = {}
        if stored is not state:
            self._changed |= {key: None for key, _ in stored.entries} | dict(state.entries)
        self._fill(state)

    def reload(self, stored: NamedState | None) -> None:
        """Take over what the store has now; None if it has no such state."""
        self._entries.clear()
        self._changed.clear()
        if stored is not None:
            self._fill(stored)

    def _fill(self, state: NamedState) -> None:
        for own, value in state.entries:
            key = None if own == NONE else self._keys.decode(own[1:])
            if key in self._entries:
                # Two keys that differed when they were written are equal now.
                self._changed[own] = None
            else:
                self._entries[key] = (own, value, self._shared(value))

    @property
    def name(self) -> str:
        """Name of the map."""
        return self._state.name

    @property
    def mode(self) -> Mode:
        """Redistribution mode of the map."""
        return self._state.mode

    def get(self, key: Any) -> Any:
        """Value under `key`, or None."""
        entry = self._find(key)
        return None if entry is None else self._value(entry)

    def contains(self, key: Any) -> bool:
        """Whether `key` has an entry."""
        return self._find(key) is not None

    def put(self, key: Any, value: Any) -> None:
        """Set the value under `key`; both may be None."""
        self._put([(key, value)])

    def put_all(self, entries: Mapping[Any, Any]) -> None:
        """Set all of `entries`, or none if one is invalid."""
        if entries is None:
            raise StateValueError(f"operator state {self._state.name!r} takes a mapping, not None")
        self._put(entries.items())

    def remove(self, key: Any) -> None:
        """Remove the entry under `key`, if there is one."""
        entry = self._find(key)
        if entry is not None:
            del self._entries[self._keys.unified(key)]
            self._changed[entry[0]] = None

    def items(self) -> Iterator[tuple[Any, Any]]:
        """Current entries; the map may change while iterating."""
        return iter([(key, self._value(entry)) for key, entry in self._entries.items()])

    def is_empty(self) -> bool:
        """Whether there is no entry."""
        return not self._entries

    def clear(self) -> None:
        """Remove all entries."""
        self._changed.update((entry[0], None) for entry in self._entries.values())
        self._entries.clear()

    def drain(self) -> list[tuple[bytes, bytes | None]]:
        """Changes since the last drain, as store entries."""
        prefix = content_prefix(self._state.name)
        changes = [(prefix + key, value) for key, value in self._changed.items()]
        self._changed.clear()
        return changes

    def export(self) -> NamedState:
        """The current state."""
        entries = sorted((key, value) for key, value, _ in self._entries.values())
        return msgspec.structs.replace(self._state, entries=entries)

    def _put(self, entries: Iterable[tuple[Any, Any]]) -> None:
        encoded = [
            (self._keys.unified(key), self._key_bytes(key), self._encoded(value))
            for key, value in entries
        ]
        for key, own, value in encoded:
            # Equal keys may have different bytes, as 0.0 and -0.0 do: keep those of the first.
            own = self._entries[key][0] if key in self._entries else own
            self._entries[key] = (own, value, self._shared(value))
            self._changed[own] = value

    def _find(self, key: Any) -> tuple[bytes, bytes, Any] | None:
        try:
            return self._entries.get(self._keys.unified(key))
        except TypeError as error:
            raise StateValueError(
                f"operator state {self._state.name!r}: {unhashable(key, error)}"
            ) from None

    def _key_bytes(self, key: Any) -> bytes:
        if key is None:
            return NONE
        self._find(key)
        return SOME + _named(self._state.name, self._keys.encode, self._keys.unified(key))

    def _value(self, entry: tuple[bytes, bytes, Any]) -> Any:
        return entry[2] if self._codec.immutable else self._decoded(entry[1])

    def _shared(self, value: bytes) -> Any:
        return self._decoded(value) if self._codec.immutable else None

    def _encoded(self, value: Any) -> bytes:
        return NONE if value is None else SOME + _named(self._state.name, self._codec.encode, value)

    def _decoded(self, data: bytes) -> Any:
        return None if data == NONE else self._codec.decode(data[1:])


def _named(name: str, encode: Callable[[Any], bytes], value: Any) -> bytes:
    try:
        return encode(value)
    except StateValueError as error:
        raise StateValueError(f"operator state {name!r}: {error}") from error
