"""State on another number of subtasks than the one that wrote it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.errors import RestoreError
from tests.support.recovery_jobs import HASHMAP, ROCKSDB, RecoveryJob, expected
from tests.support.recovery_tools import Feed

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

JOB = "rescaled-job"
RETAIN = {
    "externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
    "data-inline-threshold": "0 b",
}


class Rescaled:
    """A job that is started again and again under one id."""

    def __init__(self, spark: SparkSession, directory: Path, backend: str = HASHMAP) -> None:
        self._spark = spark
        self._directory = directory
        self._backend = backend
        self.feed = Feed(spark, directory / "input")
        self.job: RecoveryJob | None = None

    def run(self, parallelism: int, max_parallelism: int | None = None) -> RecoveryJob:
        """Process one more file on so many subtasks, and cancel the job with a checkpoint."""
        job = RecoveryJob(
            self._spark,
            self._directory / "chk",
            backend=self._backend,
            parallelism=parallelism,
            chain=True,
            settings=RETAIN,
            like=self.job,
        )
        if max_parallelism is not None:
            job.env.set_max_parallelism(max_parallelism)
        self.feed.fill(1, each=60)
        client = job.start(self.feed.stream(), job_id=JOB)
        job.wait_for_checkpoint(len(self.feed.elements))
        client.cancel()
        self.job = job
        return job


def by_subtask(job: RecoveryJob) -> dict[int, tuple[Any, ...]]:
    """What the operator state of every subtask held at the end of the last epoch."""
    last: dict[int, tuple[Any, ...]] = {}
    for subtask, n, total, known in job.numbers.of_last_epoch():
        last[subtask] = max(last.get(subtask, (0,)), (n, total, known))
    return last


@pytest.mark.versions
@pytest.mark.parametrize("backend", [HASHMAP, ROCKSDB])
def test_no_state_is_lost_or_doubled_on_any_number_of_subtasks(
    spark: SparkSession, tmp_path: Path, backend: str
) -> None:
    rescaled = Rescaled(spark, tmp_path, backend)
    before = 0
    for parallelism in (1, 2, 3, 1, 4, 7):
        job = rescaled.run(parallelism)
        assert job.outcome() == expected(rescaled.feed.elements)
        held = by_subtask(job)
        assert set(held) == set(range(parallelism))
        # List state: every element on one subtask, and on one only.
        assert sum(n for n, _, _ in held.values()) == len(rescaled.feed.elements)
        assert sum(total for _, total, _ in held.values()) == sum(rescaled.feed.elements)
        # Union state: what all subtasks knew, on every one.
        union = sorted(f"{before}:{subtask}" for subtask in range(before))
        assert Counter(known for _, _, known in held.values()) == {" ".join(union): parallelism}
        before = parallelism


def test_another_max_parallelism_is_refused_and_the_stored_one_taken_over(
    spark: SparkSession, tmp_path: Path
) -> None:
    rescaled = Rescaled(spark, tmp_path)
    rescaled.run(2, max_parallelism=16)
    with pytest.raises(RestoreError, match=r"has 32 and its state was written with 16; set_max"):
        rescaled.run(3, max_parallelism=32)
    # 128 by itself.
    job = rescaled.run(3)
    assert job.outcome() == expected(rescaled.feed.elements)
    with pytest.raises(RestoreError, match="written with 16"):
        rescaled.run(3, max_parallelism=128)
