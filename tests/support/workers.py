"""The worker processes of an executor, run by hand without Spark."""

from __future__ import annotations

import itertools
import pickle
from typing import TYPE_CHECKING, Any

from holdfast.runtime.task import StageTask
from holdfast.runtime.worker import JobRun, TaskKey, WorkerTasks
from holdfast.spark.serialization import dump_stage
from holdfast.state.store.process import ProcessIdentity

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from holdfast.clock import Clock
    from holdfast.runtime.operator_task import TaskIdentity
    from holdfast.runtime.operators.base import Operator
    from holdfast.runtime.plan import EpochPlan, StagePlan
    from holdfast.runtime.report import TaskReport

TURNS = (0, 1, 1, 0, 0, 0, 1)
"""Which worker gets a task: a subtask meets the worker of its last epoch, or another one."""


class EpochTask:
    """A task that runs one epoch in a process of its own, which ends with it."""

    def __init__(
        self,
        stage: StagePlan,
        epoch: EpochPlan | None,
        identity: TaskIdentity,
        clock: Clock,
        **sizes: Any,
    ) -> None:
        self.task = StageTask(stage, identity.subtask, clock, **sizes)
        self._epoch, self._identity = epoch, identity

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from self.task.run(self._epoch, self._identity, batches)
        self.task.close()

    @property
    def report(self) -> TaskReport:
        return self.task.report

    def operator(self, index: int) -> Operator:
        """An operator of the stage, open, without any rows."""
        self.task._begin(self._epoch, self._identity)
        return self.task._operator_task(index).operator


class Workers:
    """Two workers, which keep tasks between epochs and take turns."""

    def __init__(self, count: int = 2) -> None:
        self.workers = [WorkerTasks(lambda: 0) for _ in range(count)]
        self._turns = itertools.cycle(turn % count for turn in TURNS)
        self._attempt = "1"
        self.taken = self.met_again = 0
        """Tasks so far, and those of them that were kept from an earlier epoch."""

    def run(
        self,
        stage: StagePlan,
        epoch: EpochPlan | None,
        identity: TaskIdentity,
        batches: list[pa.RecordBatch],
        clock: Clock,
        **sizes: Any,
    ) -> tuple[list[pa.RecordBatch], TaskReport]:
        """Output and report of one task of an epoch."""
        worker = self.workers[next(self._turns)]
        pickled = dump_stage(stage)
        job = JobRun(None, "job", ProcessIdentity("", "", "", 0, ""))
        self._attempt = self._attempt if epoch is None else epoch.job_attempt
        digest = str(id(stage))
        key = TaskKey(job, self._attempt, digest, identity.subtask)
        self.taken += 1
        task = worker.take(key, epoch)
        if task is None:
            task = StageTask(pickle.loads(pickled), identity.subtask, clock, **sizes)
        else:
            self.met_again += 1
        out = list(task.run(epoch, identity, iter(batches)))
        worker.keep(key, task, 1)
        worker.rest()
        return out, task.report

    def close(self) -> None:
        """End the processes, as far as functions notice."""
        for worker in self.workers:
            worker.close_all()
