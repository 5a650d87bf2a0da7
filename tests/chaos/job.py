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
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast import (
    Configuration,
    EmbeddedRocksDBStateBackend,
    ExternalizedCheckpointRetention,
    FileSystemCheckpointStorage,
    HashMapStateBackend,
    RestartStrategies,
    StreamExecutionEnvironment,
    WatermarkStrategy,
)
from holdfast.config.checkpoint_options import LOCAL_BACKUP
from holdfast.config.configuration import LOCAL_STATE_DIR
from holdfast.errors import CheckpointError, JobExecutionError
from tests.chaos import seams
from tests.chaos.events import Event, event
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
from tests.chaos.results import Results, write_atomically
from tests.chaos.sampler import report_heap
from tests.chaos.savepoints import CompleteSavepoints, asked_form, savepoints_in
from tests.chaos.sinks import RESULTS, attach

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import SparkSession

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
HEAP_EVERY = 10.0
"""Seconds between two looks at what the Java heap holds after a collection."""
SEAMS = {
    "spark.python.daemon.module": "tests.chaos.worker",
    "spark.executorEnv.PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    # Spark remembers so much for its pages that its heap would grow for half an hour.
    "spark.ui.retainedJobs": "50",
    "spark.ui.retainedStages": "50",
    "spark.ui.retainedTasks": "500",
    "spark.sql.ui.retainedExecutions": "20",
}
"""Settings with which the job can be disturbed, and what it takes can be told."""
STOP_SESSION = "stop-session"
"""The file that lets the program stop its own session."""
REFUSED, SUSPENDED = 2, 3
"""Exit codes: of a start that was refused, or a job that failed; of one that was suspended."""
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
    interval_ms: int = INTERVAL_MS
    largest_epoch: int = LARGEST_EPOCH
    checkpoints: str | None = None
    """Directory of checkpoint storage; one in the program's own if not given."""
    flaky: bool = False
    """Whether checkpoint storage is remote, and fails when it is told to."""
    state: str | None = None
    """Directory for local state; Spark's own if not given."""
    local_backup: bool = False


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


def session(directory: Path, master: str, more: Mapping[str, str] | None = None) -> SparkSession:
    """A session that keeps to the directory, even if it is killed; with `more` settings."""
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
    settings |= more or {}
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
    slow = FoldByTeam(options.data, SLOW if options.unaligned else 0.0)
    teams = keys.key_by("team").process(slow, Output).uid("teams")
    teams.foreach_batch(results.take).uid(RESULTS)
    if options.database is not None:
        attach(keys, teams, directory, options.database, options.schema)


def main(directory: Path, options: JobOptions) -> int:
    """Run the job to its end; the exit code."""
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("holdfast").setLevel(logging.INFO)
    seams.install()
    environment = {f"spark.executorEnv.{seams.DIRECTORY}": os.environ.get(seams.DIRECTORY, "")}
    spark = session(directory, options.master, SEAMS | environment)
    report_heap(spark, directory, HEAP_EVERY)
    stop_when_told(spark, directory)
    results = Results(directory / "results.json", options.data)
    client = None
    ended: dict[str, Any] = {"savepoint": None}
    try:
        env = environment_of(spark, directory, options)
        build(env, options, directory, results)
        client = env.execute_async("chaos", from_savepoint=options.from_savepoint)
        ended["savepoint"] = watch(client, directory, results)
        client.result()
    except Exception as error:
        ended["errors"] = [f"{type(one).__name__}: {one}" for one in causes(error)]
    ended["status"] = "REFUSED" if client is None else client.status().name
    ended["restarts"] = 0 if client is None else client.statistics().restarts
    write_atomically(directory / "ended.json", ended)
    # A session that has died cannot be stopped.
    with suppress(Exception):
        spark.stop()
    return {"SUSPENDED": SUSPENDED, "FAILED": REFUSED, "REFUSED": REFUSED}.get(ended["status"], 0)


def environment_of(
    spark: SparkSession, directory: Path, options: JobOptions
) -> StreamExecutionEnvironment:
    """How the job runs."""
    configuration = Configuration({LOCAL_BACKUP.key: options.local_backup})
    if options.state is not None:
        configuration.set(LOCAL_STATE_DIR, options.state)
    env = StreamExecutionEnvironment.get_execution_environment(spark, configuration)
    env.set_parallelism(options.parallelism).set_max_events_per_epoch(options.largest_epoch)
    env.set_job_id(options.job_id).add_checkpoint_listener(CompleteSavepoints(directory))
    rocksdb = EmbeddedRocksDBStateBackend(enable_incremental_checkpointing=True)
    env.set_state_backend(rocksdb if options.backend == "rocksdb" else HashMapStateBackend())
    env.add_epoch_listener(lambda epoch: logging.getLogger("holdfast").info("%s", epoch))
    env.enable_checkpointing(SLOW_INTERVAL_MS if options.unaligned else options.interval_ms)
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(1000, 100))
    checkpoints = env.get_checkpoint_config()
    place = options.checkpoints or str(directory / "checkpoints")
    url = f"{seams.PROTOCOL}://{place}" if options.flaky else place
    checkpoints.set_checkpoint_storage(FileSystemCheckpointStorage(url, INLINE_BELOW))
    checkpoints.enable_unaligned_checkpoints(options.unaligned)
    checkpoints.set_externalized_checkpoint_retention(
        ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION
    )
    return env


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error, and what has led to it."""
    while error is not None:
        yield error
        error = error.__cause__


def stop_when_told(spark: SparkSession, directory: Path) -> None:
    """Stop the session, from a thread, as soon as the monkey asks for it."""

    def run() -> None:
        while not (directory / STOP_SESSION).exists():
            time.sleep(0.05)
        spark.stop()

    threading.Thread(target=run, daemon=True).start()


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
    code = main(Path(sys.argv[1]), JobOptions(**json.loads(sys.argv[2])))
    sys.exit(code)
