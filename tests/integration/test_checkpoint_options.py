"""What the options of checkpoints do to a job, and what is left in storage."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Any, ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from holdfast import JobStatus
from holdfast.api.checkpointed import CheckpointListener
from holdfast.errors import JobExecutionError
from tests.support.recovery_jobs import (
    BACKENDS,
    BOOKED,
    HASHMAP,
    ROCKSDB,
    TIMEOUT,
    Books,
    Mishap,
    RecoveryJob,
    expected,
)
from tests.support.recovery_tools import Feed, figures, referenced, stored, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

JOB = "optional-job"
NONE, DELETE, RETAIN = (
    "NO_EXTERNALIZED_CHECKPOINTS",
    "DELETE_ON_CANCELLATION",
    "RETAIN_ON_CANCELLATION",
)
RETENTION = "externalized-checkpoint-retention"
IN_FILES = {RETENTION: RETAIN, "data-inline-threshold": "0 b"}


@pytest.fixture
def feed(spark: SparkSession, tmp_path: Path) -> Feed:
    return Feed(spark, tmp_path / "input")


# Storage that fails


class FullFileSystem(MemoryFileSystem):  # type: ignore[misc]
    """Storage in memory on which, at times, there is no room left."""

    protocol = "full"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    room: ClassVar[int | None] = None
    """Files that may still be written; None for any number."""

    def _open(self, path: str, mode: str = "rb", *args: Any, **kwargs: Any) -> Any:
        if mode != "rb" and FullFileSystem.room is not None:
            if FullFileSystem.room == 0:
                raise OSError(errno.ENOSPC, "No space left on device")
            FullFileSystem.room -= 1
        return super()._open(path, mode, *args, **kwargs)


@pytest.fixture
def full() -> Iterator[type[FullFileSystem]]:
    fsspec.register_implementation("full", FullFileSystem, clobber=True)
    FullFileSystem.room = None
    yield FullFileSystem
    FullFileSystem.store.clear()
    FullFileSystem.pseudo_dirs[:] = [""]


class Heard(CheckpointListener):
    """How checkpoints ended, as the driver was told."""

    def __init__(self) -> None:
        self.completed: list[int] = []
        self.aborted: list[int] = []

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self.completed.append(checkpoint_id)

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        self.aborted.append(checkpoint_id)


@pytest.mark.parametrize("tolerable", [1000, 0])
def test_storage_that_is_full_costs_checkpoints_but_no_state(
    spark: SparkSession, feed: Feed, full: type[FullFileSystem], tolerable: int
) -> None:
    heard = Heard()
    settings = {**IN_FILES, "tolerable-failed-checkpoints": tolerable}
    job = RecoveryJob(spark, "full://chk", backend=ROCKSDB, restarts=1000, settings=settings)
    job.env.add_checkpoint_listener(heard)
    client = job.start(feed.fill(1).stream(), job_id=JOB)
    job.wait_for_checkpoint(len(feed.elements))
    # Some of the next checkpoint's files still fit.
    full.room = 2
    feed.fill(1)
    wait_for(lambda: figures(client).latest_failed, "a checkpoint to fail")
    failed = figures(client).latest_failed
    assert failed
    assert "No space left on device" in str(failed.failure_message)
    if tolerable == 0:
        wait_for(lambda: client.statistics().restarts, "a restart")
    full.room = None
    feed.fill(1)
    job.wait_for_checkpoint(len(feed.elements))
    client.cancel()
    assert job.outcome() == expected(feed.elements)
    assert (client.statistics().restarts > 0) == (tolerable == 0)
    assert stored(f"full://chk/{JOB}") == referenced(f"full://chk/{JOB}")
    assert failed.id in heard.aborted
    newest = figures(client).latest_completed
    assert newest
    assert newest.id in heard.completed
    assert not {*heard.aborted} & {*heard.completed}


# What is kept


# The whole table is that of tests/unit/checkpoint/test_job_ending.py.
@pytest.mark.parametrize(
    ("end", "retention", "kept"),
    [
        (JobStatus.FINISHED, NONE, True),
        (JobStatus.CANCELED, DELETE, False),
        (JobStatus.CANCELED, RETAIN, True),
        (JobStatus.FAILED, NONE, True),
    ],
)
def test_retention_decides_what_the_end_of_a_job_leaves(
    spark: SparkSession,
    tmp_path: Path,
    feed: Feed,
    end: JobStatus,
    retention: str,
    kept: bool,
) -> None:
    job = RecoveryJob(spark, tmp_path / "chk", restarts=0, settings={RETENTION: retention})
    # A job that has processed what there is goes on when there is more.
    job.env.set_available_now(end is JobStatus.FINISHED)
    client = job.settled().start(feed.fill(1).stream(), Mishap(at=40), JOB)
    if end is not JobStatus.FINISHED:
        job.wait_for_checkpoint(len(feed.elements))
    if end is JobStatus.CANCELED:
        client.cancel()
    elif end is JobStatus.FAILED:
        feed.fill(1)
        with pytest.raises(JobExecutionError):
            client.result(TIMEOUT)
    else:
        client.result(TIMEOUT)
    assert client.status() is end
    if kept:
        assert stored(tmp_path / "chk" / JOB) == referenced(tmp_path / "chk" / JOB) != set()
    else:
        # No id is used again.
        assert [path.name for path in (tmp_path / "chk" / JOB).iterdir()] == ["used"]


def test_shared_files_are_uploaded_once_and_go_with_their_last_checkpoint(
    spark: SparkSession, tmp_path: Path, feed: Feed
) -> None:
    settings = {**IN_FILES, "num-retained": 2}
    job = RecoveryJob(spark, tmp_path / "chk", backend=ROCKSDB, settings=settings).settled()
    feed.fill(1, each=4000).fill(7, each=10)
    root = tmp_path / "chk" / JOB
    client = job.start(feed.stream(), Mishap(4045, str(tmp_path / "once")), JOB)
    job.wait_for_checkpoint(len(feed.elements))
    first, *later = [one for one in figures(client).history if one.external_path]
    assert client.statistics().restarts == 1
    # Of the many elements, only those that are new are uploaded, unless files were merged.
    assert min(one.checkpointed_size for one in later) < first.checkpointed_size / 2
    assert min(one.state_size for one in later) > first.checkpointed_size / 2
    client.cancel()
    assert stored(root) == referenced(root)
    newest = later[-1].id
    assert {path.name for path in root.glob("chk-*")} == {f"chk-{newest - 1}", f"chk-{newest}"}
    assert job.outcome() == expected(feed.elements)


# How checkpoints are taken


@pytest.mark.parametrize(
    ("backend", "settings"),
    [
        pytest.param(HASHMAP, {"asynchronous": "false"}, marks=pytest.mark.slow),
        (ROCKSDB, {"mode": "AT_LEAST_ONCE"}),
        (HASHMAP, {"max-concurrent-checkpoints": 3}),
        (HASHMAP, {"storage": "jobmanager", "dir": None}),
        pytest.param(ROCKSDB, {"storage": "jobmanager"}, marks=pytest.mark.slow),
        pytest.param(HASHMAP, {"create-subdir": "false"}, marks=pytest.mark.slow),
    ],
    ids=[
        "synchronous",
        "at least once",
        "several at a time",
        "in memory",
        "metadata in files",
        "no subdirectory",
    ],
)
def test_a_job_recovers_however_its_checkpoints_are_taken(
    spark: SparkSession, tmp_path: Path, feed: Feed, backend: str, settings: dict[str, Any]
) -> None:
    job = RecoveryJob(spark, tmp_path / "chk", backend=backend, settings=settings).settled()
    statistics = job.run(feed.fill(4).stream(), Mishap(130, str(tmp_path / "once")))
    assert job.outcome() == expected(feed.elements)
    assert statistics.restarts == 1
    assert statistics.checkpoints
    assert statistics.checkpoints.latest_restored
    assert statistics.checkpoints.latest_restored.checkpoint_id == 3


def test_state_too_large_for_the_driver_fails_the_checkpoint_and_says_what_to_do(
    spark: SparkSession, tmp_path: Path, feed: Feed
) -> None:
    settings = {"storage": "jobmanager", "dir": None, "jobmanager.max-state-size": "1 kb"}
    job = RecoveryJob(spark, tmp_path, restarts=0, settings=settings)
    job.env.set_available_now()
    client = job.settled().start(feed.fill(2).stream())
    with pytest.raises(JobExecutionError, match=r"takes at most 1024 .*to `filesystem`"):
        client.result(TIMEOUT)
    failed = figures(client).latest_failed
    assert failed
    assert "operator 'books', subtask" in str(failed.failure_message)


@pytest.mark.parametrize(
    ("local", "backend"),
    [
        (True, HASHMAP),
        (True, ROCKSDB),
        (False, HASHMAP),
        pytest.param(False, ROCKSDB, marks=pytest.mark.slow),
    ],
)
def test_a_restart_downloads_nothing_that_a_local_backup_holds(
    spark: SparkSession, tmp_path: Path, feed: Feed, backend: str, local: bool
) -> None:
    settings = {**IN_FILES, "local-backup.enabled": local}
    job = RecoveryJob(
        spark, tmp_path / "chk", backend=backend, chain=True, settings=settings
    ).settled()
    statistics = job.run(feed.fill(3).stream(), Mishap(90, str(tmp_path / "once")))
    assert job.outcome() == expected(feed.elements)
    assert statistics.checkpoints
    restored = statistics.checkpoints.latest_restored
    assert restored
    assert restored.stores == 6
    assert restored.local_stores == (6 if local else 0)
    assert (restored.downloaded_size == 0) == local


# Who hears of them


class Listening(Books, CheckpointListener):
    """Notes in a file what it hears of checkpoints."""

    def __init__(self, file: str) -> None:
        super().__init__()
        self.file = file

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        with open(self.file, "a", encoding="utf-8") as file:
            file.write(f"{checkpoint_id}\n")


def test_functions_and_the_driver_hear_of_complete_checkpoints(
    spark: SparkSession, tmp_path: Path, feed: Feed
) -> None:
    job = RecoveryJob(spark, tmp_path / "chk").settled()
    heard = Heard()
    job.env.add_checkpoint_listener(heard).set_available_now()
    stream = job.env.from_dataframe(feed.fill(3).stream()).uid("source")
    listening = stream.key_by("k").process(Listening(str(tmp_path / "heard")), BOOKED)
    listening.uid("books").foreach_batch(job.books)
    job.client = job.env.execute_async("listens")
    job.client.result(TIMEOUT)
    assert heard.completed == [1, 2, 3]
    assert heard.aborted == []
    # Each of the two subtasks, in the epoch that follows; after the last there is none.
    told = (tmp_path / "heard").read_text(encoding="utf-8").split()
    assert sorted(told) == ["1", "1", "2", "2"]


def test_a_listener_that_raises_fails_the_job(
    spark: SparkSession, tmp_path: Path, feed: Feed
) -> None:
    class Raising(CheckpointListener):
        def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
            raise LookupError("nobody home")

    job = RecoveryJob(spark, tmp_path / "chk", restarts=0)
    job.env.add_checkpoint_listener(Raising())
    client = job.start(feed.fill(1).stream())
    with pytest.raises(JobExecutionError, match=r"listener raised .*LookupError: nobody home"):
        client.result(TIMEOUT)


@pytest.mark.parametrize("backend", list(BACKENDS))
def test_the_last_epoch_is_checkpointed_though_no_data_follows(
    spark: SparkSession, tmp_path: Path, feed: Feed, backend: str
) -> None:
    # The interval passes when the stream is idle already.
    settings = {RETENTION: RETAIN, "interval": "2 s"}
    job = RecoveryJob(spark, tmp_path / "chk", backend=backend, chain=True, settings=settings)
    client = job.start(feed.fill(2).stream(), job_id=JOB)
    job.wait_for_checkpoint(len(feed.elements))
    checkpoints = figures(client).total
    epochs = client.statistics().epochs
    # An idle stream has nothing new: no further epochs, no further checkpoints.
    feed.fill(1)
    job.wait_for_checkpoint(len(feed.elements))
    assert figures(client).total <= checkpoints + 2
    assert client.statistics().epochs <= epochs + 2
    client.cancel()
    again = RecoveryJob(
        spark, tmp_path / "chk", backend=backend, chain=True, settings=settings, like=job
    )
    again.env.set_available_now()
    result = again.start(feed.fill(1).stream(), job_id=JOB).result(TIMEOUT)
    assert again.outcome() == expected(feed.elements)
    # Nothing that was there before is read again.
    assert result.statistics.events == 40
