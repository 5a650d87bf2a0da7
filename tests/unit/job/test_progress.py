from __future__ import annotations

import io
from typing import Any

import pytest

from holdfast.checkpoint.statistics import CheckpointStatisticsKeeper
from holdfast.clock import Moment
from holdfast.errors import JobExecutionError
from holdfast.job.progress import progress_line, wait_watched
from holdfast.job.statistics import EpochStatistics, JobStatistics, JobStatus


def at(ms: int) -> Moment:
    return Moment(ms, ms)


def figures(**changes: Any) -> JobStatistics:
    values: dict[str, Any] = {
        "job_id": "1",
        "name": "counts",
        "status": JobStatus.RUNNING,
        "epochs": 12,
        "events": 2_400_000,
        "duration_ms": 6000,
        "last_epoch": EpochStatistics(12, 200_000, 400),
        "operators": {},
    }
    return JobStatistics(**{**values, **changes})


def test_the_line_says_how_far_and_how_fast() -> None:
    assert progress_line(figures()) == "counts · epoch 12 · 2,400,000 events · 500,000/s"


def test_the_line_tells_of_checkpoints_failures_and_restarts() -> None:
    keeper = CheckpointStatisticsKeeper()
    keeper.begun(1, at(1000), 2)
    waiting = progress_line(figures(checkpoints=keeper.snapshot()))
    assert waiting.endswith("no checkpoint yet")
    keeper.completed(1, at(1500), "/chk-1")
    keeper.begun(2, at(1600), 2)
    keeper.failed(2, at(1700), "no room")
    line = progress_line(
        figures(checkpoints=keeper.snapshot(), restarts=2, status=JobStatus.RESTARTING), now=2300
    )
    assert line.endswith("checkpoint 1, 0.8 s ago, 0.0 MB, 1 failed · 2 restarts · restarting")


def test_an_epoch_too_short_to_measure_has_no_rate() -> None:
    assert "/s" not in progress_line(figures(last_epoch=EpochStatistics(1, 0, 0)))


class Client:
    """A job as the line sees it, which runs for a few looks and then ends."""

    def __init__(self, looks: int, failure: Exception | None = None) -> None:
        self.looks = looks
        self.failure = failure

    def result(self, timeout: float | None = None) -> str:
        if self.looks:
            self.looks -= 1
            raise TimeoutError
        if self.failure is not None:
            raise self.failure
        return "ended"

    def status(self) -> JobStatus:
        return JobStatus.RUNNING

    def statistics(self) -> JobStatistics:
        return figures()


def test_the_line_changes_in_place_and_is_gone_at_the_end() -> None:
    shown = io.StringIO()
    client: Any = Client(looks=2)
    result: Any = wait_watched(client, shown)
    assert result == "ended"
    assert shown.getvalue().count("epoch 12") == 2
    assert "\n" not in shown.getvalue()
    assert shown.getvalue().endswith("\r\x1b[K")


def test_a_failure_comes_through_and_leaves_no_line_behind() -> None:
    shown = io.StringIO()
    client: Any = Client(looks=1, failure=JobExecutionError("job 'counts' failed"))
    with pytest.raises(JobExecutionError, match="counts"):
        wait_watched(client, shown)
    assert shown.getvalue().endswith("\r\x1b[K")
