"""`make bench-savepoints`: a job of a million keys goes on with other subtasks.

Every key has a value of two integers, in two subtasks. The job is stopped and started
again with three, and reads ten events in its first epoch.

    holdfast             trigger_savepoint, then execute_async(from_savepoint=...); on each
                         backend, by savepoints of both forms
    transformWithState   its query has ended; Spark's offline state repartitioning rewrites
                         the checkpoint, and the query starts from that
    aggregate            the same for Spark's own aggregation, which runs no Python

The start counts to the end of the first epoch, by Spark's own query progress. One more
event for each key follows, and the rows that come out are held against those of numpy: no
key has lost its value, and none has it twice.

Every run has a process of its own on two cores. It first does all of it with 10,000 keys.
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
from typing import TYPE_CHECKING, Any

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
    KeyedProcessFunction,
    SavepointFormatType,
    SparkSink,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle

    from holdfast import RuntimeContext

LATEST = Path(__file__).resolve().parent / "latest-savepoints.json"
QUICK = data.DATA_ROOT.parent / "benchmark-savepoints-quick.json"
ROW_API, NATIVE = "transformWithState", "aggregate"
SYSTEMS = [
    (ROW_API, "rocksdb"),
    (NATIVE, "rocksdb"),
    *(("holdfast", backend) for backend in BACKENDS),
]
FORMS = list(SavepointFormatType)

KEYS, QUICK_KEYS, CHECKED_KEYS = 1_000_000, 50_000, 10_000
EPOCH = 200_000
TOUCHED = 10
BEFORE, AFTER = 2, 3
"""Subtasks; partitions of Spark's state."""

EVENT = "key bigint, n bigint"
OUTPUT = "key bigint, count bigint, total bigint"
FIRST_MTIME = 1_700_000_000


class Inbox:
    """A directory that a stream reads, one file to an epoch."""

    def __init__(self, directory: Path, keys: int) -> None:
        """Nothing in it yet; `keys` is how many there are in all."""
        directory.mkdir(parents=True)
        self._directory = directory
        self._keys = keys
        self._files = 0

    def stream(self, spark: SparkSession) -> DataFrame:
        """The events."""
        reader = spark.readStream.schema(EVENT).option("maxFilesPerTrigger", 1)
        return reader.parquet(str(self._directory))

    def fill(self) -> None:
        """Add an event for each key, from which it gets its value."""
        for keys in _epochs(self._keys):
            self._put(keys, 3 * keys)

    def follow(self) -> None:
        """Add what is read after the start: a few events, then one for each key.

        What was read before is deleted. Who starts from nothing cannot read it again.
        """
        for path in self._directory.iterdir():
            path.unlink()
        touched = np.arange(TOUCHED)
        self._put(touched, np.full_like(touched, 1))
        for keys in _epochs(self._keys):
            self._put(keys, np.full_like(keys, 5))

    def rows(self) -> pa.Table:
        """What comes out of all events: a row for each but the first of a key, sorted."""
        touched, keys = np.arange(TOUCHED), np.arange(self._keys)
        again = keys < TOUCHED
        found = pa.table(
            {
                "key": np.concatenate([touched, keys]),
                "count": np.concatenate([np.full_like(touched, 2), np.where(again, 3, 2)]),
                "total": np.concatenate([3 * touched + 1, 3 * keys + np.where(again, 6, 5)]),
            }
        )
        return _sorted(found)

    def _put(self, keys: NDArray[np.int64], n: NDArray[np.int64]) -> None:
        path = self._directory / f"{self._files:05d}.parquet"
        table = pa.table({"key": keys, "n": n})
        with pq.ParquetWriter(path, table.schema) as writer:
            # Two tasks may read a file, each one half of the keys.
            for odd in range(2):
                half = table.filter(pa.array(keys % 2 == odd))
                writer.write_table(half, row_group_size=max(1, half.num_rows))
        # The file source reads files in the order of their modification times.
        os.utime(path, (FIRST_MTIME + self._files,) * 2)
        self._files += 1


def _epochs(keys: int) -> list[NDArray[np.int64]]:
    """Every key once, in random order."""
    shuffled = np.random.default_rng(7).permutation(keys)
    return [shuffled[first : first + EPOCH] for first in range(0, keys, EPOCH)]


def _sorted(rows: pa.Table) -> pa.Table:
    return rows.sort_by([(name, "ascending") for name in rows.column_names])


@dataclass(frozen=True)
class Account:
    """The value of a key."""

    count: int
    total: int


class Add(KeyedProcessFunction):
    """Adds up a key's events, and emits every sum but the first."""

    def open(self, ctx: RuntimeContext) -> None:
        """Get hold of the value."""
        self.account = ctx.get_state(ValueStateDescriptor("account", Account))

    def process_element(self, value: Any, ctx: Any) -> Iterator[tuple[int, int, int]]:
        """Add one event."""
        old = self.account.value()
        if old is None:
            self.account.update(Account(1, value.n))
        else:
            new = Account(old.count + 1, old.total + value.n)
            self.account.update(new)
            yield value.key, new.count, new.total


class AddProcessor(StatefulProcessor):
    """The same in `transformWithState`."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Get hold of the value."""
        self._account = handle.getValueState("account", "count bigint, total bigint")
        self._row = Row("key", "count", "total")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        """Add the events of one key; its value is read once and written once."""
        old = self._account.get()
        count, total = (0, 0) if old is None else old
        for row in rows:
            count, total = count + 1, total + row.n
        self._account.update((count, total))
        if count > 1:
            yield self._row(key[0], count, total)


def _transform_with_state(events: DataFrame) -> DataFrame:
    return events.groupBy("key").transformWithState(
        statefulProcessor=AddProcessor(),
        outputStructType=OUTPUT,
        outputMode="Update",
        timeMode="none",
    )


def _aggregate(events: DataFrame) -> DataFrame:
    sums = events.groupBy("key").agg(F.count(F.lit(1)).alias("count"), F.sum("n").alias("total"))
    return sums.where("count > 1")


PLANS: dict[str, Callable[[DataFrame], DataFrame]] = {
    ROW_API: _transform_with_state,
    NATIVE: _aggregate,
}


@dataclass(frozen=True)
class Figures:
    """What one way to other subtasks has shown."""

    form: str
    written_s: float
    """Time of the savepoint, or of the repartitioning."""
    written_bytes: int
    restart_s: float

    @property
    def whole_s(self) -> float:
        """Time of both steps."""
        return self.written_s + self.restart_s


def run_holdfast(spark: SparkSession, backend: str, keys: int, directory: Path) -> list[Figures]:
    """Savepoints of both forms, and a start from each."""
    inbox = Inbox(directory / "events", keys)
    inbox.fill()
    _say(keys, "values")
    env = _environment(spark, backend, BEFORE, inbox, directory / "none")
    client = env.execute_async("before")
    taken = []
    try:
        client.query.processAllAvailable()
        for form in FORMS:
            _say(keys, f"savepoint, {form.name.lower()}")
            start = time.monotonic()
            path = client.trigger_savepoint(str(directory / "savepoints"), form)
            taken.append((form.name.lower(), path, time.monotonic() - start))
    finally:
        client.cancel()
    inbox.follow()
    figures = []
    for form_name, path, written in taken:
        _say(keys, f"start, {form_name}")
        kept = directory / f"kept-{form_name}"
        env = _environment(spark, backend, AFTER, inbox, kept).set_available_now()
        started = time.time()
        client = env.execute_async("after", from_savepoint=path)
        client.result()
        restart = _first_epoch_end(client.query) - started
        _require_rows(f"holdfast ({backend}), {form_name}", kept, inbox.rows())
        figures.append(Figures(form_name, written, _size(_files(Path(path))), restart))
    return figures


def _environment(
    spark: SparkSession, backend: str, parallelism: int, inbox: Inbox, kept: Path
) -> StreamExecutionEnvironment:
    """The job, without checkpoints; its rows are kept as Parquet."""
    env = StreamExecutionEnvironment.get_execution_environment(spark)
    env.set_parallelism(parallelism).set_state_backend(BACKENDS[backend])
    stream = env.from_dataframe(inbox.stream(spark)).uid("events")
    rows = stream.key_by("key").process(Add(), OUTPUT).uid("add")
    rows.sink_to(SparkSink("parquet", {"path": str(kept)})).uid("kept")
    return env


def run_spark(spark: SparkSession, system: str, keys: int, directory: Path) -> list[Figures]:
    """Spark's offline repartitioning, and a start from the rewritten checkpoint."""
    inbox = Inbox(directory / "events", keys)
    inbox.fill()
    checkpoint = directory / "checkpoint"
    rows = PLANS[system](inbox.stream(spark))
    _say(keys, "values")
    _start_query(rows, checkpoint, directory / "none").awaitTermination()
    _say(keys, "repartitioning")
    before = _files(checkpoint / "state")
    start = time.monotonic()
    spark._streamingCheckpointManager.repartition(str(checkpoint), AFTER)
    written = time.monotonic() - start
    new = _files(checkpoint / "state") - before
    inbox.follow()
    _say(keys, "start")
    kept = directory / "kept"
    started = time.time()
    query = _start_query(rows, checkpoint, kept)
    query.awaitTermination()
    restart = _first_epoch_end(query) - started
    _require_partitions(system, query)
    _require_rows(system, kept, inbox.rows())
    return [Figures("repartition", written, _size(new), restart)]


def _start_query(rows: DataFrame, checkpoint: Path, kept: Path) -> StreamingQuery:
    """Start a query that reads all there is; its rows are kept as Parquet."""

    def keep(batch: DataFrame, _: int) -> None:
        batch.write.mode("append").parquet(str(kept))

    writer = rows.writeStream.outputMode("update").trigger(availableNow=True)
    return writer.option("checkpointLocation", str(checkpoint)).foreachBatch(keep).start()


def _first_epoch_end(query: StreamingQuery) -> float:
    """When the first micro-batch that had events was done."""
    first = next(progress for progress in query.recentProgress if progress["numInputRows"])
    began = datetime.fromisoformat(first["timestamp"]).timestamp()
    return began + float(first["durationMs"]["triggerExecution"]) / 1000


def _require_partitions(system: str, query: StreamingQuery) -> None:
    [state] = query.recentProgress[0]["stateOperators"]
    if (partitions := state["numShufflePartitions"]) != AFTER:
        raise check.WrongResultError(
            f"{system} runs with {partitions} partitions of state where {AFTER} were asked for"
        )


def _require_rows(what: str, kept: Path, wanted: pa.Table) -> None:
    found = ds.dataset(kept, format="parquet").to_table(columns=wanted.column_names)
    actual = _sorted(found.cast(wanted.schema))
    if not actual.equals(wanted):
        check.require_equal(what, _tuples(actual), _tuples(wanted))


def _tuples(rows: pa.Table) -> list[Any]:
    return list(zip(*rows.to_pydict().values(), strict=True))


def _files(directory: Path) -> set[Path]:
    return {path for path in directory.rglob("*") if path.is_file()}


def _size(files: set[Path]) -> int:
    return sum(path.stat().st_size for path in files)


def _say(keys: int, what: str) -> None:
    print(f"{keys:,} keys, {what}", flush=True)


def measure(system: str, backend: str, keys: int) -> list[Figures]:
    """All of it with few keys, then with many, in this process."""
    # Spark's state stores write for a while after their query: its session ends first.
    with scratch() as directory:
        spark = session()
        use_file_manager(spark, fast=True)
        try:
            for count in (CHECKED_KEYS, keys):
                where = directory / f"{count}-keys"
                if system == "holdfast":
                    figures = run_holdfast(spark, backend, count, where)
                else:
                    figures = run_spark(spark, system, count, where)
            return figures
        finally:
            spark.stop()


def results(keys: int, rounds: int, say: Console) -> list[dict[str, Any]]:
    """Every system measured, as rows; medians and their ratios to the two of Spark."""
    found: dict[tuple[str, str], list[Figures]] = {}
    for system, backend in SYSTEMS:
        runs = []
        for number in range(1 if system == ROW_API else rounds):
            arguments, who = [system, backend, str(keys)], f"{system} ({backend})"
            rows = in_fresh_process("benchmarks.savepoints", arguments, who, say)
            runs.append([Figures(**row) for row in rows])
            for one in runs[-1]:
                say.print(
                    f"{who}, run {number + 1}, {one.form}: written in {one.written_s:.2f} s, "
                    f"{one.written_bytes / 1e6:.1f} MB, started in {one.restart_s:.2f} s"
                )
        found[system, backend] = [_median(same) for same in zip(*runs, strict=True)]
    [row_api], [native] = (found[names] for names in SYSTEMS[:2])
    return [
        {
            "workload": "savepoints-rescale",
            "system": system,
            "backend": backend,
            "form": one.form,
            "keys": keys,
            "written_s": round(one.written_s, 2),
            "written_bytes": one.written_bytes,
            "restart_s": round(one.restart_s, 2),
            "whole_s": round(one.whole_s, 2),
            "ratio_to_transform_with_state": round(row_api.whole_s / one.whole_s, 2),
            "ratio_to_aggregate": round(native.whole_s / one.whole_s, 2),
        }
        for (system, backend), forms in found.items()
        for one in forms
    ]


def _median(runs: tuple[Figures, ...]) -> Figures:
    """Medians of each step over the runs of one form."""
    return Figures(
        runs[0].form,
        statistics.median(run.written_s for run in runs),
        round(statistics.median(run.written_bytes for run in runs)),
        statistics.median(run.restart_s for run in runs),
    )


def main() -> None:
    """Measure, print a table, and write the figures down."""
    parser = argparse.ArgumentParser(prog="make bench-savepoints", description=__doc__)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_KEYS:,} keys, no repeats")
    parser.add_argument("--rounds", type=int, default=3, help=f"of all but {ROW_API}")
    parser.add_argument("--output", type=Path, help="where the figures go as JSON")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        system, backend, keys = arguments.one
        print(json.dumps([asdict(one) for one in measure(system, backend, int(keys))]))
        return
    say = Console() if sys.stdout.isatty() else Console(width=140)
    if os.getloadavg()[0] > 1:
        say.print(f"This machine is busy (load {os.getloadavg()[0]:.1f}): times will be too long.")
    keys, rounds = (QUICK_KEYS, 1) if arguments.quick else (KEYS, arguments.rounds)
    output = arguments.output or (QUICK if arguments.quick else LATEST)
    output.parent.mkdir(parents=True, exist_ok=True)
    show(record(results(keys, rounds, say), output), say)
    say.print(f"Written to {output}.")


if __name__ == "__main__":
    main()
