"""Where the processes of the chaos job can be disturbed: the clock, and checkpoint storage.

The monkey puts files into a directory that an environment variable names; the driver and
its workers look at them. Without such a variable, and without such files, all is as usual.
"""

from __future__ import annotations

import json
import os
import random
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Generic, TypeVar

import fsspec

from holdfast.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

DIRECTORY: Final = "HOLDFAST_CHAOS"
"""The variable."""
PROTOCOL: Final = "flaky"
"""Of the file system that fails when the weather says so."""
LOOK_EVERY: Final = 0.05
"""Seconds for which a process takes what it has seen in the directory for granted."""


@dataclass(frozen=True)
class Weather:
    """What checkpoint storage is like for a while."""

    failing: float = 0.0
    """Share of operations that fail."""
    slow: float = 0.0
    """Share of operations that take up to `delay` seconds."""
    delay: float = 0.0
    full: bool = False
    """Whether nothing can be written."""


CALM: Final = Weather()


class Seams:
    """The directory, as the monkey sees it and as the job does."""

    def __init__(self, directory: Path) -> None:
        self._clock = directory / "clock-offset"
        self._weather = directory / "weather.json"

    def step_clock(self, offset_ms: int) -> None:
        """Let the clock of the whole job be wrong by so much, from now on."""
        _replace(self._clock, str(offset_ms))

    def change(self, weather: Weather) -> None:
        """Let storage be like this, from now on."""
        _replace(self._weather, json.dumps(asdict(weather)))

    def offset_ms(self) -> int:
        """By how much the clock is wrong."""
        return int(_content(self._clock) or 0)

    def weather(self) -> Weather:
        """What storage is like."""
        found = _content(self._weather)
        return Weather(**json.loads(found)) if found else CALM


def install() -> None:
    """Let this process look at the directory that its environment names, if it does."""
    named = os.environ.get(DIRECTORY)
    if named is None:
        return
    # Here, since the file system takes the seams of this module.
    from tests.chaos.flaky import FlakyFileSystem

    offset = Glance(Seams(Path(named)).offset_ms)

    def now_ms(self: SystemClock) -> int:
        return time.time_ns() // 1_000_000 + offset()

    SystemClock.now_ms = now_ms  # type: ignore[method-assign]
    fsspec.register_implementation(PROTOCOL, FlakyFileSystem, clobber=True)


class Glance(Generic[T]):
    """Looks at something, and takes it for granted for a moment."""

    def __init__(self, look: Callable[[], T]) -> None:
        self._look = look
        self._until = 0.0

    def __call__(self) -> T:
        now = time.monotonic()
        if now >= self._until:
            self._seen = self._look()
            self._until = now + LOOK_EVERY
        return self._seen


def chance() -> random.Random:
    """Luck of this process."""
    return random.Random(f"{os.environ.get(DIRECTORY)} {os.getpid()} {time.monotonic_ns()}")


def _replace(path: Path, content: str) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_text(content)
    fresh.rename(path)


def _content(path: Path) -> str | None:
    try:
        return path.read_text()
    except FileNotFoundError:
        return None
