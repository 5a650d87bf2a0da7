"""A driver process of its own whose job runs a hundred epochs on two workers.

python -m tests.support.hundred_epochs LOG

Prints how many epochs ran; the function writes into LOG when it is opened, and where.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from holdfast import (
    KeyedProcessFunction,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

EPOCHS = 100
KEYS = 8
SUBTASKS = 4


class Sums(KeyedProcessFunction):
    """The sum of a key's numbers."""

    def __init__(self, log: str) -> None:
        self.log = log

    def open(self, ctx: Any) -> None:
        self.sum = ctx.get_state(ValueStateDescriptor("sum", int))
        with open(self.log, "a") as file:
            file.write(f"{os.getpid()} {ctx.get_index_of_this_subtask()}\n")

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.sum.update((self.sum.value() or 0) + value.n)
        yield value.n % KEYS, self.sum.value()


def main(log: str) -> None:
    """Run the job."""
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(SUBTASKS).set_max_events_per_epoch(KEYS)
    numbers = env.from_collection([(n,) for n in range(EPOCHS * KEYS)], "n bigint")
    sums = numbers.key_by(lambda value: value.n % KEYS).process(Sums(log), "k bigint, n bigint")
    with sums.uid("sums").execute_and_collect() as found:
        totals = dict(found)
        epochs = found.client.statistics().epochs
    assert totals == {k: sum(range(k, EPOCHS * KEYS, KEYS)) for k in range(KEYS)}
    print(epochs)


if __name__ == "__main__":
    main(*sys.argv[1:])
