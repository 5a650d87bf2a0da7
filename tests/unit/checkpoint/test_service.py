"""The drivers of a job, one after the other, without Spark: what each leaves to the next."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from msgspec import UNSET

from holdfast import Configuration, HashMapStateBackend, JobStatus
from holdfast.checkpoint.files.cleanup import delete_job
from holdfast.checkpoint.files.completed import load_newest, store_metadata
from holdfast.checkpoint.files.endings import JobEnding
from holdfast.checkpoint.files.fence import take_fence
from holdfast.checkpoint.files.job_files import JobStorage
from holdfast.checkpoint.files.ledger import claimed_by, recorded_checkpoints
from holdfast.checkpoint.files.metadata import encode_metadata
from holdfast.checkpoint.savepoint.ownership import ClaimedSnapshot
from holdfast.checkpoint.service import CheckpointService, RecoveryOrder
from holdfast.config.checkpointing import checkpoint_settings
from holdfast.config.storage import FileSystemCheckpointStorage
from holdfast.errors import FencedError, RestoreError
from holdfast.job.compiler import compile_rescaled
from holdfast.job.model import JobIdentity, QueryPosition
from holdfast.storage.file_system import FileSystemFiles
from tests.support.checkpoints import checkpoint
from tests.support.functions import Count
from tests.support.programs import Program
from tests.support.task_epochs import ROWS
from tests.unit.checkpoint.test_checkpointer import Calls

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.checkpoint.files.metadata import CheckpointMetadata
    from holdfast.checkpoint.restore.restorer import RestoredJob


def plain(metadata: CheckpointMetadata) -> CheckpointMetadata:
    """A checkpoint of a job without state that has read nothing."""
    return msgspec.structs.replace(
        metadata, operators=[], sources=[], spark={"offset_metadata": ""}
    )


class Driver:
    """One driver of a job with a lasting id."""

    def __init__(self, tmp_path: Path, path: str | None = None, **options: str) -> None:
        self.tmp_path = tmp_path
        configured = Configuration({"execution.checkpointing.interval": "1 s", **options})
        storage = FileSystemCheckpointStorage(str(tmp_path))
        settings = checkpoint_settings(configured, storage)
        self.service = CheckpointService(
            "job", HashMapStateBackend(), settings, RecoveryOrder(path)
        )
        self.files = FileSystemFiles(str(tmp_path / "job"))
        self.program = program = Program(parallelism=1)
        counts = program.source(ROWS).uid("events").key_by("k").process(Count(), ROWS)
        program.collect(counts.uid("count"))
        calls: Any = Calls()
        self.service.open(program.compile(), calls, lambda *_: None, _fail)
        self.storage = JobStorage(self.files, self.service._fence)

    @property
    def next_id(self) -> int:
        assert self.service._checkpointer is not None
        return self.service._checkpointer.tracker.coordinator.next_id

    def taken(self, checkpoint_id: int) -> CheckpointMetadata:
        fence = self.service._fence.number
        return plain(checkpoint(checkpoint_id, fence=fence))

    def begin(self) -> RestoredJob:
        local = str(self.tmp_path / "local")
        job = JobIdentity("job", "Job", local, self.service.job_attempt(1))
        restored = self.service.restore(job)
        position = QueryPosition(-1, "", {})
        self.service.begin(job, restored, lambda *_: position)
        return restored

    def end(self, status: JobStatus, **how: Any) -> None:
        self.service.close(JobEnding(status, lasting_id=True, **how))


def _fail(error: BaseException) -> None:
    raise error


@pytest.mark.parametrize("status", [JobStatus.CANCELED, JobStatus.FINISHED])
def test_a_run_after_the_end_of_a_job_uses_no_id_and_no_fence_again(
    tmp_path: Path, status: JobStatus
) -> None:
    first = Driver(tmp_path)
    first.begin()
    first.storage.complete(first.taken(first.next_id))
    first.end(status)
    # As the message about a finished job says.
    first.files.delete("finished.json")
    assert first.files.entries().keys() == {"used"}
    second = Driver(tmp_path)
    assert (second.next_id, second.service._fence.number) == (2, 2)


def test_a_checkpoint_that_was_restored_is_missed_though_its_driver_died_before_the_record(
    tmp_path: Path,
) -> None:
    first = Driver(tmp_path)
    store_metadata(first.files, first.taken(1), first.service._fence)
    second = Driver(tmp_path)
    restored = second.begin()
    assert restored.metadata is not None
    assert recorded_checkpoints(second.files) == [(1, 1)]
    # The output that it lists is published by now.
    second.files.delete_tree("chk-1")
    assert [*load_newest(second.files)[1]] == [1]


def test_a_driver_that_was_replaced_records_nothing(tmp_path: Path) -> None:
    first = Driver(tmp_path)
    store_metadata(first.files, first.taken(1), first.service._fence)
    Driver(tmp_path)
    with pytest.raises(FencedError):
        first.begin()
    assert recorded_checkpoints(first.files) == []


@pytest.mark.parametrize("accepted", ["false", "true"])
def test_a_job_that_starts_from_the_directory_of_another_misses_its_newest_checkpoint(
    tmp_path: Path, accepted: str
) -> None:
    other = FileSystemFiles(str(tmp_path / "other"))
    storage = JobStorage(other, take_fence(other))
    for number in (6, 7):
        storage.complete(plain(checkpoint(number)))
    other.delete_tree("chk-7")
    option = {"execution.checkpointing.accept-duplicates-on-fallback": accepted}
    if accepted == "true":
        restored = Driver(tmp_path, other.root, **option).begin()
        assert restored.metadata is not None
        assert restored.metadata.checkpoint_id == 6
        return
    with pytest.raises(RestoreError, match=r"newest checkpoint, 7, .*chk-6"):
        Driver(tmp_path, other.root, **option).begin()
    named = Driver(tmp_path, f"{other.root}/chk-6", **option).begin()
    assert named.metadata is not None


def test_a_job_that_has_lost_its_only_checkpoint_is_told_what_helps(tmp_path: Path) -> None:
    first = Driver(tmp_path)
    first.storage.complete(first.taken(1))
    first.files.delete_tree("chk-1")
    option = {"execution.checkpointing.accept-duplicates-on-fallback": "true"}
    with pytest.raises(RestoreError, match=r"accept-duplicates.* does not help.*another job id"):
        Driver(tmp_path, **option).begin()


@pytest.mark.parametrize("named", ["nothing", "another", "job", "checkpoint", "savepoint"])
def test_a_checkpoint_that_a_drained_job_was_to_end_with_is_restored_only_by_its_name(
    tmp_path: Path, named: str
) -> None:
    """Its savepoint was not completed, or its driver died before the job had ended."""
    first = Driver(tmp_path)
    taken = msgspec.structs.replace(first.taken(2), drained=True)
    first.storage.complete(first.taken(1))
    first.storage.complete(taken)
    saved = msgspec.structs.replace(taken, drained=UNSET, is_savepoint=True)
    place = FileSystemFiles(str(tmp_path / "savepoint"))
    place.create_exclusive("_metadata", encode_metadata(saved))
    path = {
        "nothing": None,
        "another": f"{first.files.root}/chk-1",
        "job": first.files.root,
        "checkpoint": f"{first.files.root}/chk-2",
        "savepoint": place.root,
    }[named]
    driver = Driver(tmp_path, path)
    if named in ("nothing", "another", "job"):
        with pytest.raises(RestoreError, match=r"job/chk-2: .*drain=True.*from_savepoint="):
            driver.begin()
        return
    restored = driver.begin()
    assert restored.metadata is not None
    assert restored.metadata.checkpoint_id == 2
    # The next start continues from a checkpoint of its own.
    driver.storage.complete(driver.taken(3))
    assert Driver(tmp_path).begin().metadata is not None


def test_a_job_whose_checkpoint_another_has_claimed_is_told_who(tmp_path: Path) -> None:
    """It does not begin anew either: its output would come again."""
    first = Driver(tmp_path)
    first.storage.complete(first.taken(7))
    ClaimedSnapshot(first.files, first.taken(7), "successor").delete()
    assert not first.files.exists("chk-7/_metadata")
    assert first.files.read("completed/1-7.claimed") == b'{"format":1,"by":"successor"}'
    with pytest.raises(RestoreError, match=r"'successor' has started from this") as refused:
        Driver(tmp_path).begin()
    assert "backup" not in str(refused.value)
    delete_job(first.files)
    assert first.files.entries() == {}


def test_a_claimed_checkpoint_whose_claimer_cannot_be_read_is_claimed_all_the_same(
    tmp_path: Path,
) -> None:
    files = FileSystemFiles(str(tmp_path))
    files.create_exclusive("completed/1-7.claimed", b"{")
    assert claimed_by(files, 7) == "?"
    assert claimed_by(files, 17) is None


@pytest.mark.parametrize("named", [True, False])
def test_another_job_does_not_start_from_a_drained_checkpoint_by_the_directory_of_its_job(
    tmp_path: Path, named: bool
) -> None:
    other = FileSystemFiles(str(tmp_path / "other"))
    drained = msgspec.structs.replace(plain(checkpoint(7)), drained=True)
    JobStorage(other, take_fence(other)).complete(drained)
    driver = Driver(tmp_path, f"{other.root}/chk-7" if named else other.root)
    if named:
        assert driver.begin().metadata == drained
    else:
        with pytest.raises(RestoreError, match=r"other/chk-7: .*drain=True"):
            driver.begin()


@pytest.mark.parametrize(("before", "after"), [(3, 1), (1, 3)])
def test_a_rescaled_job_leaves_no_local_state_where_its_subtasks_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: int, after: int
) -> None:
    driver = Driver(tmp_path)
    program, service = driver.program, driver.service
    plans = {
        number: compile_rescaled(program.graph, program.settings, program.compile(), number)
        for number in (before, after)
    }
    service.replan(plans[before])
    driver.begin()
    driver.storage.complete(driver.taken(1))
    tidied: list[int] = []
    call = service._calls.map

    def note(function: Any, items: Any, group: str) -> Any:
        if group.startswith("holdfast-tidy"):
            tidied.append(len(items))
        return call(function, items, group)

    monkeypatch.setattr(service._calls, "map", note)
    service.replan(plans[after])
    driver.begin()
    # Where the new subtasks are, and then where the old ones were.
    assert tidied == [after, before]
    driver.begin()
    assert tidied == [after, before, after]
