"""What the state of the chaos job must be, and where a state differs from that."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.chaos.events import NOTHING, Tally, bucket_of, event, is_sampled, team_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

State = dict[str, Any]
"""All state of the job by a name, as JSON holds it."""


def expected_state(numbers: Iterable[int], data: int) -> State:
    """The state after these events, each as often as it is listed, in any order."""
    ledger = NOTHING
    keys: dict[int, Tally] = {}
    buckets: dict[int, dict[str, int]] = {}
    teams: dict[int, Tally] = {}
    ranks: dict[int, int] = {}
    samples: dict[int, list[int]] = {}
    for number in numbers:
        key = event(number, data).key
        team = team_of(key)
        ledger = ledger.plus(number)
        keys[key] = keys.get(key, NOTHING).plus(number)
        counts = buckets.setdefault(key, {})
        counts[bucket_of(number)] = counts.get(bucket_of(number), 0) + 1
        teams[team] = teams.get(team, NOTHING).plus(number)
        ranks[team] = ranks.get(team, 0) + keys[key].events
        if is_sampled(number, data):
            samples.setdefault(team, []).append(number)
    return {
        **{f"key {key}": [*tally, sorted(buckets[key].items())] for key, tally in keys.items()},
        **{
            f"team {team}": [*tally, ranks[team], sorted(samples.get(team, []))]
            for team, tally in teams.items()
        },
        "ledger": [*ledger],
    }


def expected_tallies(numbers: Iterable[int], data: int) -> dict[int, Tally]:
    """The figures of every key after these events."""
    tallies: dict[int, Tally] = {}
    for number in numbers:
        key = event(number, data).key
        tallies[key] = tallies.get(key, NOTHING).plus(number)
    return tallies


def tally_of(numbers: Iterable[int]) -> Tally:
    """The figures of these events."""
    tally = NOTHING
    for number in numbers:
        tally = tally.plus(number)
    return tally


def state_in(results: Mapping[str, Mapping[str, Any]]) -> State:
    """The state as the job's own results tell it (see `results.Results`)."""
    ledger = NOTHING
    for tally in results["ledger"].values():
        # Which subtask saw which event differs from run to run; together they saw all.
        ledger = ledger.joined(Tally(*tally))
    return {
        **{f"key {key}": held for key, held in results["key"].items()},
        **{f"team {team}": held for team, held in results["team"].items()},
        "ledger": [*ledger],
    }


def differences(expected: State, found: State) -> list[str]:
    """A sentence for everything that is not as it must be; none if the states are equal."""
    names = sorted(expected.keys() | found.keys())
    return [
        f"{name}: {_plain(found.get(name))} instead of {_plain(expected.get(name))}"
        for name in names
        if _plain(expected.get(name)) != _plain(found.get(name))
    ]


def _plain(value: Any) -> Any:
    """Tuples as lists, as JSON has them."""
    return [_plain(v) for v in value] if isinstance(value, list | tuple) else value
