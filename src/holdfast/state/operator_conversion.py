"""Bringing an operator state, which is in memory as a whole, to the type it is declared with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.errors import StateValueError
from holdfast.state.map_keys import MapKeys
from holdfast.state.operator_layout import NONE, SOME
from holdfast.state.schema_registration import migration_error
from holdfast.state.schema_resolution import reading_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.state.codec import Codec
    from holdfast.state.redistribution import NamedState


def converted(state: NamedState, codecs: list[Codec], schema: list[Any]) -> NamedState:
    """The state, of today's type.

    Args:
        state: As it was stored.
        codecs: Codec of its elements, or of a map's values and keys.
        schema: Their schemas.

    Raises:
        StateMigrationError: What is stored cannot be read as declared.
    """
    changes = _changes(state, codecs)
    try:
        elements = list(map(changes[0], state.elements))
        entries = [
            (_some(changes[-1], key), _some(changes[0], value)) for key, value in state.entries
        ]
    except StateValueError as error:
        raise migration_error(f"operator state {state.name!r}", [str(error)]) from error
    if entries and changes[1] is not _same:
        decode = MapKeys(codecs[1]).decode
        keys = [None if key == NONE else decode(key[1:]) for key, _ in entries]
        if len(set(keys)) < len(keys):
            problem = "keys, two of them are equal once they are read as the declared type"
            raise migration_error(f"operator state {state.name!r}", [problem])
    return msgspec.structs.replace(state, schema=schema, elements=elements, entries=entries)


def _changes(state: NamedState, codecs: list[Codec]) -> list[Callable[[bytes], bytes]]:
    """What turns stored bytes into bytes of today, for each of the types."""
    readings = list(map(reading_of, state.schema, codecs))
    problems = [
        name + problem
        for name, reading in zip(("", "keys, "), readings, strict=False)
        for problem in reading.resolution.problems
    ]
    if problems:
        raise migration_error(f"operator state {state.name!r}", problems)
    return [
        _same if reading.resolution.verdict == "as is" else _change(reading.decode, codec)
        for reading, codec in zip(readings, codecs, strict=True)
    ]


def _same(data: bytes) -> bytes:
    return data


def _change(read: Any, codec: Codec) -> Callable[[bytes], bytes]:
    return lambda data: codec.encode(read(data))


def _some(change: Callable[[bytes], bytes], data: bytes) -> bytes:
    return NONE if data == NONE else SOME + change(data[1:])
