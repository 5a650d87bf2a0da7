"""How long a job waits for calls that may never come back."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from holdfast import Configuration
from holdfast.errors import JobExecutionError
from holdfast.job.threads import MOST_HANGING, CallEndedError, NoAnswerError, TimeLimits

if TYPE_CHECKING:
    from collections.abc import Callable

WAIT = 30


def test_a_call_gives_back_what_it_comes_to() -> None:
    assert TimeLimits().call("it", lambda wanted: ("done", wanted())) == ("done", True)


def test_a_call_raises_what_it_raises() -> None:
    def fail(_: object) -> None:
        raise LookupError("nobody there")

    with pytest.raises(LookupError, match="nobody there"):
        TimeLimits().call("it", fail)


def test_a_call_that_would_end_its_thread_ends_nobody_elses() -> None:
    """Those who wait for it catch failures, and go on with what has to be done then."""

    def leave(_: object) -> None:
        raise SystemExit("enough")

    with pytest.raises(CallEndedError, match="SystemExit: enough"):
        TimeLimits().call("it", leave)
    assert issubclass(CallEndedError, Exception)


class Hanging:
    """A call that comes back when it is told to, and notes what it knew then."""

    def __init__(self) -> None:
        self.begun, self.gate, self.back = (threading.Event() for _ in range(3))
        self.wanted: bool | None = None

    def __call__(self, wanted: Callable[[], bool]) -> None:
        self.begun.set()
        assert self.gate.wait(WAIT)
        self.wanted = wanted()
        self.back.set()


def test_a_call_that_hangs_is_given_up_and_is_not_wanted_when_it_comes_back() -> None:
    time_limits, hanging = TimeLimits(answer=0.05), Hanging()
    with pytest.raises(NoAnswerError, match=r"no answer for 0\.\d s"):
        time_limits.call("it", hanging)
    hanging.gate.set()
    assert hanging.back.wait(WAIT)
    assert hanging.wanted is False


def test_no_more_than_a_few_calls_of_one_kind_hang_at_a_time() -> None:
    time_limits = TimeLimits(answer=0.05)
    hanging = [Hanging() for _ in range(MOST_HANGING)]
    for one in hanging:
        with pytest.raises(NoAnswerError):
            time_limits.call("it", one)
    with pytest.raises(NoAnswerError, match="no other is made"):
        time_limits.call("it", lambda _: None)
    assert time_limits.call("another", lambda _: "answer") == "answer"
    for one in hanging:
        one.gate.set()
        assert one.back.wait(WAIT)
    wait_until(lambda: not time_limits._hanging)
    time_limits.answer = WAIT
    assert time_limits.call("it", lambda _: "answer") == "answer"


def test_a_job_that_stops_waiting_ends_every_wait() -> None:
    time_limits, hanging = TimeLimits(answer=WAIT, afterwards=0.1), Hanging()
    failures: list[Exception] = []

    def call() -> None:
        try:
            time_limits.call("it", hanging)
        except NoAnswerError as error:
            failures.append(error)

    waiting = threading.Thread(target=call)
    waiting.start()
    assert hanging.begun.wait(WAIT)
    time_limits.stop_waiting()
    waiting.join(WAIT)
    assert len(failures) == 1
    hanging.gate.set()


def test_after_that_a_call_gets_a_moment() -> None:
    time_limits, hanging = TimeLimits(answer=WAIT, afterwards=0.1), Hanging()
    time_limits.stop_waiting()
    assert time_limits.call("another", lambda _: "answer") == "answer"
    with pytest.raises(NoAnswerError):
        time_limits.call("it", hanging)
    hanging.gate.set()


def test_a_thread_that_makes_a_call_is_known() -> None:
    time_limits = TimeLimits()
    assert time_limits.call("it", lambda _: time_limits.is_calling())
    assert not time_limits.is_calling()


def test_a_job_that_does_not_end_is_named() -> None:
    time_limits, ended = TimeLimits(end=0.05, longest_end=0.0), threading.Event()
    time_limits.limit_end(ended)
    assert time_limits.has_stopped
    with pytest.raises(JobExecutionError, match=r"job 'Count' was told to end, and has not"):
        time_limits.wait_for_end("Count", ended)
    ended.set()
    time_limits.wait_for_end("Count", ended)


def test_time_limits_are_configured_by_two_keys() -> None:
    configured = Configuration()
    assert (TimeLimits.of(configured).answer, TimeLimits.of(configured).end) == (600, 180)
    configured.set("sink.committer.timeout", "20 s")
    configured.set("task.cancellation.timeout", 5_000)
    assert (TimeLimits.of(configured).answer, TimeLimits.of(configured).end) == (20, 5)


def wait_until(condition: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(WAIT * 100):
        if condition():
            return
        pause.wait(0.01)
    raise AssertionError("it never came true")
