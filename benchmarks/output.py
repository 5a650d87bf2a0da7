"""`make bench-output`: what exactly once costs, and what unaligned checkpoints gain.

output       W1 in epochs of 200,000 events into Parquet files, in turn: without
             checkpoints, with a checkpoint every second and at least once, and with one
             and exactly once
unaligned    one epoch that is a whole backlog, with a function that takes its time: how
             long until the first checkpoint is complete, aligned and unaligned, over
             backlogs of different lengths
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from benchmarks import data
from benchmarks.figures import record, show
from benchmarks.harness import epoch_seconds, read_epochs, scratch, session, use_file_manager
from benchmarks.holdfast_run import CountUrl
from benchmarks.workloads import W1, ddl
from holdfast import (
    CheckpointingMode,
    CheckpointListener,
    FileSink,
    FileSystemCheckpointStorage,
    KeyedProcessFunction,
    SparkSink,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from holdfast import RuntimeContext

LATEST = Path(__file__).resolve().parent / "latest-output.json"
EPOCH = 200_000
EPOCHS = 25
INTERVAL_MS = 1000
BACKLOGS = (10_000, 40_000)
SECONDS_PER_EVENT = 0.001
MODES = {
    "none": None,
    "at least once": CheckpointingMode.AT_LEAST_ONCE,
    "exactly once": CheckpointingMode.EXACTLY_ONCE,
}


def run_files(spark: SparkSession, mode: CheckpointingMode | None, directory: Path) -> float:
    """Events a second of one run of W1 into Parquet files."""
    env = StreamExecutionEnvironment.get_execution_environment(spark)
    env.set_parallelism(2).set_available_now()
    if mode is not None:
        env.enable_checkpointing(INTERVAL_MS, mode)
        storage = FileSystemCheckpointStorage(str(directory / "checkpoints"))
        env.get_checkpoint_config().set_checkpoint_storage(storage)
    events = env.from_dataframe(read_epochs(spark, W1, data.prepare(W1, EPOCH, EPOCHS)))
    output = events.uid("events").key_by(W1.key).process(CountUrl(), ddl(W1.output)).uid("count")
    output.sink_to(FileSink(directory / "out")).uid("files")
    client = env.execute_async("output")
    client.result()
    seconds = epoch_seconds(client.query)[2:]
    found = spark.read.parquet(str(directory / "out")).count()
    assert found == EPOCH * EPOCHS, f"{found} rows instead of {EPOCH * EPOCHS}"
    return EPOCH * len(seconds) / sum(seconds)


def output(spark: SparkSession, rounds: int) -> list[dict[str, Any]]:
    """Throughput in each mode, all modes in every round."""
    rates: dict[str, list[float]] = {name: [] for name in MODES}
    with scratch() as directory:
        run_files(spark, None, directory)
    for _ in range(rounds):
        for name, mode in MODES.items():
            with scratch() as directory:
                rates[name].append(run_files(spark, mode, directory))
    plain = statistics.median(rates["none"])
    return [
        {
            "workload": "output",
            "mode": name,
            "events_per_epoch": EPOCH,
            "events_per_s": round(statistics.median(found)),
            "lost": round(1 - statistics.median(found) / plain, 3),
        }
        for name, found in rates.items()
    ]


class SlowCount(KeyedProcessFunction):
    """Takes its time over every event."""

    def open(self, ctx: RuntimeContext) -> None:
        """Register the count."""
        self._count = ctx.get_state(ValueStateDescriptor("count", int))

    def process_element(self, value: Any, ctx: Any) -> Iterator[tuple[int, int]]:
        """Count, slowly."""
        time.sleep(SECONDS_PER_EVENT)
        count = (self._count.value() or 0) + 1
        self._count.update(count)
        yield value.key, count


class FirstCheckpoint(CheckpointListener):
    """Notes when the first checkpoint was complete."""

    def __init__(self) -> None:
        """None is yet."""
        self.at: float | None = None

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """One is."""
        self.at = self.at or time.monotonic()


def run_backlog(spark: SparkSession, events: int, *, unaligned: bool) -> tuple[float, int]:
    """Seconds to the first checkpoint of a backlog, and the bytes of input in it."""
    with scratch() as directory:
        env = StreamExecutionEnvironment.get_execution_environment(spark)
        env.set_parallelism(2)
        env.enable_checkpointing(INTERVAL_MS)
        config = env.get_checkpoint_config()
        config.set_checkpoint_storage(FileSystemCheckpointStorage(str(directory)))
        config.enable_unaligned_checkpoints(unaligned)
        first = FirstCheckpoint()
        env.add_checkpoint_listener(first)
        stream = env.from_generator(_event, count=events, type_info="key bigint, number bigint")
        counts = stream.uid("events").key_by("key").process(SlowCount(), "key bigint, n bigint")
        counts.uid("count").sink_to(SparkSink("noop", mode="overwrite", staged=False))
        start = time.monotonic()
        client = env.execute_async("backlog")
        while first.at is None:
            if client.status().is_terminal:
                client.result()
            time.sleep(0.01)
        client.cancel()
        figures = client.statistics().checkpoints
        assert figures is not None
        return first.at - start, figures.history[0].persisted_size


def _event(number: int) -> tuple[int, int]:
    return number % 1000, number


def unaligned(spark: SparkSession, backlogs: list[int]) -> list[dict[str, Any]]:
    """Time to the first checkpoint, aligned and unaligned."""
    run_backlog(spark, 1_000, unaligned=True)
    rows = []
    for events in backlogs:
        late, _ = run_backlog(spark, events, unaligned=False)
        soon, kept = run_backlog(spark, events, unaligned=True)
        rows.append(
            {
                "workload": "unaligned",
                "backlog_events": events,
                "ms_per_event": SECONDS_PER_EVENT * 1000,
                "interval_ms": INTERVAL_MS,
                "aligned_s": round(late, 2),
                "unaligned_s": round(soon, 2),
                "times_sooner": round(late / soon, 1),
                "input_kept_bytes": kept,
            }
        )
    return rows


def main() -> None:
    """Measure what was asked for, print it, and write it down."""
    parser = argparse.ArgumentParser(prog="make bench-output", description=__doc__)
    parser.add_argument("--only", action="append", choices=["output", "unaligned"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--backlogs", type=int, nargs="*", default=list(BACKLOGS))
    parser.add_argument("--output", type=Path, default=LATEST)
    arguments = parser.parse_args()
    wanted = arguments.only or ["output", "unaligned"]
    say = Console() if sys.stdout.isatty() else Console(width=140)
    spark = session()
    use_file_manager(spark, fast=True)
    rows: list[dict[str, Any]] = []
    if "output" in wanted:
        rows += output(spark, arguments.rounds)
    if "unaligned" in wanted:
        rows += unaligned(spark, arguments.backlogs)
    spark.stop()
    show(record(rows, arguments.output), say)


if __name__ == "__main__":
    main()
