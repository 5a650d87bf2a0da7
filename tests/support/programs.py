"""Programs run without Spark: the real graph, compiler and tasks, with a shuffle of lists."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from holdfast.api.sinks import CollectSink
from holdfast.api.streams.data_stream import DataStream
from holdfast.api.streams.graph import Edge, JobGraph, OperatorKind
from holdfast.clock import SystemClock
from holdfast.config.backends import HashMapStateBackend
from holdfast.job.compiler import compile_job
from holdfast.job.model import JobPlan, Settings
from holdfast.runtime.exchange import SUBTASK, ExchangeReader
from holdfast.runtime.operator_task import TaskIdentity
from holdfast.runtime.plan import EpochPlan
from holdfast.state.store.process import ProcessIdentity
from holdfast.types.columns.batches import BatchReader, BatchWriter
from holdfast.types.stream_type import StreamType
from tests.support.workers import Workers

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.config.backends import StateBackend
    from holdfast.runtime.plan import StagePlan
    from holdfast.runtime.report import TaskReport

SOURCE_TASKS = 2


class Program:
    """Stands where an environment stands: streams are built on it, epochs run through it."""

    def __init__(
        self,
        *,
        parallelism: int = 2,
        max_parallelism: int | None = None,
        backend: StateBackend | None = None,
        batch_mode: bool = False,
    ) -> None:
        self.graph = self._graph = JobGraph()
        self.settings = Settings(
            parallelism=parallelism,
            max_parallelism=max_parallelism,
            backend=backend or HashMapStateBackend(),
            batch_mode=batch_mode,
            job_parameters={"greeting": "hello"},
        )
        self.collected: list[tuple[DataStream, str | None, int | None]] = []

    def source(self, spec: Any = "k string, n bigint", name: str = "Source") -> DataStream:
        kind = StreamType.of(spec)
        node = self.graph.add(OperatorKind.SOURCE, (), kind, name=name)
        return DataStream(self, (Edge(node, None, kind),))

    def collect(self, stream: DataStream) -> list[Any]:
        """What `stream` carries, in a list that every epoch adds to."""
        elements: list[Any] = []
        sink = CollectSink(elements.extend)
        self.graph.add(
            OperatorKind.OUTPUT, stream._edges, stream.type, function=sink, name="Collect"
        )
        return elements

    def lookup(self, *args: Any) -> Any:
        raise AssertionError("tables are read on Spark")

    def execute_and_collect(
        self, stream: DataStream, job_name: str | None, limit: int | None
    ) -> str:
        self.collected.append((stream, job_name, limit))
        return "results"

    def compile(self) -> JobPlan:
        return compile_job(self.graph, self.settings)

    def start(self, directory: Path) -> Run:
        return Run(self.compile(), directory)


class Run:
    """A compiled program at work; its stores lie in `directory`."""

    def __init__(self, plan: JobPlan, directory: Path) -> None:
        self.plan = plan
        self.epoch = 0
        self.expected: dict[tuple[str, int], str] = {}
        self.reports: list[TaskReport] = []
        self.key_shapes: dict[str, str] = {}
        self._directory = directory
        self._attempts = itertools.count(100)
        self.workers = Workers()

    def push(self, *feeds: list[Any]) -> None:
        """Run one epoch over the given elements, a list for every source."""
        self.epoch += 1
        self.reports = []
        rows: list[pa.RecordBatch] = []
        for source, elements in zip(self.plan.sources, feeds, strict=True):
            writer = BatchWriter(source.node.output)
            middle = len(elements) // SOURCE_TASKS
            for subtask, part in enumerate((elements[:middle], elements[middle:])):
                rows += self._task(source.stage, subtask, [writer.batch(part)])
        for stage, tasks in zip(self.plan.stages, self.plan.stage_parallelism, strict=True):
            spread = shuffled(rows, tasks)
            rows = [row for i in range(tasks) for row in self._task(stage, i, spread[i])]
        self._deliver(rows)

    def state_versions(self) -> dict[tuple[str, int], str]:
        return dict(self.expected)

    def _task(
        self, stage: StagePlan, subtask: int, batches: list[pa.RecordBatch]
    ) -> list[pa.RecordBatch]:
        identity = TaskIdentity(subtask, 0, next(self._attempts))
        epoch = None if stage.index == 0 else self.epoch_plan()
        out, report = self.workers.run(stage, epoch, identity, batches, SystemClock())
        self.reports.append(report)
        for uid, store in report.stores.items():
            assert store.version is not None
            self.expected[uid, subtask] = store.version
        return out

    def epoch_plan(self) -> EpochPlan:
        return EpochPlan(
            job_id="program",
            job_attempt="1",
            epoch=self.epoch,
            local_dir=str(self._directory),
            owner=ProcessIdentity.current(),
            expected=self.expected,
            key_shapes=self.key_shapes,
        )

    def _deliver(self, rows: list[pa.RecordBatch]) -> None:
        exchange = self.plan.stages[-1].writes if self.plan.stages else self.plan.first_exchange
        parts = [part for batch in rows for part in ExchangeReader(exchange).unpack(batch)]
        for output in self.plan.outputs:
            reader = BatchReader(output.channel.type)
            batches = [batch for channel, batch in parts if channel.id == output.channel.id]
            elements = [element for batch in batches for element in reader.elements(batch)]
            for sink in output.sinks:
                sink.function.collector(elements)


def shuffled(rows: list[pa.RecordBatch], tasks: int) -> list[list[pa.RecordBatch]]:
    """The batches that each task receives, without the routing column.

    A cluster drops rows for subtasks that do not exist, so there must be none.
    """
    spread: list[list[pa.RecordBatch]] = [[] for _ in range(tasks)]
    for batch in rows:
        receivers = batch.column(SUBTASK)
        for subtask in sorted(set(receivers.to_pylist())):
            assert subtask in range(tasks), f"a row goes to subtask {subtask} of {tasks}"
            mine = batch.filter(pa.compute.equal(receivers, subtask))
            spread[subtask].append(mine.drop_columns([SUBTASK]))
    return spread
