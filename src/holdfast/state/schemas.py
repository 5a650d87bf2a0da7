"""The schemas that a state has had: their history, and the codec that reads them all.

What a store knows of a state (`state/catalog.py`) has its first schema and, if its type has
changed since, the others by their ids, and the id of the one that is declared now:

    {"id": 1, "kind": "value", "schema": [...], "others": {"1f2e3d4c": [...]}, "now": "1f2e3d4c"}

Without "now" it is the first. A value of the first schema is stored bare, one of another as

    C1 C1 | id of the schema (4 bytes) | the value's bytes

Neither MessagePack nor the wide form of `serde/extended.py` begins with C1 C1. The bytes of
a user's own serializer and of Avro may: when such a state gets a second schema, those of its
values that do are stored with the id of the first schema from then on.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast.errors import StateError, StateMigrationError, StateValueError
from holdfast.serde.reading import reading_of
from holdfast.state.list import pack_chunk, unpack_chunk
from holdfast.types.compatibility import canonical, schema_id

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from holdfast.serde.codec import Codec, Reading


if TYPE_CHECKING:
    Decode = Callable[[bytes], Any]


@dataclass(frozen=True, slots=True)
class Declaration:
    """The schemas of a state, and what reads values of each as such of the declared one."""

    history: SchemaHistory
    readers: dict[str | None, Decode] = field(default_factory=dict)
    """By id; the first schema's by None. Empty if there is only one schema."""


def declare(name: str, known: list[SchemaHistory], codecs: list[Codec]) -> Declaration:
    """Declare a state anew.

    Args:
        name: Name of the state.
        known: What stores know of it: nothing if it is new, or two histories if some of its
            entries have times and some have none.
        codecs: Codec of its values and, of a map, of its keys.

    Raises:
        StateMigrationError: Values or keys of some schema cannot be read as declared.
    """
    schemas = as_stored([codec.schema for codec in codecs])
    if not known:
        return Declaration(SchemaHistory(schemas))
    if known == [SchemaHistory(schemas)]:
        return Declaration(known[0])
    history = known[0]
    for other in known[1:]:
        history = history.joined(other)
    readings = _readings(name, history, codecs)
    for found in (history.now, *history.known()):
        if readings[found].resolution.verdict == "as is":
            history = SchemaHistory(history.first, history.others, found)
            break
    else:
        history = history.declaring(schemas)
    readers = {found: _decode(reading) for found, reading in readings.items()}
    if history.now is not None:
        readers[history.now] = codecs[0].decode
    return Declaration(history, readers)


def as_stored(schemas: list[Any]) -> list[Any]:
    """Schemas as they are read again from JSON."""
    found: list[Any] = msgspec.json.decode(msgspec.json.encode(schemas))
    return found


def migration_error(what: str, problems: list[str]) -> StateMigrationError:
    """The error for a state that cannot be read as declared.

    Args:
        what: Kind and name of the state.
        problems: All that is wrong.
    """
    lines = "".join(f"\n  {problem}" for problem in dict.fromkeys(problems))
    return StateMigrationError(
        f"{what} was written with the type of an earlier program, and cannot be read as the one "
        f"that is declared now:{lines}\n"
        "Make the type one that can hold what is stored, as docs/schema-evolution.md says, or "
        "give the state another name to start it empty"
    )


def _readings(name: str, history: SchemaHistory, codecs: list[Codec]) -> dict[str | None, Reading]:
    readings: dict[str | None, Reading] = {}
    problems: list[str] = []
    for found, stored in history.known().items():
        if not stored:
            continue
        readings[found] = reading_of(stored[0], codecs[0])
        problems += readings[found].resolution.problems
        for schema, codec in zip(stored[1:], codecs[1:], strict=True):
            problems += _key_problems(reading_of(schema, codec))
    if problems:
        raise migration_error(f"state {name!r}", problems)
    return readings


def _key_problems(reading: Reading) -> list[str]:
    match reading.resolution.verdict:
        case "as is":
            return []
        case "after migration":
            return ["keys: are of another type; the keys of a map cannot change"]
    return [
        f"keys: {problem.removeprefix('value: ')}; the keys of a map cannot change"
        for problem in reading.resolution.problems
    ]


def _decode(reading: Reading) -> Decode:
    assert reading.decode is not None
    return reading.decode


def evolving(codec: Codec, history: SchemaHistory, readers: Mapping[str | None, Decode]) -> Codec:
    """Codec of values that were written under any schema of a history.

    Args:
        codec: Codec of today's type.
        history: The schemas; the one of `codec` is declared now.
        readers: By the ids of all of them, the first by None: what reads their values.
    """
    first = bytes.fromhex(schema_id(history.first))
    by_id = {bytes.fromhex(name): read for name, read in readers.items() if name is not None}
    by_id[first] = readers[None]
    bare, encode = readers[None], codec.encode

    def decode(data: bytes) -> Any:
        if not data.startswith(MARK):
            return bare(data)
        read = by_id.get(data[2:HEAD])
        if read is None:
            raise StateValueError(
                f"a stored value names the schema {data[2:HEAD].hex()}, which its store does not "
                "know; restore from another checkpoint"
            )
        return read(data[HEAD:])

    if history.now is None:
        head = MARK + first

        def encode_bare(value: Any) -> bytes:
            data = encode(value)
            return head + data if data.startswith(MARK) else data

        own = encode_bare
    else:
        mark = MARK + bytes.fromhex(history.now)

        def encode_marked(value: Any) -> bytes:
            return mark + encode(value)

        own = encode_marked
    return replace(codec, encode=own, decode=decode, canonical=False, reading=None)


if TYPE_CHECKING:
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


def change_entries(kind: str, *, timed: bool, change: Change) -> Change:
    """The same change, of what a store holds of a state: `state/table.py`, `state/ttl/layout.py`.

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
