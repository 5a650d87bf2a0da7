"""What a task tells the driver when it has done its part of an epoch."""

from __future__ import annotations

from dataclasses import dataclass, field

from holdfast.api.metrics import MetricValues


@dataclass(slots=True)
class OperatorReport:
    """One operator's figures; of a subtask's epoch, or summed over a job."""

    records_in: int = 0
    records_out: int = 0
    skipped: int = 0
    """Rows dropped or diverted by the error policy."""
    metrics: MetricValues = field(default_factory=MetricValues)


@dataclass(frozen=True, slots=True)
class StoreReport:
    """Where a store stands after an epoch."""

    version: str | None
    entries: int
    bytes_on_disk: int


@dataclass(frozen=True, slots=True)
class TaskReport:
    """The acknowledgement of one task of one level."""

    epoch: int | None
    """Number of the epoch; None for the level at the sources, which is told none."""
    level: int
    subtask: int
    attempt_id: int
    host: str
    operators: dict[str, OperatorReport]
    """By uid."""
    stores: dict[str, StoreReport]
    """By uid; only operators whose state was opened."""
    warnings: tuple[str, ...] = ()
