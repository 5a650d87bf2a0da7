"""Every form of savepoint that was ever written is restored, on other subtasks and backends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from holdfast.checkpoint.savepoint.storage import load_savepoint
from holdfast.storage.file_system import FileSystemFiles
from tests.support.golden_savepoints import GOLDEN, TIMED, start
from tests.support.recovery_jobs import HASHMAP, ROCKSDB, RecoveryJob, expected
from tests.support.recovery_tools import wait_for
from tests.support.time_jobs import start_probe

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

ROW_AT, WATERMARK = 2, 4
"""Columns of a probe: time of a row or timer, and watermark."""
TIMED_SAVEPOINTS = sorted(path.name for path in TIMED.iterdir())
SAVEPOINTS = sorted(path.name for path in GOLDEN.iterdir())


def test_there_is_a_golden_savepoint_of_every_form() -> None:
    forms = ["canonical-hashmap", "native-hashmap", "native-rocksdb"]
    known = [f"format-{number}-{form}" for number in (4, 5) for form in forms]
    assert sorted([*known, "format-5-canonical-tables-2-hashmap"]) == SAVEPOINTS


@pytest.mark.versions
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


@pytest.mark.versions
@pytest.mark.parametrize("name", TIMED_SAVEPOINTS)
def test_event_time_and_timers_of_a_golden_savepoint_continue(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    stored = load_savepoint(FileSystemFiles(str(TIMED / name))).event_times
    client, ledger = start_probe(spark, tmp_path, str(TIMED / name))
    wait_for(lambda: sum(row[0] == "timer" for row in ledger.rows) >= 5, "timers to fire")
    client.cancel()
    rows, timers = ([row for row in ledger.rows if row[0] == kind] for kind in ("row", "timer"))
    assert min(row[ROW_AT] for row in rows) == stored.sources["time"] + 11
    assert min(row[WATERMARK] for row in rows) >= stored.operators["probe"]
    assert min(row[ROW_AT] for row in timers) > stored.operators["probe"]
