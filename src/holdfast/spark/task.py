"""The function that Spark runs in a Python worker: a thin wrapper around `StageTask`."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.accumulators import Accumulator, AccumulatorParam

from holdfast.clock import SystemClock
from holdfast.runtime.operator_task import TaskIdentity
from holdfast.runtime.report import TaskReport
from holdfast.runtime.task import StageTask
from holdfast.spark.serialization import dumps
from holdfast.types.columns.pickling import pickle_by_value_with

pickle_by_value_with(dumps)

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from holdfast.runtime.assignments import Assignments
    from holdfast.runtime.plan import EpochPlan


class ReportsParam(AccumulatorParam[list[TaskReport]]):
    """Collects the reports of tasks."""

    def zero(self, value: list[TaskReport]) -> list[TaskReport]:
        """No reports."""
        return []

    def addInPlace(self, value1: list[TaskReport], value2: list[TaskReport]) -> list[TaskReport]:
        """The reports of both."""
        value1.extend(value2)
        return value1


class StageFunction:
    """The function for `mapInArrow`: runs one stage over the batches of one task."""

    def __init__(
        self,
        stage: bytes,
        reports: Accumulator[list[TaskReport]],
        epoch: EpochPlan | None = None,
        assignments: Assignments | None = None,
    ) -> None:
        """A function for all tasks of a stage.

        Args:
            stage: A pickled `StagePlan`: pickled once, unpickled fresh in every task.
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
        epoch = self._epoch
        if epoch is not None and self._assignments is not None:
            epoch = self._assignments.of_subtask(epoch, identity.subtask)
        task = StageTask(pickle.loads(self._stage), epoch, identity, SystemClock())
        yield from task.run(batches)
        self._reports.add([task.report])
