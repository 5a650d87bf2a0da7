"""Calling a function where a subtask's local state is."""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.spark.threads import in_threads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pyspark.sql import SparkSession

    from holdfast.spark.pinning import Pinning

T = TypeVar("T")
"""What a call is given."""
R = TypeVar("R")
"""What a call gives back."""

LOCAL_THREADS = 2
"""Calls at a time where everything is on this machine."""


class PinnedCalls:
    """Calls functions on the executors that hold the state of subtasks.

    Where the driver's machine holds all state, they run in threads of the driver, and
    take no slot from the epochs. Elsewhere they are tasks, one per executor at a time.
    """

    def __init__(self, spark: SparkSession, pinning: Pinning) -> None:
        """Calls along the anchors of `pinning`."""
        self._spark = spark
        self._pinning = pinning
        self._homes: dict[int, str] = {}

    @property
    def local(self) -> bool:
        """Whether calls run in threads of the driver."""
        return self._pinning.local

    def cancel(self, group: str) -> None:
        """Cancel the calls that run as tasks under that name."""
        if not self.local:
            self._spark.sparkContext.cancelJobGroup(group)

    def learn(self, subtask: int, executor: str) -> None:
        """Note which executor a subtask runs on."""
        self._homes[subtask] = executor

    def map(
        self,
        function: Callable[[T], R],
        items: Sequence[tuple[int, int, T]],
        group: str,
    ) -> Iterator[R]:
        """Results of `function` for all items, as they come, in any order.

        Args:
            function: Called once for every item; must be picklable.
            items: Subtask, number of tasks of its level, and the argument.
            group: Spark's job group, by which the calls can be cancelled.
        """
        if self.local:
            arguments = [item for _, _, item in items]
            yield from in_threads(function, arguments, LOCAL_THREADS, "holdfast-transfer")
            return
        context = self._spark.sparkContext
        context.setJobGroup(group, group, interruptOnCancel=True)
        for tasks, wave in self._waves(items):
            by_subtask: dict[int, list[T]] = defaultdict(list)
            for subtask, item in wave:
                by_subtask[subtask].append(item)
            anchor = self._pinning.anchor_of(tasks)
            call = partial(_call_for_rows, function, dict(by_subtask))
            yield from context.runJob(anchor.rdd, call, sorted(by_subtask))

    def _waves(
        self, items: Sequence[tuple[int, int, T]]
    ) -> Iterator[tuple[int, list[tuple[int, T]]]]:
        """Items in groups of which no two subtasks share an executor."""
        left = list(items)
        while left:
            tasks = left[0][1]
            taken: dict[str, int] = {}
            wave, rest = [], []
            for subtask, number, item in left:
                home = self._homes.get(subtask, str(subtask))
                if number == tasks and taken.setdefault(home, subtask) == subtask:
                    wave.append((subtask, item))
                else:
                    rest.append((subtask, number, item))
            yield tasks, wave
            left = rest


def _call_for_rows(
    function: Callable[[T], R], items: dict[int, list[T]], anchors: Iterable[Any]
) -> list[R]:
    """What a task does: the calls for those subtasks whose anchors it holds."""
    return [function(item) for anchor in anchors for item in items.get(anchor[0], ())]
