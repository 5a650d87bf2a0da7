"""The JSON of checkpoints, with Flink's names of fields, made from their statistics."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from holdfast.config.checkpoint_options import ExternalizedCheckpointRetention
from holdfast.config.checkpointing import checkpoint_settings
from holdfast.config.configuration import STATE_BACKEND
from holdfast.job.statistics import CheckpointStatus, Spread

if TYPE_CHECKING:
    from holdfast.config.configuration import Configuration
    from holdfast.job.statistics import (
        CheckpointingStatistics,
        CheckpointStatistics,
        RestoreStatistics,
        SubtaskCheckpoint,
    )

Status = Literal["IN_PROGRESS", "COMPLETED", "FAILED"]


class Counts(Struct):
    """Number of checkpoints."""

    restored: int
    total: int
    in_progress: int
    completed: int
    failed: int


class StatsSummary(Struct):
    """Minimum, maximum and average over all, and percentiles over the newest 1000."""

    min: int
    max: int
    avg: int
    p50: int
    p90: int
    p95: int
    p99: int
    p999: int


class Summary(Struct):
    """Figures over all completed checkpoints."""

    checkpointed_size: StatsSummary
    state_size: StatsSummary
    end_to_end_duration: StatsSummary
    alignment_buffered: StatsSummary
    processed_data: StatsSummary
    persisted_data: StatsSummary


class TaskCheckpoint(Struct):
    """An operator's part in a checkpoint."""

    id: int
    status: Status
    latest_ack_timestamp: int
    checkpointed_size: int
    state_size: int
    end_to_end_duration: int
    alignment_buffered: int
    processed_data: int
    persisted_data: int
    num_subtasks: int
    num_acknowledged_subtasks: int


class Checkpoint(Struct, omit_defaults=True):
    """A checkpoint."""

    className: Literal["in_progress", "completed", "failed"]
    id: int
    status: Status
    is_savepoint: bool
    """Whether a savepoint was taken together with it."""
    trigger_timestamp: int
    latest_ack_timestamp: int
    """-1 if no task has acknowledged it."""
    checkpointed_size: int
    state_size: int
    end_to_end_duration: int
    alignment_buffered: int
    processed_data: int
    persisted_data: int
    num_subtasks: int
    num_acknowledged_subtasks: int
    checkpoint_type: Literal["CHECKPOINT", "UNALIGNED_CHECKPOINT", "SAVEPOINT"]
    tasks: dict[str, TaskCheckpoint]
    """By uid; only in the details."""
    external_path: str | None = None
    discarded: bool | None = None
    failure_timestamp: int | None = None
    failure_message: str | None = None


class Restored(Struct):
    """The newest restore."""

    id: int
    restore_timestamp: int
    is_savepoint: bool
    external_path: str


class Latest(Struct):
    """The newest checkpoints of each kind."""

    completed: Checkpoint | None
    savepoint: Checkpoint | None
    failed: Checkpoint | None
    restored: Restored | None


class Checkpoints(Struct):
    """The checkpoints of a job."""

    counts: Counts
    summary: Summary
    latest: Latest
    history: list[Checkpoint]
    """The newest ones, newest first."""


class Externalization(Struct):
    """What remains when the job ends."""

    enabled: bool
    delete_on_cancellation: bool


class CheckpointConfig(Struct):
    """The checkpoint settings of a job; times in milliseconds."""

    mode: Literal["exactly_once", "at_least_once"]
    interval: int
    timeout: int
    min_pause: int
    max_concurrent: int
    externalization: Externalization
    state_backend: str
    checkpoint_storage: str
    unaligned_checkpoints: bool
    tolerable_failed_checkpoints: int
    aligned_checkpoint_timeout: int
    checkpoints_after_tasks_finish: bool


def checkpoints(statistics: CheckpointingStatistics) -> Checkpoints:
    """The checkpoints of a job."""
    summary, nothing = statistics.summary, _spread(Spread())
    completed, failed = statistics.latest_completed, statistics.latest_failed
    savepoint, restored = statistics.latest_savepoint, statistics.latest_restored
    return Checkpoints(
        counts=Counts(
            restored=statistics.restored,
            total=statistics.total,
            in_progress=statistics.in_progress,
            completed=statistics.completed,
            failed=statistics.failed,
        ),
        summary=Summary(
            checkpointed_size=_spread(summary.checkpointed_size),
            state_size=_spread(summary.state_size),
            end_to_end_duration=_spread(summary.end_to_end_duration_ms),
            # Rows wait at the end of an epoch, and are not processed meanwhile.
            alignment_buffered=nothing,
            processed_data=nothing,
            persisted_data=_spread(summary.persisted_size),
        ),
        latest=Latest(
            completed=None if completed is None else checkpoint(completed),
            savepoint=None if savepoint is None else _savepoint(savepoint),
            failed=None if failed is None else checkpoint(failed),
            restored=None if restored is None else _restored(restored),
        ),
        history=[checkpoint(one) for one in reversed(statistics.history)],
    )


def checkpoint_details(
    statistics: CheckpointingStatistics, checkpoint_id: int
) -> Checkpoint | None:
    """A checkpoint with the parts of its operators; None if it is not remembered."""
    latest = (statistics.latest_completed, statistics.latest_savepoint, statistics.latest_failed)
    for one in (*statistics.history, *latest):
        if one is not None and one.id == checkpoint_id:
            parts = defaultdict(list)
            for part in one.subtasks:
                parts[part.uid].append(part)
            found = checkpoint(one)
            found.tasks = {uid: _task(one, stores) for uid, stores in parts.items()}
            return found
    return None


def checkpoint(one: CheckpointStatistics) -> Checkpoint:
    """A checkpoint, without the parts of its operators."""
    done = one.status is CheckpointStatus.COMPLETED
    return Checkpoint(
        className=_CLASS_NAMES[one.status],
        id=one.id,
        status=one.status.value,
        is_savepoint=one.is_savepoint,
        trigger_timestamp=one.trigger_timestamp,
        latest_ack_timestamp=-1 if one.latest_ack_timestamp is None else one.latest_ack_timestamp,
        checkpointed_size=one.checkpointed_size,
        state_size=one.state_size,
        end_to_end_duration=one.end_to_end_duration_ms,
        alignment_buffered=0,
        processed_data=0,
        persisted_data=one.persisted_size,
        num_subtasks=one.num_subtasks,
        num_acknowledged_subtasks=one.num_acknowledged_subtasks,
        checkpoint_type="UNALIGNED_CHECKPOINT" if one.persisted_size else "CHECKPOINT",
        tasks={},
        external_path=one.external_path,
        discarded=one.discarded if done else None,
        failure_timestamp=one.failure_timestamp,
        failure_message=one.failure_message,
    )


def checkpoint_config(configuration: Configuration) -> CheckpointConfig | None:
    """The checkpoint settings of a job; None if it takes no checkpoints."""
    settings = checkpoint_settings(configuration)
    if settings is None:
        return None
    retention = settings.retention
    return CheckpointConfig(
        mode="exactly_once" if settings.mode.name == "EXACTLY_ONCE" else "at_least_once",
        interval=settings.interval_ms or 0,
        timeout=settings.timeout_ms,
        min_pause=settings.min_pause_ms,
        max_concurrent=settings.max_concurrent,
        externalization=Externalization(
            enabled=retention is not ExternalizedCheckpointRetention.NO_EXTERNALIZED_CHECKPOINTS,
            delete_on_cancellation=(
                retention is not ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION
            ),
        ),
        state_backend=configuration.get(STATE_BACKEND),
        checkpoint_storage=type(settings.storage).__name__,
        unaligned_checkpoints=settings.unaligned,
        tolerable_failed_checkpoints=settings.tolerable_failures,
        aligned_checkpoint_timeout=settings.aligned_timeout_ms,
        checkpoints_after_tasks_finish=settings.after_tasks_finish,
    )


def _savepoint(one: CheckpointStatistics) -> Checkpoint:
    found = checkpoint(one)
    found.checkpoint_type = "SAVEPOINT"
    # The savepoint stays when its checkpoint is deleted.
    found.external_path, found.discarded = one.savepoint_path, False
    return found


def _restored(one: RestoreStatistics) -> Restored:
    # Checkpoints have directories of their own names.
    is_savepoint = "/chk-" not in one.external_path
    return Restored(one.checkpoint_id, one.timestamp, is_savepoint, one.external_path)


def _task(one: CheckpointStatistics, stores: list[SubtaskCheckpoint]) -> TaskCheckpoint:
    newest = max(store.ack_timestamp for store in stores)
    return TaskCheckpoint(
        id=one.id,
        status=one.status.value,
        latest_ack_timestamp=newest,
        checkpointed_size=sum(store.checkpointed_size for store in stores),
        state_size=sum(store.state_size for store in stores),
        end_to_end_duration=max(0, newest - one.trigger_timestamp),
        alignment_buffered=0,
        processed_data=0,
        persisted_data=0,
        num_subtasks=len(stores),
        num_acknowledged_subtasks=len(stores),
    )


def _spread(one: Spread) -> StatsSummary:
    return StatsSummary(one.min, one.max, one.avg, one.p50, one.p90, one.p95, one.p99, one.p999)


_CLASS_NAMES: dict[CheckpointStatus, Literal["in_progress", "completed", "failed"]] = {
    CheckpointStatus.IN_PROGRESS: "in_progress",
    CheckpointStatus.COMPLETED: "completed",
    CheckpointStatus.FAILED: "failed",
}
