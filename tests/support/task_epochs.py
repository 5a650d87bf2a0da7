"""Epochs of one task, some of which end in a checkpoint, run by hand without Spark."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from holdfast.runtime.exchange import ExchangeWriter
from holdfast.runtime.operator_task import TaskIdentity
from holdfast.runtime.plan import CheckpointOrder, EpochPlan
from holdfast.spark.serialization import dump_stage
from holdfast.state.store.process import ProcessIdentity
from holdfast.testing.clock import ManualClock
from holdfast.types.columns.batches import BatchWriter
from tests.support.workers import EpochTask

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from holdfast.runtime.plan import StagePlan
    from holdfast.runtime.report import TaskReport
    from tests.support.programs import Program

ROWS = "k string, n bigint"


class Tasks:
    """Tasks of a program's first stage; their stores lie in `directory`."""

    def __init__(self, program: Program, directory: Path) -> None:
        self.stage: StagePlan = program.compile().stages[0]
        self.clock = ManualClock(1_000)
        self.directory = directory
        self.epoch = 0
        self.attempt = 0
        self.expected: dict[tuple[str, int], str] = {}

    def run(
        self,
        *elements: Any,
        subtask: int = 0,
        checkpoint: int | None = None,
        **plan: Any,
    ) -> TaskReport:
        """An epoch of one task that ends well; with a checkpoint triggered at 500 if given."""
        task = self.task(subtask, checkpoint, **plan)
        list(task.run(self.batches(elements)))
        for uid, store in task.report.stores.items():
            self.expected[uid, subtask] = store.version
        return task.report

    def task(self, subtask: int = 0, checkpoint: int | None = None, **plan: Any) -> EpochTask:
        self.epoch += 1
        self.attempt += 1
        epoch = self.epoch_plan(checkpoint, **plan)
        stage = pickle.loads(dump_stage(self.stage))
        return EpochTask(stage, epoch, TaskIdentity(subtask, 0, self.attempt), self.clock)

    def epoch_plan(self, checkpoint: int | None = None, **plan: Any) -> EpochPlan:
        given: dict[str, Any] = {"job_attempt": "1", "expected": self.expected, **plan}
        return EpochPlan(
            job_id="job",
            epoch=self.epoch,
            local_dir=str(self.directory),
            owner=ProcessIdentity.current(),
            checkpoint=None if checkpoint is None else CheckpointOrder(checkpoint, 500),
            **given,
        )

    def batches(self, elements: tuple[Any, ...]) -> Iterator[pa.RecordBatch]:
        if elements:
            exchange = self.stage.reads
            subtasks = pa.array([0] * len(elements), pa.int32())
            rows = BatchWriter(exchange.channels[0].type).batch(list(elements))
            batch = ExchangeWriter(exchange).pack(exchange.channels[0], rows, subtasks)
            yield batch.drop_columns(["_hf_subtask"])
