"""Checkpoints that somebody asks for, outside of the interval."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from holdfast.errors import CheckpointError, JobExecutionError
from tests.unit.checkpoint.test_checkpointer import WAIT, Bench, bench, make

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["bench", "make"]


def test_the_next_epoch_carries_a_checkpoint_that_is_requested(bench: Bench) -> None:
    first, second = (bench.checkpointer.requested.request() for _ in range(2))
    order = bench.epoch(due=False)
    assert order.checkpoint is not None
    # One serves all who wait.
    assert (first.result(WAIT), second.result(WAIT)) == (1, 1)
    assert bench.complete == [1]
    assert bench.epoch(due=False).checkpoint is None


def test_an_epoch_without_input_runs_for_a_request(bench: Bench) -> None:
    bench.epoch()
    assert bench.checkpointer.next_epoch(idle=True) is None
    wanted = bench.checkpointer.requested.request()
    order = bench.checkpointer.next_epoch(idle=True)
    assert order is not None
    bench.taken(order)
    assert wanted.result(WAIT) == 2


def test_a_checkpoint_that_is_due_serves_the_request_and_keeps_its_interval(bench: Bench) -> None:
    wanted = bench.checkpointer.requested.request()
    bench.epoch(due=True)
    assert wanted.result(WAIT) == 1
    assert bench.epoch(due=False).checkpoint is None


def test_a_request_does_not_put_off_the_interval(bench: Bench) -> None:
    bench.checkpointer.requested.request()
    bench.epoch(due=False)
    order = bench.epoch(due=True)
    assert order.checkpoint is not None
    assert order.checkpoint.id == 2


def test_a_request_waits_while_the_maximum_is_in_progress(make: Callable[..., Bench]) -> None:
    bench = make(asynchronous=True)
    gate = bench.calls.hold(1)
    bench.epoch()
    wanted = bench.checkpointer.requested.request()
    assert bench.checkpointer.next_epoch(idle=True) is None
    assert bench.epoch(due=False).checkpoint is None
    pending = bench.checkpointer.tracker.newest
    assert pending is not None
    gate.set()
    assert pending.ended.wait(WAIT)
    assert bench.epoch(due=False).checkpoint is not None
    assert wanted.result(WAIT) == 2


def test_a_plain_epoch_leaves_a_request_to_the_next(bench: Bench) -> None:
    wanted = bench.checkpointer.requested.request()
    order = bench.checkpointer.next_epoch(idle=False, plain=True)
    assert order is not None
    assert order.checkpoint is None
    bench.taken(order)
    bench.epoch(due=False)
    assert wanted.result(WAIT) == 1


def test_a_request_fails_with_its_checkpoint(make: Callable[..., Bench]) -> None:
    bench = make(tolerable_failures=3)
    bench.calls.fail(1, CheckpointError("no room"))
    wanted = bench.checkpointer.requested.request()
    bench.epoch(due=False)
    with pytest.raises(CheckpointError, match=r"checkpoint 1 failed: .*no room"):
        wanted.result(WAIT)


def test_a_request_fails_with_the_epoch_that_carries_its_checkpoint(bench: Bench) -> None:
    wanted = bench.checkpointer.requested.request()
    bench.checkpointer.epoch_failed(bench.order(due=False), "a task is lost")
    with pytest.raises(CheckpointError, match="a task is lost"):
        wanted.result(WAIT)


def test_requests_fail_when_the_job_restarts_and_later_ones_succeed(bench: Bench) -> None:
    waiting = bench.checkpointer.requested.request()
    bench.checkpointer.end_attempt()
    with pytest.raises(CheckpointError, match="was not taken: the job is restarting"):
        waiting.result(WAIT)
    bench.begin()
    wanted = bench.checkpointer.requested.request()
    bench.epoch(due=False)
    assert wanted.result(WAIT) == 1


def test_requests_fail_when_the_job_ends_and_none_is_accepted_later(
    make: Callable[..., Bench],
) -> None:
    bench = make(asynchronous=True)
    gate = bench.calls.hold(1)
    begun = bench.checkpointer.requested.request()
    bench.epoch(due=False)
    waiting = bench.checkpointer.requested.request()
    gate.set()
    bench.checkpointer.close()
    assert begun.done()
    with pytest.raises(CheckpointError, match="the job has been stopped"):
        waiting.result(WAIT)
    with pytest.raises(JobExecutionError, match="the job has ended"):
        bench.checkpointer.requested.request()
