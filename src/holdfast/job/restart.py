"""Restart strategies: state machines that decide whether and when a failed job restarts.

Times are in milliseconds on a monotonic clock.
"""

from __future__ import annotations

from collections import deque
from random import Random
from typing import Protocol, assert_never

from holdfast.config.restart import (
    ExponentialDelay,
    FailureRate,
    FixedDelay,
    NoRestart,
    RestartStrategy,
)


class RestartTracker(Protocol):
    """Decides after each failure of one job whether it restarts."""

    def failed(self, now: int) -> int | None:
        """Milliseconds from a failure at `now` to the restart; None if the job ends."""


def restart_tracker(strategy: RestartStrategy, *, random: Random | None = None) -> RestartTracker:
    """The tracker of a strategy.

    Args:
        strategy: The configured strategy.
        random: Source of jitter; a new generator by default.
    """
    match strategy:
        case NoRestart():
            return _Never()
        case FixedDelay():
            return _Fixed(strategy)
        case FailureRate():
            return _Rate(strategy)
        case ExponentialDelay():
            return _Exponential(strategy, random or Random())
        case _:
            assert_never(strategy)


class _Never:
    def failed(self, now: int) -> int | None:
        return None


class _Fixed:
    def __init__(self, strategy: FixedDelay) -> None:
        self._strategy = strategy
        self._failures = 0

    def failed(self, now: int) -> int | None:
        self._failures += 1
        return self._strategy.delay_ms if self._failures <= self._strategy.attempts else None


class _Rate:
    def __init__(self, strategy: FailureRate) -> None:
        self._strategy = strategy
        # One more than allowed: when full, the oldest one shows whether the rate is exceeded.
        self._times: deque[int] = deque(maxlen=strategy.max_failures + 1)

    def failed(self, now: int) -> int | None:
        self._times.append(now)
        full = len(self._times) == self._times.maxlen
        exceeded = full and now - self._times[0] <= self._strategy.interval_ms
        return None if exceeded else self._strategy.delay_ms


class _Exponential:
    def __init__(self, strategy: ExponentialDelay, random: Random) -> None:
        self._strategy = strategy
        self._random = random
        self._attempts = 0
        self._restart_at: int | None = None

    def failed(self, now: int) -> int | None:
        restart_at = self._restart_at
        # A failure before the planned restart belongs to the same breakdown.
        if restart_at is None or now > restart_at:
            restart_at = self._plan(now, restart_at)
        limit = self._strategy.attempts
        return restart_at - now if limit is None or self._attempts <= limit else None

    def _plan(self, now: int, last_restart: int | None) -> int:
        quiet = None if last_restart is None else now - last_restart
        if quiet is not None and quiet >= self._strategy.reset_threshold_ms:
            self._attempts = 0
        self._restart_at = now + self._backoff()
        self._attempts += 1
        return self._restart_at

    def _backoff(self) -> int:
        strategy = self._strategy
        try:
            base = int(strategy.initial_backoff_ms * strategy.backoff_multiplier**self._attempts)
        except OverflowError:
            base = strategy.max_backoff_ms
        spread = int(base * strategy.jitter_factor)
        jittered = base + (self._random.randint(-spread, spread) if spread else 0)
        return max(strategy.initial_backoff_ms, min(jittered, strategy.max_backoff_ms))
