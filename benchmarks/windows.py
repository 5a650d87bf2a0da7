"""`make bench-windows`: counts in one-minute windows, beside what Spark offers for them.

Sixty events for each of 100,000 keys, in random order of keys, over ten minutes of event
time and up to four seconds out of order, in twelve epochs of 500,000. Two small files
follow, an hour later in event time: the second finds the watermark past all windows, so
that every one of them fires within an epoch that is timed. A row of key, window and count
comes out for each key and minute.

    aggregate            Spark's own windowed aggregation, which runs no Python
    transformWithState   counts in map state and a timer at the end of every window; slow,
                         so it runs the first two of the twelve epochs only
    holdfast             key_by, window, count

Every run has a process of its own on two cores. It first runs the job with 2,000 keys
once without measuring it, and holds the rows that come out against those of numpy.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from rich.console import Console

from benchmarks import check, data
from benchmarks.figures import record, show
from benchmarks.harness import epoch_seconds, scratch, session, use_file_manager
from benchmarks.holdfast_run import BACKENDS
from benchmarks.processes import in_fresh_process
from holdfast import Duration, SparkSink, StreamExecutionEnvironment, WatermarkStrategy
from holdfast.windows import TumblingEventTimeWindows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle

LATEST = Path(__file__).resolve().parent / "latest-windows.json"
QUICK = data.DATA_ROOT.parent / "benchmark-windows-quick.json"
NATIVE, ROW_API = "aggregate", "transformWithState"
SYSTEMS = [
    (NATIVE, "rocksdb"),
    (ROW_API, "rocksdb"),
    *(("holdfast", backend) for backend in BACKENDS),
]

KEYS, QUICK_KEYS, CHECKED_KEYS = 100_000, 5_000, 2_000
EVENTS_PER_KEY = 60
EPOCHS, ROW_API_EPOCHS = 12, 2

MINUTE_MS = 60_000
START_MS = 1_699_999_980_000
"""A full minute."""
SPAN_MS = 10 * MINUTE_MS
DISORDER_MS = 4_000
BOUND = "5 seconds"
CLOSING_MS = START_MS + SPAN_MS + 60 * MINUTE_MS

EVENT = "key bigint, ts timestamp"
OUTPUT = "key bigint, start bigint, n bigint"


@dataclass(frozen=True)
class Events:
    """A stream's events, in the order in which they come."""

    keys: NDArray[np.int64]
    times_ms: NDArray[np.int64]

    @staticmethod
    def of(keys: int, epochs: int = EPOCHS) -> Events:
        """The first epochs of the stream over so many keys."""
        random = np.random.default_rng(7)
        count = keys * EVENTS_PER_KEY
        chosen = random.integers(0, keys, count)
        late = random.integers(0, DISORDER_MS + 1, count)
        times = np.maximum(START_MS + np.arange(count) * SPAN_MS // count - late, START_MS)
        first = count * epochs // EPOCHS
        return Events(chosen[:first], times[:first])

    def put(self, directory: Path, epochs: int) -> None:
        """Write a file for each epoch, and the two that follow."""
        directory.mkdir(parents=True)
        parts = zip(np.split(self.keys, epochs), np.split(self.times_ms, epochs), strict=True)
        for number, (keys, times) in enumerate(parts):
            _write(directory, number, keys, times)
        for number in range(2):
            time = np.array([CLOSING_MS + 1000 * number])
            _write(directory, epochs + number, np.array([0]), time)

    def rows(self) -> list[tuple[int, int, int]]:
        """Key, beginning and count of every window, sorted."""
        starts = self.times_ms - self.times_ms % MINUTE_MS
        windows, counts = np.unique(
            np.stack([self.keys, starts], axis=1), axis=0, return_counts=True
        )
        return list(zip(*windows.T.tolist(), counts.tolist(), strict=True))

    def row_count(self) -> int:
        """How many windows there are."""
        minutes = (self.times_ms - START_MS) // MINUTE_MS
        return len(np.unique(self.keys * (SPAN_MS // MINUTE_MS) + minutes))


def _write(
    directory: Path, number: int, keys: NDArray[np.int64], times_ms: NDArray[np.int64]
) -> None:
    """One epoch; two tasks may read it, each one half of the keys."""
    times = pa.array(times_ms * 1000).cast(pa.timestamp("us", tz="UTC"))
    table = pa.table({"key": keys, "ts": times})
    path = directory / f"{number:05d}.parquet"
    with pq.ParquetWriter(path, table.schema) as writer:
        for odd in range(2):
            half = table.filter(pa.array(keys % 2 == odd))
            writer.write_table(half, row_group_size=max(1, half.num_rows))
    # The file source reads files in the order of their modification times.
    os.utime(path, (START_MS // 1000 + number,) * 2)


class CountProcessor(StatefulProcessor):
    """Windowed counts in `transformWithState`."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Get hold of the counts, by the beginnings of windows."""
        self._handle = handle
        self._counts = handle.getMapState("counts", "start bigint", "n bigint")
        self._row = Row("key", "start", "n")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        """Add the events of one key; each window is read once and written once."""
        for start, count in Counter(row.start for row in rows).items():
            before = self._counts.getValue((start,))
            if before is None:
                self._handle.registerTimer(start + MINUTE_MS)
            self._counts.updateValue((start,), (count if before is None else count + before[0],))
        return iter(())

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Row]:
        """Emit the count of the window that has ended."""
        start = expiredTimerInfo.getExpiryTimeInMs() - MINUTE_MS
        count = self._counts.getValue((start,))
        yield self._row(key[0], start, None if count is None else count[0])
        self._counts.removeKey((start,))


def _aggregate(events: DataFrame) -> DataFrame:
    counts = events.groupBy(F.window("ts", "1 minute"), "key").count()
    return counts.select(
        "key", F.unix_millis("window.start").alias("start"), F.col("count").alias("n")
    )


def _transform_with_state(events: DataFrame) -> DataFrame:
    # The beginning of the window is found in the JVM: less work for Python.
    start = F.expr(f"unix_millis(ts) div {MINUTE_MS} * {MINUTE_MS}").alias("start")
    return (
        events.select("key", "ts", start)
        .groupBy("key")
        .transformWithState(
            statefulProcessor=CountProcessor(),
            outputStructType=OUTPUT,
            outputMode="Append",
            timeMode="eventTime",
        )
    )


@dataclass(frozen=True)
class Figures:
    """What one job has shown."""

    events: int
    rows: int
    seconds: float


def run_spark(
    plan: Callable[[DataFrame], DataFrame], events: DataFrame, checkpoint: Path, kept: Path | None
) -> tuple[int, float]:
    """Rows out of a streaming plan, and seconds; the rows are dropped, or kept as Parquet."""
    rows = plan(events.withWatermark("ts", BOUND)).observe("out", F.count(F.lit(1)).alias("rows"))
    writer = rows.writeStream.outputMode("append").trigger(availableNow=True)
    writer = writer.option("checkpointLocation", str(checkpoint))
    writer = writer.format("noop") if kept is None else writer.foreachBatch(_keep(kept))
    query = writer.start()
    seconds = _seconds(query)
    return sum(p["observedMetrics"]["out"].rows for p in query.recentProgress), seconds


def _seconds(query: StreamingQuery) -> float:
    """Wait for the query's end; the time of its micro-batches that had events."""
    times = zip(epoch_seconds(query), query.recentProgress, strict=True)
    return sum(seconds for seconds, progress in times if progress["numInputRows"])


def _keep(directory: Path) -> Callable[[DataFrame, int], None]:
    def keep(batch: DataFrame, _: int) -> None:
        batch.write.mode("append").parquet(str(directory))

    return keep


def run_holdfast(events: DataFrame, backend: str, kept: Path | None) -> tuple[int, float]:
    """The same on Holdfast, without checkpoints."""
    env = StreamExecutionEnvironment.get_execution_environment(events.sparkSession)
    env.set_parallelism(2).set_state_backend(BACKENDS[backend]).set_available_now()
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_seconds(5))
    stream = env.from_dataframe(events).uid("events")
    timed = stream.assign_timestamps_and_watermarks(strategy.with_timestamp_assigner("ts"))
    rows = timed.key_by("key").window(TumblingEventTimeWindows.of("1 min")).count().uid("count")
    if kept is None:
        rows.sink_to(SparkSink("noop", mode="overwrite"))
    else:
        rows.sink_to(SparkSink("parquet", {"path": str(kept)}))
    client = env.execute_async("windows")
    client.result()
    seconds = _seconds(client.query)
    return client.statistics().operators["count"].records_out, seconds


def run(
    spark: SparkSession,
    system: str,
    backend: str,
    events: Events,
    epochs: int,
    directory: Path,
    *,
    keep: bool = False,
) -> Figures:
    """One job from its first event to its last window."""
    events.put(directory / "events", epochs)
    stream = spark.readStream.schema(EVENT).option("maxFilesPerTrigger", 1)
    frame = stream.parquet(str(directory / "events"))
    kept = directory / "kept" if keep else None
    if system == "holdfast":
        rows, seconds = run_holdfast(frame, backend, kept)
    else:
        plan = _aggregate if system == NATIVE else _transform_with_state
        rows, seconds = run_spark(plan, frame, directory / "checkpoint", kept)
    if rows != (wanted := events.row_count()):
        raise check.WrongResultError(
            f"{system} ({backend}) gave {rows} rows where there are {wanted} windows"
        )
    return Figures(len(events.keys), rows, seconds)


def check_rows(spark: SparkSession, system: str, backend: str, directory: Path) -> None:
    """Run the job of few keys and require that its rows are right."""
    events = Events.of(CHECKED_KEYS)
    run(spark, system, backend, events, EPOCHS, directory, keep=True)
    kept = ds.dataset(directory / "kept", format="parquet").to_table()
    if system == "holdfast":
        moments = pc.cast(kept["window_start"], pa.timestamp("ms", tz="UTC"), safe=False)
        kept = pa.table({"key": kept["key"], "start": moments.cast(pa.int64()), "n": kept["count"]})
    actual = sorted(zip(*kept.to_pydict().values(), strict=True))
    check.require_equal(f"{system} ({backend}) with windows", actual, events.rows())


def measure(system: str, backend: str, keys: int) -> Figures:
    """The job of few keys, then that of many, in this process."""
    epochs = ROW_API_EPOCHS if system == ROW_API else EPOCHS
    # Spark's state stores write for a while after their query: its session ends first.
    with scratch() as directory:
        spark = session()
        use_file_manager(spark, fast=True)
        try:
            _say("comparing rows")
            check_rows(spark, system, backend, directory / "checked")
            events = Events.of(keys, epochs)
            _say(f"{len(events.keys):,} events over {keys:,} keys")
            return run(spark, system, backend, events, epochs, directory / "many")
        finally:
            spark.stop()


def _say(what: str) -> None:
    print(what, flush=True)


def results(keys: int, rounds: int, say: Console) -> list[dict[str, Any]]:
    """Every system measured, as rows; each median and its ratio to the two of Spark."""
    rates: dict[tuple[str, str], float] = {}
    found: dict[tuple[str, str], Figures] = {}
    for system, backend in SYSTEMS:
        runs = []
        for number in range(1 if system == ROW_API else rounds):
            arguments, who = [system, backend, str(keys)], f"{system} ({backend})"
            figures = Figures(**in_fresh_process("benchmarks.windows", arguments, who, say))
            runs.append(figures.events / figures.seconds)
            say.print(f"{who}, run {number + 1}: {runs[-1]:,.0f} events/s")
        rates[system, backend], found[system, backend] = statistics.median(runs), figures
    native, row_api = rates[SYSTEMS[0]], rates[SYSTEMS[1]]
    return [
        {
            "workload": "windows-tumbling",
            "system": system,
            "backend": backend,
            "keys": keys,
            "events": found[system, backend].events,
            "rows": found[system, backend].rows,
            "events_per_s": round(rate),
            "ratio_to_aggregate": round(rate / native, 2),
            "ratio_to_transform_with_state": round(rate / row_api, 2),
        }
        for (system, backend), rate in rates.items()
    ]


def main() -> None:
    """Measure, print a table, and write the figures down."""
    parser = argparse.ArgumentParser(prog="make bench-windows", description=__doc__)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_KEYS:,} keys, no repeats")
    parser.add_argument("--rounds", type=int, default=3, help=f"of all but {ROW_API}")
    parser.add_argument("--output", type=Path, help="where the figures go as JSON")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        system, backend, keys = arguments.one
        print(json.dumps(asdict(measure(system, backend, int(keys)))))
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
