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

from typing import TYPE_CHECKING, Final

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
    states: dict[bytes, NamedState] = {}
    orders: dict[str, int] = {}
    partitions: list[bytes] = []
    groups: dict[int, bytes] = {}
    for key, value in entries:
        kind, rest = key[: len(META)], key[len(META) :]
        if kind == META:
            name, meta = rest.decode(), msgspec.json.decode(value)
            states[content_prefix(name)] = NamedState(name, meta["mode"], meta["schema"], [], [])
            orders[name] = int(meta["order"])
        elif kind == CONTENT:
            _, end = length_prefixed(key, len(CONTENT))
            state = states[key[:end]]
            if state.mode == "broadcast":
                state.entries.append((key[end:], value))
            else:
                state.elements.append(value)
        elif kind == PARTITION:
            partitions.append(value)
        else:
            groups[int.from_bytes(rest, "big")] = value
    ordered = sorted(states.values(), key=lambda state: orders[state.name])
    return OperatorStateSnapshot(ordered, partitions, groups)


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
