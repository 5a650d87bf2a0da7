"""Savepoints that a checkpointer takes, without Spark: how they complete and how they fail."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from msgspec import UNSET

from holdfast import SavepointFormatType
from holdfast.checkpoint.files.completed import load
from holdfast.checkpoint.restore.pointer import find_snapshot
from holdfast.checkpoint.savepoint import requests as savepoints
from holdfast.checkpoint.savepoint.requests import CheckpointRequest, SavepointRequest
from holdfast.checkpoint.savepoint.storage import store_savepoint
from holdfast.errors import (
    CheckpointError,
    CheckpointStorageError,
    ConfigurationError,
    JobExecutionError,
    RestoreError,
)
from holdfast.job.compiler import compile_rescaled
from holdfast.storage.file_system import FileSystemFiles
from tests.unit.checkpoint.test_checkpointer import TIMEOUT, Bench, make

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["make"]


def asked(bench: Bench, target: Path, *, native: bool = False) -> SavepointRequest:
    """Run an epoch that carries a savepoint."""
    form = SavepointFormatType.NATIVE if native else SavepointFormatType.CANONICAL
    request = SavepointRequest.at(str(target), "0123456789", form)
    taken(bench, request)
    return request


def taken(bench: Bench, request: CheckpointRequest) -> None:
    """Run an epoch that carries it."""
    order = bench.checkpointer.next_epoch(idle=True, request=request)
    assert order is not None
    bench.taken(order)


@pytest.mark.parametrize("native", [False, True])
def test_a_savepoint_comes_with_a_checkpoint_that_is_not_due(
    make: Callable[..., Bench], tmp_path: Path, native: bool
) -> None:
    bench = make()
    request = asked(bench, tmp_path / "savepoints", native=native)
    path = request.result(0)
    files, metadata = find_snapshot(path)
    own = find_snapshot(f"{bench.files.root}/chk-1")[1]
    assert (metadata.checkpoint_id, metadata.epoch, metadata.batch_id) == (1, 1, 0)
    assert metadata.is_savepoint
    assert not own.is_savepoint
    assert [source.uid for source in metadata.sources] == ["events"]
    kinds = {store.backend for operator in metadata.operators for store in operator.subtasks}
    assert kinds == {"hashmap" if native else "canonical"}
    assert files.root.startswith(f"{tmp_path}/savepoints/savepoint-012345-")
    assert bench.listener.heard == [("complete", 1)]
    # The next one has another id, and a directory of its own.
    again = asked(bench, tmp_path / "savepoints")
    assert find_snapshot(again.result(0))[1].checkpoint_id == 2
    assert bench.snapshots() == []


def test_a_savepoint_that_takes_too_long_fails_with_its_checkpoint(
    make: Callable[..., Bench], tmp_path: Path
) -> None:
    bench = make(asynchronous=True)
    gate = bench.calls.hold(1)
    request = asked(bench, tmp_path / "savepoints")
    bench.clock.advance(TIMEOUT)
    bench.checkpointer.expire()
    with pytest.raises(CheckpointError, match=r"was not taken: .*timeout is 5000 ms"):
        request.result(0)
    gate.set()
    bench.settle()
    assert bench.complete == []
    for left in (tmp_path / "savepoints").glob("*"):
        assert not (left / "_metadata").exists()


def test_a_savepoint_that_cannot_be_written_does_not_fail_its_checkpoint(
    make: Callable[..., Bench], tmp_path: Path
) -> None:
    bench = make()
    with pytest.raises(CheckpointError, match="Not a directory"):
        SavepointRequest.at(__file__, "job", SavepointFormatType.NATIVE)
    request = SavepointRequest.at(tmp_path, "job", SavepointFormatType.CANONICAL)
    Path(request.files.root).touch()
    taken(bench, request)
    with pytest.raises(CheckpointError, match=r"was not taken: .*CheckpointStorageError"):
        request.result(0)
    assert bench.complete == [1]
    assert bench.failures == []


def test_a_savepoint_is_given_up_with_its_job_attempt(
    make: Callable[..., Bench], tmp_path: Path
) -> None:
    bench = make(asynchronous=True)
    bench.calls.hold(1)
    request = asked(bench, tmp_path / "savepoints")
    bench.checkpointer.end_attempt()
    with pytest.raises(CheckpointError, match="was not taken"):
        request.result(0)


def test_what_is_given_up_is_not_completed_afterwards(tmp_path: Path) -> None:
    request = SavepointRequest.at(str(tmp_path), "job", SavepointFormatType.NATIVE)
    request.files.write_bytes("_metadata", b"as if it were complete")
    request.fail("nobody waits for it")
    FileSystemFiles(request.files.root).write_bytes("_metadata", b"written too late")
    request.complete()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(CheckpointError, match="nobody waits for it"):
        request.result(0)


def test_whoever_waits_hears_of_a_failure_though_storage_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = SavepointRequest.at(str(tmp_path), "job", SavepointFormatType.NATIVE)
    reached, gate = threading.Event(), threading.Event()

    def hang(_: Any) -> None:
        reached.set()
        assert gate.wait(30)

    monkeypatch.setattr(savepoints, "discard_unfinished", hang)
    failing = threading.Thread(target=request.fail, args=("the job has ended",))
    failing.start()
    try:
        assert reached.wait(30)
        with pytest.raises(CheckpointError, match="the job has ended"):
            request.result(0)
    finally:
        gate.set()
        failing.join(30)


@pytest.mark.parametrize("form", ["CANONICAL", None])
def test_the_form_is_one_of_two(form: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="is not a savepoint format"):
        SavepointRequest.at(str(tmp_path), "job", form)


# Savepoints that a job is drained for


class Unwritable:
    """Fails to write the metadata of savepoints, some times."""

    def __init__(self, times: int) -> None:
        self.left = times
        self.write = store_savepoint

    def __call__(self, files: Any, metadata: Any) -> None:
        self.left -= 1
        if self.left >= 0:
            raise CheckpointStorageError("no room")
        self.write(files, metadata)


def drained(
    make: Callable[..., Bench], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failures: int
) -> tuple[Bench, SavepointRequest]:
    bench = make()
    monkeypatch.setattr(bench.checkpointer._savepoints, "_first_pause", 0)
    monkeypatch.setattr(savepoints, "store_savepoint", Unwritable(failures))
    request = SavepointRequest.at(str(tmp_path / "s"), "job", SavepointFormatType.CANONICAL)
    request.required = True
    taken(bench, request)
    return bench, request


def test_a_savepoint_that_a_job_was_drained_for_is_tried_again(
    make: Callable[..., Bench], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, request = drained(make, tmp_path, monkeypatch, 3)
    saved = find_snapshot(request.result(0))[1]
    assert saved.drained is UNSET, "whoever starts from it knows"
    assert load(bench.files, 1).drained is True
    bench.epoch()
    assert load(bench.files, 2).drained is UNSET


def test_a_job_that_was_drained_does_not_go_on_from_the_checkpoint_of_a_failed_savepoint(
    make: Callable[..., Bench], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows would come out as they were, and again with the rows that follow."""
    bench, request = drained(make, tmp_path, monkeypatch, 4)
    path = f"{bench.files.root}/chk-1"
    with pytest.raises(CheckpointError, match=rf"no room.*drain=True.*from_savepoint='{path}'"):
        request.result(0)
    assert bench.complete == [1]
    failure = request.failed_drained()
    assert isinstance(failure, RestoreError), "which no restart follows, and no deletion"
    assert path in str(failure)


def test_a_job_that_was_drained_goes_back_if_the_checkpoint_fails_too(
    make: Callable[..., Bench], tmp_path: Path
) -> None:
    bench = make()
    bench.calls.fail(1, CheckpointStorageError("no room"))
    request = SavepointRequest.at(str(tmp_path / "s"), "job", SavepointFormatType.CANONICAL)
    request.required = True
    taken(bench, request)
    assert bench.complete == []
    failure = request.failed_drained()
    assert isinstance(failure, JobExecutionError)
    assert "returns to its last checkpoint" in str(failure)


# Checkpoints that are requested alone


def test_a_checkpoint_that_is_requested_completes_though_it_is_not_due(
    make: Callable[..., Bench],
) -> None:
    bench = make()
    request = CheckpointRequest("a checkpoint")
    taken(bench, request)
    assert request.result(0) == f"{bench.files.root}/chk-1"
    assert bench.complete == [1]
    assert bench.listener.heard == [("complete", 1)]
    request.wait()
    # Nothing that comes later changes that.
    request.fail("too late")
    assert request.is_complete


def test_a_requested_checkpoint_that_fails_is_no_failure_of_the_job(
    make: Callable[..., Bench],
) -> None:
    bench = make(asynchronous=True)
    gate = bench.calls.hold(1)
    request = CheckpointRequest("a checkpoint")
    taken(bench, request)
    assert not request.is_decided
    bench.clock.advance(TIMEOUT)
    bench.checkpointer.expire()
    with pytest.raises(CheckpointError, match=r"a checkpoint was not taken: .*timeout is 5000 ms"):
        request.result(0)
    gate.set()
    bench.settle()
    assert (bench.complete, bench.failures) == ([], [])
    # What has failed is not completed afterwards.
    request.complete()
    assert not request.is_complete


def test_whoever_waits_too_briefly_for_a_requested_checkpoint_is_told_that_it_continues() -> None:
    with pytest.raises(TimeoutError, match=r"a checkpoint is not complete after 0 s; it continues"):
        CheckpointRequest("a checkpoint").result(0)


def test_checkpoints_after_a_rescale_have_the_parts_of_other_subtasks(
    make: Callable[..., Bench],
) -> None:
    bench = make()
    bench.epoch()
    bench.checkpointer.end_attempt()
    program = bench.program
    plan = compile_rescaled(program.graph, program.settings, program.compile(), 1)
    bench.checkpointer.replan(plan)
    bench.commits.replan(plan)
    bench.begin(load(bench.files, 1))
    order = bench.order()
    assert order.checkpoint is not None
    pending = bench.checkpointer.tracker.coordinator._pending[order.checkpoint.id]
    assert pending.participants == {(1, 0)}
