"""Every form of savepoint that was ever written is restored, on other subtasks and backends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.golden_savepoints import GOLDEN, start
from tests.support.recovery_jobs import HASHMAP, ROCKSDB, RecoveryJob, expected
from tests.support.recovery_tools import wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

SAVEPOINTS = sorted(path.name for path in GOLDEN.iterdir())


def test_there_is_a_golden_savepoint_of_every_form() -> None:
    forms = ["canonical-hashmap", "native-hashmap", "native-rocksdb"]
    assert [f"format-{number}-{form}" for number in (4, 5) for form in forms] == SAVEPOINTS


@pytest.mark.parametrize("name", SAVEPOINTS)
def test_a_golden_savepoint_is_restored(spark: SparkSession, tmp_path: Path, name: str) -> None:
    backend = ROCKSDB if name.endswith(HASHMAP) else HASHMAP
    job = RecoveryJob(spark, tmp_path, backend=backend, parallelism=3, chain=True)
    client = start(job, str(GOLDEN / name))
    wait_for(lambda: len(job.books.final(2)) == 20 and job.sums.rows, "every key to come again")
    client.stop_with_savepoint(str(tmp_path / "savepoints"))
    # Elements are numbered: all before the first of these is what the savepoint holds.
    assert min(row[1] for row in job.books.rows) > 0
    everything = expected(range(max(row[1] for row in job.books.rows) + 1))
    assert job.outcome().books == everything.books
    assert {key: row[1:] for key, row in job.sums.final(1).items()} == everything.sums
    counted = {subtask: n for subtask, n, _, _ in sorted(job.numbers.of_last_epoch())}
    assert sum(counted.values()) == sum(everything.elements.values())
    assert "2:0 2:1" in {row[3] for row in job.numbers.rows}
