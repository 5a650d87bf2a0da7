"""Jobs with an id of their own: nothing is deleted, doubled or begun anew behind one's back."""

from __future__ import annotations

import logging
import shutil
import signal
from typing import TYPE_CHECKING

import pytest

from holdfast import JobStatus
from holdfast.errors import JobExecutionError, RestoreError
from tests.support.interrupted_jobs import DEFAULTS, EVENTS, interrupted
from tests.support.output_jobs import OutputJob, expected
from tests.support.recovery_jobs import TIMEOUT
from tests.support.recovery_tools import wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.support.output_jobs import Row
    from tests.support.recovery_tools import Faults

ACCEPT = {"execution.checkpointing.accept-duplicates-on-fallback": "true"}


@pytest.fixture
def failed(spark: SparkSession, tmp_path: Path, injected: Faults, request: pytest.FixtureRequest):
    """A job that failed in its fourth epoch, with default retention; `param` are retained."""
    injected.plan(tmp_path, {"point": "epoch-released", "action": "raise", "epoch": 4})
    settings = {**DEFAULTS, "num-retained": getattr(request, "param", 1)}
    job = OutputJob(tmp_path, settings, restarts=0)
    with pytest.raises(JobExecutionError):
        job.run(spark)
    injected.plan(tmp_path)
    assert job.files() == expected(120)
    return job


def again(job: OutputJob, **settings: str) -> OutputJob:
    return OutputJob(job.place, {**DEFAULTS, **settings})


def test_a_job_that_fails_goes_on_under_its_id(spark: SparkSession, failed: OutputJob) -> None:
    result = again(failed).run(spark)
    assert result.statistics.checkpoints is not None
    assert result.statistics.checkpoints.restored == 1
    failed.check()


@pytest.mark.parametrize(
    ("failed", "gone"),
    [
        (1, "chk-3"),
        (2, "chk-3/_metadata"),
        pytest.param(2, "chk-3", marks=pytest.mark.slow),
        pytest.param(1, "chk-3/_metadata", marks=pytest.mark.slow),
    ],
    indirect=["failed"],
)
def test_a_start_that_misses_its_newest_checkpoint_is_refused(
    spark: SparkSession, failed: OutputJob, gone: str
) -> None:
    aside = failed.place / "aside"
    shutil.move(failed.storage / gone, aside)
    for _ in range(2):
        with pytest.raises(RestoreError, match=r"chk-3/_metadata: the checkpoint was completed"):
            again(failed).run(spark)
    assert failed.files() == failed.calls.rows() == expected(120)
    shutil.move(aside, failed.storage / gone)
    again(failed).run(spark)
    failed.check()


@pytest.mark.parametrize("failed", [2], indirect=True)
def test_whoever_accepts_duplicates_gets_them_under_ids_of_their_own(
    spark: SparkSession, failed: OutputJob
) -> None:
    shutil.rmtree(failed.storage / "chk-3")
    again(failed, **ACCEPT).run(spark)
    assert sorted(set(failed.files())) == expected(failed.count)
    assert sorted(failed.repeated()) == sorted(set(expected(120)) - set(expected(80)))
    # Whoever skips ids that were seen before still gets every row.
    seen: dict[int, list[Row]] = {}
    for number, rows in failed.calls.read():
        assert seen.setdefault(number, rows) == rows
    assert {row for rows in seen.values() for row in rows} == set(expected(failed.count))


def test_a_finished_job_is_not_run_again(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job = OutputJob(tmp_path, DEFAULTS, count=80)
    job.run(spark)
    assert {path.name for path in job.storage.iterdir()} == {"finished.json", "used"}
    with caplog.at_level(logging.WARNING, "holdfast"):
        client = OutputJob(tmp_path, DEFAULTS, count=80).start(spark)
        statistics = client.result(TIMEOUT).statistics
    assert statistics.epochs == 0
    assert statistics.checkpoints is not None
    assert statistics.checkpoints.total == 0
    assert client.status() is JobStatus.FINISHED
    assert any("nothing is left to do" in text for text in caplog.messages)
    job.check()
    # Begun anew because somebody wants that.
    (job.storage / "finished.json").unlink()
    OutputJob(tmp_path, DEFAULTS, count=80).run(spark)
    assert sorted(job.files()) == sorted(2 * expected(80))


def test_a_bounded_job_whose_query_somebody_else_stops_has_not_finished(
    spark: SparkSession, tmp_path: Path
) -> None:
    """As with `for query in spark.streams.active: query.stop()` in a notebook."""
    job = OutputJob(tmp_path, DEFAULTS, count=EVENTS)
    client = job.start(spark)
    wait_for(job.files, "some output")
    client.query.stop()
    with pytest.raises(JobExecutionError, match=r"is suspended.*call cancel\(\) or suspend\(\)"):
        client.result(TIMEOUT)
    assert client.status() is JobStatus.SUSPENDED
    goes_on(spark, tmp_path)


@pytest.mark.parametrize(
    "what",
    [
        "java-killed",
        pytest.param("java-terminated", marks=pytest.mark.slow),
        pytest.param("session-stopped", marks=pytest.mark.slow),
    ],
)
def test_a_job_without_its_session_is_suspended_and_goes_on(
    spark: SparkSession, tmp_path: Path, what: str
) -> None:
    code, status = interrupted(tmp_path, what)
    assert code == 0
    assert status.startswith("SUSPENDED job 'interrupted' is suspended, since its Spark session")
    goes_on(spark, tmp_path)


@pytest.mark.parametrize(
    ("what", "code"),
    [
        ("interrupted", -signal.SIGINT),
        pytest.param("terminated", -signal.SIGTERM, marks=pytest.mark.slow),
    ],
)
def test_a_job_that_is_interrupted_goes_on(
    spark: SparkSession, tmp_path: Path, what: str, code: int
) -> None:
    assert interrupted(tmp_path, what) == (code, "")
    goes_on(spark, tmp_path)


def goes_on(spark: SparkSession, place: Path) -> None:
    """Assert that another start publishes all that is missing, and nothing else."""
    job = OutputJob(place, DEFAULTS, count=EVENTS, per_epoch=None)
    assert set() < set(job.files()) < set(expected(EVENTS))
    result = job.run(spark)
    assert result.statistics.checkpoints is not None
    assert result.statistics.checkpoints.restored == 1
    job.check()
