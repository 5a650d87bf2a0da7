"""`make bench-timers`: what timers cost, beside Spark's own `transformWithState`.

register     a million events, one for each of a million keys: each keeps a value and
             registers an event-time timer, a tenth of them for one moment, the others
             for long after it
fire         ten events move the watermark past that moment: from the appearance of
             their file until a row of every due timer is out
near-empty   epochs of one event that move the watermark by a second, over all timers
             that are left, beside the same in a job of 10,000 keys

Every run has a process of its own on two cores. It first runs the job of 10,000 keys
once without measuring it, and holds the rows that come out against those that should.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from rich.console import Console

from benchmarks import check, data
from benchmarks.figures import record, show
from benchmarks.harness import scratch, session, use_file_manager
from benchmarks.holdfast_run import BACKENDS
from benchmarks.processes import in_fresh_process
from holdfast import (
    Duration,
    KeyedProcessFunction,
    SparkSink,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
    WatermarkStrategy,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle

    from holdfast import RuntimeContext
    from holdfast.statistics import EpochStatistics

LATEST = Path(__file__).resolve().parent / "latest-timers.json"
QUICK = data.DATA_ROOT.parent / "benchmark-timers-quick.json"
SPARK = "transformWithState"
SYSTEMS = [(SPARK, "rocksdb"), *(("holdfast", backend) for backend in BACKENDS)]

KEYS, QUICK_KEYS, FEW_KEYS = 1_000_000, 50_000, 10_000
DUE_SHARE = 10
"""One timer in so many is due when the watermark moves."""
EPOCH = 200_000
NEAR_EMPTY, NEAR_EMPTY_COUNTED = 20, 15
PATIENCE_S = 60
"""Seconds that rows may take to come out once Spark has nothing left to do."""

START_MS = 1_700_000_000_000
DUE_MS = START_MS + 3_600_000
MOVED_MS = DUE_MS + 3_600_000
FAR_MS = START_MS + 10 * 365 * 86_400_000

EVENT = "key bigint, ts timestamp, at bigint, n bigint"
OUTPUT = "key bigint, n bigint"


class Inbox:
    """A directory that a stream reads, one file to an epoch."""

    def __init__(self, directory: Path, keys: int) -> None:
        """Nothing in it yet; `keys` is how many there are in all."""
        self._directory = directory
        self._keys = keys
        self._files = 0

    def put(self, keys: NDArray[np.int64], ts_ms: int) -> float:
        """Add one event for each of these keys; the time at which they could be read."""
        at = np.where(keys < self._keys // DUE_SHARE, DUE_MS, FAR_MS)
        ts = pa.array(np.full(len(keys), ts_ms)).cast(pa.timestamp("ms", tz="UTC"))
        path = self._directory / f"{self._files:05d}.parquet"
        hidden = path.with_name(f".{path.name}")
        pq.write_table(pa.table({"key": keys, "ts": ts, "at": at, "n": keys * 3}), hidden)
        # The file source reads files in the order of their modification times.
        os.utime(hidden, (START_MS // 1000 + self._files,) * 2)
        self._files += 1
        appeared = time.time()
        hidden.rename(path)
        return appeared


class Remind(KeyedProcessFunction):
    """Keeps a value, and emits it when its timer fires."""

    def open(self, ctx: RuntimeContext) -> None:
        """Get hold of the value."""
        self.n = ctx.get_state(ValueStateDescriptor("n", int))

    def process_element(self, value: Any, ctx: Any) -> None:
        """Keep the value and register the timer."""
        self.n.update(value.n)
        ctx.timer_service().register_event_time_timer(value.at)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[tuple[int, int | None]]:
        """Emit the value."""
        yield ctx.get_current_key(), self.n.value()


class RemindProcessor(StatefulProcessor):
    """The same in `transformWithState`."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Get hold of the value."""
        self._handle = handle
        self._n = handle.getValueState("n", "n bigint")
        self._row = Row("key", "n")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        """Keep the value and register the timer."""
        for row in rows:
            self._n.update((row.n,))
            self._handle.registerTimer(row.at)
        return iter(())

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Row]:
        """Emit the value."""
        value = self._n.get()
        yield self._row(key[0], None if value is None else value[0])


class Job(Protocol):
    """One system at work on the stream."""

    query: StreamingQuery

    def rows_out(self) -> tuple[int, float]:
        """Rows that have come out, and the time at which the last of them were out."""

    def stop(self) -> None:
        """End the job."""


class HoldfastJob:
    """The job on Holdfast, without checkpoints."""

    def __init__(self, events: DataFrame, backend: str, kept: Path | None) -> None:
        """Start it; rows are dropped, or kept as Parquet."""
        self._epoch_ended = 0.0
        env = StreamExecutionEnvironment.get_execution_environment(events.sparkSession)
        env.set_parallelism(2).set_state_backend(BACKENDS[backend])
        env.add_epoch_listener(self._note)
        strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_millis(0))
        stream = env.from_dataframe(events).uid("events")
        timed = stream.assign_timestamps_and_watermarks(strategy.with_timestamp_assigner("ts"))
        rows = timed.key_by("key").process(Remind(), output_type=OUTPUT).uid("remind")
        if kept is None:
            rows.sink_to(SparkSink("noop", mode="overwrite"))
        else:
            rows.sink_to(SparkSink("parquet", {"path": str(kept)}))
        self._client = env.execute_async("timers")
        self.query = self._client.query

    def _note(self, _: EpochStatistics) -> None:
        self._epoch_ended = time.time()

    def rows_out(self) -> tuple[int, float]:
        """See `Job`."""
        ended = self._epoch_ended
        return self._client.statistics().operators["remind"].records_out, ended

    def stop(self) -> None:
        """See `Job`."""
        self._client.cancel()


class SparkJob:
    """The job in `transformWithState`, in event time."""

    def __init__(self, events: DataFrame, checkpoint: Path, kept: Path | None) -> None:
        """Start it; rows are dropped, or kept as Parquet."""
        rows = (
            events.withWatermark("ts", "0 seconds")
            .groupBy("key")
            .transformWithState(
                statefulProcessor=RemindProcessor(),
                outputStructType=OUTPUT,
                outputMode="Update",
                timeMode="eventTime",
            )
            .observe("out", F.count(F.lit(1)).alias("rows"))
        )
        writer = rows.writeStream.outputMode("update")
        writer = writer.option("checkpointLocation", str(checkpoint))
        writer = writer.format("noop") if kept is None else writer.foreachBatch(_keep(kept))
        self.query = writer.start()

    def rows_out(self) -> tuple[int, float]:
        """See `Job`; a micro-batch has its rows out before Spark notes that it has ended."""
        rows, out_at = 0, 0.0
        for progress in self.query.recentProgress:
            if found := progress["observedMetrics"]["out"].rows:
                rows += found
                took = progress["durationMs"]
                spent = took["triggerExecution"] - took.get("commitOffsets", 0)
                out_at = datetime.fromisoformat(progress["timestamp"]).timestamp() + spent / 1000
        return rows, out_at

    def stop(self) -> None:
        """See `Job`."""
        self.query.stop()


def _keep(directory: Path) -> Callable[[DataFrame, int], None]:
    def keep(batch: DataFrame, _: int) -> None:
        batch.write.mode("append").parquet(str(directory))

    return keep


@dataclass(frozen=True)
class Figures:
    """What one job has shown."""

    keys: int
    register_s: float
    fire_s: float
    near_empty_s: float


def run(
    spark: SparkSession, system: str, backend: str, keys: int, directory: Path, *, keep: bool
) -> Figures:
    """One job from its first event to its last; its rows are dropped, or kept as Parquet."""
    events = directory / "events"
    events.mkdir(parents=True)
    inbox = Inbox(events, keys)
    shuffled = np.random.default_rng(7).permutation(keys)
    for number, first in enumerate(range(0, keys, EPOCH)):
        inbox.put(shuffled[first : first + EPOCH], START_MS + 1000 * number)
    stream = spark.readStream.schema(EVENT).option("maxFilesPerTrigger", 1)
    frame = stream.parquet(str(events))
    kept = directory / "kept" if keep else None
    job: Job
    if system == SPARK:
        job = SparkJob(frame, directory / "checkpoint", kept)
    else:
        job = HoldfastJob(frame, backend, kept)
    try:
        return _measured(job, inbox, keys)
    finally:
        job.stop()


def _measured(job: Job, inbox: Inbox, keys: int) -> Figures:
    _say(keys, "registering timers")
    job.query.processAllAvailable()
    register = sum(_epoch_seconds(job.query))
    _all_out(job, 0)
    _say(keys, "firing those that are due")
    appeared = inbox.put(np.arange(keys - 10, keys), MOVED_MS)
    job.query.processAllAvailable()
    fired_at = _all_out(job, keys // DUE_SHARE)
    _say(keys, "near-empty epochs")
    for number in range(NEAR_EMPTY):
        key = keys - 11 - number
        inbox.put(np.arange(key, key + 1), MOVED_MS + 1000 * (number + 1))
        job.query.processAllAvailable()
    near_empty = _epoch_seconds(job.query)[-NEAR_EMPTY_COUNTED:]
    _all_out(job, keys // DUE_SHARE)
    return Figures(keys, register, fired_at - appeared, statistics.median(near_empty))


def _say(keys: int, what: str) -> None:
    print(f"{keys:,} keys, {what}", flush=True)


def _epoch_seconds(query: StreamingQuery) -> list[float]:
    """Time of every micro-batch that had events."""
    return [
        progress["durationMs"]["triggerExecution"] / 1000
        for progress in query.recentProgress
        if progress["numInputRows"]
    ]


def _all_out(job: Job, wanted: int) -> float:
    """Wait until so many rows are out; the time at which they were."""
    deadline = time.monotonic() + PATIENCE_S
    while (out := job.rows_out())[0] < wanted:
        if time.monotonic() > deadline:
            raise check.WrongResultError(f"{out[0]} timers have fired where {wanted} were due")
        time.sleep(0.01)
    if out[0] > wanted:
        raise check.WrongResultError(f"{out[0]} timers have fired where only {wanted} were due")
    return out[1]


def check_rows(spark: SparkSession, system: str, backend: str, directory: Path) -> None:
    """Run the job of few keys and require that its rows are right."""
    run(spark, system, backend, FEW_KEYS, directory, keep=True)
    kept = ds.dataset(directory / "kept", format="parquet").to_table(columns=["key", "n"])
    actual = sorted(zip(*kept.to_pydict().values(), strict=True))
    wanted = [(key, key * 3) for key in range(FEW_KEYS // DUE_SHARE)]
    check.require_equal(f"{system} ({backend}) with timers", actual, wanted)


def measure(system: str, backend: str, keys: int) -> list[Figures]:
    """The job of few keys and that of many, in this process."""
    # Spark's state stores write for a while after their query: its session ends first.
    with scratch() as directory:
        spark = session()
        use_file_manager(spark, fast=True)
        try:
            check_rows(spark, system, backend, directory / "checked")
            few = run(spark, system, backend, FEW_KEYS, directory / "few", keep=False)
            return [few, run(spark, system, backend, keys, directory / "many", keep=False)]
        finally:
            spark.stop()


def results(keys: int, rounds: int, say: Console) -> list[dict[str, Any]]:
    """Every system measured, as rows; each median and its ratio to Spark's own."""
    medians: dict[tuple[str, str], list[Figures]] = {}
    for system, backend in SYSTEMS:
        runs = []
        for number in range(1 if system == SPARK else rounds):
            arguments, who = [system, backend, str(keys)], f"{system} ({backend})"
            found = in_fresh_process("benchmarks.timers", arguments, who, say)
            runs.append([Figures(**figures) for figures in found])
            few, many = runs[-1]
            say.print(
                f"{system} ({backend}), run {number + 1}: {keys / many.register_s:,.0f} events/s, "
                f"{keys // DUE_SHARE / many.fire_s:,.0f} timers/s, near-empty epoch "
                f"{many.near_empty_s * 1000:,.0f} ms ({few.near_empty_s * 1000:,.0f} ms with "
                f"{FEW_KEYS:,} keys)"
            )
        medians[system, backend] = [_median(same) for same in zip(*runs, strict=True)]
    peer = medians[SYSTEMS[0]][1]
    rows = [_rows(*names, few, many, peer) for names, (few, many) in medians.items()]
    return [row for kind in zip(*rows, strict=True) for row in kind]


def _median(runs: tuple[Figures, ...]) -> Figures:
    columns = zip(*(asdict(figures).values() for figures in runs), strict=True)
    keys, *seconds = (statistics.median(column) for column in columns)
    return Figures(int(keys), *seconds)


def _rows(
    system: str, backend: str, few: Figures, many: Figures, peer: Figures
) -> list[dict[str, Any]]:
    """A row for each of the three measurements."""
    keys, due = many.keys, many.keys // DUE_SHARE
    who = {"system": system, "backend": backend, "keys": keys}
    ratio = "ratio_to_transform_with_state"
    return [
        {
            "workload": "timers-register",
            **who,
            "events_per_s": round(keys / many.register_s),
            ratio: round(peer.register_s / many.register_s, 2),
        },
        {
            "workload": "timers-fire",
            **who,
            "fired": due,
            "ms": round(many.fire_s * 1000),
            "timers_per_s": round(due / many.fire_s),
            ratio: round(peer.fire_s / many.fire_s, 2),
        },
        {
            "workload": "timers-near-empty",
            **who,
            "pending": keys - due,
            "ms": round(many.near_empty_s * 1000),
            f"ms_with_{few.keys}_keys": round(few.near_empty_s * 1000),
            "growth": round(many.near_empty_s / few.near_empty_s, 2),
            "time_to_transform_with_state": round(many.near_empty_s / peer.near_empty_s, 2),
        },
    ]


def main() -> None:
    """Measure, print tables, and write the figures down."""
    parser = argparse.ArgumentParser(prog="make bench-timers", description=__doc__)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_KEYS:,} keys, no repeats")
    parser.add_argument("--rounds", type=int, default=3, help="of Holdfast; Spark's own runs once")
    parser.add_argument("--output", type=Path, help="where the figures go as JSON")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        system, backend, keys = arguments.one
        print(json.dumps([asdict(figures) for figures in measure(system, backend, int(keys))]))
        return
    say = Console() if sys.stdout.isatty() else Console(width=140)
    if os.getloadavg()[0] > 1:
        say.print(f"This machine is busy (load {os.getloadavg()[0]:.1f}): rates will be too low.")
    keys, rounds = (QUICK_KEYS, 1) if arguments.quick else (KEYS, arguments.rounds)
    output = arguments.output or (QUICK if arguments.quick else LATEST)
    output.parent.mkdir(parents=True, exist_ok=True)
    show(record(results(keys, rounds, say), output), say)
    say.print(f"Written to {output}.")


if __name__ == "__main__":
    main()
