"""Whether a figure grows as long as a process lives: a pure judgement over samples.

A process takes more while it warms up. So the beginning of its life counts for nothing,
nor does the first third of what follows; the last third is held against the one before it.
Both are told by their medians: a figure may jump for a while, but not stay up.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from statistics import median
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

MIB: Final = 1 << 20
FEWEST: Final = 12
"""Samples of a life that can be judged."""


class Sample(NamedTuple):
    """One figure, once."""

    at: float
    """Seconds since the start of the run."""
    life: str
    """What has the figure: a process, or a directory."""
    figure: str
    value: float


@dataclass(frozen=True)
class Tolerance:
    """By how much a figure may be higher in the last third."""

    share: float
    """Of what it was."""
    amount: float
    """And so much besides."""
    warm_up: float = 60.0
    """Seconds at the beginning of a life that count for nothing."""
    unit: float = 1.0
    """What it is told in."""
    name: str = ""

    def allowed(self, before: float) -> float:
        """The highest that a figure may be that was `before`."""
        return before * (1 + self.share) + self.amount


MEMORY: Final = Tolerance(0.05, 12 * MIB, unit=MIB, name="MiB")
JAVA: Final = Tolerance(0.10, 32 * MIB, warm_up=120, unit=MIB, name="MiB")
HEAP: Final = Tolerance(0.10, 8 * MIB, unit=MIB, name="MiB")
COUNT: Final = Tolerance(0.05, 5)
DISK: Final = Tolerance(0.25, MIB, unit=MIB, name="MiB")
FILES: Final = Tolerance(0.25, 20)
LONG_ENOUGH: Final = 150.0
"""Seconds of a life, after it has warmed up, that can be judged."""


@dataclass(frozen=True)
class Verdict:
    """What has become of one figure of one life."""

    life: str
    figure: str
    minutes: float
    middle: float
    last: float
    tolerance: Tolerance

    @property
    def grows(self) -> bool:
        """Whether it is more than it may be."""
        return self.last > self.tolerance.allowed(self.middle)

    @property
    def cells(self) -> tuple[str, ...]:
        """A row of a table."""
        unit = self.tolerance.unit
        amounts = (self.middle, self.last, self.tolerance.allowed(self.middle))
        return (
            self.life,
            self.figure,
            f"{self.minutes:.1f}",
            *(f"{amount / unit:,.0f} {self.tolerance.name}".rstrip() for amount in amounts),
            "GROWS" if self.grows else "ok",
        )


HEADINGS: Final = ("of", "figure", "minutes", "middle", "last", "allowed", "")


def verdicts(
    samples: Iterable[Sample], tolerances: dict[str, Tolerance], shortest: float = LONG_ENOUGH
) -> list[Verdict]:
    """A verdict for every figure of every life of `shortest` seconds, warm-up aside."""

    def place(sample: Sample) -> tuple[str, str]:
        return sample.life, sample.figure

    found = []
    for (life, figure), group in groupby(sorted(samples, key=place), key=place):
        born, *points = sorted(group)
        tolerance = tolerances[figure]
        points = [point for point in points if point.at >= born.at + tolerance.warm_up]
        if len(points) >= FEWEST and points[-1].at - points[0].at >= shortest:
            middle, last = thirds(points)[1:]
            minutes = (points[-1].at - born.at) / 60
            found.append(Verdict(life, figure, minutes, middle, last, tolerance))
    return found


def thirds(points: Sequence[Sample]) -> tuple[float, float, float]:
    """The median in each third of the time that samples in order cover."""
    start, end = points[0].at, points[-1].at
    cuts = [start + (end - start) * part / 3 for part in (1, 2)]
    parts: list[list[float]] = [[], [], []]
    for point in points:
        parts[sum(point.at > cut for cut in cuts)].append(point.value)
    first, middle, last = (median(part) if part else float("nan") for part in parts)
    return first, middle, last


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines in which the cells of a column stand below each other."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
