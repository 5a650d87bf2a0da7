"""Restart strategies: whether and when a failed job restarts."""

from holdfast.config.restart import (
    ExponentialDelay,
    FailureRate,
    FixedDelay,
    NoRestart,
)

__all__ = [
    "ExponentialDelay",
    "FailureRate",
    "FixedDelay",
    "NoRestart",
]
