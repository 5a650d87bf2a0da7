"""Run by test_cluster.py in a process of its own: a job on two executors that is rescaled.

Prints, as JSON, the job attempts that have local state on each executor after every rescale, and
the rows that the job has published.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession

from tests.support.cluster_program import SETTINGS
from tests.support.output_jobs import OutputJob
from tests.support.recovery_jobs import ROCKSDB, TIMEOUT
from tests.support.recovery_tools import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

EXECUTORS = 2


def local_attempts(_: Iterable[Any]) -> Iterator[tuple[str, list[str]]]:
    """Runs on an executor: its directory, and the job attempts with local state in it."""
    root = os.environ["SPARK_LOCAL_DIRS"]
    found = Path(root).glob("**/holdfast-*/*-*-*/")
    yield root, sorted({path.name.partition(".")[0] for path in found})


def main(place: Path) -> None:
    builder = SparkSession.builder.master(f"local-cluster[{EXECUTORS},2,1024]")
    for key, value in SETTINGS.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    settings = {"local-backup.enabled": "true"}
    job = OutputJob(place, settings, backend=ROCKSDB, parallelism=4, count=0, restarts=0)
    client = job.start(spark)

    def go_on() -> None:
        before = len(job.files())
        wait_for(lambda: len(job.files()) >= before + 40 or client.status().is_terminal, "rows")

    def attempts() -> dict[str, list[str]]:
        tasks = 8 * EXECUTORS
        looks = spark.sparkContext.parallelize(range(tasks), tasks)
        return dict(looks.mapPartitions(local_attempts).collect())

    go_on()
    left = [attempts()]
    for parallelism in (2, 3):
        client.rescale(parallelism, TIMEOUT)
        go_on()
        left.append(attempts())
    client.stop_with_savepoint(place / "savepoints")
    restarts = client.statistics().restarts
    print(json.dumps({"left": left, "rows": job.files(), "restarts": restarts}))
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
