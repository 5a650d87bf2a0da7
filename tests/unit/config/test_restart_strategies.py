"""Restart strategies as values, and how the configuration chooses one."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError
from datetime import timedelta
from typing import Any, cast

import pytest

from holdfast.config.configuration import Configuration
from holdfast.config.restart import (
    ExponentialDelay,
    FailureRate,
    FallBack,
    FixedDelay,
    NoRestart,
    RestartStrategies,
    RestartStrategy,
    restart_strategy,
)
from holdfast.errors import ConfigurationError
from holdfast.spark.environment import StreamExecutionEnvironment


def chosen(**settings: object) -> RestartStrategy:
    """What a configuration puts in force for a job with checkpoints."""
    keys = {f"restart-strategy.{key}": value for key, value in settings.items()}
    return restart_strategy(Configuration(keys), checkpointing=True)


def test_the_makers_give_the_values() -> None:
    assert RestartStrategies.no_restart() == NoRestart()
    assert RestartStrategies.fixed_delay_restart(3, 10_000) == FixedDelay(3, 10_000)
    assert RestartStrategies.failure_rate_restart(3, 60_000, 10) == FailureRate(3, 60_000, 10)
    assert RestartStrategies.fixed_delay_restart(3, "10 s") == FixedDelay(3, 10_000)
    minute = timedelta(minutes=1)
    assert RestartStrategies.failure_rate_restart(3, minute, "10 ms") == FailureRate(3, 60_000, 10)
    assert RestartStrategies.exponential_delay_restart("2 s") == ExponentialDelay(2000)
    with pytest.raises(ConfigurationError, match="FixedDelay: delay: expected a duration such as"):
        RestartStrategies.fixed_delay_restart(3, "soon")
    assert RestartStrategies.exponential_delay_restart() == ExponentialDelay()
    assert RestartStrategies.exponential_delay_restart(1, 2, 3, 4, 0, 5) == ExponentialDelay(
        initial_backoff=1,
        max_backoff=2,
        backoff_multiplier=3,
        reset_threshold=4,
        jitter_factor=0,
        attempts=5,
    )
    assert RestartStrategies.fall_back_restart() == FallBack()


def test_a_strategy_takes_durations_as_text_timedelta_or_milliseconds() -> None:
    assert FixedDelay(3, "10 s") == FixedDelay(3, timedelta(seconds=10)) == FixedDelay(3, 10_000)
    assert FixedDelay(3, "10 s").delay_ms == 10_000
    rate = FailureRate(3, "1 min", "10 ms")
    assert (rate.interval_ms, rate.delay_ms) == (60_000, 10)
    backoff = ExponentialDelay("2 s", timedelta(minutes=1), reset_threshold="1 h")
    assert (backoff.initial_backoff_ms, backoff.max_backoff_ms) == (2_000, 60_000)
    assert backoff.reset_threshold_ms == 3_600_000


def test_a_strategy_travels_unchanged_and_cannot_be_changed() -> None:
    strategy = ExponentialDelay(attempts=3)
    assert pickle.loads(pickle.dumps(strategy)) == strategy
    with pytest.raises(FrozenInstanceError):
        strategy.attempts = 4  # type: ignore[misc]


def test_the_default_depends_on_checkpoints() -> None:
    assert restart_strategy(Configuration(), checkpointing=False) == NoRestart()
    assert restart_strategy(Configuration(), checkpointing=True) == ExponentialDelay(
        initial_backoff=1000,
        max_backoff=60_000,
        backoff_multiplier=1.5,
        reset_threshold=3_600_000,
        jitter_factor=0.1,
        attempts=None,
    )


@pytest.mark.parametrize(
    ("written", "strategy"),
    [
        ("none", NoRestart()),
        ("off", NoRestart()),
        ("disable", NoRestart()),
        ("fixed-delay", FixedDelay(1, 1000)),
        ("fixeddelay", FixedDelay(1, 1000)),
        ("failure-rate", FailureRate(1, 60_000, 1000)),
        ("Exponential-Delay", ExponentialDelay()),
    ],
)
def test_a_type_without_more_has_flinks_defaults(written: str, strategy: object) -> None:
    configuration = Configuration({"restart-strategy.type": written})
    for checkpointing in (False, True):
        assert restart_strategy(configuration, checkpointing=checkpointing) == strategy


def test_the_options_of_a_strategy_reach_it() -> None:
    assert chosen(
        type="fixed-delay", **{"fixed-delay.attempts": "5", "fixed-delay.delay": "10 s"}
    ) == FixedDelay(5, 10_000)
    rate = {
        "failure-rate.max-failures-per-interval": 2,
        "failure-rate.failure-rate-interval": "5 min",
        "failure-rate.delay": "0 s",
    }
    assert chosen(type="failure-rate", **rate) == FailureRate(2, 300_000, 0)
    exponential = {
        "exponential-delay.initial-backoff": "10 s",
        "exponential-delay.max-backoff": "2 min",
        "exponential-delay.backoff-multiplier": "1.4",
        "exponential-delay.reset-backoff-threshold": "10 min",
        "exponential-delay.jitter-factor": "0.2",
        "exponential-delay.attempts-before-reset-backoff": "10",
    }
    assert chosen(**exponential) == ExponentialDelay(10_000, 120_000, 1.4, 600_000, 0.2, 10)


@pytest.mark.parametrize("written", ["infinite", 2147483647, None])
def test_attempts_may_be_without_limit(written: object) -> None:
    key = "exponential-delay.attempts-before-reset-backoff"
    assert chosen(**{key: written}) == ExponentialDelay(attempts=None)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("type", "sometimes"),
        ("type", False),
        ("fixed-delay.attempts", -1),
        ("failure-rate.max-failures-per-interval", 0),
        ("failure-rate.failure-rate-interval", 0),
        ("exponential-delay.initial-backoff", 0),
        ("exponential-delay.backoff-multiplier", 1),
        ("exponential-delay.jitter-factor", 1.1),
        ("exponential-delay.attempts-before-reset-backoff", 0),
    ],
)
def test_a_wrong_option_is_refused_with_what_is_wanted(key: str, value: object) -> None:
    with pytest.raises(ConfigurationError, match=rf"restart-strategy\.{key}: expected .*, got"):
        chosen(**{key: value})


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: FixedDelay(-1, 0), "attempts"),
        (lambda: FixedDelay(1, "soon"), "delay"),
        (lambda: FailureRate(1, "0 s", 1), "interval"),
        (lambda: FailureRate(0, 1, 1), "max_failures"),
        (lambda: ExponentialDelay(attempts=0), "attempts"),
        (lambda: ExponentialDelay(backoff_multiplier=1), "backoff_multiplier"),
    ],
)
def test_a_wrong_value_is_refused_where_it_is_made(make: Any, field: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"^\w+: {field}: expected .*, got"):
        make()


def test_the_first_delay_may_not_be_longer_than_the_longest() -> None:
    with pytest.raises(ConfigurationError, match=r"5000 ms.*1000 ms.*raise .*max-backoff"):
        chosen(
            **{"exponential-delay.initial-backoff": "5 s", "exponential-delay.max-backoff": "1 s"}
        )


def test_a_strategy_set_in_the_program_goes_before_the_configuration() -> None:
    env = StreamExecutionEnvironment(
        cast("Any", None), Configuration({"restart-strategy.type": "failure-rate"})
    )
    assert env.get_restart_strategy() == FailureRate()
    assert env.set_restart_strategy(RestartStrategies.no_restart()) is env
    assert env.get_restart_strategy() == NoRestart()
    env.set_restart_strategy(RestartStrategies.fall_back_restart())
    assert env.get_restart_strategy() == FailureRate()


def test_an_environment_restarts_by_default_once_it_takes_checkpoints() -> None:
    env = StreamExecutionEnvironment(cast("Any", None), Configuration())
    assert env.get_restart_strategy() == NoRestart()
    assert env.enable_checkpointing(1000).get_restart_strategy() == ExponentialDelay()


def test_only_a_strategy_can_be_set_as_strategy() -> None:
    env = StreamExecutionEnvironment(cast("Any", None), Configuration())
    with pytest.raises(ConfigurationError, match="'none' is not a restart strategy"):
        env.set_restart_strategy(cast("Any", "none"))


@pytest.mark.parametrize(
    "strategy",
    [
        NoRestart(),
        FixedDelay(3, "10 s"),
        FailureRate(3, "1 min", 10),
        ExponentialDelay("2 s"),
        ExponentialDelay("2 s", attempts=5),
    ],
)
def test_the_options_of_a_strategy_give_it_back(strategy: RestartStrategy) -> None:
    configuration = Configuration(strategy.settings())
    assert restart_strategy(configuration, checkpointing=False) == strategy
