"""What chaos runs are to do, all from one seed."""

from __future__ import annotations

from itertools import islice, pairwise

import pytest

from tests.chaos.plan import Plan
from tests.chaos.run import parsed
from tests.chaos.sinks import RESULTS
from tests.chaos.stretches import CALM, STEADY, WILD, Stretch, stretches
from tests.chaos.strikes import (
    CLOCK,
    FATAL,
    GENTLE,
    HANDOVER,
    KINDS,
    PROCESSES,
    RECOVERING,
    RESTORING,
    STATEFUL,
    Strike,
)

HOUR = 3600.0


def first(plan: Plan, name: str, number: int = 0, count: int = 60) -> list[Strike]:
    return [*islice(plan.strikes_in(Stretch(number, name, 60.0)), count)]


def test_an_hour_has_long_stretches_in_which_the_driver_lives() -> None:
    parts = stretches(HOUR)
    assert sum(part.seconds for part in parts) == pytest.approx(HOUR)
    assert [part.name for part in parts] == [WILD, STEADY, CALM] * 3
    for steady, calm in pairwise(parts):
        if steady.name == STEADY:
            assert steady.seconds + calm.seconds >= 600
    assert [part.number for part in parts] == [*range(9)]


@pytest.mark.parametrize("seconds", [60.0, 300.0, 2 * HOUR])
def test_any_time_is_divided_without_a_rest(seconds: float) -> None:
    assert sum(part.seconds for part in stretches(seconds)) == pytest.approx(seconds)


def test_the_seed_tells_what_strikes_and_how() -> None:
    assert first(Plan(7, minutes=60), WILD) == first(Plan(7, minutes=60), WILD)
    assert first(Plan(7, minutes=60), WILD) == first(Plan(7, minutes=5), WILD)
    assert first(Plan(7, minutes=60), WILD) != first(Plan(8, minutes=60), WILD)
    assert first(Plan(7, minutes=60), WILD, 0) != first(Plan(7, minutes=60), WILD, 3)


@pytest.mark.parametrize("seed", range(20))
def test_everything_strikes_in_a_wild_stretch_before_anything_comes_again(seed: int) -> None:
    kinds = [strike.kind for strike in first(Plan(seed, minutes=60), WILD, count=32)]
    assert {*kinds} == {*KINDS} - {"executor"}


@pytest.mark.parametrize("seed", range(20))
def test_what_needs_a_strike_before_it_has_that(seed: int) -> None:
    for before, strike in pairwise(first(Plan(seed, minutes=60), WILD, count=200)):
        if strike.kind == RECOVERING:
            assert before.kind == "driver"
        if strike.kind == RESTORING:
            assert before.kind == HANDOVER


@pytest.mark.parametrize("seed", range(20))
def test_the_driver_lives_in_a_steady_stretch_and_workers_in_a_calm_one(seed: int) -> None:
    steady = {strike.kind for strike in first(Plan(seed, minutes=60), STEADY)}
    assert steady == {"worker", "database", *GENTLE}
    assert {strike.kind for strike in first(Plan(seed, minutes=60), CALM)} == {CLOCK}


def test_kinds_can_be_left_out_or_chosen() -> None:
    without = Plan(1, minutes=60, without=("clock", *FATAL))
    assert not {strike.kind for strike in first(without, WILD)} & {"clock", *FATAL}
    assert first(without, CALM) == []
    only = Plan(1, minutes=60, only=("driver", RECOVERING, "flaky"))
    assert {strike.kind for strike in first(only, WILD)} == {"driver", RECOVERING, "flaky"}
    assert {strike.kind for strike in first(only, STEADY)} == {"flaky"}


def test_a_plan_of_which_nothing_is_left_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing strikes"):
        Plan(1, minutes=60, only=("clock",), without=("clock",))
    with pytest.raises(ValueError, match="nothing strikes"):
        Plan(1, minutes=60, only=(RECOVERING,))


def test_without_sinks_no_sink_is_struck() -> None:
    strikes = first(Plan(1, minutes=60, sinks=False), WILD, count=100)
    assert not {strike.kind for strike in strikes} & {"database", "during-publish", "published"}
    assert {strike.uid for strike in strikes} <= {None, RESULTS, *STATEFUL}


def test_only_what_strikes_below_processes_needs_small_disks() -> None:
    assert Plan(1, minutes=60).gives_way
    assert not Plan(1, 25, savepoints=True).gives_way
    assert Plan(1, 2, only=("full-local", "worker")).gives_way
    assert not Plan(1, minutes=60, without=(*GENTLE, *FATAL)).gives_way


def test_the_state_of_a_run_that_lasts_is_bounded_and_its_input_is_not_short() -> None:
    hour = Plan(1, minutes=60).options
    assert hour.rate is not None
    assert hour.data == pytest.approx(HOUR * hour.rate / 2)
    assert hour.local_backup
    assert not Plan(1, 5).options.local_backup


@pytest.mark.parametrize(
    "plan",
    [
        Plan(7, minutes=60),
        Plan(7, minutes=2.5, only=("clock", "driver"), without=("driver",), backend="rocksdb"),
        Plan(7, 12, savepoints=True, sinks=False),
        Plan(7, 3, only=("java", "rot"), cluster=True, unaligned=True),
    ],
)
def test_the_command_of_a_plan_leads_to_the_same_plan(plan: Plan) -> None:
    given = plan.command.partition('ARGS="')[2].removesuffix('"')
    again = parsed(given.split())[0]
    assert again.strikes == plan.strikes
    assert again.kinds == plan.kinds
    assert again.options == plan.options
    assert again.command == plan.command


def test_hours_are_minutes() -> None:
    assert parsed(["--seed", "1", "--hours", "1.5"])[0].minutes == 90


@pytest.mark.parametrize(
    "arguments",
    [
        ["--only", "nonsense"],
        ["--without", "clock"],
        ["--hours", "1", "--kills", "3"],
        ["--kills", "2", "--only", "worker,before-recovered-publish"],
    ],
)
def test_arguments_that_make_no_sense_are_refused(arguments: list[str]) -> None:
    with pytest.raises(SystemExit):
        parsed(arguments)


def test_every_kind_has_its_place() -> None:
    assert len(KINDS) == len({*KINDS})
    for kind in (*GENTLE, *FATAL, *PROCESSES):
        assert not Strike(kind).is_point
    for kind in FATAL:
        assert Strike(kind).hits_driver(cluster=False)
        assert Strike(kind).hits_driver(cluster=True)
    for kind in GENTLE:
        assert not Strike(kind).hits_driver(cluster=False)
        assert not Strike(kind).hands_over(cluster=False)
