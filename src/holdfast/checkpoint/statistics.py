"""Collects statistics about checkpoints, as detailed as Flink's."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from holdfast.job.statistics import (
    CheckpointingStatistics,
    CheckpointStatistics,
    CheckpointStatus,
    CheckpointSummary,
    RestoreStatistics,
    Spread,
    SubtaskCheckpoint,
)

if TYPE_CHECKING:
    from holdfast.clock import Moment


HISTORY: Final = 10
"""Number of checkpoints whose details are kept."""
SAMPLE: Final = 1000
"""Number of completed checkpoints that percentiles are taken over."""


class CheckpointStatisticsKeeper:
    """Collects the statistics of a job's checkpoints; thread-safe.

    Timestamps are those of the wall clock, durations those of the monotonic clock.
    """

    def __init__(self, sample: int = SAMPLE) -> None:
        """Create empty statistics; percentiles are taken over the newest `sample` checkpoints."""
        self._lock = threading.Lock()
        self._open: dict[int, tuple[CheckpointStatistics, int]] = {}
        """The pending checkpoints, and their trigger times on the monotonic clock."""
        self._history: deque[CheckpointStatistics] = deque(maxlen=HISTORY)
        self._total = self._completed = self._failed = self._restored = 0
        self._latest_completed: CheckpointStatistics | None = None
        self._latest_savepoint: CheckpointStatistics | None = None
        self._latest_failed: CheckpointStatistics | None = None
        self._latest_restored: RestoreStatistics | None = None
        self._tallies = {name: _Tally(newest=deque(maxlen=sample)) for name in _SUMMARISED}

    def begun(
        self, checkpoint_id: int, now: Moment, subtasks: int, *, is_savepoint: bool = False
    ) -> None:
        """Record a new checkpoint, and whether it is taken together with a savepoint."""
        with self._lock:
            one = CheckpointStatistics(
                checkpoint_id, now.wall_ms, subtasks, is_savepoint=is_savepoint
            )
            self._open[checkpoint_id] = one, now.monotonic_ms
            self._history.append(one)
            self._total += 1

    def epoch_ended(
        self, checkpoint_id: int, now: Moment, epoch: int, persisted_size: int = 0
    ) -> None:
        """Record the end of the epoch that carried it, and the size of its channel state."""
        with self._lock:
            if checkpoint_id in self._open:
                one, triggered = self._open[checkpoint_id]
                one.epoch = epoch
                one.epoch_duration_ms = now.monotonic_ms - triggered
                one.persisted_size = persisted_size

    def acknowledged(
        self, checkpoint_id: int, now: Moment, stores: list[SubtaskCheckpoint]
    ) -> None:
        """Record the acknowledgement of one task."""
        with self._lock:
            if checkpoint_id not in self._open:
                return
            one, triggered = self._open[checkpoint_id]
            one.num_acknowledged_subtasks += 1
            one.latest_ack_timestamp = now.wall_ms
            one.async_duration_ms = now.monotonic_ms - triggered - one.epoch_duration_ms
            one.subtasks += stores
            one.state_size += sum(store.state_size for store in stores)
            one.checkpointed_size += sum(store.checkpointed_size for store in stores)
            one.sync_duration_ms = max(
                [one.sync_duration_ms, *(store.sync_duration_ms for store in stores)]
            )

    def completed(self, checkpoint_id: int, now: Moment, path: str) -> None:
        """Record its completion."""
        with self._lock:
            self._completed += 1
            if checkpoint_id in self._open:
                one = self._close(checkpoint_id, now)
                one.status = CheckpointStatus.COMPLETED
                one.external_path = path
                if one.num_acknowledged_subtasks:
                    uploaded = one.epoch_duration_ms + one.async_duration_ms
                    one.finalize_duration_ms = one.end_to_end_duration_ms - uploaded
                self._latest_completed = one
                for name, tally in self._tallies.items():
                    tally.add(getattr(one, name))

    def failed(self, checkpoint_id: int, now: Moment, message: str) -> None:
        """Record its failure."""
        with self._lock:
            self._failed += 1
            if checkpoint_id in self._open:
                one = self._close(checkpoint_id, now)
                one.status = CheckpointStatus.FAILED
                one.failure_timestamp = now.wall_ms
                one.failure_message = message
                self._latest_failed = one

    def savepoint_completed(self, checkpoint_id: int, path: str) -> None:
        """Record that the savepoint of a checkpoint is complete."""
        with self._lock:
            for one in self._history:
                if one.id == checkpoint_id:
                    one.savepoint_path = path
                    self._latest_savepoint = one

    def published(self, checkpoint_id: int, duration_ms: int) -> None:
        """Record how long its output took to publish."""
        with self._lock:
            for one in self._history:
                if one.id == checkpoint_id:
                    one.publish_duration_ms = duration_ms

    def discarded(self, checkpoint_id: int) -> None:
        """Record that a completed checkpoint was deleted."""
        with self._lock:
            for one in self._history:
                if one.id == checkpoint_id:
                    one.discarded = True

    def restored(self, restore: RestoreStatistics) -> None:
        """Record a recovery."""
        with self._lock:
            self._restored += 1
            self._latest_restored = restore

    def _close(self, checkpoint_id: int, now: Moment) -> CheckpointStatistics:
        one, triggered = self._open.pop(checkpoint_id)
        one.end_to_end_duration_ms = now.monotonic_ms - triggered
        return one

    def snapshot(self) -> CheckpointingStatistics:
        """A copy of the statistics."""
        with self._lock:
            tallies = {name: tally.copy() for name, tally in self._tallies.items()}
            statistics = CheckpointingStatistics(
                total=self._total,
                in_progress=len(self._open),
                completed=self._completed,
                failed=self._failed,
                restored=self._restored,
                latest_completed=_copied(self._latest_completed),
                latest_savepoint=_copied(self._latest_savepoint),
                latest_failed=_copied(self._latest_failed),
                latest_restored=self._latest_restored,
                history=tuple(map(_copy, self._history)),
            )
        # Without the lock, since it sorts.
        spreads = {name: tally.spread(statistics.completed) for name, tally in tallies.items()}
        return replace(statistics, summary=CheckpointSummary(**spreads))


def _copy(one: CheckpointStatistics) -> CheckpointStatistics:
    # The subtasks' statistics are shared: they are many, and never change.
    return replace(one, subtasks=list(one.subtasks))


def _copied(one: CheckpointStatistics | None) -> CheckpointStatistics | None:
    return None if one is None else _copy(one)


@dataclass(slots=True)
class _Tally:
    """Minimum, maximum and sum of a figure over all checkpoints, and its newest values."""

    newest: deque[int]
    least: int | None = None
    greatest: int = 0
    total: int = 0

    def add(self, value: int) -> None:
        self.least = value if self.least is None else min(self.least, value)
        self.greatest = max(self.greatest, value)
        self.total += value
        self.newest.append(value)

    def copy(self) -> _Tally:
        return replace(self, newest=self.newest.copy())

    def spread(self, count: int) -> Spread:
        average = self.total // count if count else 0
        percentiles = _percentiles(sorted(self.newest))
        return Spread(self.least or 0, self.greatest, average, *percentiles)


def _percentiles(values: list[int]) -> list[int]:
    """The percentiles of a spread, by the nearest rank."""
    if not values:
        return []
    ranks = (-(-len(values) * permille // 1000) for permille in (500, 900, 950, 990, 999))
    return [values[rank - 1] for rank in ranks]


_SUMMARISED: Final = (
    "state_size",
    "checkpointed_size",
    "end_to_end_duration_ms",
    "persisted_size",
)
