"""Jobs that go on with another max parallelism, from savepoints that were rewritten."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from holdfast.errors import RestoreError
from holdfast.savepoints import rewrite_max_parallelism
from tests.support.recovery_jobs import HASHMAP, ROCKSDB, RecoveryJob, expected
from tests.support.recovery_tools import Feed, wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

RETAIN = {"externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION"}


@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_job_goes_on_with_more_subtasks_than_it_once_had_key_groups(
    *, checkpoint: bool, spark: SparkSession, tmp_path: Path
) -> None:
    feed = Feed(spark, tmp_path / "input").fill(2)

    def caught_up(job: RecoveryJob, **beginning: Any) -> RecoveryJob:
        job.start(feed.stream(), **beginning)
        # The sums are handed out last.
        wait_for(lambda: len(job.sums.rows) >= len(feed.elements), "all input to be processed")
        return job

    def job(name: str, **options: Any) -> RecoveryJob:
        return RecoveryJob(spark, tmp_path / name, chain=True, settings=RETAIN, **options)

    first = job("first", parallelism=4, backend=ROCKSDB if checkpoint else HASHMAP)
    first.env.set_max_parallelism(4)
    client = caught_up(first, job_id="first").client
    assert client is not None
    if checkpoint:
        first.wait_for_checkpoint(len(feed.elements))
        client.cancel()
        path = str(tmp_path / "first" / "first")
    else:
        path = client.stop_with_savepoint(str(tmp_path / "savepoints"))
    new = rewrite_max_parallelism(path, str(tmp_path / "rewritten"), 128)

    feed.fill(2)
    second = job("second", parallelism=7, backend=HASHMAP if checkpoint else ROCKSDB, like=first)
    second.env.set_max_parallelism(128)
    refused = job("refused", parallelism=7)
    refused.env.set_max_parallelism(128)
    with pytest.raises(RestoreError, match="max parallelism mismatch"):
        refused.start(feed.stream(), from_savepoint=path)
    resumed = caught_up(second, from_savepoint=new)
    assert resumed.client is not None
    resumed.client.cancel()
    assert second.outcome() == expected(feed.elements)
    # All had the union list's elements of all four, and no one had them twice.
    assert {known for *_, known in second.numbers.rows} >= {"4:0 4:1 4:2 4:3"}
