"""What a store knows of the states in it: their ids, kinds and types.

Under state id 0, in JSON:

    00 00 | "state" | name    {"id": 1, "kind": "value", "schema": {...}}

A state's id is drawn when it is first registered and never changes. A state whose entries
have times is one of its own, see `state/ttl_layout.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast.errors import StateDescriptorError
from holdfast.state.codec_schema import check_same_schema
from holdfast.state.ttl_layout import (
    SWEEP_PREFIX,
    TTL_SUFFIX,
    adding_time,
    dropping_time,
    stored_name,
)
from holdfast.state.ttl_migration import migrate

if TYPE_CHECKING:
    from holdfast.state.store import StateStore
    from holdfast.state.ttl_time import TtlTime

STATE_PREFIX: Final = b"\x00\x00state"
"""What the keys of the entries about states begin with; their names follow."""


class StateCatalog:
    """The states of one store."""

    def __init__(self, store: StateStore) -> None:
        """Read what the store knows."""
        self._store = store
        self._stored: dict[str, dict[str, Any]] = {
            key[len(STATE_PREFIX) :].decode(): msgspec.json.decode(value)
            for key, value in store.scan(STATE_PREFIX)
        }

    def kind_of(self, name: str) -> str | None:
        """Kind of a state without times; None if it is not known."""
        known = self._stored.get(name)
        return None if known is None else known["kind"]

    def prefix(self, name: str, *, timed: bool) -> bytes:
        """What the keys of a known state's entries begin with."""
        return _prefix(self._stored[stored_name(name, timed=timed)])

    def enter(self, name: str, kind: str, schemas: list[Any], time: TtlTime | None = None) -> int:
        """Id of a state, which is drawn if it is new.

        If its entries have had times and are to have none, or the other way round, all of them
        are changed: those without get the time of now.

        Args:
            name: Name of the state.
            kind: Kind of the state.
            schemas: Types of what it holds.
            time: Gives entries their times, if they have some.

        Raises:
            StateDescriptorError: It is known as another kind, or with other types.
        """
        timed = time is not None
        own, other = stored_name(name, timed=timed), stored_name(name, timed=not timed)
        for stored in (own, other):
            if stored in self._stored:
                _check_fits(name, self._stored[stored], kind, schemas)
        if own not in self._stored:
            self._draw(own, kind, schemas, timed)
        if other in self._stored:
            self._migrate(other, own, time)
        return int(self._stored[own]["id"])

    def descriptions(self) -> list[dict[str, Any]]:
        """Name, kind and schema of every state; `"ttl": True` where entries have times."""
        return [
            {
                "name": stored.removesuffix(TTL_SUFFIX),
                "kind": entry["kind"],
                "schema": entry["schema"],
            }
            | ({"ttl": True} if stored.endswith(TTL_SUFFIX) else {})
            for stored, entry in sorted(self._stored.items())
        ]

    def _draw(self, stored: str, kind: str, schemas: list[Any], timed: bool) -> None:
        state_id = 1 + max((int(entry["id"]) for entry in self._stored.values()), default=0)
        entry: dict[str, Any] = {"id": state_id, "kind": kind, "schema": schemas}
        if timed:
            entry["ttl"] = True
        self._stored[stored] = entry
        self._store.write([(STATE_PREFIX + stored.encode(), msgspec.json.encode(entry))])

    def _migrate(self, old: str, new: str, time: TtlTime | None) -> None:
        """Bring the entries of a state's other form into the one that it has now."""
        gone = self._stored.pop(old)
        kind = gone["kind"]
        changed = dropping_time(kind) if time is None else adding_time(kind, time.stamp())
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


def _check_fits(name: str, known: dict[str, Any], kind: str, schemas: list[Any]) -> None:
    if known["kind"] != kind:
        raise other_kind(name, kind, known["kind"])
    check_same_schema(name, known["schema"], schemas)
