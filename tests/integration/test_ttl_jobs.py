"""State with a time to live on real Spark: it comes and goes with the program, and is swept."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest
from pyspark import cloudpickle

from holdfast import (
    KeyedProcessFunction,
    MapStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from tests.support.recovery_jobs import HASHMAP, ROCKSDB, TIMEOUT, Ledger
from tests.support.time_jobs import RETAIN, Drop, environment

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

# Workers cannot import this module everywhere, and need its sources.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

ELEMENTS = "k string, at bigint, i bigint"
COUNTED = "k string, events bigint, kinds bigint"
DAY = StateTtlConfig.new_builder("1 day").build()


class Count(KeyedProcessFunction):
    """Counts the elements of a key, and their kinds."""

    def __init__(self, ttl: StateTtlConfig | None) -> None:
        self.ttl = ttl

    def open(self, ctx: Any) -> None:
        self.events = ctx.get_state(ValueStateDescriptor("events", int, ttl=self.ttl))
        self.kinds = ctx.get_map_state(MapStateDescriptor("kinds", int, int, ttl=self.ttl))

    def process_element(self, value: Any, ctx: Any) -> Iterator[tuple[str, int, int]]:
        self.events.update((self.events.value() or 0) + 1)
        self.kinds.put(value.i % 3, value.i)
        yield value.k, self.events.value(), len(list(self.kinds))


@pytest.mark.versions
@pytest.mark.parametrize("backend", [HASHMAP, pytest.param(ROCKSDB, marks=pytest.mark.slow)])
def test_state_gets_and_loses_a_time_to_live_while_it_moves_to_other_subtasks(
    spark: SparkSession, tmp_path: Path, backend: str
) -> None:
    drop, told = Drop(spark, tmp_path / "in", ELEMENTS), Ledger()
    for parallelism, ttl in ((2, None), (3, DAY), (1, None)):
        env = environment(
            spark,
            tmp_path / "chk",
            backend=backend,
            parallelism=parallelism,
            settings={"mode": "AT_LEAST_ONCE", **RETAIN},
        )
        env.set_job_id("counting").set_available_now()
        drop.add(*((f"k{i % 5}", 0, i) for i in range(25)))
        rows = env.from_dataframe(drop.stream()).uid("source").key_by("k")
        rows.process(Count(ttl), COUNTED).uid("count").foreach_batch(told)
        env.execute_async("counting").result(TIMEOUT)
    assert sorted(told.rows)[14::15] == [(f"k{k}", 15, 3) for k in range(5)]


@pytest.mark.parametrize("backend", [HASHMAP, pytest.param(ROCKSDB, marks=pytest.mark.slow)])
def test_what_expires_by_the_watermark_leaves_the_stores(
    spark: SparkSession, tmp_path: Path, backend: str
) -> None:
    ttl = StateTtlConfig.new_builder("10 s").use_event_time().build()
    drop = Drop(spark, tmp_path / "in", ELEMENTS).add(*((f"k{i}", i, i) for i in range(300)))
    # Elements of later epochs, which move the watermark and come to both subtasks.
    for seconds in range(1, 5):
        drop.add(*((f"late{i}", seconds * 100_000, i) for i in range(20)))
    env = environment(spark, tmp_path / "chk", backend=backend)
    env.set_job_id("expiring").set_available_now()
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("at")
    rows = env.from_dataframe(drop.stream()).uid("source")
    keyed = rows.assign_timestamps_and_watermarks(strategy).uid("time").key_by("k")
    keyed.process(Count(ttl), COUNTED).uid("count").foreach_batch(Ledger())
    statistics = env.execute_async("expiring").result(TIMEOUT).statistics
    count = statistics.operators["count"]
    # An event and a kind for each of the keys.
    assert count.expired_removed >= 600
    if backend == HASHMAP:
        # RocksDB only estimates how many there are.
        assert count.state_entries < 100
