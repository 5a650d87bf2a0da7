"""What tests of time and of two-input operators share: input dropped by hand, and probes."""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark import cloudpickle

from holdfast import (
    Configuration,
    KeyedProcessFunction,
    MapStateDescriptor,
    RestartStrategies,
    StreamExecutionEnvironment,
    WatermarkStrategy,
)
from tests.support.recovery_jobs import BACKENDS, HASHMAP, Ledger, option

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from holdfast import JobClient

# Workers cannot import this module everywhere, and need its sources.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

RETAIN = {
    "externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
    "data-inline-threshold": "0 b",
}
WINDOW = 100
"""Milliseconds of event time that `Windows` adds up."""
SEEN = "what string, k string, at bigint, time bigint, watermark bigint"
ADDED = "k string, until bigint, total bigint, times bigint"


class Drop:
    """A directory into which a test drops files, of which a stream takes one in every epoch."""

    def __init__(self, spark: SparkSession, directory: Path, schema: str) -> None:
        self._spark = spark
        self._directory = directory
        self._schema = schema
        self._names = [column.split()[0] for column in schema.split(", ")]
        self._files = 0
        directory.mkdir(parents=True)

    def add(self, *rows: tuple[Any, ...]) -> Drop:
        """Add a file of rows; it appears as a whole."""
        lines = [json.dumps(dict(zip(self._names, row, strict=True))) for row in rows]
        hidden = self._directory / f".{self._files:05d}"
        hidden.write_text("\n".join(lines), encoding="utf-8")
        # Spark reads files in the order of their times, which may be the same otherwise.
        written = time.time() - 1000 + self._files
        os.utime(hidden, (written, written))
        hidden.rename(self._directory / f"{self._files:05d}.json")
        self._files += 1
        return self

    def stream(self, per_epoch: int = 1) -> DataFrame:
        reader = self._spark.readStream.schema(self._schema)
        return reader.option("maxFilesPerTrigger", per_epoch).json(str(self._directory))


def environment(
    spark: SparkSession,
    directory: Path | None = None,
    *,
    backend: str = HASHMAP,
    parallelism: int = 2,
    restarts: int = 3,
    settings: dict[str, Any] | None = None,
) -> StreamExecutionEnvironment:
    """An environment; with frequent checkpoints if there is a directory for them."""
    given: dict[str, Any] = {}
    if directory is not None:
        given = {"dir": str(directory), "interval": "10 ms", **(settings or {})}
    env = StreamExecutionEnvironment.get_execution_environment(
        spark, Configuration({option(key): value for key, value in given.items()})
    )
    env.set_parallelism(parallelism).set_state_backend(BACKENDS[backend])
    strategy = RestartStrategies.fixed_delay_restart(restarts, 0)
    return env.set_restart_strategy(strategy if restarts else RestartStrategies.no_restart())


class Probe(KeyedProcessFunction):
    """Gives out what it learns about every element, and about the timers that those ask for.

    An element has a key, `at`, and `timer`: the event time of a timer, or None.
    """

    def process_element(self, value: Any, ctx: Any) -> Iterator[tuple[Any, ...]]:
        timers = ctx.timer_service()
        if value.timer is not None:
            timers.register_event_time_timer(value.timer)
        yield "row", value.k, value.at, ctx.timestamp(), timers.current_watermark()

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[tuple[Any, ...]]:
        watermark = ctx.timer_service().current_watermark()
        yield "timer", ctx.get_current_key(), timestamp, ctx.timestamp(), watermark


class Moment(NamedTuple):
    """An element for `Probe`."""

    k: str
    at: int
    timer: int


def moment(i: int) -> Moment:
    """Elements in order, with a timer that fires some elements later."""
    return Moment(f"k{i % 5}", 10 * i, 10 * i + 35)


def start_probe(
    spark: SparkSession, directory: Path, from_savepoint: str | None = None
) -> tuple[JobClient, Ledger]:
    """Start a job with event time and timers; what it learns comes into the ledger."""
    env = environment(spark, directory)
    rows = env.from_generator(moment, rate=200, type_info=Moment).uid("source")
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("at")
    timed = rows.assign_timestamps_and_watermarks(strategy.with_idleness("1 min")).uid("time")
    ledger = Ledger()
    timed.key_by("k").process(Probe(), SEEN).uid("probe").foreach_batch(ledger)
    return env.execute_async("timed", from_savepoint=from_savepoint), ledger


class Windows(KeyedProcessFunction):
    """Adds up `i` over windows of event time, with a timer at the end of each.

    What it gives out does not depend on where epochs are cut, as long as no element is late:
    key and end of the window, the sum, and how often this window's timer has fired so far.
    A late element is given out as one with a negative sum.
    """

    def open(self, ctx: Any) -> None:
        self.sums = ctx.get_map_state(MapStateDescriptor("sums", int, int))
        self.fired = ctx.get_map_state(MapStateDescriptor("fired", int, int))

    def process_element(self, value: Any, ctx: Any) -> Iterator[tuple[Any, ...]]:
        timers = ctx.timer_service()
        until = window_end(ctx.timestamp())
        if ctx.timestamp() <= timers.current_watermark():
            yield value.k, until, -1, value.i
            return
        self.sums.put(until, (self.sums.get(until) or 0) + value.i)
        timers.register_event_time_timer(until - 1)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[tuple[Any, ...]]:
        until = timestamp + 1
        times = (self.fired.get(until) or 0) + 1
        self.fired.put(until, times)
        yield ctx.get_current_key(), until, self.sums.get(until), times


class Totals(KeyedProcessFunction):
    """Adds up windows of twice the length, from the results of `Windows`, with its own timers."""

    def open(self, ctx: Any) -> None:
        self.sums = ctx.get_map_state(MapStateDescriptor("sums", int, int))
        self.fired = ctx.get_map_state(MapStateDescriptor("fired", int, int))

    def process_element(self, value: Any, ctx: Any) -> None:
        until = -(-value.until // (2 * WINDOW)) * 2 * WINDOW
        assert ctx.timestamp() == value.until - 1
        assert ctx.timestamp() > ctx.timer_service().current_watermark(), "came late"
        self.sums.put(until, (self.sums.get(until) or 0) + value.total)
        ctx.timer_service().register_event_time_timer(until - 1)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[tuple[Any, ...]]:
        until = timestamp + 1
        times = (self.fired.get(until) or 0) + 1
        self.fired.put(until, times)
        yield ctx.get_current_key(), until, self.sums.get(until), times


def window_end(at: int, length: int = WINDOW) -> int:
    return (at // length + 1) * length


def windows(elements: Iterable[tuple[str, int, int]], length: int = WINDOW) -> list[Any]:
    """What `Windows`, or for twice the length `Totals`, gives out for elements (key, time, i)."""
    sums: Counter[tuple[str, int]] = Counter()
    for key, at, i in elements:
        sums[key, window_end(at, length)] += i
    return sorted((key, until, total, 1) for (key, until), total in sums.items())
