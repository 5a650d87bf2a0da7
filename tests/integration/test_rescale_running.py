"""A running job that continues on another number of subtasks, on real Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from holdfast import JobClient, JobStatus
from holdfast.checkpoint.files.completed import completed_checkpoints, load
from holdfast.config.configuration import LOCAL_STATE_DIR
from holdfast.storage.file_system import FileSystemFiles
from tests.support.output_jobs import OutputJob, Transactions, expected
from tests.support.recovery_jobs import HASHMAP, ROCKSDB, TIMEOUT
from tests.support.recovery_tools import figures, wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from holdfast.checkpoint.files.metadata import CheckpointMetadata

AT_LEAST_ONCE = {"mode": "AT_LEAST_ONCE"}
UNALIGNED = {"unaligned.enabled": "true", "interval": "100 ms"}


class Rescaled:
    """A job without an end, whose output comes to files, a function and transactions."""

    def __init__(
        self, spark: SparkSession, place: Path, settings: dict[str, Any] | None = None, **more: Any
    ) -> None:
        self.job = OutputJob(place, settings, count=0, **more)
        self.local = place / "local"
        (place / "transactions").mkdir()
        self.transactions = Transactions(place / "transactions")
        env = self.job.environment(spark)
        env.configure({LOCAL_STATE_DIR.key: str(self.local)})
        counted = self.job.counted(env)
        self.job.add_sinks(counted)
        counted.add_sink(self.transactions).uid("transactions")
        self.epochs: list[int] = []
        env.add_epoch_listener(lambda epoch: self.epochs.append(epoch.epoch))
        self.client: JobClient = env.execute_async("rescaled")

    def go_on(self, rows: int = 40) -> None:
        """Wait until so many more rows are out."""
        before = len(self.transactions.read())

        def enough() -> bool:
            assert not self.client.status().is_terminal, self.client.result()
            return len(self.transactions.read()) >= before + rows

        wait_for(enough, f"{rows} more rows")

    def newest(self) -> CheckpointMetadata:
        """The newest complete checkpoint."""
        files = FileSystemFiles(str(self.job.storage))
        return load(files, completed_checkpoints(files)[0][1])

    def subtasks(self) -> int:
        """Subtasks of the operator that counts, in the newest checkpoint."""
        (parallelism,) = {one.parallelism for one in self.newest().operators if one.uid == "count"}
        return parallelism

    def local_attempts(self) -> set[str]:
        """Job attempts that have local state."""
        return {path.name.partition(".")[0] for path in self.local.glob("holdfast-*/*-*-*/")}

    def end(self, target: Path) -> list[tuple[str, int, int]]:
        """Stop the job, and return its rows, having checked that they are exact."""
        self.client.stop_with_savepoint(str(target))
        rows = self.transactions.read()
        assert rows == expected(len(rows))
        assert self.job.files() == rows
        assert self.job.calls.rows() == rows
        return rows


@pytest.mark.parametrize(
    ("settings", "backend"),
    [
        ({}, HASHMAP),
        (UNALIGNED, ROCKSDB),
        pytest.param({}, ROCKSDB, marks=pytest.mark.slow),
        pytest.param(UNALIGNED, HASHMAP, marks=pytest.mark.slow),
        pytest.param(AT_LEAST_ONCE, HASHMAP, marks=pytest.mark.slow),
        pytest.param({"local-backup.enabled": "true"}, ROCKSDB, marks=pytest.mark.slow),
    ],
)
def test_no_row_is_lost_or_repeated_from_two_subtasks_to_five_to_one(
    spark: SparkSession, tmp_path: Path, settings: dict[str, Any], backend: str
) -> None:
    # The interval is long, so that only the rescale takes checkpoints.
    rescaled = Rescaled(spark, tmp_path, settings, backend=backend, restarts=0)
    client = rescaled.client
    job_id = client.job_id
    for parallelism in (5, 1):
        rescaled.go_on()
        before = figures(client).completed
        client.rescale(parallelism, TIMEOUT)
        assert client.status() is JobStatus.RUNNING
        assert client.parallelism == parallelism
        rescaled.go_on()
        assert rescaled.subtasks() == parallelism
        assert figures(client).completed > before
        # Local state of the attempts before is gone.
        assert len(rescaled.local_attempts()) == 1
    rows = rescaled.end(tmp_path / "savepoints")
    statistics = client.result(TIMEOUT).statistics
    assert (client.job_id, statistics.restarts) == (job_id, 0)
    assert statistics.events == len(rows)
    assert rescaled.epochs == list(range(1, statistics.epochs + 1))
    assert rescaled.job.left_behind() == []
    assert list(tmp_path.glob("transactions/*.open")) == []
    assert rescaled.local_attempts() == set()
