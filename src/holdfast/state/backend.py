"""The keyed state of one operator on one subtask, epoch after epoch.

Metadata under state id 0, in JSON:

    00 00 | "operator"        {"format": 1, "max_parallelism": 128, "key": "str"}

State id 0 also holds the catalog of states (`state/catalog.py`), operator state
(`state/operator/backend.py`), the time of the next timer (`state/timers/layout.py`) and the
progress of sweeps (`state/ttl/layout.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from holdfast.api.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from holdfast.api.folds import Reducer
from holdfast.errors import StateDescriptorError, StateError, StoreError, StoreVersionError
from holdfast.serde.factory import codec_for
from holdfast.serde.key_reader import KeyDecoder
from holdfast.serde.key_shapes import KeyShape, KeyTypes
from holdfast.serde.keys import KeyEncoder
from holdfast.state.catalog import STATE_PREFIX, StateCatalog, other_kind
from holdfast.state.list import MAX_CHUNKS, ChunkNumbers, ListTable
from holdfast.state.map import MapTable
from holdfast.state.namespaces import NamespacedKeyEncoder, StateScope
from holdfast.state.schemas import declared_codec
from holdfast.state.store.header import corrupt_store
from holdfast.state.stored_keys import read_keys
from holdfast.state.table import CurrentKey, StateTable
from holdfast.state.timers.due import TIMERS_AT_ONCE
from holdfast.state.timers.table import KIND, TIMER_NAMES, TimerTable
from holdfast.state.ttl.layout import stored_name, ttl_codec
from holdfast.state.ttl.states import (
    Expiry,
    TtlContext,
    TtlList,
    TtlMap,
    TtlReducing,
    TtlTime,
    TtlValue,
)
from holdfast.state.ttl.sweep import Sweep, SweptState
from holdfast.state.value import (
    AggregatingValue,
    DefaultedValue,
    EncodedValueTable,
    ReducingValue,
    ValueTable,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from holdfast.api.state import State, ValueState
    from holdfast.api.ttl import StateTtlConfig
    from holdfast.serde.codec import Codec
    from holdfast.state.store.protocol import StateStore, StoreStatistics
    from holdfast.state.store.snapshot import ReadOnlySnapshot

    OfValue = ValueStateDescriptor | ReducingStateDescriptor | AggregatingStateDescriptor

__all__ = ["FORMAT", "OPERATOR_KEY", "STATE_PREFIX", "KeyedStateBackend"]

S = TypeVar("S", bound=StateTable)
"""A kind of table."""
E = TypeVar("E", bound=Expiry)
"""A kind of state whose entries expire."""
T = TypeVar("T")
"""Result of reading a state."""

FORMAT: Final = 1
"""Version of the layout described here and in `state/table.py`."""
CACHE_LIMIT: Final = 1_000_000
KEYS_AT_ONCE: Final = 50_000

OPERATOR_KEY: Final = b"\x00\x00operator"
"""Key of the entry about the operator."""


class KeyedStateBackend:
    """Registers states, follows the current key and commits all changes."""

    def __init__(
        self,
        store: StateStore,
        *,
        max_parallelism: int,
        epoch: int,
        current: CurrentKey,
        key_groups: range | None = None,
        ttl: TtlContext | None = None,
        key_types: KeyTypes | None = None,
        cache_limit: int = CACHE_LIMIT,
        max_chunks: int = MAX_CHUNKS,
        keys_at_once: int = KEYS_AT_ONCE,
        timers_at_once: int = TIMERS_AT_ONCE,
    ) -> None:
        """Keyed state over an open store.

        Args:
            store: Open store of this operator and subtask.
            max_parallelism: Number of key groups of the operator.
            epoch: Number of the epoch; higher than in any earlier use of the store.
            current: The current key, set by the caller.
            key_groups: Key groups of the subtask; None for all.
            ttl: Clock and settings of states with a time to live; None for the system clock.
            key_types: Known type of the keys, in addition to that in the store.
            cache_limit: Entries in the caches above which they are evicted to the store.
            max_chunks: Number of chunks above which reading a list rewrites it as one.
            keys_at_once: Maximum number of keys in one chunk of `keys_of`.
            timers_at_once: Maximum number of timers in memory to fire.

        Raises:
            StateError: The store has another layout, another number of key groups or keys of
                another type. The store is then closed.
        """
        self._store = store
        self._current = current
        self._chunks = ChunkNumbers(epoch)
        self._timers: dict[str, TimerTable] = {}
        self._ttl = ttl or TtlContext()
        self._sweep = Sweep(store, self._ttl)
        self._max_parallelism = max_parallelism
        self._key_groups = range(max_parallelism) if key_groups is None else key_groups
        self._cache_limit = cache_limit
        self._max_chunks = max_chunks
        self._keys_at_once = keys_at_once
        self._timers_at_once = timers_at_once
        try:
            self._catalog = StateCatalog(store)
            self._encoder = KeyEncoder(max_parallelism, key_types or KeyTypes())
            self._read_operator()
        except BaseException:
            store.abort()
            raise
        self._void = StateScope(current, self._encoder)
        self._scopes = [self._void]
        self.warnings: list[str] = []

    def resume(self, epoch: int, *, own: bool) -> None:
        """Continue in another epoch, for which the store is open again.

        Args:
            epoch: Number of the epoch; higher than in any earlier use of the store.
            own: Whether the store is as this object has committed it. If another process has
                written to it since, everything that was read from it is dropped.

        Raises:
            StoreVersionError: A state has another id than before.
            StateError: See the constructor. In both cases the store is closed.
        """
        self._chunks.restart(epoch)
        self._sweep.restart()
        self.warnings = []
        if own:
            return
        try:
            self._catalog.reload()
            self._read_operator()
            for table in self._all_tables():
                self._check_id(table)
                table.reload()
        except BaseException:
            self._store.abort()
            raise

    def _check_id(self, table: StateTable) -> None:
        if not self._catalog.has_id(table.name, table.state_id):
            raise StoreVersionError(
                f"state {table.name!r} has another id in its store than this process has given "
                "it; its cached values cannot be used"
            )

    def namespaced(self) -> StateScope:
        """A new scope whose current key is a tuple of a key and a namespace."""
        scope = StateScope(CurrentKey(), NamespacedKeyEncoder(self._encoder))
        self._scopes.append(scope)
        return scope

    def register(self, descriptor: StateDescriptor, scope: StateScope | None = None) -> State:
        """Handle to the described state; the same one for the same name and kind.

        Args:
            descriptor: Name, kind and type.
            scope: Scope whose current key the handle uses; None for the void namespace.
        """
        scope = scope or self._void
        if not isinstance(descriptor, StateDescriptor):
            raise StateDescriptorError(
                f"a state is registered by its descriptor, not by {descriptor!r}"
            )
        if descriptor.name in TIMER_NAMES:
            raise StateDescriptorError(
                f"the state name {descriptor.name!r} is reserved for the operator's timers; choose "
                "another name"
            )
        known = scope.states.get(descriptor.name)
        if known is not None:
            if known[0] != descriptor:
                raise other_kind(descriptor.name, descriptor.kind, known[0].kind)
            if known[0].ttl is not descriptor.ttl:
                self._check_ttl(descriptor)
            return known[1]
        self._check_ttl(descriptor)
        handle = self._make(descriptor, scope)
        scope.states[descriptor.name] = (descriptor, handle)
        return handle

    def _check_ttl(self, descriptor: StateDescriptor) -> None:
        for scope in self._scopes:
            known = scope.states.get(descriptor.name)
            if known is not None and known[0].time_to_live != descriptor.time_to_live:
                raise StateDescriptorError(
                    f"state {descriptor.name!r} was registered with another time to live before; "
                    "give all descriptors of a state the same one"
                )

    def handle(self, name: str) -> State:
        """Handle to a registered state."""
        states = self._void.states
        if name not in states:
            known = ", ".join(map(repr, states)) or "none"
            raise StateDescriptorError(f"no state {name!r} was registered; registered: {known}")
        return states[name][1]

    def peek(self, name: str, read: Callable[[State], T]) -> T:
        """Result of `read` on a state, for the current key, without changing the state."""
        handle, key = self.handle(name), self._current.key
        table = next(table for table in self._void.tables if table.name == name)
        saved = table.save_point(key)
        try:
            return read(handle)
        finally:
            table.roll_back(key, saved)

    def timers(self, name: str) -> TimerTable:
        """The timers of a time domain; the same object for the same name.

        Args:
            name: `EVENT_TIMERS` or `PROCESSING_TIMERS`.
        """
        table = self._timers.get(name)
        if table is None:
            known = self.has_timers(name)
            state_id, _ = self._catalog.enter(name, KIND, [])
            table = TimerTable(
                *(name, state_id, codec_for(bytes), self._store, self._encoder, self._current),
                key_groups=self._key_groups,
                evict_if_full=self.evict_if_full,
                known=known,
                at_once=self._timers_at_once,
            )
            self._timers[name] = table
            self._void.tables.append(table)
        return table

    def has_timers(self, name: str) -> bool:
        """Whether the operator has ever had timers of that time domain."""
        return self._catalog.kind_of(name) == KIND

    def knows(self, name: str) -> bool:
        """Whether the operator has ever had a state of that name, with or without TTL."""
        return any(state["name"] == name for state in self.state_descriptions())

    @property
    def tables(self) -> list[StateTable]:
        """Tables of the void namespace, including timers."""
        return self._void.tables

    def _all_tables(self) -> Iterator[StateTable]:
        return (table for scope in self._scopes for table in scope.tables)

    def evict_if_full(self) -> None:
        """Evict the caches to the store if they exceed the limit."""
        limit = self._cache_limit
        if sum(table.cached_at_most() for table in self._all_tables()) <= limit:
            return
        if sum(table.cached() for table in self._all_tables()) > limit:
            self.flush()
            for table in self._all_tables():
                table.evict()

    def flush(self) -> None:
        """Write all changes to the store, so that scans see them; not a commit."""
        for table in self._all_tables():
            self._store.write(table.drain())

    def values(self, name: str) -> Iterator[Any]:
        """Values of a value state for all keys; flushes first."""
        self.flush()
        table = self.handle(name)
        assert isinstance(table, ValueTable)
        return table.stored()

    def keys_of(self, name: str) -> Iterator[list[Any]]:
        """Keys with an entry in a registered state, each once, in chunks.

        Flushes first. Any state may change between two chunks; a key whose state is cleared
        before its chunk is read is left out.
        """
        self.handle(name)
        descriptor = self._void.states[name][0]
        timed = descriptor.time_to_live is not None
        return self._keys_under(self._catalog.prefix(name, timed=timed))

    def _keys_under(self, prefix: bytes) -> Iterator[list[Any]]:
        place: bytes | None = b""
        while place is not None:
            self.evict_if_full()
            self.flush()
            keys, place = read_keys(self._store, prefix, place, self._keys_at_once)
            if keys:
                assert self._encoder.shape is not None
                yield KeyDecoder(self._encoder.shape).decode_all(keys)

    @property
    def key_shape(self) -> str | None:
        """Name of the common type of all keys; None before the first key."""
        shape = self._encoder.shape
        return None if shape is None else shape.name

    def state_descriptions(self) -> list[dict[str, Any]]:
        """Name, kind and schema of every state, including those not registered now.

        A state with TTL also has `"ttl": True`.
        """
        return self._catalog.descriptions()

    @property
    def expired_removed(self) -> int:
        """Number of expired entries that the commit has removed."""
        return self._sweep.removed

    def commit(self, version: str, snapshot: Path | None = None) -> StoreStatistics:
        """Commit all changes and `version` atomically, and close the store.

        Removes expired entries as the states' cleanup strategies say. See
        `StateStore.commit` for `snapshot` and for errors.
        """
        self.stage(snapshot=snapshot is not None)
        return self._store.commit(version, snapshot)

    def stage(self, *, snapshot: bool) -> bool:
        """Write all changes to the store and sweep; returns whether the store changes.

        Args:
            snapshot: Whether a snapshot follows.
        """
        self.flush()
        self._sweep.run(snapshot=snapshot)
        metadata = self._operator_metadata()
        if self._store.get(OPERATOR_KEY) != metadata:
            self._store.write([(OPERATOR_KEY, metadata)])
        return self._store.is_changed

    def abort(self) -> None:
        """Drop all changes and close the store."""
        self._store.abort()

    def _make(self, descriptor: StateDescriptor, scope: StateScope) -> State:
        match descriptor:
            case ValueStateDescriptor():
                value = self._value(descriptor, scope)
                if descriptor.default is None:
                    return value
                return DefaultedValue(value, descriptor.default)
            case ReducingStateDescriptor():
                reduce = descriptor.reduce
                function = reduce.reduce if isinstance(reduce, Reducer) else reduce
                value = self._value(descriptor, scope)
                if isinstance(value, TtlValue):
                    return TtlReducing(descriptor.name, value, function)
                return ReducingValue(value, function)
            case AggregatingStateDescriptor():
                value = self._value(descriptor, scope)
                return AggregatingValue(value, descriptor.aggregate)
            case ListStateDescriptor():
                codec = self._codec(descriptor, descriptor.type)
                args = self._table_args(descriptor, scope, codec)
                chunks, most = self._chunks, self._max_chunks
                list_table = _added(scope, ListTable(*args, chunks=chunks, max_chunks=most))
                return self._with_expiry(descriptor, list_table, TtlList)
            case MapStateDescriptor():
                codec = self._codec(descriptor, descriptor.value_type)
                key_codec = self._codec(descriptor, descriptor.key_type, "key type")
                args = self._table_args(descriptor, scope, codec, key_codec)
                map_table = _added(scope, MapTable(*args, key_codec=key_codec))
                return self._with_expiry(descriptor, map_table, TtlMap)
        raise StateDescriptorError(f"{type(descriptor).__name__} does not describe keyed state")

    def _value(self, descriptor: OfValue, scope: StateScope) -> ValueState[Any]:
        codec = self._codec(descriptor, descriptor.type)
        kind = ValueTable if codec.immutable else EncodedValueTable
        table = _added(scope, kind(*self._table_args(descriptor, scope, codec)))
        return self._with_expiry(descriptor, table, TtlValue)

    def _with_expiry(
        self,
        descriptor: StateDescriptor,
        table: S,
        wrapper: Callable[[S, StateTtlConfig, TtlTime], E],
    ) -> S | E:
        """The table, or an expiring state around it if it has TTL."""
        name, config = descriptor.name, descriptor.time_to_live
        if config is None:
            return table
        time = self._time_of(descriptor, config)
        handle, prefix = wrapper(table, config, time), self._catalog.prefix(name, timed=True)
        stored = stored_name(name, timed=True)
        self._sweep.add(SweptState(stored, descriptor.kind, prefix, config, time), handle)
        return handle

    def _time_of(self, descriptor: StateDescriptor, config: StateTtlConfig) -> TtlTime:
        if config.ttl_time_characteristic is config.TtlTimeCharacteristic.ProcessingTime:
            return self._ttl.processing
        if self._ttl.event is None:
            raise StateDescriptorError(
                f"state {descriptor.name!r} has a time to live in event time, but the operator's "
                "input has no timestamps; call assign_timestamps_and_watermarks before key_by, or "
                "let the time to live use_processing_time()"
            )
        return self._ttl.event

    def _codec(self, descriptor: StateDescriptor, spec: object, what: str = "type") -> Codec:
        return declared_codec(spec, f"state {descriptor.name!r} has no {what}", self.warnings)

    def _table_args(
        self, descriptor: StateDescriptor, scope: StateScope, *codecs: Codec
    ) -> tuple[Any, ...]:
        config = descriptor.time_to_live
        time = None if config is None else self._time_of(descriptor, config)
        name, kind = descriptor.name, descriptor.kind
        state_id, codec = self._catalog.enter(name, kind, list(codecs), time)
        assert codec is not None
        codec = codec if time is None else ttl_codec(codec)
        return (name, state_id, codec, self._store, scope.encoder, scope.current)

    def _read_operator(self) -> None:
        """Check the entry about the operator, and take over the type of its keys."""
        stored = self._store.get(OPERATOR_KEY)
        if stored is None:
            return
        try:
            metadata = msgspec.json.decode(stored)
        except msgspec.DecodeError as error:
            raise corrupt_store(self._store.place, error) from error
        if metadata["format"] != FORMAT:
            raise StoreError(
                f"the local store has layout version {metadata['format']}, this Holdfast "
                f"reads version {FORMAT}; run the job with the Holdfast that wrote it"
            )
        if metadata["max_parallelism"] != self._max_parallelism:
            raise StateError(
                f"the local store has {metadata['max_parallelism']} key groups, the operator "
                f"{self._max_parallelism}; the max parallelism of an operator with state is fixed"
            )
        if metadata["key"] is not None:
            self._encoder.join(KeyShape(metadata["key"]))

    def _operator_metadata(self) -> bytes:
        return msgspec.json.encode(
            {
                "format": FORMAT,
                "max_parallelism": self._max_parallelism,
                "key": self.key_shape,
            }
        )


def read_operator(snapshot: ReadOnlySnapshot) -> dict[str, Any]:
    """The entry about the operator; empty if there is none."""
    found = (value for key, value in snapshot.scan(OPERATOR_KEY) if key == OPERATOR_KEY)
    operator: dict[str, Any] = msgspec.json.decode(next(found, b"{}"))
    return operator


def _added(scope: StateScope, table: S) -> S:
    scope.tables.append(table)
    return table
