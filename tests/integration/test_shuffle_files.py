"""Shuffle files of an epoch are deleted once it has ended, and do not wait for Java's collector."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from holdfast import SparkSink
from tests.integration.conftest import CountByKey

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from holdfast import StreamExecutionEnvironment

EPOCHS = 6
PATIENCE = 10.0


def shuffles_on_disk(spark: SparkSession) -> set[str]:
    """Numbers of the shuffles that have files."""
    local = Path(spark.sparkContext.getConf().get("spark.local.dir", ""))
    return {file.name.split("_")[1] for file in local.rglob("shuffle_*")}


def no_sink(counts: Any, path: Path) -> None:
    """A function that keeps state is enough for a job."""


def a_collecting_sink(counts: Any, path: Path) -> None:
    counts.print()


def a_spark_sink(counts: Any, path: Path) -> None:
    counts.sink_to(SparkSink("json", {"path": str(path / "out")}))


def a_function_of_dataframes(counts: Any, path: Path) -> None:
    counts.foreach_batch(lambda frame, number: frame.count())


def two_sinks(counts: Any, path: Path) -> None:
    counts.print()
    counts.print("again")


@pytest.mark.versions
@pytest.mark.parametrize(
    "add_sink",
    [no_sink, a_collecting_sink, a_spark_sink, a_function_of_dataframes, two_sinks],
    ids=lambda add: add.__name__,
)
def test_no_epoch_leaves_shuffle_files(
    add_sink: Callable[[Any, Path], None],
    env: StreamExecutionEnvironment,
    file_stream: Callable[..., DataFrame],
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    env.set_available_now()
    batches = [[(f"user-{number}",) for number in range(20)] for _ in range(EPOCHS)]
    rows = env.from_dataframe(file_stream(batches, "user string"))
    counts = rows.key_by("user").process(CountByKey(), output_type="user string, n long")
    add_sink(counts, tmp_path)
    before = shuffles_on_disk(spark)
    env.execute("counts")
    until = time.monotonic() + PATIENCE
    while (left := shuffles_on_disk(spark) - before) and time.monotonic() < until:
        time.sleep(0.1)
    assert left == set()
