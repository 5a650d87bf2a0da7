"""Collects a job's statistics, epoch by epoch."""

from __future__ import annotations

import copy
import threading
from typing import TYPE_CHECKING

from holdfast.api.time import MIN_WATERMARK
from holdfast.job.statistics import (
    EpochStatistics,
    JobStatistics,
    JobStatus,
    OperatorStatistics,
    WorkerStatistics,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.job.model import JobPlan
    from holdfast.runtime.report import TaskReport


class StatisticsKeeper:
    """Adds up the reports of tasks; other threads may read it."""

    def __init__(self, plan: JobPlan) -> None:
        """Create empty statistics."""
        self._lock = threading.Lock()
        self._events = 0
        self._duration_ms = 0
        self._epochs = 0
        self._last: EpochStatistics | None = None
        self._workers: WorkerStatistics | None = None
        self._restarts = 0
        self._watermarks: dict[str, int] = {}
        self._stores: dict[tuple[str, int], tuple[int, int]] = {}
        stages = [*(source.stage for source in plan.sources), *plan.stages]
        self._operators = {
            operator.uid: OperatorStatistics(operator.name, operator.uid)
            for stage in stages
            for operator in stage.operators
        }
        self._first = _first_operators(plan)

    def add(
        self,
        epoch: int,
        duration_ms: int,
        reports: list[TaskReport],
        watermarks: Mapping[str, int] | None = None,
    ) -> EpochStatistics:
        """Add one epoch's reports, and the watermarks after it, by uid."""
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
            self._workers = _workers(reports)
            return self._last

    def restarted(self) -> None:
        """Count a restart."""
        with self._lock:
            self._restarts += 1

    def _add_report(self, report: TaskReport) -> int:
        events = 0
        for uid, figures in report.operators.items():
            total = self._operators[uid]
            total.records_in += figures.records_in
            total.records_out += figures.records_out
            total.skipped += figures.skipped
            total.functions_opened += figures.opened
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
        """A copy of the statistics."""
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
                workers=self._workers,
            )


def _workers(reports: list[TaskReport]) -> WorkerStatistics | None:
    # The last report of a process counts: it keeps more tasks from report to report.
    by_process = {(r.host, r.worker.pid): r.worker for r in reports if r.worker is not None}
    found = list(by_process.values())
    if not found:
        return None
    memory = max(worker.memory for worker in found)
    return WorkerStatistics(len(found), memory, sum(worker.kept_tasks for worker in found))


def _first_operators(plan: JobPlan) -> frozenset[str]:
    """Operators that a source's rows reach first."""
    first = set()
    for source in plan.sources:
        for index in source.stage.entries.get(-1, ()):
            first.add(source.stage.operators[index].uid)
        direct = {channel.id for channel in source.channels}
        for stage in plan.stages:
            for channel, indices in stage.entries.items():
                if channel in direct:
                    first.update(stage.operators[i].uid for i in indices)
    return frozenset(first)
