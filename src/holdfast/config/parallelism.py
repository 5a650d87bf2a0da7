"""Bounds and defaults of parallelism and max parallelism, as in Flink."""

from __future__ import annotations

from holdfast.errors import ConfigurationError

MAX_PARALLELISM_LIMIT = 1 << 15
"""Upper bound of the max parallelism."""
LEAST_DEFAULT_MAX_PARALLELISM = 1 << 7
"""Lower bound of the default max parallelism."""


def default_max_parallelism(parallelism: int) -> int:
    """Default max parallelism of an operator."""
    wanted = parallelism + parallelism // 2
    power = 1 << (wanted - 1).bit_length()
    return min(max(power, LEAST_DEFAULT_MAX_PARALLELISM), MAX_PARALLELISM_LIMIT)


def check_max_parallelism(max_parallelism: int, where: str) -> None:
    """Check the bounds of a max parallelism."""
    if not isinstance(max_parallelism, int) or isinstance(max_parallelism, bool):
        raise ConfigurationError(
            f"{where}: expected an integer as max parallelism, got {max_parallelism!r}"
        )
    if not 1 <= max_parallelism <= MAX_PARALLELISM_LIMIT:
        raise ConfigurationError(
            f"{where}: max parallelism must be within 1..{MAX_PARALLELISM_LIMIT}, "
            f"not {max_parallelism}"
        )


def check_parallelism(parallelism: int, max_parallelism: int, where: str) -> None:
    """Check the bounds of a parallelism and a max parallelism."""
    check_max_parallelism(max_parallelism, where)
    if parallelism < 1:
        raise ConfigurationError(f"{where}: parallelism must be at least 1, not {parallelism}")
    if parallelism > max_parallelism:
        raise ConfigurationError(
            f"{where}: parallelism {parallelism} is above max parallelism {max_parallelism}; "
            "lower the one or raise the other (an operator that has state keeps its max "
            "parallelism)"
        )
