"""Unaligned checkpoints on real Spark: they do not wait for a backlog, and lose none of it."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING, Any

import pytest

from holdfast import CheckpointListener
from holdfast.checkpoint.files.completed import completed_checkpoints, load
from holdfast.errors import JobExecutionError
from holdfast.storage.file_system import FileSystemFiles
from tests.support.output_jobs import Element, OutputJob, Process
from tests.support.recovery_jobs import HASHMAP, ROCKSDB, TIMEOUT
from tests.support.recovery_tools import Faults, Feed, figures, referenced, stored, wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from holdfast.checkpoint.files.metadata import CheckpointMetadata
    from holdfast.statistics import JobStatistics

UNALIGNED = {"unaligned.enabled": "true", "num-retained": 100}
BACKLOG: dict[str, Any] = {"count": 600, "per_epoch": None, "seconds": 0.001}
"""One epoch, if nothing cuts it, of 0.3 s and more for each of two operators on two subtasks."""


def persisted(statistics: JobStatistics) -> list[int]:
    """Bytes of input that the newest checkpoints hold."""
    assert statistics.checkpoints
    return [one.persisted_size for one in statistics.checkpoints.history]


def newest(job: OutputJob) -> CheckpointMetadata:
    files = FileSystemFiles(str(job.storage))
    (_, checkpoint_id), *_ = completed_checkpoints(files)
    return load(files, checkpoint_id)


class FirstCompletion(CheckpointListener):
    """When the first checkpoint was complete; from then on the job hurries."""

    def __init__(self, hurry: Path) -> None:
        self._hurry = hurry
        self.at: float | None = None

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self.at = self.at or time.time()
        self._hurry.touch()


class Backlog:
    """Elements of a source that notes when the first of them was read."""

    def __init__(self, marker: Path) -> None:
        self._marker = marker

    def __call__(self, i: int) -> Element:
        if i == 0 and not self._marker.exists():
            self._marker.write_text(str(time.time()))
        return Element(f"k{i % 4}", i)

    @property
    def begun(self) -> float:
        return float(self._marker.read_text())


def seconds_to_first_checkpoint(
    spark: SparkSession, job: OutputJob, count: int
) -> tuple[float, JobStatistics]:
    """From the first element that was read; having run the job to its end."""
    first = FirstCompletion(job.hurry)
    backlog = Backlog(job.place / "begun")
    env = job.environment(spark).add_checkpoint_listener(first)
    source = env.from_generator(backlog, count=count, type_info=Element)
    job.add_sinks(job.counted_from(source.set_parallelism(1).uid("source")))
    result = env.execute_async("backlog").result(TIMEOUT)
    assert first.at is not None
    return first.at - backlog.begun, result.statistics


@pytest.mark.slow
@pytest.mark.usefixtures("no_faults")
def test_a_backlog_does_not_hold_up_an_unaligned_checkpoint(
    spark: SparkSession, tmp_path: Path
) -> None:
    count = 2400
    took: dict[str, float] = {}
    for kind in ("false", "true"):
        place = tmp_path / kind
        place.mkdir()
        settings = {"interval": "1 s", "unaligned.enabled": kind, "asynchronous": "true"}
        job = OutputJob(place, settings, count=count, per_epoch=None, seconds=0.005)
        took[kind], statistics = seconds_to_first_checkpoint(spark, job, count)
        # The order of each key's elements is asserted in both operators.
        job.check()
        cut = [size for size in persisted(statistics) if size]
        assert bool(cut) is (kind == "true")
        assert job.left_behind() == []
    assert took["false"] > 5 * took["true"], took


@pytest.mark.usefixtures("no_faults")
@pytest.mark.parametrize(
    "settings",
    [
        {"unaligned.enabled": "false"},
        {"unaligned.enabled": "true", "aligned-checkpoint-timeout": "100 s"},
    ],
    ids=["aligned", "within the timeout"],
)
def test_an_epoch_is_cut_only_where_it_must_be(
    spark: SparkSession, tmp_path: Path, settings: dict[str, str]
) -> None:
    job = OutputJob(tmp_path, settings, **{**BACKLOG, "per_epoch": 300})
    statistics = job.run(spark).statistics
    assert set(persisted(statistics)) == {0}
    assert statistics.last_epoch is not None
    assert [number for number, _ in job.calls.read()] == [1, 2]
    job.check()


def start_again(
    spark: SparkSession, place: Path, injected: Faults, backend: str, before: int, after: int
) -> OutputJob:
    """Let a job fail while input is left over, and go on with it on other subtasks."""
    injected.plan(place, {"point": "epoch-released", "action": "raise", "epoch": 4})
    settings = {**UNALIGNED}
    job = OutputJob(place, settings, backend=backend, parallelism=before, restarts=0, **BACKLOG)
    with pytest.raises(JobExecutionError, match="injected at epoch-released"):
        job.run(spark)
    held = newest(job).channel_state
    assert held
    assert {left.parallelism for left in held} == {before}
    assert len(job.files()) < job.count
    again = OutputJob(place, settings, backend=backend, parallelism=after, **BACKLOG)
    again.run(spark)
    return again


@pytest.mark.versions
@pytest.mark.parametrize(
    ("backend", "before", "after"),
    [
        (HASHMAP, 2, 3),
        (ROCKSDB, 3, 2),
        pytest.param(ROCKSDB, 2, 3, marks=pytest.mark.slow),
        pytest.param(HASHMAP, 3, 2, marks=pytest.mark.slow),
        pytest.param(ROCKSDB, 2, 2, marks=pytest.mark.slow),
        pytest.param(HASHMAP, 1, 4, marks=pytest.mark.slow),
    ],
)
def test_input_that_a_checkpoint_holds_goes_to_the_subtasks_that_there_are(
    spark: SparkSession, tmp_path: Path, injected: Faults, backend: str, before: int, after: int
) -> None:
    job = start_again(spark, tmp_path, injected, backend, before, after)
    job.check()
    assert job.left_behind() == []


@pytest.mark.parametrize("backend", [HASHMAP, pytest.param(ROCKSDB, marks=pytest.mark.slow)])
@pytest.mark.parametrize("uid", ["recount", pytest.param("count", marks=pytest.mark.slow)])
def test_a_worker_killed_while_input_is_left_over_costs_nothing_but_time(
    spark: SparkSession, tmp_path: Path, injected: Faults, backend: str, uid: str
) -> None:
    fault = {"point": "after-commit", "action": "kill", "epoch": 4, "uid": uid}
    [struck] = injected.plan(tmp_path, fault)
    job = OutputJob(tmp_path, UNALIGNED, backend=backend, **BACKLOG)
    statistics = job.run(spark).statistics
    assert struck.exists()
    assert statistics.restarts == 1
    assert statistics.checkpoints
    assert statistics.checkpoints.latest_restored
    assert statistics.checkpoints.latest_restored.checkpoint_id == 3
    job.check()
    assert job.left_behind() == []


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize("backend", [HASHMAP, ROCKSDB])
def test_a_driver_killed_while_input_is_left_over_loses_and_repeats_nothing(
    tmp_path: Path, backend: str
) -> None:
    arguments = {"settings": UNALIGNED, "backend": backend, **BACKLOG}
    process = Process(tmp_path, **arguments)
    fault = {"point": "after-metadata", "checkpoint": 3}
    assert process.start(fault) == -signal.SIGKILL
    job = OutputJob(tmp_path, **arguments)
    held = newest(job)
    assert held.checkpoint_id == 3
    assert held.channel_state
    assert process.start(fault) == 0, (tmp_path / "log").read_text()[-3000:]
    job.check()
    assert job.left_behind() == []


@pytest.mark.usefixtures("no_faults")
def test_input_that_was_left_over_is_removed_when_it_is_processed(
    spark: SparkSession, tmp_path: Path
) -> None:
    job = OutputJob(tmp_path, {**UNALIGNED, "num-retained": 1}, **BACKLOG)
    feed = Feed(spark, tmp_path / "input").fill(2, each=300)
    env = job.environment(spark)
    rows = env.from_dataframe(feed.stream()).uid("source")
    job.add_sinks(job.counted_from(rows))
    client = env.execute_async("feed")
    wait_for(lambda: len(job.calls.rows()) == 600, "all output")
    wait_for(lambda: not figures(client).in_progress, "the last checkpoint")

    def processed() -> bool:
        # A checkpoint before the newest one may still be there, with files of its own.
        left = [*newest(job).channel_state, *job.storage.glob("staged/*-input*")]
        return not left and stored(job.storage) == referenced(job.storage)

    wait_for(processed, "all input to be processed, and what it left to be gone")
    cut = [one.persisted_size for one in figures(client).history]
    assert any(cut)
    client.cancel()
    assert len(job.files()) == 600
