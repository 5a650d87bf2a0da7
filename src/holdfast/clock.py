"""The only module that reads the system's clocks.

The wall clock gives timestamps for people, processing-time timers and time to live. It jumps when
it is set. The monotonic clock never goes back and never jumps; it measures intervals, timeouts and
pauses.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Protocol


class Clock(Protocol):
    """A source of time."""

    def now_ms(self) -> int:
        """Milliseconds since 1970 of the wall clock."""

    def monotonic_ms(self) -> int:
        """Milliseconds of the monotonic clock."""


class SystemClock:
    """The clocks of the machine."""

    def now_ms(self) -> int:
        """Milliseconds since 1970 of the wall clock."""
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        """Milliseconds of the monotonic clock."""
        return time.monotonic_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class Moment:
    """One moment on both clocks."""

    wall_ms: int
    monotonic_ms: int

    @staticmethod
    def of(clock: Clock) -> Moment:
        """The current moment of a clock."""
        return Moment(clock.now_ms(), clock.monotonic_ms())


def monotonic() -> float:
    """Seconds of the monotonic clock, for measuring durations."""
    return time.monotonic()


def wait(seconds: float) -> None:
    """Block the calling thread for `seconds`."""
    time.sleep(seconds)
