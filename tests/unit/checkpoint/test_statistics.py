"""Figures about checkpoints, event by event."""

from __future__ import annotations

from holdfast.checkpoint.statistics import HISTORY, CheckpointStatisticsKeeper
from holdfast.clock import Moment
from holdfast.job.statistics import (
    CheckpointingStatistics,
    CheckpointStatus,
    RestoreStatistics,
    SubtaskCheckpoint,
)


def at(ms: int) -> Moment:
    return Moment(ms, ms)


def part(subtask: int, *, sync: int = 1, size: int = 100, uploaded: int = 10) -> SubtaskCheckpoint:
    return SubtaskCheckpoint("count", subtask, 0, sync, 5, size, uploaded)


def test_there_are_no_figures_before_the_first_checkpoint() -> None:
    assert CheckpointStatisticsKeeper().snapshot() == CheckpointingStatistics()


def test_a_checkpoint_is_followed_from_its_trigger_to_its_completion() -> None:
    keeper = CheckpointStatisticsKeeper()
    keeper.begun(7, at(1_000), 3)
    keeper.epoch_ended(7, at(1_400), 12)
    keeper.acknowledged(7, at(1_500), [])
    keeper.acknowledged(7, at(1_600), [part(0, sync=8), part(1, sync=3)])
    running = keeper.snapshot()
    assert (running.total, running.in_progress, running.completed) == (1, 1, 0)
    assert running.history[0].status is CheckpointStatus.IN_PROGRESS
    keeper.acknowledged(7, at(1_700), [part(2)])
    keeper.completed(7, at(1_750), "/chk-7")
    figures = keeper.snapshot()
    assert (figures.in_progress, figures.completed, figures.failed) == (0, 1, 0)
    [one] = figures.history
    assert figures.latest_completed == one
    assert (one.status, one.epoch, one.external_path) == (CheckpointStatus.COMPLETED, 12, "/chk-7")
    assert (one.num_subtasks, one.num_acknowledged_subtasks) == (3, 3)
    assert (one.state_size, one.checkpointed_size) == (300, 30)
    assert (one.epoch_duration_ms, one.sync_duration_ms, one.async_duration_ms) == (400, 8, 300)
    assert (one.latest_ack_timestamp, one.finalize_duration_ms) == (1_700, 50)
    assert one.end_to_end_duration_ms == 750
    assert [store.subtask for store in one.subtasks] == [0, 1, 2]


def test_a_failed_checkpoint_says_when_and_why() -> None:
    keeper = CheckpointStatisticsKeeper()
    keeper.begun(1, at(1_000), 1)
    keeper.failed(1, at(1_200), "it expired")
    figures = keeper.snapshot()
    assert (figures.in_progress, figures.failed, figures.latest_completed) == (0, 1, None)
    failed = figures.latest_failed
    assert failed is not None
    assert (failed.status, failed.failure_message) == (CheckpointStatus.FAILED, "it expired")
    assert (failed.failure_timestamp, failed.end_to_end_duration_ms) == (1_200, 200)


def test_what_comes_after_the_end_changes_nothing() -> None:
    keeper = CheckpointStatisticsKeeper()
    keeper.begun(1, at(1_000), 1)
    keeper.failed(1, at(1_200), "it expired")
    before = keeper.snapshot()
    keeper.epoch_ended(1, at(1_300), 5)
    keeper.acknowledged(1, at(1_300), [part(0)])
    assert keeper.snapshot() == before


def test_the_latest_of_each_kind_outlives_the_history() -> None:
    keeper = CheckpointStatisticsKeeper()
    keeper.begun(1, at(0), 1)
    keeper.completed(1, at(5), "/chk-1")
    for number in range(2, HISTORY + 5):
        keeper.begun(number, at(number), 1)
        keeper.failed(number, at(number), "no")
    figures = keeper.snapshot()
    assert [one.id for one in figures.history] == list(range(5, HISTORY + 5))
    assert figures.latest_completed is not None
    assert figures.latest_completed.id == 1
    assert (figures.total, figures.completed, figures.failed) == (HISTORY + 4, 1, HISTORY + 3)


def test_a_retired_checkpoint_is_marked() -> None:
    keeper = CheckpointStatisticsKeeper()
    for number in (1, 2):
        keeper.begun(number, at(0), 1)
        keeper.completed(number, at(5), f"/chk-{number}")
    keeper.discarded(1)
    keeper.discarded(99)
    assert [one.discarded for one in keeper.snapshot().history] == [True, False]


def test_restores_are_counted_and_the_last_is_kept() -> None:
    keeper = CheckpointStatisticsKeeper()
    for number in (3, 4):
        keeper.restored(RestoreStatistics(number, 9_000, 80, f"/chk-{number}", 1_000, 1, 2))
    figures = keeper.snapshot()
    assert figures.restored == 2
    assert figures.latest_restored is not None
    assert figures.latest_restored.checkpoint_id == 4


def test_figures_taken_do_not_change_afterwards() -> None:
    keeper = CheckpointStatisticsKeeper()
    keeper.begun(1, at(0), 2)
    early = keeper.snapshot()
    keeper.acknowledged(1, at(5), [part(0)])
    keeper.completed(1, at(9), "/chk-1")
    assert early.history[0].status is CheckpointStatus.IN_PROGRESS
    assert early.history[0].subtasks == []
    early.history[0].state_size = 12345
    assert keeper.snapshot().history[0].state_size == 100


def test_durations_do_not_follow_a_wall_clock_that_is_set() -> None:
    keeper = CheckpointStatisticsKeeper()
    keeper.begun(1, Moment(wall_ms=5_000_000, monotonic_ms=100), 1)
    keeper.epoch_ended(1, Moment(wall_ms=1_000_000, monotonic_ms=140), 3)
    keeper.acknowledged(1, Moment(wall_ms=900, monotonic_ms=150), [part(0)])
    keeper.completed(1, Moment(wall_ms=9_000_000, monotonic_ms=157), "/chk-1")
    found = keeper.snapshot().latest_completed
    assert found is not None
    assert (found.trigger_timestamp, found.latest_ack_timestamp) == (5_000_000, 900)
    assert (found.epoch_duration_ms, found.async_duration_ms) == (40, 10)
    assert (found.finalize_duration_ms, found.end_to_end_duration_ms) == (7, 57)


def test_percentiles_are_taken_over_the_newest_checkpoints() -> None:
    keeper = CheckpointStatisticsKeeper(sample=100)
    for number in range(1, 201):
        keeper.begun(number, at(0), 1)
        keeper.completed(number, at(number), f"/chk-{number}")
    spread = keeper.snapshot().summary.end_to_end_duration_ms
    assert (spread.min, spread.max, spread.avg) == (1, 200, 100)
    assert (spread.p50, spread.p90, spread.p95) == (150, 190, 195)
    assert (spread.p99, spread.p999) == (199, 200)


def test_the_newest_savepoint_is_shown_with_its_checkpoint() -> None:
    keeper = CheckpointStatisticsKeeper()
    for number in (1, 2, 3):
        keeper.begun(number, at(0), 1, is_savepoint=number == 2)
        keeper.completed(number, at(1), f"/chk-{number}")
    assert keeper.snapshot().latest_savepoint is None
    keeper.savepoint_completed(2, "/savepoint-2")
    figures = keeper.snapshot()
    assert figures.latest_savepoint is not None
    assert (figures.latest_savepoint.id, figures.latest_savepoint.savepoint_path) == (
        2,
        "/savepoint-2",
    )
    assert [one.is_savepoint for one in figures.history] == [False, True, False]
