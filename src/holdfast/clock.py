"""Time as an argument: the only module that reads the system's clocks.

There are two, for two purposes. The wall clock says when something was; people read it, and
timers in processing time and time to live go by it. It can be set, and then it jumps. The
other one never goes back and never jumps: intervals, timeouts and pauses are measured on it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Protocol


class Clock(Protocol):
    """Where the time comes from."""

    def now_ms(self) -> int:
        """Milliseconds since 1970, by the wall clock."""

    def monotonic_ms(self) -> int:
        """Milliseconds since some moment, on a clock that never goes back."""


class SystemClock:
    """The machine's own clocks."""

    def now_ms(self) -> int:
        """Milliseconds since 1970, by the wall clock."""
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        """Milliseconds since some moment, on a clock that never goes back."""
        return time.monotonic_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class Moment:
    """One moment on both clocks."""

    wall_ms: int
    monotonic_ms: int

    @staticmethod
    def of(clock: Clock) -> Moment:
        """The moment that a clock shows."""
        return Moment(clock.now_ms(), clock.monotonic_ms())


def monotonic() -> float:
    """Seconds on a clock that never goes back; for measuring durations."""
    return time.monotonic()


def wait(seconds: float) -> None:
    """Block the calling thread for `seconds`."""
    time.sleep(seconds)
