"""Layout of timers in a store: one entry per timer, with an empty value.

    state id (2 bytes, big-endian) | key group (2 bytes, big-endian)
        | time (8 bytes, big-endian, sign bit flipped) | length | key | length | namespace

Lengths are varints. Within a key group, entries sort by time. The **place** of a timer has
the time first and no state id: places of all key groups sort by time, then key group, then
the rest of the entry. Timers fire in that order.

State id 0 has a lower bound of the times of all pending timers:

    00 00 | "timers" | name    8 bytes, as the time above; empty if none is pending

Without this entry, such as after rescaling, the bound is unknown. The layout is part of the
store format (`state/backend.py`).
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from holdfast.serde.key_reader import KeyDecoder, length_prefixed
from holdfast.serde.keys import framed

if TYPE_CHECKING:
    from holdfast.serde.key_shapes import KeyShape
    from holdfast.serde.keys import KeyEncoder

    Identity = tuple[int, Any, bytes]
    """Time, key and namespace of a timer; equals the corresponding `Timer`."""

FIRST_TIME: Final = -(2**63)
"""Smallest time that a timer can have."""
LAST_TIME: Final = 2**63 - 1
"""Largest time that a timer can have."""
NEVER: Final = 2**63
"""Time of the next timer if there is none."""
NEXT_TIME_PREFIX: Final = b"\x00\x00timers"
"""Prefix of the entries with the time of the next timer; the state's name follows."""

_SIGN: Final = 2**63
_KEY_AT: Final = 10
"""Offset of the key's length in a place."""
_pack_time: Final = Struct(">Q").pack


class Timer(NamedTuple):
    """A timer, identified by time, key and namespace."""

    time: int
    key: Any
    namespace: bytes


class TimerLayout:
    """Converts timers of one state to entries and places, and back."""

    __slots__ = ("_decoder", "_encoder", "_prefix", "_shape")

    def __init__(self, prefix: bytes, encoder: KeyEncoder) -> None:
        """Layout of timers under a state id."""
        self._prefix = prefix
        self._encoder = encoder
        self._shape: KeyShape | None = None
        self._decoder: KeyDecoder | None = None

    def entries(self, timers: list[Identity]) -> list[bytes]:
        """Store keys of the timers."""
        beginnings = self._encoder.encode_all(self._prefix, [key for _, key, _ in timers])
        return [
            # A prefix ends with the void namespace.
            beginning[:4]
            + _pack_time(timer[0] + _SIGN)
            + (beginning[4:-1] + framed(timer[2]) if timer[2] else beginning[4:])
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
        times = stored_times([place[:8] for place in places])
        return list(map(Timer._make, zip(times, decoded, namespaces, strict=True)))

    def _key_decoder(self) -> KeyDecoder:
        shape = self._encoder.shape
        if self._decoder is None or shape != self._shape:
            assert shape is not None, "a store with timers knows the type of their keys"
            self._shape, self._decoder = shape, KeyDecoder(shape)
        return self._decoder


def place_of(entry: bytes) -> bytes:
    """Place of the timer with this store key."""
    return entry[4:12] + entry[2:4] + entry[12:]


def time_bytes(time: int) -> bytes:
    """Stored bytes of a time."""
    return _pack_time(time + _SIGN)


def time_of(data: bytes) -> int:
    """Time of 8 stored bytes."""
    return int.from_bytes(data, "big") - _SIGN


def stored_times(blobs: list[bytes]) -> list[int]:
    """Times of many blobs of 8 stored bytes."""
    unsigned = np.frombuffer(b"".join(blobs), np.dtype(">u8"))
    times: list[int] = (unsigned.astype(np.uint64) ^ np.uint64(_SIGN)).view(np.int64).tolist()
    return times
