"""What a job has done so far, in figures."""

from __future__ import annotations

import copy
import threading
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from holdfast.api.metrics import MetricValues
from holdfast.api.time import MIN_WATERMARK

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.checkpoint.statistics import CheckpointingStatistics
    from holdfast.runtime.report import TaskReport
    from holdfast.spark.compiler import JobPlan


class JobStatus(Enum):
    """Where a job stands."""

    RUNNING = "RUNNING"
    RESTARTING = "RESTARTING"
    FINISHED = "FINISHED"
    CANCELED = "CANCELED"
    FAILED = "FAILED"
    SUSPENDED = "SUSPENDED"
    """It ended here, and another start goes on with it: nothing that it needs was deleted."""

    @property
    def is_terminal(self) -> bool:
        """Whether the job has ended."""
        return self not in (JobStatus.RUNNING, JobStatus.RESTARTING)


@dataclass(frozen=True, slots=True)
class EpochStatistics:
    """One epoch."""

    epoch: int
    events: int
    """Rows that entered the job's first operators."""
    duration_ms: int


@dataclass(slots=True)
class OperatorStatistics:
    """One operator, over all subtasks and epochs."""

    name: str
    uid: str
    records_in: int = 0
    records_out: int = 0
    skipped: int = 0
    state_entries: int = 0
    """Entries of its local stores."""
    state_bytes: int = 0
    """Size of its local stores on disk."""
    expired_removed: int = 0
    """Entries that have expired and were swept out of its local stores."""
    watermark: int | None = None
    """Event time up to which all is thought to have come; None if it has none yet."""
    metrics: MetricValues = field(default_factory=MetricValues)


@dataclass(frozen=True, slots=True)
class JobStatistics:
    """A job at one moment."""

    job_id: str
    name: str
    status: JobStatus
    epochs: int
    events: int
    duration_ms: int
    """Time spent in epochs."""
    last_epoch: EpochStatistics | None
    operators: dict[str, OperatorStatistics]
    """By uid."""
    restarts: int = 0
    watermarks: dict[str, int] = field(default_factory=dict)
    """How far event time has come, by uid of an operator or of what assigns timestamps."""
    checkpoints: CheckpointingStatistics | None = None
    """None if the job takes no checkpoints."""


class StatisticsKeeper:
    """Adds up what tasks report; read from other threads."""

    def __init__(self, plan: JobPlan) -> None:
        """No epochs yet."""
        self._lock = threading.Lock()
        self._events = 0
        self._duration_ms = 0
        self._epochs = 0
        self._last: EpochStatistics | None = None
        self._restarts = 0
        self._watermarks: dict[str, int] = {}
        self._stores: dict[tuple[str, int], tuple[int, int]] = {}
        levels = [*(source.level for source in plan.sources), *plan.levels]
        self._operators = {
            operator.uid: OperatorStatistics(operator.name, operator.uid)
            for level in levels
            for operator in level.operators
        }
        self._first = _first_operators(plan)

    def add(
        self,
        epoch: int,
        duration_ms: int,
        reports: list[TaskReport],
        watermarks: Mapping[str, int] | None = None,
    ) -> EpochStatistics:
        """Take in one epoch's reports, and where the watermarks stand after it, by uid."""
        with self._lock:
            self._watermarks = {
                uid: time for uid, time in (watermarks or {}).items() if time != MIN_WATERMARK
            }
            for uid, operator in self._operators.items():
                operator.watermark = self._watermarks.get(uid)
            events = 0
            for report in reports:
                events += self._add_report(report)
            self._epochs += 1
            self._events += events
            self._duration_ms += duration_ms
            self._last = EpochStatistics(epoch, events, duration_ms)
            return self._last

    def restarted(self) -> None:
        """The job has failed and will start again."""
        with self._lock:
            self._restarts += 1

    def _add_report(self, report: TaskReport) -> int:
        events = 0
        for uid, figures in report.operators.items():
            total = self._operators[uid]
            total.records_in += figures.records_in
            total.records_out += figures.records_out
            total.skipped += figures.skipped
            total.metrics.merge(figures.metrics)
            if uid in self._first:
                events += figures.records_in
        for uid, store in report.stores.items():
            total = self._operators[uid]
            entries, size = self._stores.get((uid, report.subtask), (0, 0))
            self._stores[uid, report.subtask] = (store.entries, store.bytes_on_disk)
            total.expired_removed += store.expired_removed
            total.state_entries += store.entries - entries
            total.state_bytes += store.bytes_on_disk - size
        return events

    def snapshot(self, job_id: str, name: str, status: JobStatus) -> JobStatistics:
        """The figures now."""
        with self._lock:
            return JobStatistics(
                job_id=job_id,
                name=name,
                status=status,
                epochs=self._epochs,
                events=self._events,
                duration_ms=self._duration_ms,
                last_epoch=self._last,
                operators=copy.deepcopy(self._operators),
                restarts=self._restarts,
                watermarks=dict(self._watermarks),
            )


def _first_operators(plan: JobPlan) -> frozenset[str]:
    """Operators that rows of a source reach first."""
    first = set()
    for source in plan.sources:
        for index in source.level.entries.get(-1, ()):
            first.add(source.level.operators[index].uid)
        direct = {channel.id for channel in source.channels}
        for level in plan.levels:
            for channel, indices in level.entries.items():
                if channel in direct:
                    first.update(level.operators[i].uid for i in indices)
    return frozenset(first)
