"""The options of restart strategies."""

from __future__ import annotations

from typing import Final

from holdfast.config.options import (
    ConfigOption,
    at_least,
    bounded,
    declared_options,
    duration_ms,
    lasting,
    number,
    optional,
    text,
)

_NAMES: Final = ("none", "fixed-delay", "failure-rate", "exponential-delay")
_OTHER_NAMES: Final = {
    "off": "none",
    "disable": "none",
    "fixeddelay": "fixed-delay",
    "failurerate": "failure-rate",
    "exponentialdelay": "exponential-delay",
}
_UNLIMITED: Final = 2**31 - 1


def _type(value: object) -> str:
    name = text(value).strip().lower()
    strategy = _OTHER_NAMES.get(name, name)
    if strategy not in _NAMES:
        raise ValueError(
            "expected one of none (off, disable), fixed-delay, failure-rate, exponential-delay"
        )
    return strategy


def _attempts(value: object) -> int | None:
    if value is None or (isinstance(value, str) and value.strip().lower() == "infinite"):
        return None
    attempts = at_least(1)(value)
    # Flink uses the largest int for "no limit".
    return None if attempts >= _UNLIMITED else attempts


RESTART_STRATEGY: ConfigOption[str | None] = ConfigOption(
    "restart-strategy.type",
    optional(_type),
    None,
    "Restart strategy after a failure: none (off, disable), fixed-delay, failure-rate or "
    "exponential-delay; if not given, exponential-delay with checkpoints and none without.",
    aliases=("restart-strategy",),
)
FIXED_DELAY_ATTEMPTS: ConfigOption[int] = ConfigOption(
    "restart-strategy.fixed-delay.attempts",
    at_least(0),
    1,
    "Restarts before the job fails permanently.",
)
FIXED_DELAY_DELAY: ConfigOption[int] = ConfigOption(
    "restart-strategy.fixed-delay.delay",
    duration_ms,
    1000,
    "Time from a failure to the restart.",
)
FAILURE_RATE_MAX_FAILURES: ConfigOption[int] = ConfigOption(
    "restart-strategy.failure-rate.max-failures-per-interval",
    at_least(1),
    1,
    "Failures within the interval that lead to a restart; one more fails the job.",
)
FAILURE_RATE_INTERVAL: ConfigOption[int] = ConfigOption(
    "restart-strategy.failure-rate.failure-rate-interval",
    lasting(1),
    60_000,
    "Time within which failures are counted.",
)
FAILURE_RATE_DELAY: ConfigOption[int] = ConfigOption(
    "restart-strategy.failure-rate.delay",
    duration_ms,
    1000,
    "Time from a failure to the restart.",
)
EXPONENTIAL_INITIAL_BACKOFF: ConfigOption[int] = ConfigOption(
    "restart-strategy.exponential-delay.initial-backoff",
    lasting(1),
    1000,
    "Time from the first failure to its restart.",
)
EXPONENTIAL_MAX_BACKOFF: ConfigOption[int] = ConfigOption(
    "restart-strategy.exponential-delay.max-backoff",
    lasting(1),
    60_000,
    "Longest time from a failure to the restart.",
)
EXPONENTIAL_MULTIPLIER: ConfigOption[float] = ConfigOption(
    "restart-strategy.exponential-delay.backoff-multiplier",
    bounded(number, lambda given: given > 1, "a number greater than 1"),
    1.5,
    "Factor by which the delay grows with every failure.",
)
EXPONENTIAL_RESET_THRESHOLD: ConfigOption[int] = ConfigOption(
    "restart-strategy.exponential-delay.reset-backoff-threshold",
    lasting(1),
    3_600_000,
    "Time without a failure after which the delay is reset.",
)
EXPONENTIAL_JITTER: ConfigOption[float] = ConfigOption(
    "restart-strategy.exponential-delay.jitter-factor",
    bounded(number, lambda given: 0 <= given <= 1, "a number from 0 to 1"),
    0.1,
    "Fraction of the delay that is added or subtracted at random, so that jobs do not restart "
    "together.",
)
EXPONENTIAL_ATTEMPTS: ConfigOption[int | None] = ConfigOption(
    "restart-strategy.exponential-delay.attempts-before-reset-backoff",
    _attempts,
    None,
    "Restarts before the job fails permanently, counted again after the reset threshold; "
    "no limit if not given.",
)

RESTART_OPTIONS: Final = declared_options(globals())
"""All options of restarts, in the order of the documentation."""
