"""Builds a subtask's local store from snapshots of earlier stores.

At the same parallelism, each subtask reuses its predecessor's files. At another parallelism,
or from another kind of store, it collects the entries of its key groups from all snapshots
that have some. Every store assigns its own state ids, so the first two bytes of entries change;
entries are written in key order, a bounded number at a time.

Timers are ordinary entries. The time of the earliest timer is valid for one store's key groups
only: reused files keep it, and collected entries leave it out. A subtask without it looks for
the earliest timer (see `state/timers/table.py`).
"""

from __future__ import annotations

from contextlib import ExitStack
from heapq import merge
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast.errors import KeyTypeError, StateError, StoreFullError
from holdfast.serde.key_shapes import KeyShape, other_types
from holdfast.state.backend import FORMAT, OPERATOR_KEY, read_operator
from holdfast.state.catalog import STATE_PREFIX, read_catalog
from holdfast.state.key_groups import scan_groups
from holdfast.state.operator.layout import SUBTASK_PREFIX, layout
from holdfast.state.operator.redistribution import OperatorStateSnapshot
from holdfast.state.schemas import SchemaHistory, change_entries, conversion
from holdfast.state.snapshots import open_snapshot_of
from holdfast.state.store.directories import NO_ROOM
from holdfast.state.store.opening import open_store
from holdfast.state.store.snapshot import built_aside

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from holdfast.config.backends import StateBackend
    from holdfast.state.store.protocol import StateStore, StoreStatistics
    from holdfast.state.store.snapshot import ReadOnlySnapshot

    Entries = Iterator[tuple[bytes, bytes]]

CHUNK_BYTES: Final = 32 * 1024 * 1024
"""Approximate memory for entries in transit."""

_ENTRY_OVERHEAD: Final = 128


def restore_store(
    backend: StateBackend,
    sources: list[Path],
    directory: Path,
    *,
    version: str,
    key_groups: range,
    whole: bool,
    operator_state: OperatorStateSnapshot | None,
    kind: str | None = None,
    chunk_bytes: int = CHUNK_BYTES,
) -> StoreStatistics:
    """Build the local store of a subtask from snapshots.

    Args:
        backend: State backend of the store.
        sources: Directories of snapshots that may have entries of the subtask; they are not
            changed. Files without entries of its key groups may be missing, unless `whole`.
        directory: Directory of the new store. It is created atomically.
        version: Version of the store after the restore.
        key_groups: Key groups of the subtask; other entries are left out.
        whole: Whether the only source is of the same kind and has exactly the subtask's key
            groups, so that its files can be reused unread.
        operator_state: Operator state of the subtask, which replaces that of the sources.
        kind: Kind of the snapshots, see `open_snapshot_of`; None for that of the store.
        chunk_bytes: Approximate memory for entries in transit.

    Raises:
        StoreFullError: The disk has no room for the store.
        StateError: A source cannot be read, the sources contradict each other, or the
            directory exists.
    """
    if whole and len(sources) != 1:
        raise StateError(
            f"{directory}: a store can reuse the files of one snapshot, not of {len(sources)}"
        )
    try:
        with built_aside(directory) as aside:
            if whole:
                return _take_over(backend, sources[0], aside, version, operator_state)
            with ExitStack() as stack:
                kind = kind or backend.name
                snapshots = [
                    (str(one), stack.enter_context(open_snapshot_of(kind, one, partial=True)))
                    for one in sources
                ]
                return _gather(
                    backend, snapshots, aside, version, key_groups, operator_state, chunk_bytes
                )
    except OSError as error:
        failure = StoreFullError if error.errno in NO_ROOM else StateError
        raise failure(
            f"{directory}: the state cannot be restored here ({error}); free space on the disk, "
            "or set `state.local-dir` to a larger one, and start again"
        ) from error


def _take_over(
    backend: StateBackend,
    source: Path,
    aside: Path,
    version: str,
    operator_state: OperatorStateSnapshot | None,
) -> StoreStatistics:
    store = open_store(backend, aside, None, copy_of=source)
    changes: dict[bytes, bytes | None] = {key: None for key, _ in store.scan(SUBTASK_PREFIX)}
    if operator_state is not None:
        changes.update(layout(operator_state))
    return _committed(store, changes.items(), version)


def _gather(
    backend: StateBackend,
    snapshots: list[tuple[str, ReadOnlySnapshot]],
    aside: Path,
    version: str,
    key_groups: range,
    operator_state: OperatorStateSnapshot | None,
    chunk_bytes: int,
) -> StoreStatistics:
    states = _States()
    for name, snapshot in snapshots:
        states.add(name, snapshot)
    own = states.metadata() + list(layout(operator_state or OperatorStateSnapshot()))
    entries = chain(sorted(own), states.entries(key_groups))
    return filled_store(backend, aside, entries, chunk_bytes).commit(version)


def filled_store(
    backend: StateBackend,
    directory: Path,
    entries: Iterable[tuple[bytes, bytes]],
    chunk_bytes: int = CHUNK_BYTES,
) -> StateStore:
    """Open a new store with these entries, written in as many commits as necessary."""
    reached: str | None = None
    for number, chunk in enumerate(chunks(entries, chunk_bytes), 1):
        store = open_store(backend, directory, reached)
        reached = str(number)
        _committed(store, chunk, reached)
    return open_store(backend, directory, reached)


def chunks(
    entries: Iterable[tuple[bytes, bytes]], chunk_bytes: int = CHUNK_BYTES
) -> Iterator[list[tuple[bytes, bytes]]]:
    """The entries in lists of about `chunk_bytes` each."""
    chunk: list[tuple[bytes, bytes]] = []
    size = 0
    for entry in entries:
        chunk.append(entry)
        size += len(entry[0]) + len(entry[1]) + _ENTRY_OVERHEAD
        if size >= chunk_bytes:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _committed(
    store: StateStore, entries: Iterable[tuple[bytes, bytes | None]], version: str
) -> StoreStatistics:
    try:
        store.write(entries)
        return store.commit(version)
    finally:
        store.abort()


class _States:
    """The states of all snapshots, under the ids of the new store."""

    def __init__(self) -> None:
        """No states."""
        self._operator: dict[str, Any] | None = None
        self._states: dict[str, dict[str, Any]] = {}
        """By stored name, in order of the new ids."""
        self._places: dict[str, list[tuple[ReadOnlySnapshot, dict[str, Any]]]] = {}
        """By stored name: the snapshots with the state, and each one's catalog entry."""

    def add(self, source: str, snapshot: ReadOnlySnapshot) -> None:
        """Add the states of one snapshot; they must agree with those before."""
        operator = read_operator(snapshot)
        if operator:
            self._join_operator(source, operator)
        for name, described in read_catalog(snapshot).items():
            mine = self._states.get(name)
            if mine is None:
                mine = self._states[name] = described | {"id": len(self._states) + 1}
            if mine["kind"] != described["kind"]:
                what = f"the kind of state {name!r}"
                raise _disagreement(what, source, described["kind"], mine["kind"])
            # A subtask without input may still have the schema before a change of type.
            history = SchemaHistory.of_entry(mine).joined(SchemaHistory.of_entry(described))
            mine.pop("now", None)
            mine |= history.as_entry()
            self._places.setdefault(name, []).append((snapshot, described))

    def metadata(self) -> list[tuple[bytes, bytes]]:
        """Entries about the operator and its states."""
        entries = [
            (STATE_PREFIX + name.encode(), msgspec.json.encode(described))
            for name, described in self._states.items()
        ]
        if self._operator is not None:
            entries.append((OPERATOR_KEY, msgspec.json.encode(self._operator)))
        return entries

    def entries(self, key_groups: range) -> Entries:
        """Entries of all states in the key groups, in order, under the new ids."""
        for name, mine in self._states.items():
            streams = [
                _marked(_renumbered(snapshot, int(own["id"]), mine["id"], key_groups), own, mine)
                for snapshot, own in self._places[name]
            ]
            yield from streams[0] if len(streams) == 1 else _distinct(merge(*streams))

    def _join_operator(self, source: str, other: dict[str, Any]) -> None:
        if other["format"] != FORMAT:
            raise StateError(
                f"{source}: the snapshot has layout version {other['format']}, this Holdfast "
                f"reads version {FORMAT}; run the job with the Holdfast that wrote it"
            )
        mine = self._operator
        if mine is None:
            self._operator = other
            return
        if mine["max_parallelism"] != other["max_parallelism"]:
            raise _disagreement(
                "the max parallelism", source, other["max_parallelism"], mine["max_parallelism"]
            )
        mine["key"] = _joined_key(source, mine["key"], other["key"])


def _renumbered(
    snapshot: ReadOnlySnapshot, old: int, new: int, key_groups: range
) -> Iterator[tuple[bytes, bytes]]:
    entries, fresh = scan_groups(snapshot, old, key_groups), new.to_bytes(2, "big")
    return entries if old == new else ((fresh + key[2:], value) for key, value in entries)


def _marked(entries: Entries, own: dict[str, Any], joined: dict[str, Any]) -> Entries:
    """Entries of one snapshot, with values marked by schema as in the new store."""
    change = conversion(SchemaHistory.of_entry(own), SchemaHistory.of_entry(joined))
    if change is None:
        return entries
    changed = change_entries(joined["kind"], timed=bool(joined.get("ttl")), change=change)
    return ((key, changed(value)) for key, value in entries)


def _distinct(entries: Iterable[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
    last = b""
    for entry in entries:
        if entry[0] == last:
            raise StateError(
                f"two snapshots have the same entry ({last[:40]!r}): they do not belong to one "
                "checkpoint, or one was passed twice; restore from the snapshots of one checkpoint"
            )
        last = entry[0]
        yield entry


def _joined_key(source: str, mine: str | None, other: str | None) -> str | None:
    if mine is None or other is None:
        return mine or other
    joined = KeyShape(mine).joined(KeyShape(other))
    if joined is None:
        raise KeyTypeError(f"{source}: {other_types(f'{other} in this snapshot', mine)}")
    return joined.name


def _disagreement(what: str, source: str, here: object, before: object) -> StateError:
    return StateError(
        f"{source}: {what} is {here} in this snapshot and {before} in one before it; snapshots "
        "of one checkpoint must agree. Restore from another checkpoint"
    )
