"""Reports a value that does not fit its declared type: the value, its path and advice."""

from __future__ import annotations

from reprlib import Repr
from typing import Final

_SHORT: Final = Repr()
_SHORT.maxstring = _SHORT.maxother = 60


class Unfit(Exception):
    """Why a value cannot be converted; the message is advice."""


class ValueMismatch(Exception):
    """A value, possibly nested, that does not fit its declared type.

    Each enclosing level prepends its own step to `path`. For a list of values, `index` is the
    position in that list.
    """

    def __init__(
        self, index: int, value: object, reason: str, declared: str = "", path: str = ""
    ) -> None:
        super().__init__(index, value, reason, declared, path)
        self.index = index
        self.value = value
        self.reason = reason
        """What to do about it."""
        self.declared = declared
        self.path = path


def shortened(value: object) -> str:
    """The value, shortened for a message."""
    return _SHORT.repr(value)


def shown(value: object) -> str:
    """The value and its class, shortened for a message."""
    return f"{shortened(value)} ({type(value).__name__})"
