"""Collects a job's statistics, epoch by epoch."""

from __future__ import annotations

import copy
import threading
from collections import Counter
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
    from holdfast.runtime.plan import Channel
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
        self.paused_sources: tuple[str, ...] = ()
        """Sources that wait for others of their alignment group."""
        self._restarts = 0
        self._watermarks: dict[str, int] = {}
        self._stores: dict[tuple[str, int], tuple[int, int]] = {}
        stages = [*(source.stage for source in plan.sources), *plan.stages]
        self._operators = {
            operator.uid: OperatorStatistics(operator.name, operator.uid)
            for stage in stages
            for operator in stage.operators
        }
        self._read = _channels_read_once(plan)

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

    def replan(self, plan: JobPlan) -> None:
        """Go on with another plan of the same job, whose subtasks have other stores."""
        with self._lock:
            self._read = _channels_read_once(plan)
            self._stores.clear()
            for operator in self._operators.values():
                operator.state_entries = operator.state_bytes = 0

    def restarted(self) -> None:
        """Count a restart."""
        with self._lock:
            self._restarts += 1

    def _add_report(self, report: TaskReport) -> int:
        for uid, figures in report.operators.items():
            total = self._operators[uid]
            total.records_in += figures.records_in
            total.records_out += figures.records_out
            total.skipped += figures.skipped
            total.functions_opened += figures.opened
            total.metrics.merge(figures.metrics)
        for uid, store in report.stores.items():
            total = self._operators[uid]
            entries, size = self._stores.get((uid, report.subtask), (0, 0))
            self._stores[uid, report.subtask] = (store.entries, store.bytes_on_disk)
            total.expired_removed += store.expired_removed
            total.state_entries += store.entries - entries
            total.state_bytes += store.bytes_on_disk - size
        return self._rows_read(report)

    def _rows_read(self, report: TaskReport) -> int:
        if report.stage == 0:
            return sum(report.rows_read.values())
        return sum(
            report.rows_read.get(channel.id, 0)
            for channel in self._read
            # All subtasks get the rows of a broadcast.
            if report.subtask == 0 or not channel.broadcast
        )

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
                paused_sources=self.paused_sources,
            )


def _workers(reports: list[TaskReport]) -> WorkerStatistics | None:
    # The last report of a process counts: it keeps more tasks from report to report.
    by_process = {(r.host, r.worker.pid): r.worker for r in reports if r.worker is not None}
    found = list(by_process.values())
    if not found:
        return None
    memory = max(worker.memory for worker in found)
    return WorkerStatistics(len(found), memory, sum(worker.kept_tasks for worker in found))


def _channels_read_once(plan: JobPlan) -> tuple[Channel, ...]:
    """One channel of every source without operators before the first exchange.

    A source has a channel for each of its readers, and each has all of its rows. Rows of other
    sources are counted by the tasks at the sources.
    """
    direct = [source.channels for source in plan.sources if source.direct and source.channels]
    shared = Counter(channel.id for channels in direct for channel in channels)
    chosen = (min(cs, key=lambda c: (c.broadcast, -shared[c.id])) for cs in direct)
    return tuple({channel.id: channel for channel in chosen}.values())
