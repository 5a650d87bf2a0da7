"""Sources that are read again after a failure: every row once in state, whatever they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from tests.support.recovery_jobs import Mishap, RecoveryJob, event, expected
from tests.support.recovery_tools import Feed, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType


@pytest.mark.versions
@pytest.mark.parametrize("per_epoch", [1, 3])
def test_files(spark: SparkSession, tmp_path: Path, per_epoch: int) -> None:
    feed = Feed(spark, tmp_path / "input").fill(7, each=20)
    job = RecoveryJob(spark, tmp_path / "chk").settled()
    stream = feed.stream(per_epoch)
    statistics = job.run(stream, Mishap(130, str(tmp_path / "once")))
    assert job.outcome() == expected(feed.elements)
    assert statistics.checkpoints
    assert statistics.checkpoints.restored == 1


@pytest.mark.versions
def test_the_rate_source(spark: SparkSession, tmp_path: Path) -> None:
    rates = spark.readStream.format("rate").option("rowsPerSecond", 50).load()
    stream = rates.selectExpr("value AS i", "concat('k', value % 20) AS k")
    job = RecoveryJob(spark, tmp_path / "chk").settled()
    client = job.start(stream, Mishap(120, str(tmp_path / "once")))
    wait_for(lambda: len(job.books.rows) > 200, "rows beyond the failure")
    client.cancel()
    assert client.statistics().restarts == 1
    assert job.outcome() == expected(range(len(job.books.rows)))


class Range(InputPartition):
    """Elements from one number to another."""

    def __init__(self, start: int, end: int) -> None:
        self.start, self.end = start, end


class Numbered(DataSource):
    """A user's own streaming source: forty elements in every batch, until there are 200."""

    @classmethod
    def name(cls) -> str:
        return "numbered"

    def schema(self) -> str:
        return "i bigint, k string"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return NumberedReader()


class NumberedReader(DataSourceStreamReader):
    def __init__(self) -> None:
        self.at: int | None = None

    def initialOffset(self) -> dict[str, int]:
        return {"at": 0}

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, int]:
        # Without a memory of its own: Spark says where the batch before has ended.
        return {"at": min(200, (start or {"at": 0})["at"] + 40)}

    def partitions(self, start: Any, end: Any) -> list[Range]:
        middle = (start["at"] + end["at"]) // 2
        return [Range(start["at"], middle), Range(middle, end["at"])]

    def read(self, partition: Any) -> Iterator[tuple[int, str]]:
        for i in range(partition.start, partition.end):
            yield event(i)


@pytest.mark.versions
def test_a_python_data_source(spark: SparkSession, tmp_path: Path) -> None:
    spark.dataSource.register(Numbered)
    job = RecoveryJob(spark, tmp_path / "chk").settled()
    client = job.start(
        spark.readStream.format("numbered").load(), Mishap(130, str(tmp_path / "once"))
    )
    wait_for(lambda: len(job.books.rows) >= 200, "all elements")
    client.cancel()
    assert client.statistics().restarts == 1
    assert job.outcome() == expected(range(200))


@pytest.mark.versions
def test_a_static_dataframe_beside_a_stream(spark: SparkSession, tmp_path: Path) -> None:
    feed = Feed(spark, tmp_path / "input").fill(3)
    static = spark.createDataFrame([event(i) for i in range(1000, 1060)], "i bigint, k string")
    job = RecoveryJob(spark, tmp_path / "chk").settled()
    beside = job.env.from_dataframe(static).uid("static")
    both = job.env.from_dataframe(feed.stream()).uid("source").union(beside)
    statistics = job.run(both, Mishap(90, str(tmp_path / "once")))
    assert statistics.restarts == 1
    assert job.outcome() == expected([*range(1000, 1060), *feed.elements])
