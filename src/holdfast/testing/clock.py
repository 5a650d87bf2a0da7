"""A clock that tests set."""

from __future__ import annotations


class ManualClock:
    """Stands still until it is moved."""

    def __init__(self, now_ms: int = 0) -> None:
        """A clock that shows `now_ms`."""
        self._now_ms = now_ms

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""
        return self._now_ms

    def set(self, now_ms: int) -> None:
        """Show another time."""
        self._now_ms = now_ms

    def advance(self, milliseconds: int) -> None:
        """Go forward."""
        self._now_ms += milliseconds
