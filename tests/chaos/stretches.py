"""A run that lasts: stretches of time, and what strikes in each, all from one seed.

In a wild stretch everything strikes, drivers included. In a steady one the driver lives:
what it takes of the machine is held against what it took before. A calm one ends that, in
which workers live as well.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tests.chaos.strikes import (
    CLOCK,
    FATAL,
    GENTLE,
    HANDOVER,
    HANDOVER_WORKER,
    PUBLISHING,
    RECOVERING,
    RESTORING,
    SAVING,
    Strike,
    one_of,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

CYCLE: Final = 20 * 60.0
"""Seconds in which all kinds of stretches come once, in a run that is long enough."""
WILD, STEADY, CALM = "wild", "steady", "calm"
SHARES: Final = {WILD: 0.4, STEADY: 0.35, CALM: 0.25}
PAUSES: Final = {WILD: 0.0, STEADY: 4.0, CALM: 15.0}
"""Seconds between strikes, at most, besides those in which the job gets on."""
_ALIVE: Final = ("worker", "database", *GENTLE)
_GROUPS: Final = (
    ("driver",),
    ("worker",),
    ("database",),
    ("driver", RECOVERING),
    (HANDOVER,),
    (HANDOVER, RESTORING),
    (HANDOVER_WORKER,),
    *((point,) for point in (*PUBLISHING, *SAVING, *GENTLE, *FATAL)),
)
"""All that strikes in a wild stretch; some of it belongs together."""


@dataclass(frozen=True)
class Stretch:
    """Some time in which the same kinds strike."""

    number: int
    name: str
    seconds: float

    def strikes(
        self, seed: int, kinds: Collection[str], sinks: Collection[str]
    ) -> Iterator[Strike]:
        """What strikes in it, of these kinds and sinks, without an end; maybe nothing."""
        chance = random.Random(f"{seed} {self.number}")
        groups = [group for group in _groups(self.name) if {*group} <= {*kinds}]
        while groups:
            # All of it once, in some order, then all of it again.
            for group in chance.sample(groups, len(groups)):
                for kind in group:
                    yield Strike(kind, one_of(kind, chance, sinks), chance.random())


def stretches(seconds: float) -> list[Stretch]:
    """How a run of that length is divided."""
    cycles = max(1, round(seconds / CYCLE))
    names = [(name, share) for _ in range(cycles) for name, share in SHARES.items()]
    return [
        Stretch(number, name, seconds / cycles * share)
        for number, (name, share) in enumerate(names)
    ]


def _groups(name: str) -> Sequence[tuple[str, ...]]:
    if name == WILD:
        return _GROUPS
    return [(kind,) for kind in (_ALIVE if name == STEADY else (CLOCK,))]
