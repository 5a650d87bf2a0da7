"""Restart strategies: whether and when a failed job restarts.

    >>> RestartStrategies.fixed_delay_restart(3, "10 s")
    FixedDelay(attempts=3, delay_ms=10000)

A strategy is a value; `job.restart` counts failures and decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from holdfast.config import restart_options as options
from holdfast.config.options import duration_ms
from holdfast.errors import ConfigurationError

if TYPE_CHECKING:
    from holdfast.config.configuration import Configuration
    from holdfast.config.options import ConfigOption, DurationLike


@dataclass(frozen=True, slots=True)
class NoRestart:
    """The first failure fails the job."""


@dataclass(frozen=True, slots=True)
class FixedDelay:
    """A limited number of restarts, each after the same delay."""

    attempts: int = options.FIXED_DELAY_ATTEMPTS.default
    """Restarts before the job fails permanently."""
    delay_ms: int = options.FIXED_DELAY_DELAY.default
    """Time from a failure to the restart."""

    def __post_init__(self) -> None:
        """Check the fields with the parsers of their options."""
        _check(self, attempts=options.FIXED_DELAY_ATTEMPTS, delay_ms=options.FIXED_DELAY_DELAY)


@dataclass(frozen=True, slots=True)
class FailureRate:
    """Restarts while failures are rare."""

    max_failures: int = options.FAILURE_RATE_MAX_FAILURES.default
    """Failures within the interval that lead to a restart."""
    interval_ms: int = options.FAILURE_RATE_INTERVAL.default
    """Time within which failures are counted."""
    delay_ms: int = options.FAILURE_RATE_DELAY.default
    """Time from a failure to the restart."""

    def __post_init__(self) -> None:
        """Check the fields with the parsers of their options."""
        _check(
            self,
            max_failures=options.FAILURE_RATE_MAX_FAILURES,
            interval_ms=options.FAILURE_RATE_INTERVAL,
            delay_ms=options.FAILURE_RATE_DELAY,
        )


@dataclass(frozen=True, slots=True)
class ExponentialDelay:
    """Restarts after a delay that grows with every failure, up to a limit."""

    initial_backoff_ms: int = options.EXPONENTIAL_INITIAL_BACKOFF.default
    """Time from the first failure to its restart."""
    max_backoff_ms: int = options.EXPONENTIAL_MAX_BACKOFF.default
    """Longest time from a failure to the restart."""
    backoff_multiplier: float = options.EXPONENTIAL_MULTIPLIER.default
    """Factor by which the delay grows with every failure."""
    reset_threshold_ms: int = options.EXPONENTIAL_RESET_THRESHOLD.default
    """Time without a failure after which the delay is reset."""
    jitter_factor: float = options.EXPONENTIAL_JITTER.default
    """Fraction of the delay that is added or subtracted at random."""
    attempts: int | None = options.EXPONENTIAL_ATTEMPTS.default
    """Restarts since the last reset before the job fails permanently; None for no limit."""

    def __post_init__(self) -> None:
        """Check the fields with the parsers of their options, and the order of the delays."""
        _check(
            self,
            initial_backoff_ms=options.EXPONENTIAL_INITIAL_BACKOFF,
            max_backoff_ms=options.EXPONENTIAL_MAX_BACKOFF,
            backoff_multiplier=options.EXPONENTIAL_MULTIPLIER,
            reset_threshold_ms=options.EXPONENTIAL_RESET_THRESHOLD,
            jitter_factor=options.EXPONENTIAL_JITTER,
            attempts=options.EXPONENTIAL_ATTEMPTS,
        )
        if self.initial_backoff_ms > self.max_backoff_ms:
            raise ConfigurationError(
                f"ExponentialDelay: the initial backoff, {self.initial_backoff_ms} ms, is longer "
                f"than the longest, {self.max_backoff_ms} ms; lower "
                f"{options.EXPONENTIAL_INITIAL_BACKOFF.key} or raise "
                f"{options.EXPONENTIAL_MAX_BACKOFF.key}"
            )


@dataclass(frozen=True, slots=True)
class FallBack:
    """Uses the strategy of the configuration, as if the program set none."""


RestartStrategy: TypeAlias = NoRestart | FixedDelay | FailureRate | ExponentialDelay
"""Any strategy except `FallBack`."""


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
        initial_backoff: DurationLike = options.EXPONENTIAL_INITIAL_BACKOFF.default,
        max_backoff: DurationLike = options.EXPONENTIAL_MAX_BACKOFF.default,
        backoff_multiplier: float = options.EXPONENTIAL_MULTIPLIER.default,
        reset_threshold: DurationLike = options.EXPONENTIAL_RESET_THRESHOLD.default,
        jitter_factor: float = options.EXPONENTIAL_JITTER.default,
        attempts: int | None = options.EXPONENTIAL_ATTEMPTS.default,
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
    given = configuration.get
    default = "exponential-delay" if checkpointing else "none"
    match given(options.RESTART_STRATEGY) or default:
        case "fixed-delay":
            return FixedDelay(given(options.FIXED_DELAY_ATTEMPTS), given(options.FIXED_DELAY_DELAY))
        case "failure-rate":
            return FailureRate(
                given(options.FAILURE_RATE_MAX_FAILURES),
                given(options.FAILURE_RATE_INTERVAL),
                given(options.FAILURE_RATE_DELAY),
            )
        case "exponential-delay":
            return ExponentialDelay(
                given(options.EXPONENTIAL_INITIAL_BACKOFF),
                given(options.EXPONENTIAL_MAX_BACKOFF),
                given(options.EXPONENTIAL_MULTIPLIER),
                given(options.EXPONENTIAL_RESET_THRESHOLD),
                given(options.EXPONENTIAL_JITTER),
                given(options.EXPONENTIAL_ATTEMPTS),
            )
        case _:
            return NoRestart()


def _check(strategy: RestartStrategy, **fields: ConfigOption[Any]) -> None:
    """Check that fields are numbers that their options accept."""
    for field, option in fields.items():
        value = getattr(strategy, field)
        try:
            accepted = option.parse(value)
        except ValueError as error:
            raise _refused(type(strategy), field, value, str(error)) from None
        # Options also accept texts, but a field must be a number.
        if accepted != value:
            raise _refused(type(strategy), field, value, f"{accepted!r} is wanted")


def _milliseconds(strategy: type[RestartStrategy], **field: DurationLike) -> int:
    """The one field that is given, in milliseconds."""
    [(name, value)] = field.items()
    try:
        return duration_ms(value)
    except ValueError as error:
        raise _refused(strategy, name, value, str(error)) from None


def _refused(
    strategy: type[RestartStrategy], field: str, value: object, wanted: str
) -> ConfigurationError:
    return ConfigurationError(f"{strategy.__name__}: {field}: {wanted}, not {value!r}")
