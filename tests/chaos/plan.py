"""What a run is to do, and what it has come to."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from tests.chaos.events import KEYS
from tests.chaos.job import JobOptions
from tests.chaos.sinks import FILES, LOG, NEWEST, RESULTS
from tests.chaos.stretches import WILD, Stretch, stretches
from tests.chaos.strikes import (
    FATAL,
    GENTLE,
    KINDS,
    PUBLISHING,
    RECOVERING,
    RESTORING,
    ROT,
    STATEFUL,
    Strike,
    in_turn,
    mixed_up,
    with_handovers,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.chaos.growth import Verdict

EPOCHS_OF_TAIL = 4
"""Some may be within the checkpoint that a job starts from, and not yet published."""
EVENTS_PER_KILL, SLOW_EVENTS_PER_KILL = 400, 200
RATE = 300.0
LONG_RATE, LONG_INTERVAL_MS = 60.0, 500
"""Events in a second, and the interval of checkpoints, of a run that lasts."""
WITH_DATA = 0.5
"""Share of the events that come in such a run; a job is down for some of the time."""


def with_tail(data: int, largest_epoch: int) -> int:
    """Events after which, however epochs are cut, all state was given out after all data."""
    return data + EPOCHS_OF_TAIL * (largest_epoch + KEYS)


@dataclass(frozen=True)
class Plan:
    """What one run does."""

    seed: int
    kills: int = 25
    backend: str = "hashmap"
    cluster: bool = False
    sinks: bool = True
    """Whether the job writes to files and tables."""
    unaligned: bool = False
    database: bool = False
    """Whether the database is killed as well."""
    savepoints: bool = False
    """Whether the job is stopped with savepoints as well, and goes on elsewhere."""
    only: tuple[str, ...] = ()
    """What strikes, in turn; if not given, all that there is."""
    minutes: float | None = None
    """How long things strike, in random order; if not given, `kills` times."""
    without: tuple[str, ...] = ()
    """What does not strike, in a run that lasts."""

    def __post_init__(self) -> None:
        """Refuse strikes that could never happen."""
        if self.minutes is not None:
            if next(self.strikes_in(Stretch(0, WILD, 0.0)), None) is None:
                raise ValueError(f"nothing strikes, of {self.only or 'all'} without {self.without}")
            return
        for before, strike in zip([None, *self.strikes], self.strikes, strict=False):
            after_driver = before is not None and before.hits_driver(cluster=self.cluster)
            if strike.kind == RECOVERING and not after_driver:
                raise ValueError(f"{RECOVERING} must come after something that kills the driver")
            after_handover = before is not None and before.hands_over(cluster=self.cluster)
            if strike.kind == RESTORING and not after_handover:
                raise ValueError(f"{RESTORING} must come after a handover")

    @property
    def strikes(self) -> list[Strike]:
        """All strikes of a run that has a number of them, in order."""
        chance = random.Random(self.seed)
        if self.only:
            return in_turn(self.only, self.kills, chance)
        processes = ["driver", "worker"]
        processes += ["executor"] if self.cluster else []
        processes += ["database"] if self.database else []
        strikes = mixed_up(processes, self._sinks, self.kills, chance)
        return with_handovers(strikes, self.kills, chance) if self.savepoints else strikes

    @property
    def stretches(self) -> list[Stretch]:
        """The parts of a run that lasts."""
        return stretches(60 * (self.minutes or 0.0))

    def strikes_in(self, stretch: Stretch) -> Iterator[Strike]:
        """What strikes in a part of a run that lasts, without an end."""
        return stretch.strikes(self.seed, self.kinds, (*self._sinks, *STATEFUL))

    @property
    def kinds(self) -> set[str]:
        """All that may strike."""
        if self.minutes is None:
            return {strike.kind for strike in self.strikes}
        kinds = {*(self.only or KINDS)} - {*self.without}
        points = {point for point, uids in PUBLISHING.items() if uids and RESULTS not in uids}
        return kinds if self.sinks else kinds - points - {"database"}

    @property
    def gives_way(self) -> bool:
        """Whether more is struck than processes, so that the job stands on small disks."""
        return bool(self.kinds & {*GENTLE, *FATAL})

    @property
    def _sinks(self) -> tuple[str, ...]:
        return (RESULTS, FILES, LOG, NEWEST) if self.sinks else (RESULTS,)

    @property
    def options(self) -> JobOptions:
        """What the program is told, every time; until another job goes on."""
        each = SLOW_EVENTS_PER_KILL if self.unaligned else EVENTS_PER_KILL
        options = JobOptions(
            data=max(self.kills, 1) * each,
            rate=RATE,
            backend=self.backend,
            master="local-cluster[2,2,1024]" if self.cluster else "local[2]",
            unaligned=self.unaligned,
            local_backup=ROT in self.kinds,
        )
        if self.minutes is None:
            return options
        data = max(1, int(self.minutes * 60 * LONG_RATE * WITH_DATA))
        return replace(options, data=data, rate=LONG_RATE, interval_ms=LONG_INTERVAL_MS)

    @property
    def command(self) -> str:
        """How to do the same again."""
        lasting = f"--kills {self.kills}" if self.minutes is None else f"--minutes {self.minutes:g}"
        given = [f"--seed {self.seed} {lasting} --backend {self.backend}"]
        switches = ("cluster", "unaligned", "database", "savepoints")
        given += [f"--{name}" for name in switches if vars(self)[name]]
        given += [] if self.sinks else ["--no-sinks"]
        given += [f"--only {','.join(self.only)}"] if self.only else []
        given += [f"--without {','.join(self.without)}"] if self.without else []
        return f'make chaos ARGS="{" ".join(given)}"'


@dataclass(frozen=True)
class Kill:
    """One strike that has come."""

    at: float
    """Seconds since the start."""
    kind: str
    victim: str
    channel_state: bool
    """Whether the job's newest checkpoint held input that was not processed."""


@dataclass
class Outcome:
    """What a run has come to; whatever is in `faults` must not be."""

    kills: list[Kill] = field(default_factory=list)
    starts: int = 0
    """Times the program was started."""
    restarts: int = 0
    """Times it went back to a checkpoint by itself."""
    restores: int = 0
    handovers: int = 0
    """Times a successor went on from a savepoint."""
    suspended: int = 0
    """Times the job was suspended, and started again."""
    refused: int = 0
    """Times a start was refused, as it had to be."""
    checkpoints: int = 0
    faults: list[str] = field(default_factory=list)
    growth: list[Verdict] = field(default_factory=list)
    """What has become of all that a process or directory takes of the machine."""
