"""Running one epoch: a chain of levels over the rows that came in, as one action."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame

from holdfast.clock import monotonic
from holdfast.errors import JobExecutionError, StoreVersionError
from holdfast.runtime.plan import EpochPlan
from holdfast.runtime.wire import wire_schema
from holdfast.spark.outputs import Outputs
from holdfast.spark.pinning import Pinning
from holdfast.spark.routing import routable, routed
from holdfast.spark.serialization import dump_level
from holdfast.spark.statistics import EpochStatistics, StatisticsKeeper
from holdfast.spark.task import LevelFunction, ReportsParam
from holdfast.spark.types import refuse_collated_keys, spark_schema
from holdfast.state.machine import ProcessIdentity

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from holdfast.runtime.report import TaskReport
    from holdfast.spark.compiler import JobPlan, SourcePlan


@dataclass(frozen=True)
class JobIdentity:
    """Which job this is, and where its local state lives."""

    job_id: str
    name: str
    local_dir: str | None
    incarnation: str = "1"


class EpochRunner:
    """Runs a job's epochs, one after the other."""

    def __init__(self, spark: SparkSession, plan: JobPlan, job: JobIdentity) -> None:
        """Prepare what all epochs share; functions are pickled here, once."""
        self._spark = spark
        self._plan = plan
        self._job = job
        self._epoch = 0
        self._owner = ProcessIdentity.current()
        self._expected: dict[tuple[str, int], str] = {}
        self._levels = [dump_level(level) for level in plan.levels]
        self._source_levels = {source.uid: dump_level(source.level) for source in plan.sources}
        self._schemas = [spark_schema(wire_schema(level.writes)) for level in plan.levels]
        self._reports = spark.sparkContext.accumulator([], ReportsParam())
        self._pinning = Pinning(spark)
        last_wire = plan.levels[-1].writes if plan.levels else plan.first_wire
        self._outputs = Outputs(plan.outputs, last_wire)
        self.statistics = StatisticsKeeper(plan)
        self._warned: set[str] = set()
        self._warnings: list[str] = []

    def start(self) -> None:
        """Pin the subtasks."""
        self._pinning.anchor(self._plan.level_parallelism)

    def first_rows(self, frames: list[DataFrame]) -> DataFrame:
        """All sources' rows on the first wire; stateless steps at the sources included."""
        rows = [self._on_wire(s, f) for s, f in zip(self._plan.sources, frames, strict=True)]
        return reduce(DataFrame.unionByName, rows)

    def _on_wire(self, source: SourcePlan, frame: DataFrame) -> DataFrame:
        wire = self._plan.first_wire
        for channel in source.channels:
            refuse_collated_keys(frame.schema, channel.partitioning.columns)
        if source.direct and all(routable(frame, channel) for channel in source.channels):
            return routed(frame, source.channels, wire)
        function = LevelFunction(self._source_levels[source.uid], None, self._reports)
        return frame.mapInArrow(function, spark_schema(wire_schema(wire)))

    def rows(self, batch: DataFrame) -> DataFrame:
        """The plan of the next epoch over `batch`; it may run once only."""
        epoch = EpochPlan(
            job_id=self._job.job_id,
            incarnation=self._job.incarnation,
            epoch=self._epoch + 1,
            local_dir=self._job.local_dir,
            owner=self._owner,
            expected=self._expected,
        )
        rows = batch
        for level, tasks, schema in zip(
            self._levels, self._plan.level_parallelism, self._schemas, strict=True
        ):
            function = LevelFunction(level, epoch, self._reports)
            rows = self._pinning.spread(rows, tasks).mapInArrow(function, schema)
        return rows

    def run(self, batch: DataFrame) -> EpochStatistics:
        """Run one epoch over `batch`, deliver its output and check every acknowledgement."""
        start = monotonic()
        rows = self.rows(batch)
        self._epoch += 1
        self._describe()
        self._reports.value = []
        self._outputs.emit(rows, self._epoch)
        reports = list(self._reports.value)
        self._acknowledge(reports)
        duration = int((monotonic() - start) * 1000)
        return self.statistics.add(self._epoch, duration, reports)

    def take_warnings(self) -> list[str]:
        """What tasks have warned of since this was last asked, each thing once per job."""
        taken, self._warnings = self._warnings, []
        return list(dict.fromkeys(taken))

    def close(self) -> None:
        """Release what the job holds in Spark."""
        self._pinning.close()

    def _describe(self) -> None:
        """Name the epoch's stages, for Spark's UI."""
        names = [source.node.name for source in self._plan.sources]
        names += [operator.name for level in self._plan.levels for operator in level.operators]
        text = f"{self._job.name}, epoch {self._epoch}: {' | '.join(dict.fromkeys(names))}"
        context = self._spark.sparkContext
        context.setLocalProperty("callSite.short", text)
        context.setLocalProperty("spark.job.description", text)

    def _acknowledge(self, reports: list[TaskReport]) -> None:
        """Note where every store stands; refuse an epoch some subtask ran never or twice."""
        for level, tasks in zip(self._plan.levels, self._plan.level_parallelism, strict=True):
            acks = [r for r in reports if r.level == level.index and r.epoch == self._epoch]
            seen = sorted(report.subtask for report in acks)
            if seen != list(range(tasks)):
                raise self._broken(level.index, seen, tasks)
            for report in acks:
                for uid, store in report.stores.items():
                    if store.version is not None:
                        self._expected[uid, report.subtask] = store.version
        for report in reports:
            self._warnings += [w for w in report.warnings if w not in self._warned]
            self._warned.update(report.warnings)

    def _broken(self, level: int, seen: list[int], tasks: int) -> Exception:
        twice = sorted({s for s in seen if seen.count(s) > 1})
        never = sorted(set(range(tasks)) - set(seen))
        kind = StoreVersionError if twice else JobExecutionError
        return kind(
            f"epoch {self._epoch} of job {self._job.name!r} is broken: of the {tasks} subtasks of "
            f"level {level}, {never or 'none'} never reached the end of their input and "
            f"{twice or 'none'} ran twice; its state can no longer be trusted (driver "
            f"{socket.gethostname()})"
        )
