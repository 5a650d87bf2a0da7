"""Runs one epoch: a chain of stages over the new rows, as one Spark action."""

from __future__ import annotations

import logging
import math
import socket
from collections import Counter, defaultdict
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame

from holdfast.clock import SystemClock
from holdfast.errors import JobExecutionError, StoreVersionError
from holdfast.job.key_agreement import KeyAgreement
from holdfast.job.model import Delivery, EpochOrder, EpochResult, JobIdentity, StartingPoint
from holdfast.job.timer_schedule import TimerSchedule
from holdfast.runtime.assignments import assign
from holdfast.runtime.exchange import exchange_schema
from holdfast.runtime.plan import EpochPlan
from holdfast.spark.lookups import LookupTables
from holdfast.spark.outputs import Outputs, run_only
from holdfast.spark.placement.routing import in_order, routable, routed, time_readable
from holdfast.spark.serialization import StageShipping
from holdfast.spark.sources.gates import Gates
from holdfast.spark.task import ReportsParam, StageFunction
from holdfast.spark.types import refuse_collated_keys, spark_schema
from holdfast.spark.versions import accumulators_by_id
from holdfast.state.store.process import ProcessIdentity

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from holdfast.job.model import JobPlan, SourcePlan
    from holdfast.job.statistics_keeper import StatisticsKeeper
    from holdfast.runtime.report import TaskReport
    from holdfast.spark.placement.pinning import Pinning


logger = logging.getLogger("holdfast")

LONG_WAIT_MS = 60_000
"""Time without progress after which a warning names the source that others wait for."""
WARNED = math.inf
"""Stands for the time of a wait that was warned of."""


class EpochRunner:
    """Runs the epochs of one job attempt, one after the other."""

    def __init__(
        self,
        spark: SparkSession,
        plan: JobPlan,
        job: JobIdentity,
        statistics: StatisticsKeeper,
        pinning: Pinning,
        start: StartingPoint | None = None,
        delivery: Delivery | None = None,
        interval_ms: int = 0,
        gates: Gates | None = None,
    ) -> None:
        """Prepare the stages; functions are pickled here, once."""
        self._delivery = delivery or Delivery()
        self._spark = spark
        self._plan = plan
        self._job = job
        start = start or StartingPoint()
        self.epoch = start.epoch
        """Number of the last epoch that was started."""
        self.channel_rows = start.channel_rows
        """Channel state of the epochs so far."""
        self._restored = start.checkpoint
        self._owner = ProcessIdentity.current(job.run)
        self._clock = SystemClock()
        self._expected = dict(start.expected)
        self._shipping = StageShipping(spark.sparkContext, job, self._owner)
        self._stages = [self._shipping.ship(stage) for stage in plan.stages]
        self._source_stages = {
            source.uid: self._shipping.ship(source.stage) for source in plan.sources
        }
        self._schemas = [spark_schema(exchange_schema(stage.writes)) for stage in plan.stages]
        self._reports = spark.sparkContext.accumulator([], ReportsParam())
        restored = {store for store in start.expected if store[0] in start.with_timers}
        self._time = TimerSchedule(plan, restored, start.event_times)
        self._interval_ms = interval_ms
        self._gates = gates or Gates()
        self.paused_sources: frozenset[str] = frozenset()
        """Uids of the sources that must wait."""
        self._awaited: dict[str, tuple[int, float]] = {}
        """Watermark of every source that others wait for, and when it last advanced."""
        self._tables = LookupTables(spark, plan.lookups)
        self._keys = KeyAgreement(plan, start.key_shapes)
        self._pinning = pinning
        last_exchange = plan.stages[-1].writes if plan.stages else plan.first_exchange
        self._outputs = Outputs(plan.outputs, last_exchange)
        self._statistics = statistics
        self._warned: set[str] = set()
        self._warnings: list[str] = []
        self.align()

    def align(self) -> None:
        """Pause the sources that are too far ahead of others, and let the others read."""
        if not self._gates:
            return
        ended = self._gates.ended()
        paused = self._time.pause_ahead(ended)
        self.paused_sources = paused
        self._statistics.paused_sources = tuple(sorted(paused))
        self._gates.close_only(paused)
        self._warn_of_long_waits(paused, self._time.awaited(ended))

    def _warn_of_long_waits(self, paused: frozenset[str], awaited: dict[str, int]) -> None:
        now = self._clock.monotonic_ms()
        before, self._awaited = self._awaited, {}
        for uid, watermark in awaited.items():
            known, since = before.get(uid, (watermark, now))
            if known != watermark:
                since = now
            if now - since > LONG_WAIT_MS:
                logger.warning(
                    "job %r: for %d s %s waited for the source %s, whose event time does not "
                    "advance; if it may have no rows for long, add with_idleness to its strategy",
                    self._job.name,
                    LONG_WAIT_MS / 1000,
                    ", ".join(sorted(paused)),
                    uid,
                )
                since = WARNED
            self._awaited[uid] = watermark, since

    def sources_that_wait(self) -> frozenset[str]:
        """Uids of the sources that were told to wait when the query last asked them."""
        return self._gates.refused()

    def let_all_read(self) -> None:
        """Let all sources read on, however far ahead they are."""
        self._gates.reset()

    def first_rows(self, frames: list[DataFrame]) -> DataFrame:
        """The rows of all sources on the first exchange, after the operators at the sources."""
        rows = [self._on_exchange(s, f) for s, f in zip(self._plan.sources, frames, strict=True)]
        return reduce(DataFrame.unionByName, rows)

    def _on_exchange(self, source: SourcePlan, frame: DataFrame) -> DataFrame:
        exchange = self._plan.first_exchange
        for channel in source.channels:
            refuse_collated_keys(frame.schema, channel.partitioning.columns)
        if (
            source.direct
            and all(routable(frame, channel) for channel in source.channels)
            and time_readable(frame, source.time_column)
        ):
            return routed(frame, source.channels, exchange, source.time_column)
        function = StageFunction(self._source_stages[source.uid], self._reports)
        return frame.mapInArrow(function, spark_schema(exchange_schema(exchange)))

    def _no_rows(self) -> DataFrame:
        schema = spark_schema(exchange_schema(self._plan.first_exchange))
        return self._spark.createDataFrame([], schema)

    def rows(self, batch: DataFrame, order: EpochOrder | None = None) -> DataFrame:
        """The plan of the next epoch over `batch`; it may run only once."""
        order = order or EpochOrder()
        channel_state = () if order.idle else self.channel_rows
        time = None
        if not order.idle:
            now = self._clock.now_ms()
            time = self._time.of_epoch(order, now, channel_state=bool(channel_state))
        due: frozenset[tuple[str, int]] = frozenset() if time is None else time.due
        epoch = EpochPlan(
            job_id=self._job.job_id,
            job_attempt=self._job.job_attempt,
            epoch=self.epoch + 1,
            local_dir=self._job.local_dir,
            owner=self._owner,
            checkpoint=order.checkpoint,
            next_checkpoint=order.next_checkpoint,
            restored=self._restored,
            completed=order.completed,
            aborted=order.aborted,
            kept_snapshots=order.kept_snapshots,
            exactly_once=self._delivery.exactly_once,
            staging=(order.staging or self._delivery.staging) if self._keeps_rows(order) else None,
            cut_at=order.cut_at,
            cut_within_ms=order.cut_within_ms,
            least_work_ms=order.least_work_ms,
            time=time and replace(time, due=frozenset()),
            tables={} if order.idle else self._tables.copies(self._clock.monotonic_ms()),
            key_shapes=self._keys.shapes,
        )
        rows = batch
        for number, stage in enumerate(self._plan.stages):
            tasks = self._plan.stage_parallelism[number]
            assigned = assign(stage, tasks, self._expected, order.held, due, channel_state)
            function = StageFunction(self._stages[number], self._reports, epoch, assigned)
            spread = self._pinning.spread(rows, tasks)
            spread = in_order(spread, self._plan.sorted_by[number], stage.reads)
            rows = spread.mapInArrow(function, self._schemas[number])
        return rows

    def has_timers_due(self, *, event_time: bool) -> bool:
        """Whether an epoch without input would or could fire timers.

        Args:
            event_time: Ask for timers that wait for watermarks to advance; otherwise for those
                that fire although no watermark advances.
        """
        if self.channel_rows:
            return False
        if event_time:
            return self._time.is_event_time_due()
        return self._time.is_due(self._clock.now_ms())

    @property
    def can_be_idle(self) -> bool:
        """Whether any source becomes idle when it is silent."""
        return self._time.can_be_idle

    def found_nothing(self) -> None:
        """Note that the query has looked for input, and no source had any."""
        # It looks once in every interval.
        self._time.found_nothing(self._clock.monotonic_ms(), self._interval_ms)

    def watermarks(self) -> dict[str, int]:
        """Watermarks of operators and time sources, by uid."""
        return self._time.watermarks()

    @property
    def has_pending_timers(self) -> bool:
        """Whether any timer is pending, or could be."""
        return self._time.has_pending_timers

    def _keeps_rows(self, order: EpochOrder) -> bool:
        """Whether tasks write or read channel state; otherwise they open no storage."""
        return self._delivery.exactly_once or order.cut_at is not None or bool(self.channel_rows)

    def run(self, batch: DataFrame | None, order: EpochOrder | None = None) -> EpochResult:
        """Run one epoch over `batch`, deliver its output and check every acknowledgement.

        An epoch without a batch has no input but the channel state of earlier ones.
        """
        started = self._clock.monotonic_ms()
        order = order or EpochOrder()
        rows = self.rows(self._no_rows() if batch is None else batch, order)
        self.epoch += 1
        self._describe()
        self._reports.value = []
        if order.idle:
            run_only(rows)
        else:
            self._outputs.emit(rows, self.epoch)
        reports = list(self._reports.value)
        self._acknowledge(reports)
        if not order.idle:
            self.channel_rows = tuple(left for report in reports for left in report.channel_state)
        read_at = None if batch is None else started
        self._time.ended(reports, read_at=read_at, channel_state=bool(self.channel_rows))
        self.align()
        duration = self._clock.monotonic_ms() - started
        statistics = self._statistics.add(self.epoch, duration, reports, self.watermarks())
        return EpochResult(statistics, reports, self.channel_rows, self._time.event_times())

    def close(self) -> None:
        """Release the resources of the epochs; no other follows."""
        # The gates belong to the next job attempt, should an epoch of this one still run.
        self._gates = Gates()
        # pyspark would keep it forever. Late reports are dropped.
        accumulators_by_id.pop(self._reports.aid, None)
        self._reports.value = []
        self._tables.close()
        self._shipping.close()

    def take_warnings(self) -> list[str]:
        """New warnings of tasks, each once per job."""
        taken, self._warnings = self._warnings, []
        return list(dict.fromkeys(taken))

    def _describe(self) -> None:
        """Name the epoch's stages, for Spark's UI."""
        names = [source.node.name for source in self._plan.sources]
        names += [operator.name for stage in self._plan.stages for operator in stage.operators]
        text = f"{self._job.name}, epoch {self.epoch}: {' | '.join(dict.fromkeys(names))}"
        context = self._spark.sparkContext
        context.setLocalProperty("callSite.short", text)
        context.setLocalProperty("spark.job.description", text)

    def _acknowledge(self, reports: list[TaskReport]) -> None:
        """Record the version of every store.

        Refuse an epoch that a subtask did not run or ran twice, or with keys of another type.
        """
        by_stage: dict[int, list[TaskReport]] = defaultdict(list)
        for report in reports:
            if report.epoch == self.epoch:
                by_stage[report.stage].append(report)
        for stage, tasks in zip(self._plan.stages, self._plan.stage_parallelism, strict=True):
            acks = by_stage[stage.index]
            seen = sorted(report.subtask for report in acks)
            if seen != list(range(tasks)):
                raise self._broken(stage.index, seen, tasks)
            for report in acks:
                for uid, store in report.stores.items():
                    self._expected[uid, report.subtask] = store.version
        self._keys.check(self.epoch, (r for r in reports if r.epoch == self.epoch))
        for report in reports:
            self._warnings += [w for w in report.warnings if w not in self._warned]
            self._warned.update(report.warnings)

    def _broken(self, stage: int, seen: list[int], tasks: int) -> Exception:
        twice = sorted(subtask for subtask, times in Counter(seen).items() if times > 1)
        never = sorted(set(range(tasks)) - set(seen))
        kind = StoreVersionError if twice else JobExecutionError
        return kind(
            f"epoch {self.epoch} of job {self._job.name!r} is broken: of the {tasks} subtasks of "
            f"stage {stage}, {never or 'none'} never reached the end of their input and "
            f"{twice or 'none'} ran twice; its state can no longer be trusted (driver "
            f"{socket.gethostname()})"
        )
