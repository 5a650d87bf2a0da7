"""Reading values whose stored type differs from the declared one in more than msgspec allows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.errors import StateValueError
from holdfast.state.codec_wide import plain_decoded
from holdfast.state.schema_resolution import Reading, resolve, type_resolver
from holdfast.state.type_conversion import TypeConversion

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.state.type_conversion import Default

    Decode = Callable[[bytes], Any]


def typed_reading(
    stored: dict[str, Any],
    declared: dict[str, Any],
    spec: Any,
    default: Default,
    decode: Decode,
) -> Reading:
    """How values of a stored type are read.

    Args:
        stored: Schema that they were stored under.
        declared: Schema of today.
        spec: Python type of today's values.
        default: Gives defaults of fields that were not stored, where msgspec does not.
        decode: Reads bytes of today's type.
    """
    resolution = resolve(stored, declared)
    if resolution.verdict == "incompatible":
        return Reading(resolution)
    if resolution.verdict == "as is":
        return Reading(resolution, decode)
    resolver = type_resolver(stored, declared)
    assert resolver is not None
    if resolver.outcome().direct:
        return Reading(resolution, decode)
    return Reading(resolution, _converting(TypeConversion(resolver, default).whole(), spec))


def _converting(convert: Callable[[Any], Any], spec: Any) -> Decode:
    # As the field of a class, the type is looked into once and not for every value.
    holder = msgspec.defstruct("Value", [("value", spec)], array_like=True)

    def decode(data: bytes) -> Any:
        try:
            return msgspec.convert([convert(plain_decoded(data))], holder).value  # type: ignore[attr-defined]
        except (msgspec.DecodeError, ValueError, TypeError, KeyError) as error:
            raise StateValueError(
                f"a stored value is not of the type that it was stored under: {error}; restore "
                "from another checkpoint"
            ) from error

    return decode
