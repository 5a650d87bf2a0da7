"""Notifies listeners of completed and aborted checkpoints.

Listeners on the driver are called at once. Functions hear of it in the next epoch. Those who have
requested a checkpoint get its id.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any

from holdfast.config.checkpoint_options import COMMITTER_TIMEOUT
from holdfast.errors import CheckpointError, JobExecutionError
from holdfast.job.threads import NoAnswerError, TimeLimits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


class CheckpointNotifier:
    """Notifies listeners and functions of how checkpoints end."""

    def __init__(
        self,
        listeners: Iterable[Any],
        on_failure: Callable[[CheckpointError], None],
        time_limits: TimeLimits | None = None,
    ) -> None:
        """Notify `listeners`; one that raises or hangs is reported to `on_failure`."""
        self._listeners = tuple(listeners)
        self._time_limits = time_limits or TimeLimits()
        self._on_failure = on_failure
        self._lock = threading.Lock()
        self._completed: list[int] = []
        self._aborted: list[int] = []

    def completed(self, checkpoint_id: int) -> None:
        """Notify of a completed checkpoint."""
        with self._lock:
            self._completed.append(checkpoint_id)
        self._notify("notify_checkpoint_complete", checkpoint_id)

    def aborted(self, checkpoint_id: int) -> None:
        """Notify of an aborted checkpoint."""
        with self._lock:
            self._aborted.append(checkpoint_id)
        self._notify("notify_checkpoint_aborted", checkpoint_id)

    def take(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Completed and aborted checkpoints since the last call, for the functions."""
        with self._lock:
            news = tuple(self._completed), tuple(self._aborted)
            self._completed, self._aborted = [], []
        return news

    def _notify(self, method: str, checkpoint_id: int) -> None:
        for listener in self._listeners:
            call = partial(_call, getattr(listener, method), checkpoint_id)
            try:
                self._time_limits.call(f"listener {type(listener).__name__}", call)
            except NoAnswerError as error:
                self._on_failure(
                    CheckpointError(
                        f"the checkpoint listener {type(listener).__name__} hangs in "
                        f"{method}({checkpoint_id}): {error}; find out what it waits for, or set "
                        f"{COMMITTER_TIMEOUT.key} higher"
                    )
                )
            except Exception as error:
                self._on_failure(
                    CheckpointError(
                        f"a checkpoint listener raised in {method}({checkpoint_id}): "
                        f"{type(error).__name__}: {error}"
                    )
                )


class RequestedCheckpoints:
    """The checkpoints that somebody has requested, and waits for; thread-safe."""

    def __init__(self) -> None:
        """Create it without requests."""
        self._lock = threading.Lock()
        self._waiting: list[Future[int]] = []
        """Requests for which no checkpoint has begun."""
        self._begun: dict[int, list[Future[int]]] = {}
        self._closed = False

    def request(self) -> Future[int]:
        """Request a checkpoint; the result is its id, once it is complete and published.

        Raises:
            JobExecutionError: The job has ended.
        """
        with self._lock:
            if self._closed:
                raise JobExecutionError("the job has ended, so it takes no checkpoints")
            wanted: Future[int] = Future()
            self._waiting.append(wanted)
            return wanted

    @property
    def is_waiting(self) -> bool:
        """Whether a checkpoint must begin for a request."""
        return bool(self._waiting)

    def begun(self, checkpoint_id: int) -> None:
        """Record that a checkpoint has begun, which serves all requests."""
        with self._lock:
            if self._waiting:
                self._begun[checkpoint_id], self._waiting = self._waiting, []

    def completed(self, checkpoint_id: int) -> None:
        """Answer the requests that a checkpoint serves."""
        for wanted in self._take(checkpoint_id):
            wanted.set_result(checkpoint_id)

    def failed(self, checkpoint_id: int, why: str) -> None:
        """Fail the requests that a checkpoint serves."""
        for wanted in self._take(checkpoint_id):
            wanted.set_exception(CheckpointError(f"checkpoint {checkpoint_id} failed: {why}"))

    def give_up(self, why: str) -> None:
        """Fail the requests for which no checkpoint has begun."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
        for wanted in waiting:
            wanted.set_exception(CheckpointError(f"the checkpoint was not taken: {why}"))

    def close(self, why: str) -> None:
        """Fail all requests, and accept no others: the job has ended."""
        with self._lock:
            self._closed = True
        self.give_up(why)
        for checkpoint_id in tuple(self._begun):
            self.failed(checkpoint_id, why)

    def _take(self, checkpoint_id: int) -> list[Future[int]]:
        with self._lock:
            return self._begun.pop(checkpoint_id, [])


def _call(method: Callable[[int], None], checkpoint_id: int, wanted: Callable[[], bool]) -> None:
    method(checkpoint_id)
