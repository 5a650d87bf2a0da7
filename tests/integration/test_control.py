"""Jobs on Spark that are controlled over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from holdfast import JobStatus
from holdfast.control.client import ControlClient
from holdfast.control.publishing import published, withdraw
from holdfast.errors import CheckpointError, ConfigurationError, ControlError, JobExecutionError
from tests.support.recovery_jobs import TIMEOUT, RecoveryJob, expected
from tests.support.recovery_tools import Faults, Feed, figures, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from holdfast import JobClient

RARELY = {"interval": "1 h"}
"""No checkpoint is taken, unless somebody asks for one."""
pytestmark = pytest.mark.usefixtures("no_faults")


@pytest.fixture(autouse=True)
def _no_server() -> Iterator[None]:
    """The server of one test is not that of the next."""
    withdraw()
    yield
    withdraw()


class Controlled:
    """A job over a feed, and a client that reaches it over HTTP."""

    def __init__(self, spark: SparkSession, directory: Path, **options: Any) -> None:
        self.feed = Feed(spark, directory / "input")
        self.job = RecoveryJob(spark, directory / "chk", **{"settings": RARELY, **options})
        self.target = directory / "savepoints"
        self.settings = {
            "rest.enabled": True,
            "rest.token-file": str(directory / "private" / "token"),
        }
        self.job.env.configure(self.settings)

    def start(self, **beginning: Any) -> JobClient:
        """Start the job, and wait until it has processed two files."""
        self.feed.fill(2)
        client = self.job.start(self.feed.stream(), **beginning)
        self.catch_up(client)
        return client

    def catch_up(self, client: JobClient) -> None:
        def is_done() -> bool:
            if client.status().is_terminal:
                client.result(TIMEOUT)
            return self.job.outcome().elements == expected(self.feed.elements).elements

        wait_for(is_done, "all input to be processed")

    @property
    def remote(self) -> ControlClient:
        found = published()
        assert found is not None
        return ControlClient(found.server.url, Path(found.token_file).read_text().strip())


def test_a_job_is_watched_and_ended_over_http(spark: SparkSession, tmp_path: Path) -> None:
    controlled = Controlled(spark, tmp_path, backend="rocksdb")
    client = controlled.start()
    remote, job_id = controlled.remote, client.job_id
    assert remote.job_ids() == {job_id: "RUNNING"}
    assert remote.statistics(job_id)["events"] == len(controlled.feed.elements)
    assert remote.checkpoint_config(job_id)["state_backend"] == "rocksdb"
    assert remote.job_config(job_id)["configuration"]["rest.token-file"] == "******"

    checkpoint_id = remote.wait_for(remote.trigger_checkpoint(job_id), timeout=TIMEOUT)
    [taken] = remote.checkpoints(job_id)["history"]
    assert (taken["id"], taken["status"]) == (checkpoint_id, "COMPLETED")
    assert "books" in remote.checkpoint(job_id, checkpoint_id)["tasks"]

    trigger = remote.trigger_savepoint(job_id, str(controlled.target))
    savepoint = Path(remote.wait_for(trigger, timeout=TIMEOUT))
    assert (savepoint / "_metadata").is_file()
    wait_for(
        lambda: (
            (remote.checkpoints(job_id)["latest"]["savepoint"] or {}).get("external_path")
            == str(savepoint)
        ),
        "the savepoint to be shown",
    )

    stop = remote.stop(job_id, str(controlled.target))
    stopped = remote.wait_for(stop, timeout=TIMEOUT)
    assert client.status() is JobStatus.FINISHED
    assert remote.job(job_id)["state"] == "FINISHED"
    with pytest.raises(ControlError, match="is FINISHED, and does not run"):
        remote.cancel(job_id)

    # It is a savepoint like any other.
    after = Controlled(spark, tmp_path / "after")
    after.job = RecoveryJob(spark, tmp_path / "chk-2", backend="rocksdb", like=controlled.job)
    after.job.env.configure(controlled.settings)
    after.feed = controlled.feed
    resumed = after.start(from_savepoint=stopped)
    assert remote.job_ids() == {resumed.job_id: "RUNNING", job_id: "FINISHED"}
    remote.cancel(resumed.job_id)
    resumed.result(TIMEOUT)
    assert resumed.status() is JobStatus.CANCELED
    assert after.job.outcome() == expected(after.feed.elements)


def test_a_savepoint_whose_worker_is_killed_fails_and_the_job_goes_on(
    spark: SparkSession, tmp_path: Path, injected: Faults
) -> None:
    controlled = Controlled(spark, tmp_path)
    client = controlled.start()
    remote = controlled.remote
    remote.wait_for(remote.trigger_checkpoint(client.job_id), timeout=TIMEOUT)
    [struck] = injected.plan(tmp_path, {"point": "after-snapshot", "action": "kill"})
    trigger = remote.trigger_savepoint(client.job_id, str(controlled.target))
    with pytest.raises(ControlError, match="the savepoint was not taken"):
        remote.wait_for(trigger, timeout=TIMEOUT)
    assert struck.exists()
    controlled.feed.fill(1)
    controlled.catch_up(client)
    assert controlled.job.outcome() == expected(controlled.feed.elements)
    failed = remote.exceptions(client.job_id)
    assert len(failed["exceptionHistory"]["entries"]) == client.statistics().restarts == 1
    # And the next one succeeds.
    again = remote.trigger_savepoint(client.job_id, str(controlled.target))
    assert (Path(remote.wait_for(again, timeout=TIMEOUT)) / "_metadata").is_file()
    client.cancel()


def test_a_checkpoint_is_taken_on_request(spark: SparkSession, tmp_path: Path) -> None:
    controlled = Controlled(spark, tmp_path)
    client = controlled.start()
    # Also without anything new in between.
    assert [client.trigger_checkpoint(TIMEOUT) for _ in range(2)] == [1, 2]
    assert figures(client).completed == 2
    controlled.feed.fill(1)
    controlled.catch_up(client)
    assert client.trigger_checkpoint("2 min") == 3
    latest = figures(client).latest_completed
    assert latest is not None
    assert latest.epoch is not None
    client.suspend()
    with pytest.raises(JobExecutionError, match="is SUSPENDED; a checkpoint is taken of a running"):
        client.trigger_checkpoint()


def test_a_checkpoint_on_request_that_fails_says_why(
    spark: SparkSession, tmp_path: Path, injected: Faults
) -> None:
    controlled = Controlled(spark, tmp_path, settings={**RARELY, "tolerable-failed-checkpoints": 1})
    client = controlled.start()
    injected.plan(tmp_path, {"point": "before-upload", "action": "raise"})
    with pytest.raises(CheckpointError, match="checkpoint 1 failed: a snapshot could not be upl"):
        client.trigger_checkpoint(TIMEOUT)
    assert client.trigger_checkpoint(TIMEOUT) == 2
    client.cancel()


def test_a_job_without_checkpoints_takes_none_on_request(
    spark: SparkSession, tmp_path: Path
) -> None:
    controlled = Controlled(spark, tmp_path, settings={"interval": None})
    client = controlled.start()
    with pytest.raises(JobExecutionError, match=r"set execution\.checkpointing\.interval"):
        client.trigger_checkpoint()
    client.cancel()


def test_a_job_whose_server_cannot_listen_is_refused_before_it_starts(
    spark: SparkSession, tmp_path: Path
) -> None:
    controlled = Controlled(spark, tmp_path)
    controlled.job.env.configure({"rest.bind-address": "no such host"})
    with pytest.raises(ConfigurationError, match=r"rest\.bind-address"):
        controlled.start()
    assert not spark.streams.active
