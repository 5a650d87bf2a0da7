"""The job that is killed: a driver program that ends well only when all data is processed.

    python -m tests.chaos.job DIRECTORY '{"data": 5000, ...}'

Source, an operator with operator state, two keyed operators on different keys. Everything
that state holds is given out with every element; the driver keeps the newest of it in
`results.json`, which a successor takes up. Started again after a crash, the program finds
its newest checkpoint unaided: it is told nothing that it was not told the first time.
"""

from __future__ import annotations

import faulthandler
import json
import logging
import os
import signal
import sys
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast import (
    AggregateFunction,
    AggregatingStateDescriptor,
    EmbeddedRocksDBStateBackend,
    ExternalizedCheckpointRetention,
    HashMapStateBackend,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    OutputTag,
    ProcessFunction,
    RestartStrategies,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
)
from holdfast.api.checkpointed import CheckpointedFunction
from tests.chaos.events import NOTHING, Event, Tally, bucket_of, event, is_sampled, team_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

JOB_ID = "c4a05c4a05c4a05c4a05c4a05c4a05c4"
PARALLELISM = 2
LARGEST_EPOCH = 400
CLUSTER_SETTINGS = {
    "spark.shuffle.reduceLocality.enabled": "false",
    "spark.locality.wait": "600s",
    "spark.stage.maxConsecutiveAttempts": "1",
}


@dataclass(frozen=True)
class JobOptions:
    """What the program is told."""

    data: int
    """Events that carry data."""
    count: int | None = None
    """All events, probes included; without it the job runs until the file `finish` is there."""
    rate: float | None = None
    backend: str = "hashmap"
    master: str = "local[2]"


class Folded(NamedTuple):
    """What the first keyed operator gives out: an event, and all it holds of its key."""

    index: int
    key: int
    team: int
    probe: bool
    count: int
    total: int
    xor: int
    buckets: str


class TeamState(NamedTuple):
    """What the second keyed operator holds of a key."""

    team: int
    count: int
    total: int
    xor: int
    ranks: int
    sample: str


class LedgerState(NamedTuple):
    """What a subtask of the operator with operator state holds."""

    subtask: int
    count: int
    total: int
    xor: int


LEDGER = OutputTag("ledger", LedgerState)


class Ledger(ProcessFunction, CheckpointedFunction):
    """Keeps figures of all events of its subtask in operator state."""

    def initialize_state(self, ctx: Any) -> None:
        store = ctx.get_operator_state_store()
        self.state = store.get_list_state(ListStateDescriptor("tallies", Tally))
        self.tally = NOTHING
        for tally in self.state.get():
            self.tally = self.tally.joined(tally)

    def open(self, ctx: Any) -> None:
        self.subtask = ctx.get_index_of_this_subtask()

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        if not value.probe:
            self.tally = self.tally.plus(value.index)
        yield LEDGER, LedgerState(self.subtask, *self.tally)
        yield Event(value.index, value.key, value.probe)

    def snapshot_state(self, ctx: Any) -> None:
        self.state.update([self.tally])


class FoldByKey(KeyedProcessFunction):
    """Value and map state."""

    def open(self, ctx: Any) -> None:
        self.tally = ctx.get_state(ValueStateDescriptor("tally", Tally))
        self.buckets = ctx.get_map_state(MapStateDescriptor("buckets", str, int))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Folded]:
        tally = self.tally.value() or NOTHING
        if not value.probe:
            tally = tally.plus(value.index)
            self.tally.update(tally)
            bucket = bucket_of(value.index)
            self.buckets.put(bucket, (self.buckets.get(bucket) or 0) + 1)
        buckets = json.dumps(sorted(self.buckets.items()))
        team = team_of(value.key)
        yield Folded(value.index, value.key, team, value.probe, *tally, buckets)


class TeamSums(AggregateFunction):
    """Adds up events, and the counts that the operator before had reached with them."""

    def create_accumulator(self) -> tuple[int, int, int, int]:
        return (*NOTHING, 0)

    def add(self, value: Any, accumulator: Any) -> tuple[int, int, int, int]:
        *tally, ranks = accumulator
        return (*Tally(*tally).plus(value.index), ranks + value.count)

    def get_result(self, accumulator: Any) -> Any:
        return accumulator

    def merge(self, acc_a: Any, acc_b: Any) -> tuple[int, int, int, int]:
        joined = Tally(*acc_a[:3]).joined(Tally(*acc_b[:3]))
        return (*joined, acc_a[3] + acc_b[3])


class FoldByTeam(KeyedProcessFunction):
    """Aggregating and list state.

    Its sum of counts is right only if both operators have seen the same events: a state
    of one that is ahead of the other's shows.
    """

    def open(self, ctx: Any) -> None:
        self.sums = ctx.get_aggregating_state(
            AggregatingStateDescriptor("sums", TeamSums(), tuple[int, int, int, int])
        )
        self.sample = ctx.get_list_state(ListStateDescriptor("sample", int))

    def process_element(self, value: Any, ctx: Any) -> Iterator[TeamState]:
        if not value.probe:
            self.sums.add(value)
            if is_sampled(value.index):
                self.sample.add(value.index)
        sums = self.sums.get() or (*NOTHING, 0)
        yield TeamState(value.team, *sums, json.dumps(sorted(self.sample.get())))


class Results:
    """The newest state of every key and subtask that came out, in a file.

    Output may repeat after a recovery. So what came last counts, not what is largest: a
    state that has lost something must not hide behind an older output.
    """

    def __init__(self, path: Path, data: int) -> None:
        self._path = path
        self._data = data
        self.tables: dict[str, Any] = {"key": {}, "team": {}, "ledger": {}, "seen": 0}
        if path.exists():
            self.tables = json.loads(path.read_text())
        self.only_probes = False
        """Whether the last epoch held no data: all of it is processed then."""

    def take_keys(self, rows: DataFrame, epoch: int) -> None:
        found = sorted((Folded(*row) for row in rows.collect()), key=lambda r: r.count)
        if found:
            self.only_probes = min(row.index for row in found) >= self._data
            seen = max(row.index for row in found) + 1
            self.tables["seen"] = max(self.tables["seen"], seen)
        for row in found:
            held = [row.count, row.total, row.xor, json.loads(row.buckets)]
            self.tables["key"][str(row.key)] = held
        self._write()

    def take_teams(self, rows: DataFrame, epoch: int) -> None:
        for row in sorted((TeamState(*row) for row in rows.collect()), key=lambda r: r.count):
            held = [row.count, row.total, row.xor, row.ranks, json.loads(row.sample)]
            self.tables["team"][str(row.team)] = held
        self._write()

    def take_ledgers(self, rows: DataFrame, epoch: int) -> None:
        for row in sorted((LedgerState(*row) for row in rows.collect()), key=lambda r: r.count):
            self.tables["ledger"][str(row.subtask)] = [row.count, row.total, row.xor]
        self._write()

    def _write(self) -> None:
        write_atomically(self._path, self.tables)


def write_atomically(path: Path, content: Any) -> None:
    """Let `path` hold `content` as JSON, wholly or not at all."""
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(content))
    fresh.rename(path)


def session(directory: Path, master: str) -> SparkSession:
    """A session that keeps to the directory, even if it is killed."""
    from pyspark.sql import SparkSession

    settings = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={directory / 'tmp'}",
        "spark.local.dir": str(directory / "local"),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.adaptive.enabled": "false",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    if master.startswith("local-cluster"):
        settings |= CLUSTER_SETTINGS
        settings["spark.executorEnv.PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    builder = SparkSession.builder.master(master).appName("chaos")
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def build(env: StreamExecutionEnvironment, options: JobOptions, results: Results) -> None:
    """The program."""
    source = env.from_generator(
        partial(event, data=options.data), count=options.count, rate=options.rate, type_info=Event
    ).uid("events")
    ledger = source.rebalance().process(Ledger(), Event).uid("ledger")
    keys = ledger.key_by("key").process(FoldByKey(), Folded).uid("keys")
    teams = keys.key_by("team").process(FoldByTeam(), TeamState).uid("teams")
    ledger.get_side_output(LEDGER).foreach_batch(results.take_ledgers)
    keys.foreach_batch(results.take_keys)
    teams.foreach_batch(results.take_teams)


def main(directory: Path, options: JobOptions) -> None:
    """Run the job to its end."""
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("holdfast").setLevel(logging.INFO)
    spark = session(directory, options.master)
    env = StreamExecutionEnvironment.get_execution_environment(spark)
    env.set_parallelism(PARALLELISM).set_max_events_per_epoch(LARGEST_EPOCH).set_job_id(JOB_ID)
    rocksdb = EmbeddedRocksDBStateBackend(enable_incremental_checkpointing=True)
    env.set_state_backend(rocksdb if options.backend == "rocksdb" else HashMapStateBackend())
    env.enable_checkpointing(200)
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(1000, 100))
    checkpoints = env.get_checkpoint_config()
    checkpoints.set_checkpoint_storage_dir(directory / "checkpoints")
    checkpoints.set_externalized_checkpoint_retention(
        ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION
    )
    results = Results(directory / "results.json", options.data)
    build(env, options, results)
    client = env.execute_async("chaos")
    while not client.status().is_terminal:
        try:
            client.result(timeout=0.1)
        except TimeoutError:
            if (directory / "finish").exists() and results.only_probes:
                client.cancel()
    client.result()
    figures = client.statistics()
    ended = {"status": client.status().name, "restarts": figures.restarts}
    write_atomically(directory / "ended.json", ended)
    spark.stop()


def arguments(directory: Path, options: JobOptions) -> list[str]:
    """The command that runs this program."""
    return [sys.executable, "-m", "tests.chaos.job", str(directory), json.dumps(asdict(options))]


if __name__ == "__main__":
    main(Path(sys.argv[1]), JobOptions(**json.loads(sys.argv[2])))
