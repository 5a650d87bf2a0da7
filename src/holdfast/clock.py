"""Time as an argument: the only module that reads the system clock."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Where the time comes from."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""


class SystemClock:
    """The machine's own clock."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch, by the system clock."""
        return time.time_ns() // 1_000_000


def monotonic() -> float:
    """Seconds on a clock that never goes back; for measuring durations."""
    return time.monotonic()


def wait(seconds: float) -> None:
    """Block the calling thread for `seconds`."""
    time.sleep(seconds)
