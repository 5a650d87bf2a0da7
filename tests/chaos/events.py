"""The input of the chaos job, and the figures that notice when an event is lost or repeated.

The first events carry data. All that follow are probes: they change no state, and make
every operator give out what it holds. So the state can be read when all data has been
processed, however often the job had to begin again.
"""

from __future__ import annotations

from typing import Final, NamedTuple

KEYS: Final = 40
TEAMS: Final = 7
BUCKETS: Final = 5
SAMPLED: Final = 61
"""One event of so many is kept whole."""

_MASK: Final = (1 << 62) - 1


class Event(NamedTuple):
    """One element of the source."""

    index: int
    key: int
    probe: bool


class Tally(NamedTuple):
    """Figures of a set of events; another multiset of events has others.

    A loss and a repetition that make up for each other in the count still show in the sum
    or in the exclusive or, since both are of different numbers.
    """

    count: int
    total: int
    xor: int

    def plus(self, index: int) -> Tally:
        """The figures with one event more."""
        return Tally(self.count + 1, self.total + index, self.xor ^ mixed(index))

    def joined(self, other: Tally) -> Tally:
        """The figures of both."""
        return Tally(self.count + other.count, self.total + other.total, self.xor ^ other.xor)


NOTHING: Final = Tally(0, 0, 0)


def mixed(index: int) -> int:
    """A number of 62 bits that looks random."""
    z = (index + 1) * 0x9E3779B97F4A7C15 & _MASK
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    return z ^ z >> 27


def event(index: int, data: int) -> Event:
    """The element with that number, of a source whose first `data` elements carry data."""
    probe = index >= data
    # Probes visit all keys in turn: any KEYS of them in a row read the whole state.
    return Event(index, index % KEYS if probe else mixed(index) % KEYS, probe)


def team_of(key: int) -> int:
    """The key of the second keyed operator."""
    return key % TEAMS


def bucket_of(index: int) -> str:
    """The map key under which an event is counted."""
    return f"bucket {index % BUCKETS}"


def is_sampled(index: int) -> bool:
    """Whether an event goes into the list state."""
    return index % SAMPLED == 0
