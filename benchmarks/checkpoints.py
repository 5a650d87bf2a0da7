"""`make bench-checkpoints`: what checkpoints cost, and how long a recovery takes.

overhead     W1 in epochs of 200,000 events, with a checkpoint every second and with
             none, in turn, on each backend
increment    one subtask without Spark around it: time and bytes of a full and of an
             incremental checkpoint of RocksDB after 10,000 keys have changed, over
             stores of different sizes
recovery     from the start of a job that finds a checkpoint to the end of its first
             epoch, over states of different sizes, beside the restart of Spark's own
             aggregation (RocksDB state store) over the same keys
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console

from benchmarks import data
from benchmarks.figures import record, show
from benchmarks.harness import epoch_seconds, read_epochs, scratch, session, use_file_manager
from benchmarks.holdfast_run import BACKENDS, CountUrl, SumAccount
from benchmarks.scale import Subtask
from benchmarks.workloads import W1, ddl
from holdfast import (
    ExternalizedCheckpointRetention,
    FileSystemCheckpointStorage,
    SparkSink,
    StreamExecutionEnvironment,
)
from holdfast.checkpoint.files.job_files import open_files
from holdfast.checkpoint.transfer import upload_snapshot
from holdfast.runtime.plan import CheckpointOrder
from holdfast.runtime.report import STORE
from holdfast.storage.handles import FileHandle

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from holdfast.job.statistics import JobStatistics

LATEST = Path(__file__).resolve().parent / "latest-checkpoints.json"
EPOCH = 200_000
EPOCHS = 25
INTERVAL_MS = 1000
CHANGED = 10_000
SIZES = (10_000, 100_000, 1_000_000)


@dataclass(frozen=True)
class Overhead:
    """Throughput of one run."""

    rate: float
    checkpoints: int


def run_w1(spark: SparkSession, backend: str, directory: Path | None) -> Overhead:
    """One run of W1, with checkpoints in `directory` if it is given."""
    env = StreamExecutionEnvironment.get_execution_environment(spark)
    env.set_parallelism(2).set_state_backend(BACKENDS[backend]).set_available_now()
    if directory is not None:
        env.enable_checkpointing(INTERVAL_MS)
        config = env.get_checkpoint_config()
        config.set_checkpoint_storage(FileSystemCheckpointStorage(str(directory)))
        env._configuration.set("execution.checkpointing.incremental", backend == "rocksdb")
    events = env.from_dataframe(read_epochs(spark, W1, data.prepare(W1, EPOCH, EPOCHS)))
    output = events.uid("events").key_by(W1.key).process(CountUrl(), ddl(W1.output)).uid("count")
    output.sink_to(SparkSink("noop", mode="overwrite", staged=False))
    client = env.execute_async("overhead")
    statistics_of = client.result().statistics
    seconds = epoch_seconds(client.query)[2:]
    return Overhead(EPOCH * len(seconds) / sum(seconds), _completed(statistics_of))


def _completed(figures: JobStatistics) -> int:
    return 0 if figures.checkpoints is None else figures.checkpoints.completed


def overhead(spark: SparkSession, rounds: int) -> list[dict[str, Any]]:
    """Throughput with a checkpoint every second, and with none."""
    rows = []
    for backend in BACKENDS:
        run_w1(spark, backend, None)
        without, with_them = [], []
        for _ in range(rounds):
            without.append(run_w1(spark, backend, None))
            with scratch() as directory:
                with_them.append(run_w1(spark, backend, directory))
        plain = statistics.median(run.rate for run in without)
        safe = statistics.median(run.rate for run in with_them)
        rows.append(
            {
                "workload": "checkpoint-overhead",
                "backend": backend,
                "events_per_epoch": EPOCH,
                "interval_ms": INTERVAL_MS,
                "events_per_s_without": round(plain),
                "events_per_s_with": round(safe),
                "lost": round(1 - safe / plain, 3),
                "checkpoints": statistics.median(run.checkpoints for run in with_them),
            }
        )
    return rows


def increment(size: int) -> dict[str, Any]:
    """A full and an incremental checkpoint of `size` keys of which some changed."""
    random = np.random.default_rng(7)
    with scratch() as local, scratch() as remote:
        subtask = Subtask("rocksdb", str(local))
        for start in range(0, size, 250_000):
            subtask.run(np.arange(start, min(start + 250_000, size)))
        files = open_files(FileSystemCheckpointStorage(str(remote)), "job")
        known: dict[str, FileHandle] = {}
        figures: dict[str, list[tuple[float, int]]] = {"full": [], "incremental": []}
        for number in range(1, 9):
            changed = random.choice(size, min(CHANGED, size), replace=False)
            subtask.run(changed, CheckpointOrder(number, 0))
            assert subtask.snapshot is not None
            store = Path(subtask.snapshot.directory) / STORE
            for kind in figures:
                start_at = time.monotonic()
                base = known if kind == "incremental" else {}
                handles, sent = upload_snapshot(
                    store, files, number, known=base, incremental=kind == "incremental"
                )
                spent = time.monotonic() - start_at + subtask.snapshot.sync_ms / 1000
                figures[kind].append((spent, sent))
            known = {n: h for n, h in handles.items() if isinstance(h, FileHandle)}
    row: dict[str, Any] = {"workload": "checkpoint-increment", "keys": size, "changed": CHANGED}
    for kind, measured in figures.items():
        # The first increment has nothing to build upon.
        row[f"{kind}_ms"] = round(1000 * statistics.median(s for s, _ in measured[1:]), 1)
        row[f"{kind}_bytes"] = round(statistics.median(b for _, b in measured[1:]))
    return row


def recovery(spark: SparkSession, size: int) -> dict[str, Any]:
    """Time until a job over `size` keys is at work again, beside Spark's own."""
    with scratch() as events, scratch() as checkpoints:
        _write_keys(spark, events, size, "a")
        row: dict[str, Any] = {"workload": "recovery", "keys": size}
        for backend in BACKENDS:
            where = checkpoints / backend
            _fill(spark, events, where, backend)
        spark_query = checkpoints / "spark"
        _run_aggregate(spark, events, spark_query)
        _write_keys(spark, events, 10, "b")
        for backend in BACKENDS:
            started, restored = _resume(spark, events, checkpoints / backend, backend)
            row[f"{backend}_first_epoch_ms"] = started
            row[f"{backend}_restore_ms"] = restored
        start = time.monotonic()
        _run_aggregate(spark, events, spark_query)
        row["spark_first_epoch_ms"] = round((time.monotonic() - start) * 1000)
    return row


def _write_keys(spark: SparkSession, directory: Path, size: int, name: str) -> None:
    frame = spark.range(size).selectExpr("id as key", "id * 0.25D as amount", "'x' as label")
    frame.coalesce(2).write.mode("append").parquet(str(directory / f"part={name}"))


def _keys(spark: SparkSession, directory: Path) -> DataFrame:
    schema = "key bigint, amount double, label string"
    return spark.readStream.schema(schema).parquet(f"{directory}/part=*")


def _account_job(
    spark: SparkSession, events: Path, where: Path, backend: str
) -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment(spark)
    env.set_parallelism(2).set_state_backend(BACKENDS[backend]).set_job_id("recovery")
    env.enable_checkpointing(10)
    config = env.get_checkpoint_config()
    config.set_checkpoint_storage(FileSystemCheckpointStorage(str(where)))
    config.set_externalized_checkpoint_retention(
        ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION
    )
    stream = env.from_dataframe(_keys(spark, events)).uid("keys")
    accounts = stream.key_by("key").process(SumAccount(), "key bigint, count bigint, total double")
    accounts.uid("accounts").sink_to(SparkSink("noop", mode="overwrite", staged=False))
    return env


def _fill(spark: SparkSession, events: Path, where: Path, backend: str) -> None:
    client = _account_job(spark, events, where, backend).execute_async("fill")
    while True:
        figures = client.statistics().checkpoints
        if figures is not None and figures.completed:
            break
        if client.status().is_terminal:
            client.result()
        time.sleep(0.05)
    client.cancel()


def _resume(spark: SparkSession, events: Path, where: Path, backend: str) -> tuple[int, int]:
    env = _account_job(spark, events, where, backend)
    start = time.monotonic()
    client = env.execute_async("resume")
    while not client.statistics().epochs:
        if client.status().is_terminal:
            client.result()
        time.sleep(0.005)
    spent = round((time.monotonic() - start) * 1000)
    figures = client.statistics().checkpoints
    assert figures is not None
    assert figures.latest_restored is not None
    client.cancel()
    return spent, figures.latest_restored.duration_ms


def _run_aggregate(spark: SparkSession, events: Path, query: Path) -> None:
    totals = (
        _keys(spark, events).groupBy("key").agg({"amount": "sum", "label": "last", "*": "count"})
    )
    writer = totals.writeStream.outputMode("update").format("noop").trigger(availableNow=True)
    writer.option("checkpointLocation", str(query)).start().awaitTermination()


def main() -> None:
    """Measure what was asked for, print it, and write it down."""
    parser = argparse.ArgumentParser(prog="make bench-checkpoints", description=__doc__)
    parser.add_argument("--only", action="append", choices=["overhead", "increment", "recovery"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--keys", type=int, nargs="*", default=SIZES)
    parser.add_argument("--output", type=Path, default=LATEST)
    arguments = parser.parse_args()
    wanted = arguments.only or ["overhead", "increment", "recovery"]
    say = Console() if sys.stdout.isatty() else Console(width=140)
    rows: list[dict[str, Any]] = []
    if "increment" in wanted:
        rows += [increment(size) for size in arguments.keys]
    if "overhead" in wanted or "recovery" in wanted:
        spark = session()
        use_file_manager(spark, fast=True)
        if "overhead" in wanted:
            rows += overhead(spark, arguments.rounds)
        if "recovery" in wanted:
            recovery(spark, 1_000)
            rows += [recovery(spark, size) for size in arguments.keys]
        spark.stop()
    show(record(rows, arguments.output), say)


if __name__ == "__main__":
    main()
