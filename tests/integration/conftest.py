"""What tests on real Spark share."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from holdfast import KeyedProcessFunction, StreamExecutionEnvironment, ValueStateDescriptor
from holdfast.connectors.postgres.sink import PostgresSink
from tests.support.postgres import PostgresServer, postgres_server
from tests.support.recovery_tools import Faults

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture(scope="module")
def injected(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Faults]:
    """Faults that a test may plan; they strike in the driver and in Python workers."""
    with Faults(spark, tmp_path_factory.mktemp("faults")) as prepared:
        yield prepared


@pytest.fixture
def no_faults(injected: Faults, tmp_path: Path) -> None:
    """None strikes, whatever the test before has planned."""
    injected.plan(tmp_path)


@pytest.fixture(scope="session")
def server() -> Iterator[PostgresServer]:
    """A PostgreSQL server."""
    with postgres_server() as server:
        yield server


@pytest.fixture
def db(server: PostgresServer) -> PostgresServer:
    """The server with nothing in it but the tables `counts` and `log`."""
    server.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    server.execute('CREATE TABLE counts ("user" text PRIMARY KEY, n bigint)')
    server.execute('CREATE TABLE log ("user" text, n bigint)')
    return server


@pytest.fixture
def counts(db: PostgresServer) -> PostgresSink:
    """A sink that updates the table `counts`."""
    return PostgresSink(db.url, "counts", mode="upsert", key="user")


@pytest.fixture
def log(db: PostgresServer) -> PostgresSink:
    """A sink that appends to the table `log`."""
    return PostgresSink(db.url, "log")


@pytest.fixture
def env(spark: SparkSession) -> StreamExecutionEnvironment:
    """An environment of two subtasks per operator."""
    return StreamExecutionEnvironment.get_execution_environment(spark).set_parallelism(2)


@pytest.fixture
def file_stream(spark: SparkSession, tmp_path: Path) -> Callable[..., DataFrame]:
    """Makes a streaming DataFrame of the given batches of rows, a batch to an epoch."""

    def make(batches: list[list[tuple[Any, ...]]], schema: str) -> DataFrame:
        path = tmp_path / "input"
        for number, rows in enumerate(batches):
            frame = spark.createDataFrame(rows, schema).coalesce(1)
            frame.write.mode("overwrite").json(str(tmp_path / f"batch-{number}"))
            part = next((tmp_path / f"batch-{number}").glob("part-*"))
            path.mkdir(exist_ok=True)
            part.rename(path / f"{number:05d}.json")
        reader = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
        return reader.json(str(path))

    return make


class CountByKey(KeyedProcessFunction):
    """Counts the elements of every key."""

    def open(self, ctx: Any) -> None:
        self.count = ctx.get_state(ValueStateDescriptor("count", int))

    def process_element(self, value: Any, ctx: Any) -> Iterator[tuple[Any, int]]:
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        yield ctx.get_current_key(), count


def final_counts(outputs: list[Any]) -> dict[Any, int]:
    """The highest count of every key, having checked that none was left out or repeated."""
    seen = Counter(key for key, _ in outputs)
    assert sorted(outputs) == sorted((k, n) for k, m in seen.items() for n in range(1, m + 1))
    return dict(seen)
