"""Reads values whose stored type differs from the declared one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.errors import StateMigrationError, StateValueError
from holdfast.serde.codec import Reading
from holdfast.serde.extended import plain_decoded
from holdfast.types.compatibility import resolve, type_resolver
from holdfast.types.conversion import TypeConversion

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.serde.codec import Codec, Decode
    from holdfast.types.conversion import Default


def typed_reading(
    stored: dict[str, Any],
    declared: dict[str, Any],
    spec: Any,
    default: Default,
    decode: Decode,
) -> Reading:
    """How to read values of a stored type.

    Args:
        stored: Schema that they were stored under.
        declared: Schema of the declared type.
        spec: Python type of the declared values.
        default: Defaults of fields that were not stored, where msgspec has none.
        decode: Reads bytes of the declared type.
    """
    resolution = resolve(stored, declared)
    if resolution.verdict == "incompatible":
        return Reading(resolution)
    if resolution.verdict == "as is":
        return Reading(resolution, decode)
    resolver = type_resolver(stored, declared)
    if resolver.outcome().direct:
        return Reading(resolution, decode)
    return Reading(resolution, _converting(TypeConversion(resolver, default).whole(), spec))


def _converting(convert: Callable[[Any], Any], spec: Any) -> Decode:
    # As the field of a class, the type is analysed once and not for every value.
    holder = msgspec.defstruct("Value", [("value", spec)], array_like=True)

    def decode(data: bytes) -> Any:
        try:
            return msgspec.convert([convert(plain_decoded(data))], holder).value  # type: ignore[attr-defined]
        except (msgspec.DecodeError, ValueError, TypeError, KeyError) as error:
            raise StateValueError(
                f"a stored value does not have the type that it was stored under: {error}; restore "
                "from another checkpoint"
            ) from error

    return decode


def reading_of(stored: dict[str, Any], codec: Codec) -> Reading:
    """How a codec reads bytes of a stored schema; asks a user's serializer if there is one."""
    if codec.reading is not None:
        return codec.reading(stored)
    resolution = resolve(stored, codec.schema)
    return Reading(resolution, codec.decode if resolution.verdict == "as is" else None)


def reader(stored: dict[str, Any], codec: Codec) -> Decode:
    """Function that reads values of a codec's type from bytes of a stored schema.

    Raises:
        StateMigrationError: The two are incompatible.
    """
    reading = reading_of(stored, codec)
    if reading.decode is None:
        raise StateMigrationError("; ".join(reading.resolution.problems))
    return reading.decode
