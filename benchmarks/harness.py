"""How a run is measured: the same for every system.

The source is a directory with one file per epoch (`maxFilesPerTrigger=1`), the trigger
is `availableNow`, and the time of an epoch is `triggerExecution` as Spark's own query
progress reports it. The rate is the median over the measured epochs of events by time.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from pyspark.sql import DataFrame, SparkSession

from benchmarks.workloads import Workload, ddl

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pyspark.sql.streaming.query import StreamingQuery

_FILE_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"

FAST_FILE_MANAGER = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)
"""The checkpoint file manager that is quicker than the default on a local disk."""

SETTINGS: Mapping[str, str] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "4g",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}
"""Settings of the session that every system shares."""


@dataclass(frozen=True, slots=True)
class Result:
    """Rates of one system on one workload."""

    workload: str
    system: str
    backend: str
    events_per_epoch: int
    seconds: tuple[float, ...]
    """Time of every measured epoch."""
    events_per_s: float
    """Median rate over the measured epochs."""
    whole_run_events_per_s: float
    """All events by all time, the discarded first epochs included."""


class Run(Protocol):
    """One system, ready to run a workload."""

    def __call__(
        self,
        workload: Workload,
        backend: str,
        data_dir: Path,
        events_per_epoch: int,
        spark: SparkSession,
        output_dir: Path | None = None,
    ) -> Result:
        """Run every epoch in `data_dir` from empty state, and say how long each took.

        The output is computed in full and dropped; if `output_dir` is given, it is
        kept there as Parquet, in the columns of `workload.output`.
        """


def session(extra: Mapping[str, str] | None = None) -> SparkSession:
    """Spark on two local cores, with `SETTINGS` and then `extra`."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master("local[2]").appName("holdfast-benchmark")
    for key, value in {**SETTINGS, **(extra or {})}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def use_file_manager(spark: SparkSession, *, fast: bool) -> None:
    """Choose how queries started from now on write their checkpoint files."""
    if fast:
        spark.conf.set(_FILE_MANAGER, FAST_FILE_MANAGER)
    else:
        spark.conf.unset(_FILE_MANAGER)


def read_epochs(spark: SparkSession, workload: Workload, data_dir: Path) -> DataFrame:
    """The events in `data_dir` as a stream, one file per micro-batch."""
    reader = spark.readStream.schema(ddl(workload.columns)).option("maxFilesPerTrigger", 1)
    return reader.parquet(str(data_dir))


@contextmanager
def scratch() -> Iterator[Path]:
    """A directory on the local disk that is gone afterwards."""
    directory = Path(tempfile.mkdtemp(prefix="holdfast-benchmark-"))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def epoch_seconds(query: StreamingQuery) -> list[float]:
    """Wait for the query's end; the time each of its micro-batches took."""
    query.awaitTermination()
    return [progress["durationMs"]["triggerExecution"] / 1000 for progress in query.recentProgress]


def timed(start: Callable[[Path], StreamingQuery]) -> list[float]:
    """Start a query on a fresh checkpoint directory and time its epochs."""
    with scratch() as directory:
        return epoch_seconds(start(directory))


def rates(
    workload: Workload,
    system: str,
    backend: str,
    events_per_epoch: int,
    seconds: Sequence[float],
) -> Result:
    """The result of one run; its first epoch, if there are others, is not measured."""
    measured = tuple(seconds[1:] or seconds)
    return Result(
        workload=workload.name,
        system=system,
        backend=backend,
        events_per_epoch=events_per_epoch,
        seconds=measured,
        events_per_s=events_per_epoch / statistics.median(measured),
        whole_run_events_per_s=events_per_epoch * len(seconds) / sum(seconds),
    )


def combined(results: Sequence[Result]) -> Result:
    """Several runs of one system as one result: medians over all of them."""
    seconds = tuple(second for result in results for second in result.seconds)
    first = results[0]
    return replace(
        first,
        seconds=seconds,
        events_per_s=first.events_per_epoch / statistics.median(seconds),
        whole_run_events_per_s=statistics.median(r.whole_run_events_per_s for r in results),
    )
