from __future__ import annotations

import json

from holdfast.checkpoint.rest import checkpoint_as_rest, checkpoints_as_rest
from holdfast.checkpoint.statistics import (
    CheckpointStatisticsKeeper,
    RestoreStatistics,
    Spread,
    SubtaskCheckpoint,
)
from holdfast.clock import Moment


def at(ms: int) -> Moment:
    return Moment(ms, ms)


def kept() -> CheckpointStatisticsKeeper:
    """Two completed checkpoints of 100 and 300 bytes, a failed one, and a restore."""
    keeper = CheckpointStatisticsKeeper()
    for number, size in ((1, 100), (2, 300)):
        keeper.begun(number, at(1000 * number), 1)
        keeper.epoch_ended(number, at(1000 * number + 50), number)
        store = SubtaskCheckpoint("count", 0, 1000 * number + 70, 5, 20, size, size // 10)
        keeper.acknowledged(number, at(1000 * number + 70), [store])
        keeper.completed(number, at(1000 * number + 80), f"/chk-{number}")
    keeper.begun(3, at(3000), 1)
    keeper.failed(3, at(3100), "no room")
    keeper.restored(RestoreStatistics(2, 3200, 12, "/chk-2", 300, 0, 1))
    return keeper


def test_the_overview_has_the_names_of_flink() -> None:
    found = checkpoints_as_rest(kept().snapshot())
    assert found["counts"] == {
        "restored": 1,
        "total": 3,
        "in_progress": 0,
        "completed": 2,
        "failed": 1,
    }
    assert found["summary"]["state_size"] == {"min": 100, "max": 300, "avg": 200}
    assert found["summary"]["end_to_end_duration"] == {"min": 80, "max": 80, "avg": 80}
    assert [one["id"] for one in found["history"]] == [3, 2, 1]
    assert found["latest"]["completed"]["external_path"] == "/chk-2"
    assert found["latest"]["failed"]["failure_message"] == "no room"
    assert found["latest"]["restored"]["id"] == 2
    assert json.loads(json.dumps(found)) == found


def test_a_checkpoint_tells_of_every_subtask() -> None:
    completed = kept().snapshot().latest_completed
    assert completed is not None
    found = checkpoint_as_rest(completed)
    assert (found["status"], found["num_acknowledged_subtasks"]) == ("COMPLETED", 1)
    assert (found["state_size"], found["checkpointed_size"]) == (300, 30)
    [subtask] = found["tasks"]["count"]
    assert subtask["checkpoint"] == {"sync": 5, "async": 20}
    assert (subtask["start_delay"], subtask["end_to_end_duration"]) == (45, 70)


def test_a_job_without_checkpoints_has_an_empty_overview() -> None:
    found = checkpoints_as_rest(CheckpointStatisticsKeeper().snapshot())
    assert found["latest"] == dict.fromkeys(("completed", "savepoint", "failed", "restored"))
    assert found["summary"]["state_size"] == {"min": 0, "max": 0, "avg": 0}


def test_an_average_is_over_all_checkpoints_not_only_those_remembered() -> None:
    keeper = CheckpointStatisticsKeeper()
    for number in range(1, 31):
        keeper.begun(number, at(0), 0)
        keeper.completed(number, at(number), "/chk")
    summary = keeper.snapshot().summary
    assert summary.end_to_end_duration_ms == Spread(1, 30, 15)
