"""Every point of the protocol at which a process may fail, on real Spark.

Workers are killed or raise; uploads and restores run in the driver here, so they raise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from holdfast import _faults as faults
from tests.support.recovery_jobs import HASHMAP, ROCKSDB, RecoveryJob, event, expected
from tests.support.recovery_tools import Faults, figures, wait_for

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from holdfast.job.statistics import JobStatistics

COUNT, PER_EPOCH = 200, 50
IN_WORKERS = ("before-commit", "after-commit", "before-snapshot", "after-snapshot")
RESTORING = ("before-restore", "during-restore", "after-restore")
PUBLISHING = ("before-publish", "during-publish", "published", "after-publish")
"""What only some sinks pass, and the recovery from it, is in test_output.py."""
OUTPUT = ("epoch-released", *PUBLISHING, "before-recovered-publish")
IN_SAVEPOINTS = (
    "before-savepoint-part",
    "after-savepoint-part",
    "before-savepoint-metadata",
    "during-delete",
)
"""What only savepoints pass is in test_savepoint_output.py and test_savepoint_kills.py."""
RESCALING = ("before-rescale",)
"""What only a rescale passes is in test_rescale_running.py."""
ELSEWHERE = IN_WORKERS + RESTORING + OUTPUT + IN_SAVEPOINTS + RESCALING
STORING = tuple(point for point in faults.POINTS if point not in ELSEWHERE)


def mostly_slow(points: Iterable[str], *quick: str) -> list[Any]:
    """All points; those that are not named run with the slow tests."""
    return [p if p in quick else pytest.param(p, marks=pytest.mark.slow) for p in points]


def run(spark: SparkSession, directory: Path, backend: str = ROCKSDB) -> JobStatistics:
    settings = {"mode": "EXACTLY_ONCE"}
    job = RecoveryJob(spark, directory, backend=backend, chain=True, settings=settings).settled()
    job.env.set_max_events_per_epoch(PER_EPOCH)
    statistics = job.run(job.env.from_generator(event, count=COUNT).uid("source"))
    assert job.outcome() == expected(range(COUNT))
    return statistics


def run_with(
    injected: Faults,
    spark: SparkSession,
    tmp_path: Path,
    backend: str,
    *planned: dict[str, Any],
    restored_from: Collection[int] = (2,),
) -> None:
    struck = injected.plan(tmp_path, *planned)
    statistics = run(spark, tmp_path / "checkpoints", backend)
    assert all(marker.exists() for marker in struck)
    assert statistics.restarts == len(planned)
    # What was lost is what came after the last checkpoint, not everything.
    restored = statistics.checkpoints and statistics.checkpoints.latest_restored
    assert restored
    assert restored.checkpoint_id in restored_from


def test_a_job_that_nothing_disturbs_comes_to_what_is_expected_of_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    statistics = run(spark, tmp_path)
    assert statistics.restarts == 0
    assert statistics.checkpoints
    assert statistics.checkpoints.completed == COUNT / PER_EPOCH


@pytest.mark.parametrize("backend", [HASHMAP, ROCKSDB])
@pytest.mark.parametrize("point", mostly_slow(IN_WORKERS, "after-commit"))
def test_a_worker_that_is_killed_costs_nothing_but_time(
    spark: SparkSession, tmp_path: Path, injected: Faults, point: str, backend: str
) -> None:
    fault = {"point": point, "action": "kill", "epoch": 3}
    run_with(injected, spark, tmp_path, backend, fault)


@pytest.mark.parametrize("uid", mostly_slow(["numbers", "books", "sums"], "books"))
def test_a_worker_that_fails_leaves_no_operator_ahead_of_the_others(
    spark: SparkSession, tmp_path: Path, injected: Faults, uid: str
) -> None:
    # The operators before it have committed the epoch, those behind it have not.
    fault = {"point": "after-commit", "action": "raise", "epoch": 3, "uid": uid, "subtask": 1}
    run_with(injected, spark, tmp_path, HASHMAP, fault)


@pytest.mark.parametrize(
    "point", mostly_slow([p for p in IN_WORKERS if p != "after-commit"], "after-snapshot")
)
def test_an_error_in_a_worker_costs_nothing_but_time(
    spark: SparkSession, tmp_path: Path, injected: Faults, point: str
) -> None:
    run_with(injected, spark, tmp_path, ROCKSDB, {"point": point, "action": "raise", "epoch": 3})


@pytest.mark.parametrize("point", mostly_slow(STORING, "during-upload", "after-metadata"))
def test_an_error_while_a_checkpoint_is_stored_costs_nothing_but_time(
    spark: SparkSession, tmp_path: Path, injected: Faults, point: str
) -> None:
    run_with(
        injected, spark, tmp_path, ROCKSDB, {"point": point, "action": "raise", "checkpoint": 3}
    )


def test_an_error_after_an_epoch_costs_nothing_but_time(
    spark: SparkSession, tmp_path: Path, injected: Faults
) -> None:
    fault = {"point": "epoch-released", "action": "raise", "epoch": 3}
    run_with(injected, spark, tmp_path, HASHMAP, fault)


@pytest.mark.parametrize("point", mostly_slow(["before-publish", "after-publish"]))
def test_an_error_while_output_is_published_takes_back_no_checkpoint(
    spark: SparkSession, tmp_path: Path, injected: Faults, point: str
) -> None:
    fault = {"point": point, "action": "raise", "checkpoint": 3}
    # Where it takes long until the job has broken off, the next one is complete by then.
    run_with(injected, spark, tmp_path, HASHMAP, fault, restored_from=(3, 4))


@pytest.mark.parametrize("point", mostly_slow(RESTORING, "during-restore"))
def test_an_error_in_a_recovery_leads_to_another_one(
    spark: SparkSession, tmp_path: Path, injected: Faults, point: str
) -> None:
    broken = {"point": "before-commit", "action": "raise", "epoch": 3}
    again = {"point": point, "action": "raise", "uid": "sums"}
    run_with(injected, spark, tmp_path, ROCKSDB, broken, again)


def test_an_upload_that_stalls_expires_and_the_job_goes_on(
    spark: SparkSession, tmp_path: Path, injected: Faults
) -> None:
    injected.plan(tmp_path)
    settings = {"timeout": "4 s", "tolerable-failed-checkpoints": 1000}
    job = RecoveryJob(spark, tmp_path / "checkpoints", settings=settings)
    client = job.start(job.env.from_generator(event, rate=100).uid("source"))
    wait_for(lambda: figures(client).completed, "a first checkpoint")
    [struck] = injected.plan(tmp_path, {"point": "during-upload", "action": "stall", "seconds": 5})
    failures = figures(client).failed
    wait_for(lambda: figures(client).failed > failures, "the checkpoint to expire")
    assert struck.exists()
    failed = figures(client).latest_failed
    assert failed
    assert "not complete within its timeout (the timeout is 4000 ms)" in str(failed.failure_message)

    def another() -> bool:
        newest = figures(client).latest_completed
        return newest is not None and newest.id > failed.id

    wait_for(another, "a checkpoint after the one that expired")
    client.cancel()
    assert client.statistics().restarts == 0
    assert figures(client).failed >= 1
    assert job.outcome() == expected(range(len(job.books.rows)))
