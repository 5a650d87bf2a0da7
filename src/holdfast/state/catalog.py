"""Catalog of the states in a store: ids, kinds and types.

Under state id 0, in JSON:

    00 00 | "state" | name    {"id": 1, "kind": "value", "schema": [...]}

A state gets its id when it is first registered; the id never changes. If its type changes, the
entry has more schemas, see `state/schemas.py`. A state with TTL has a separate entry, see
`state/ttl/layout.py`.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast.errors import StateDescriptorError
from holdfast.state.list import pack_chunk, unpack_chunk
from holdfast.state.schemas import SchemaHistory, change_entries, conversion, declare, evolving
from holdfast.state.store.header import corrupt_store
from holdfast.state.ttl.layout import (
    SWEEP_PREFIX,
    TTL_SUFFIX,
    adding_time,
    dropping_time,
    stored_name,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from holdfast.serde.codec import Codec
    from holdfast.state.schemas import Declaration
    from holdfast.state.store.protocol import StateStore
    from holdfast.state.store.snapshot import ReadOnlySnapshot
    from holdfast.state.ttl.states import TtlTime


ENTRIES_AT_ONCE: Final = 50_000
"""Maximum number of entries that are read before they are written."""


def _move(
    store: StateStore, kind: str, old: bytes, new: bytes, changed: Callable[[bytes], bytes]
) -> None:
    """Move all entries of a state to another state id, with changed values.

    An entry that exists under the new id is kept; for a list, the old chunk goes before it.
    """
    for entries in batches(store, old):
        keys = [new + key[2:] for key, _ in entries]
        writes: list[tuple[bytes, bytes | None]] = []
        for (gone, value), key, there in zip(entries, keys, store.get_many(keys), strict=True):
            writes.append((gone, None))
            if there is None:
                writes.append((key, changed(value)))
            elif kind == "list":
                writes.append((key, pack_chunk(unpack_chunk(changed(value)) + unpack_chunk(there))))
        store.write(writes)


def batches(
    store: StateStore, prefix: bytes, at_once: int = ENTRIES_AT_ONCE
) -> Iterator[list[tuple[bytes, bytes]]]:
    """All entries under a prefix, a bounded number at a time; no scan stays open."""
    place = prefix
    while entries := list(islice(store.scan(prefix, place), at_once)):
        yield entries
        place = entries[-1][0] + b"\x00"


STATE_PREFIX: Final = b"\x00\x00state"
"""Prefix of the entries about states; the state's name follows."""


class StateCatalog:
    """The states of one store."""

    def __init__(self, store: StateStore) -> None:
        """Read the catalog of a store.

        Raises:
            CorruptStoreError: It is damaged.
        """
        self._store = store
        self._declared: dict[str, str | None] = {}
        """Schema ids of the registered states."""
        self.reload()

    def reload(self) -> None:
        """Read the catalog again, since another process has written to the store."""
        try:
            self._stored = read_catalog(self._store)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise corrupt_store(self._store.place, error) from error

    def kind_of(self, name: str) -> str | None:
        """Kind of a state without TTL; None if it is not in the catalog."""
        known = self._stored.get(name)
        return None if known is None else known["kind"]

    def has_id(self, name: str, state_id: int) -> bool:
        """Whether a state, with or without TTL, is in the catalog with that id."""
        entries = (self._stored.get(stored_name(name, timed=timed)) for timed in (False, True))
        return any(entry is not None and entry["id"] == state_id for entry in entries)

    def prefix(self, name: str, *, timed: bool) -> bytes:
        """Prefix of the entries of a state in the catalog."""
        return _prefix(self._stored[stored_name(name, timed=timed)])

    def enter(
        self, name: str, kind: str, codecs: list[Codec], time: TtlTime | None = None
    ) -> tuple[int, Codec | None]:
        """Register a state; a new state gets an id.

        If its type has changed, stored values stay as they are and the codec converts them when
        they are read. If TTL was turned on or off, all entries are rewritten; entries without a
        time get the current time.

        Args:
            name: Name of the state.
            kind: Kind of the state.
            codecs: Codec of its values and, of a map, of its keys.
            time: Time of entries, for a state with TTL.

        Returns:
            Its id, and the codec that reads values of every schema; None without types.

        Raises:
            StateDescriptorError: It has another kind, or was registered with another type since
                the store was opened.
            StateMigrationError: Its values cannot be read as the declared type.
        """
        timed = time is not None
        own, other = stored_name(name, timed=timed), stored_name(name, timed=not timed)
        known = [self._stored[stored] for stored in (own, other) if stored in self._stored]
        for entry in known:
            if entry["kind"] != kind:
                of = other_kind if name in self._declared else stored_as
                raise of(name, kind, entry["kind"])
        declaration = declare(name, list(map(SchemaHistory.of_entry, known)), codecs)
        self._check_type(name, declaration.history)
        self._keep(own, kind, declaration.history, timed=timed)
        if other in self._stored:
            self._migrate(other, own, time, declaration.history)
        return int(self._stored[own]["id"]), _codec(codecs, declaration)

    def descriptions(self) -> list[dict[str, Any]]:
        """Name, kind and declared schema of every state.

        `"others"` has the schemas of earlier values by id, if there are any; `"ttl"` is true
        for a state with TTL.
        """
        return [_described(stored, entry) for stored, entry in sorted(self._stored.items())]

    def _check_type(self, name: str, history: SchemaHistory) -> None:
        now = self._declared.setdefault(name, history.now)
        if now != history.now:
            raise StateDescriptorError(
                f"state {name!r} was registered with another type before; give all descriptors of "
                "a state the same one"
            )

    def _keep(self, stored: str, kind: str, history: SchemaHistory, *, timed: bool) -> None:
        """Update the entry about a state, and convert its values if the entry requires it."""
        known = self._stored.get(stored)
        if known is None:
            drawn = 1 + max((int(entry["id"]) for entry in self._stored.values()), default=0)
        else:
            if SchemaHistory.of_entry(known) == history:
                return
            drawn = int(known["id"])
            change = conversion(SchemaHistory.of_entry(known), history)
            if change is not None:
                self._change(_prefix(known), change_entries(kind, timed=timed, change=change))
        entry: dict[str, Any] = {"id": drawn, "kind": kind, **history.as_entry()}
        if timed:
            entry["ttl"] = True
        self._stored[stored] = entry
        self._store.write([(STATE_PREFIX + stored.encode(), msgspec.json.encode(entry))])

    def _change(self, prefix: bytes, change: Callable[[bytes], bytes]) -> None:
        for entries in batches(self._store, prefix):
            changed = [(key, change(value), value) for key, value in entries]
            self._store.write([(key, new) for key, new, old in changed if new != old])

    def _migrate(self, old: str, new: str, time: TtlTime | None, history: SchemaHistory) -> None:
        """Move the entries of a state between the forms with and without TTL."""
        gone = self._stored.pop(old)
        kind = gone["kind"]
        changed = dropping_time(kind) if time is None else adding_time(kind, time.stamp())
        change = conversion(SchemaHistory.of_entry(gone), history)
        if change is not None:
            changed = _both(change_entries(kind, timed=time is None, change=change), changed)
        _move(self._store, kind, _prefix(gone), _prefix(self._stored[new]), changed)
        keys = [STATE_PREFIX + old.encode(), SWEEP_PREFIX + old.encode()]
        self._store.write([(key, None) for key in keys])


def read_catalog(source: StateStore | ReadOnlySnapshot) -> dict[str, dict[str, Any]]:
    """Entries about the states of a store, by stored name."""
    return {
        key[len(STATE_PREFIX) :].decode(): msgspec.json.decode(value)
        for key, value in source.scan(STATE_PREFIX)
    }


def other_kind(name: str, kind: str, known: str) -> StateDescriptorError:
    """The error for a state that the operator has registered with another kind."""
    return StateDescriptorError(
        f"state name {name!r} is already in use for {_a(known)} state of this operator and "
        f"cannot be {_a(kind)} state too; choose another name"
    )


def stored_as(name: str, kind: str, stored: str) -> StateDescriptorError:
    """The error for a state that is stored with another kind."""
    return StateDescriptorError(
        f"state {name!r} is stored as {_a(stored)} state, and is now declared as {_a(kind)} state; "
        f"declare it as {_a(stored)} state, or use another name, under which it starts empty"
    )


def _a(kind: str) -> str:
    return f"an {kind}" if kind.startswith("a") else f"a {kind}"


def _prefix(entry: dict[str, Any]) -> bytes:
    return int(entry["id"]).to_bytes(2, "big")


def _codec(codecs: list[Codec], declaration: Declaration) -> Codec | None:
    if not codecs:
        return None
    if not declaration.history.others:
        return codecs[0]
    return evolving(codecs[0], declaration.history, declaration.readers)


def _described(stored: str, entry: dict[str, Any]) -> dict[str, Any]:
    history = SchemaHistory.of_entry(entry)
    described = {
        "name": stored.removesuffix(TTL_SUFFIX),
        "kind": entry["kind"],
        "schema": history.declared,
    }
    if history.others:
        described["others"] = history.earlier()
    if stored.endswith(TTL_SUFFIX):
        described["ttl"] = True
    return described


def _both(
    first: Callable[[bytes], bytes], second: Callable[[bytes], bytes]
) -> Callable[[bytes], bytes]:
    return lambda data: second(first(data))
