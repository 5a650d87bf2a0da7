"""Keeps every subtask on the executor that holds its state.

Spark does not remember where a task after a shuffle ran. A small cached DataFrame,
the anchor, has one row per subtask; joining an epoch's rows with it makes each task
prefer the executor that caches its anchor's row. The join is streamed and, since
both sides are partitioned alike, adds no shuffle.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from holdfast.runtime.exchange import SUBTASK
from holdfast.spark.session import runs_locally

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Pinning:
    """Spreads rows over subtasks, which stay on the same executors."""

    def __init__(self, spark: SparkSession) -> None:
        """No anchors yet; there are never any if one JVM runs all tasks."""
        self._spark = spark
        self.local = runs_locally(spark)
        """Whether all state is on this machine, so that nothing needs pinning."""
        self._anchors: dict[int, DataFrame] = {}

    def anchor(self, parallelism: tuple[int, ...]) -> None:
        """Assign subtasks to executors, for stages of these numbers of tasks; once for each."""
        if not self.local:
            for tasks in set(parallelism) - self._anchors.keys():
                self._anchors[tasks] = _anchor(self._spark, tasks)

    def anchor_of(self, tasks: int) -> DataFrame:
        """The anchor of a stage of `tasks` tasks: one row per subtask, on its executor."""
        return self._anchors[tasks]

    def spread(self, rows: DataFrame, tasks: int) -> DataFrame:
        """`rows` in the partitions of their subtasks, without the routing column."""
        spread = rows.repartitionById(tasks, F.col(SUBTASK))
        anchor = self._anchors.get(tasks)
        if anchor is not None:
            spread = spread.join(anchor.hint("shuffle_hash"), SUBTASK)
        return spread.drop(SUBTASK)

    def close(self) -> None:
        """Release the anchors."""
        for anchor in self._anchors.values():
            anchor.unpersist()


def _anchor(spark: SparkSession, tasks: int) -> DataFrame:
    rows = spark.range(tasks).select(F.col("id").cast("int").alias(SUBTASK))
    anchor = rows.repartitionById(tasks, F.col(SUBTASK)).cache()
    anchor.count()
    return anchor
