"""Restart strategies, failure by failure."""

from __future__ import annotations

from random import Random

import pytest

from holdfast.config.restart import (
    ExponentialDelay,
    FailureRate,
    FixedDelay,
    NoRestart,
    RestartStrategy,
)
from holdfast.job.restart import restart_tracker


def delays(strategy: RestartStrategy, *failures: int, seed: int = 0) -> list[int | None]:
    tracker = restart_tracker(strategy, random=Random(seed))
    return [tracker.failed(now) for now in failures]


def exponential(**changes: int | float | None) -> ExponentialDelay:
    settings: dict[str, int | float | None] = {
        "initial_backoff": 100,
        "max_backoff": 1_000,
        "backoff_multiplier": 2.0,
        "reset_threshold": 5_000,
        "jitter_factor": 0.0,
        "attempts": None,
    }
    return ExponentialDelay(**(settings | changes))  # type: ignore[arg-type]


def test_without_restarts_the_first_failure_ends_the_job():
    assert restart_tracker(NoRestart()).failed(0) is None


def test_a_restart_without_delay_is_still_a_restart():
    assert restart_tracker(FixedDelay(1, 0)).failed(0) == 0


def test_a_fixed_delay_restarts_as_often_as_it_may_and_never_again():
    assert delays(FixedDelay(2, 70), 0, 10, 20, 1_000_000) == [70, 70, None, None]


def test_a_failure_rate_bears_so_many_failures_within_the_interval():
    assert delays(FailureRate(3, 1_000, 50), 0, 1, 2, 3) == [50, 50, 50, None]


def test_a_failure_rate_forgets_failures_older_than_the_interval():
    times = range(0, 5_005, 501)
    assert delays(FailureRate(1, 500, 50), *times) == [50] * len(times)


@pytest.mark.parametrize(("second", "delay"), [(500, None), (501, 50)])
def test_failures_exactly_one_interval_apart_still_count_together(second, delay):
    assert delays(FailureRate(1, 500, 50), 0, second) == [50, delay]


def test_an_exponential_delay_grows_up_to_its_limit():
    # Each failure comes one millisecond after the restart before it.
    assert delays(exponential(), 0, 101, 302, 703, 1_504, 2_505) == [
        100,
        200,
        400,
        800,
        1_000,
        1_000,
    ]


def test_a_failure_before_the_planned_restart_belongs_to_the_same_breakdown():
    assert delays(exponential(attempts=2), 0, 30, 100, 101) == [100, 70, 0, 200]


@pytest.mark.parametrize(("quiet", "delay"), [(4_999, 400), (5_000, 100)])
def test_the_delay_starts_over_when_the_job_ran_long_enough_after_a_restart(quiet, delay):
    # The second restart happens at 101 + 200.
    assert delays(exponential(), 0, 101, 301 + quiet)[-1] == delay


def test_attempts_are_counted_since_the_last_reset():
    limited = exponential(attempts=2)
    assert delays(limited, 0, 101, 302) == [100, 200, None]
    assert delays(limited, 0, 101, 5_301, 5_402, 5_603) == [100, 200, 100, 200, None]


def test_a_job_that_was_given_up_stays_so_for_failures_that_follow_at_once():
    assert delays(exponential(attempts=1), 0, 101, 102) == [100, None, None]


def test_jitter_stays_within_its_part_and_within_the_limits():
    jittery = exponential(jitter_factor=0.25)
    seen = [delays(jittery, 0, 2_000, 4_000, 6_000, 8_000, seed=seed) for seed in range(200)]
    first, second, third, fourth, fifth = zip(*seen, strict=True)
    assert (min(first), max(first)) == (100, 125)
    assert 150 <= min(second) < 170
    assert 230 < max(second) <= 250
    assert 300 <= min(third) < max(third) <= 500
    assert 600 <= min(fourth) < max(fourth) <= 1_000
    assert set(fifth) == {1_000}


def test_the_same_chance_gives_the_same_delays():
    jittery = exponential(jitter_factor=1.0)
    assert delays(jittery, 0, 2_000, 4_000, seed=7) == delays(jittery, 0, 2_000, 4_000, seed=7)


def test_any_number_of_failures_keeps_the_longest_delay():
    tracker = restart_tracker(exponential())
    last = [tracker.failed(2_000 * number) for number in range(3_000)][-1]
    assert last == 1_000
