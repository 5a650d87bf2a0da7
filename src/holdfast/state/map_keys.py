"""Keys of map state: compared as Python compares them, stored by their codec."""

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
"""Classes whose equal values may have different bytes."""


class MapKeys:
    """Encodes and decodes the keys of one map state."""

    __slots__ = ("_by_value", "_codec", "_unify", "canonical")

    def __init__(self, codec: Codec) -> None:
        """Keys of the codec's type."""
        self._codec = codec
        self.canonical = codec.canonical
        """Whether keys are equal exactly if their bytes are."""
        self._by_value = codec.canonical or codec.exact_type in _BY_VALUE
        self._unify = _unifier(codec)

    def unified(self, key: Any) -> Any:
        """The key with one NaN object, which a dictionary can find."""
        return key if self._unify is None or key is None else self._unify(key)

    def encode(self, key: Any) -> bytes:
        """Bytes of a key other than None.

        Raises:
            StateValueError: It is not of the declared type, or would not be found again.
        """
        data = self._codec.encode(key)
        # As a dictionary compares: NaN does not equal itself, but is found by identity.
        if not self._by_value and self.decode(data) not in (key,):
            raise StateValueError(
                f"{shown(key)} cannot be a map's key: once stored and read again, it does not "
                "equal the original, so its entry would never be found; use a key whose class "
                "compares by value, such as a tuple, a frozen dataclass or a string"
            )
        return data

    def decode(self, data: bytes) -> Any:
        """Key of stored bytes."""
        return self.unified(self._codec.decode(data))


def unhashable(key: Any, error: TypeError) -> str:
    """Message for a key without a hash, as `error` says."""
    return (
        f"{shown(key)} cannot be a map's key ({error}); use a tuple, a frozen dataclass, a string "
        "or a number"
    )


def _unifier(codec: Codec) -> Callable[[Any], Any] | None:
    """Function that replaces NaNs in keys by one; None if the type has no NaN."""
    if codec.canonical or codec.exact_type in (datetime, time):
        return None
    return one_float if codec.exact_type is float else one_nan
