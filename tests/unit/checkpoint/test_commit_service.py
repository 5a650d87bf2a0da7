"""When output goes out: once, with its checkpoint, by the driver that holds the fence."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from holdfast import Configuration, HashMapStateBackend
from holdfast.checkpoint.commit.publisher import Publication, Publisher
from holdfast.checkpoint.commit.service import CommitService
from holdfast.checkpoint.files.channel_state import FileStaging
from holdfast.checkpoint.files.completed import load
from holdfast.checkpoint.files.endings import JobEnding
from holdfast.checkpoint.files.metadata import Committable
from holdfast.checkpoint.service import CheckpointService, RecoveryOrder
from holdfast.config.checkpointing import checkpoint_settings
from holdfast.config.storage import FileSystemCheckpointStorage
from holdfast.errors import FencedError, SinkError
from holdfast.job.model import JobIdentity
from holdfast.job.statistics import JobStatus
from holdfast.spark.sources.query_log import capture
from holdfast.storage.file_system import FileSystemFiles
from tests.support.programs import Program
from tests.support.staged import CALLS, LocalCalls, Notebook, calls, no_frames
from tests.support.staged_drivers import published
from tests.support.task_epochs import ROWS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("no_calls")


# With its checkpoint


def test_output_goes_out_with_the_checkpoint_that_contains_it(drive: Any) -> None:
    driver = drive()
    driver.begin()
    driver.epoch(1)
    driver.epoch(2, 3)
    assert published() == []
    driver.complete(1)
    assert published() == [(1, [1]), (1, [2, 3])]
    driver.epoch(4)
    driver.complete(2)
    assert published()[2:] == [(2, [4])]


def test_functions_on_the_driver_come_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing but their own failure makes them see the same rows twice."""
    program = Program()
    rows = program.source(ROWS)
    rows.foreach_batch(print).uid("calls")
    rows.sink_to(Notebook("log")).uid("log")
    publisher = Publisher(program.compile(), LocalCalls())
    order: list[str] = []

    def publish(self: Publisher, mine: Sequence[Committable], *given: Any, **options: Any) -> None:
        order.extend(one.uid for one in mine)

    monkeypatch.setattr(Publisher, "publish", publish)
    listed = [
        Committable(uid=uid, checkpoint_id=1, epoch=1, subtask=subtask)
        for subtask in range(2)
        for uid in ("calls", "log")
    ]
    commits = CommitService(publisher, FileSystemFiles(str(tmp_path)), exactly_once=True)
    commits._commit(listed, Publication("job", "", None))
    assert order == ["log", "log", "calls", "calls"]


def test_without_exactly_once_output_goes_out_with_its_epoch(drive: Any) -> None:
    driver = drive(exactly_once=False)
    driver.begin()
    driver.epoch(1)
    driver.epoch(2)
    assert published() == [(0, [1]), (0, [2])]
    assert calls("clean_up") == [("clean_up", "notebook", "job", "sink", "1-1")]
    driver.begin()
    driver.epoch(3)
    assert [call[-1] for call in calls("clean_up")] == ["1-1", "1-2"]


def test_tasks_are_told_where_to_keep_rows(drive: Any) -> None:
    delivery = drive().commits.delivery
    assert delivery.exactly_once
    assert isinstance(delivery.staging, FileStaging)
    # Input that a checkpoint holds is read there, whoever took it.
    delivery = drive(exactly_once=False).commits.delivery
    assert not delivery.exactly_once
    assert isinstance(delivery.staging, FileStaging)


def test_output_whose_publication_failed_keeps_its_id(
    drive: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = drive()
    driver.begin()
    driver.epoch(1)
    with monkeypatch.context() as patched:
        patched.setattr("tests.support.staged.NotebookCommitter.commit", _refuse)
        with pytest.raises(SinkError, match="no connection"):
            driver.complete(1)
    assert driver.commits.owes
    driver.epoch(2)
    metadata = driver.complete(2)
    assert not driver.commits.owes
    assert [one.checkpoint_id for one in metadata.committables] == [1, 2]
    assert published() == [(1, [1]), (2, [2])]


def _refuse(self: Any, requests: Any) -> None:
    raise OSError("no connection")


def test_a_driver_that_lost_its_fence_publishes_nothing(drive: Any) -> None:
    driver = drive()
    driver.begin()
    driver.epoch(1)
    metadata = driver.stored(1)
    drive()
    with pytest.raises(FencedError, match="another has taken"):
        driver.publish(metadata)
    assert CALLS[-1][0] == "close"
    assert published() == []
    assert driver.commits.owes


# After a recovery


def test_a_new_driver_publishes_what_a_checkpoint_lists(drive: Any) -> None:
    old = drive()
    old.begin()
    old.epoch(1)
    old.stored(1)
    new = drive()
    new.recover(load(new.files, 1))
    assert published() == [(1, [1])]


def test_what_a_checkpoint_lists_is_recovered_once_by_each_driver(drive: Any) -> None:
    first = drive()
    first.begin()
    first.epoch(1)
    metadata = first.stored(1)
    second = drive()
    second.recover(metadata)
    second.recover(metadata)
    assert len(published()) == 1
    third = drive()
    third.recover(metadata)
    assert len(published()) == 2


def test_what_this_driver_has_published_is_not_published_again(drive: Any) -> None:
    driver = drive()
    driver.begin()
    driver.epoch(1)
    driver.recover(driver.complete(1))
    assert published() == [(1, [1])]


def test_a_recovery_whose_publication_fails_publishes_the_next_time(
    drive: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = drive()
    old.begin()
    old.epoch(1)
    metadata = old.stored(1)
    new = drive()
    with monkeypatch.context() as patched:
        patched.setattr("tests.support.staged.NotebookCommitter.commit", _refuse)
        with pytest.raises(SinkError, match="no connection"):
            new.recover(metadata)
    new.recover(metadata)
    assert published() == [(1, [1])]


def test_another_jobs_checkpoint_is_published_whatever_ids_this_job_has_seen(
    drive: Any, tmp_path: Path
) -> None:
    other = drive(files=FileSystemFiles(str(tmp_path / "other")))
    other.begin()
    other.epoch(7)
    foreign = other.stored(1)
    driver = drive()
    driver.begin()
    driver.epoch(1)
    driver.complete(1)
    driver.commits.recover(foreign, other.files)
    assert published() == [(1, [1]), (1, [7])]


def test_a_row_of_checkpoints_keeps_its_name_until_a_job_starts_from_nothing(drive: Any) -> None:
    driver = drive()
    driver.begin()
    driver.epoch(1)
    metadata = driver.complete(1)
    driver.recover(metadata)
    assert driver.commits.pending_committables.lineage == metadata.lineage != ""
    again = drive()
    again.recover(metadata)
    assert again.commits.pending_committables.lineage == metadata.lineage
    fresh = drive()
    fresh.begin()
    assert fresh.commits.pending_committables.lineage != metadata.lineage


def test_a_job_that_goes_on_from_another_ones_checkpoint_begins_a_row_of_its_own(
    drive: Any, tmp_path: Path
) -> None:
    other = drive(files=FileSystemFiles(str(tmp_path / "other")))
    other.begin()
    metadata = other.stored(1)
    driver = drive()
    driver.commits.recover(metadata, other.files)
    driver.begin()
    assert driver.commits.pending_committables.lineage != metadata.lineage


def settings(tmp_path: Path) -> Any:
    configured = Configuration()
    configured.set("execution.checkpointing.interval", "1 s")
    storage = FileSystemCheckpointStorage(str(tmp_path / "all"), 0)
    return checkpoint_settings(configured, storage)


def opened(drive: Any, tmp_path: Path) -> tuple[CheckpointService, Any]:
    """The checkpoints of a job that begins, and the driver whose sinks it publishes."""
    checkpointing = CheckpointService(
        "job", HashMapStateBackend(), settings(tmp_path), RecoveryOrder()
    )
    driver = drive(files=FileSystemFiles(str(tmp_path / "all" / "job")))
    checkpointing.open(driver.plan, LocalCalls(), no_frames, lambda failure: None)
    return checkpointing, driver


def take_over(drive: Any, files: Any) -> Any:
    """Let another driver take over and complete a checkpoint; its metadata."""
    newer = drive(files=files)
    newer.begin()
    newer.epoch(1)
    return newer.stored(1)


def test_a_driver_that_lost_its_fence_recovers_nothing(drive: Any, tmp_path: Path) -> None:
    checkpointing, driver = opened(drive, tmp_path)
    take_over(drive, driver.files)
    with pytest.raises(FencedError, match="another has taken"):
        checkpointing.restore(JobIdentity("job", "Job", str(tmp_path / "local"), "2-2"))
    assert published() == []
    checkpointing.close(None)


def test_a_job_that_is_taken_over_while_its_sinks_abort_deletes_nothing_of_the_next_driver(
    drive: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpointing, driver = opened(drive, tmp_path)
    job = JobIdentity("job", "Job", str(tmp_path / "local"), "2-1")
    checkpointing.begin(job, checkpointing.restore(job), partial(capture, tmp_path / "query", {}))
    stored = []

    def abort(_: Any) -> None:
        stored.append(take_over(drive, driver.files))

    monkeypatch.setattr(checkpointing._commits, "abort_left_open", abort)
    with pytest.raises(FencedError, match="another has taken"):
        checkpointing.close(JobEnding(JobStatus.FINISHED, lasting_id=True))
    assert [load(driver.files, 1)] == stored
    assert not driver.files.exists("finished.json")


@pytest.mark.parametrize("status", [one for one in JobStatus if one.is_terminal])
def test_a_driver_that_lost_its_fence_and_does_not_know_it_leaves_all_of_the_next_one(
    drive: Any, tmp_path: Path, status: JobStatus
) -> None:
    checkpointing, driver = opened(drive, tmp_path)
    job = JobIdentity("job", "Job", str(tmp_path / "local"), "2-1")
    checkpointing.begin(job, checkpointing.restore(job), partial(capture, tmp_path / "query", {}))
    metadata = take_over(drive, driver.files)
    checkpointing.close(JobEnding(status, lasting_id=True))
    assert calls("clean_up") == []
    assert load(driver.files, 1) == metadata
