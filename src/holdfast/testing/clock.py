"""A clock that tests set."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.config.options import argument, duration_ms

if TYPE_CHECKING:
    from holdfast.config.options import DurationLike


class ManualClock:
    """A clock that stands still until it is moved; both its readings can be moved separately."""

    def __init__(self, now_ms: int = 0) -> None:
        """A clock that starts at `now_ms`."""
        self._now_ms = now_ms
        self._monotonic_ms = 0

    def now_ms(self) -> int:
        """Milliseconds since 1970, by the wall clock."""
        return self._now_ms

    def monotonic_ms(self) -> int:
        """Milliseconds since this clock was made; setting it changes nothing."""
        return self._monotonic_ms

    def set(self, now_ms: int) -> None:
        """Set the wall clock; no time passes."""
        self._now_ms = now_ms

    def advance(self, duration: DurationLike) -> None:
        """Let time pass, on both readings: milliseconds, "10 s" or a `timedelta`."""
        milliseconds = argument(duration_ms, duration, "advance")
        self._now_ms += milliseconds
        self._monotonic_ms += milliseconds
