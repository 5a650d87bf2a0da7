"""Codec: turns the values of one type into bytes and back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.types.compatibility import Resolution

Encode = Callable[[Any], bytes]
Decode = Callable[[bytes], Any]


def let_pass(value: Any) -> None:
    """The check of a codec that knows no class: it accepts any value."""


@dataclass(frozen=True, slots=True)
class Codec:
    """Turns the values of one state into bytes and back."""

    encode: Encode
    """Bytes of a value; raises StateValueError if it is not of the declared type."""
    decode: Decode
    """Value of bytes; raises StateValueError if they are not of the declared type."""
    check: Callable[[Any], None]
    """Raises StateValueError for a value of another class; does not look at its parts."""
    schema: dict[str, Any]
    """JSON description of the type, stored with the state."""
    exact_type: type | None = None
    """Class whose instances always pass `check`, if there is exactly one."""
    immutable: bool = False
    """Whether values are immutable, so that several readers may share one object."""
    canonical: bool = False
    """Whether values are equal exactly if their bytes are, as the keys of a store need."""
    pickled: bool = False
    """Whether values are pickled: slow, without schema evolution, and reading runs code."""
    reading: Callable[[dict[str, Any]], Reading] | None = None
    """How to read bytes of another schema; None if only the same schema is readable."""


@dataclass(frozen=True, slots=True)
class Reading:
    """How a codec reads bytes of a stored schema."""

    resolution: Resolution
    decode: Decode | None = None
    """Reads a value of the declared type; None if the schemas are incompatible."""
