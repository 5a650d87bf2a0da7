"""Threads of the driver: their errors are logged, and they do not keep the program from ending.

A call that hangs cannot be stopped from outside. So each call of users' code runs in another
thread, and its caller waits with a time limit. If the call returns later, its result is ignored.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections import Counter, deque
from contextlib import contextmanager
from queue import SimpleQueue
from traceback import clear_frames
from typing import TYPE_CHECKING, Generic, ParamSpec, TypeVar

from holdfast.clock import monotonic
from holdfast.config.checkpoint_options import COMMITTER_TIMEOUT
from holdfast.config.configuration import CANCELLATION_TIMEOUT
from holdfast.errors import JobExecutionError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from holdfast.config.configuration import Configuration


logger = logging.getLogger("holdfast")

P = ParamSpec("P")
"""Arguments of a call."""


def guarded(what: str, work: Callable[[], None]) -> Callable[[], None]:
    """Wrap the work of a thread so that its errors are logged."""

    def guard() -> None:
        try:
            work()
        except BaseException:
            logger.exception("%s has ended with an error", what)

    return guard


def held_weakly(method: Callable[P, None]) -> Callable[P, None]:
    """A function that calls `method`, and does not keep its object alive.

    The JVM holds what it calls as long as its query exists, and a job attempt holds the query.
    Neither garbage collector sees the whole circle. Without this, every restart of a job would
    leave a session of Spark, a plan and its files behind.
    """
    held = weakref.WeakMethod(method)

    def call(*args: P.args, **kwargs: P.kwargs) -> None:
        found = held()
        if found is None:
            raise JobExecutionError("the job attempt of this query has ended")
        try:
            found(*args, **kwargs)
        except BaseException as error:
            # PySpark keeps the error as long as the query exists, with all variables on its way.
            del found, args, kwargs
            _forget_variables(error)
            raise

    return call


def _forget_variables(error: BaseException) -> None:
    """Drop the local variables of the functions that an error and its causes have left."""
    chain: BaseException | None = error
    seen: set[int] = set()
    while chain is not None and id(chain) not in seen:
        seen.add(id(chain))
        clear_frames(chain.__traceback__)
        chain = chain.__cause__ or chain.__context__


def start_thread(what: str, work: Callable[[], None]) -> threading.Thread:
    """Do some work in a new thread, which inherits nothing of Spark and needs no session."""
    thread = threading.Thread(target=guarded(what, work), name=f"holdfast: {what}", daemon=True)
    thread.start()
    return thread


T = TypeVar("T")
"""Argument or result of a call."""
R = TypeVar("R")
"""Result of a call."""


def in_threads(
    function: Callable[[T], R], items: Iterable[T], threads: int, name: str
) -> Iterator[R]:
    """Call `function` for all items; yields results as they come, in any order.

    An error is raised here, after the running calls have ended; no other call begins. Unlike those
    of a `ThreadPoolExecutor`, these threads do not keep the program from ending.
    """
    todo = deque(items)
    results: SimpleQueue[tuple[R | None, BaseException | None]] = SimpleQueue()
    expected = len(todo)

    def work() -> None:
        while True:
            try:
                item = todo.popleft()
            except IndexError:
                return
            try:
                results.put((function(item), None))
            except BaseException as error:
                todo.clear()
                results.put((None, error))

    started = [
        threading.Thread(target=work, name=name, daemon=True) for _ in range(min(threads, expected))
    ]
    for thread in started:
        thread.start()
    try:
        for _ in range(expected):
            result, error = results.get()
            if error is not None:
                raise error
            yield result  # type: ignore[misc]
    finally:
        todo.clear()
        for thread in started:
            thread.join()


AFTERWARDS = 5.0
LONGEST_END = 60.0
LOOK = 0.05
"""Seconds between two checks whether the job has stopped waiting."""
MOST_HANGING = 3
"""Calls of one kind that may hang at a time; further calls fail until one of them returns."""


class NoAnswerError(Exception):
    """A call has not returned in time; the message says for how long, or why it was not made."""


class CallEndedError(Exception):
    """A call has raised a BaseException such as SystemExit; the message names it.

    It does not end the caller: it is a failure like any other.
    """


class TimeLimits:
    """Time limits of one job for sinks, listeners and its end; thread-safe.

    A job that should have ended, and has not, stops waiting for calls that have begun.
    """

    def __init__(
        self,
        answer: float = 600.0,
        end: float = 180.0,
        *,
        afterwards: float = AFTERWARDS,
        longest_end: float = LONGEST_END,
    ) -> None:
        """Create time limits.

        Args:
            answer: Seconds that one call of a sink or listener may take.
            end: Seconds that the job may take to end after it was cancelled.
            afterwards: Time limit in seconds of calls that begin after `stop_waiting`.
            longest_end: Seconds that the job may take to end, in addition to `end`.
        """
        self._afterwards = afterwards
        self._longest_end = longest_end
        self.answer = answer
        self.end = end
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._hanging: Counter[str] = Counter()
        self._threads: set[int] = set()

    @staticmethod
    def of(configuration: Configuration) -> TimeLimits:
        """The configured time limits."""
        given = configuration.get
        return TimeLimits(given(COMMITTER_TIMEOUT) / 1000, given(CANCELLATION_TIMEOUT) / 1000)

    @property
    def has_stopped(self) -> bool:
        """Whether earlier calls are no longer waited for."""
        return self._stopped.is_set()

    def stop_waiting(self) -> None:
        """Stop waiting for all calls: the job was cancelled, and has not ended."""
        self._stopped.set()

    def is_calling(self) -> bool:
        """Whether this thread runs a call, so that it cannot wait for the job."""
        return threading.get_ident() in self._threads

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Wait for an event, at most `seconds`; whether it is set.

        After `stop_waiting` the limit is `afterwards`; a wait before it ends with it.
        """
        stopped = self.has_stopped
        until = monotonic() + (min(seconds, self._afterwards) if stopped else seconds)
        while not event.is_set() and self.has_stopped == stopped:
            left = until - monotonic()
            if left <= 0:
                break
            event.wait(min(left, LOOK))
        return event.is_set()

    def limit_end(self, ended: threading.Event) -> None:
        """Stop waiting if a job that was cancelled has not ended in time."""
        if not ended.wait(self.end):
            self.stop_waiting()

    def wait_for_end(self, name: str, ended: threading.Event) -> None:
        """Wait for the end of a job, somewhat longer than `end`.

        Raises:
            JobExecutionError: It has not ended.
        """
        limit = self.end + self._longest_end
        if not ended.wait(limit):
            raise JobExecutionError(
                f"job {name!r} was told to end, and has not within {limit:.0f} s: it waits for "
                "Spark, for checkpoint storage or for a function of the program. Nothing was "
                "deleted; end this program, and start the job again"
            )

    def call(self, what: str, work: Callable[[Callable[[], bool]], T]) -> T:
        """Do some work in another thread, and return its result.

        Args:
            what: Name of the callee; hanging calls with the same name are counted together.
            work: Gets a function that returns whether its result is still wanted.

        Raises:
            NoAnswerError: It has not returned in time, or too many earlier calls hang.
            CallEndedError: It has raised a BaseException that is no Exception.
        """
        with self._lock:
            if self._hanging[what] >= MOST_HANGING:
                raise NoAnswerError(
                    f"{MOST_HANGING} earlier calls have not returned either, so no other is made"
                )
        call = _Call(work)
        begun = monotonic()
        start_thread(f"call of {what}", lambda: self._run(what, call))
        self.wait(call.over, self.answer)
        with self._lock:
            if not call.over.is_set():
                call.wanted = False
                self._hanging[what] += 1
                raise NoAnswerError(f"no answer for {monotonic() - begun:.1f} s")
        return call.result()

    def _run(self, what: str, call: _Call[T]) -> None:
        thread = threading.get_ident()
        with self._lock:
            self._threads.add(thread)
        call.run()
        with self._lock:
            self._threads.discard(thread)
            if call.wanted:
                call.over.set()
            else:
                self._hanging[what] -= 1
                if not self._hanging[what]:
                    del self._hanging[what]


class _Call(Generic[T]):
    """Some work and its result."""

    def __init__(self, work: Callable[[Callable[[], bool]], T]) -> None:
        self._work = work
        self._result: T | None = None
        self._error: BaseException | None = None
        self.wanted = True
        self.over = threading.Event()

    def run(self) -> None:
        try:
            self._result = self._work(lambda: self.wanted)
        except BaseException as error:
            self._error = error

    def result(self) -> T:
        if self._error is not None and not isinstance(self._error, Exception):
            name = type(self._error).__name__
            raise CallEndedError(f"{name}: {self._error}") from self._error
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]


class Turns:
    """Lets requests to a running job take turns: some together, others alone.

    A request that needs to be alone waits for those that have begun. No other begins meanwhile.
    """

    def __init__(self) -> None:
        """Nobody has a turn."""
        self._changed = threading.Condition()
        self._together = 0
        self._want_alone = 0
        """Those that are alone, or wait for it."""
        self._is_alone = False

    @property
    def is_wanted_alone(self) -> bool:
        """Whether somebody is alone, or waits for it."""
        return self._want_alone > 0

    @contextmanager
    def together(self) -> Iterator[None]:
        """Within the block nobody is alone."""
        with self._changed:
            self._changed.wait_for(lambda: not self._want_alone)
            self._together += 1
        try:
            yield
        finally:
            with self._changed:
                self._together -= 1
                self._changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Within the block nobody else has a turn."""
        with self._changed:
            self._want_alone += 1
            self._changed.wait_for(lambda: not self._together and not self._is_alone)
            self._is_alone = True
        try:
            yield
        finally:
            with self._changed:
                self._want_alone -= 1
                self._is_alone = False
                self._changed.notify_all()
