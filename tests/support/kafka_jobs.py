"""Jobs that read Kafka, in a driver process of their own: the shared session has no Kafka.

`Driver` calls functions in that process, and starts it anew if it was killed. A job keeps
`Books` of every topic and writes what they say to files, exactly once; `booked` reads them.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow.dataset as ds

from holdfast import Configuration, FileSink, RestartStrategies, StreamExecutionEnvironment
from holdfast._faults import VARIABLE
from tests.support.recovery_jobs import (
    BACKENDS,
    BOOKED,
    HASHMAP,
    TIMEOUT,
    Books,
    Outcome,
    expected,
    option,
)
from tests.support.recovery_tools import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from holdfast.statistics import JobStatistics
    from tests.support.kafka import KafkaBroker

KEY, VALUE = "concat('k', id % 20) AS key", "CAST(id AS STRING) AS value"


class Driver:
    """A process with a Spark session that has Kafka."""

    def __init__(self, broker: KafkaBroker, directory: Path) -> None:
        self._arguments = (broker.address, broker.source_jars, directory)
        self._pool: ProcessPoolExecutor | None = None

    def run(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """What `function` returns or raises over there, given the topics first.

        Raises:
            BrokenProcessPool: The process has died on the way.
        """
        if self._pool is None:
            self._pool = ProcessPoolExecutor(1, get_context("spawn"), _begin, self._arguments)
        try:
            return self._pool.submit(_call, function, args, options).result(TIMEOUT)
        except BrokenProcessPool:
            self.close()
            raise

    def close(self) -> None:
        """End the process, if it lives."""
        if self._pool is not None:
            with suppress(BrokenProcessPool):
                self._pool.submit(_call, Topics.close, (), {}).result(TIMEOUT)
            self._pool.shutdown()
            self._pool = None


_topics: list[Topics] = []
"""Of this process, if it is a driver."""


def _begin(address: str, jars: list[str], directory: Path) -> None:
    from pyspark.sql import SparkSession

    settings = {
        "spark.jars": ",".join(jars),
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.local.dir": str(directory / "local"),
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    builder = SparkSession.builder.master("local[2]").appName("kafka")
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    _topics.append(Topics(spark, address))


def _call(function: Callable[..., Any], args: Sequence[Any], options: dict[str, Any]) -> Any:
    return function(*_topics, *args, **options)


class Topics:
    """The topics of a broker, with elements such as `recovery_jobs.event` makes."""

    def __init__(self, spark: SparkSession, address: str) -> None:
        self.spark = spark
        self._servers = {"kafka.bootstrap.servers": address}
        jvm: Any = spark._jvm
        self._jvm = jvm
        self._classes = jvm.org.apache.kafka.clients.admin
        properties = jvm.java.util.Properties()
        properties.setProperty("bootstrap.servers", address)
        self._admin = self._classes.AdminClient.create(properties)

    def close(self) -> None:
        self._admin.close()
        self.spark.stop()

    def create(self, name: str, partitions: int) -> None:
        optional = self._jvm.java.util.Optional
        topic = self._classes.NewTopic(name, optional.of(partitions), optional.empty())
        self._admin.createTopics([topic]).all().get()

    def grow(self, name: str, partitions: int) -> None:
        """Add partitions, so that there are so many."""
        more = self._classes.NewPartitions.increaseTo(partitions)
        self._admin.createPartitions({name: more}).all().get()

    def delete(self, name: str) -> None:
        self._admin.deleteTopics([name]).all().get()

    def forget(self, name: str, partition: int, before: int) -> None:
        """Let the records before an offset go, as when they have become too old."""
        place = self._jvm.org.apache.kafka.common.TopicPartition(name, partition)
        # Py4J takes it for the method that has the same name and is not static.
        deletion = self._classes.RecordsToDelete._java_lang_class
        reflection = self._jvm.org.apache.commons.lang3.reflect.MethodUtils
        gone = reflection.invokeStaticMethod(deletion, "beforeOffset", self._array(before))
        self._admin.deleteRecords({place: gone}).all().get()

    def _array(self, number: int) -> Any:
        gateway: Any = self.spark.sparkContext._gateway
        array = gateway.new_array(self._jvm.java.lang.Object, 1)
        array[0] = number
        return array

    def produce(self, name: str, elements: range) -> None:
        """Write elements; those of a key go to one partition, as long as none is added."""
        rows = self.spark.range(elements.start, elements.stop, numPartitions=1)
        writer = rows.selectExpr(KEY, VALUE).write.format("kafka")
        writer.options(**self._servers, topic=name).save()

    def stream(self, name: str, **options: Any) -> DataFrame:
        """All elements, from the oldest on."""
        reader = self.spark.readStream.format("kafka").option("subscribe", name)
        reader = reader.option("startingOffsets", "earliest")
        rows = reader.options(**self._servers, **options).load()
        return rows.selectExpr("CAST(value AS STRING)", "CAST(key AS STRING) AS k").selectExpr(
            "CAST(value AS BIGINT) AS i", "k"
        )


class Job(NamedTuple):
    """A job over some topics, which keeps all it needs and leaves in a directory."""

    place: Path
    names: tuple[str, ...]
    """The topics, in the order in which the program lists them."""
    parallelism: int = 2
    backend: str = HASHMAP
    per_epoch: int = 80
    may_lose: bool = False
    """Whether the job goes on without what Kafka does not have any more."""
    job_id: str | None = None

    def build(self, topics: Topics) -> StreamExecutionEnvironment:
        settings = {
            "dir": str(self.place / "chk"),
            "interval": "10 ms",
            # An epoch ends when its checkpoint is complete, and its output published.
            "asynchronous": "false",
        }
        env = StreamExecutionEnvironment.get_execution_environment(
            topics.spark, Configuration({option(key): value for key, value in settings.items()})
        )
        env.set_parallelism(self.parallelism).set_state_backend(BACKENDS[self.backend])
        env.set_restart_strategy(RestartStrategies.no_restart())
        if self.job_id is not None:
            env.set_job_id(self.job_id)
        options = {"maxOffsetsPerTrigger": self.per_epoch, "failOnDataLoss": not self.may_lose}
        for name in self.names:
            elements = env.from_dataframe(topics.stream(name, **options)).uid(name)
            books = elements.key_by("k").process(Books(), BOOKED).uid(f"books-{name}")
            books.sink_to(FileSink(self.place / name)).uid(f"files-{name}")
        return env


def produce(topics: Topics, name: str, elements: range, partitions: int | None = None) -> None:
    """Write elements to a topic, which is made first if a number of partitions is given."""
    if partitions is not None:
        topics.create(name, partitions)
    topics.produce(name, elements)


def run(
    topics: Topics, job: Job, fault: dict[str, Any] | None = None, **beginning: Any
) -> JobStatistics:
    """Run a job until it has read all there is; with a fault, until that strikes."""
    env = job.build(topics).set_available_now()
    # It is for generators and collections; else there would be an epoch for every element.
    env.set_max_events_per_epoch(1)
    if fault is not None:
        os.environ[VARIABLE] = json.dumps([{"once": str(job.place / "struck"), **fault}])
    return env.execute("kafka", **beginning).statistics


def stop(topics: Topics, job: Job, elements: int, **beginning: Any) -> str:
    """Run a job until it has read so many elements, or some more; the savepoint it ends with."""
    client = job.build(topics).execute_async("kafka", **beginning)

    def enough() -> bool:
        if client.status().is_terminal:
            client.result()
        return client.statistics().events >= elements

    wait_for(enough, f"{elements} elements")
    return client.stop_with_savepoint(str(job.place / "savepoints"))


def booked(directory: Path) -> Outcome:
    """What the files say, having checked that no count of a key is there twice."""
    rows = [tuple(row.values()) for row in ds.dataset(directory).to_table().to_pylist()]
    counts = Counter((key, n) for key, _, n, *_ in rows)
    assert not [count for count, times in counts.items() if times > 1]
    last = {row[0]: row[2:] for row in sorted(rows, key=lambda row: row[2])}
    elements = Counter(row[1] for row in rows)
    return Outcome(elements, last, expected(elements.elements()).sums)
