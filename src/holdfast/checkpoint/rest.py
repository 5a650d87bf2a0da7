"""Figures about checkpoints under the names of Flink's REST interface."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.checkpoint.statistics import (
        CheckpointingStatistics,
        CheckpointStatistics,
        RestoreStatistics,
        Spread,
        SubtaskCheckpoint,
    )


def checkpoints_as_rest(figures: CheckpointingStatistics) -> dict[str, Any]:
    """What Flink answers to `/jobs/<id>/checkpoints`, as plain data that JSON can hold."""
    summary = figures.summary
    return {
        "counts": {
            "restored": figures.restored,
            "total": figures.total,
            "in_progress": figures.in_progress,
            "completed": figures.completed,
            "failed": figures.failed,
        },
        "summary": {
            "state_size": _spread(summary.state_size),
            "checkpointed_size": _spread(summary.checkpointed_size),
            "end_to_end_duration": _spread(summary.end_to_end_duration_ms),
        },
        "latest": {
            "completed": _optional(figures.latest_completed),
            "savepoint": None,
            "failed": _optional(figures.latest_failed),
            "restored": _restored(figures.latest_restored),
        },
        "history": [checkpoint_as_rest(one) for one in reversed(figures.history)],
    }


def checkpoint_as_rest(one: CheckpointStatistics) -> dict[str, Any]:
    """What Flink answers to `/jobs/<id>/checkpoints/details/<checkpoint>`."""
    found: dict[str, Any] = {
        "id": one.id,
        "status": one.status.value,
        "is_savepoint": one.is_savepoint,
        "savepointFormat": None,
        "checkpoint_type": "SAVEPOINT" if one.is_savepoint else "CHECKPOINT",
        "trigger_timestamp": one.trigger_timestamp,
        "latest_ack_timestamp": one.latest_ack_timestamp,
        "checkpointed_size": one.checkpointed_size,
        "state_size": one.state_size,
        "end_to_end_duration": one.end_to_end_duration_ms,
        # The end of an epoch is the barrier: only what a cut has left over is in flight.
        "alignment_buffered": 0,
        "processed_data": 0,
        "persisted_data": one.persisted_size,
        "num_subtasks": one.num_subtasks,
        "num_acknowledged_subtasks": one.num_acknowledged_subtasks,
        "tasks": _tasks(one),
    }
    if one.external_path is not None:
        found |= {"external_path": one.external_path, "discarded": one.discarded}
    if one.failure_message is not None:
        found |= {
            "failure_timestamp": one.failure_timestamp,
            "failure_message": one.failure_message,
        }
    return found


def _tasks(one: CheckpointStatistics) -> dict[str, Any]:
    tasks: dict[str, Any] = {}
    for store in sorted(one.subtasks, key=lambda found: (found.uid, found.subtask)):
        tasks.setdefault(store.uid, []).append(_subtask(one, store))
    return tasks


def _subtask(one: CheckpointStatistics, store: SubtaskCheckpoint) -> dict[str, Any]:
    return {
        "index": store.subtask,
        "status": "completed",
        "ack_timestamp": store.ack_timestamp,
        # Both are labels, and the clock may have been set in between.
        "end_to_end_duration": max(0, store.ack_timestamp - one.trigger_timestamp),
        "state_size": store.state_size,
        "checkpointed_size": store.checkpointed_size,
        "checkpoint": {"sync": store.sync_duration_ms, "async": store.async_duration_ms},
        "alignment": {"buffered": 0, "processed": 0, "persisted": 0, "duration": 0},
        "start_delay": max(0, one.epoch_duration_ms - store.sync_duration_ms),
        "unaligned_checkpoint": one.persisted_size > 0,
        "aborted": False,
    }


def _optional(one: CheckpointStatistics | None) -> dict[str, Any] | None:
    return None if one is None else checkpoint_as_rest(one)


def _restored(restore: RestoreStatistics | None) -> dict[str, Any] | None:
    if restore is None:
        return None
    return {
        "id": restore.checkpoint_id,
        "restore_timestamp": restore.timestamp,
        "is_savepoint": False,
        "external_path": restore.external_path,
    }


def _spread(spread: Spread) -> dict[str, int]:
    return {"min": spread.min, "max": spread.max, "avg": spread.avg}
