"""Local snapshots of checkpoints that fail, or are no longer wanted, leave the disks."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest

from holdfast import EmbeddedRocksDBStateBackend, HashMapStateBackend, SavepointFormatType
from holdfast.checkpoint.checkpointer import Checkpointer
from holdfast.checkpoint.commit.publisher import Publisher
from holdfast.checkpoint.commit.service import CommitService
from holdfast.checkpoint.files.completed import load, verify_handles
from holdfast.checkpoint.savepoint.requests import SavepointRequest, Savepoints
from holdfast.errors import CheckpointStorageError
from holdfast.state.store.directories import KeptSnapshots, tidy_job
from tests.support.recovery_tools import wait_for
from tests.unit.checkpoint.test_checkpointer import INTERVAL, TIMEOUT, Bench, Calls

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from holdfast.job.model import EpochOrder

BACKENDS = [HashMapStateBackend(), EmbeddedRocksDBStateBackend()]


class SavepointBench(Bench):
    """A job that takes savepoints alone."""

    def make(self, **_: Any) -> Checkpointer:
        plan = self.program.compile()
        publisher = Publisher(plan, self.calls)
        self.commits = CommitService(publisher, self.files, exactly_once=False)
        return Checkpointer(
            plan,
            self.settings,  # type: ignore[arg-type]
            self.files,
            self.fence,
            self.calls,
            [],
            1,
            self.failures.append,
            self.commits,
            [self.listener],
            savepoints=Savepoints(self.program.settings.backend, alone=True),
            clock=self.clock,
        )


class TriedAgain(Calls):
    """Calls on a cluster: after an error Spark runs the task again, with all its calls."""

    local = False

    def __init__(self, *errors: BaseException) -> None:
        super().__init__()
        self.errors = list(errors)

    def map(
        self, function: Callable[[Any], Any], items: Sequence[tuple[int, int, Any]], group: str
    ) -> Iterator[Any]:
        results = [function(item) for _, _, item in items]
        if self.errors:
            self.errors.pop()
            results = [function(item) for _, _, item in items]
        yield from results


class ClusterBench(Bench):
    """A job on a cluster, whose first uploads run twice."""

    def make(self, **options: Any) -> Checkpointer:
        self.calls = TriedAgain(CheckpointStorageError("of another store, and soon over"))
        return super().make(**options)


@pytest.fixture(params=BACKENDS, ids=lambda backend: backend.name)
def make(request: Any, tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    benches: list[Bench] = []

    def made(kind: type[Bench] = Bench, **settings: Any) -> Bench:
        benches.append(kind(tmp_path, backend=request.param, tolerable_failures=9, **settings))
        return benches[-1]

    yield made
    for bench in benches:
        for gate in bench.calls.gates.values():
            gate.set()
        bench.checkpointer.close()


def left(bench: Bench) -> list[str]:
    """Checkpoints of which there is anything on the disk, be it an empty directory."""
    return sorted(path.name for path in bench.tasks.directory.glob("*/*.snapshots/*"))


def plain_epoch(bench: Bench) -> None:
    """An epoch that carries no checkpoint."""
    order = bench.checkpointer.next_epoch(idle=False, plain=True)
    assert order is not None
    bench.taken(order)


def savepoint_epoch(bench: Bench, tmp_path: Path) -> SavepointRequest:
    request = SavepointRequest.at(str(tmp_path / "to"), "job-id", SavepointFormatType.NATIVE)
    order = bench.checkpointer.next_epoch(idle=False, request=request)
    assert order is not None
    bench.taken(order)
    return request


def test_one_that_is_given_up_while_its_epoch_runs_is_removed_by_the_next_epoch(
    make: Callable[..., Bench],
) -> None:
    bench = make()
    order = bench.order()
    result = bench.run(order)
    bench.clock.advance(TIMEOUT)
    bench.checkpointer.expire()
    bench.checkpointer.epoch_completed(order, result, bench.batch)
    assert left(bench) == ["chk-1"]
    plain_epoch(bench)
    assert left(bench) == []


def test_what_a_failed_upload_did_not_come_to_is_removed(make: Callable[..., Bench]) -> None:
    bench = make()
    bench.calls.fail(1, CheckpointStorageError("bucket is full"))
    bench.epoch()
    plain_epoch(bench)
    assert left(bench) == []


def test_uploads_that_spark_tries_again_hold_what_the_first_try_held(
    make: Callable[..., Bench],
) -> None:
    bench = make(ClusterBench)
    bench.epoch()
    metadata = load(bench.files, 1)
    verify_handles(metadata, bench.files)
    assert [len(operator.subtasks) for operator in metadata.operators] == [2]
    assert all(store.files for operator in metadata.operators for store in operator.subtasks)
    plain_epoch(bench)
    assert left(bench) == [], "they go with the next epoch"


def test_a_checkpoint_whose_snapshots_are_gone_fails_and_the_one_before_stays(
    make: Callable[..., Bench],
) -> None:
    bench = make(ClusterBench)
    bench.epoch()
    order = bench.order()
    result = bench.run(order)
    for store in bench.snapshots():
        shutil.rmtree(store)
    bench.checkpointer.epoch_completed(order, result, bench.batch)
    assert bench.complete == [1]


def test_a_backup_whose_checkpoint_never_completed_is_removed(make: Callable[..., Bench]) -> None:
    """All of it was uploaded; its metadata could not be written."""
    bench = make(local_backup=True)
    bench.epoch()
    bench.files.create_exclusive("chk-2/_metadata", b"another's")
    bench.epoch()
    assert bench.complete != [2]
    plain_epoch(bench)
    assert left(bench) == ["chk-1"]
    assert {
        path
        for path in bench.checkpointer.tracker.local_snapshots.copies.values()
        if "chk-1" in path
    }


def test_what_an_epoch_that_failed_has_left_goes_when_the_next_job_attempt_begins(
    make: Callable[..., Bench],
) -> None:
    """With a backup of the checkpoint before it, which stays."""
    bench = make(local_backup=True)
    bench.epoch()
    order = bench.order()
    bench.run(order)
    bench.checkpointer.epoch_failed(order)
    copies = bench.checkpointer.tracker.local_snapshots.copies.values()
    tidy_job(str(bench.tasks.directory), "job", run="", job_attempt="2", snapshots=copies)
    assert left(bench) == ["chk-1"]
    bench.checkpointer.end_attempt()
    bench.begin()
    following = bench.checkpointer.next_epoch(idle=False, plain=True)
    assert following is not None
    assert following.kept_snapshots == KeptSnapshots(3, complete=(1,)), (
        "a backup that may still be needed stays"
    )


def test_of_a_savepoint_that_fails_nothing_stays(
    make: Callable[..., Bench], tmp_path: Path
) -> None:
    bench = make(SavepointBench, local_backup=True)
    bench.calls.fail(1, CheckpointStorageError("bucket is full"))
    assert not savepoint_epoch(bench, tmp_path).is_complete
    plain_epoch(bench)
    assert left(bench) == []


def test_of_a_savepoint_that_is_complete_nothing_stays(
    make: Callable[..., Bench], tmp_path: Path
) -> None:
    bench = make(SavepointBench, local_backup=True)
    assert savepoint_epoch(bench, tmp_path).is_complete
    plain_epoch(bench)
    assert left(bench) == []


@pytest.mark.parametrize("backup", [True, False])
def test_neither_snapshots_nor_empty_directories_pile_up(
    make: Callable[..., Bench], backup: bool
) -> None:
    bench = make(local_backup=backup)
    for number in range(1, 12):
        if number % 3 == 0:
            bench.calls.fail(number, CheckpointStorageError("bucket is full"))
        bench.epoch()
        assert len(left(bench)) <= 2
    plain_epoch(bench)
    assert left(bench) == (["chk-11"] if backup else [])


def test_those_that_are_being_uploaded_stay(make: Callable[..., Bench]) -> None:
    bench = make(asynchronous=True, max_concurrent=3, local_backup=True)
    bench.epoch()
    wait_for(lambda: ("complete", 1) in bench.listener.heard, "the first", 30)
    gates = [bench.calls.hold(number) for number in (2, 3)]
    bench.epoch()
    bench.epoch()
    plain_epoch(bench)
    assert left(bench) == ["chk-1", "chk-2", "chk-3"]
    for gate in gates:
        gate.set()
    wait_for(lambda: ("complete", 3) in bench.listener.heard, "the last", 30)
    bench.settle()
    order = bench.checkpointer.next_epoch(idle=False, plain=True)
    assert order is not None
    bench.run(order)
    assert left(bench) == ["chk-3"]
    assert all(
        "chk-3" in path for path in bench.checkpointer.tracker.local_snapshots.copies.values()
    )


def test_epochs_look_for_what_is_to_be_removed_only_if_there_may_be_something(
    make: Callable[..., Bench],
) -> None:
    bench = make()

    def told(*, due: bool = False) -> Any:
        if due:
            bench.clock.advance(INTERVAL)
        order: EpochOrder | None = bench.checkpointer.next_epoch(idle=False)
        assert order is not None
        bench.taken(order)
        return order.kept_snapshots

    assert told() is None
    assert told(due=True) is None
    assert told() == KeptSnapshots(2)
    assert told() is None
