"""Jobs without Spark for tests of the control server, which can be held up and fail."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from holdfast.api.metrics import Histogram, MetricValues
from holdfast.checkpoint.statistics import CheckpointStatisticsKeeper
from holdfast.clock import Moment
from holdfast.config.checkpoint_options import SavepointFormatType
from holdfast.job.statistics import (
    EpochStatistics,
    JobStatistics,
    JobStatus,
    OperatorStatistics,
    RestoreStatistics,
    SubtaskCheckpoint,
    WorkerStatistics,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.job.statistics import JobFailure

START = 1_700_000_000_000
CONFIGURATION: Mapping[str, object] = {
    "parallelism.default": 4,
    "pipeline.max-parallelism": 128,
    "execution.checkpointing.interval": 10_000,
    "execution.checkpointing.dir": "s3://reader:hunter2@bucket/checkpoints",
    "execution.checkpointing.savepoint-dir": "/savepoints",
    "rest.token-file": "/home/me/token",
    "restart-strategy.type": "fixed-delay",
}


class FakeJob:
    """A job that records what it is told; a gate holds its operations up."""

    def __init__(
        self,
        job_id: str = "a1",
        name: str = "orders",
        configuration: Mapping[str, object] = CONFIGURATION,
        *,
        checkpoints: bool = True,
    ) -> None:
        self.job_id = job_id
        self.name = name
        self.configuration = configuration
        self.job_parameters: Mapping[str, str] = {"city": "Ghent", "db.password": "hunter2"}
        self.start_time = START
        self.end_time: int | None = None
        self.failure: str | None = None
        self.failed: list[JobFailure] = []
        self.state = JobStatus.RUNNING
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Semaphore(0)
        """Released when an operation has begun."""
        self.error: Exception | None = None
        self.told: list[tuple[str, ...]] = []
        self.figures = JobStatistics(
            job_id,
            name,
            JobStatus.RUNNING,
            epochs=7,
            events=1_000,
            duration_ms=800,
            last_epoch=EpochStatistics(7, 10, 60),
            operators={
                "count": OperatorStatistics(
                    "Count", "count", 1_000, 990, watermark=-(2**63), metrics=_metrics()
                )
            },
            restarts=1,
            watermarks={"count": -(2**63)},
            checkpoints=_checkpoints() if checkpoints else None,
            workers=WorkerStatistics(2, 1 << 28, 4),
        )

    def failures(self) -> tuple[JobFailure, ...]:
        return tuple(self.failed)

    def status(self) -> JobStatus:
        return self.state

    def statistics(self) -> JobStatistics:
        return replace(self.figures, status=self.state)

    def end(self, state: JobStatus) -> None:
        """Let the job end."""
        self.state, self.end_time = state, START + 60_000

    def trigger_savepoint(
        self,
        directory: Any = None,
        format_type: SavepointFormatType = SavepointFormatType.CANONICAL,
        timeout: object = None,
    ) -> str:
        return self._operate("savepoint", directory, format_type.name)

    def stop_with_savepoint(
        self,
        directory: Any = None,
        *,
        drain: bool = False,
        format_type: SavepointFormatType = SavepointFormatType.CANONICAL,
    ) -> str:
        path = self._operate("stop", directory, format_type.name, str(drain))
        self.end(JobStatus.FINISHED)
        return path

    def cancel_with_savepoint(
        self,
        directory: Any = None,
        format_type: SavepointFormatType = SavepointFormatType.CANONICAL,
    ) -> str:
        path = self._operate("cancel with savepoint", directory, format_type.name)
        self.end(JobStatus.CANCELED)
        return path

    def trigger_checkpoint(self, timeout: object = None) -> int:
        self._operate("checkpoint", None)
        return 8

    def rescale(self, parallelism: int, timeout: object = None) -> None:
        self._operate("rescale", None, str(parallelism))

    def cancel(self) -> None:
        self._operate("cancel", None)
        self.end(JobStatus.CANCELED)

    def suspend(self) -> None:
        self._operate("suspend", None)
        self.end(JobStatus.SUSPENDED)

    def _operate(self, what: str, directory: str | None, *more: str) -> str:
        self.told.append((what, *([] if directory is None else [directory]), *more))
        self.entered.release()
        assert self.gate.wait(30)
        if self.error is not None:
            raise self.error
        return f"{directory or '/savepoints'}/savepoint-a1-1"


def _metrics() -> MetricValues:
    histogram = Histogram()
    for value in range(100):
        histogram.update(value)
    return MetricValues({"seen": 1_000}, {"size": {0: 4.0}}, {"delay": histogram})


def _checkpoints() -> Any:
    """Statistics of four checkpoints: complete, with a savepoint, failed, in progress."""
    keeper = CheckpointStatisticsKeeper()
    for number in (1, 2):
        now = START + 1_000 * number
        keeper.begun(number, Moment(now, now), 1, is_savepoint=number == 2)
        keeper.epoch_ended(number, Moment(now + 100, now + 100), number)
        part = SubtaskCheckpoint("count", 0, now + 200, 3, 90, 500, 50)
        keeper.acknowledged(number, Moment(now + 200, now + 200), [part])
        keeper.completed(number, Moment(now + 250, now + 250), f"/checkpoints/a1/chk-{number}")
    keeper.savepoint_completed(2, "/savepoints/savepoint-a1-0")
    keeper.begun(3, Moment(START + 3_000, 3_000), 1)
    keeper.failed(3, Moment(START + 3_500, 3_500), "it was not complete within its timeout")
    keeper.begun(4, Moment(START + 4_000, 4_000), 1)
    keeper.restored(RestoreStatistics(1, START + 3_600, 80, "/checkpoints/a1/chk-1", 500, 0, 1))
    return keeper.snapshot()
