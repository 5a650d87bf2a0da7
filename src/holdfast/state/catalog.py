"""What a store knows of the states in it: their ids, kinds and types.

Under state id 0, in JSON:

    00 00 | "state" | name    {"id": 1, "kind": "value", "schema": [...]}

A state's id is drawn when it is first registered and never changes. If its type changes, the
entry has further schemas, see `state/schemas.py`. A state whose entries have times is
one of its own, see `state/ttl/layout.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast.errors import StateDescriptorError
from holdfast.state.list import pack_chunk, unpack_chunk
from holdfast.state.schemas import SchemaHistory, change_entries, conversion, declare, evolving
from holdfast.state.ttl.layout import (
    SWEEP_PREFIX,
    TTL_SUFFIX,
    adding_time,
    dropping_time,
    stored_name,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.serde.codec import Codec
    from holdfast.state.schemas import Declaration
    from holdfast.state.store.protocol import StateStore
    from holdfast.state.ttl.states import TtlTime


ENTRIES_AT_ONCE: Final = 50_000
"""Most entries that are read before they are written again."""


def migrate(
    store: StateStore,
    kind: str,
    old: bytes,
    new: bytes,
    changed: Callable[[bytes], bytes],
) -> None:
    """Move all entries of one form of a state to the other.

    An entry that the new form has already stays as it is; a chunk of a list goes before it.

    Args:
        store: Where they are.
        kind: Kind of the state.
        old: State id of the form that is given up, as keys begin with it.
        new: State id of the other form.
        changed: Gives a stored value its new form.
    """
    place = old
    while entries := list(islice(store.scan(old, place), ENTRIES_AT_ONCE)):
        keys = [new + key[2:] for key, _ in entries]
        writes: list[tuple[bytes, bytes | None]] = []
        for (gone, value), key, there in zip(entries, keys, store.get_many(keys), strict=True):
            writes.append((gone, None))
            if there is None:
                writes.append((key, changed(value)))
            elif kind == "list":
                writes.append((key, pack_chunk(unpack_chunk(changed(value)) + unpack_chunk(there))))
        store.write(writes)
        place = entries[-1][0] + b"\x00"


STATE_PREFIX: Final = b"\x00\x00state"
"""What the keys of the entries about states begin with; their names follow."""


@dataclass(frozen=True, slots=True)
class RegisteredState:
    """What a table has to know of a state."""

    id: int
    codec: Codec | None
    """Codec of its values, of whatever schema; None of a state that has no types."""


class StateCatalog:
    """The states of one store."""

    def __init__(self, store: StateStore) -> None:
        """Read what the store knows."""
        self._store = store
        self._stored: dict[str, dict[str, Any]] = {
            key[len(STATE_PREFIX) :].decode(): msgspec.json.decode(value)
            for key, value in store.scan(STATE_PREFIX)
        }
        self._declared: dict[str, str | None] = {}
        """Ids of the schemas of those states that were registered."""

    def kind_of(self, name: str) -> str | None:
        """Kind of a state without times; None if it is not known."""
        known = self._stored.get(name)
        return None if known is None else known["kind"]

    def prefix(self, name: str, *, timed: bool) -> bytes:
        """What the keys of a known state's entries begin with."""
        return _prefix(self._stored[stored_name(name, timed=timed)])

    def enter(
        self, name: str, kind: str, codecs: list[Codec], time: TtlTime | None = None
    ) -> RegisteredState:
        """Register a state, whose id is drawn if it is new.

        If its type has changed, values stay as they are stored, and the codec reads them. If its
        entries have had times and are to have none, or the other way round, all of them are
        changed: those without get the time of now.

        Args:
            name: Name of the state.
            kind: Kind of the state.
            codecs: Codec of its values and, of a map, of its keys.
            time: Gives entries their times, if they have some.

        Raises:
            StateDescriptorError: It is known as another kind, or was registered with another
                type since the store was opened.
            StateMigrationError: Its values cannot be read as such of the declared type.
        """
        timed = time is not None
        own, other = stored_name(name, timed=timed), stored_name(name, timed=not timed)
        known = [self._stored[stored] for stored in (own, other) if stored in self._stored]
        for entry in known:
            if entry["kind"] != kind:
                raise other_kind(name, kind, entry["kind"])
        declaration = declare(name, list(map(SchemaHistory.of_entry, known)), codecs)
        self._check_type(name, declaration.history)
        self._keep(own, kind, declaration.history, timed=timed)
        if other in self._stored:
            self._migrate(other, own, time, declaration.history)
        return RegisteredState(int(self._stored[own]["id"]), _codec(codecs, declaration))

    def descriptions(self) -> list[dict[str, Any]]:
        """Name, kind and declared schema of every state.

        `"others"` has the schemas of earlier values by their ids, if there are any; `"ttl"` is
        true where entries have times.
        """
        return [_described(stored, entry) for stored, entry in sorted(self._stored.items())]

    def _check_type(self, name: str, history: SchemaHistory) -> None:
        now = self._declared.setdefault(name, history.now)
        if now != history.now:
            raise StateDescriptorError(
                f"state {name!r} was asked for with another type before; give all descriptors of "
                "a state the same one"
            )

    def _keep(self, stored: str, kind: str, history: SchemaHistory, *, timed: bool) -> None:
        """Let the entry about a state be right, and with it what is in the store."""
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
        place = prefix
        while entries := list(islice(self._store.scan(prefix, place), ENTRIES_AT_ONCE)):
            changed = [(key, change(value), value) for key, value in entries]
            self._store.write([(key, new) for key, new, old in changed if new != old])
            place = entries[-1][0] + b"\x00"

    def _migrate(self, old: str, new: str, time: TtlTime | None, history: SchemaHistory) -> None:
        """Bring the entries of a state's other form into the one that it has now."""
        gone = self._stored.pop(old)
        kind = gone["kind"]
        changed = dropping_time(kind) if time is None else adding_time(kind, time.stamp())
        change = conversion(SchemaHistory.of_entry(gone), history)
        if change is not None:
            changed = _both(change_entries(kind, timed=time is None, change=change), changed)
        migrate(self._store, kind, _prefix(gone), _prefix(self._stored[new]), changed)
        keys = [STATE_PREFIX + old.encode(), SWEEP_PREFIX + old.encode()]
        self._store.write([(key, None) for key in keys])


def other_kind(name: str, kind: str, known: str) -> StateDescriptorError:
    """The error for a state that is asked for as another kind than it is."""
    return StateDescriptorError(
        f"state name {name!r} is already in use for a {known} state of this operator and "
        f"cannot be a {kind} state too; choose another name"
    )


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
