"""How timers lie in a store: an entry per timer, with an empty value.

    state id (2 bytes, big-endian) | key group (2 bytes, big-endian)
        | time (8 bytes, big-endian, sign bit flipped) | length | key | length | namespace

Lengths are varints. Within a key group, bytes sort like times. The **place** of a timer
is the same with the time first and no state id: places of all key groups sort by time,
then key group, then the rest of the entry. Timers fire in that order.

Under state id 0 lies the time before which none of them is pending:

    00 00 | "timers" | name    8 bytes, as the time above; no bytes if none is pending

It is a lower bound. Where the entry is missing, as after rescaling, nothing is known.
The layout is part of the format of the store (`state/backend.py`).
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from holdfast.serde.key_reader import KeyDecoder, length_prefixed
from holdfast.serde.keys import varint

if TYPE_CHECKING:
    from holdfast.serde.key_shapes import KeyShape
    from holdfast.serde.keys import KeyEncoder

    Identity = tuple[int, Any, bytes]
    """Time, key and namespace of a timer; equal to the `Timer` of the same."""

FIRST_TIME: Final = -(2**63)
"""Smallest time that a timer can have."""
LAST_TIME: Final = 2**63 - 1
"""Largest time that a timer can have."""
NEVER: Final = 2**63
"""Stands for the time of the next timer where there is none."""
NEXT_TIME_PREFIX: Final = b"\x00\x00timers"
"""What the keys of the entries about pending timers begin with; names follow."""

_SIGN: Final = 2**63
_KEY_AT: Final = 10
"""Where, in a place, the length of the key lies."""
_pack_time: Final = Struct(">Q").pack


class Timer(NamedTuple):
    """A timer: it is identified by all of this."""

    time: int
    key: Any
    namespace: bytes


class TimerLayout:
    """Turns the timers of one state into entries and places, and back."""

    __slots__ = ("_decoder", "_encoder", "_prefix", "_shape")

    def __init__(self, prefix: bytes, encoder: KeyEncoder) -> None:
        """The layout of timers under a state's id."""
        self._prefix = prefix
        self._encoder = encoder
        self._shape: KeyShape | None = None
        self._decoder: KeyDecoder | None = None

    def entries(self, timers: list[Identity]) -> list[bytes]:
        """Store keys of the timers."""
        beginnings = self._encoder.encode_all(self._prefix, [key for _, key, _ in timers])
        return [
            # A beginning ends in the void namespace.
            beginning[:4]
            + _pack_time(timer[0] + _SIGN)
            + (beginning[4:-1] + varint(len(timer[2])) + timer[2] if timer[2] else beginning[4:])
            for timer, beginning in zip(timers, beginnings, strict=True)
        ]

    def entry(self, timer: Identity) -> bytes:
        """Store key of one timer."""
        return self.entries([timer])[0]

    def entry_at(self, place: bytes) -> bytes:
        """Store key of the timer at a place."""
        return self._prefix + place[8:10] + place[:8] + place[10:]

    def place(self, timer: Identity) -> bytes:
        """Place of one timer."""
        return place_of(self.entry(timer))

    def timers(self, places: list[bytes]) -> list[Timer]:
        """The timers at many places."""
        if not places:
            return []
        keys, namespaces = list[bytes](), list[bytes]()
        for place in places:
            length = place[_KEY_AT]
            if length < 0x80:
                end = _KEY_AT + 1 + length
                key = place[_KEY_AT + 1 : end]
            else:
                key, end = length_prefixed(place, _KEY_AT)
            keys.append(key)
            namespaces.append(b"" if end + 1 == len(place) else length_prefixed(place, end)[0])
        decoded = self._key_decoder().decode_all(keys)
        return list(map(Timer._make, zip(_times(places), decoded, namespaces, strict=True)))

    def _key_decoder(self) -> KeyDecoder:
        shape = self._encoder.shape
        if self._decoder is None or shape != self._shape:
            assert shape is not None, "a store with timers knows the type of their keys"
            self._shape, self._decoder = shape, KeyDecoder(shape)
        return self._decoder


def place_of(entry: bytes) -> bytes:
    """Place of the timer that has this store key."""
    return entry[4:12] + entry[2:4] + entry[12:]


def time_bytes(time: int) -> bytes:
    """A time as it is stored."""
    return _pack_time(time + _SIGN)


def time_of(data: bytes) -> int:
    """The time that was stored as these 8 bytes."""
    return int.from_bytes(data, "big") - _SIGN


def _times(places: list[bytes]) -> list[int]:
    unsigned = np.frombuffer(b"".join([place[:8] for place in places]), np.dtype(">u8"))
    times: list[int] = (unsigned.astype(np.uint64) ^ np.uint64(_SIGN)).view(np.int64).tolist()
    return times
