"""Windows: finite parts of a stream."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import total_ordering
from struct import Struct
from typing import Any, Final

from holdfast.api.time import MAX_WATERMARK

_SIGN: Final = 2**63
_bounds: Final = Struct(">QQ")


class Window(ABC):
    """A part of the stream of a key. Its bytes identify its state and timers.

    A custom window class must give equal windows the same bytes, and never change them: state is
    found by these bytes.
    """

    __slots__ = ()

    @abstractmethod
    def max_timestamp(self) -> int:
        """The largest event time in the window, in milliseconds."""

    @abstractmethod
    def to_bytes(self) -> bytes:
        """The window's identity: at least one byte, the same for equal windows."""

    @classmethod
    @abstractmethod
    def from_bytes(cls, data: bytes) -> Any:
        """The window with these bytes."""


@total_ordering
class TimeWindow(Window):
    """The time from `start` (inclusive) to `end` (exclusive)."""

    __slots__ = ("end", "start")

    def __init__(self, start: int, end: int) -> None:
        """A window in milliseconds since 1970."""
        self.start = start
        self.end = end

    def max_timestamp(self) -> int:
        """The last millisecond before the end."""
        return self.end - 1

    def intersects(self, other: TimeWindow) -> bool:
        """Whether the two windows overlap or touch."""
        return self.start <= other.end and self.end >= other.start

    def cover(self, other: TimeWindow) -> TimeWindow:
        """The smallest window that contains both."""
        return TimeWindow(min(self.start, other.start), max(self.end, other.end))

    def to_bytes(self) -> bytes:
        """Start and end, 8 bytes each, big-endian, sign bit flipped: bytes sort like times."""
        return _bounds.pack(self.start + _SIGN, self.end + _SIGN)

    @classmethod
    def from_bytes(cls, data: bytes) -> TimeWindow:
        """The window with these bytes."""
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
    """A single window that contains all elements and never ends."""

    __slots__ = ()

    @staticmethod
    def get() -> GlobalWindow:
        """The only window."""
        return _THE_WINDOW

    def max_timestamp(self) -> int:
        """The end of time."""
        return MAX_WATERMARK

    def to_bytes(self) -> bytes:
        """One byte."""
        return b"\x00"

    @classmethod
    def from_bytes(cls, data: bytes) -> GlobalWindow:
        """The only window."""
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
