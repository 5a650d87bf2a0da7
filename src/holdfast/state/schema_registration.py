"""What a state becomes when it is declared with a type, given all types it has had."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.errors import StateMigrationError
from holdfast.state.schema_history import SchemaHistory
from holdfast.state.schema_resolution import reading_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.state.codec import Codec
    from holdfast.state.schema_resolution import Reading

    Decode = Callable[[bytes], Any]


@dataclass(frozen=True, slots=True)
class Declaration:
    """The schemas of a state, and what reads values of each as such of the declared one."""

    history: SchemaHistory
    readers: dict[str | None, Decode] = field(default_factory=dict)
    """By id; the first schema's by None. Empty if there is only one schema."""


def declared_in(name: str, known: list[SchemaHistory], codecs: list[Codec]) -> Declaration:
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
