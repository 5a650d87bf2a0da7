"""A driver process of its own whose jobs finish and are cancelled; its output is what users see.

python -m tests.support.ending_jobs
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from holdfast import KeyedProcessFunction, StreamExecutionEnvironment, ValueStateDescriptor

if TYPE_CHECKING:
    from collections.abc import Iterator


class Count(KeyedProcessFunction):
    """Counts the rows of every key, slowly if it is told to."""

    def __init__(self, pause: float) -> None:
        self._pause = pause

    def open(self, ctx: Any) -> None:
        self._count = ctx.get_state(ValueStateDescriptor("count", int))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        time.sleep(self._pause)
        self._count.update((self._count.value() or 0) + 1)
        yield value.k, self._count.value()


def main() -> None:
    """Let one job finish, and cancel another in the middle of an epoch."""
    env = StreamExecutionEnvironment.get_execution_environment()
    env.enable_checkpointing("500 ms")
    for pause in (0, 0.2):
        rows = env.from_collection([(i % 7, i) for i in range(1_000)], "k bigint, n bigint")
        counts = rows.key_by("k").process(Count(pause), "k bigint, n bigint").uid("count")
        counts.foreach_batch(lambda batch, number: None)
        job = env.execute_async("ending")
        if pause:
            tasks = env.spark.sparkContext.statusTracker()
            while not any(
                stage is not None and stage.numActiveTasks
                for stage in map(tasks.getStageInfo, tasks.getActiveStageIds())
            ):
                time.sleep(0.05)
            # The tasks are in the function now, and remain there for minutes.
            time.sleep(2)
            job.cancel()
        else:
            job.result()
        print(job.status().name, flush=True)


if __name__ == "__main__":
    main()
