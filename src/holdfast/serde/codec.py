"""Codec: turns the values of one type into bytes and back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.types.compatibility import Resolution

Encode = Callable[[Any], bytes]
Decode = Callable[[bytes], Any]


@dataclass(frozen=True, slots=True)
class Codec:
    """Turns the values of one state into bytes and back."""

    encode: Encode
    """Bytes of a value; StateValueError if the declared type does not hold it."""
    decode: Decode
    """Value of bytes; StateValueError if they are not of the declared type."""
    check: Callable[[Any], None]
    """Refuses, with StateValueError, a value whose own class is not the declared one."""
    schema: dict[str, Any]
    """Description of the type, fit for JSON, to be stored with the state."""
    exact_type: type | None = None
    """Class whose instances `check` always lets pass, if there is a single one."""
    immutable: bool = False
    """Whether one object may be handed out again and again: nothing can change it."""
    canonical: bool = False
    """Whether equal values, and only they, have equal bytes, as the keys of a store must."""
    pickled: bool = False
    """Whether values are pickled: slow, unable to evolve, and code runs when read."""
    reading: Callable[[dict[str, Any]], Reading] | None = None
    """How bytes of another schema are read; None if only those of the same one are."""


@dataclass(frozen=True, slots=True)
class Reading:
    """How a codec reads bytes of a stored schema."""

    resolution: Resolution
    decode: Decode | None = None
    """Gives today's value of the bytes; None if the two are incompatible."""
