"""Windows: the finite parts into which a stream is cut."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import total_ordering
from struct import Struct
from typing import Any, Final

from holdfast.api.time import MAX_WATERMARK

_SIGN: Final = 2**63
_bounds: Final = Struct(">QQ")


class Window(ABC):
    """A part of a stream, of each key; its state and timers lie under its bytes.

    A window of another class than those here is equal to one of the same bytes, and keeps
    them for good: state is found by them.
    """

    __slots__ = ()

    @abstractmethod
    def max_timestamp(self) -> int:
        """Largest event time that lies in it, in milliseconds."""

    @abstractmethod
    def to_bytes(self) -> bytes:
        """Its identity: at least one byte, the same for equal windows."""

    @classmethod
    @abstractmethod
    def from_bytes(cls, data: bytes) -> Any:
        """The window that has these bytes."""


@total_ordering
class TimeWindow(Window):
    """From one time to another: `start` lies in it, `end` does not."""

    __slots__ = ("end", "start")

    def __init__(self, start: int, end: int) -> None:
        """A window in milliseconds since 1970."""
        self.start = start
        self.end = end

    def max_timestamp(self) -> int:
        """The last millisecond before its end."""
        return self.end - 1

    def intersects(self, other: TimeWindow) -> bool:
        """Whether the two share a time, or touch."""
        return self.start <= other.end and self.end >= other.start

    def cover(self, other: TimeWindow) -> TimeWindow:
        """The smallest window that holds both."""
        return TimeWindow(min(self.start, other.start), max(self.end, other.end))

    def to_bytes(self) -> bytes:
        """Start and end, 8 bytes each, big-endian, sign bit flipped: bytes sort like times."""
        return _bounds.pack(self.start + _SIGN, self.end + _SIGN)

    @classmethod
    def from_bytes(cls, data: bytes) -> TimeWindow:
        """See `Window.from_bytes`."""
        start, end = _bounds.unpack(data)
        return cls(start - _SIGN, end - _SIGN)

    def __eq__(self, other: object) -> bool:
        """Windows of the same bounds are equal."""
        if not isinstance(other, TimeWindow):
            return NotImplemented
        return self.start == other.start and self.end == other.end

    def __lt__(self, other: TimeWindow) -> bool:
        """By start, then by end."""
        return (self.start, self.end) < (other.start, other.end)

    def __hash__(self) -> int:
        """Hash of the bounds."""
        return hash((self.start, self.end))

    def __repr__(self) -> str:
        """`TimeWindow(start=0, end=60000)`."""
        return f"TimeWindow(start={self.start}, end={self.end})"


class GlobalWindow(Window):
    """The only window: everything lies in it, and it never ends."""

    __slots__ = ()

    @staticmethod
    def get() -> GlobalWindow:
        """The window."""
        return _THE_WINDOW

    def max_timestamp(self) -> int:
        """The end of time."""
        return MAX_WATERMARK

    def to_bytes(self) -> bytes:
        """One byte."""
        return b"\x00"

    @classmethod
    def from_bytes(cls, data: bytes) -> GlobalWindow:
        """See `Window.from_bytes`."""
        return _THE_WINDOW

    def __eq__(self, other: object) -> bool:
        """All are equal."""
        return isinstance(other, GlobalWindow)

    def __hash__(self) -> int:
        """The same for all."""
        return 0

    def __repr__(self) -> str:
        """`GlobalWindow()`."""
        return "GlobalWindow()"


_THE_WINDOW: Final = GlobalWindow()
