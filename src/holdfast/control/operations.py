"""Operations that take long: savepoints, checkpoints, cancelling.

Each runs in a thread of its own, and their number is limited. A client starts one, gets its id, and
asks for the result. The same id again is the same operation.
"""

from __future__ import annotations

import secrets
import threading
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

from holdfast.clock import monotonic
from holdfast.job.threads import start_thread

if TYPE_CHECKING:
    from collections.abc import Callable

MOST_RUNNING: Final = 16
"""Operations with a result that run at a time; further ones are refused."""
RESULTS_KEPT: Final = 200
"""Results that are remembered."""
LINGER: Final = 5.0
"""Seconds that a driver waits at its end for clients to fetch results."""


class OperationKind(Enum):
    """What an operation does."""

    SAVEPOINT = "savepoint"
    STOP = "stop with a savepoint"
    CHECKPOINT = "checkpoint"
    RESCALE = "rescale"
    CANCEL = "cancel"
    SUSPEND = "suspend"

    @property
    def has_result(self) -> bool:
        """Whether a client asks for the result, by the id of the operation."""
        return self not in (OperationKind.CANCEL, OperationKind.SUSPEND)


@dataclass(slots=True)
class Operation:
    """An operation of a job, and its result once it has ended."""

    kind: OperationKind
    job_id: str
    id: str
    result: str | int | None = None
    error: BaseException | None = None
    ended_at: float | None = None
    """When it ended, on the monotonic clock; None while it runs."""
    fetched: bool = False
    """Whether a client has seen that it has ended."""

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self.ended_at is None


class TooManyOperationsError(Exception):
    """No further operation may begin now."""


class OtherOperationError(Exception):
    """The id belongs to an operation of another kind."""


class Operations:
    """The operations of all jobs of a driver; thread-safe."""

    def __init__(self, most_running: int = MOST_RUNNING, results_kept: int = RESULTS_KEPT) -> None:
        """Create it without operations."""
        self._most_running = most_running
        self._results_kept = results_kept
        self._changed = threading.Condition()
        self._operations: dict[tuple[str, str], Operation] = {}
        """By job id and operation id, oldest first."""

    def begin(
        self,
        kind: OperationKind,
        job_id: str,
        operation_id: str | None,
        work: Callable[[], str | int | None],
    ) -> Operation:
        """Begin an operation, or return the one that has begun under the same id.

        Raises:
            TooManyOperationsError: Too many others run.
            OtherOperationError: The id belongs to another kind of operation.
        """
        with self._changed:
            operation_id = operation_id or secrets.token_hex(16)
            known = self._operations.get((job_id, operation_id))
            if known is not None and known.kind is not kind:
                raise OtherOperationError(known.kind.value)
            if known is not None:
                return known
            # A job can always be ended, once at a time, however many savepoints hang.
            if kind.has_result and self._running() >= self._most_running:
                raise TooManyOperationsError(self._most_running)
            operation = Operation(kind, job_id, operation_id)
            self._operations[job_id, operation_id] = operation
            self._forget_oldest()
        try:
            start_thread(f"{kind.value} {operation_id}", lambda: self._run(operation, work))
        except BaseException as error:
            self._end(operation, None, error)
            raise
        return operation

    def find(self, job_id: str, operation_id: str) -> Operation | None:
        """The operation with that id, or None."""
        with self._changed:
            return self._operations.get((job_id, operation_id))

    def fetch(self, job_id: str, operation_id: str) -> Operation | None:
        """The operation with that id, or None; remembers that its end was seen."""
        with self._changed:
            operation = self._operations.get((job_id, operation_id))
            if operation is not None and not operation.is_running:
                operation.fetched = True
                self._changed.notify_all()
            return operation

    def linger(self, seconds: float = LINGER) -> None:
        """Wait until the results of operations that have just ended are fetched.

        A job that is stopped over HTTP ends its program, and the client has yet to hear of it.
        """
        begun = monotonic()
        with self._changed:
            while any(self._is_awaited(one, begun - seconds) for one in self._operations.values()):
                left = begun + seconds - monotonic()
                if left <= 0:
                    return
                self._changed.wait(left)

    def _running(self) -> int:
        return sum(one.is_running and one.kind.has_result for one in self._operations.values())

    def _is_awaited(self, operation: Operation, since: float) -> bool:
        if not operation.kind.has_result or operation.fetched:
            return False
        return operation.ended_at is None or operation.ended_at > since

    def _run(self, operation: Operation, work: Callable[[], str | int | None]) -> None:
        try:
            result = work()
        except BaseException as error:
            self._end(operation, None, error)
        else:
            self._end(operation, result, None)

    def _end(
        self, operation: Operation, result: str | int | None, error: BaseException | None
    ) -> None:
        with self._changed:
            operation.result, operation.error = result, error
            operation.ended_at = monotonic()
            if not operation.kind.has_result:
                # The next request begins another.
                del self._operations[operation.job_id, operation.id]
            self._changed.notify_all()

    def _forget_oldest(self) -> None:
        ended = [key for key, one in self._operations.items() if not one.is_running]
        for key in ended[: max(0, len(self._operations) - self._results_kept)]:
            del self._operations[key]
