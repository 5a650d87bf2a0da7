"""Decodes keys from their canonical bytes.

The inverse of `serde/keys.py`: `decode(key_bytes(key))` equals `canonical_key(key)`. The
bytes do not contain the type, which is the operator's `KeyShape`.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from struct import Struct
from struct import error as StructError
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from holdfast.errors import CorruptStoreError
from holdfast.serde.keys import canonical_key

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.serde.key_shapes import KeyShape


KEY_AT: Final = 4
"""Offset of the key's length in a store key."""

_EPOCH_DATE: Final = date(1970, 1, 1).toordinal()
_EPOCH_NAIVE: Final = datetime(1970, 1, 1)
_EPOCH_AWARE: Final = datetime(1970, 1, 1, tzinfo=UTC)
_unpack_long: Final = Struct("<q").unpack
_unpack_double: Final = Struct("<d").unpack


class KeyDecoder:
    """Decodes keys of one shape."""

    __slots__ = ("_decode", "_name")

    def __init__(self, shape: KeyShape) -> None:
        """Decoder for keys of `shape`."""
        self._name = shape.name
        self._decode = _decoder_of(shape.name)

    def decode(self, data: bytes) -> Any:
        """The key whose canonical bytes are `data`.

        Raises:
            CorruptStoreError: The bytes are not a key of this shape.
        """
        return self.decode_all([data])[0]

    def decode_all(self, data: list[bytes]) -> list[Any]:
        """The keys of many canonical bytes, in order."""
        try:
            if self._name == "int" and set(map(len, data)) == {8}:
                numbers: list[Any] = np.frombuffer(b"".join(data), np.dtype("<i8")).tolist()
                return numbers
            return list(map(self._decode, data))
        except (ValueError, ArithmeticError, IndexError, StructError) as error:
            raise CorruptStoreError(
                f"the bytes of a key in the store are no key of type {self._name} ({error}); they "
                "are damaged. With checkpoints, the job continues from the newest one"
            ) from error


def length_prefixed(data: bytes, at: int) -> tuple[bytes, int]:
    """Bytes after their length, a varint at `at`, and the offset of their end."""
    length = shift = 0
    while True:
        byte = data[at]
        at += 1
        length |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    end = at + length
    if end > len(data):
        raise IndexError(f"{length} bytes at {at} of {len(data)}")
    return data[at:end], end


def _decoder_of(shape: str) -> Callable[[bytes], Any]:
    if shape.startswith("tuple["):
        names = shape.removeprefix("tuple[").removesuffix("]")
        return _tuple_decoder([_decoder_of(name) for name in names.split(", ")] if names else [])
    return _DECODERS[shape]


def _tuple_decoder(components: list[Callable[[bytes], Any]]) -> Callable[[bytes], Any]:
    def decode(data: bytes) -> tuple[Any, ...]:
        at, key = 0, list[Any]()
        for component in components:
            mark = data[at]
            at += 1
            if mark:
                part, at = length_prefixed(data, at)
                key.append(component(part))
            else:
                key.append(None)
        if at != len(data):
            raise ValueError(f"{len(data) - at} bytes are left over")
        return tuple(key)

    return decode


def _unknown_type(data: bytes) -> Any:
    raise ValueError(f"{data!r} where only nulls were known")


_DECODERS: Final[dict[str, Callable[[bytes], Any]]] = {
    "bool": lambda data: bool(_unpack_long(data)[0]),
    "int": lambda data: _unpack_long(data)[0],
    # canonical_key gives the one NaN that a dictionary can find.
    "float": lambda data: canonical_key(_unpack_double(data)[0]),
    "str": bytes.decode,
    "bytes": bytes,
    "date": lambda data: date.fromordinal(_unpack_long(data)[0] + _EPOCH_DATE),
    "datetime": lambda data: _EPOCH_AWARE + timedelta(microseconds=_unpack_long(data)[0]),
    "datetime_ntz": lambda data: _EPOCH_NAIVE + timedelta(microseconds=_unpack_long(data)[0]),
    "Decimal": lambda data: Decimal(data.decode()),
    "?": _unknown_type,
}
