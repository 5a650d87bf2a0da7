"""WorkerCalls: calls functions in the processes that hold local state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

T = TypeVar("T")
"""Argument of a call."""
R = TypeVar("R")
"""Result of a call."""


class WorkerCalls(Protocol):
    """Calls functions where the local state of subtasks is; thread-safe."""

    threads: int
    """Parallel calls on one executor; with fewer calls, parallel files."""

    @property
    def local(self) -> bool:
        """Whether calls run in threads of the driver."""

    def pickle(self, function: object, what: str) -> bytes:
        """Pickle a function for workers; an error names `what`."""

    def record_location(self, tasks: int, subtask: int, executor: str) -> None:
        """Record the executor of a subtask, in a stage of `tasks` tasks."""

    def cancel(self, group: str) -> None:
        """Cancel the calls of a group that run as Spark tasks."""

    def map(
        self, function: Callable[[T], R], items: Sequence[tuple[int, int, T]], group: str
    ) -> Iterator[R]:
        """Call `function` for all items; yields results as they come, in any order.

        Args:
            function: Called once for every item, from several threads; must be picklable.
            items: Subtask, number of tasks of its stage, and the argument.
            group: The name for `cancel`.

        Raises:
            HoldfastError: A call has raised it, in whatever process.
        """
