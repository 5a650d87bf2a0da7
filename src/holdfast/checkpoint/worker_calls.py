"""WorkerCalls: how the checkpoint layer reaches the processes that hold local state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

T = TypeVar("T")
"""What a call is given."""
R = TypeVar("R")
"""What a call gives back."""


class WorkerCalls(Protocol):
    """Calls functions where the local state of subtasks is; serves any thread."""

    threads: int
    """Calls at a time on one executor; if they are fewer, files at a time."""

    @property
    def local(self) -> bool:
        """Whether calls run in threads of the driver."""

    def pickle(self, function: object, what: str) -> bytes:
        """A function as bytes for workers; the error names `what` if it cannot be pickled."""

    def record_location(self, tasks: int, subtask: int, executor: str) -> None:
        """Note which executor a subtask runs on, in a stage of `tasks` tasks."""

    def cancel(self, group: str) -> None:
        """Cancel the calls that run as tasks under that name."""

    def map(
        self, function: Callable[[T], R], items: Sequence[tuple[int, int, T]], group: str
    ) -> Iterator[R]:
        """Results of `function` for all items, as they come, in any order.

        Args:
            function: Called once for every item, from several threads; must be picklable.
            items: Subtask, number of tasks of its stage, and the argument.
            group: The name by which the calls can be cancelled.

        Raises:
            HoldfastError: A call has raised it, wherever it was made.
        """
