"""`make bench-ttl`: what a time to live costs, and what the sweep of expired state frees.

cost     a value for each of a million keys. Epochs of 200,000 events on random keys read
         and write it: without a time to live, with one of an hour that nothing sweeps, with
         one that is swept in the background, as it is by default, and with one whose passes
         follow each other without a pause. Nothing expires: what is timed is the looking.
         The machine's own pace differs from minute to minute by more than a sweep costs. So
         a job of each mode is alive all the time, and they take turns, epoch by epoch, on
         the same events; whoever comes first in a turn comes last in the next. A cost
         compares the seconds of all turns, and stands beside its 95 % interval: that of ten
         thousand draws of as many turns.
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
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
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
    StateTtlConfig,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray
    from pyspark.sql import SparkSession

    from holdfast import JobClient, RuntimeContext
    from holdfast.job.statistics import OperatorStatistics

LATEST = Path(__file__).resolve().parent / "latest-ttl.json"
QUICK = data.DATA_ROOT.parent / "benchmark-ttl-quick.json"

KEYS, QUICK_KEYS, CHECKED_KEYS = 1_000_000, 50_000, 10_000
FILLING = 5
"""Epochs that give every key its value."""
TURNS, FEW_TURNS = 80, 5
"""Epochs of each mode that are timed; those of a quick run, and of the comparison of rows."""
DRAWS = 10_000

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


def cost_epochs(keys: int, turns: int) -> Iterator[NDArray[np.int64]]:
    """Every key once, then random ones."""
    yield from filling(keys)
    random = np.random.default_rng(8)
    for _ in range(turns):
        yield random.integers(0, keys, keys // FILLING)


def cost(spark: SparkSession, backend: str, keys: int, turns: int) -> dict[str, list[float]]:
    """Seconds of each mode's epochs, turn by turn, once every key has its value."""
    seconds: dict[str, list[float]] = {mode: [] for mode in MODES}
    counts = np.zeros(keys, np.int64)
    with scratch() as directory, ExitStack() as jobs:
        inboxes = {mode: Inbox(directory / mode.replace(" ", "-")) for mode in MODES}
        clients = {}
        for mode, ttl in MODES.items():
            clients[mode] = start(spark, backend, ttl, inboxes[mode].directory, ends=False)
            jobs.callback(clients[mode].cancel)
        for number, epoch in enumerate(cost_epochs(keys, turns)):
            counts += np.bincount(epoch, minlength=keys)
            for mode in reversed(MODES) if number % 2 else MODES:
                inboxes[mode].put(epoch)
                clients[mode].query.processAllAvailable()
                seconds[mode].append(_last_epoch_s(clients[mode]))
            last = ", ".join(f"{mode} {found[-1]:.2f} s" for mode, found in seconds.items())
            _say(f"epoch {number + 1}: {last}")
        for mode, client in clients.items():
            _require(f"rows, {mode}", figures_of(client).records_out, int((counts // 2).sum()))
    return {mode: found[FILLING:] for mode, found in seconds.items()}


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
    epochs = list(cost_epochs(CHECKED_KEYS, FEW_TURNS))
    counts = np.bincount(np.concatenate(epochs), minlength=CHECKED_KEYS)
    wanted = [(k, n) for k, c in enumerate(counts.tolist()) for n in range(2, c + 1, 2)]
    for mode, ttl in MODES.items():
        with scratch() as directory:
            inbox = Inbox(directory / "events")
            for epoch in epochs:
                inbox.put(epoch)
            kept = directory / "kept"
            start(spark, backend, ttl, inbox.directory, ends=True, kept=kept).result()
            found = ds.dataset(kept, format="parquet").to_table(columns=["key", "n"])
            actual = sorted(zip(*found.to_pydict().values(), strict=True))
            check.require_equal(f"holdfast ({backend}), {mode}", actual, wanted)


def _require(what: str, actual: int, wanted: int) -> None:
    if actual != wanted:
        raise check.WrongResultError(f"{what}: {actual} where {wanted} would be right")


def _say(what: str) -> None:
    print(what, flush=True)


def measure(backend: str, keys: int, turns: int, ttl_s: int) -> dict[str, Any]:
    """Both measurements of a backend, in this process."""
    spark = session()
    use_file_manager(spark, fast=True)
    try:
        _say("comparing rows")
        check_rows(spark, backend)
        seconds = cost(spark, backend, keys, turns)
        return {"seconds": seconds, "freed": freed(spark, backend, keys, ttl_s)}
    finally:
        spark.stop()


def results(keys: int, turns: int, ttl_s: int, say: Console) -> list[dict[str, Any]]:
    """Every backend measured, as rows."""
    rates, costs, rooms = [], [], []
    for backend in BACKENDS:
        arguments = [backend, str(keys), str(turns), str(ttl_s)]
        found = in_fresh_process("benchmarks.ttl", arguments, f"holdfast ({backend})", say)
        who = {"system": "holdfast", "backend": backend, "keys": keys}
        seconds = {mode: np.array(each) for mode, each in found["seconds"].items()}
        rates.append({"workload": "ttl-rates", **who, **_rates(seconds, keys // FILLING)})
        costs += [{"workload": "ttl-cost", **who, "turns": turns, **row} for row in _costs(seconds)]
        rooms.append({"workload": "ttl-freed", **who, "ttl_s": ttl_s, **found["freed"]})
    return rates + costs + rooms


def _rates(seconds: dict[str, NDArray[np.float64]], events: int) -> dict[str, int]:
    """Events a second, over all turns."""
    return {
        f"{mode.lower().replace(' ', '_')}_per_s": round(events * len(each) / each.sum())
        for mode, each in seconds.items()
    }


def _costs(seconds: dict[str, NDArray[np.float64]]) -> list[dict[str, Any]]:
    """What part of the throughput a thing takes."""
    return [
        {"cost_of": "a TTL", **_cost(seconds["no TTL"], seconds["not swept"])},
        {"cost_of": "its sweep", **_cost(seconds["not swept"], seconds["swept"])},
        {"cost_of": "its sweep without pauses"}
        | _cost(seconds["not swept"], seconds["always swept"]),
    ]


def _cost(without: NDArray[np.float64], having: NDArray[np.float64]) -> dict[str, float]:
    """The part of the throughput that is lost, and its 95 % interval."""
    turns = len(without)
    drawn = np.random.default_rng(9).integers(0, turns, (DRAWS, turns))
    costs = 1 - without[drawn].sum(axis=1) / having[drawn].sum(axis=1)
    low, high = np.percentile(costs, [2.5, 97.5])
    cost = 1 - without.sum() / having.sum()
    return {"cost": round(cost, 3), "from": round(low, 3), "to": round(high, 3)}


def main() -> None:
    """Measure, print tables, and write the figures down."""
    parser = argparse.ArgumentParser(prog="make bench-ttl", description=__doc__)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_KEYS:,} keys, few turns")
    parser.add_argument("--turns", type=int, default=TURNS, help="epochs of each mode")
    parser.add_argument("--output", type=Path, help="where the figures go as JSON")
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        backend, keys, turns, ttl_s = arguments.one
        print(json.dumps(measure(backend, int(keys), int(turns), int(ttl_s))))
        return
    say = Console() if sys.stdout.isatty() else Console(width=140)
    if os.getloadavg()[0] > 1:
        say.print(f"This machine is busy (load {os.getloadavg()[0]:.1f}): rates will be too low.")
    quick, turns = arguments.quick, FEW_TURNS if arguments.quick else arguments.turns
    keys, ttl_s = (QUICK_KEYS, QUICK_SHORT_S) if quick else (KEYS, SHORT_S)
    output = arguments.output or (QUICK if quick else LATEST)
    output.parent.mkdir(parents=True, exist_ok=True)
    show(record(results(keys, turns, ttl_s, say), output), say)
    say.print(f"Written to {output}.")


if __name__ == "__main__":
    main()
