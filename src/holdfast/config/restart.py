"""Restart strategies: whether and when a failed job restarts; and their options.

    >>> RestartStrategies.fixed_delay_restart(3, "10 s")
    FixedDelay(attempts=3, delay_ms=10000)

A strategy is a value; `job.restart` counts failures and decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from holdfast.config.options import (
    ConfigOption,
    at_least,
    bounded,
    declared_options,
    duration_ms,
    given_by,
    lasting,
    number,
    optional,
    options_of,
    refused_field,
    text,
)
from holdfast.errors import ConfigurationError

if TYPE_CHECKING:
    from typing import Self

    from holdfast.config.configuration import Configuration
    from holdfast.config.options import DurationLike

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
    if strategy not in _STRATEGIES:
        raise ValueError(
            "one of none (off, disable), fixed-delay, failure-rate, exponential-delay is wanted"
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


class _Strategy:
    """A strategy whose fields are given by options."""

    __slots__ = ()

    @classmethod
    def of(cls, configuration: Configuration) -> Self:
        """The strategy with the options of a configuration."""
        return cls(**{name: configuration.get(it) for name, it in options_of(cls).items()})

    def __post_init__(self) -> None:
        """Check that all fields are numbers that their options accept."""
        for name, option in options_of(self).items():
            value = getattr(self, name)
            try:
                accepted = option.parse(value)
            except ValueError as error:
                raise refused_field(self, name, str(error)) from None
            # Options also accept texts, but a field must be a number.
            if accepted != value:
                raise refused_field(self, name, f"{accepted!r} is wanted")


@dataclass(frozen=True, slots=True)
class NoRestart(_Strategy):
    """The first failure fails the job."""


@dataclass(frozen=True, slots=True)
class FixedDelay(_Strategy):
    """A limited number of restarts, each after the same delay."""

    attempts: int = given_by(FIXED_DELAY_ATTEMPTS)
    delay_ms: int = given_by(FIXED_DELAY_DELAY)


@dataclass(frozen=True, slots=True)
class FailureRate(_Strategy):
    """Restarts while failures are rare."""

    max_failures: int = given_by(FAILURE_RATE_MAX_FAILURES)
    interval_ms: int = given_by(FAILURE_RATE_INTERVAL)
    delay_ms: int = given_by(FAILURE_RATE_DELAY)


@dataclass(frozen=True, slots=True)
class ExponentialDelay(_Strategy):
    """Restarts after a delay that grows with every failure, up to a limit."""

    initial_backoff_ms: int = given_by(EXPONENTIAL_INITIAL_BACKOFF)
    max_backoff_ms: int = given_by(EXPONENTIAL_MAX_BACKOFF)
    backoff_multiplier: float = given_by(EXPONENTIAL_MULTIPLIER)
    reset_threshold_ms: int = given_by(EXPONENTIAL_RESET_THRESHOLD)
    jitter_factor: float = given_by(EXPONENTIAL_JITTER)
    attempts: int | None = given_by(EXPONENTIAL_ATTEMPTS)

    def __post_init__(self) -> None:
        """Check the fields, and the order of the delays."""
        # With slots, `super()` finds another class.
        _Strategy.__post_init__(self)
        if self.initial_backoff_ms > self.max_backoff_ms:
            raise ConfigurationError(
                f"ExponentialDelay: the initial backoff, {self.initial_backoff_ms} ms, is longer "
                f"than the longest, {self.max_backoff_ms} ms; lower "
                f"{EXPONENTIAL_INITIAL_BACKOFF.key} or raise {EXPONENTIAL_MAX_BACKOFF.key}"
            )


@dataclass(frozen=True, slots=True)
class FallBack:
    """Uses the strategy of the configuration, as if the program set none."""


RestartStrategy: TypeAlias = NoRestart | FixedDelay | FailureRate | ExponentialDelay
"""Any strategy except `FallBack`."""

_STRATEGIES: Final[dict[str, type[RestartStrategy]]] = {
    "none": NoRestart,
    "fixed-delay": FixedDelay,
    "failure-rate": FailureRate,
    "exponential-delay": ExponentialDelay,
}


class RestartStrategies:
    """Creates restart strategies, under PyFlink's names."""

    @staticmethod
    def no_restart() -> NoRestart:
        """The first failure fails the job."""
        return NoRestart()

    @staticmethod
    def fixed_delay_restart(attempts: int, delay: DurationLike) -> FixedDelay:
        """Restart up to `attempts` times in the life of the job, each time after `delay`."""
        return FixedDelay(attempts, _milliseconds(FixedDelay, delay_ms=delay))

    @staticmethod
    def failure_rate_restart(
        max_failures: int, interval: DurationLike, delay: DurationLike
    ) -> FailureRate:
        """Restart while no more than `max_failures` fall within an `interval`."""
        return FailureRate(
            max_failures,
            _milliseconds(FailureRate, interval_ms=interval),
            _milliseconds(FailureRate, delay_ms=delay),
        )

    @staticmethod
    def exponential_delay_restart(
        initial_backoff: DurationLike = EXPONENTIAL_INITIAL_BACKOFF.default,
        max_backoff: DurationLike = EXPONENTIAL_MAX_BACKOFF.default,
        backoff_multiplier: float = EXPONENTIAL_MULTIPLIER.default,
        reset_threshold: DurationLike = EXPONENTIAL_RESET_THRESHOLD.default,
        jitter_factor: float = EXPONENTIAL_JITTER.default,
        attempts: int | None = EXPONENTIAL_ATTEMPTS.default,
    ) -> ExponentialDelay:
        """Restart after a delay that grows with every failure; see `ExponentialDelay`."""
        return ExponentialDelay(
            _milliseconds(ExponentialDelay, initial_backoff_ms=initial_backoff),
            _milliseconds(ExponentialDelay, max_backoff_ms=max_backoff),
            backoff_multiplier,
            _milliseconds(ExponentialDelay, reset_threshold_ms=reset_threshold),
            jitter_factor,
            attempts,
        )

    @staticmethod
    def fall_back_restart() -> FallBack:
        """Use the strategy of the configuration."""
        return FallBack()


def restart_strategy(configuration: Configuration, *, checkpointing: bool) -> RestartStrategy:
    """The restart strategy of a configuration.

    Args:
        configuration: The settings of the job.
        checkpointing: Whether the job takes checkpoints. If no strategy is set, a job with
            checkpoints restarts with exponential delay, and a job without fails at once.

    Raises:
        ConfigurationError: The settings of the strategy contradict each other.
    """
    default = "exponential-delay" if checkpointing else "none"
    name = configuration.get(RESTART_STRATEGY) or default
    return _STRATEGIES[name].of(configuration)


def _milliseconds(strategy: type[RestartStrategy], **field: DurationLike) -> int:
    """The one field that is given, in milliseconds."""
    [(name, value)] = field.items()
    try:
        return duration_ms(value)
    except ValueError as error:
        raise ConfigurationError(f"{strategy.__name__}: {name}: {error}, not {value!r}") from None
