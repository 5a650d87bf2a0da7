"""Where a job goes back to that was started from a savepoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from holdfast import HashMapStateBackend
from holdfast.checkpoint.files.completed import completed_checkpoints, store_metadata
from holdfast.checkpoint.files.fence import take_fence
from holdfast.checkpoint.files.job_files import JobStorage
from holdfast.checkpoint.files.layout import metadata_name
from holdfast.checkpoint.files.metadata import (
    FORMAT,
    SourceSnapshot,
    StoredEventTimes,
    encode_metadata,
    identity_of,
)
from holdfast.checkpoint.restore import restorer
from holdfast.checkpoint.restore.restorer import Restorer
from holdfast.checkpoint.savepoint.ownership import ClaimedSnapshot
from holdfast.checkpoint.savepoint.storage import load_savepoint
from holdfast.job.model import JobIdentity
from holdfast.storage.file_system import FileSystemFiles
from tests.support.checkpoints import checkpoint
from tests.support.functions import Count
from tests.support.offline_savepoints import UID, Operator
from tests.support.programs import Program
from tests.support.task_epochs import ROWS
from tests.support.timed_programs import timed
from tests.unit.checkpoint.test_checkpointer import Calls

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.checkpoint.files.metadata import CheckpointMetadata
    from holdfast.checkpoint.restore.restorer import RestoredJob
    from holdfast.job.model import JobPlan


class Started:
    """A job that was started from a savepoint, and has one checkpoint of its own, 8."""

    def __init__(self, tmp_path: Path) -> None:
        self.tmp_path = tmp_path
        self.savepoint = Operator(tmp_path, max_parallelism=128).savepoint(
            ["a", "b"], sources=[], batch_id=-1, spark={"offset_metadata": ""}
        )
        self.files = FileSystemFiles(str(tmp_path / "own"))
        given = load_savepoint(FileSystemFiles(self.savepoint))
        self.own: CheckpointMetadata = msgspec.structs.replace(
            checkpoint(8),
            origin=identity_of(given),
            operators=[],
            sources=[],
            spark={"offset_metadata": ""},
        )
        store_metadata(self.files, self.own, take_fence(self.files))

    def plan(self) -> JobPlan:
        program = Program(parallelism=2)
        program.source(ROWS).uid("events").key_by("k").process(Count(), ROWS).uid(UID)
        return program.compile()

    def restore(self, unwanted: frozenset[int] = frozenset()) -> RestoredJob:
        calls: Any = Calls()
        calls.homes = {}
        job = JobIdentity("job", "Job", str(self.tmp_path / "local"), "1-2")
        restorer = Restorer(self.files, self.savepoint, ignore_unclaimed=False)
        return restorer.restore(self.plan(), job, HashMapStateBackend(), calls, {}, unwanted)


def test_its_own_checkpoint_goes_before_the_savepoint(tmp_path: Path) -> None:
    restored = Started(tmp_path).restore()
    assert restored.metadata is not None
    assert restored.metadata.checkpoint_id == 8


def test_a_checkpoint_that_was_given_up_does_not_hide_the_savepoint(tmp_path: Path) -> None:
    """Its first checkpoint was aborted while its metadata was being written."""
    started = Started(tmp_path)
    # Another job gave the savepoint its id: it says nothing about this one's checkpoints.
    other = load_savepoint(FileSystemFiles(started.savepoint)).checkpoint_id
    restored = started.restore(unwanted=frozenset({8, other}))
    assert restored.metadata is not None
    assert restored.metadata.is_savepoint


def test_a_damaged_savepoint_does_not_make_own_checkpoints_unusable(tmp_path: Path) -> None:
    """It has checkpoints of its own, and needs nothing of the savepoint any more."""
    started = Started(tmp_path)
    manifest = FileSystemFiles(started.savepoint)
    data = manifest.read("_metadata")
    assert data is not None
    manifest.delete("_metadata")
    manifest.write_bytes("_metadata", data[:-5])
    restored = started.restore()
    assert restored.metadata is not None
    assert restored.metadata.checkpoint_id == 8


@pytest.mark.parametrize("uid", ["events", "replaced"])
def test_watermarks_are_restored_but_for_a_source_that_begins_again(
    tmp_path: Path, uid: str, caplog: pytest.LogCaptureFixture
) -> None:
    stored = StoredEventTimes(sources={"times": 7}, operators={UID: 5})
    source = SourceSnapshot(uid="events", position=[])
    taken = msgspec.structs.replace(checkpoint(8), sources=[source], event_times=stored)
    program = Program(parallelism=2)
    rows = timed(program.source("k string, t bigint").uid(uid), 0, "times")
    rows.key_by("k").process(Count(), ROWS).uid(UID)
    times = restorer.event_times_of(taken, program.compile())
    restored = uid == "events"
    assert times.sources == ({"times": 7} if restored else {})
    assert times.operators == {UID: 5}
    said = "the watermark of 'times' starts at the minimum"
    assert any(said in message for message in caplog.messages) is not restored


def test_a_claimed_checkpoint_leaves_files_of_one_that_cannot_be_read(tmp_path: Path) -> None:
    """The other is of a later format, say: what it uses is not known."""
    files = FileSystemFiles(str(tmp_path))
    fence = take_fence(files)
    handle = files.write_bytes("shared/1-abc", b"state")
    first = checkpoint(1, {"1.sst": handle})
    store_metadata(files, first, fence)
    later = encode_metadata(checkpoint(2, {"1.sst": handle}))
    later = later.replace(b'"format":%d' % FORMAT, b'"format":9', 1)
    assert files.create_exclusive(metadata_name(2), later)
    ClaimedSnapshot(files, first).release()
    assert files.exists("shared/1-abc")


class Own:
    """A job that publishes, and has completed some checkpoints."""

    def __init__(self, tmp_path: Path, *ids: int) -> None:
        self.files = FileSystemFiles(str(tmp_path / "own"))
        self.storage = JobStorage(self.files, take_fence(self.files))
        for number in ids:
            self.storage.complete(checkpoint(number))
        self.restorer = Restorer(self.files, None, ignore_unclaimed=False)

    def candidates(self) -> tuple[list[int], list[int]]:
        """Checkpoints that would be tried, and those that are passed over."""
        passed_over: dict[int, str] = {}
        found = [metadata.checkpoint_id for _, metadata in self.restorer._candidates(passed_over)]
        return found, sorted(passed_over)


def test_an_old_checkpoint_that_cannot_be_read_does_not_matter(tmp_path: Path) -> None:
    job = Own(tmp_path, 5, 6, 7)
    job.files.delete(metadata_name(5))
    job.files.create_exclusive(metadata_name(5), b"garbage")
    assert job.candidates() == ([7, 6], [])


def test_metadata_that_was_cut_off_before_its_record_does_not_matter(tmp_path: Path) -> None:
    """Nothing of it was published."""
    job = Own(tmp_path, 7)
    job.files.create_exclusive(metadata_name(8), encode_metadata(checkpoint(8))[:100])
    assert job.candidates() == ([7], [])


def test_a_newest_checkpoint_that_cannot_be_read_is_passed_over(tmp_path: Path) -> None:
    job = Own(tmp_path, 6, 7)
    job.files.delete(metadata_name(7))
    job.files.create_exclusive(metadata_name(7), b"garbage")
    assert job.candidates() == ([6], [7])


def test_a_driver_that_is_replaced_may_retire_checkpoints_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Own(tmp_path, 1)
    listed = completed_checkpoints

    def goes_on(files: Any) -> list[tuple[int, int]]:
        found = listed(files)
        if found == [(1, 1)]:
            job.storage.complete(checkpoint(2))
            job.storage.delete(1)
        return found

    monkeypatch.setattr(restorer, "completed_checkpoints", goes_on)
    assert job.candidates() == ([2], [])
