"""Figures about checkpoints, as rich as those that Flink shows."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from holdfast.clock import Moment

HISTORY: Final = 10
"""Checkpoints of which the details are kept."""


class CheckpointStatus(Enum):
    """Where a checkpoint stands."""

    IN_PROGRESS = "IN_PROGRESS"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"


@dataclass(frozen=True, slots=True)
class SubtaskCheckpoint:
    """One subtask's part in a checkpoint."""

    uid: str
    subtask: int
    ack_timestamp: int
    sync_duration_ms: int
    """Time for which its epoch was held up by the local snapshot."""
    async_duration_ms: int
    """Time that the upload took."""
    state_size: int
    checkpointed_size: int
    alignment_ms: int = 0
    """Always 0: the end of an epoch is where all inputs are aligned anyway."""


@dataclass(slots=True)
class CheckpointStatistics:
    """One checkpoint."""

    id: int
    trigger_timestamp: int
    num_subtasks: int
    status: CheckpointStatus = CheckpointStatus.IN_PROGRESS
    is_savepoint: bool = False
    epoch: int | None = None
    latest_ack_timestamp: int | None = None
    num_acknowledged_subtasks: int = 0
    state_size: int = 0
    """Bytes of the whole state."""
    checkpointed_size: int = 0
    """Bytes that were uploaded for this checkpoint."""
    persisted_size: int = 0
    """Bytes of input that it holds because there was no time to process it."""
    epoch_duration_ms: int = 0
    """From the trigger to the end of the epoch: what alignment is in a pipeline."""
    sync_duration_ms: int = 0
    """Longest local snapshot."""
    async_duration_ms: int = 0
    """From the end of the epoch to the last upload."""
    finalize_duration_ms: int = 0
    """Writing the metadata."""
    end_to_end_duration_ms: int = 0
    publish_duration_ms: int | None = None
    """Publishing its output, after it was complete; None before that has succeeded."""
    external_path: str | None = None
    discarded: bool = False
    failure_timestamp: int | None = None
    failure_message: str | None = None
    subtasks: list[SubtaskCheckpoint] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class RestoreStatistics:
    """The last restore."""

    checkpoint_id: int
    timestamp: int
    duration_ms: int
    external_path: str
    downloaded_size: int
    local_stores: int
    """Stores that were built from a local copy, without a download."""
    stores: int


@dataclass(frozen=True, slots=True)
class Spread:
    """Least, greatest and average of a figure."""

    min: int = 0
    max: int = 0
    avg: int = 0


@dataclass(frozen=True, slots=True)
class CheckpointSummary:
    """Figures over all completed checkpoints of a job."""

    state_size: Spread = Spread()
    checkpointed_size: Spread = Spread()
    end_to_end_duration_ms: Spread = Spread()


@dataclass(frozen=True, slots=True)
class CheckpointingStatistics:
    """All checkpoints of a job, at one moment."""

    total: int = 0
    in_progress: int = 0
    completed: int = 0
    failed: int = 0
    restored: int = 0
    latest_completed: CheckpointStatistics | None = None
    latest_failed: CheckpointStatistics | None = None
    latest_restored: RestoreStatistics | None = None
    summary: CheckpointSummary = CheckpointSummary()
    history: tuple[CheckpointStatistics, ...] = ()
    """The newest checkpoints, oldest first."""


class CheckpointStatisticsKeeper:
    """Follows checkpoints; may be read from other threads.

    What happened when is told by the wall clock, how long it took by the monotonic one.
    """

    def __init__(self) -> None:
        """No checkpoints yet."""
        self._lock = threading.Lock()
        self._open: dict[int, CheckpointStatistics] = {}
        self._triggered: dict[int, int] = {}
        """When those that are open were triggered, on the monotonic clock."""
        self._history: deque[CheckpointStatistics] = deque(maxlen=HISTORY)
        self._total = self._completed = self._failed = self._restored = 0
        self._latest_completed: CheckpointStatistics | None = None
        self._latest_failed: CheckpointStatistics | None = None
        self._latest_restored: RestoreStatistics | None = None
        self._tallies = {name: _Tally() for name in _SUMMARISED}

    def begun(self, checkpoint_id: int, now: Moment, subtasks: int) -> None:
        """A checkpoint was triggered."""
        with self._lock:
            one = CheckpointStatistics(checkpoint_id, now.wall_ms, subtasks)
            self._open[checkpoint_id] = one
            self._triggered[checkpoint_id] = now.monotonic_ms
            self._history.append(one)
            self._total += 1

    def epoch_ended(
        self, checkpoint_id: int, now: Moment, epoch: int, persisted_size: int = 0
    ) -> None:
        """The epoch that carried it has ended, and left so many bytes of input over."""
        with self._lock:
            one = self._open.get(checkpoint_id)
            if one is not None:
                one.epoch = epoch
                one.epoch_duration_ms = self._since(checkpoint_id, now)
                one.persisted_size = persisted_size

    def acknowledged(
        self, checkpoint_id: int, now: Moment, stores: list[SubtaskCheckpoint]
    ) -> None:
        """One task has handed in its part."""
        with self._lock:
            one = self._open.get(checkpoint_id)
            if one is None:
                return
            one.num_acknowledged_subtasks += 1
            one.latest_ack_timestamp = now.wall_ms
            one.async_duration_ms = self._since(checkpoint_id, now) - one.epoch_duration_ms
            one.subtasks += stores
            one.state_size += sum(store.state_size for store in stores)
            one.checkpointed_size += sum(store.checkpointed_size for store in stores)
            one.sync_duration_ms = max(
                [one.sync_duration_ms, *(store.sync_duration_ms for store in stores)]
            )

    def completed(self, checkpoint_id: int, now: Moment, path: str) -> None:
        """It is complete."""
        with self._lock:
            took = self._since(checkpoint_id, now)
            one = self._close(checkpoint_id)
            self._completed += 1
            if one is not None:
                one.status = CheckpointStatus.COMPLETED
                one.external_path = path
                if one.num_acknowledged_subtasks:
                    uploaded = one.epoch_duration_ms + one.async_duration_ms
                    one.finalize_duration_ms = took - uploaded
                one.end_to_end_duration_ms = took
                self._latest_completed = one
                for name, tally in self._tallies.items():
                    tally.add(getattr(one, name))

    def failed(self, checkpoint_id: int, now: Moment, message: str) -> None:
        """It has failed."""
        with self._lock:
            took = self._since(checkpoint_id, now)
            one = self._close(checkpoint_id)
            self._failed += 1
            if one is not None:
                one.status = CheckpointStatus.FAILED
                one.failure_timestamp = now.wall_ms
                one.failure_message = message
                one.end_to_end_duration_ms = took
                self._latest_failed = one

    def published(self, checkpoint_id: int, duration_ms: int) -> None:
        """The output of a complete checkpoint is out."""
        with self._lock:
            for one in self._history:
                if one.id == checkpoint_id:
                    one.publish_duration_ms = duration_ms

    def discarded(self, checkpoint_id: int) -> None:
        """A complete checkpoint was deleted in its turn."""
        with self._lock:
            for one in self._history:
                if one.id == checkpoint_id:
                    one.discarded = True

    def restored(self, restore: RestoreStatistics) -> None:
        """The job went back to a checkpoint."""
        with self._lock:
            self._restored += 1
            self._latest_restored = restore

    def _since(self, checkpoint_id: int, now: Moment) -> int:
        """Milliseconds since a checkpoint was triggered."""
        return now.monotonic_ms - self._triggered.get(checkpoint_id, now.monotonic_ms)

    def _close(self, checkpoint_id: int) -> CheckpointStatistics | None:
        self._triggered.pop(checkpoint_id, None)
        return self._open.pop(checkpoint_id, None)

    def snapshot(self) -> CheckpointingStatistics:
        """The figures now."""
        with self._lock:
            return CheckpointingStatistics(
                total=self._total,
                in_progress=len(self._open),
                completed=self._completed,
                failed=self._failed,
                restored=self._restored,
                latest_completed=_copied(self._latest_completed),
                latest_failed=_copied(self._latest_failed),
                latest_restored=self._latest_restored,
                summary=CheckpointSummary(
                    **{name: tally.spread(self._completed) for name, tally in self._tallies.items()}
                ),
                history=tuple(map(_copy, self._history)),
            )


def _copy(one: CheckpointStatistics) -> CheckpointStatistics:
    # Not the figures of subtasks, which are many and do not change.
    return replace(one, subtasks=list(one.subtasks))


def _copied(one: CheckpointStatistics | None) -> CheckpointStatistics | None:
    return None if one is None else _copy(one)


@dataclass(slots=True)
class _Tally:
    """A figure over many checkpoints, in constant space."""

    least: int | None = None
    greatest: int = 0
    total: int = 0

    def add(self, value: int) -> None:
        self.least = value if self.least is None else min(self.least, value)
        self.greatest = max(self.greatest, value)
        self.total += value

    def spread(self, count: int) -> Spread:
        return Spread(self.least or 0, self.greatest, self.total // count if count else 0)


_SUMMARISED: Final = ("state_size", "checkpointed_size", "end_to_end_duration_ms")
