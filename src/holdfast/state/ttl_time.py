"""By what time state grows old, and what else its cleanup has to know."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from holdfast.clock import SystemClock, monotonic

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.clock import Clock


class TtlTime(Protocol):
    """The time of states whose entries expire, in milliseconds."""

    def now(self) -> int:
        """What the times of entries are compared with; `FIRST_TIME` if it is not known yet."""

    def stamp(self) -> int:
        """The time that an entry gets; `FIRST_TIME` if it is not known yet."""


class ClockTime:
    """Processing time."""

    __slots__ = ("now", "stamp")

    def __init__(self, clock: Clock) -> None:
        """Time as `clock` shows it."""
        # The clock's own method: this is on the path of every access.
        self.now = self.stamp = clock.now_ms


def _no_records() -> int:
    return 0


@dataclass(frozen=True, slots=True)
class TtlContext:
    """What states with a time to live are told by whoever runs the operator."""

    processing: TtlTime
    event: TtlTime | None = None
    """None where elements have no event time."""
    records: Callable[[], int] = _no_records
    """How many records the operator has had in this epoch."""
    incremental_snapshots: bool = False
    """Whether snapshots share files, so that removing entries from them saves nothing."""
    seconds: Callable[[], float] = monotonic
    """Measures how long a sweep takes."""

    @staticmethod
    def by_system_clock() -> TtlContext:
        """Processing time, by the machine's clock."""
        return TtlContext(ClockTime(SystemClock()))
