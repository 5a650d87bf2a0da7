"""The interval join on real Spark: two sources, and a worker that is killed in between."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from holdfast import ProcessJoinFunction, WatermarkStrategy
from tests.support.recovery_jobs import HASHMAP, ROCKSDB, TIMEOUT, Ledger, RecoveryJob

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from holdfast import StreamExecutionEnvironment
    from holdfast.api.streams.data_stream import DataStream
    from holdfast.api.streams.keyed_stream import KeyedStream
    from holdfast.statistics import JobStatistics
    from tests.support.recovery_tools import Faults

ORDERS = "k string, t bigint, n bigint"
PAYMENTS = "k string, t bigint, n bigint, amount double"
PAID = "k string, n bigint, payment bigint, time bigint"
LOWER, UPPER = -150, 90
FILES, PER_FILE, STEP = 5, 40, 10


class Paid(ProcessJoinFunction):
    """Gives out every pair, with its time."""

    def process_element(self, left: Any, right: Any, ctx: Any) -> Iterator[Any]:
        yield left.k, left.n, right.n, ctx.get_timestamp()


def rows(file: int, delay: int) -> list[tuple[str, int, int]]:
    """The rows of one file, out of order by less than a file."""
    numbers = range(file * PER_FILE, (file + 1) * PER_FILE)
    return [(f"k{n % 7}", n * STEP + delay * (n % 5), n) for n in numbers][::-1]


def all_rows(delay: int) -> list[tuple[str, int, int]]:
    return [row for file in range(FILES) for row in rows(file, delay)]


def expected() -> Counter[tuple[Any, ...]]:
    return Counter(
        (k, n, payment, max(t, paid_at))
        for k, t, n in all_rows(0)
        for key, paid_at, payment in all_rows(9)
        if k == key and LOWER <= paid_at - t <= UPPER
    )


def test_some_pairs_need_what_an_earlier_epoch_has_kept() -> None:
    files = Counter((n // PER_FILE, payment // PER_FILE) for _, n, payment, _ in expected())
    assert all(files[file, file + 1] and files[file + 1, file] for file in range(FILES - 1))


def write(directory: Path, delay: int, **more: Any) -> str:
    """Files that a stream takes one by one, an epoch each."""
    directory.mkdir()
    for file in range(FILES):
        lines = [json.dumps({"k": k, "t": t, "n": n, **more}) for k, t, n in rows(file, delay)]
        path = directory / f"{file:05d}.json"
        path.write_text("\n".join(lines), encoding="utf-8")
        written = time.time() - 1000 + file
        os.utime(path, (written, written))
    return str(directory)


def keyed(
    env: StreamExecutionEnvironment, spark: SparkSession, path: str, schema: str, uid: str
) -> KeyedStream:
    reader = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
    # Rows of a file lie before those of earlier ones by less than this, so none is late; after a
    # restart the watermark begins anew, and what is late would depend on it.
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(100).with_timestamp_assigner("t")
    stream = env.from_dataframe(reader.json(path)).uid(uid)
    return stream.assign_timestamps_and_watermarks(strategy).uid(f"{uid} times").key_by("k")


def joined(env: StreamExecutionEnvironment, spark: SparkSession, directory: Path) -> DataStream:
    orders = keyed(env, spark, write(directory / "orders", 0), ORDERS, "orders")
    payments = keyed(env, spark, write(directory / "paid", 9, amount=1.5), PAYMENTS, "payments")
    join = orders.interval_join(payments).between(LOWER, UPPER)
    return join.process(Paid(), PAID).uid("join")


def run(spark: SparkSession, tmp_path: Path, backend: str) -> tuple[Ledger, JobStatistics]:
    job = RecoveryJob(spark, tmp_path / "checkpoints", backend=backend).settled()
    ledger = Ledger()
    joined(job.env, spark, tmp_path).foreach_batch(ledger)
    job.env.set_available_now()
    job.client = job.env.execute_async("joins")
    return ledger, job.client.result(TIMEOUT).statistics


def test_two_sources_are_joined_as_brute_force_would(
    env: StreamExecutionEnvironment, spark: SparkSession, tmp_path: Path
) -> None:
    env.set_available_now()
    pairs = list(joined(env, spark, tmp_path).execute_and_collect())
    assert Counter(map(tuple, pairs)) == expected()


@pytest.mark.versions
@pytest.mark.parametrize("backend", [HASHMAP, ROCKSDB])
def test_a_killed_worker_costs_no_pair_and_repeats_none(
    spark: SparkSession, tmp_path: Path, injected: Faults, backend: str
) -> None:
    fault = {"point": "before-commit", "action": "kill", "epoch": 3, "uid": "join"}
    [struck] = injected.plan(tmp_path, fault)
    ledger, statistics = run(spark, tmp_path, backend)
    assert struck.exists()
    assert statistics.restarts == 1
    assert statistics.checkpoints
    assert statistics.checkpoints.latest_restored
    assert Counter(ledger.rows) == expected()
