"""What a run is to do, and what it has come to."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from tests.chaos.events import KEYS
from tests.chaos.job import LARGEST_EPOCH, JobOptions
from tests.chaos.sinks import FILES, LOG, NEWEST, RESULTS
from tests.chaos.strikes import (
    RECOVERING,
    RESTORING,
    Strike,
    in_turn,
    mixed_up,
    with_handovers,
)

TAIL = 4 * (LARGEST_EPOCH + KEYS)
"""Probes after which, however epochs are cut, all state was given out after all data.

Some epochs may be within the checkpoint that a job starts from, and not yet published.
"""
EVENTS_PER_KILL, SLOW_EVENTS_PER_KILL = 400, 200
RATE = 300.0


@dataclass(frozen=True)
class Plan:
    """What one run does."""

    seed: int
    kills: int
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
    """What is killed, in turn; if not given, all that there is."""

    def __post_init__(self) -> None:
        """Refuse kills that could never happen."""
        for before, strike in zip([None, *self.strikes], self.strikes, strict=False):
            after_driver = before is not None and before.hits_driver(cluster=self.cluster)
            if strike.kind == RECOVERING and not after_driver:
                raise ValueError(f"{RECOVERING} must come after something that kills the driver")
            after_handover = before is not None and before.hands_over(cluster=self.cluster)
            if strike.kind == RESTORING and not after_handover:
                raise ValueError(f"{RESTORING} must come after a handover")

    @property
    def strikes(self) -> list[Strike]:
        """All kills, in order."""
        chance = random.Random(self.seed)
        if self.only:
            return in_turn(self.only, self.kills, chance)
        processes = ["driver", "worker"]
        processes += ["executor"] if self.cluster else []
        processes += ["database"] if self.database else []
        uids = (RESULTS, FILES, LOG, NEWEST) if self.sinks else (RESULTS,)
        strikes = mixed_up(processes, uids, self.kills, chance)
        return with_handovers(strikes, self.kills, chance) if self.savepoints else strikes

    @property
    def options(self) -> JobOptions:
        """What the program is told, every time; until another job goes on."""
        each = SLOW_EVENTS_PER_KILL if self.unaligned else EVENTS_PER_KILL
        return JobOptions(
            data=max(self.kills, 1) * each,
            rate=RATE,
            backend=self.backend,
            master="local-cluster[2,2,1024]" if self.cluster else "local[2]",
            unaligned=self.unaligned,
        )

    @property
    def command(self) -> str:
        """How to do the same again."""
        given = [f"--seed {self.seed} --kills {self.kills} --backend {self.backend}"]
        switches = ("cluster", "unaligned", "database", "savepoints")
        given += [f"--{name}" for name in switches if vars(self)[name]]
        given += [] if self.sinks else ["--no-sinks"]
        given += [f"--only {','.join(self.only)}"] if self.only else []
        return f'make chaos ARGS="{" ".join(given)}"'


@dataclass(frozen=True)
class Kill:
    """One kill, or handover."""

    at: float
    """Seconds since the start."""
    kind: str
    victim: str
    left_over: bool
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
    checkpoints: int = 0
    faults: list[str] = field(default_factory=list)
