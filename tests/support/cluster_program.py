"""Run by test_cluster.py in a process of its own: a job on two executors.

Prints, as JSON, where every subtask of every epoch ran and what it counted.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from pyspark.sql import SparkSession

from holdfast import KeyedProcessFunction, StreamExecutionEnvironment, ValueStateDescriptor

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.shuffle.reduceLocality.enabled": "false",
    "spark.locality.wait": "600s",
    "spark.stage.maxConsecutiveAttempts": "1",
    "spark.executorEnv.PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
}


class Where(KeyedProcessFunction):
    """Counts, and says which executor counted."""

    def open(self, ctx: Any) -> None:
        self.subtask = ctx.get_index_of_this_subtask()
        self.count = ctx.get_state(ValueStateDescriptor("count", int))
        # The JVM that started this worker: one per executor.
        self.executor = os.environ["SPARK_LOCAL_DIRS"]

    def process_element(self, value: Any, ctx: Any) -> Any:
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        yield self.subtask, self.executor, value % 100, count


def main() -> None:
    builder = SparkSession.builder.master("local-cluster[2,2,1024]")
    for key, value in SETTINGS.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    env = StreamExecutionEnvironment.get_execution_environment(spark).set_parallelism(4)
    env.set_max_events_per_epoch(2000)
    epochs: list[int] = []
    env.add_epoch_listener(lambda epoch: epochs.append(epoch.events))
    numbers = env.from_generator(lambda i: i, count=10_000, type_info=int)
    first = numbers.key_by(lambda n: n % 100).process(
        Where(), "subtask int, executor string, key bigint, count bigint"
    )
    second = first.key_by("count").process(Recount(), "subtask int, executor string, n bigint")
    batches: list[Any] = []
    first.foreach_batch(
        lambda df, epoch: batches.append(
            [
                (epoch, "first", *row)
                for row in df.select("subtask", "executor").distinct().collect()
            ]
            + [(epoch, "max", df.agg({"count": "max"}).collect()[0][0], df.count())]
        )
    )
    second.foreach_batch(
        lambda df, epoch: batches.append(
            [(epoch, "second", *r) for r in df.select("subtask", "executor").distinct().collect()]
        )
    )
    env.execute("pinned")
    print(json.dumps({"epochs": epochs, "rows": [row for rows in batches for row in rows]}))
    spark.stop()


class Recount(KeyedProcessFunction):
    """A second keyed operator, in another stage."""

    def open(self, ctx: Any) -> None:
        self.subtask = ctx.get_index_of_this_subtask()
        self.seen = ctx.get_state(ValueStateDescriptor("seen", int))
        self.executor = os.environ["SPARK_LOCAL_DIRS"]

    def process_element(self, value: Any, ctx: Any) -> Any:
        self.seen.update((self.seen.value() or 0) + 1)
        yield self.subtask, self.executor, self.seen.value()


if __name__ == "__main__":
    main()
