"""Layout of operator state in a store.

    00 00 | "subtask" | 01 | name                     {"order": 0, "mode": "split",
                                                       "schema": [...]} in JSON
    00 00 | "subtask" | 02 | length | name | number   an element of a list
    00 00 | "subtask" | 02 | length | name | key      an entry of a broadcast map
    00 00 | "subtask" | 03 | number                   a partition of raw operator state
    00 00 | "subtask" | 04 | key group (2 bytes)      raw keyed state of the key group

Numbers have 4 bytes, big-endian, and count from 0; a length is a varint. Keys and values
of a map are 0x00 for None, or 0x01 and their bytes. The layout is part of the store format
(`state/backend.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast.serde.key_reader import length_prefixed
from holdfast.serde.keys import framed
from holdfast.state.operator.redistribution import NamedState, OperatorStateSnapshot

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping


SUBTASK_PREFIX: Final = b"\x00\x00subtask"
"""Prefix of all entries of operator state."""

META: Final = SUBTASK_PREFIX + b"\x01"
CONTENT: Final = SUBTASK_PREFIX + b"\x02"
PARTITION: Final = SUBTASK_PREFIX + b"\x03"
KEY_GROUP: Final = SUBTASK_PREFIX + b"\x04"
MOST_KEY_GROUPS: Final = 2**15


def layout(snapshot: OperatorStateSnapshot) -> Iterator[tuple[bytes, bytes]]:
    """Store entries of the snapshot, in no particular order."""
    for order, state in enumerate(snapshot.states):
        yield meta_entry(order, state)
        prefix = content_prefix(state.name)
        yield from ((prefix + number_bytes(i), data) for i, data in enumerate(state.elements))
        yield from ((prefix + key, value) for key, value in state.entries)
    yield from raw_layout(snapshot.raw_partitions, snapshot.raw_key_groups)


def read_layout(entries: Iterable[tuple[bytes, bytes]]) -> OperatorStateSnapshot:
    """Snapshot from a store's entries under `SUBTASK_PREFIX`, in key order."""
    metas: list[dict[str, Any]] = []
    contents: list[tuple[bytes, bytes]] = []
    partitions: list[bytes] = []
    groups: dict[int, bytes] = {}
    for key, value in entries:
        match key[: len(META)]:
            case kind if kind == META:
                metas.append(msgspec.json.decode(value) | {"name": key[len(META) :].decode()})
            case kind if kind == CONTENT:
                contents.append((key, value))
            case kind if kind == PARTITION:
                partitions.append(value)
            case _:
                groups[int.from_bytes(key[len(KEY_GROUP) :], "big")] = value
    metas.sort(key=lambda meta: int(meta["order"]))
    return OperatorStateSnapshot(_named_states(metas, contents), partitions, groups)


def _named_states(
    metas: list[dict[str, Any]], contents: list[tuple[bytes, bytes]]
) -> list[NamedState]:
    """The states with their contents."""
    found: dict[bytes, NamedState] = {}
    for meta in metas:
        name = meta["name"]
        state = NamedState(name, meta["mode"], meta["schema"], [], [])
        found[content_prefix(name)] = state
    for key, value in contents:
        _, end = length_prefixed(key, len(CONTENT))
        state = found[key[:end]]
        if state.mode == "broadcast":
            state.entries.append((key[end:], value))
        else:
            state.elements.append(value)
    return list(found.values())


def meta_entry(order: int, state: NamedState) -> tuple[bytes, bytes]:
    """The entry that describes a state; `order` is its position of registration."""
    described = {"order": order, "mode": state.mode, "schema": state.schema}
    return META + state.name.encode(), msgspec.json.encode(described)


def content_prefix(name: str) -> bytes:
    """Prefix of all contents of a state."""
    return CONTENT + framed(name.encode())


def raw_layout(
    partitions: list[bytes], key_groups: Mapping[int, bytes]
) -> Iterator[tuple[bytes, bytes]]:
    """Store entries of raw state."""
    yield from ((PARTITION + number_bytes(i), data) for i, data in enumerate(partitions))
    yield from ((KEY_GROUP + g.to_bytes(2, "big"), data) for g, data in key_groups.items())


def number_bytes(index: int) -> bytes:
    """Bytes of a number in a key."""
    return index.to_bytes(4, "big")
