"""A running job that continues on another number of subtasks, on real Spark."""

from __future__ import annotations

import signal
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from holdfast import JobClient, JobStatus, StreamExecutionEnvironment
from holdfast.checkpoint.files.completed import completed_checkpoints, load
from holdfast.config.configuration import LOCAL_STATE_DIR
from holdfast.errors import CheckpointError, ConfigurationError, JobExecutionError
from holdfast.storage.file_system import FileSystemFiles
from tests.support.output_jobs import OutputJob, Process, Transactions, element, expected
from tests.support.recovery_jobs import HASHMAP, ROCKSDB, TIMEOUT
from tests.support.recovery_tools import Faults, figures, wait_for

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


@pytest.mark.usefixtures("no_faults")
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


@pytest.mark.usefixtures("no_faults")
def test_a_request_that_cannot_be_met_changes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    rescaled = Rescaled(spark, tmp_path, restarts=0)
    client = rescaled.client
    for parallelism in (0, 129):
        with pytest.raises(ConfigurationError, match="is not rescaled, and runs on with"):
            client.rescale(parallelism)
    client.rescale(2)
    rescaled.go_on()
    # Nothing but the first start has restored anything.
    assert figures(client).latest_restored is None
    rescaled.end(tmp_path / "savepoints")
    with pytest.raises(JobExecutionError, match="'rescaled' is FINISHED; only a running job"):
        client.rescale(3)


def test_a_job_without_checkpoints_is_told_what_to_do_and_runs_on(
    env: StreamExecutionEnvironment,
) -> None:
    epochs: list[int] = []
    env.set_max_events_per_epoch(10)
    env.from_generator(element).key_by("k").reduce(last).foreach_batch(
        lambda _, epoch: epochs.append(epoch)
    )
    client = env.execute_async("no checkpoints")
    try:
        wait_for(lambda: epochs, "an epoch")
        with pytest.raises(JobExecutionError, match="takes no checkpoints; call enable_checkp"):
            client.rescale(3)
        before = len(epochs)
        wait_for(lambda: len(epochs) > before, "another epoch")
    finally:
        client.cancel()


def last(_: Any, value: Any) -> Any:
    return value


# Faults


ONE_CHECKPOINT = {"interval": "1 h"}
"""The first checkpoint is the one that a rescale takes."""
SLOW = 0.02


def test_a_job_whose_checkpoint_fails_goes_on_as_it_was_and_can_be_rescaled_later(
    spark: SparkSession, tmp_path: Path, injected: Faults
) -> None:
    [struck] = injected.plan(
        tmp_path, {"point": "before-metadata", "action": "raise", "checkpoint": 1}
    )
    job = OutputJob(tmp_path, ONE_CHECKPOINT, seconds=SLOW, restarts=0)
    client = job.start(spark)
    wait_for(lambda: client.statistics().epochs >= 1, "an epoch")
    with pytest.raises(CheckpointError, match=r"rescale it from was not taken: .*metadata"):
        client.rescale(5, TIMEOUT)
    assert struck.exists()
    assert (client.status(), client.parallelism) == (JobStatus.RUNNING, 2)
    client.rescale(3, TIMEOUT)
    assert client.parallelism == 3
    job.hurry.touch()
    assert client.result(TIMEOUT).statistics.restarts == 0
    job.check()


@pytest.mark.parametrize(
    ("point", "action"),
    [
        ("during-restore", "raise"),
        pytest.param("before-rescale", "raise", marks=pytest.mark.slow),
        pytest.param("before-restore", "raise", marks=pytest.mark.slow),
        pytest.param("after-restore", "raise", marks=pytest.mark.slow),
    ],
)
def test_an_attempt_that_fails_to_begin_is_restarted_with_the_new_parallelism(
    spark: SparkSession, tmp_path: Path, injected: Faults, point: str, action: str
) -> None:
    [struck] = injected.plan(tmp_path, {"point": point, "action": action})
    job = OutputJob(tmp_path, ONE_CHECKPOINT, seconds=SLOW)
    client = job.start(spark)
    wait_for(lambda: client.statistics().epochs >= 1, "an epoch")
    client.rescale(5, TIMEOUT)
    assert struck.exists()
    assert client.parallelism == 5
    job.hurry.touch()
    assert client.result(TIMEOUT).statistics.restarts == 1
    job.check()


@pytest.mark.slow
@pytest.mark.parametrize("point", ["before-snapshot", "after-snapshot", "before-commit"])
def test_a_worker_that_dies_on_the_way_to_a_rescale_restarts_the_job_as_it_was(
    spark: SparkSession, tmp_path: Path, injected: Faults, point: str
) -> None:
    job = OutputJob(tmp_path, ONE_CHECKPOINT, seconds=SLOW)
    client = job.start(spark)
    wait_for(lambda: client.statistics().epochs >= 1, "an epoch")
    [struck] = injected.plan(tmp_path, {"point": point, "action": "kill"})
    with pytest.raises(CheckpointError, match="was not taken"):
        client.rescale(5, TIMEOUT)
    assert struck.exists()
    wait_for(lambda: client.status() is JobStatus.RUNNING, "the restart")
    assert client.parallelism == 2
    job.hurry.touch()
    assert client.result(TIMEOUT).statistics.restarts == 1
    job.check()


@pytest.mark.parametrize(
    "point",
    [
        "before-rescale",
        *(
            pytest.param(point, marks=pytest.mark.slow)
            for point in (
                "before-upload",
                "before-metadata",
                "after-metadata",
                "before-publish",
                "published",
                "after-publish",
                "before-restore",
                "during-restore",
                "after-restore",
            )
        ),
    ],
)
def test_a_driver_that_dies_on_the_way_loses_and_repeats_nothing(
    spark: SparkSession, tmp_path: Path, point: str
) -> None:
    process = Process(tmp_path, settings=ONE_CHECKPOINT, seconds=SLOW, rescaled=5)
    assert process.start({"point": point}) == -signal.SIGKILL
    # Another start has the parallelism that the program says.
    job = OutputJob(tmp_path, seconds=SLOW, parallelism=3)
    job.hurry.touch()
    job.run(spark)
    job.check()


@pytest.mark.slow
@pytest.mark.usefixtures("no_faults")
def test_requests_that_come_together_are_all_met(spark: SparkSession, tmp_path: Path) -> None:
    rescaled = Rescaled(spark, tmp_path)
    client = rescaled.client
    rescaled.go_on()
    with ThreadPoolExecutor() as pool:
        asked: list[Future[Any]] = [
            pool.submit(client.trigger_savepoint, str(tmp_path / "savepoints")),
            pool.submit(client.rescale, 3),
            pool.submit(client.trigger_savepoint, str(tmp_path / "savepoints")),
            pool.submit(client.rescale, 1),
        ]
        for one in asked:
            one.result(TIMEOUT)
    rescaled.go_on()
    with ThreadPoolExecutor() as pool:
        rescaling = pool.submit(client.rescale, 4 if client.parallelism == 1 else 1)
        wait_for(lambda: client.status() is JobStatus.RESTARTING, "the next attempt")
        client.cancel()
        assert client.status() is JobStatus.CANCELED
        # It came before or after.
        with suppress(JobExecutionError):
            rescaling.result(TIMEOUT)
    rows = rescaled.transactions.read()
    assert rows == expected(len(rows))
