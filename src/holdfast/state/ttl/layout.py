"""How entries lie in a store whose state has a time to live.

A state with times is one of its own, beside a plain one of the same name: what is known of it
(`state/catalog.py`) lies under

    00 00 | "state" | name | 00 | "ttl"    {"id": 2, "kind": "value", "schema": {...}, "ttl": true}

with the schema of the values alone. Each value is preceded by its time (8 bytes, big-endian,
sign bit flipped) and a mark, 00 for None or 01:

    value, reducing, aggregating    time | 01 | value
    list, each element of a chunk   time | 01 | element
    map                             01 | time | 00, or: 01 | time | 01 | value

The smallest time, eight zero bytes, stands for one that is not known yet. Where the sweep of
`state/ttl/sweep.py` has come to lies under

    00 00 | "sweep" | name | 00 | "ttl"    time at which the pass began (8 bytes, as above)
                                           | entries it has looked at (8 bytes, big-endian)
                                           | entries it has removed (8 bytes, big-endian)
                                           | key to go on with; no bytes if the pass is over

A store that was gathered from several has no such entry: its first sweep begins anew.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

from holdfast.serde.codec import Codec
from holdfast.state.list import pack_chunk, unpack_chunk
from holdfast.state.timers.layout import FIRST_TIME, time_bytes, time_of

if TYPE_CHECKING:
    from collections.abc import Callable

TTL_SUFFIX: Final = "\0ttl"
"""What the stored name of a state with times ends in."""
SWEEP_PREFIX: Final = b"\x00\x00sweep"
"""What the keys of the entries about sweeps begin with; stored names follow."""
UNKNOWN: Final = time_bytes(FIRST_TIME)
"""Stands for a time that is not known yet."""

_NONE: Final = b"\x00"
_SOME: Final = b"\x01"
_HEAD: Final = 9
"""Bytes before a value: its time and a mark."""
_COUNTS: Final = Struct(">QQ")


def stored_name(name: str, *, timed: bool) -> str:
    """Name under which a state is known to its store."""
    return name + TTL_SUFFIX if timed else name


def ttl_codec(codec: Codec) -> Codec:
    """Codec of pairs of a time and a value, or None, of `codec`."""
    encode, decode, check, exact = codec.encode, codec.decode, codec.check, codec.exact_type

    def encode_pair(pair: tuple[int, Any]) -> bytes:
        time, value = pair
        return time_bytes(time) + (_NONE if value is None else _SOME + encode(value))

    def decode_pair(data: bytes) -> tuple[int, Any]:
        return time_of(data[:8]), None if data[8] == 0 else decode(data[_HEAD:])

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
    """Where, in a stored value of a kind other than a list, its time lies."""
    return 1 if kind == "map" else 0


def adding_time(kind: str, time: int) -> Callable[[bytes], bytes]:
    """Turns a stored value of a plain state into one that has a time."""
    stamp = time_bytes(time)
    if kind == "map":
        # What a map stores of a value begins with the same mark.
        return lambda value: _SOME + stamp + value
    head = stamp + _SOME
    if kind == "list":
        return lambda chunk: pack_chunk([head + element for element in unpack_chunk(chunk)])
    return lambda value: head + value


def dropping_time(kind: str) -> Callable[[bytes], bytes]:
    """Turns a stored value that has a time into one of a plain state."""
    if kind == "list":
        return lambda chunk: pack_chunk([element[_HEAD:] for element in unpack_chunk(chunk)])
    return lambda value: value[_HEAD:]


@dataclass(slots=True)
class Cursor:
    """Where the sweep of a state has come to."""

    began: int | None = None
    """When the pass began; None if there was none ever."""
    looked: int = 0
    """Entries that the pass has looked at."""
    removed: int = 0
    """Entries that the pass has removed."""
    place: bytes = b""
    """Key to go on with; empty if no pass is under way."""

    @staticmethod
    def decoded(data: bytes | None) -> Cursor:
        """The cursor that was stored as `data`; a new one if that is None."""
        if data is None:
            return Cursor()
        looked, removed = _COUNTS.unpack_from(data, 8)
        return Cursor(time_of(data[:8]), looked, removed, data[24:])

    def encoded(self) -> bytes:
        """The cursor as it is stored."""
        assert self.began is not None
        return time_bytes(self.began) + _COUNTS.pack(self.looked, self.removed) + self.place
