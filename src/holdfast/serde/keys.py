"""Canonical bytes and hashes of keys.

The JVM hashes column keys with Spark's `xxhash64` (seed 42); this module computes the same
hash in Python, so that `key_by("c")` and `key_by(lambda e: e.c)` use the same key group.
Bytes of a key, by type:

    bool, int     8 bytes, little-endian, two's complement (integers are 64 bit)
    float         8 bytes, little-endian IEEE 754; -0.0 becomes 0.0, every NaN one NaN
    str           UTF-8
    bytes         as they are
    date          days since 1970-01-01, as an int
    datetime      microseconds since 1970-01-01 (UTC if it has a zone), as an int
    Decimal       shortest plain notation, in ASCII: no exponent, no trailing zeros
    tuple         for every component: 0x00 if it is null, else 0x01, the length of
                  its bytes as a varint, and its bytes

The hash of a simple key is the xxhash64 of its bytes. The hash of a tuple chains
over its components, each hash seeding the next: first of a presence mark (0 or 1 as
an int), then, if present, of the component's bytes. That is what Spark's
`xxhash64(mark1, c1, mark2, c2, ...)` computes, since it skips nulls.
"""

from __future__ import annotations

import struct
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
from xxhash import xxh64_intdigest

from holdfast.errors import KeyTypeError
from holdfast.serde.key_shapes import KeyTypes, key_class
from holdfast.serde.nan import NAN

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.serde.key_shapes import KeyShape

SEED = 42
"""Seed of Spark's xxhash64."""
VOID_NAMESPACE = b"\x00"
"""Namespace of state that belongs to user code: a length of zero."""
WORTH_AN_ARRAY = 32
"""Number of integers from which encoding as an array is faster."""

_EPOCH_DATE = date(1970, 1, 1).toordinal()
_EPOCH_NAIVE = datetime(1970, 1, 1)
_EPOCH_AWARE = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_NAN = struct.pack("<q", 0x7FF8000000000000)
_pack_long = struct.Struct("<q").pack
_pack_double = struct.Struct("<d").pack
_ABSENT = b"\x00"
_MARKS = (_pack_long(0), _pack_long(1))


def _int_bytes(key: int) -> bytes:
    try:
        return _pack_long(key)
    except struct.error:
        raise KeyTypeError(
            f"key {key} does not fit into 64 bits; use a smaller number, or its text, as the key"
        ) from None


def _float_bytes(key: float) -> bytes:
    return _pack_double(key + 0.0) if key == key else _NAN


def _date_bytes(key: date) -> bytes:
    return _pack_long(key.toordinal() - _EPOCH_DATE)


def _datetime_bytes(key: datetime) -> bytes:
    epoch = _EPOCH_NAIVE if key.tzinfo is None else _EPOCH_AWARE
    return _pack_long((key - epoch) // _MICROSECOND)


def _decimal_bytes(key: Decimal) -> bytes:
    if not key.is_finite():
        raise KeyTypeError(f"key {key} is not a finite number and cannot be a key")
    text = format(key, "f")
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return b"0" if text == "-0" else text.encode()


def _tuple_bytes(key: tuple[Any, ...]) -> bytes:
    parts: list[bytes] = []
    for component in key:
        if component is None:
            parts.append(_ABSENT)
        else:
            data = key_bytes(component)
            parts += (b"\x01", varint(len(data)), data)
    return b"".join(parts)


def _tuple_hash(key: tuple[Any, ...]) -> int:
    state = SEED
    for component in key:
        state = xxh64_intdigest(_MARKS[component is not None], state)
        if isinstance(component, tuple):
            raise KeyTypeError(f"key {key!r} nests a tuple in a tuple; flatten it")
        if component is not None:
            state = xxh64_intdigest(key_bytes(component), state)
    return state


_BYTES_OF: dict[type, Callable[[Any], bytes]] = {
    bool: _int_bytes,
    int: _int_bytes,
    float: _float_bytes,
    str: str.encode,
    bytes: bytes,
    date: _date_bytes,
    datetime: _datetime_bytes,
    Decimal: _decimal_bytes,
    tuple: _tuple_bytes,
}


def key_bytes(key: object) -> bytes:
    """Canonical bytes of a key."""
    try:
        return _BYTES_OF[key_class(key)](key)
    except UnicodeEncodeError:
        raise _no_utf8(key) from None


def _no_utf8(key: object) -> KeyTypeError:
    return KeyTypeError(
        f"key {key!r} contains half of a surrogate pair, which has no UTF-8 form; repair the text "
        'before key_by, for example with key.encode("utf-8", "replace").decode()'
    )


def key_hash(key: object) -> int:
    """Hash of a key: Spark's `xxhash64` as an unsigned number."""
    if key_class(key) is tuple:
        return _tuple_hash(key)  # type: ignore[arg-type]
    return xxh64_intdigest(key_bytes(key), SEED)


def key_group_of(key: object, max_parallelism: int) -> int:
    """Key group of a key."""
    return group_of_hash(key_hash(key), max_parallelism)


def group_of_hash(unsigned_hash: int, max_parallelism: int) -> int:
    """Key group of a hash: `pmod` of its signed 64-bit value."""
    return ((unsigned_hash ^ (1 << 63)) - (1 << 63)) % max_parallelism


def varint(number: int) -> bytes:
    """A length in as few bytes as possible: 7 bits per byte, low bits first."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def framed(data: bytes) -> bytes:
    """The bytes, preceded by their length."""
    return (_LENGTHS[len(data)] if len(data) < 256 else varint(len(data))) + data


def canonical_key(key: Any) -> Any:
    """The key in the form for dictionaries: one NaN, no negative zero, a plain tuple."""
    if isinstance(key, float):
        return key + 0.0 if key == key else NAN
    if isinstance(key, tuple):
        return tuple(map(canonical_key, key))
    if isinstance(key, datetime) and key.tzinfo is not None:
        # Within one zone, both readings of a repeated hour compare equal, though an hour apart.
        try:
            return key.astimezone(UTC)
        except OverflowError:
            raise KeyTypeError(
                f"key {key!r} is before the year 1 or after the year 9999 in UTC; use a time "
                "without a zone, or another value, as the key"
            ) from None
    return key


class KeyEncoder:
    """Encodes keys as prefixes of store keys.

        state id | key group (2 bytes, big-endian) | length (varint) | key | void namespace

    One encoder serves one operator on one subtask. It refuses keys of different types.
    """

    __slots__ = ("_groups", "_heads", "_limit", "_types", "_used")

    def __init__(self, max_parallelism: int, types: KeyTypes | None = None) -> None:
        """Encoder for keys of the given type, or of the type of the first key.

        Args:
            max_parallelism: Number of key groups.
            types: Known type of the keys.
        """
        self._limit = max_parallelism
        self._groups = [struct.pack(">H", group) for group in range(max_parallelism)]
        self._heads: dict[bytes, list[bytes]] = {}
        self._types = types or KeyTypes()
        self._used = False

    @property
    def shape(self) -> KeyShape | None:
        """Shape of the encoded keys; None before the first."""
        return self._types.shape if self._used else None

    def join(self, stored: KeyShape) -> None:
        """Add the shape of keys that were encoded elsewhere.

        Raises:
            KeyTypeError: It differs from that of the other keys.
        """
        self._types.join(stored)
        self._used = True

    def encode(self, state_id: bytes, key: Any) -> bytes:
        """Prefix of the store keys of one key."""
        return self.encode_all(state_id, [key])[0]

    def encode_all(self, state_id: bytes, keys: list[Any]) -> list[bytes]:
        """Prefixes of the store keys of many keys, in order."""
        if not keys:
            return []
        kinds = set(map(type, keys))
        if not self._types.knows(kinds):
            self._types.check(keys)
        self._used = True
        if kinds == {int} and len(keys) >= WORTH_AN_ARRAY:
            return self._encode_integers(state_id, keys)
        heads = self._heads_of(state_id)
        if kinds == {str}:
            return self._encode_strings(heads, keys)
        encoded = []
        for key in keys:
            data = key_bytes(key)
            head = heads[key_group_of(key, self._limit)]
            encoded.append(head + varint(len(data)) + data + VOID_NAMESPACE)
        return encoded

    def _encode_strings(self, heads: list[bytes], keys: list[str]) -> list[bytes]:
        limit, sign, lengths, bound = self._limit, 1 << 63, _LENGTHS, len(_LENGTHS)
        try:
            encoded = list(map(str.encode, keys))
        except UnicodeEncodeError as error:
            raise _no_utf8(error.object) from None
        return [
            heads[((xxh64_intdigest(data, SEED) ^ sign) - sign) % limit]
            + (lengths[len(data)] if len(data) < bound else varint(len(data)))
            + data
            + VOID_NAMESPACE
            for data in encoded
        ]

    def _encode_integers(self, state_id: bytes, keys: list[int]) -> list[bytes]:
        try:
            values = np.array(keys, dtype=np.int64)
        except OverflowError:
            return [self.encode(state_id, key) for key in keys]
        rows = np.empty(len(keys), dtype=_INTEGER_ROW)
        rows["state"] = np.frombuffer(state_id, np.dtype(">u2"))[0]
        rows["group"] = xxhash64_of_longs(values).view(np.int64) % self._limit
        rows["length"] = 8
        rows["key"] = values
        rows["namespace"] = 0
        encoded: list[bytes] = rows.view(f"V{_INTEGER_ROW.itemsize}").tolist()
        return encoded

    def _heads_of(self, state_id: bytes) -> list[bytes]:
        heads = self._heads.get(state_id)
        if heads is None:
            heads = self._heads[state_id] = [state_id + group for group in self._groups]
        return heads


def xxhash64_of_longs(values: np.ndarray[Any, np.dtype[np.int64]]) -> Any:
    """Unsigned xxhash64 (seed 42) of each number's 8 bytes, vectorized."""
    prime1, prime2, prime3, prime4, prime5 = _PRIMES
    with np.errstate(over="ignore"):
        lane = values.view(np.uint64) * prime2
        lane = _rotated(lane, 31) * prime1
        state = lane ^ (np.uint64(SEED) + prime5 + np.uint64(8))
        state = _rotated(state, 27) * prime1 + prime4
        state ^= state >> np.uint64(33)
        state *= prime2
        state ^= state >> np.uint64(29)
        state *= prime3
        state ^= state >> np.uint64(32)
    return state


def _rotated(values: Any, bits: int) -> Any:
    return (values << np.uint64(bits)) | (values >> np.uint64(64 - bits))


_PRIMES = (
    np.uint64(0x9E3779B185EBCA87),
    np.uint64(0xC2B2AE3D27D4EB4F),
    np.uint64(0x165667B19E3779F9),
    np.uint64(0x85EBCA77C2B2AE63),
    np.uint64(0x27D4EB2F165667C5),
)
_LENGTHS = [varint(length) for length in range(256)]
_INTEGER_ROW = np.dtype(
    [("state", ">u2"), ("group", ">u2"), ("length", "u1"), ("key", "<i8"), ("namespace", "u1")]
)
