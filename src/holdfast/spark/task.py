"""The function that Spark runs in a Python worker: a thin wrapper around `StageTask`."""

from __future__ import annotations

import os
import pickle
import sys
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext
from pyspark.accumulators import Accumulator, AccumulatorParam

from holdfast.clock import SystemClock
from holdfast.runtime.operator_task import TaskIdentity
from holdfast.runtime.report import TaskReport, WorkerReport
from holdfast.runtime.task import StageTask
from holdfast.runtime.worker import (
    Garbage,
    HangUps,
    IdleWatch,
    TaskKey,
    WorkerTasks,
    memory_to_keep,
    resident_bytes,
)
from holdfast.spark.serialization import dumps
from holdfast.spark.versions import read_int
from holdfast.types.columns.pickling import pickle_by_value_with

pickle_by_value_with(dumps)

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from holdfast.runtime.assignments import Assignments
    from holdfast.runtime.plan import EpochPlan
    from holdfast.runtime.worker import JobRun
    from holdfast.spark.serialization import ShippedStage


class ReportsParam(AccumulatorParam[list[TaskReport]]):
    """Collects the reports of tasks."""

    def zero(self, value: list[TaskReport]) -> list[TaskReport]:
        """No reports."""
        return []

    def addInPlace(self, value1: list[TaskReport], value2: list[TaskReport]) -> list[TaskReport]:
        """The reports of both."""
        value1.extend(value2)
        return value1


class Worker:
    """What a Python worker process keeps between tasks."""

    def __init__(self) -> None:
        """Keep nothing yet."""
        self._garbage = Garbage()
        reuses = bool(os.environ.get("SPARK_REUSE_WORKER"))
        self.tasks = WorkerTasks(resident_bytes, garbage=self._garbage, reuses=reuses)
        self._watch: IdleWatch | None = None

    def rest(self) -> None:
        """End a task."""
        self._garbage.settle()
        if self._watch is None and threading.current_thread() is threading.main_thread():
            self._watch = IdleWatch(self.tasks, _waits_for_spark)
        self.tasks.rest()

    def report(self, job: JobRun) -> WorkerReport:
        """Describe the process, and what it keeps of a job."""
        return WorkerReport(os.getpid(), resident_bytes(), self.tasks.count_of(job))


def _waits_for_spark() -> bool:
    """Whether the main thread reads from Spark's socket, and runs nobody's function."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    return frame is not None and frame.f_code is read_int.__code__


HangUps.leave_out(sys.modules["__main__"])
WORKER: Final = Worker()
"""This process."""


class StageFunction:
    """The function for `mapInArrow`: runs one stage over the batches of one task."""

    def __init__(
        self,
        stage: ShippedStage,
        reports: Accumulator[list[TaskReport]],
        epoch: EpochPlan | None = None,
        assignments: Assignments | None = None,
    ) -> None:
        """A function for all tasks of a stage.

        Args:
            stage: The stage, unpickled where no task of it is kept.
            reports: Collects the reports.
            epoch: Plan of the epoch, the same for all tasks; None for the stage at the sources.
            assignments: The parts of the plan that differ between tasks.
        """
        self._stage = stage
        self._reports = reports
        self._epoch = epoch
        self._assignments = assignments

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the stage; reports when all input is processed and state is committed."""
        context = TaskContext.get()
        assert context is not None
        identity = TaskIdentity(
            context.partitionId(), context.attemptNumber(), context.taskAttemptId()
        )
        epoch, stage = self._epoch, self._stage
        if epoch is not None and self._assignments is not None:
            epoch = self._assignments.of_subtask(epoch, identity.subtask)
        key = TaskKey(stage.job, stage.job_attempt, stage.digest, identity.subtask)
        try:
            task = WORKER.tasks.take(key, epoch)
            if task is None:
                task = StageTask(pickle.loads(stage.pickled()), identity.subtask, SystemClock())
            yield from task.run(epoch, identity, batches)
            report = task.report
            most_memory = memory_to_keep(stage.kept_memory)
            WORKER.tasks.keep(key, task, most_memory)
            # Otherwise its memory would not be free if it is closed.
            del task
            WORKER.tasks.trim(key, most_memory)
            self._reports.add([replace(report, worker=WORKER.report(stage.job))])
        except BaseException:
            # It has failed, or was cancelled here.
            WORKER.tasks.drop()
            raise
        finally:
            WORKER.rest()
