"""What is killed and when: processes at random moments, and drivers as they publish.

The job is also stopped with a savepoint and handed over to a successor, and processes die
on the way there. And what a job stands on gives way: the clock, disks, files, the session.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import cycle, islice
from typing import TYPE_CHECKING

from tests.chaos.savepoints import COMPLETE
from tests.chaos.sinks import FILES, LOG, NEWEST, RESULTS

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable, Iterator, Sequence

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
CLOCK = "clock"
"""The wall clock steps, by hours, forward or back."""
FULL_CHECKPOINTS, FULL_LOCAL = "full-checkpoints", "full-local"
"""The disk of checkpoints, or of local state, is full for some seconds."""
FLAKY, SLOW = "flaky", "slow"
"""Requests to checkpoint storage fail or linger for some seconds."""
ROT = "rot"
"""Bits flip in every local copy of state, and a worker dies, so that copies are needed."""
GENTLE = (CLOCK, FULL_CHECKPOINTS, FULL_LOCAL, FLAKY, SLOW, ROT)
"""What a driver lives through."""
MISSING_METADATA, MISSING_FILE = "missing-metadata", "missing-file"
"""The driver dies, a file of its newest checkpoint is gone, and the next start is refused."""
JAVA, SESSION = "java", "session"
"""The driver's Java side dies, or its session is stopped; the job must be suspended then."""
FATAL = (MISSING_METADATA, MISSING_FILE, JAVA, SESSION)
"""What ends a driver, and more."""
KINDS = (*PROCESSES, *PUBLISHING, RECOVERING, *HANDOVERS, RESTORING, *GENTLE, *FATAL)
_UIDS = PUBLISHING | SAVING | {RESTORING: STATEFUL}


@dataclass(frozen=True)
class Strike:
    """One kill that is to come."""

    kind: str
    """A kind of process, a point that a process reaches, or a handover."""
    uid: str | None = None
    """The sink or operator at whose point."""
    strength: float = 0.5
    """From 0 to 1: how far a clock steps, how long a disk is full."""

    @property
    def is_point(self) -> bool:
        """Whether a process kills itself, where it stands."""
        return self.kind not in (*PROCESSES, HANDOVER, HANDOVER_WORKER, *GENTLE, *FATAL)

    def hits_driver(self, *, cluster: bool) -> bool:
        """Whether the driver dies; executors publish for most sinks, and keep all state."""
        if self.is_point and cluster:
            return self.uid in (None, RESULTS)
        return self.is_point or self.kind in ("driver", *FATAL)

    def hands_over(self, *, cluster: bool) -> bool:
        """Whether a successor goes on from a savepoint; which it does unless the driver dies."""
        return self.kind in HANDOVERS and not self.hits_driver(cluster=cluster)


def in_turn(kinds: Sequence[str], kills: int, chance: random.Random) -> list[Strike]:
    """Exactly these, again and again."""
    return [
        Strike(kind, one_of(kind, chance), chance.random()) for kind in islice(cycle(kinds), kills)
    ]


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
            for strike in (Strike(next(turn)), Strike(point, one_of(point, chance, sinks)))
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
            yield [Strike(each, one_of(each, chance)) for each in kinds]


def one_of(point: str, chance: random.Random, sinks: Iterable[str] | None = None) -> str | None:
    """The sink or operator at whose point it is, of those that pass it."""
    uids = _UIDS.get(point, ())
    known = [uid for uid in uids if sinks is None or uid in sinks]
    return chance.choice(known) if known else None
