"""The rules by which a job's checkpoints are taken and kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.errors import ConfigurationError

if TYPE_CHECKING:
    from holdfast.config.checkpointing import CheckpointSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorPolicy:
    """The rules that a coordinator keeps."""

    interval_ms: int | None
    """Time between the starts of periodic checkpoints; None takes none."""
    min_pause_ms: int = 0
    """Time between a completion and the next periodic start."""
    timeout_ms: int = 600_000
    """Age at which a checkpoint that is not complete is given up."""
    max_concurrent: int = 1
    """Checkpoints in flight at which no periodic one is added."""
    tolerable_failures: int = 0
    """Counted failures in a row that do not yet fail the job."""
    num_retained: int = 1
    """Completed checkpoints that are kept."""

    @staticmethod
    def of(settings: CheckpointSettings) -> CoordinatorPolicy:
        """The rules in a job's settings."""
        return CoordinatorPolicy(
            interval_ms=settings.interval_ms,
            min_pause_ms=settings.min_pause_ms,
            timeout_ms=settings.timeout_ms,
            max_concurrent=settings.max_concurrent,
            tolerable_failures=settings.tolerable_failures,
            num_retained=settings.num_retained,
        )

    def __post_init__(self) -> None:
        """Refuse rules that cannot be kept."""
        if self.interval_ms is not None:
            require_at_least("interval_ms", self.interval_ms, at_least=10)
        require_at_least("min_pause_ms", self.min_pause_ms, at_least=0)
        require_at_least("timeout_ms", self.timeout_ms, at_least=10)
        require_at_least("max_concurrent", self.max_concurrent, at_least=1)
        require_at_least("tolerable_failures", self.tolerable_failures, at_least=0)
        require_at_least("num_retained", self.num_retained, at_least=1)


def require_at_least(name: str, value: int, *, at_least: int) -> None:
    """Refuse an argument that is no integer, or too small a one.

    Raises:
        ConfigurationError: Naming the argument and the least value.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
        raise ConfigurationError(
            f"{name} is {value!r}; an integer of at least {at_least} is wanted"
        )
