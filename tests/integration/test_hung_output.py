"""A sink that does not answer, on real Spark: the job can be cancelled, and owes nothing twice."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

from holdfast import Configuration, JobStatus, RestartStrategies
from tests.support.output_jobs import OutputJob, Transactions, expected
from tests.support.recovery_jobs import TIMEOUT
from tests.support.recovery_tools import wait_for

if TYPE_CHECKING:
    from pathlib import Path

    import pytest
    from pyspark.sql import SparkSession

    from holdfast import JobClient


class HangingTransactions(Transactions):
    """Transactions whose commit comes back when the file `answer` is there."""

    def commit(self, transaction: str) -> None:
        (self.directory / "asked").touch()
        while not (self.directory / "answer").exists():
            time.sleep(0.02)
        super().commit(transaction)


class HungJob(OutputJob):
    """The job, on files and on transactions that hang."""

    def __init__(self, place: Path) -> None:
        super().__init__(place, {"asynchronous": "true"}, count=120)
        self.directory = place / "transactions"
        self.directory.mkdir()

    def begin(self, spark: SparkSession, **settings: str) -> JobClient:
        env = self.environment(spark)
        env.set_restart_strategy(RestartStrategies.no_restart())
        env.configure(Configuration({k.replace("_", "."): v for k, v in settings.items()}))
        counted = self.counted(env)
        counted.add_sink(HangingTransactions(self.directory)).uid("transactions")
        self.add_sinks(counted)
        return env.execute_async("hung")

    def answer(self) -> None:
        (self.directory / "answer").touch()

    def check_all(self) -> None:
        """Assert that every sink has every row once."""
        self.check()
        files = self.directory.glob("*.done")
        rows = [tuple(row) for file in files for row in json.loads(file.read_text())]
        assert sorted(rows) == expected(self.count)
        assert list(self.directory.glob("*.ready")) == []


def test_a_job_whose_sink_hangs_is_cancelled_and_another_start_publishes_all_once(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job = HungJob(tmp_path)
    client = job.begin(spark, task_cancellation_timeout="300 ms")
    wait_for(lambda: (job.directory / "asked").exists(), "the commit that hangs")
    client.cancel()
    assert client.status() is JobStatus.CANCELED
    said = "sink 'Sink: HangingTransactions' (uid 'transactions') has not published the output of"
    assert said in caplog.text
    assert job.storage.exists(), "what is owed is listed there"
    # The call that hangs comes back in the midst of what the next start does.
    job.answer()
    job.begin(spark).result(TIMEOUT)
    job.check_all()
