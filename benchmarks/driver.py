"""`make bench-driver`: what the driver does for an epoch, as the number of subtasks grows.

The driver's own code runs in this process, without Spark: the order of an epoch, what
its tasks are told, their acknowledgements, statistics and time, the pending checkpoint and
its metadata, publishing, and removing the checkpoint before it. Where executors would stand,
reports and uploads are made up. The job has five keyed operators, each with a
stage of its own, and a sink, so that there are six tasks to a subtask; every epoch ends in
a checkpoint; every store has four files, of which one is new and one travels inline.

CPU time is the median over the epochs, garbage collection included. The ratio is that of
the time per subtask to the smallest job's: 1 means that work grows with the subtasks.
"""

from __future__ import annotations

import argparse
import itertools
import json
import pickle
import statistics
import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from pyspark import cloudpickle
from rich.console import Console
from rich.table import Table

from benchmarks.holdfast_run import SumAccount
from benchmarks.workloads import W3, ddl
from holdfast import Configuration, HashMapStateBackend
from holdfast.api.sinks import Committer, Sink
from holdfast.api.streams.data_stream import DataStream
from holdfast.api.streams.graph import Edge, JobGraph, OperatorKind
from holdfast.checkpoint.checkpointer import Checkpointer
from holdfast.checkpoint.commit.publisher import Publisher
from holdfast.checkpoint.commit.service import CommitService
from holdfast.checkpoint.files.fence import take_fence
from holdfast.checkpoint.pending import CheckpointBase
from holdfast.checkpoint.savepoint.requests import Savepoints
from holdfast.checkpoint.subtask_upload import Upload, Uploaded
from holdfast.config.checkpointing import checkpoint_settings
from holdfast.config.storage import FileSystemCheckpointStorage
from holdfast.job.compiler import compile_job
from holdfast.job.model import JobIdentity, Settings
from holdfast.job.statistics_keeper import StatisticsKeeper
from holdfast.runtime.report import (
    OperatorReport,
    Prepared,
    SnapshotReport,
    StoreReport,
    TaskReport,
)
from holdfast.spark.epoch_runner import EpochRunner
from holdfast.spark.serialization import dump_function
from holdfast.spark.sources.query_log import capture
from holdfast.storage.file_system import FileSystemFiles
from holdfast.storage.handles import FileHandle, inline
from holdfast.testing.clock import ManualClock
from holdfast.types.stream_type import StreamType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from holdfast.api.sinks import CommitRequest
    from holdfast.job.model import JobPlan
    from holdfast.runtime.plan import StagePlan

ROWS = ddl(W3.columns)
SUBTASKS = (10, 100, 1_000, 5_000)
OPERATORS = 5
EPOCHS = 5
SMALLEST_IN_ALL = 2_000
"""Subtasks of all measured epochs together that a small job has at least."""
INTERVAL_MS = 1_000
FILES = 4
"""Of a store: one of them is new in every checkpoint, and one is small."""
LATEST = Path(__file__).parent / "latest-driver.json"


class Nothing(Sink):
    """A sink whose writers never run here."""

    def create_writer(self, runtime: Any) -> Any:
        """Nobody asks for one."""
        raise NotImplementedError

    def create_committer(self, runtime: Any) -> Any:
        """What tidies up, and finds nothing."""
        return Tidy()


class Tidy(Committer):
    """A committer that has nothing to publish."""

    def commit(self, requests: Sequence[CommitRequest]) -> None:
        """Nobody calls it."""


def job(subtasks: int) -> JobPlan:
    """A job of keyed operators in a row, each on so many subtasks."""
    graph = JobGraph()
    kind = StreamType.of(ROWS)
    node = graph.add(OperatorKind.SOURCE, (), kind, name="Source")
    program: Any = SimpleNamespace(_graph=graph)
    stream = DataStream(program, (Edge(node, None, kind),))
    stream = stream.uid("source")
    for number in range(OPERATORS):
        stream = stream.key_by("key").process(SumAccount(), ROWS).uid(f"sums-{number}")
    stream.key_by("key").sink_to(Nothing()).uid("sink")
    settings = Settings(subtasks, 32_768, HashMapStateBackend(), False, {})
    return compile_job(graph, settings)


class Frame:
    """Stands for a DataFrame: knows what its tasks would be sent, and what they would report."""

    def __init__(self, act: Callable[[], None]) -> None:
        self.sent: list[bytes] = []
        self._act = act

    def mapInArrow(self, function: Any, _: Any) -> Frame:
        """Pickled, as PySpark does."""
        self.sent.append(cloudpickle.dumps(function))  # type: ignore[no-untyped-call]
        return self

    @property
    def _jdf(self) -> Frame:
        return self

    def queryExecution(self) -> Frame:
        """What leads to the action."""
        return self

    def toRdd(self) -> Frame:
        """What leads to the action."""
        return self

    def count(self) -> None:
        """The action."""
        self._act()

    def cleanShuffleDependencies(self, blocking: bool) -> None:
        """What ends an epoch; there are no files."""


class Reports:
    """Stands for an accumulator, on both sides."""

    value: list[TaskReport]

    def __reduce__(self) -> tuple[type[Reports], tuple[()]]:
        """Sent without what it holds."""
        return Reports, ()


class Cluster:
    """Stands for Spark and its executors; what they would say is made up beforehand."""

    local = True
    threads = 4

    def __init__(self, plan: JobPlan) -> None:
        self.sparkContext = self
        self.reports = Reports()
        self._plan = plan
        self._attempts = itertools.count(1)
        self._next: list[TaskReport] = []

    def pickle(self, function: object, what: str) -> bytes:
        """As workers get it."""
        return dump_function(function, what)

    # Spark

    def accumulator(self, *_: Any) -> Reports:
        """Of all reports."""
        return self.reports

    def setLocalProperty(self, *_: Any) -> None:
        """Nobody reads them."""

    def spread(self, rows: Frame, _: int) -> Frame:
        """Where rows go does not matter."""
        return rows

    def act(self) -> None:
        """Run the plan of an epoch."""
        self.reports.value = self._next

    # Executors

    def record_location(self, *_: Any) -> None:
        """Where subtasks run does not matter."""

    def cancel(self, _: str) -> None:
        """Nothing takes long."""

    def map(
        self, _: Any, items: Sequence[tuple[int, int, Any]], group: str
    ) -> Iterator[Uploaded | None]:
        """Uploads and publications."""
        for _, _, item in items:
            yield uploaded(item) if isinstance(item, Upload) else None

    def prepare(self, epoch: int, checkpoint: int) -> None:
        """Make up what the tasks of an epoch will report."""
        self._next = [
            self._report(stage, subtask, epoch, checkpoint)
            for stage, tasks in zip(self._plan.stages, self._plan.stage_parallelism, strict=True)
            for subtask in range(tasks)
        ]

    def _report(self, stage: StagePlan, subtask: int, epoch: int, checkpoint: int) -> TaskReport:
        attempt = next(self._attempts)
        state = ({"name": "sums", "kind": "value", "schema": []},)
        snapshot = SnapshotReport(
            f"/local/{checkpoint}/{subtask}-{attempt}",
            state,
            "long",
            1,
            files={"state-1.mdb": 1 << 20},
            has_operator_state=False,
        )
        uids = [
            operator.uid for operator in stage.operators if operator.kind is not OperatorKind.WRITER
        ]
        sinks = [
            operator.uid for operator in stage.operators if operator.kind is OperatorKind.WRITER
        ]
        return TaskReport(
            epoch=epoch,
            stage=stage.index,
            subtask=subtask,
            attempt_id=attempt,
            host="host",
            executor=f"host:{subtask % 64}",
            operators={uid: OperatorReport(100, 100) for uid in [*uids, *sinks]},
            stores={
                uid: StoreReport(f"{epoch}-{attempt}", 1_000, 1 << 20, snapshot) for uid in uids
            },
            prepared=tuple(Prepared(uid, b"part-00000.parquet") for uid in sinks),
        )


def uploaded(upload: Upload) -> Uploaded:
    """What an upload would give: files of the checkpoint before, one that is new, a small one."""
    name = f"shared/{upload.checkpoint_id}-{upload.uid}-{upload.subtask}"
    new = FileHandle(name, 50_000, "0" * 32)
    known = sorted(upload.known)[-(FILES - 2) :]
    files: dict[str, Any] = {
        **{one: upload.known[one] for one in known},
        f"{upload.checkpoint_id:06d}.sst": new,
        "CURRENT": inline(b"MANIFEST-000005\n"),
    }
    return Uploaded(upload, files, None, new.size, 10)


class Driver:
    """The driver of one job, which runs epochs that end in checkpoints."""

    def __init__(self, subtasks: int, directory: Path) -> None:
        """A driver that has completed a few checkpoints already."""
        plan = job(subtasks)
        self._plan = plan
        cluster: Any = Cluster(plan)
        self._cluster = cluster
        self._statistics = StatisticsKeeper(plan)
        identity = JobIdentity("job", "Job", None, "1-1")
        self._runner = EpochRunner(cluster, plan, identity, self._statistics, cluster)
        files = FileSystemFiles(str(directory / "checkpoints"))
        self._clock = ManualClock(10_000)
        self._commits = CommitService(Publisher(plan, cluster), files, exactly_once=True)
        configuration = Configuration()
        configuration.set("execution.checkpointing.interval", f"{INTERVAL_MS} ms")
        configuration.set("execution.checkpointing.incremental", True)
        settings = checkpoint_settings(configuration, FileSystemCheckpointStorage(files.root))
        assert settings is not None
        self.failures: list[Exception] = []
        self.checkpointer = Checkpointer(
            plan,
            replace(settings, asynchronous=False),
            files,
            take_fence(files),
            cluster,
            [],
            1,
            self.failures.append,
            self._commits,
            savepoints=Savepoints(HashMapStateBackend(), alone=False),
            clock=self._clock,
        )
        self._query = directory / "query"
        (self._query / "offsets").mkdir(parents=True)
        self._commits.begin(identity)
        captured = partial(capture, self._query, {"source": (0,)})
        self.checkpointer.begin_attempt(CheckpointBase(identity, None, frozenset(), captured))
        self._epoch = 0
        for _ in range(FILES):
            self.epoch()

    def prepare(self) -> None:
        """All that is not the driver's work: the epoch's reports, and Spark's offsets."""
        self._epoch += 1
        self._cluster.prepare(self._epoch, self._epoch)
        offsets = self._query / "offsets" / str(self._epoch - 1)
        offsets.write_text(f"v1\n{{}}\n{self._epoch * 10}")
        self._clock.advance(INTERVAL_MS)

    def work(self) -> list[bytes]:
        """The driver's work for an epoch and its checkpoint; what every stage is sent."""
        order = self.checkpointer.next_epoch(idle=False)
        assert order is not None
        assert order.checkpoint is not None
        frame: Any = Frame(self._cluster.act)
        result = self._runner.run(frame, order)
        self._commits.epoch_completed(result)
        self.checkpointer.epoch_completed(order, result, self._epoch - 1)
        self._statistics.snapshot("job", "Job", None)  # type: ignore[arg-type]
        self.checkpointer.statistics.snapshot()
        if self.failures:
            raise self.failures[0]
        sent: list[bytes] = frame.sent
        return sent

    def epoch(self) -> list[bytes]:
        """One epoch, all of it."""
        self.prepare()
        return self.work()


def measure(subtasks: int) -> dict[str, Any]:
    """Run a job of so many subtasks."""
    with tempfile.TemporaryDirectory(prefix="holdfast-driver-") as directory:
        driver = Driver(subtasks, Path(directory))
        seconds, sent = [], []
        for _ in range(max(EPOCHS, SMALLEST_IN_ALL // subtasks)):
            driver.prepare()
            begun = time.process_time()
            sent = driver.work()
            seconds.append(time.process_time() - begun)
    median = statistics.median(seconds)
    return {
        "workload": "driver",
        "subtasks": subtasks,
        "tasks": subtasks * (OPERATORS + 1),
        "epochs": len(seconds),
        "ms_per_epoch": round(median * 1e3, 2),
        "us_per_subtask": round(median * 1e6 / subtasks, 1),
        "bytes_per_task": round(sum(map(len, sent)) / len(sent)),
        "us_to_be_told": round(_told(sent[0], subtasks - 1), 1),
    }


def _told(sent: bytes, subtask: int) -> float:
    """Microseconds that a task takes to read what it is sent, up to the stage itself."""
    times = []
    for _ in range(50):
        begun = time.process_time_ns()
        function = pickle.loads(sent)
        if hasattr(function, "_assignments"):
            function._assignments.of_subtask(function._epoch, subtask)
        times.append((time.process_time_ns() - begun) / 1e3)
    return statistics.median(times)


def main() -> None:
    """Run all sizes, write the figures and show them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--subtasks", type=int, nargs="*", default=SUBTASKS)
    parser.add_argument("--output", type=Path, default=LATEST)
    arguments = parser.parse_args()
    results = []
    for subtasks in arguments.subtasks:
        results.append(measure(subtasks))
        Console(stderr=True).print(f"{subtasks:,} subtasks: done")
    first = results[0]["us_per_subtask"]
    for result in results:
        result["ratio_to_smallest"] = round(result["us_per_subtask"] / first, 2)
    arguments.output.write_text(json.dumps(results, indent=1) + "\n")
    _show(results)


def _show(results: list[dict[str, Any]]) -> None:
    table = Table(title="work of the driver for an epoch and its checkpoint")
    for column in (
        "subtasks",
        "tasks",
        "CPU time",
        "per subtask",
        "to the smallest",
        "sent to a task",
        "read in",
    ):
        table.add_column(column, justify="right")
    for result in results:
        table.add_row(
            f"{result['subtasks']:,}",
            f"{result['tasks']:,}",
            f"{result['ms_per_epoch']:,.0f} ms",
            f"{result['us_per_subtask']:,.0f} µs",
            f"{result['ratio_to_smallest']:.2f} x",
            f"{result['bytes_per_task']:,} B",
            f"{result['us_to_be_told']:,.0f} µs",
        )
    Console().print(table)


if __name__ == "__main__":
    main()
