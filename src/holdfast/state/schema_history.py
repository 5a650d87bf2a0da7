"""The schemas that a state has had, and how its values tell under which they were written.

What a store knows of a state (`state/catalog.py`) has its first schema and, if its type has
changed since, the others by their ids, and the id of the one that is declared now:

    {"id": 1, "kind": "value", "schema": [...], "others": {"1f2e3d4c": [...]}, "now": "1f2e3d4c"}

Without "now" it is the first. A value of the first schema is stored bare, one of another as

    C1 C1 | id of the schema (4 bytes) | the value's bytes

Neither MessagePack nor the wide form of `state/codec_wide.py` begins with C1 C1. The bytes of
a user's own serializer and of Avro may: when such a state gets a second schema, those of its
values that do are stored with the id of the first schema from then on.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from holdfast.errors import StateError
from holdfast.state.list_table import pack_chunk, unpack_chunk
from holdfast.state.schema_resolution import canonical, schema_id

if TYPE_CHECKING:
    from collections.abc import Callable

    Change = Callable[[bytes], bytes]

MARK: Final = b"\xc1\xc1"
"""What a value begins with that is not stored bare; the id of its schema follows."""
HEAD: Final = 6
"""Bytes before such a value."""

_FREE: Final = ("avro", "serializer")
"""Kinds of schemas whose values may begin with any bytes."""
_NONE: Final = b"\x00"
_TIMED_HEAD: Final = 9
"""Bytes before a value that has a time: that, and a mark for None."""


@dataclass(frozen=True, slots=True)
class SchemaHistory:
    """The schemas of a state: those of its values and, of a map, of its keys."""

    first: list[Any]
    others: dict[str, list[Any]] = field(default_factory=dict)
    """All but the first, by their ids."""
    now: str | None = None
    """Id of the one declared last; None for the first."""

    @staticmethod
    def of_entry(entry: dict[str, Any]) -> SchemaHistory:
        """What a store's entry about a state says."""
        return SchemaHistory(entry["schema"], entry.get("others", {}), entry.get("now"))

    def as_entry(self) -> dict[str, Any]:
        """The part of a store's entry about a state that is about schemas."""
        entry: dict[str, Any] = {"schema": self.first}
        if self.others:
            entry["others"] = self.others
        if self.now is not None:
            entry["now"] = self.now
        return entry

    @property
    def declared(self) -> list[Any]:
        """The schemas declared last."""
        return self.first if self.now is None else self.others[self.now]

    def known(self) -> dict[str | None, list[Any]]:
        """All schemas by their ids; the first by None."""
        known: dict[str | None, list[Any]] = {None: self.first}
        known.update(self.others)
        return known

    def earlier(self) -> dict[str, list[Any]]:
        """All schemas but the one declared last, by their ids."""
        known = {schema_id(self.first): self.first, **self.others}
        return {found: known[found] for found in known if known[found] is not self.declared}

    def declaring(self, schemas: list[Any]) -> SchemaHistory:
        """The history, with schemas that are declared now and are like none before.

        Raises:
            StateError: They have the id of others.
        """
        found = schema_id(schemas)
        return SchemaHistory(self.first, self._with({found: schemas}), found)

    def joined(self, other: SchemaHistory) -> SchemaHistory:
        """All schemas of both; the first one stays.

        Raises:
            StateError: Different schemas have one id.
        """
        others = self._with({schema_id(other.first): other.first, **other.others})
        longer = other if len(other.others) > len(self.others) else self
        now = schema_id(longer.declared)
        return SchemaHistory(self.first, others, now if now in others else None)

    def _with(self, fresh: dict[str, list[Any]]) -> dict[str, list[Any]]:
        own, others = schema_id(self.first), dict(self.others)
        for found, schemas in fresh.items():
            known = self.first if found == own else others.setdefault(found, schemas)
            if _canonical(known) != _canonical(schemas):
                raise StateError(
                    f"two schemas of a state have the id {found}, as one pair in four thousand "
                    "million has; change the type a little, or give the state another name"
                )
        return others


def conversion(source: SchemaHistory, target: SchemaHistory) -> Change | None:
    """How values stored under one history become such of another, which knows all its schemas.

    None if they stay as they are.
    """
    head = MARK + bytes.fromhex(schema_id(source.first))
    if _canonical(source.first) == _canonical(target.first):
        if source.others or not target.others or not _is_free(source.first):
            return None
        return lambda data: head + data if data.startswith(MARK) else data
    if source.others:
        return lambda data: data if data.startswith(MARK) else head + data
    return lambda data: head + data


def in_entries(kind: str, *, timed: bool, change: Change) -> Change:
    """The same change, of what a store holds of a state: `state/table.py`, `state/ttl_layout.py`.

    Args:
        kind: Kind of the state.
        timed: Whether its entries have times.
        change: Change of a value.
    """
    one = _behind_time(change) if timed else change
    if kind == "list":
        return lambda chunk: pack_chunk(list(map(one, unpack_chunk(chunk))))
    if kind == "map":
        return lambda value: value if value == _NONE else value[:1] + one(value[1:])
    return one


def _behind_time(change: Change) -> Change:
    def changed(data: bytes) -> bytes:
        if data[_TIMED_HEAD - 1 :] == _NONE:
            return data
        return data[:_TIMED_HEAD] + change(data[_TIMED_HEAD:])

    return changed


def _is_free(schemas: list[Any]) -> bool:
    return bool(schemas) and schemas[0]["kind"] in _FREE


def _canonical(schemas: list[Any]) -> list[Any]:
    return list(map(canonical, schemas))
