"""A job whose output tells of every loss and every repetition, and the sinks it goes to.

For every key it gives out a running count. Its source has one partition, so the same
elements come in the same order however epochs are cut: the rows are the same every time.
Run as a program, it is a driver that can be killed and started again.
"""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import time
import uuid
from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow.dataset as ds

from holdfast import (
    Configuration,
    FileSink,
    KeyedProcessFunction,
    PostgresSink,
    RestartStrategies,
    SparkSink,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
)
from holdfast._faults import VARIABLE
from holdfast.sinks import Committer, Sink, SinkWriter, TwoPhaseCommitSinkFunction
from tests.support.recovery_jobs import BACKENDS, HASHMAP, TIMEOUT, option

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from holdfast import DataStream, JobClient, JobExecutionResult
    from holdfast.sinks import CommitRequest, WriterContext
    from tests.support.postgres import PostgresServer

ROOT = Path(__file__).parents[2]
KEYS = 4
COUNTED = "k string, i bigint, n bigint"
JOB = "output-job"
TABLES = (
    "CREATE TABLE log (k text, i bigint, n bigint)",
    "CREATE TABLE counts (k text PRIMARY KEY, i bigint, n bigint)",
)
Row = tuple[str, int, int]


class Element(NamedTuple):
    """One element of the source."""

    k: str
    i: int


def element(i: int) -> Element:
    return Element(f"k{i % KEYS}", i)


def expected(count: int) -> list[Row]:
    """All rows that a job gives out on its first `count` elements, sorted."""
    return sorted((f"k{i % KEYS}", i, i // KEYS + 1) for i in range(count))


class Delay(NamedTuple):
    """How long a function takes for an element, until a certain file is there."""

    seconds: float
    until: str

    def wait(self) -> None:
        if self.seconds and not os.path.exists(self.until):
            time.sleep(self.seconds)


class Count(KeyedProcessFunction):
    """Counts the elements of every key; refuses those that come out of their order."""

    def __init__(self, delay: Delay) -> None:
        self.delay = delay

    def open(self, ctx: Any) -> None:
        self.last = ctx.get_state(ValueStateDescriptor("last", int))
        self.count = ctx.get_state(ValueStateDescriptor("count", int))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Row]:
        self.delay.wait()
        last = self.last.value()
        assert last is None or value.i > last, f"{value} comes after {last}"
        self.last.update(value.i)
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        yield value.k, value.i, count


class Recount(KeyedProcessFunction):
    """A second keyed operator, which finds every count one higher than the one before."""

    def __init__(self, delay: Delay) -> None:
        self.delay = delay

    def open(self, ctx: Any) -> None:
        self.count = ctx.get_state(ValueStateDescriptor("recount", int))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Row]:
        self.delay.wait()
        count = (self.count.value() or 0) + 1
        assert value.n == count, f"{value} where {count} was to come"
        self.count.update(count)
        yield value.k, value.i, count


class Calls:
    """A function for foreach_batch that writes down all that it was given, one call a line."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __call__(self, df: DataFrame, number: int) -> None:
        call = {"number": number, "rows": [list(row) for row in df.collect()]}
        with self._file.open("a", encoding="utf-8") as file:
            file.write(f"{json.dumps(call)}\n")

    def read(self) -> list[tuple[int, list[Row]]]:
        if not self._file.exists():
            return []
        calls = map(json.loads, self._file.read_text(encoding="utf-8").splitlines())
        return [(call["number"], sorted(_row(*row) for row in call["rows"])) for call in calls]

    def rows(self) -> list[Row]:
        """Rows of all numbers, each number once, having checked that repetitions are equal."""
        by_number: dict[int, list[Row]] = {}
        calls = self.read()
        assert [n for n, _ in calls] == sorted(n for n, _ in calls), "numbers must ascend"
        for number, rows in calls:
            assert by_number.setdefault(number, rows) == rows, f"other rows for {number}"
        return sorted(row for rows in by_number.values() for row in rows)


def _row(k: object, i: object, n: object) -> Row:
    return str(k), int(str(i)), int(str(n))


def rows_in(directory: Path, form: str = "parquet", partitioned: bool = False) -> list[Row]:
    """All rows in the files that a reader sees, sorted."""
    found: list[Row] = []
    if form == "parquet" and directory.exists():
        table = ds.dataset(directory, partitioning="hive" if partitioned else None).to_table()
        found = [_row(**row) for row in table.to_pylist()]
    for path in directory.glob(f"part-*.{form}"):
        if form == "json":
            lines = path.read_text(encoding="utf-8").splitlines()
            found += [_row(**json.loads(line)) for line in lines]
        elif form == "csv":
            with path.open(encoding="utf-8", newline="") as file:
                found += [_row(**row) for row in csv.DictReader(file)]
    return sorted(found)


class OutputJob:
    """The job, with everything it needs and leaves under one directory.

    Args:
        place: The directory.
        settings: By Flink's keys; those of checkpoints without their prefix.
        backend: Where local state is kept.
        parallelism: Subtasks of every operator.
        restarts: How often the job may restart.
        job_id: The job's id.
        count: Elements of the source, which has no end if it is 0.
        per_epoch: Elements of an epoch; all if not given.
        seconds: Time that each of two operators takes for an element; one operator if 0.
        url: Of a database with the tables `log` and `counts`, if the job is to write there.
    """

    def __init__(
        self,
        place: Path,
        settings: dict[str, Any] | None = None,
        *,
        backend: str = HASHMAP,
        parallelism: int = 2,
        restarts: int = 3,
        job_id: str = JOB,
        count: int = 200,
        per_epoch: int | None = 40,
        seconds: float = 0.0,
        url: str | None = None,
    ) -> None:
        self.place = place
        self.count = count
        self.job_id = job_id
        self.url = url
        self._settings = {
            "dir": str(place / "chk"),
            "interval": "10 ms",
            # Output is out when its epoch has ended, if a checkpoint was complete with it.
            "asynchronous": "false",
            # What is small would be kept within the metadata.
            "data-inline-threshold": "0 b",
            "externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
            **(settings or {}),
        }
        self._backend = backend
        self._parallelism = parallelism
        self._restarts = restarts
        self._per_epoch = per_epoch
        self._seconds = seconds
        self.calls = Calls(place / "calls")
        self.hurry = place / "hurry"
        """If this file is there, the operators take no time any more."""

    @property
    def storage(self) -> Path:
        """Where the job's checkpoints are."""
        return self.place / "chk" / self.job_id

    def environment(self, spark: SparkSession) -> StreamExecutionEnvironment:
        """An environment with the job's settings."""
        given = {k: v for k, v in self._settings.items() if v is not None}
        env = StreamExecutionEnvironment.get_execution_environment(
            spark, Configuration({option(key): value for key, value in given.items()})
        )
        env.set_parallelism(self._parallelism).set_state_backend(BACKENDS[self._backend])
        strategy = RestartStrategies.fixed_delay_restart(self._restarts, 0)
        env.set_restart_strategy(strategy if self._restarts else RestartStrategies.no_restart())
        if self._per_epoch is not None:
            env.set_max_events_per_epoch(self._per_epoch)
        return env.set_job_id(self.job_id)

    def counted(self, env: StreamExecutionEnvironment) -> DataStream:
        """The rows, before any sink."""
        source = env.from_generator(element, count=self.count or None)
        return self.counted_from(source.set_parallelism(1).uid("source"))

    def counted_from(self, source: DataStream) -> DataStream:
        """The rows of another source of such elements."""
        delay = Delay(self._seconds, str(self.hurry))
        counted = source.key_by("k").process(Count(delay), COUNTED).uid("count")
        if not self._seconds:
            return counted
        return counted.key_by("k").process(Recount(delay), COUNTED).uid("recount")

    def add_sinks(self, counted: DataStream) -> None:
        """Partitioned Parquet, a function on the driver, and two tables if there is a database."""
        files = FileSink(self.place / "files", "parquet", partition_by=["k"])
        counted.sink_to(files).uid("files")
        counted.foreach_batch(self.calls).uid("calls")
        if self.url is not None:
            counted.sink_to(PostgresSink(self.url, "log")).uid("log")
            upsert = PostgresSink(self.url, "counts", mode="upsert", key="k")
            counted.sink_to(upsert).uid("counts")

    def start(self, spark: SparkSession, from_savepoint: str | None = None) -> JobClient:
        """Start the job on its sinks."""
        env = self.environment(spark)
        self.add_sinks(self.counted(env))
        return env.execute_async("output", from_savepoint=from_savepoint)

    def run(self, spark: SparkSession, from_savepoint: str | None = None) -> JobExecutionResult:
        """Run the job to its end."""
        return self.start(spark, from_savepoint).result(TIMEOUT)

    def stop(self, spark: SparkSession, target: Path) -> str:
        """Start the job, and stop it with a savepoint when some of its output is out."""
        client = self.start(spark)
        while not self.files():
            time.sleep(0.01)
        return client.stop_with_savepoint(str(target))

    def rescale(self, spark: SparkSession, parallelism: int) -> None:
        """Start the job, rescale it after its first epochs, and run it to its end."""
        client = self.start(spark)
        while client.statistics().epochs < 2:
            time.sleep(0.01)
        client.rescale(parallelism, TIMEOUT)
        self.hurry.touch()
        client.result(TIMEOUT)

    def files(self) -> list[Row]:
        """What a reader finds in the files."""
        return rows_in(self.place / "files", partitioned=True)

    def repeated(self) -> list[Row]:
        """Rows that are in the files more than once."""
        return [row for row, times in Counter(self.files()).items() if times > 1]

    def check(self, database: PostgresServer | None = None) -> None:
        """Assert that all output of all elements is out, each row once."""
        rows = expected(self.count)
        assert self.files() == rows
        assert self.calls.rows() == rows
        if database is not None:
            assert sorted(database.execute("SELECT * FROM log")) == rows
            newest = {row[0]: row for row in rows}
            assert sorted(database.execute("SELECT * FROM counts")) == sorted(newest.values())

    def left_behind(self) -> list[str]:
        """What is staged, in the sinks' directories and in checkpoint storage."""
        hidden = [str(path) for path in (self.place / "files").rglob(".holdfast")]
        return hidden + [str(path) for path in self.storage.glob("staged/*")]


class Transactions(TwoPhaseCommitSinkFunction):
    """A transaction is a file that is renamed when it is committed."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def begin_transaction(self) -> str:
        name = uuid.uuid4().hex
        (self.directory / f"{name}.open").touch()
        self.rows: list[Any] = []
        return name

    def invoke(self, transaction: str, value: Any, context: Any) -> None:
        self.rows.append(list(value))

    def pre_commit(self, transaction: str) -> None:
        opened = self.directory / f"{transaction}.open"
        opened.write_text(json.dumps(self.rows))
        opened.rename(self.directory / f"{transaction}.ready")

    def commit(self, transaction: str) -> None:
        ready = self.directory / f"{transaction}.ready"
        if ready.exists():
            ready.rename(self.directory / f"{transaction}.done")

    def abort(self, transaction: str) -> None:
        for suffix in ("open", "ready"):
            (self.directory / f"{transaction}.{suffix}").unlink(missing_ok=True)

    def read(self) -> list[Row]:
        done = [json.loads(path.read_text()) for path in self.directory.glob("*.done")]
        return sorted(tuple(row) for rows in done for row in rows)


class Pages(Sink):
    """Every epoch's rows as a page, numbered through on each subtask."""

    committable_type = dict[str, Any]
    has_state = True
    state_type = int

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def create_writer(self, context: WriterContext) -> SinkWriter:
        return PageWriter(context)

    def create_committer(self, runtime: Any) -> Committer:
        return PageCommitter(self.directory)

    def read(self) -> list[Row]:
        pages = [json.loads(path.read_text()) for path in self.directory.glob("*.json")]
        return sorted(tuple(row) for rows in pages for row in rows)

    def numbers(self, subtask: int) -> list[int]:
        names = [path.stem.split("-") for path in self.directory.glob(f"{subtask}-*.json")]
        return sorted(int(number) for _, number in names)


class PageWriter(SinkWriter):
    def __init__(self, context: WriterContext) -> None:
        assert len(context.restored_state) <= 1
        self._number = sum(context.restored_state)
        self._subtask = context.subtask
        self._rows: list[Any] = []

    def write(self, element: Any, context: Any) -> None:
        self._rows.append(list(element))

    def prepare_commit(self) -> Sequence[Any]:
        if not self._rows:
            return ()
        self._number += 1
        return [{"name": f"{self._subtask}-{self._number}", "rows": self._rows}]

    def snapshot_state(self, checkpoint_id: int) -> Sequence[int]:
        return [self._number]


class PageCommitter(Committer):
    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def commit(self, requests: Sequence[CommitRequest]) -> None:
        for request in requests:
            page = self._directory / f"{request.committable['name']}.json"
            if page.exists():
                request.signal_already_committed()
                continue
            page.write_text(json.dumps(request.committable["rows"]))


class AllSinks:
    """A sink of every kind, and what each of them shows."""

    def __init__(self, job: OutputJob, db: PostgresServer) -> None:
        place = job.place
        for name in ("transactions", "pages"):
            (place / name).mkdir()
        self._job = job
        self.transactions = Transactions(place / "transactions")
        self.pages = Pages(place / "pages")
        self.visible: dict[str, Callable[[], list[Row]]] = {
            "files": job.files,
            "calls": job.calls.rows,
            "json": partial(rows_in, place / "json", "json"),
            "csv": partial(rows_in, place / "csv", "csv"),
            "spark": partial(rows_in, place / "spark-sink"),
            "transactions": self.transactions.read,
            "pages": self.pages.read,
            "log": lambda: sorted(db.execute("SELECT * FROM log")),
        }

    def add_to(self, counted: DataStream) -> None:
        place = self._job.place
        self._job.add_sinks(counted)
        counted.sink_to(FileSink(place / "json", "json")).uid("json")
        counted.sink_to(FileSink(place / "csv", "csv")).uid("csv")
        counted.sink_to(SparkSink("parquet", {"path": str(place / "spark-sink")})).uid("spark")
        counted.add_sink(self.transactions).uid("transactions")
        counted.sink_to(self.pages).uid("pages")

    def show(self, rows: list[Row]) -> None:
        """Assert that every sink shows exactly these rows."""
        for name, read in self.visible.items():
            assert (name, read()) == (name, rows)


class Process:
    """The job as a driver process of its own, which dies by the faults it is given."""

    def __init__(self, place: Path, **arguments: Any) -> None:
        self._place = place
        self._arguments = arguments

    def start(self, *faults: dict[str, Any]) -> int:
        """Run it to its end, good or bad; its exit code."""
        markers = ["-".join(map(str, fault.values())) for fault in faults]
        planned = [
            {"action": "kill", "once": str(self._place / f"struck-{name}"), **fault}
            for name, fault in zip(markers, faults, strict=True)
        ]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
            VARIABLE: json.dumps(planned),
        }
        with (self._place / "log").open("ab") as log:
            return subprocess.run(
                [
                    sys.executable,
                    "-c",
                    "from tests.support.output_jobs import main; main()",
                    str(self._place),
                    json.dumps(self._arguments),
                ],
                cwd=ROOT,
                env=environment,
                stdout=log,
                stderr=log,
                timeout=TIMEOUT,
                check=False,
            ).returncode


def main() -> None:
    """Run the job that the command line describes."""
    from tests.chaos.job import session

    place, arguments = Path(sys.argv[1]), json.loads(sys.argv[2])
    (place / "spark" / "tmp").mkdir(parents=True, exist_ok=True)
    spark = session(place / "spark", "local[2]")
    target = arguments.pop("savepoints", None)
    rescaled = arguments.pop("rescaled", None)
    job = OutputJob(place, **arguments)
    if target is not None:
        job.stop(spark, Path(target))
    elif rescaled is not None:
        job.rescale(spark, rescaled)
    else:
        job.run(spark)
    spark.stop()
