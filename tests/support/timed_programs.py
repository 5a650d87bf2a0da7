"""Programs with event time and timers, run without Spark: the driver's own time keeper too."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from holdfast import (
    KeyedBroadcastProcessFunction,
    KeyedProcessFunction,
    MapStateDescriptor,
    ProcessFunction,
    WatermarkStrategy,
)
from holdfast.job.model import EpochOrder
from holdfast.job.timer_schedule import TimerSchedule
from holdfast.runtime.operator_task import TaskIdentity
from holdfast.runtime.plan import ORDER, TIME
from holdfast.testing.clock import ManualClock
from tests.support.programs import Program, Run
from tests.support.workers import Workers

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from holdfast.api.streams.data_stream import DataStream
    from holdfast.runtime.plan import EpochPlan, EpochTime, StagePlan

ROWS = "k string, t bigint"
STAMPED = "k string, t bigint, stamped bigint"
FIRED = "k string, t bigint, domain string"
RULES = MapStateDescriptor("rules", str, int)


def timed(
    stream: DataStream, bound: int | None = 0, uid: str = "time", idle: int | None = None
) -> DataStream:
    """A stream whose elements have their event time in the column `t`."""
    strategy = WatermarkStrategy(bound, "t", idle)
    return stream.assign_timestamps_and_watermarks(strategy).uid(uid)


class Stamps(ProcessFunction):
    """Adds their event time to elements of two columns."""

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield value[0], value[1], ctx.timestamp()


class Alarm(KeyedProcessFunction):
    """Sets a timer of either domain at the time that every element says."""

    def __init__(self, *domains: str) -> None:
        self.domains = domains or ("event",)

    def process_element(self, value: Any, ctx: Any) -> None:
        timers = ctx.timer_service()
        if "event" in self.domains:
            timers.register_event_time_timer(value.t)
        if "processing" in self.domains:
            timers.register_processing_time_timer(value.t)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        assert ctx.timestamp() == timestamp
        yield ctx.get_current_key(), timestamp, ctx.time_domain().value


class Ruled(KeyedBroadcastProcessFunction):
    """Notes the rules that it has been given, in their order, beside every element."""

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        rules = ctx.get_broadcast_state(RULES)
        yield value.k, ",".join(f"{k}{v}" for k, v in rules.items())

    def process_broadcast_element(self, value: Any, ctx: Any) -> None:
        rules = ctx.get_broadcast_state(RULES)
        rules.remove(value.k)
        rules.put(value.k, value.t)


class TimedRun(Run):
    """A compiled program at work, in which time passes as on a driver."""

    def __init__(self, program: Program, directory: Path) -> None:
        super().__init__(program.compile(), directory)
        self.clock = ManualClock()
        self.keeper = TimerSchedule(self.plan, ())
        self._time: EpochTime | None = None

    def restart(self) -> None:
        """Continue as after a recovery: with the same state and the same watermarks."""
        times = self.keeper.event_times()
        self.keeper = TimerSchedule(self.plan, set(self.expected), times)
        self.workers = Workers()

    def push(self, *feeds: list[Any], order: EpochOrder | None = None) -> None:
        """Run one epoch over the given elements, a list for every source."""
        self._run(feeds, order or EpochOrder(), read_at=self.clock.monotonic_ms())

    def _run(
        self, feeds: tuple[list[Any], ...], order: EpochOrder, read_at: int | None = None
    ) -> None:
        self._time = self.keeper.of_epoch(order, self.clock.now_ms())
        super().push(*feeds)
        self.keeper.ended(self.reports, read_at=read_at)

    def _run_without_input(self, order: EpochOrder) -> None:
        self._run(tuple([] for _ in self.plan.sources), order)

    def tick(self) -> None:
        """Run an epoch without input, in which event time advances."""
        self._run_without_input(EpochOrder())

    def tick_by_clock(self) -> None:
        """Run an epoch without input, if timers of the clock are due or it is not known."""
        if self.keeper.is_due(self.clock.now_ms()):
            self._run_without_input(EpochOrder(keeps_watermarks=True))

    def look(self) -> None:
        """Look for input, and find none."""
        self.keeper.found_nothing(self.clock.monotonic_ms())

    def finish(self) -> None:
        """Run the last epoch, without input."""
        self._run_without_input(EpochOrder(last=True))

    def checkpoint_only(self) -> None:
        """Run an epoch that processes nothing."""
        self._time = None
        super().push(*([] for _ in self.plan.sources))
        self.keeper.ended(self.reports)

    def is_due(self) -> bool:
        """Whether the driver would run a tick."""
        return self.keeper.is_due(self.clock.now_ms()) or self.keeper.is_event_time_due()

    def epoch_plan(self) -> EpochPlan:
        return replace(super().epoch_plan(), time=self._time)

    def _task(
        self, stage: StagePlan, subtask: int, batches: list[pa.RecordBatch]
    ) -> list[pa.RecordBatch]:
        identity = TaskIdentity(subtask, 0, next(self._attempts))
        epoch = None if stage.index == 0 else self.epoch_plan()
        if stage.index and self.plan.sorted_by[stage.index - 1]:
            batches = in_order(batches)
        out, report = self.workers.run(stage, epoch, identity, batches, self.clock)
        self.reports.append(report)
        for uid, store in report.stores.items():
            self.expected[uid, subtask] = store.version
        return out


def in_order(batches: list[pa.RecordBatch], size: int = 3) -> list[pa.RecordBatch]:
    """Rows in the order of their places, then those without, by event time; in small batches."""
    if not batches:
        return []
    table = pa.Table.from_batches(batches)
    nothing = [None] * table.num_rows
    places, times = (
        table.column(name).to_pylist() if name in table.schema.names else nothing
        for name in (ORDER, TIME)
    )
    keys = [
        (place is None, place or 0, time is None, time or 0)
        for place, time in zip(places, times, strict=True)
    ]
    indices = sorted(range(table.num_rows), key=keys.__getitem__)
    found: list[pa.RecordBatch] = table.take(indices).combine_chunks().to_batches(size)
    return found
