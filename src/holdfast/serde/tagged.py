"""Codecs of elements stored with a timestamp or with the number of their input."""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Any, Final

from holdfast.serde.codec import Codec, Reading
from holdfast.serde.reading import reading_of
from holdfast.types.compatibility import joined, resolve
from holdfast.types.schema import FORMAT

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.serde.codec import Decode, Encode

_time: Final = Struct(">q")
_NO_TIME: Final = b"\x00"
_TIME: Final = b"\x01"


def timestamped(codec: Codec) -> Codec:
    """Codec of tuples of a value and its event time, or None.

    Format: one byte, 1 if there is a time; then the time in 8 bytes; then the value.
    """

    def encode(pair: tuple[Any, int | None]) -> bytes:
        value, time = pair
        return (_NO_TIME if time is None else _TIME + _time.pack(time)) + codec.encode(value)

    def check(pair: tuple[Any, int | None]) -> None:
        codec.check(pair[0])

    def reading(decodes: list[Decode]) -> Decode:
        (inner,) = decodes

        def read(data: bytes) -> tuple[Any, int | None]:
            if data[:1] == _NO_TIME:
                return inner(data[1:]), None
            return inner(data[9:]), _time.unpack_from(data, 1)[0]

        return read

    return _around("timestamped", encode, reading, check, codec)


def either(first: Codec, second: Codec) -> Codec:
    """Codec of tuples of an input (0 or 1) and a value of that input's codec."""
    codecs = (first, second)

    def encode(pair: tuple[int, Any]) -> bytes:
        side, value = pair
        return bytes((side,)) + codecs[side].encode(value)

    def check(pair: tuple[int, Any]) -> None:
        side, value = pair
        codecs[side].check(value)

    def reading(decodes: list[Decode]) -> Decode:
        return lambda data: (data[0], decodes[data[0]](data[1:]))

    return _around("either", encode, reading, check, *codecs)


def _around(
    kind: str,
    encode: Encode,
    reading: Callable[[list[Decode]], Decode],
    check: Callable[[Any], None],
    *codecs: Codec,
) -> Codec:
    """Codec around others; `reading` builds its decoder from those of the parts."""
    schema = {"format": FORMAT, "kind": kind, "of": [codec.schema for codec in codecs]}

    def read_as(stored: dict[str, Any]) -> Reading:
        if stored["kind"] != kind:
            return Reading(resolve(stored, schema))
        parts = list(map(reading_of, stored["of"], codecs))
        decodes = [part.decode for part in parts if part.decode is not None]
        resolution = joined(kind, [part.resolution for part in parts])
        return Reading(resolution, reading(decodes) if len(decodes) == len(codecs) else None)

    return Codec(
        encode,
        reading([codec.decode for codec in codecs]),
        check,
        schema,
        immutable=all(codec.immutable for codec in codecs),
        pickled=any(codec.pickled for codec in codecs),
        reading=read_as,
    )
