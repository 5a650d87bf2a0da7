"""Savepoints that take too long, are given up, or are of a job without tasks."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from holdfast import SavepointFormatType
from holdfast.checkpoint import subtask_upload
from holdfast.checkpoint.checkpointer import Checkpointer
from holdfast.checkpoint.commit.publisher import Publisher
from holdfast.checkpoint.commit.service import CommitService
from holdfast.checkpoint.savepoint.parts import write_part
from holdfast.checkpoint.savepoint.requests import SavepointRequest, Savepoints
from tests.support.driver_memory import held
from tests.support.programs import Program
from tests.support.recovery_tools import wait_for
from tests.support.task_epochs import ROWS
from tests.unit.checkpoint.test_checkpointer import TIMEOUT, Bench

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.job.model import EpochOrder, EpochResult

CANONICAL = SavepointFormatType.CANONICAL


def begun(bench: Bench, tmp_path: Path) -> SavepointRequest:
    """A savepoint whose first part is written, and whose second is held up."""
    request, order = asked(bench, tmp_path)
    bench.taken(order)
    return request


def test_a_savepoint_that_takes_too_long_does_not_fail_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its checkpoint is uploaded quickly; the tables are not."""
    writing, gate = threading.Event(), threading.Event()

    def slow(*given: Any, **options: Any) -> Any:
        writing.set()
        assert gate.wait(30)
        return write_part(*given, **options)

    monkeypatch.setattr(subtask_upload, "write_part", slow)
    bench = Bench(tmp_path, asynchronous=True)
    request = begun(bench, tmp_path)
    assert writing.wait(30)
    bench.clock.advance(TIMEOUT)
    bench.checkpointer.expire()
    gate.set()
    bench.settle()
    assert request.is_decided
    assert not request.is_complete
    assert not bench.failures


def test_a_savepoint_that_is_given_up_meanwhile_leaves_no_files(tmp_path: Path) -> None:
    """As when the job is cancelled while it waits for the savepoint it was to stop with."""
    bench = Bench(tmp_path, asynchronous=True)
    gate = bench.calls.hold(1)
    request = begun(bench, tmp_path)
    wait_for(lambda: list(tmp_path.glob("savepoints/*/count/keyed/*/*")), "the first part", 30)
    request.fail("the job has ended")
    gate.set()
    bench.checkpointer.await_final_checkpoint()
    bench.settle()
    left = [path for path in (tmp_path / "savepoints").rglob("*") if path.is_file()]
    assert not left


def asked(bench: Bench, tmp_path: Path) -> tuple[SavepointRequest, EpochOrder]:
    """A savepoint whose epoch is about to run."""
    request = SavepointRequest.at(str(tmp_path / "savepoints"), "job-id", CANONICAL)
    order = bench.checkpointer.next_epoch(idle=False, request=request)
    assert order is not None
    return request, order


def remembered(bench: Bench) -> dict[str, int]:
    found = held(bench.checkpointer._savepoints)
    return {path: size for path, size in found.items() if path.startswith("Savepoints._") and size}


def test_a_savepoint_is_forgotten_when_its_epoch_fails(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    request, order = asked(bench, tmp_path)
    bench.checkpointer.epoch_failed(order)
    assert request.is_decided
    assert remembered(bench) == {}
    bench.settle()


def test_a_savepoint_is_forgotten_when_it_expires_in_its_epoch(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    request, order = asked(bench, tmp_path)
    bench.clock.advance(TIMEOUT)
    bench.checkpointer.expire()
    bench.taken(order)
    assert request.is_decided
    assert remembered(bench) == {}
    bench.settle()


def test_a_savepoint_is_forgotten_when_its_upload_is_refused(tmp_path: Path) -> None:
    bench = Bench(tmp_path, most_hanging=-99)
    request, order = asked(bench, tmp_path)
    bench.taken(order)
    assert request.is_decided
    assert remembered(bench) == {}
    bench.settle()


def test_a_savepoint_is_known_while_it_is_written_though_its_epoch_fails_in_the_end(
    tmp_path: Path,
) -> None:
    """As when a listener raises behind it: what is written after that has to go."""
    bench = Bench(tmp_path, asynchronous=True)
    gate = bench.calls.hold(1)
    request, order = asked(bench, tmp_path)
    bench.taken(order)
    wait_for(lambda: list(tmp_path.glob("savepoints/*/count/keyed/*/*")), "the first part", 30)
    bench.checkpointer.epoch_failed(order)
    assert remembered(bench) != {}
    request.files.write_bytes("_metadata", b"written after that")
    gate.set()
    bench.settle()
    assert remembered(bench) == {}
    assert not [path for path in (tmp_path / "savepoints").rglob("*") if path.is_file()]


class Stateless(Bench):
    """A job whose steps all run at its sources, so that no stage has a task."""

    alone = True

    def make(self, **options: Any) -> Checkpointer:
        self.program = Program()
        self.program.collect(self.program.source(ROWS).uid("events"))
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
            savepoints=Savepoints(self.program.settings.backend, alone=self.alone),
            clock=self.clock,
        )

    def run(self, order: EpochOrder) -> EpochResult:
        return replace(super().run(order), reports=[])


class StatelessWithCheckpoints(Stateless):
    alone = False


@pytest.mark.parametrize("bench", [Stateless, StatelessWithCheckpoints])
def test_a_job_without_stateful_steps_takes_a_savepoint(bench: type[Bench], tmp_path: Path) -> None:
    made = bench(tmp_path)
    request = begun(made, tmp_path)
    made.settle()
    assert request.is_complete
