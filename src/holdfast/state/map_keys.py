"""The own keys of a map: told apart as Python does, stored as their codec says."""

from __future__ import annotations

from datetime import datetime, time
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from holdfast.errors import StateValueError
from holdfast.serde.nan import one_float, one_nan
from holdfast.types.mismatch import shown

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.serde.codec import Codec

_BY_VALUE: Final = (float, Decimal, datetime, time)
"""Classes whose values may differ in bytes though they are equal, and are compared by value."""


class MapKeys:
    """Turns keys of one map into bytes and back."""

    __slots__ = ("_by_value", "_codec", "_unify", "canonical")

    def __init__(self, codec: Codec) -> None:
        """Keys of the codec's type."""
        self._codec = codec
        self.canonical = codec.canonical
        """Whether equal keys have equal bytes, and others have others."""
        self._by_value = codec.canonical or codec.exact_type in _BY_VALUE
        self._unify = _unifier(codec)

    def unified(self, key: Any) -> Any:
        """The key as a dictionary finds it again: with one NaN."""
        return key if self._unify is None or key is None else self._unify(key)

    def encode(self, key: Any) -> bytes:
        """Bytes of a key, which is not None.

        Raises:
            StateValueError: It is not of the declared type, or would not be found again.
        """
        data = self._codec.encode(key)
        # As a dictionary looks for it: NaN is not equal to itself, and yet found.
        if not self._by_value and self.decode(data) not in (key,):
            raise StateValueError(
                f"{shown(key)} cannot be a map's key: once it was stored and read again, it is not "
                "equal to itself, so its entry would never be found; use a key whose class "
                "compares by value, such as a tuple, a frozen dataclass or a string"
            )
        return data

    def decode(self, data: bytes) -> Any:
        """The key of bytes."""
        return self.unified(self._codec.decode(data))


def unhashable(key: Any, error: TypeError) -> str:
    """What is said of a key that has no hash, as `error` showed."""
    return (
        f"{shown(key)} cannot be a map's key ({error}); use a tuple, a frozen dataclass, a string "
        "or a number"
    )


def _unifier(codec: Codec) -> Callable[[Any], Any] | None:
    """What brings keys to one NaN; None where there is no NaN."""
    if codec.canonical or codec.exact_type in (datetime, time):
        return None
    return one_float if codec.exact_type is float else one_nan
