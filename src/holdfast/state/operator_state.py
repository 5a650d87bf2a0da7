"""State that belongs to a subtask and to no key, for one epoch.

It lies in the subtask's store, under state id 0, and in memory once it is used:

    00 00 | "subtask" | 01 | name                     {"order": 0, "mode": "split",
                                                       "schema": [...]} in JSON
    00 00 | "subtask" | 02 | length | name | number   an element of a list
    00 00 | "subtask" | 02 | length | name | key      an entry of a broadcast map
    00 00 | "subtask" | 03 | number                   a partition of raw operator state
    00 00 | "subtask" | 04 | key group (2 bytes)      raw keyed state of the key group

Numbers have 4 bytes, big-endian, and count from 0; a length is a varint. Keys and values
of a map are 0x00 for None, or 0x01 and their bytes. The layout is part of the format of
the store (`state/keyed_backend.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast.api.descriptors import ListStateDescriptor, MapStateDescriptor
from holdfast.api.state import ListState, MapState
from holdfast.errors import StateDescriptorError, StateValueError
from holdfast.state.codec import Codec, codec_for
from holdfast.state.keys import varint
from holdfast.state.redistribution import Mode, NamedState, OperatorStateSnapshot

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from holdfast.api.descriptors import StateDescriptor
    from holdfast.state.store import StateStore

__all__ = ["OperatorStateBackend", "OperatorStateSnapshot", "layout", "read_layout"]

SUBTASK_PREFIX: Final = b"\x00\x00subtask"
"""What the keys of all state of a subtask begin with."""

_META: Final = SUBTASK_PREFIX + b"\x01"
_CONTENT: Final = SUBTASK_PREFIX + b"\x02"
_PARTITION: Final = SUBTASK_PREFIX + b"\x03"
_KEY_GROUP: Final = SUBTASK_PREFIX + b"\x04"
_KEY_GROUPS: Final = 2**15
_NONE: Final = b"\x00"
_SOME: Final = b"\x01"


class OperatorStateBackend:
    """Registers operator states, keeps them in memory, and writes back what changed."""

    def __init__(self, store: StateStore) -> None:
        """Operator state over an open store; nothing is read before it is needed."""
        self._store = store
        self._loaded = False
        self._states: dict[str, NamedState | ElementList | BroadcastMap] = {}
        self._raw_stored: dict[bytes, bytes] = {}
        self._raw_partitions: list[bytes] = []
        self._raw_key_groups: dict[int, bytes] = {}
        self.warnings: list[str] = []

    def get_list_state(self, descriptor: ListStateDescriptor) -> ListState[Any]:
        """List whose elements are dealt out evenly when the parallelism changes.

        The same handle for the same name.

        Raises:
            StateDescriptorError: The name is in use in another mode.
        """
        return self._list(descriptor, "split")

    def get_union_list_state(self, descriptor: ListStateDescriptor) -> ListState[Any]:
        """List of which every subtask gets all elements of all, on every restore.

        The same handle for the same name.

        Raises:
            StateDescriptorError: The name is in use in another mode.
        """
        return self._list(descriptor, "union")

    def get_broadcast_state(self, descriptor: MapStateDescriptor) -> MapState[Any, Any]:
        """Map that is to be the same on every subtask.

        The same handle for the same name.

        Raises:
            StateDescriptorError: The name is in use in another mode.
        """
        _require_kind(descriptor, MapStateDescriptor)
        found = self._find(descriptor.name, "broadcast")
        if isinstance(found, BroadcastMap):
            return found
        codec = self._codec(descriptor, descriptor.value_type, "value type")
        keys = self._codec(descriptor, descriptor.key_type, "key type")
        state = self._registered(found, descriptor.name, "broadcast", [codec.schema, keys.schema])
        handle = self._states[descriptor.name] = BroadcastMap(state, codec, keys)
        return handle

    def handle(self, name: str) -> ListState[Any] | MapState[Any, Any]:
        """Handle to a state that was registered."""
        found = self._states.get(name)
        if found is None or isinstance(found, NamedState):
            known = [repr(n) for n, s in self._states.items() if not isinstance(s, NamedState)]
            raise StateDescriptorError(
                f"no operator state {name!r} was registered; registered: "
                f"{', '.join(known) or 'none'}"
            )
        return found

    def raw_partitions(self) -> list[bytes]:
        """Partitions of raw operator state, in a list of the caller's own."""
        self._load()
        return list(self._raw_partitions)

    def set_raw_partitions(self, partitions: list[bytes]) -> None:
        """Replace the raw operator state; each partition stays whole on rescaling."""
        self._load()
        self._raw_partitions = [_checked_bytes(data) for data in partitions]

    def raw_key_groups(self) -> dict[int, bytes]:
        """Raw keyed state by key group, in a dict of the caller's own."""
        self._load()
        return dict(self._raw_key_groups)

    def set_raw_key_groups(self, key_groups: Mapping[int, bytes]) -> None:
        """Replace the raw keyed state; the key groups must be this subtask's."""
        self._load()
        for group in key_groups:
            if not 0 <= group < _KEY_GROUPS:
                raise StateValueError(f"{group} is no key group; they count from 0 to 32767")
        self._raw_key_groups = {g: _checked_bytes(data) for g, data in key_groups.items()}

    def flush(self) -> None:
        """Stage in the store what has changed."""
        if not self._loaded:
            return
        for state in self._states.values():
            if not isinstance(state, NamedState):
                self._store.write(state.drain())
        old, raw = self._raw_stored, dict(_raw_layout(self._raw_partitions, self._raw_key_groups))
        changes: list[tuple[bytes, bytes | None]] = [(key, None) for key in old.keys() - raw.keys()]
        changes += [(key, data) for key, data in raw.items() if old.get(key) != data]
        if changes:
            self._store.write(changes)
            self._raw_stored = raw

    def export(self) -> OperatorStateSnapshot | None:
        """All states as they are now, or None if none was ever registered or set.

        States of earlier epochs that were not registered in this one are included.
        """
        self._load()
        states = [
            state if isinstance(state, NamedState) else state.export()
            for state in self._states.values()
        ]
        if not (states or self._raw_partitions or self._raw_key_groups):
            return None
        return OperatorStateSnapshot(
            states, list(self._raw_partitions), dict(sorted(self._raw_key_groups.items()))
        )

    def _load(self) -> None:
        if not self._loaded:
            found = read_layout(self._store.scan(SUBTASK_PREFIX))
            self._states = {state.name: state for state in found.states}
            self._raw_partitions = found.raw_partitions
            self._raw_key_groups = found.raw_key_groups
            self._raw_stored = dict(_raw_layout(found.raw_partitions, found.raw_key_groups))
            self._loaded = True

    def _list(self, descriptor: ListStateDescriptor, mode: Mode) -> ListState[Any]:
        _require_kind(descriptor, ListStateDescriptor)
        found = self._find(descriptor.name, mode)
        if isinstance(found, ElementList):
            return found
        codec = self._codec(descriptor, descriptor.type, "type")
        state = self._registered(found, descriptor.name, mode, [codec.schema])
        handle = self._states[descriptor.name] = ElementList(state, codec)
        return handle

    def _find(self, name: str, mode: Mode) -> NamedState | ElementList | BroadcastMap | None:
        self._load()
        found = self._states.get(name)
        if found is not None and found.mode != mode:
            raise StateDescriptorError(
                f"Incompatible state assignment modes: operator state {name!r} is a {found.mode} "
                f"state of this operator and cannot be a {mode} state too; choose another name"
            )
        return found

    def _registered(
        self, found: object, name: str, mode: Mode, schema: list[dict[str, Any]]
    ) -> NamedState:
        if isinstance(found, NamedState):
            return found
        # As it will be read again: subtasks are compared by it, however long they have had it.
        state = NamedState(name, mode, msgspec.json.decode(msgspec.json.encode(schema)))
        self._store.write([_meta(len(self._states), state)])
        return state

    def _codec(self, descriptor: StateDescriptor, spec: object, what: str) -> Codec:
        codec = codec_for(spec)
        if codec.pickled:
            self.warnings.append(
                f"operator state {descriptor.name!r} has no {what} and is pickled, which is slow "
                "and cannot evolve; give its descriptor one"
            )
        return codec


class ElementList(ListState[Any]):
    """A split or union list; its elements are held as bytes, so that none is ever shared."""

    __slots__ = ("_codec", "_elements", "_kept", "_state", "_stored")

    def __init__(self, state: NamedState, codec: Codec) -> None:
        """The list as it is in the store."""
        self._state = state
        self._codec = codec
        self._elements = list(state.elements)
        self._stored = len(state.elements)
        """Elements in the store."""
        self._kept = len(state.elements)
        """Elements at the beginning that are in the store as they are here."""

    @property
    def mode(self) -> Mode:
        """How the list is dealt out."""
        return self._state.mode

    def get(self) -> list[Any]:
        """Elements, in a list of the caller's own."""
        return list(map(self._codec.decode, self._elements))

    def add(self, value: Any) -> None:
        """Append one element, which must not be None."""
        self._elements.append(self._encoded(value))

    def add_all(self, values: Iterable[Any]) -> None:
        """Append all of `values`, or, if one of them is refused, none."""
        self._elements += self._all_encoded(values)

    def update(self, values: Iterable[Any]) -> None:
        """Replace the list; if a value is refused, it stays as it was."""
        fresh = self._all_encoded(values)
        kept = 0
        # A function that sets its whole list in every epoch writes only what is new.
        for old, new in zip(self._elements[: self._kept], fresh, strict=False):
            if old != new:
                break
            kept += 1
        self._elements, self._kept = fresh, kept

    def clear(self) -> None:
        """Remove all elements."""
        self.update(())

    def drain(self) -> list[tuple[bytes, bytes | None]]:
        """What changed since the last drain, as entries for the store."""
        prefix, now = _content_prefix(self._state.name), len(self._elements)
        changes: list[tuple[bytes, bytes | None]] = [
            (prefix + _number(i), self._elements[i]) for i in range(self._kept, now)
        ]
        changes += [(prefix + _number(i), None) for i in range(now, self._stored)]
        self._stored = self._kept = now
        return changes

    def export(self) -> NamedState:
        """The state as it is now."""
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
        return _named(self._state.name, self._codec, value)


class BroadcastMap(MapState[Any, Any]):
    """A broadcast map; a value that could be changed in place is never handed out twice."""

    __slots__ = ("_changed", "_codec", "_entries", "_keys", "_state")

    def __init__(self, state: NamedState, codec: Codec, keys: Codec) -> None:
        """The map as it is in the store."""
        self._state = state
        self._codec = codec
        self._keys = keys
        self._entries: dict[Any, tuple[bytes, bytes, Any]] = {
            self._decoded(keys, key): (key, value, self._shared(value))
            for key, value in state.entries
        }
        """By key: the bytes of key and value, and the value if it is immutable."""
        self._changed: dict[bytes, bytes | None] = {}

    @property
    def mode(self) -> Mode:
        """How the map is dealt out."""
        return self._state.mode

    def get(self, key: Any) -> Any:
        """Value under `key`, or None."""
        entry = self._find(key)
        return None if entry is None else self._value(entry)

    def contains(self, key: Any) -> bool:
        """Whether there is an entry under `key`."""
        return self._find(key) is not None

    def put(self, key: Any, value: Any) -> None:
        """Set the value under `key`; both may be None."""
        self._put([(key, value)])

    def put_all(self, entries: Mapping[Any, Any]) -> None:
        """Set all of `entries`, or, if one of them is refused, none."""
        if entries is None:
            raise StateValueError(f"operator state {self._state.name!r} takes a mapping, not None")
        self._put(entries.items())

    def remove(self, key: Any) -> None:
        """Remove the entry under `key`, if there is one."""
        entry = self._find(key)
        if entry is not None:
            del self._entries[key]
            self._changed[entry[0]] = None

    def items(self) -> Iterator[tuple[Any, Any]]:
        """Entries as they are now; the map may be changed while iterating."""
        return iter([(key, self._value(entry)) for key, entry in self._entries.items()])

    def is_empty(self) -> bool:
        """Whether there is no entry."""
        return not self._entries

    def clear(self) -> None:
        """Remove all entries."""
        self._changed.update((entry[0], None) for entry in self._entries.values())
        self._entries.clear()

    def drain(self) -> list[tuple[bytes, bytes | None]]:
        """What changed since the last drain, as entries for the store."""
        prefix = _content_prefix(self._state.name)
        changes = [(prefix + key, value) for key, value in self._changed.items()]
        self._changed.clear()
        return changes

    def export(self) -> NamedState:
        """The state as it is now."""
        entries = sorted((key, value) for key, value, _ in self._entries.values())
        return msgspec.structs.replace(self._state, entries=entries)

    def _put(self, entries: Iterable[tuple[Any, Any]]) -> None:
        encoded = [
            (key, self._key_bytes(key), self._encoded(self._codec, value)) for key, value in entries
        ]
        for key, own, value in encoded:
            self._entries[key] = (own, value, self._shared(value))
            self._changed[own] = value

    def _find(self, key: Any) -> tuple[bytes, bytes, Any] | None:
        try:
            return self._entries.get(key)
        except TypeError:
            raise StateValueError(
                f"operator state {self._state.name!r}: {type(key).__name__} cannot be a map's "
                "key, since it is mutable; use a tuple, a frozen dataclass or a string"
            ) from None

    def _key_bytes(self, key: Any) -> bytes:
        # Equal keys may differ in bytes, as 0.0 and -0.0 do: the first one's stay.
        known = self._find(key)
        own = self._encoded(self._keys, key)
        return own if known is None else known[0]

    def _value(self, entry: tuple[bytes, bytes, Any]) -> Any:
        return entry[2] if self._codec.immutable else self._decoded(self._codec, entry[1])

    def _shared(self, value: bytes) -> Any:
        return self._decoded(self._codec, value) if self._codec.immutable else None

    def _encoded(self, codec: Codec, value: Any) -> bytes:
        return _NONE if value is None else _SOME + _named(self._state.name, codec, value)

    def _decoded(self, codec: Codec, data: bytes) -> Any:
        return None if data == _NONE else codec.decode(data[1:])


def layout(snapshot: OperatorStateSnapshot) -> Iterator[tuple[bytes, bytes]]:
    """The snapshot as entries of a store, in no particular order."""
    for order, state in enumerate(snapshot.states):
        yield _meta(order, state)
        prefix = _content_prefix(state.name)
        yield from ((prefix + _number(i), data) for i, data in enumerate(state.elements))
        yield from ((prefix + key, value) for key, value in state.entries)
    yield from _raw_layout(snapshot.raw_partitions, snapshot.raw_key_groups)


def read_layout(entries: Iterable[tuple[bytes, bytes]]) -> OperatorStateSnapshot:
    """The snapshot that a store's entries under `SUBTASK_PREFIX`, in key order, make up."""
    metas: list[dict[str, Any]] = []
    contents: list[tuple[bytes, bytes]] = []
    partitions: list[bytes] = []
    groups: dict[int, bytes] = {}
    for key, value in entries:
        match key[: len(_META)]:
            case kind if kind == _META:
                metas.append(msgspec.json.decode(value) | {"name": key[len(_META) :].decode()})
            case kind if kind == _CONTENT:
                contents.append((key, value))
            case kind if kind == _PARTITION:
                partitions.append(value)
            case _:
                groups[int.from_bytes(key[len(_KEY_GROUP) :], "big")] = value
    metas.sort(key=lambda meta: int(meta["order"]))
    return OperatorStateSnapshot(_named_states(metas, contents), partitions, groups)


def _named_states(
    metas: list[dict[str, Any]], contents: list[tuple[bytes, bytes]]
) -> list[NamedState]:
    """The states, each with its part of the contents of all."""
    found: dict[bytes, NamedState] = {}
    for meta in metas:
        name = meta["name"]
        state = NamedState(name, meta["mode"], meta["schema"], [], [])
        found[_content_prefix(name)] = state
    for key, value in contents:
        name_end, own = _content_parts(key)
        state = found[name_end]
        if state.mode == "broadcast":
            state.entries.append((own, value))
        else:
            state.elements.append(value)
    return list(found.values())


def _content_parts(key: bytes) -> tuple[bytes, bytes]:
    """Prefix that a state's contents share, and the rest of the key."""
    at, length, shift = len(_CONTENT), 0, 0
    while True:
        byte = key[at]
        length |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return key[: at + length], key[at + length :]


def _meta(order: int, state: NamedState) -> tuple[bytes, bytes]:
    described = {"order": order, "mode": state.mode, "schema": state.schema}
    return _META + state.name.encode(), msgspec.json.encode(described)


def _content_prefix(name: str) -> bytes:
    encoded = name.encode()
    return _CONTENT + varint(len(encoded)) + encoded


def _raw_layout(
    partitions: list[bytes], key_groups: Mapping[int, bytes]
) -> Iterator[tuple[bytes, bytes]]:
    yield from ((_PARTITION + _number(i), data) for i, data in enumerate(partitions))
    yield from ((_KEY_GROUP + g.to_bytes(2, "big"), data) for g, data in key_groups.items())


def _number(index: int) -> bytes:
    return index.to_bytes(4, "big")


def _named(name: str, codec: Codec, value: Any) -> bytes:
    try:
        return codec.encode(value)
    except StateValueError as error:
        raise StateValueError(f"operator state {name!r}: {error}") from error


def _require_kind(descriptor: object, kind: type[StateDescriptor]) -> None:
    if not isinstance(descriptor, kind):
        raise StateDescriptorError(
            f"this operator state is asked for by a {kind.__name__}, not by {descriptor!r}"
        )


def _checked_bytes(data: object) -> bytes:
    if not isinstance(data, bytes):
        raise StateValueError(f"raw state is bytes, not {type(data).__name__}")
    return data
