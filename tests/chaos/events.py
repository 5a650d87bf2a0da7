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
"""One event of so many is kept whole, at most."""
SAMPLES: Final = 200
"""About so many events are kept whole at most: state is bounded, however long a job runs."""

_MASK: Final = (1 << 62) - 1


class Event(NamedTuple):
    """One element of the source."""

    number: int
    key: int
    probe: bool


class Tally(NamedTuple):
    """Figures of a set of events; another multiset of events has others.

    A loss and a repetition that make up for each other in the count still show in the sum
    or in the exclusive or, since both are of different numbers.
    """

    events: int
    total: int
    xor: int

    def plus(self, number: int) -> Tally:
        """The figures with one event more."""
        return Tally(self.events + 1, self.total + number, self.xor ^ mixed(number))

    def joined(self, other: Tally) -> Tally:
        """The figures of both."""
        return Tally(self.events + other.events, self.total + other.total, self.xor ^ other.xor)


NOTHING: Final = Tally(0, 0, 0)


def mixed(number: int) -> int:
    """A number of 62 bits that looks random."""
    z = (number + 1) * 0x9E3779B97F4A7C15 & _MASK
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    return z ^ z >> 27


def event(number: int, data: int) -> Event:
    """The element with that number, of a source whose first `data` elements carry data."""
    probe = number >= data
    # Probes visit all keys in turn: any KEYS of them in a row read the whole state.
    return Event(number, number % KEYS if probe else mixed(number) % KEYS, probe)


def team_of(key: int) -> int:
    """The key of the second keyed operator."""
    return key % TEAMS


def bucket_of(number: int) -> str:
    """The map key under which an event is counted."""
    return f"bucket {number % BUCKETS}"


def is_sampled(number: int, data: int) -> bool:
    """Whether an event goes into the list state, of a source with so many that carry data."""
    return number % max(SAMPLED, data // SAMPLES) == 0
