"""Operator state in checkpoints, and its redistribution to new subtasks.

A file with the operator state of one subtask:

    offset  bytes
    0       7       magic, b"hf-opst"
    7       1       number of the format
    8       rest    an `OperatorStateSnapshot` in MessagePack

By the mode of a state, a new subtask gets

    split       its share of all elements, in the order of the old subtasks. Over all split
                states, the numbers of elements differ by at most one. At the same
                parallelism, exactly the elements of its predecessor
    union       all elements of all old subtasks, in their order
    broadcast   one old subtask's copy

Raw partitions are distributed like a split state, raw keyed state by key group. States keep
their order of registration, that of the first subtask first.
"""

from __future__ import annotations

from itertools import accumulate, chain
from typing import Any, Final, Literal, TypeAlias

import msgspec

from holdfast.errors import StateError
from holdfast.state.key_groups import key_groups

Mode: TypeAlias = Literal["split", "union", "broadcast"]
"""How a state is redistributed."""

FORMAT: Final = 1
"""Version of the file format."""

_MAGIC: Final = b"hf-opst"


class NamedState(msgspec.Struct, frozen=True, omit_defaults=True):
    """One operator state of one subtask."""

    name: str
    mode: Mode
    schema: list[Any]
    """Descriptions of the types: of the elements, or of a map's values and keys."""
    elements: list[bytes] = []
    """Encoded elements of a list."""
    entries: list[tuple[bytes, bytes]] = []
    """Keys and values of a broadcast map, each 0x00 for None or 0x01 and its bytes."""


class OperatorStateSnapshot(msgspec.Struct, frozen=True, omit_defaults=True):
    """Operator state and raw state of one subtask."""

    states: list[NamedState] = []
    """In the order of registration."""
    raw_partitions: list[bytes] = []
    raw_key_groups: dict[int, bytes] = {}

    def encode(self) -> bytes:
        """The snapshot as the bytes of a file."""
        return _MAGIC + bytes([FORMAT]) + _encode(self)

    @classmethod
    def decode(cls, data: bytes) -> OperatorStateSnapshot:
        """Snapshot from the bytes of a file.

        Raises:
            StateError: The file is not operator state, is damaged, or has a later format.
        """
        head = len(_MAGIC)
        if not data.startswith(_MAGIC) or len(data) == head:
            raise StateError(
                f"this is no operator state of Holdfast (it starts with {data[:8]!r}); restore "
                "from another checkpoint"
            )
        if data[head] != FORMAT:
            raise StateError(
                f"the operator state has format {data[head]}, and this release reads format "
                f"{FORMAT} only; run the release that wrote it"
            )
        try:
            return _decode(memoryview(data)[head + 1 :])
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise StateError(
                f"the operator state is damaged ({error}); restore from another checkpoint"
            ) from error


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(OperatorStateSnapshot).decode


def redistribute(
    snapshots: list[OperatorStateSnapshot | None], parallelism: int, max_parallelism: int
) -> list[OperatorStateSnapshot]:
    """Operator state of every new subtask.

    Args:
        snapshots: Snapshots of all old subtasks, in order; None for no state.
        parallelism: Number of new subtasks.
        max_parallelism: Number of key groups, which does not change.

    Raises:
        StateError: Two subtasks disagree about a state, or both have a key group.
    """
    old = [snapshot or OperatorStateSnapshot() for snapshot in snapshots]
    states: list[list[NamedState]] = [[] for _ in range(parallelism)]
    cursor = 0
    for copies in _by_name(old):
        present = [copy for copy in copies if copy is not None]
        like = present[0]
        match like.mode:
            case "split":
                lists = [[] if copy is None else copy.elements for copy in copies]
                shares, cursor = _split(lists, parallelism, cursor)
                dealt = [msgspec.structs.replace(like, elements=share) for share in shares]
            case "union":
                everything = list(chain.from_iterable(copy.elements for copy in present))
                dealt = [msgspec.structs.replace(like, elements=everything)] * parallelism
            case "broadcast":
                dealt = [present[i % len(present)] for i in range(parallelism)]
        for mine, state in zip(states, dealt, strict=True):
            mine.append(state)
    partitions, _ = _split([snapshot.raw_partitions for snapshot in old], parallelism, 0)
    groups = _raw_key_groups(old)
    return [
        OperatorStateSnapshot(
            states[i],
            partitions[i],
            {g: groups[g] for g in key_groups(i, parallelism, max_parallelism) if g in groups},
        )
        for i in range(parallelism)
    ]


def _by_name(snapshots: list[OperatorStateSnapshot]) -> list[list[NamedState | None]]:
    """By name: the state of each old subtask."""
    found: dict[str, list[NamedState | None]] = {}
    for subtask, snapshot in enumerate(snapshots):
        for state in snapshot.states:
            copies = found.setdefault(state.name, [None] * len(snapshots))
            _require_agreement(state, subtask, copies)
            copies[subtask] = state
    return list(found.values())


def _require_agreement(state: NamedState, subtask: int, copies: list[NamedState | None]) -> None:
    for other, copy in enumerate(copies):
        if copy is None:
            continue
        # A broadcast map is copied whole, with its schema; one may have an older type.
        for what in ("mode",) if state.mode == "broadcast" else ("mode", "schema"):
            mine, theirs = getattr(state, what), getattr(copy, what)
            if mine != theirs:
                raise StateError(
                    f"operator state {state.name!r}: its {what} is {theirs} on subtask {other} and "
                    f"{mine} on subtask {subtask}; all subtasks of an operator must register a "
                    "state alike. Restore from a checkpoint in which they do"
                )


def _split(
    lists: list[list[bytes]], parallelism: int, cursor: int
) -> tuple[list[list[bytes]], int]:
    """Shares of the new subtasks, and the cursor for the next state.

    Of N elements, each subtask takes N // p consecutive ones. From the cursor on, round robin,
    N % p subtasks take one more, so that the next state's extra elements go to other subtasks.
    """
    if len(lists) == parallelism:
        return lists, cursor
    elements = list(chain.from_iterable(lists))
    base, extra = divmod(len(elements), parallelism)
    sizes = [base + (turn < extra) for turn in range(parallelism)]
    ends = accumulate(sizes)
    shares: list[list[bytes]] = [[] for _ in range(parallelism)]
    for turn, (size, end) in enumerate(zip(sizes, ends, strict=True)):
        shares[(cursor + turn) % parallelism] = elements[end - size : end]
    return shares, (cursor + extra) % parallelism


def _raw_key_groups(snapshots: list[OperatorStateSnapshot]) -> dict[int, bytes]:
    groups: dict[int, bytes] = {}
    for subtask, snapshot in enumerate(snapshots):
        for group, data in snapshot.raw_key_groups.items():
            if group in groups:
                raise StateError(
                    f"raw keyed state: key group {group} was written by subtask {subtask} and by "
                    "one before it; a key group belongs to one subtask. Restore from a "
                    "checkpoint without such state"
                )
            groups[group] = data
    return groups
