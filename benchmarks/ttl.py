"""`make bench-ttl`: what a time to live costs, and what the sweep of expired state frees.

cost     a value for each of a million keys. Epochs of 200,000 events on random keys read
         and write it: without a time to live, with one of an hour that nothing sweeps, with
         one that is swept in the background, as it is by default, and with one whose passes
         follow each other without a pause. The modes take turns. Nothing expires: what is
         timed is the looking.
freed    a value for each of a million keys, all of which expire. Then epochs of ten events,
         always on the same ten keys, until the sweep has removed the others: entries and
         bytes on disk of the operator's local stores before and after.

Each backend has a process of its own on two cores. It first runs each mode with 10,000
keys once without measuring it, and holds the rows that come out against those that should.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from rich.console import Console

from benchmarks import check, data
from benchmarks.figures import record, show
from benchmarks.harness import epoch_seconds, scratch, session, use_file_manager
from benchmarks.holdfast_run import BACKENDS
from benchmarks.processes import in_fresh_process
from holdfast import (
    Duration,
    KeyedProcessFunction,
    SparkSink,
    StateTtlConfig,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray
    from pyspark.sql import SparkSession

    from holdfast import JobClient, RuntimeContext
    from holdfast.spark.statistics import OperatorStatistics

LATEST = Path(__file__).resolve().parent / "latest-ttl.json"
QUICK = data.DATA_ROOT.parent / "benchmark-ttl-quick.json"

KEYS, QUICK_KEYS, CHECKED_KEYS = 1_000_000, 50_000, 10_000
FILLING, MEASURED = 5, 15
"""Epochs that give every key its value, and epochs that are timed."""

LONG = Duration.of_hours(1)
MODES: dict[str, StateTtlConfig | None] = {
    "no TTL": None,
    "not swept": StateTtlConfig.new_builder(LONG).disable_cleanup_in_background().build(),
    "swept": StateTtlConfig.new_builder(LONG).build(),
    "always swept": StateTtlConfig.new_builder(LONG)
    .cleanup_in_rocksdb_compact_filter(periodic_compaction_time=Duration.of_millis(1))
    .build(),
}
"""By default the next pass begins after a quarter of an hour, when the run is long over."""

SHORT_S, QUICK_SHORT_S = 30, 10
"""Time to live of what is to expire: longer than it takes to give every key its value."""
TOUCHED = 10
AT_ONCE = 10
"""Small epochs after which it is asked how far the sweep has come."""
PATIENCE_S = 300

EVENT = "key bigint"
OUTPUT = "key bigint, n bigint"
FIRST_MTIME = 1_700_000_000


class CountPairs(KeyedProcessFunction):
    """Counts a key's events, and emits every second count."""

    def __init__(self, ttl: StateTtlConfig | None) -> None:
        """Counts that live so long; for ever if None."""
        self._ttl = ttl

    def open(self, ctx: RuntimeContext) -> None:
        """Get hold of the count."""
        self.count = ctx.get_state(ValueStateDescriptor("count", int, ttl=self._ttl))

    def process_element(self, value: Any, ctx: Any) -> Iterator[tuple[int, int]]:
        """Count one event."""
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        if not count % 2:
            yield value.key, count


class Inbox:
    """A directory that a stream reads, one file to an epoch."""

    def __init__(self, directory: Path) -> None:
        """Nothing in it yet."""
        directory.mkdir(parents=True)
        self.directory = directory
        self._files = 0

    def put(self, keys: NDArray[np.int64]) -> None:
        """Add one event for each of these keys."""
        path = self.directory / f"{self._files:05d}.parquet"
        hidden = path.with_name(f".{path.name}")
        table = pa.table({"key": keys})
        with pq.ParquetWriter(hidden, table.schema) as writer:
            # Two tasks may read a file, each one half of the keys.
            for odd in range(2):
                half = table.filter(pa.array(keys % 2 == odd))
                writer.write_table(half, row_group_size=max(1, half.num_rows))
        # The file source reads files in the order of their modification times.
        os.utime(hidden, (FIRST_MTIME + self._files,) * 2)
        self._files += 1
        hidden.rename(path)


def filling(keys: int) -> list[NDArray[np.int64]]:
    """Epochs with one event for each key, in random order."""
    return np.split(np.random.default_rng(7).permutation(keys), FILLING)


def start(
    spark: SparkSession,
    backend: str,
    ttl: StateTtlConfig | None,
    events: Path,
    *,
    ends: bool,
    kept: Path | None = None,
) -> JobClient:
    """Start the job, without checkpoints; rows are dropped, or kept as Parquet."""
    env = StreamExecutionEnvironment.get_execution_environment(spark)
    env.set_parallelism(2).set_state_backend(BACKENDS[backend]).set_available_now(ends)
    frame = spark.readStream.schema(EVENT).option("maxFilesPerTrigger", 1).parquet(str(events))
    stream = env.from_dataframe(frame).uid("events")
    rows = stream.key_by("key").process(CountPairs(ttl), OUTPUT).uid("count")
    if kept is None:
        rows.sink_to(SparkSink("noop", mode="overwrite"))
    else:
        rows.sink_to(SparkSink("parquet", {"path": str(kept)}))
    return env.execute_async("ttl")


def figures_of(client: JobClient) -> OperatorStatistics:
    """What the job's one operator has done."""
    return client.statistics().operators["count"]


def put_cost_events(keys: int, inbox: Inbox) -> NDArray[np.int64]:
    """Every key once, then random ones; how many events each key has."""
    random = np.random.default_rng(8)
    epochs = filling(keys)
    epochs += [random.integers(0, keys, keys // FILLING) for _ in range(MEASURED)]
    for epoch in epochs:
        inbox.put(epoch)
    return np.bincount(np.concatenate(epochs), minlength=keys)


def cost(spark: SparkSession, backend: str, keys: int, rounds: int) -> dict[str, float]:
    """Events a second in each mode: medians over rounds in which the modes take turns."""
    rates: dict[str, list[float]] = {mode: [] for mode in MODES}
    with scratch() as directory:
        inbox = Inbox(directory / "events")
        rows = int((put_cost_events(keys, inbox) // 2).sum())
        for number in range(rounds):
            for mode, ttl in MODES.items():
                client = start(spark, backend, ttl, inbox.directory, ends=True)
                client.result()
                seconds = epoch_seconds(client.query)[FILLING:]
                _require(f"rows, {mode}", figures_of(client).records_out, rows)
                rates[mode].append(keys // FILLING * len(seconds) / sum(seconds))
                _say(f"{mode}, run {number + 1}: {rates[mode][-1]:,.0f} events/s")
    return {mode: statistics.median(found) for mode, found in rates.items()}


def freed(spark: SparkSession, backend: str, keys: int, ttl_s: int) -> dict[str, Any]:
    """What the stores hold before everything in them expires, and when it has been swept."""
    with scratch() as directory:
        inbox = Inbox(directory / "events")
        for epoch in filling(keys):
            inbox.put(epoch)
        ttl = StateTtlConfig.new_builder(Duration.of_seconds(ttl_s)).build()
        client = start(spark, backend, ttl, inbox.directory, ends=False)
        try:
            _say(f"{keys:,} keys that live for {ttl_s} s")
            client.query.processAllAvailable()
            before = figures_of(client)
            _require("entries removed before all keys were there", before.expired_removed, 0)
            time.sleep(ttl_s)
            _say(f"epochs of {TOUCHED} events")
            return {**_before(before), **_swept(client, inbox, keys)}
        finally:
            client.cancel()


def _before(figures: OperatorStatistics) -> dict[str, Any]:
    return {"entries_before": figures.state_entries, "bytes_before": figures.state_bytes}


def _swept(client: JobClient, inbox: Inbox, keys: int) -> dict[str, Any]:
    """Run small epochs until the other keys are gone, or patience is."""
    deadline = time.monotonic() + PATIENCE_S
    _run_small(client, inbox, 1)
    # Counts that had not expired would be even now.
    _require("rows of keys that have expired", figures_of(client).records_out, 0)
    epochs, seconds = 1, [_last_epoch_s(client)]
    while figures_of(client).expired_removed < keys - TOUCHED and time.monotonic() < deadline:
        _run_small(client, inbox, AT_ONCE)
        epochs += AT_ONCE
        seconds.append(_last_epoch_s(client))
    # The pass may have its end still before it, and with it the room on the disk.
    _run_small(client, inbox, AT_ONCE)
    after = figures_of(client)
    return {
        "removed": after.expired_removed,
        "entries_after": after.state_entries,
        "bytes_after": after.state_bytes,
        "epochs": epochs,
        "epoch_ms": round(statistics.median(seconds) * 1000),
    }


def _run_small(client: JobClient, inbox: Inbox, epochs: int) -> None:
    for _ in range(epochs):
        inbox.put(np.arange(TOUCHED))
    client.query.processAllAvailable()


def _last_epoch_s(client: JobClient) -> float:
    last = [p for p in client.query.recentProgress if p["numInputRows"]][-1]
    return float(last["durationMs"]["triggerExecution"]) / 1000


def check_rows(spark: SparkSession, backend: str) -> None:
    """Run each mode with few keys and require that its rows are right."""
    for mode, ttl in MODES.items():
        with scratch() as directory:
            inbox = Inbox(directory / "events")
            counts = put_cost_events(CHECKED_KEYS, inbox)
            kept = directory / "kept"
            start(spark, backend, ttl, inbox.directory, ends=True, kept=kept).result()
            found = ds.dataset(kept, format="parquet").to_table(columns=["key", "n"])
            actual = sorted(zip(*found.to_pydict().values(), strict=True))
            wanted = [(k, n) for k, c in enumerate(counts.tolist()) for n in range(2, c + 1, 2)]
            check.require_equal(f"holdfast ({backend}), {mode}", actual, wanted)


def _require(what: str, actual: int, wanted: int) -> None:
    if actual != wanted:
        raise check.WrongResultError(f"{what}: {actual} where {wanted} would be right")


def _say(what: str) -> None:
    print(what, flush=True)


def measure(backend: str, keys: int, rounds: int, ttl_s: int) -> dict[str, Any]:
    """Both measurements of a backend, in this process."""
    spark = session()
    use_file_manager(spark, fast=True)
    try:
        _say("comparing rows")
        check_rows(spark, backend)
        rates = cost(spark, backend, keys, rounds)
        return {"rates": rates, "freed": freed(spark, backend, keys, ttl_s)}
    finally:
        spark.stop()


def results(keys: int, rounds: int, ttl_s: int, say: Console) -> list[dict[str, Any]]:
    """Every backend measured, as rows."""
    costs, rooms = [], []
    for backend in BACKENDS:
        arguments = [backend, str(keys), str(rounds), str(ttl_s)]
        found = in_fresh_process("benchmarks.ttl", arguments, f"holdfast ({backend})", say)
        who = {"system": "holdfast", "backend": backend, "keys": keys}
        costs.append({"workload": "ttl-cost", **who, **_costs(found["rates"])})
        rooms.append({"workload": "ttl-freed", **who, "ttl_s": ttl_s, **found["freed"]})
    return costs + rooms


def _costs(rates: dict[str, float]) -> dict[str, float]:
    plain, unswept, swept, always = (rates[mode] for mode in MODES)
    return {
        "no_ttl_per_s": round(plain),
        "not_swept_per_s": round(unswept),
        "swept_per_s": round(swept),
        "always_swept_per_s": round(always),
        "ttl_cost": round(1 - unswept / plain, 3),
        "sweep_cost": round(1 - swept / unswept, 3),
        "always_cost": round(1 - always / unswept, 3),
    }


def main() -> None:
    """Measure, print tables, and write the figures down."""
    parser = argparse.ArgumentParser(prog="make bench-ttl", description=__doc__)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_KEYS:,} keys, no repeats")
    parser.add_argument("--rounds", type=int, default=3, help="of the modes in turn")
    parser.add_argument("--output", type=Path, help="where the figures go as JSON")
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        backend, keys, rounds, ttl_s = arguments.one
        print(json.dumps(measure(backend, int(keys), int(rounds), int(ttl_s))))
        return
    say = Console() if sys.stdout.isatty() else Console(width=140)
    if os.getloadavg()[0] > 1:
        say.print(f"This machine is busy (load {os.getloadavg()[0]:.1f}): rates will be too low.")
    quick, rounds = arguments.quick, 1 if arguments.quick else arguments.rounds
    keys, ttl_s = (QUICK_KEYS, QUICK_SHORT_S) if quick else (KEYS, SHORT_S)
    output = arguments.output or (QUICK if quick else LATEST)
    output.parent.mkdir(parents=True, exist_ok=True)
    show(record(results(keys, rounds, ttl_s, say), output), say)
    say.print(f"Written to {output}.")


if __name__ == "__main__":
    main()
