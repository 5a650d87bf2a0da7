"""Threads of the driver: heard when they fail, and no hindrance when the program ends."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import weakref
from traceback import format_exception
from typing import TYPE_CHECKING

import pytest

from holdfast.errors import JobExecutionError
from holdfast.job.threads import Turns, held_weakly, in_threads, start_thread

if TYPE_CHECKING:
    from collections.abc import Callable

WAIT = 30


def test_a_thread_that_fails_says_so(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise LookupError("nobody there")

    start_thread("a look", fail).join(WAIT)
    [record] = caplog.records
    assert "a look has ended with an error" in record.getMessage()
    assert record.exc_info is not None
    assert "nobody there" in str(record.exc_info[1])


def test_all_calls_are_made_and_their_results_come_in_any_order() -> None:
    assert sorted(in_threads(str, range(20), 3, "some")) == sorted(map(str, range(20)))
    assert list(in_threads(str, [], 3, "none")) == []


def test_calls_run_at_the_same_time() -> None:
    both = threading.Barrier(2)

    def meet(_: int) -> bool:
        both.wait(WAIT)
        return True

    assert list(in_threads(meet, range(2), 2, "two")) == [True, True]


def test_after_an_error_no_other_call_begins() -> None:
    begun = []

    def fail(number: int) -> None:
        begun.append(number)
        raise ValueError(f"number {number}")

    with pytest.raises(ValueError, match="number 0"):
        list(in_threads(fail, range(50), 1, "many"))
    assert begun == [0]


def test_after_an_error_the_calls_under_way_are_waited_for() -> None:
    begun, failed = threading.Event(), threading.Event()
    ended = []

    def work(number: int) -> None:
        if number == 0:
            assert begun.wait(WAIT)
            failed.set()
            raise ValueError("number 0")
        begun.set()
        assert failed.wait(WAIT)
        ended.append(number)

    with pytest.raises(ValueError, match="number 0"):
        list(in_threads(work, range(2), 2, "two"))
    assert ended == [1]


def hangs_in_a_call() -> None:
    from holdfast.job.threads import NoAnswerError, TimeLimits

    try:
        TimeLimits(answer=0.1).call("it", lambda _: threading.Event().wait())
    except NoAnswerError:
        print("given up", flush=True)


def hangs_in_threads() -> None:
    def hang(number: int) -> None:
        if number == 0:
            threading.Event().wait()

    calls = in_threads(hang, range(4), 2, "some")
    next(calls)
    print("given up", flush=True)
    sys.stdout.flush()
    threading.Thread(target=list, args=(calls,), daemon=True).start()


@pytest.mark.parametrize("hanging", [hangs_in_a_call, hangs_in_threads])
def test_a_program_ends_though_something_hangs(hanging: Callable[[], None]) -> None:
    name = f"tests.unit.job.test_threads:{hanging.__name__}"
    script = (
        "import importlib.util, sys; sys.path.insert(0, '.');"
        f"spec = importlib.util.spec_from_file_location('t', {__file__!r});"
        "module = importlib.util.module_from_spec(spec); spec.loader.exec_module(module);"
        f"module.{name.rpartition(':')[2]}()"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert ended.stdout == "given up\n"


# Turns


class Players:
    """Threads that take turns, and note when they have one."""

    def __init__(self) -> None:
        self.turns = Turns()
        self.log: list[str] = []
        self._changed = threading.Condition()
        self.threads: dict[str, threading.Thread] = {}
        self._gates: dict[str, threading.Event] = {}

    def start(self, name: str, *, alone: bool) -> None:
        gate = self._gates[name] = threading.Event()

        def play() -> None:
            with self.turns.alone() if alone else self.turns.together():
                self._note(name)
                assert gate.wait(WAIT)
                self._note(f"end of {name}")

        self.threads[name] = threading.Thread(target=play)
        self.threads[name].start()

    def _note(self, what: str) -> None:
        with self._changed:
            self.log.append(what)
            self._changed.notify_all()

    def wait_for(self, name: str) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: name in self.log, WAIT), self.log

    def end(self, name: str) -> None:
        self._gates[name].set()
        self.threads[name].join(WAIT)


def test_some_have_their_turn_together() -> None:
    players = Players()
    for name in ("a", "b"):
        players.start(name, alone=False)
        players.wait_for(name)
    assert not players.turns.is_wanted_alone
    for name in ("a", "b"):
        players.end(name)


def test_one_that_is_alone_waits_for_those_before_and_those_after_wait_for_it() -> None:
    players = Players()
    players.start("before", alone=False)
    players.wait_for("before")
    players.start("alone", alone=True)
    while not players.turns.is_wanted_alone:
        threading.Event().wait(0.001)
    players.start("after", alone=False)
    players.end("before")
    players.wait_for("alone")
    players.end("alone")
    players.wait_for("after")
    players.end("after")
    assert players.log == [
        *("before", "end of before"),
        *("alone", "end of alone"),
        *("after", "end of after"),
    ]


def test_only_one_is_alone_and_an_error_ends_its_turn() -> None:
    players = Players()
    with pytest.raises(LookupError), players.turns.alone():
        raise LookupError("nobody there")
    for name in ("first", "second"):
        players.start(name, alone=True)
    for name in ("first", "second"):
        players._gates[name].set()
    for thread in players.threads.values():
        thread.join(WAIT)
    begun = players.log[::2]
    assert sorted(begun) == ["first", "second"]
    assert players.log[1::2] == [f"end of {name}" for name in begun]


def test_what_is_held_weakly_is_called_and_not_kept_alive() -> None:
    class Attempt:
        def __init__(self) -> None:
            self.seen: list[int] = []

        def take(self, number: int) -> None:
            self.seen.append(number)

    attempt = Attempt()
    call = held_weakly(attempt.take)
    call(7)
    assert attempt.seen == [7]
    del attempt
    gc.collect()
    with pytest.raises(JobExecutionError, match="has ended"):
        call(8)


def test_an_error_does_not_keep_what_is_held_weakly_alive() -> None:
    class Attempt:
        def take(self) -> None:
            try:
                self.fail()
            except LookupError as error:
                raise ValueError("no luck") from error

        def fail(self) -> None:
            raise LookupError("nobody there")

    attempt = Attempt()
    watch = weakref.ref(attempt)
    with pytest.raises(ValueError, match="no luck") as caught:
        held_weakly(attempt.take)()
    del attempt
    gc.collect()
    assert watch() is None
    assert "nobody there" in "".join(format_exception(caught.value))
