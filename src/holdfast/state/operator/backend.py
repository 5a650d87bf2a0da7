"""Operator state of one subtask, epoch after epoch.

It is stored in the subtask's store (`state/operator/layout.py`) and read into memory on first
use. If the type of a state has changed, all of it is converted when it is registered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.api.descriptors import ListStateDescriptor, MapStateDescriptor
from holdfast.errors import StateDescriptorError, StateValueError
from holdfast.state.operator.handles import BroadcastMap, ElementList, converted
from holdfast.state.operator.layout import (
    MOST_KEY_GROUPS,
    SUBTASK_PREFIX,
    meta_entry,
    raw_layout,
    read_layout,
)
from holdfast.state.operator.redistribution import Mode, NamedState, OperatorStateSnapshot
from holdfast.state.schemas import as_stored, declared_codec
from holdfast.state.store.header import corrupt_store

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from holdfast.api.descriptors import StateDescriptor
    from holdfast.api.state import ListState, MapState
    from holdfast.serde.codec import Codec
    from holdfast.state.store.protocol import StateStore


class OperatorStateBackend:
    """Registers operator states, keeps them in memory and writes changes back."""

    def __init__(self, store: StateStore) -> None:
        """Operator state in an open store; reads nothing until the first use."""
        self._store = store
        self._loaded = False
        self._states: dict[str, NamedState | ElementList | BroadcastMap] = {}
        self._raw_stored: dict[bytes, bytes] = {}
        self._raw_partitions: list[bytes] = []
        self._raw_key_groups: dict[int, bytes] = {}
        self.warnings: list[str] = []

    def reload(self) -> None:
        """Read all states again, since another process has written them; handles stay."""
        handles = [state for state in self._states.values() if not isinstance(state, NamedState)]
        self.warnings = []
        if not self._loaded:
            return
        self._loaded = False
        self._load()
        for handle in handles:
            found = self._states.get(handle.name)
            handle.reload(found if isinstance(found, NamedState) else None)
            self._states[handle.name] = handle

    def get_list_state(self, descriptor: ListStateDescriptor) -> ListState[Any]:
        """List state whose elements are distributed evenly when the parallelism changes.

        The same handle for the same name.

        Raises:
            StateDescriptorError: The name is in use in another mode.
        """
        return self._list(descriptor, "split")

    def get_union_list_state(self, descriptor: ListStateDescriptor) -> ListState[Any]:
        """List state of which every subtask gets all elements of all subtasks on restore.

        The same handle for the same name.

        Raises:
            StateDescriptorError: The name is in use in another mode.
        """
        return self._list(descriptor, "union")

    def get_broadcast_state(self, descriptor: MapStateDescriptor) -> MapState[Any, Any]:
        """Map state that is the same on every subtask.

        The same handle for the same name.

        Raises:
            StateDescriptorError: The name is in use in another mode.
        """
        _require_kind(descriptor, MapStateDescriptor)
        types = {"value type": descriptor.value_type, "key type": descriptor.key_type}
        handle: BroadcastMap = self._handle(descriptor, "broadcast", types, BroadcastMap)
        return handle

    def handle(self, name: str) -> ListState[Any] | MapState[Any, Any]:
        """Handle to a registered state."""
        found = self._states.get(name)
        if found is None or isinstance(found, NamedState):
            known = [repr(n) for n, s in self._states.items() if not isinstance(s, NamedState)]
            raise StateDescriptorError(
                f"no operator state {name!r} was registered; registered: "
                f"{', '.join(known) or 'none'}"
            )
        return found

    def raw_partitions(self) -> list[bytes]:
        """Partitions of raw operator state, in a new list."""
        self._load()
        return list(self._raw_partitions)

    def set_raw_partitions(self, partitions: list[bytes]) -> None:
        """Replace the raw operator state; rescaling never splits a partition."""
        self._load()
        self._raw_partitions = [_checked_bytes(data) for data in partitions]

    def raw_key_groups(self) -> dict[int, bytes]:
        """Raw keyed state by key group, in a new dict."""
        self._load()
        return dict(self._raw_key_groups)

    def set_raw_key_groups(self, key_groups: Mapping[int, bytes]) -> None:
        """Replace the raw keyed state; all key groups must belong to this subtask."""
        self._load()
        for group in key_groups:
            if not 0 <= group < MOST_KEY_GROUPS:
                raise StateValueError(f"{group} is not a key group; key groups are 0 to 32767")
        self._raw_key_groups = {g: _checked_bytes(data) for g, data in key_groups.items()}

    def flush(self) -> None:
        """Write changes to the store; not a commit."""
        if not self._loaded:
            return
        for state in self._states.values():
            if not isinstance(state, NamedState):
                drained = state.drain()
                stored = self._store.get_many([key for key, _ in drained])
                # Setting a state to its current value does not change the store.
                self._store.write(
                    [new for new, old in zip(drained, stored, strict=True) if new[1] != old]
                )
        old, raw = self._raw_stored, dict(raw_layout(self._raw_partitions, self._raw_key_groups))
        changes: list[tuple[bytes, bytes | None]] = [(key, None) for key in old.keys() - raw.keys()]
        changes += [(key, data) for key, data in raw.items() if old.get(key) != data]
        if changes:
            self._store.write(changes)
            self._raw_stored = raw

    def export(self) -> OperatorStateSnapshot | None:
        """All current states, or None if none was ever registered or set.

        Includes states of earlier epochs that are not registered in this one.
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
            try:
                found = read_layout(self._store.scan(SUBTASK_PREFIX))
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise corrupt_store(self._store.place, error) from error
            self._states = {state.name: state for state in found.states}
            self._raw_partitions = found.raw_partitions
            self._raw_key_groups = found.raw_key_groups
            self._raw_stored = dict(raw_layout(found.raw_partitions, found.raw_key_groups))
            self._loaded = True

    def _list(self, descriptor: ListStateDescriptor, mode: Mode) -> ListState[Any]:
        _require_kind(descriptor, ListStateDescriptor)
        handle: ElementList = self._handle(descriptor, mode, {"type": descriptor.type}, ElementList)
        return handle

    def _handle(
        self,
        descriptor: StateDescriptor,
        mode: Mode,
        types: dict[str, object],
        kind: Callable[..., ElementList | BroadcastMap],
    ) -> Any:
        """Handle to a state, from the types by what they are called in messages."""
        found = self._find(descriptor.name, mode)
        if found is not None and not isinstance(found, NamedState):
            return found
        codecs = [
            declared_codec(spec, f"operator state {descriptor.name!r} has no {what}", self.warnings)
            for what, spec in types.items()
        ]
        state = self._registered(found, descriptor.name, mode, codecs)
        handle = self._states[descriptor.name] = kind(state, *codecs, found or state)
        return handle

    def _find(self, name: str, mode: Mode) -> NamedState | ElementList | BroadcastMap | None:
        self._load()
        found = self._states.get(name)
        if isinstance(found, NamedState) and found.mode != mode:
            raise stored_in_mode(name, mode, found.mode)
        if found is not None and found.mode != mode:
            raise StateDescriptorError(
                f"Incompatible state assignment modes: operator state {name!r} is a {found.mode} "
                f"state of this operator and cannot be a {mode} state too; choose another name"
            )
        return found

    def _registered(
        self, found: NamedState | None, name: str, mode: Mode, codecs: list[Codec]
    ) -> NamedState:
        # As decoded from JSON, since subtasks are compared by it.
        schema = as_stored([codec.schema for codec in codecs])
        state, order = NamedState(name, mode, schema), len(self._states)
        if found is not None:
            if found.schema == schema:
                return found
            state, order = converted(found, codecs, schema), list(self._states).index(name)
        self._store.write([meta_entry(order, state)])
        return state


def stored_in_mode(name: str, mode: Mode, stored: Mode) -> StateDescriptorError:
    """The error for a state that is stored with another mode."""
    return StateDescriptorError(
        f"Incompatible state assignment modes: operator state {name!r} is stored as a {stored} "
        f"state, and is now declared as a {mode} state; declare it as a {stored} state, or use "
        "another name, under which it starts empty"
    )


def _require_kind(descriptor: object, kind: type[StateDescriptor]) -> None:
    if not isinstance(descriptor, kind):
        raise StateDescriptorError(
            f"this operator state is registered by a {kind.__name__}, not by {descriptor!r}"
        )
    if descriptor.time_to_live is not None:
        raise StateDescriptorError(
            f"operator state {descriptor.name!r} cannot have a time to live, which only keyed "
            "state has; leave the ttl of its descriptor out"
        )


def _checked_bytes(data: object) -> bytes:
    if not isinstance(data, bytes):
        raise StateValueError(f"raw state is bytes, not {type(data).__name__}")
    return data
