"""The jobs of a driver, and the operations on them."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest

from holdfast.control.jobs import Jobs
from holdfast.control.operations import (
    OperationKind,
    Operations,
    OtherOperationError,
    TooManyOperationsError,
)
from holdfast.job.statistics import JobStatus
from tests.support.controlled_jobs import FakeJob

SAVEPOINT = OperationKind.SAVEPOINT


def test_an_ended_job_is_remembered_without_the_job_itself() -> None:
    jobs = Jobs()
    job = FakeJob()
    jobs.add(job)
    job.end(JobStatus.FINISHED)
    assert [one.statistics.status for one in jobs.records()] == [JobStatus.FINISHED]
    gone = weakref.ref(job)
    del job
    gc.collect()
    assert gone() is None
    record = jobs.record("a1")
    assert record is not None
    assert record.duration == 60_000
    assert jobs.running("a1") is None


def test_only_the_newest_ended_jobs_are_remembered() -> None:
    jobs = Jobs(ended_kept=2)
    for number in range(4):
        job = FakeJob(f"j{number}")
        jobs.add(job)
        job.end(JobStatus.CANCELED)
    jobs.add(FakeJob("running"))
    assert [one.statistics.job_id for one in jobs.records()] == ["running", "j3", "j2"]


def test_a_job_that_starts_again_replaces_its_record() -> None:
    jobs = Jobs()
    first, second = FakeJob(), FakeJob()
    jobs.add(first)
    first.end(JobStatus.SUSPENDED)
    jobs.records()
    jobs.add(second)
    assert jobs.running("a1") is second
    assert len(jobs.records()) == 1


def test_a_job_is_not_final_while_it_still_cleans_up() -> None:
    jobs = Jobs()
    job = FakeJob()
    jobs.add(job)
    job.state = JobStatus.FAILED
    record = jobs.record("a1")
    assert record is not None
    assert record.end_time is None
    assert jobs.running("a1") is None
    job.failure = "it failed"
    job.end(JobStatus.FAILED)
    record = jobs.record("a1")
    assert record is not None
    assert record.failure == "it failed"


def begin(operations: Operations, operation_id: str, gate: threading.Event | None = None) -> None:
    """Begin a savepoint that waits for a gate, and wait for its end if there is none."""
    over = threading.Event()

    def work() -> str:
        if gate is not None:
            assert gate.wait(30)
        over.set()
        return operation_id

    operations.begin(SAVEPOINT, "a1", operation_id, work)
    if gate is None:
        assert over.wait(30)
        for _ in range(600):
            found = operations.fetch("a1", operation_id)
            if found is not None and not found.is_running:
                return
            over.wait(0.01)


def test_old_results_are_forgotten_but_nothing_that_runs() -> None:
    operations = Operations(most_running=2, results_kept=3)
    gate = threading.Event()
    begin(operations, "runs", gate)
    for number in range(5):
        begin(operations, f"o{number}")
    known = [one for one in ("runs", "o0", "o1", "o2", "o3", "o4") if operations.fetch("a1", one)]
    assert known == ["runs", "o3", "o4"]
    gate.set()


def test_operations_of_two_jobs_may_have_the_same_id() -> None:
    operations = Operations()
    one = operations.begin(SAVEPOINT, "a1", "x", lambda: "/one")
    other = operations.begin(OperationKind.CHECKPOINT, "b2", "x", lambda: 2)
    assert one is not other


def test_an_id_of_another_kind_is_refused() -> None:
    operations = Operations()
    operations.begin(SAVEPOINT, "a1", "x", lambda: "/one")
    with pytest.raises(OtherOperationError):
        operations.begin(OperationKind.STOP, "a1", "x", lambda: "/two")


def test_the_number_of_running_operations_is_limited() -> None:
    operations = Operations(most_running=1)
    gate = threading.Event()
    begin(operations, "runs", gate)
    with pytest.raises(TooManyOperationsError):
        begin(operations, "other")
    gate.set()


def test_a_driver_waits_at_its_end_until_results_are_fetched() -> None:
    operations = Operations()
    gate = threading.Event()
    begin(operations, "x", gate)
    lingers = threading.Thread(target=operations.linger, args=(30,))
    lingers.start()
    gate.set()
    while lingers.is_alive():
        operations.fetch("a1", "x")
        lingers.join(0.01)


def test_a_driver_waits_for_nobody_if_nothing_is_to_be_fetched() -> None:
    operations = Operations()
    begin(operations, "x")
    operations.begin(OperationKind.CANCEL, "a1", "cancel", lambda: None)
    operations.linger(600)


def test_a_driver_does_not_wait_for_long() -> None:
    operations = Operations()
    gate = threading.Event()
    begin(operations, "x", gate)
    operations.linger(0.05)
    gate.set()
