"""The job that is killed: a driver program that ends well only when all data is processed.

    python -m tests.chaos.job DIRECTORY '{"data": 5000, ...}'

Source, an operator with operator state, one with timers and broadcast state, two keyed
operators on different keys. Everything that state holds is given out with every element;
the driver keeps the newest of it in `results.json`, which a successor takes up. Beside that,
rows go to files and into tables (see `sinks`). Started again after a crash, the program
finds its newest checkpoint unaided: it is told nothing that it was not told the first time.
Stopped with a savepoint, it goes on elsewhere: what it is told then, `successor` says.
"""

from __future__ import annotations

import faulthandler
import json
import logging
import os
import signal
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast import (
    EmbeddedRocksDBStateBackend,
    ExternalizedCheckpointRetention,
    FileSystemCheckpointStorage,
    HashMapStateBackend,
    RestartStrategies,
    StreamExecutionEnvironment,
    WatermarkStrategy,
)
from holdfast.errors import CheckpointError, JobExecutionError
from tests.chaos.compare import tally_of
from tests.chaos.events import NOTHING, Event, Tally, event
from tests.chaos.functions import (
    RULES,
    Delay,
    FoldByKey,
    FoldByTeam,
    Folded,
    Ledger,
    Ledgered,
    Output,
)
from tests.chaos.savepoints import CompleteSavepoints, asked_form, savepoints_in
from tests.chaos.sinks import RESULTS, attach

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from holdfast import JobClient

JOB_ID = "c4a05c4a05c4a05c4a05c4a05c4a05c4"
PARALLELISM, OTHER_PARALLELISM = 2, 3
LARGEST_EPOCH = 400
CONTROL, CONTROL_RATE = 100, 20.0
"""Elements of the control stream where all streams end, and how many come in a second."""
INLINE_BELOW = 2048
"""Bytes; some of the rows that wait for their checkpoint are more, and become files."""
INTERVAL_MS = 200
SLOW_INTERVAL_MS, SLOW = 500, 0.002
"""Of a slow job: the interval, and the seconds for an event. Epochs take longer than that."""
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
    database: str | None = None
    """URL of the database; without it there are no sinks but the driver's function."""
    schema: str = ""
    """Of the tables there."""
    unaligned: bool = False
    """Whether checkpoints are unaligned, and the job is slow enough for that to matter."""
    job_id: str = JOB_ID
    parallelism: int = PARALLELISM
    from_savepoint: str | None = None


def successor(options: JobOptions, savepoint: str, number: int) -> JobOptions:
    """What the program is told that goes on from a savepoint, as the job with that number.

    It has another id, another state backend and another parallelism.
    """
    return replace(
        options,
        job_id=f"{number:06x}{JOB_ID[6:]}",
        backend="hashmap" if options.backend == "rocksdb" else "rocksdb",
        parallelism=PARALLELISM + OTHER_PARALLELISM - options.parallelism,
        from_savepoint=savepoint,
    )


class Results:
    """The newest state of every key and subtask that came out, in a file.

    What came last counts, not what is largest: a state that has lost something must not
    hide behind an older output. Output comes with its checkpoint, once or again under the
    same id; figures of all events that came tell that each came under one id alone.
    """

    def __init__(self, path: Path, data: int) -> None:
        self._path = path
        self._data = data
        self.tables: dict[str, Any] = {
            **{"key": {}, "team": {}, "ledger": {}, "seen": 0},
            **{"checkpoint": 0, "output": NOTHING, "all": NOTHING, "faults": []},
        }
        if path.exists():
            self.tables = json.loads(path.read_text())
        self.only_probes = False
        """Whether the last output held no data: all of it is processed then."""

    def take(self, rows: DataFrame, checkpoint: int) -> None:
        """Take what has become final with a checkpoint."""
        found = rows.collect()
        numbers = [row.folded.event.number for row in found]
        self._account(numbers, checkpoint)
        if found:
            self.only_probes = min(numbers) >= self._data
            self.tables["seen"] = max(self.tables["seen"], max(numbers) + 1)
        # Within a checkpoint, what has seen most events came last.
        for row in sorted(found, key=lambda row: row.folded.event.ledger.events):
            event = row.folded.event
            self.tables["ledger"][str(event.subtask)] = [*event.ledger]
        for row in sorted(found, key=lambda row: row.folded.tally.events):
            held = [*row.folded.tally, [[*pair] for pair in row.folded.buckets]]
            self.tables["key"][str(row.folded.event.key)] = held
        for row in sorted(found, key=lambda row: row.tally.events):
            held = [*row.tally, row.ranks, list(row.sample)]
            self.tables["team"][str(row.folded.team)] = held
        write_atomically(self._path, self.tables)

    def _account(self, numbers: list[int], checkpoint: int) -> None:
        """Add the output to the figures, unless it came before under the same id."""
        tables, output = self.tables, tally_of(numbers)
        if checkpoint > tables["checkpoint"]:
            tables["checkpoint"], tables["output"] = checkpoint, output
            tables["all"] = Tally(*tables["all"]).joined(output)
        elif checkpoint < tables["checkpoint"]:
            tables["faults"].append(
                f"output of checkpoint {checkpoint} after that of {tables['checkpoint']}"
            )
        elif [*output] != [*tables["output"]]:
            tables["faults"].append(
                f"checkpoint {checkpoint} came again with {output} instead of {tables['output']}"
            )


def forget_state(path: Path) -> dict[str, Any]:
    """Let a successor find no state in the results, but all else; which is returned."""
    tables: dict[str, Any] = json.loads(path.read_text())
    write_atomically(path, tables | {"key": {}, "team": {}, "ledger": {}})
    return tables


def events_given_out(path: Path) -> int:
    """How far the results have come, if there are any."""
    return int(json.loads(path.read_text())["seen"]) if path.exists() else 0


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


def build(
    env: StreamExecutionEnvironment, options: JobOptions, directory: Path, results: Results
) -> None:
    """The program."""
    source = env.from_generator(
        partial(event, data=options.data), count=options.count, rate=options.rate, type_info=Event
    ).uid("events")
    timed = source.assign_timestamps_and_watermarks(
        WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("number")
    ).uid("time")
    ledger = timed.rebalance().process(Ledger(), Ledgered).uid("ledger")
    elements = None if options.count is None else CONTROL
    control = env.from_generator(int, count=elements, rate=CONTROL_RATE, type_info=int)
    rules = control.uid("control").set_parallelism(1).broadcast(RULES)
    delay = Delay(holds=not options.unaligned)
    delayed = ledger.key_by("key").connect(rules).process(delay, Ledgered).uid("delay")
    keys = delayed.key_by("key").process(FoldByKey(), Folded).uid("keys")
    slow = FoldByTeam(SLOW if options.unaligned else 0.0)
    teams = keys.key_by("team").process(slow, Output).uid("teams")
    teams.foreach_batch(results.take).uid(RESULTS)
    if options.database is not None:
        attach(keys, teams, directory, options.database, options.schema)


def main(directory: Path, options: JobOptions) -> None:
    """Run the job to its end."""
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("holdfast").setLevel(logging.INFO)
    spark = session(directory, options.master)
    env = StreamExecutionEnvironment.get_execution_environment(spark)
    env.set_parallelism(options.parallelism).set_max_events_per_epoch(LARGEST_EPOCH)
    env.set_job_id(options.job_id).add_checkpoint_listener(CompleteSavepoints(directory))
    rocksdb = EmbeddedRocksDBStateBackend(enable_incremental_checkpointing=True)
    env.set_state_backend(rocksdb if options.backend == "rocksdb" else HashMapStateBackend())
    env.add_epoch_listener(lambda epoch: logging.getLogger("holdfast").info("%s", epoch))
    env.enable_checkpointing(SLOW_INTERVAL_MS if options.unaligned else INTERVAL_MS)
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(1000, 100))
    checkpoints = env.get_checkpoint_config()
    checkpoints.set_checkpoint_storage(
        FileSystemCheckpointStorage(str(directory / "checkpoints"), INLINE_BELOW)
    )
    checkpoints.enable_unaligned_checkpoints(options.unaligned)
    checkpoints.set_externalized_checkpoint_retention(
        ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION
    )
    results = Results(directory / "results.json", options.data)
    build(env, options, directory, results)
    client = env.execute_async("chaos", from_savepoint=options.from_savepoint)
    savepoint = watch(client, directory, results)
    client.result()
    ended = {"status": client.status().name, "restarts": client.statistics().restarts}
    write_atomically(directory / "ended.json", ended | {"savepoint": savepoint})
    spark.stop()


def watch(client: JobClient, directory: Path, results: Results) -> str | None:
    """Wait for the job's end, and end it when told to; the savepoint that it ended with."""
    while not client.status().is_terminal:
        try:
            client.result(timeout=0.1)
        except TimeoutError:
            if (directory / "finish").exists() and results.only_probes:
                client.cancel()
            elif form := asked_form(directory):
                # The job may be restarting, or fail on the way: it is asked again then.
                with suppress(CheckpointError, JobExecutionError):
                    target = str(savepoints_in(directory))
                    return client.stop_with_savepoint(target, format_type=form)
    return None


def arguments(directory: Path, options: JobOptions) -> list[str]:
    """The command that runs this program."""
    return [sys.executable, "-m", "tests.chaos.job", str(directory), json.dumps(asdict(options))]


if __name__ == "__main__":
    main(Path(sys.argv[1]), JobOptions(**json.loads(sys.argv[2])))
