"""Output over a savepoint: all of it comes out, each row once, whatever is killed when."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from holdfast.checkpoint.restore.pointer import find_snapshot
from holdfast.errors import RestoreError
from tests.support.output_jobs import OutputJob, Process
from tests.support.recovery_jobs import HASHMAP, ROCKSDB

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

SLOW = 0.005
"""Seconds for an element, so that the job is stopped before its end."""


@pytest.mark.parametrize(
    "mode", ["EXACTLY_ONCE", pytest.param("AT_LEAST_ONCE", marks=pytest.mark.slow)]
)
def test_a_stopped_job_and_its_successor_give_out_every_row_once(
    spark: SparkSession, tmp_path: Path, mode: str
) -> None:
    first = OutputJob(tmp_path, {"mode": mode}, seconds=SLOW)
    path = first.stop(spark, tmp_path / "savepoints")
    assert 0 < len(first.files()) < first.count
    assert not first.left_behind()
    first.hurry.touch()
    settings = {"mode": mode}
    again = OutputJob(tmp_path, settings, seconds=SLOW, job_id="successor", parallelism=3)
    again.run(spark, path)
    again.check()


@pytest.mark.parametrize(
    ("point", "backend"),
    [
        pytest.param("before-savepoint-part", ROCKSDB, marks=pytest.mark.slow),
        pytest.param("after-savepoint-part", HASHMAP, marks=pytest.mark.slow),
        pytest.param("before-publish", HASHMAP, marks=pytest.mark.slow),
        ("before-savepoint-metadata", ROCKSDB),
    ],
)
def test_a_driver_killed_on_the_way_to_a_savepoint_leaves_nothing_that_is_accepted(
    spark: SparkSession, tmp_path: Path, point: str, backend: str
) -> None:
    target = tmp_path / "savepoints"
    process = Process(tmp_path, backend=backend, seconds=SLOW, savepoints=str(target))
    assert process.start({"point": point}) == -signal.SIGKILL
    for left in target.glob("*"):
        assert not (left / "_metadata").exists()
        with pytest.raises(RestoreError, match="no complete savepoint or checkpoint"):
            find_snapshot(str(left))
    # The job itself has lost nothing.
    job = OutputJob(tmp_path, backend=backend, seconds=SLOW)
    job.hurry.touch()
    job.run(spark)
    job.check()
