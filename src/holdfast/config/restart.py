"""Restart strategies: whether and when a failed job restarts.

    >>> FixedDelay(attempts=3, delay="10 s")
    FixedDelay(attempts=3, delay=10000)

A strategy is a value; `job.restart` counts failures and decides. Durations are milliseconds, texts
such as "10 s" or `timedelta`; a strategy holds them in milliseconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from holdfast.config import restart_options as options
from holdfast.config.options import argument, duration_ms, given_by, options_of
from holdfast.errors import ConfigurationError

if TYPE_CHECKING:
    from typing import Self

    from holdfast.config.configuration import Configuration
    from holdfast.config.options import DurationLike


class _Strategy:
    """A strategy whose fields are given by options."""

    __slots__ = ()

    @classmethod
    def of(cls, configuration: Configuration) -> Self:
        """The strategy with the options of a configuration."""
        return cls(**{name: configuration.get(it) for name, it in options_of(cls).items()})

    def settings(self) -> dict[str, object]:
        """The options that give this strategy, by their keys."""
        [name] = (name for name, kind in _STRATEGIES.items() if kind is type(self))
        given = {it.key: getattr(self, field) for field, it in options_of(self).items()}
        given = {key: value for key, value in given.items() if value is not None}
        return {options.RESTART_STRATEGY.key: name, **given}

    def __post_init__(self) -> None:
        """Parse all fields as their options do."""
        for name, option in options_of(self).items():
            parsed = argument(option.parse, getattr(self, name), f"{type(self).__name__}: {name}")
            object.__setattr__(self, name, parsed)


@dataclass(frozen=True, slots=True)
class NoRestart(_Strategy):
    """The first failure fails the job."""


@dataclass(frozen=True, slots=True)
class FixedDelay(_Strategy):
    """A limited number of restarts, each after the same delay."""

    attempts: int = given_by(options.FIXED_DELAY_ATTEMPTS)
    delay: DurationLike = given_by(options.FIXED_DELAY_DELAY)

    @property
    def delay_ms(self) -> int:
        """The delay, in milliseconds."""
        return duration_ms(self.delay)


@dataclass(frozen=True, slots=True)
class FailureRate(_Strategy):
    """Restarts while failures are rare."""

    max_failures: int = given_by(options.FAILURE_RATE_MAX_FAILURES)
    interval: DurationLike = given_by(options.FAILURE_RATE_INTERVAL)
    delay: DurationLike = given_by(options.FAILURE_RATE_DELAY)

    @property
    def interval_ms(self) -> int:
        """The interval, in milliseconds."""
        return duration_ms(self.interval)

    @property
    def delay_ms(self) -> int:
        """The delay, in milliseconds."""
        return duration_ms(self.delay)


@dataclass(frozen=True, slots=True)
class ExponentialDelay(_Strategy):
    """Restarts after a delay that grows with every failure, up to a limit."""

    initial_backoff: DurationLike = given_by(options.EXPONENTIAL_INITIAL_BACKOFF)
    max_backoff: DurationLike = given_by(options.EXPONENTIAL_MAX_BACKOFF)
    backoff_multiplier: float = given_by(options.EXPONENTIAL_MULTIPLIER)
    reset_threshold: DurationLike = given_by(options.EXPONENTIAL_RESET_THRESHOLD)
    jitter_factor: float = given_by(options.EXPONENTIAL_JITTER)
    attempts: int | None = given_by(options.EXPONENTIAL_ATTEMPTS)

    def __post_init__(self) -> None:
        """Check the fields, and the order of the delays."""
        # With slots, `super()` finds another class.
        _Strategy.__post_init__(self)
        if self.initial_backoff_ms > self.max_backoff_ms:
            raise ConfigurationError(
                f"ExponentialDelay: the initial backoff, {self.initial_backoff_ms} ms, is longer "
                f"than the longest, {self.max_backoff_ms} ms; lower "
                f"{options.EXPONENTIAL_INITIAL_BACKOFF.key} or raise "
                f"{options.EXPONENTIAL_MAX_BACKOFF.key}"
            )

    @property
    def initial_backoff_ms(self) -> int:
        """The first delay, in milliseconds."""
        return duration_ms(self.initial_backoff)

    @property
    def max_backoff_ms(self) -> int:
        """The longest delay, in milliseconds."""
        return duration_ms(self.max_backoff)

    @property
    def reset_threshold_ms(self) -> int:
        """Time without a failure after which the delay is the first one again, in milliseconds."""
        return duration_ms(self.reset_threshold)


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
        return FixedDelay(attempts, delay)

    @staticmethod
    def failure_rate_restart(
        max_failures: int, interval: DurationLike, delay: DurationLike
    ) -> FailureRate:
        """Restart while no more than `max_failures` fall within an `interval`."""
        return FailureRate(max_failures, interval, delay)

    @staticmethod
    def exponential_delay_restart(
        initial_backoff: DurationLike = options.EXPONENTIAL_INITIAL_BACKOFF.default,
        max_backoff: DurationLike = options.EXPONENTIAL_MAX_BACKOFF.default,
        backoff_multiplier: float = options.EXPONENTIAL_MULTIPLIER.default,
        reset_threshold: DurationLike = options.EXPONENTIAL_RESET_THRESHOLD.default,
        jitter_factor: float = options.EXPONENTIAL_JITTER.default,
        attempts: int | None = options.EXPONENTIAL_ATTEMPTS.default,
    ) -> ExponentialDelay:
        """Restart after a delay that grows with every failure; see `ExponentialDelay`."""
        return ExponentialDelay(
            initial_backoff,
            max_backoff,
            backoff_multiplier,
            reset_threshold,
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
    name = configuration.get(options.RESTART_STRATEGY) or default
    return _STRATEGIES[name].of(configuration)
