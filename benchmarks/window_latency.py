"""`make bench-windows`: the time from the row that ends a window to the result of the window.

A thread writes a file with a row for each of ten keys, five times a second; event time is the
time of writing. Windows have a length of one second, and rows come in order, so that the first row
of a second ends the window of the second before. The latency of a window is the time from the
moment the file with that row can be read to the moment the window's rows are given to a sink.

    aggregate   Spark's own windowed aggregation, which runs no Python
    holdfast    key_by, window, count

Every run has a process of its own on two cores.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from rich.console import Console

from benchmarks import data
from benchmarks.figures import record, show
from benchmarks.harness import scratch, session, use_file_manager
from benchmarks.processes import in_fresh_process
from holdfast import StreamExecutionEnvironment, WatermarkStrategy
from holdfast.windows import TumblingEventTimeWindows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LATEST = Path(__file__).resolve().parent / "latest-window-latency.json"
QUICK = data.DATA_ROOT.parent / "benchmark-window-latency-quick.json"
NATIVE = "aggregate"
SYSTEMS = (NATIVE, "holdfast")
KEYS = 10
FILES_PER_SECOND = 5
WINDOW_MS = 1000
WARM_UP = 10
"""Windows that do not count."""
WINDOWS, QUICK_WINDOWS = 60, 10


class Feed:
    """Writes files, and knows when the first row of every second could be read."""

    def __init__(self, directory: Path) -> None:
        """Write into `directory`."""
        self._directory = directory
        directory.mkdir()
        self._stop = threading.Event()
        self.ends: dict[int, float] = {}
        """When the row that ends a window could be read, by the end of the window."""
        self._thread = threading.Thread(target=self._write, daemon=True)

    def __enter__(self) -> Feed:
        """Begin."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End."""
        self._stop.set()
        self._thread.join()

    def _write(self) -> None:
        number = 0
        while not self._stop.wait(1 / FILES_PER_SECOND):
            now = int(time.time() * 1000)
            rows = "".join(f'{{"key": {key}, "ts": {now}}}\n' for key in range(KEYS))
            hidden = self._directory / f".{number:06d}.json"
            hidden.write_text(rows)
            hidden.rename(self._directory / f"{number:06d}.json")
            self.ends.setdefault(now - now % WINDOW_MS, time.time())
            number += 1


class Arrivals:
    """Takes batches of results, and notes when the first row of every window came."""

    def __init__(self, column: str) -> None:
        """`column` holds the beginning of the window, in milliseconds."""
        self._column = column
        self.seen: dict[int, float] = {}

    def __call__(self, batch: DataFrame, _: int) -> None:
        """Take a batch."""
        starts = {row[0] for row in batch.select(self._column).distinct().collect()}
        now = time.time()
        for start in starts:
            self.seen.setdefault(start + WINDOW_MS, now)


def run_spark(
    rows: DataFrame, checkpoint: Path, arrivals: Arrivals
) -> tuple[Callable[[], bool], Callable[[], None]]:
    """Start Spark's aggregation; returns how to see whether it runs, and how to stop it."""
    timed = rows.select("key", F.timestamp_millis("ts").alias("ts")).withWatermark(
        "ts", "0 seconds"
    )
    counts = timed.groupBy(F.window("ts", "1 second"), "key").count()
    found = counts.select("key", F.unix_millis("window.start").alias("start"), "count")
    writer = found.writeStream.outputMode("append").option("checkpointLocation", str(checkpoint))
    query = writer.foreachBatch(arrivals).start()
    return lambda: query.isActive, query.stop


def run_holdfast(
    rows: DataFrame, arrivals: Arrivals
) -> tuple[Callable[[], bool], Callable[[], None]]:
    """Start the same on Holdfast."""
    env = StreamExecutionEnvironment.get_execution_environment(rows.sparkSession)
    env.set_parallelism(2)
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("ts")
    timed = env.from_dataframe(rows).uid("rows").assign_timestamps_and_watermarks(strategy)
    windows = timed.key_by("key").window(TumblingEventTimeWindows.of("1 s")).count().uid("count")

    def take(batch: DataFrame, epoch: int) -> None:
        arrivals(batch.select(F.unix_millis("window_start").alias("start")), epoch)

    windows.foreach_batch(take)
    client = env.execute_async("window-latency")
    return lambda: not client.status().is_terminal, client.cancel


def latencies(system: str, windows: int) -> list[float]:
    """Latency of every window, in milliseconds, in this process."""
    with scratch() as directory:
        spark = session({"spark.python.unix.domain.socket.enabled": "true"})
        use_file_manager(spark, fast=True)
        arrivals = Arrivals("start")
        with Feed(directory / "in") as feed:
            rows = spark.readStream.schema("key bigint, ts bigint").json(str(directory / "in"))
            if system == NATIVE:
                runs, stop = run_spark(rows, directory / "checkpoint", arrivals)
            else:
                runs, stop = run_holdfast(rows, arrivals)
            while len(arrivals.seen) < WARM_UP + windows and runs():
                time.sleep(0.1)
            stop()
        spark.stop()
        counted = sorted(arrivals.seen)[WARM_UP : WARM_UP + windows]
        if len(counted) < windows:
            raise RuntimeError(f"{system} has ended after {len(arrivals.seen)} windows")
        return [(arrivals.seen[end] - feed.ends[end]) * 1000 for end in counted]


def figures(rows: dict[str, list[float]]) -> Iterator[dict[str, Any]]:
    """Median and 90th percentile of every system, with the ratio to Spark's aggregation."""
    native = statistics.median(rows[NATIVE])
    for system, found in rows.items():
        yield {
            "workload": "window-latency",
            "system": system,
            "windows": len(found),
            "median_ms": round(statistics.median(found)),
            "p90_ms": round(statistics.quantiles(found, n=10)[-1]),
            "ratio_to_aggregate": round(statistics.median(found) / native, 2),
        }


def main(arguments: list[str]) -> None:
    """Measure every system in a process of its own."""
    parser = argparse.ArgumentParser(prog="make bench-windows", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer windows")
    parser.add_argument("--one", choices=SYSTEMS, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.one:
        print(json.dumps(latencies(options.one, QUICK_WINDOWS if options.quick else WINDOWS)))
        return
    say = Console() if sys.stdout.isatty() else Console(width=120)
    quick = ["--quick"] if options.quick else []
    rows = {
        system: in_fresh_process("benchmarks.window_latency", [system, *quick], system, say)
        for system in SYSTEMS
    }
    output = QUICK if options.quick else LATEST
    show(record(list(figures(rows)), output), say)
    say.print(f"Written to {output}.")


if __name__ == "__main__":
    main(sys.argv[1:])
