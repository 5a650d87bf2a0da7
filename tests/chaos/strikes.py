"""What is killed and when: processes at random moments, and drivers as they publish."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import cycle, islice
from typing import TYPE_CHECKING, Any

from tests.chaos.sinks import FILES, LOG, NEWEST, RESULTS

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable, Sequence
    from pathlib import Path

PROCESSES = ("driver", "worker", "executor", "database")
RECOVERING = "before-recovered-publish"
PUBLISHING: dict[str, tuple[str, ...]] = {
    "after-metadata": (),
    "before-publish": (RESULTS, FILES, LOG, NEWEST),
    "during-publish": (FILES, LOG, NEWEST),
    "published": (LOG, NEWEST),
    "after-publish": (RESULTS, FILES, LOG, NEWEST),
}
"""Points between any two steps of a publication, and the sinks that pass them."""
KINDS = (*PROCESSES, *PUBLISHING, RECOVERING)


@dataclass(frozen=True)
class Strike:
    """One kill that is to come."""

    kind: str
    """A kind of process, or a point that a process reaches."""
    uid: str | None = None
    """The sink at whose point."""

    @property
    def is_point(self) -> bool:
        """Whether a process kills itself, where it stands."""
        return self.kind not in PROCESSES

    def hits_driver(self, *, cluster: bool) -> bool:
        """Whether it is the driver that dies; executors publish for most sinks."""
        if self.is_point and cluster:
            return self.uid in (None, RESULTS)
        return self.is_point or self.kind == "driver"


def in_turn(kinds: Sequence[str], kills: int, chance: random.Random) -> list[Strike]:
    """Exactly these, again and again."""
    return [Strike(kind, _one_of(kind, chance)) for kind in islice(cycle(kinds), kills)]


def mixed_up(
    processes: Sequence[str], sinks: Sequence[str], kills: int, chance: random.Random
) -> list[Strike]:
    """Processes in turn, and between any two of them a point; all points come equally often.

    A driver that dies before it has published again had another one before it that died.
    """
    points = [p for p, uids in PUBLISHING.items() if not uids or {*uids} & {*sinks}]
    turn = cycle(processes)
    strikes: list[Strike] = []
    while len(strikes) < kills:
        some = [
            strike
            for point in chance.sample(points, len(points))
            for strike in (Strike(next(turn)), Strike(point, _one_of(point, chance, sinks)))
        ]
        drivers = [place for place, strike in enumerate(some) if strike.kind == "driver"]
        some.insert(chance.choice(drivers) + 1, Strike(RECOVERING))
        strikes += some
    return strikes[:kills]


def _one_of(point: str, chance: random.Random, sinks: Iterable[str] | None = None) -> str | None:
    uids = PUBLISHING.get(point, ())
    known = [uid for uid in uids if sinks is None or uid in sinks]
    return chance.choice(known) if known else None


class Trap:
    """Lets a process of the job die at a point; set at any time, while the job runs or not."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._markers = 0
        self._set: Strike | None = None

    def set(self, strike: Strike) -> None:
        """Let the next process die that comes to this point; unless that is set already."""
        if self._set == strike:
            return
        self._set = strike
        self._markers += 1
        fault: dict[str, Any] = {
            "point": strike.kind,
            "action": "kill",
            "once": str(self._marker),
        }
        if strike.uid is not None:
            fault["uid"] = strike.uid
        fresh = self.file_in(self._directory).with_suffix(".new")
        fresh.write_text(json.dumps([fault]))
        fresh.rename(self.file_in(self._directory))

    def has_struck(self) -> bool:
        """Whether a process has died there; then another may be set."""
        struck = self._marker.exists()
        if struck:
            self._set = None
        return struck

    @property
    def _marker(self) -> Path:
        return self._directory / f"struck-{self._markers}"

    @staticmethod
    def file_in(directory: Path) -> Path:
        """Where the job looks for faults."""
        return directory / "faults.json"
