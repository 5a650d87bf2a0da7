"""What is killed and when: processes at random moments, and drivers as they publish.

The job is also stopped with a savepoint and handed over to a successor, and processes die
on the way there.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import cycle, islice
from typing import TYPE_CHECKING, Any

from tests.chaos.savepoints import COMPLETE
from tests.chaos.sinks import FILES, LOG, NEWEST, RESULTS

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable, Iterator, Sequence
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
HANDOVER = "handover"
"""Kills nobody: the job is stopped with a savepoint, and goes on from that elsewhere."""
HANDOVER_WORKER = "handover-worker"
"""The same, and a worker dies when the savepoint has been asked for."""
STATEFUL = ("ledger", "delay", "keys", "teams")
"""The uids of operators with state."""
SAVING: dict[str, tuple[str, ...]] = {
    "before-savepoint-part": STATEFUL,
    "after-savepoint-part": STATEFUL,
    "before-savepoint-metadata": (),
    COMPLETE: (),
}
"""Points between any two steps of a savepoint, and the operators that pass them."""
RESTORING = "during-restore"
"""A point in the start from a savepoint."""
HANDOVERS = (HANDOVER, HANDOVER_WORKER, *SAVING)
"""All that begins with a savepoint that is asked for."""
KINDS = (*PROCESSES, *PUBLISHING, RECOVERING, *HANDOVERS, RESTORING)
_UIDS = PUBLISHING | SAVING | {RESTORING: STATEFUL}


@dataclass(frozen=True)
class Strike:
    """One kill that is to come."""

    kind: str
    """A kind of process, a point that a process reaches, or a handover."""
    uid: str | None = None
    """The sink or operator at whose point."""

    @property
    def is_point(self) -> bool:
        """Whether a process kills itself, where it stands."""
        return self.kind not in (*PROCESSES, HANDOVER, HANDOVER_WORKER)

    def hits_driver(self, *, cluster: bool) -> bool:
        """Whether the driver dies; executors publish for most sinks, and keep all state."""
        if self.is_point and cluster:
            return self.uid in (None, RESULTS)
        return self.is_point or self.kind == "driver"

    def hands_over(self, *, cluster: bool) -> bool:
        """Whether a successor goes on from a savepoint; which it does unless the driver dies."""
        return self.kind in HANDOVERS and not self.hits_driver(cluster=cluster)


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


def with_handovers(strikes: Iterable[Strike], kills: int, chance: random.Random) -> list[Strike]:
    """Other strikes, and before each something with a savepoint; all of that equally often.

    Of the successors, one dies in its start for every time that all has come.
    """
    turn = _rounds_of_handovers(chance)
    mixed: list[Strike] = []
    for strike in strikes:
        # That one belongs to the strike before it.
        if strike.kind != RECOVERING:
            mixed += next(turn)
        mixed.append(strike)
    return mixed[:kills]


def _rounds_of_handovers(chance: random.Random) -> Iterator[list[Strike]]:
    while True:
        for kind in chance.sample(HANDOVERS, len(HANDOVERS)):
            kinds = (kind, RESTORING) if kind == HANDOVER else (kind,)
            yield [Strike(each, _one_of(each, chance)) for each in kinds]


def _one_of(point: str, chance: random.Random, sinks: Iterable[str] | None = None) -> str | None:
    uids = _UIDS.get(point, ())
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
