"""Calls functions on the executors that hold the state of subtasks."""

from __future__ import annotations

import pickle
import sys
from collections import defaultdict
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.checkpoint.transfer import files_at_a_time
from holdfast.config.checkpoint_options import TRANSFER_THREADS
from holdfast.job.threads import in_threads
from holdfast.runtime.worker import HangUps
from holdfast.spark.failures import original_error
from holdfast.spark.serialization import dump_function

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession

    from holdfast.spark.placement.pinning import Pinning

HangUps.leave_out(sys.modules["__main__"])
T = TypeVar("T")
"""Argument of a call."""
R = TypeVar("R")
"""Result of a call."""


class ExecutorCalls:
    """Calls functions on the executors that hold the state of subtasks.

    If the driver's machine holds all state, calls run in threads of the driver, and
    take no task slot from the epochs. Otherwise an executor makes all its calls in one
    task, in several threads. A subtask whose executor is not known yet gets its own task.
    """

    def __init__(self, spark: SparkSession, pinning: Pinning) -> None:
        """Calls along the anchors of `pinning`."""
        self._spark = spark
        self._pinning = pinning
        self._homes: dict[tuple[int, int], str] = {}
        self.threads = TRANSFER_THREADS.default
        """Parallel calls on one executor; if there are fewer calls, parallel files of a call."""

    @property
    def local(self) -> bool:
        """Whether calls run in threads of the driver."""
        return self._pinning.local

    def cancel(self, group: str) -> None:
        """Cancel the calls that run as tasks under that name."""
        if not self.local:
            # A session that has ended has nothing to cancel.
            with suppress(Exception):
                self._spark.sparkContext.cancelJobGroup(group)

    def record_location(self, tasks: int, subtask: int, executor: str) -> None:
        """Record the executor of a subtask, in a stage of `tasks` tasks."""
        self._homes[tasks, subtask] = executor

    def pickle(self, function: object, what: str) -> bytes:
        """A function as bytes for workers; the error names `what` if it cannot be pickled."""
        return dump_function(function, what)

    def forget(self) -> None:
        """Forget all locations: the subtasks of a new job attempt may run elsewhere."""
        self._homes.clear()

    def map(
        self,
        function: Callable[[T], R],
        items: Sequence[tuple[int, int, T]],
        group: str,
    ) -> Iterator[R]:
        """Results of `function` for all items, as they arrive, in any order.

        Args:
            function: Called once for every item, from several threads; must be picklable.
            items: Subtask, number of tasks of its stage, and the argument.
            group: Spark's job group, with which the calls can be cancelled.

        Raises:
            HoldfastError: A call has raised it, on any executor.
        """
        if self.local:
            yield from _in_threads(function, [item for _, _, item in items], self.threads)
            return
        context = self._spark.sparkContext
        context.setJobGroup(group, group, interruptOnCancel=True)
        for tasks, places in self._places(items).items():
            # Every task gets all items, and unpickles its own.
            pickled = {
                subtask: dump_function(mine, f"what subtask {subtask} is to do for {group}")
                for subtask, mine in places.items()
            }
            call = partial(_call_for_rows, function, pickled, self.threads)
            anchor = self._pinning.anchor_of(tasks)
            try:
                results = context.runJob(anchor.rdd, call, sorted(pickled))
            except Exception as failure:
                error = original_error(failure)
                if error is failure:
                    raise
                raise error from failure
            yield from results

    def _places(self, items: Iterable[tuple[int, int, T]]) -> dict[int, dict[int, list[T]]]:
        """Items by the task that makes their calls, as number of tasks and subtask.

        One subtask stands for all that share its executor.
        """
        places: dict[int, dict[int, list[T]]] = defaultdict(lambda: defaultdict(list))
        speakers: dict[str, tuple[int, int]] = {}
        for subtask, tasks, item in items:
            place = (tasks, subtask)
            home = self._homes.get(place)
            if home is not None:
                place = speakers.setdefault(home, place)
            places[place[0]][place[1]].append(item)
        return places


def _call_for_rows(
    function: Callable[[T], R],
    pickled: Mapping[int, bytes],
    threads: int,
    anchors: Iterable[Any],
) -> list[R]:
    """Runs in a task: the calls for the subtasks whose anchors it holds."""
    items: list[T] = []
    for anchor in anchors:
        if anchor[0] in pickled:
            items += pickle.loads(pickled[anchor[0]])
    return list(_in_threads(function, items, threads))


def _in_threads(function: Callable[[T], R], items: Sequence[T], threads: int) -> Iterator[R]:
    if not items:
        return
    calls = min(len(items), threads)

    def call(item: T) -> R:
        with files_at_a_time(threads // calls):
            return function(item)

    yield from in_threads(call, items, calls, "holdfast-transfer")
