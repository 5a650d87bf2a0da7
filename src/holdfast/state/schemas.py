"""History of a state's schemas, and the codec that reads values of all of them.

The catalog entry of a state (`state/catalog.py`) has its first schema. If the type has
changed, it also has the other schemas by id, and the id of the current one:

    {"id": 1, "kind": "value", "schema": [...], "others": {"1f2e3d4c": [...]}, "now": "1f2e3d4c"}

Without "now" the first is current. A value of the first schema is stored bare, others as

    C1 C1 | id of the schema (4 bytes) | the value's bytes

Neither MessagePack nor its extended form (`serde/extended.py`) begins with C1 C1. The bytes of
a user's serializer and of Avro may: once the state has a second schema, its values that begin
with C1 C1 are stored with the id of the first schema.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast.errors import StateError, StateMigrationError, StateValueError
from holdfast.serde.factory import codec_for
from holdfast.serde.reading import reading_of
from holdfast.state.list import pack_chunk, unpack_chunk
from holdfast.state.table import NONE
from holdfast.state.ttl.layout import TIMED_HEAD
from holdfast.types.compatibility import canonical, schema_id

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from holdfast.serde.codec import Codec, Reading

    Decode = Callable[[bytes], Any]
    Change = Callable[[bytes], bytes]


@dataclass(frozen=True, slots=True)
class Declaration:
    """Schemas of a state, and the decoder of each that returns declared values."""

    history: SchemaHistory
    readers: dict[str | None, Decode] = field(default_factory=dict)
    """Decoders by schema id, None for the first schema. Empty if there is only one schema."""


def declare(name: str, known: list[SchemaHistory], codecs: list[Codec]) -> Declaration:
    """Declare the type of a state.

    Args:
        name: Name of the state.
        known: Its histories in the catalog: none if it is new, two if it exists both with and
            without TTL.
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


def declared_codec(spec: object, lack: str, warnings: list[str]) -> Codec:
    """Codec of a declared type; adds a warning if values are pickled.

    Args:
        spec: The type.
        lack: What the warning says is missing.
        warnings: List that gets the warning.
    """
    codec = codec_for(spec)
    if codec.pickled:
        warnings.append(
            f"{lack} and is pickled, which is slow and cannot evolve; give its descriptor one"
        )
    return codec


def as_stored(schemas: list[Any]) -> list[Any]:
    """Schemas as decoded from their JSON."""
    found: list[Any] = msgspec.json.decode(msgspec.json.encode(schemas))
    return found


def migration_error(what: str, problems: list[str]) -> StateMigrationError:
    """The error for a state that cannot be read as declared.

    Args:
        what: Kind and name of the state.
        problems: All problems.
    """
    lines = "".join(f"\n  {problem}" for problem in dict.fromkeys(problems))
    return StateMigrationError(
        f"{what} was written with the type of an earlier program and cannot be read as the type "
        f"that is declared now:{lines}\n"
        "Declare a type that can hold the stored values (see docs/schema-evolution.md), or give "
        "the state another name to start empty"
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
    """Codec of values written under any schema of a history.

    Args:
        codec: Codec of the declared type.
        history: The schemas; that of `codec` is the current one.
        readers: Decoders by schema id, None for the first schema.
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


MARK: Final = b"\xc1\xc1"
"""First bytes of a value that is not stored bare; the id of its schema follows."""

HEAD: Final = 6
"""Length of the mark and the schema id."""


_FREE: Final = ("avro", "serializer")
"""Kinds of schemas whose values may begin with `MARK`."""


@dataclass(frozen=True, slots=True)
class SchemaHistory:
    """Schemas of a state: of its values and, for a map, of its keys."""

    first: list[Any]
    others: dict[str, list[Any]] = field(default_factory=dict)
    """All but the first, by id."""
    now: str | None = None
    """Id of the current schema; None for the first."""

    @staticmethod
    def of_entry(entry: dict[str, Any]) -> SchemaHistory:
        """History in a catalog entry."""
        return SchemaHistory(entry["schema"], entry.get("others", {}), entry.get("now"))

    def as_entry(self) -> dict[str, Any]:
        """History as fields of a catalog entry."""
        entry: dict[str, Any] = {"schema": self.first}
        if self.others:
            entry["others"] = self.others
        if self.now is not None:
            entry["now"] = self.now
        return entry

    @property
    def declared(self) -> list[Any]:
        """The current schemas."""
        return self.first if self.now is None else self.others[self.now]

    def known(self) -> dict[str | None, list[Any]]:
        """All schemas by id, None for the first."""
        known: dict[str | None, list[Any]] = {None: self.first}
        known.update(self.others)
        return known

    def earlier(self) -> dict[str, list[Any]]:
        """All schemas but the current one, by id."""
        known = {schema_id(self.first): self.first, **self.others}
        return {found: known[found] for found in known if known[found] is not self.declared}

    def declaring(self, schemas: list[Any]) -> SchemaHistory:
        """The history with new current schemas.

        Raises:
            StateError: Their id belongs to other schemas.
        """
        found = schema_id(schemas)
        return SchemaHistory(self.first, self._with({found: schemas}), found)

    def joined(self, other: SchemaHistory) -> SchemaHistory:
        """All schemas of both histories; the first schema stays first.

        Raises:
            StateError: Different schemas have the same id.
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
                    f"two different schemas of a state have the same id {found}, by chance; change "
                    "the type slightly, or give the state another name"
                )
        return others


def conversion(source: SchemaHistory, target: SchemaHistory) -> Change | None:
    """Conversion of stored values between histories; None if they do not change.

    `target` contains all schemas of `source`.
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
    """Apply a change of values to store entries (`state/table.py`, `state/ttl/layout.py`).

    Args:
        kind: Kind of the state.
        timed: Whether the state has TTL.
        change: Change of a value.
    """
    one = _behind_time(change) if timed else change
    if kind == "list":
        return lambda chunk: pack_chunk(list(map(one, unpack_chunk(chunk))))
    if kind == "map":
        return lambda value: value if value == NONE else value[:1] + one(value[1:])
    return one


def _behind_time(change: Change) -> Change:
    def changed(data: bytes) -> bytes:
        if data[TIMED_HEAD - 1 :] == NONE:
            return data
        return data[:TIMED_HEAD] + change(data[TIMED_HEAD:])

    return changed


def _is_free(schemas: list[Any]) -> bool:
    return bool(schemas) and schemas[0]["kind"] in _FREE


def _canonical(schemas: list[Any]) -> list[Any]:
    return list(map(canonical, schemas))
