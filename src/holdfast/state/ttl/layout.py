"""Layout of entries of a state with a time to live (TTL).

A state with TTL is separate from a plain state of the same name. Its catalog entry
(`state/catalog.py`) is

    00 00 | "state" | name | 00 | "ttl"    {"id": 2, "kind": "value", "schema": {...}, "ttl": true}

with the schema of the values alone. Each value comes after its time (8 bytes, big-endian, sign
bit flipped) and a mark, 00 for None or 01:

    value, reducing, aggregating    time | 01 | value
    list, each element of a chunk   time | 01 | element
    map                             01 | time | 00, or: 01 | time | 01 | value

The smallest time, eight zero bytes, means that the time is unknown. The progress of the sweep
(`state/ttl/sweep.py`) is stored as

    00 00 | "sweep" | name | 00 | "ttl"    start time of the pass (8 bytes, as above)
                                           | entries checked (8 bytes, big-endian)
                                           | entries removed (8 bytes, big-endian)
                                           | next key; empty if the pass is over

A store collected from several stores has no such entry; its first sweep starts a new pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

from holdfast.errors import CorruptStoreError
from holdfast.serde.codec import Codec
from holdfast.state.list import pack_chunk, unpack_chunk
from holdfast.state.store.header import RECOVERY
from holdfast.state.table import NONE, SOME
from holdfast.state.timers.layout import FIRST_TIME, time_bytes, time_of

if TYPE_CHECKING:
    from collections.abc import Callable

TTL_SUFFIX: Final = "\0ttl"
"""Suffix of the stored name of a state with TTL."""
SWEEP_PREFIX: Final = b"\x00\x00sweep"
"""Prefix of the entries about sweeps; the stored name follows."""
UNKNOWN: Final = time_bytes(FIRST_TIME)
"""Stored bytes of an unknown time."""

TIMED_HEAD: Final = 9
"""Length of the time and the mark before a value."""
_COUNTS: Final = Struct(">QQ")


def stored_name(name: str, *, timed: bool) -> str:
    """Name of a state in the store."""
    return name + TTL_SUFFIX if timed else name


def ttl_codec(codec: Codec) -> Codec:
    """Codec of pairs of a time and a value of `codec`, or None."""
    encode, decode, check, exact = codec.encode, codec.decode, codec.check, codec.exact_type

    def encode_pair(pair: tuple[int, Any]) -> bytes:
        time, value = pair
        return time_bytes(time) + (NONE if value is None else SOME + encode(value))

    def decode_pair(data: bytes) -> tuple[int, Any]:
        if len(data) < TIMED_HEAD:
            raise CorruptStoreError(
                f"a value in the store has {len(data)} bytes, too few for the time of a state with "
                f"a time to live; it is damaged. {RECOVERY}"
            )
        return time_of(data[:8]), None if data[8] == 0 else decode(data[TIMED_HEAD:])

    def check_pair(pair: tuple[int, Any]) -> None:
        value = pair[1]
        if type(value) is not exact and value is not None:
            check(value)

    return Codec(
        encode_pair,
        decode_pair,
        check_pair,
        codec.schema,
        immutable=codec.immutable,
        pickled=codec.pickled,
    )


def time_at(kind: str) -> int:
    """Offset of the time in a stored value; not for lists."""
    return 1 if kind == "map" else 0


def adding_time(kind: str, time: int) -> Callable[[bytes], bytes]:
    """Function that adds a time to a stored value."""
    stamp = time_bytes(time)
    if kind == "map":
        # The values of a plain map begin with the same mark.
        return lambda value: SOME + stamp + value
    head = stamp + SOME
    if kind == "list":
        return lambda chunk: pack_chunk([head + element for element in unpack_chunk(chunk)])
    return lambda value: head + value


def dropping_time(kind: str) -> Callable[[bytes], bytes]:
    """Function that removes the time from a stored value."""
    if kind == "list":
        return lambda chunk: pack_chunk([element[TIMED_HEAD:] for element in unpack_chunk(chunk)])
    return lambda value: value[TIMED_HEAD:]


@dataclass(slots=True)
class Cursor:
    """Progress of the sweep of a state."""

    began: int | None = None
    """Start time of the pass; None before the first."""
    looked: int = 0
    """Entries checked in this pass."""
    removed: int = 0
    """Entries removed in this pass."""
    place: bytes = b""
    """Next key; empty if no pass is running."""

    @staticmethod
    def decoded(data: bytes | None) -> Cursor:
        """Cursor of stored bytes; a new one for None."""
        if data is None:
            return Cursor()
        looked, removed = _COUNTS.unpack_from(data, 8)
        return Cursor(time_of(data[:8]), looked, removed, data[24:])

    def encoded(self) -> bytes:
        """Stored bytes of the cursor."""
        assert self.began is not None
        return time_bytes(self.began) + _COUNTS.pack(self.looked, self.removed) + self.place
