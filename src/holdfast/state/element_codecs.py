"""Codecs of elements that are kept with something beside them."""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Any, Final

from holdfast.state.codec import Codec
from holdfast.state.codec_schema import FORMAT

if TYPE_CHECKING:
    from collections.abc import Callable

_time: Final = Struct(">q")
_NO_TIME: Final = b"\x00"
_TIME: Final = b"\x01"


def timestamped(codec: Codec) -> Codec:
    """Codec of tuples of a value and its event time, or None.

    A byte says whether there is a time; 8 bytes of it follow if so, then the value.
    """

    def encode(pair: tuple[Any, int | None]) -> bytes:
        value, time = pair
        return (_NO_TIME if time is None else _TIME + _time.pack(time)) + codec.encode(value)

    def decode(data: bytes) -> tuple[Any, int | None]:
        if data[:1] == _NO_TIME:
            return codec.decode(data[1:]), None
        return codec.decode(data[9:]), _time.unpack_from(data, 1)[0]

    def check(pair: tuple[Any, int | None]) -> None:
        codec.check(pair[0])

    return _around("timestamped", encode, decode, check, codec)


def either(first: Codec, second: Codec) -> Codec:
    """Codec of tuples of 0 or 1 and a value: of the first codec's type, or of the second's."""
    codecs = (first, second)

    def encode(pair: tuple[int, Any]) -> bytes:
        side, value = pair
        return bytes((side,)) + codecs[side].encode(value)

    def decode(data: bytes) -> tuple[int, Any]:
        side = data[0]
        return side, codecs[side].decode(data[1:])

    def check(pair: tuple[int, Any]) -> None:
        side, value = pair
        codecs[side].check(value)

    return _around("either", encode, decode, check, *codecs)


def _around(
    kind: str,
    encode: Callable[[Any], bytes],
    decode: Callable[[bytes], Any],
    check: Callable[[Any], None],
    *codecs: Codec,
) -> Codec:
    schema = {"format": FORMAT, "kind": kind, "of": [codec.schema for codec in codecs]}
    return Codec(
        encode,
        decode,
        check,
        schema,
        immutable=all(codec.immutable for codec in codecs),
        pickled=any(codec.pickled for codec in codecs),
    )
