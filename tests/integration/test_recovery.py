"""Jobs that fail, are cancelled or taken over, and go on from a checkpoint."""

from __future__ import annotations

import gc
import logging
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from holdfast import JobStatus, RestartStrategies
from holdfast.checkpoint.files.completed import load
from holdfast.checkpoint.files.metadata import paths_of
from holdfast.errors import FencedError, JobExecutionError, RestoreError, UserFunctionError
from holdfast.spark import job_attempt as job_attempt
from holdfast.storage.file_system import FileSystemFiles
from tests.support.recovery_jobs import TIMEOUT, Mishap, RecoveryJob, expected
from tests.support.recovery_tools import Feed, figures, referenced, stored, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

JOB = "recovered-job"
RETAIN = {"externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION"}
# Small state would be kept within the metadata.
IN_FILES = {**RETAIN, "data-inline-threshold": "0 b", "num-retained": 3}


@pytest.fixture
def feed(spark: SparkSession, tmp_path: Path) -> Feed:
    """Three files."""
    return Feed(spark, tmp_path / "input").fill(3)


# What follows a failure


@pytest.mark.versions
def test_without_restarts_the_job_fails_with_the_error_that_broke_it(
    spark: SparkSession, tmp_path: Path, feed: Feed
) -> None:
    job = RecoveryJob(spark, tmp_path / "chk", restarts=0).settled()
    job.env.set_available_now()
    client = job.start(feed.stream(), Mishap(at=50))
    with pytest.raises(JobExecutionError, match="no luck with element 50") as caught:
        client.result(TIMEOUT)
    assert isinstance(caught.value.__cause__, UserFunctionError)
    assert client.status() is JobStatus.FAILED
    assert client.statistics().restarts == 0


def test_a_job_fails_when_its_restarts_are_used_up(
    spark: SparkSession, tmp_path: Path, feed: Feed
) -> None:
    job = RecoveryJob(spark, tmp_path / "chk", restarts=2).settled()
    job.env.set_available_now()
    client = job.start(feed.stream(), Mishap(at=50))
    with pytest.raises(JobExecutionError, match="no luck with element 50"):
        client.result(TIMEOUT)
    assert client.statistics().restarts == 2
    assert figures(client).restored == 2
    assert job.outcome() == expected(range(40))


def test_job_attempts_that_failed_are_forgotten(
    spark: SparkSession, tmp_path: Path, feed: Feed
) -> None:
    job = RecoveryJob(spark, tmp_path / "chk", restarts=3).settled()
    job.env.set_available_now()
    before = job_attempts()
    client = job.start(feed.stream(), Mishap(at=50))
    with pytest.raises(JobExecutionError, match="no luck with element 50"):
        client.result(TIMEOUT)
    assert client.statistics().restarts == 3
    # The last one says what has become of the job.
    assert len(job_attempts() - before) <= 1


def job_attempts() -> set[int]:
    """All job attempts of the process that something refers to."""
    gc.collect()
    return {id(one) for one in gc.get_objects() if isinstance(one, job_attempt.JobAttempt)}


def test_a_job_that_has_no_checkpoint_yet_starts_again_from_nothing(
    spark: SparkSession, tmp_path: Path, feed: Feed
) -> None:
    job = RecoveryJob(spark, tmp_path / "chk", settings={"interval": "1 h"})
    statistics = job.run(feed.stream(), Mishap(50, str(tmp_path / "once")))
    assert job.outcome() == expected(feed.elements)
    assert statistics.restarts == 1
    assert statistics.checkpoints
    assert statistics.checkpoints.restored == 0


@pytest.mark.versions
def test_a_job_recovers_as_often_as_it_fails(
    spark: SparkSession, tmp_path: Path, feed: Feed
) -> None:
    job = RecoveryJob(spark, tmp_path / "chk", chain=True).settled()
    failures: list[int] = []

    def refuse_twice(df: object, epoch: int) -> None:
        if epoch > 1 and len(failures) < 2:
            failures.append(epoch)
            raise OSError("the sink is away")

    job.books = Refusing(job.books, refuse_twice)  # type: ignore[assignment]
    statistics = job.run(feed.stream())
    assert job.outcome() == expected(feed.elements)
    assert failures == [2, 2]
    assert statistics.restarts == 2


def test_what_a_failed_epoch_would_have_held_is_in_no_checkpoint(
    spark: SparkSession, tmp_path: Path, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It is looked often whether a checkpoint is due: also right after the failure.
    monkeypatch.setattr(job_attempt, "LOOK_AROUND", 0.001)
    # One subtask, which fails before it has changed anything: its store still is as the epoch
    # before has left it, and would pass for one that contains the failed epoch's input.
    job = RecoveryJob(spark, tmp_path / "chk", parallelism=1).settled()
    job.env.set_restart_strategy(RestartStrategies.fixed_delay_restart(1, 500))
    statistics = job.run(feed.stream(), Mishap(40, str(tmp_path / "once")))
    assert job.outcome() == expected(feed.elements)
    assert statistics.restarts == 1
    assert statistics.checkpoints
    assert statistics.checkpoints.failed == 1
    assert statistics.checkpoints.latest_restored
    assert statistics.checkpoints.latest_restored.checkpoint_id == 1


class Refusing:
    """A sink that asks before it takes anything."""

    def __init__(self, sink: object, ask: Callable[[object, int], None]) -> None:
        self._sink = sink
        self._ask = ask

    def __call__(self, df: object, epoch: int) -> None:
        self._ask(df, epoch)
        self._sink(df, epoch)  # type: ignore[operator]

    def __getattr__(self, name: str) -> object:
        return getattr(self._sink, name)


# Starting again under the same id, and from another job's checkpoint


class Left(NamedTuple):
    """A job that was cancelled, and what it left."""

    job: RecoveryJob
    directory: Path
    """Where jobs keep their checkpoints."""
    feed: Feed

    def copied_to(self, directory: Path) -> Path:
        shutil.copytree(self.directory, directory)
        return directory


@pytest.fixture(scope="module")
def left(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Left:
    """A job that was cancelled after three epochs, with a checkpoint of each.

    Two more files have come since.
    """
    place = tmp_path_factory.mktemp("left")
    feed = Feed(spark, place / "input").fill(3)
    job = RecoveryJob(spark, place / "chk", settings=IN_FILES, chain=True).settled()
    client = job.start(feed.stream(), job_id=JOB)
    job.wait_for_checkpoint(len(feed.elements))
    client.cancel()
    assert client.status() is JobStatus.CANCELED
    feed.fill(2)
    return Left(job, place / "chk", feed)


def go_on(
    spark: SparkSession,
    left: Left,
    directory: Path,
    job_id: str = JOB,
    recovery: str | None = None,
    retention: str = "RETAIN_ON_CANCELLATION",
) -> RecoveryJob:
    settings = {**IN_FILES, "externalized-checkpoint-retention": retention}
    if recovery is not None:
        settings["execution.state-recovery.path"] = recovery
    job = RecoveryJob(spark, directory, settings=settings, chain=True, like=left.job)
    job.env.set_available_now()
    job.start(left.feed.stream(), job_id=job_id).result(TIMEOUT)
    return job


def restored_from(job: RecoveryJob) -> int | None:
    assert job.client
    restored = figures(job.client).latest_restored
    return None if restored is None else restored.checkpoint_id


@pytest.mark.versions
def test_a_job_goes_on_under_its_id_where_it_was_cancelled(
    spark: SparkSession, tmp_path: Path, left: Left
) -> None:
    job = go_on(spark, left, left.copied_to(tmp_path / "chk"))
    assert job.outcome() == expected(left.feed.elements)
    assert restored_from(job) == 3
    # It has processed what there was: another run goes on when there is more.
    assert stored(tmp_path / "chk" / JOB) == referenced(tmp_path / "chk" / JOB) != set()


@pytest.mark.parametrize(
    "pointer",
    [
        pytest.param("", marks=pytest.mark.slow),
        pytest.param("chk-3", marks=pytest.mark.slow),
        "chk-3/_metadata",
    ],
)
def test_a_job_starts_from_the_checkpoint_of_another(
    spark: SparkSession, tmp_path: Path, left: Left, pointer: str
) -> None:
    before = stored(left.directory / JOB)
    job = go_on(spark, left, tmp_path, "another-job", str(left.directory / JOB / pointer))
    assert job.outcome() == expected(left.feed.elements)
    assert restored_from(job) == 3
    assert stored(left.directory / JOB) == before


@pytest.mark.parametrize("retention", ["NO_EXTERNALIZED_CHECKPOINTS", "RETAIN_ON_CANCELLATION"])
def test_a_program_that_does_not_fit_is_refused_and_the_checkpoints_stay(
    spark: SparkSession, tmp_path: Path, left: Left, retention: str
) -> None:
    directory = left.copied_to(tmp_path / "chk")
    settings = {**IN_FILES, "externalized-checkpoint-retention": retention}
    other = RecoveryJob(spark, directory, settings=settings).env.set_job_id(JOB)
    events = other.from_dataframe(left.feed.stream()).uid("source")
    events.key_by("k").max("i").uid("another-operator").foreach_batch(lambda df, epoch: None)
    with pytest.raises(RestoreError, match=r"no operator for that of .*'books'.*old uids back"):
        other.execute("other")
    job = go_on(spark, left, directory)
    assert job.outcome() == expected(left.feed.elements)


# Damaged checkpoints


def metadata_of(directory: Path, checkpoint_id: int) -> Path:
    return directory / JOB / f"chk-{checkpoint_id}" / "_metadata"


def state_file_of(directory: Path, checkpoint_id: int) -> Path:
    """The largest file of a checkpoint."""
    files = FileSystemFiles(str(directory / JOB))
    paths = [directory / JOB / path for path in paths_of(load(files, checkpoint_id))]
    return max(paths, key=lambda path: path.stat().st_size)


def flip_last_byte(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


def flip_first_byte(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[0] ^= 1
    file.write_bytes(data)


def cut_in_half(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


DAMAGES: dict[str, tuple[Callable[[Path, int], Path], Callable[[Path], None]]] = {
    "metadata changed at its end": (metadata_of, flip_last_byte),
    "metadata changed at its start": (metadata_of, flip_first_byte),
    "metadata cut off": (metadata_of, cut_in_half),
    "state file gone": (state_file_of, Path.unlink),
    "state file changed": (state_file_of, flip_last_byte),
}
QUICK = ("metadata cut off", "state file changed")
SOME_DAMAGES = [
    damage if damage in QUICK else pytest.param(damage, marks=pytest.mark.slow)
    for damage in DAMAGES
]


@pytest.mark.parametrize("damage", SOME_DAMAGES)
def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(
    spark: SparkSession,
    tmp_path: Path,
    left: Left,
    damage: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    directory = left.copied_to(tmp_path / "chk")
    find, harm = DAMAGES[damage]
    harm(find(directory, 3))
    with caplog.at_level(logging.WARNING, "holdfast"):
        job = go_on(spark, left, directory)
    assert job.outcome() == expected(left.feed.elements)
    assert restored_from(job) == 2
    assert any("checkpoint 3 cannot be" in text for text in caplog.messages)
    assert any("restored from checkpoint 2" in text for text in caplog.messages)


@pytest.mark.parametrize("damage", SOME_DAMAGES)
def test_a_job_whose_checkpoints_are_all_damaged_does_not_start_from_nothing(
    spark: SparkSession, tmp_path: Path, left: Left, damage: str
) -> None:
    directory = left.copied_to(tmp_path / "chk")
    find, harm = DAMAGES[damage]
    for file in {find(directory, checkpoint_id) for checkpoint_id in (1, 2, 3)}:
        harm(file)
    there = stored(directory / JOB)
    with pytest.raises(RestoreError, match="under another job id"):
        go_on(spark, left, directory, retention="NO_EXTERNALIZED_CHECKPOINTS")
    # Whoever can repair them finds them as they were.
    assert stored(directory / JOB) == there


# Two drivers of one job


@pytest.mark.versions
@pytest.mark.parametrize("busy", [True, False], ids=["busy", "idle"])
def test_the_first_driver_of_a_job_stops_when_a_second_takes_over(
    spark: SparkSession, tmp_path: Path, busy: bool
) -> None:
    feed = Feed(spark, tmp_path / "input").fill(2)
    first = RecoveryJob(spark, tmp_path / "chk", settings=RETAIN)
    one = first.start(feed.stream(), job_id=JOB)
    first.wait_for_checkpoint(len(feed.elements))
    # What the first does when it ends must not cost the second its local state.
    second = RecoveryJob(spark, tmp_path / "chk", restarts=0, settings=RETAIN, like=first)
    other = second.start(feed.stream(), job_id=JOB, name="takes over")
    if busy:
        feed.fill(1)
        second.wait_for_checkpoint(len(feed.elements))
    with pytest.raises(JobExecutionError, match="another has taken fence 2") as caught:
        one.result(TIMEOUT)
    assert isinstance(caught.value.__cause__, FencedError)
    assert one.status() is JobStatus.FAILED
    # The second still has what it needs, and uses it.
    feed.fill(1)
    second.wait_for_checkpoint(len(feed.elements))
    newest = figures(other).latest_completed
    assert newest
    assert (tmp_path / "chk" / JOB / f"chk-{newest.id}" / "_metadata").exists()
    other.cancel()
    wait_for(lambda: other.status().is_terminal, "the second job to end")
    assert second.outcome() == expected(feed.elements)
