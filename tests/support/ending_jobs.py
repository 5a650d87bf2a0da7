"""A driver process of its own whose jobs end in every way; its output is what users see.

python -m tests.support.ending_jobs [SECONDS]
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from holdfast import KeyedProcessFunction, StreamExecutionEnvironment, ValueStateDescriptor

if TYPE_CHECKING:
    from collections.abc import Iterator

FINISHING = 3
"""Number of jobs that finish."""
STOPPING = "From here on, jobs are stopped."
"""Printed between the jobs that finish and those that do not."""


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


def environment(pause: float) -> StreamExecutionEnvironment:
    """The environment with a job that counts."""
    env = StreamExecutionEnvironment.get_execution_environment()
    env.enable_checkpointing("500 ms")
    rows = env.from_collection([(i % 7, i) for i in range(1_000)], "k bigint, n bigint")
    counts = rows.key_by("k").process(Count(pause), "k bigint, n bigint").uid("count")
    counts.foreach_batch(lambda batch, number: None)
    return env


def wait_for_tasks(env: StreamExecutionEnvironment) -> None:
    """Wait until tasks are in the function, where they remain for minutes."""
    tasks = env.spark.sparkContext.statusTracker()
    while not any(
        stage is not None and stage.numActiveTasks
        for stage in map(tasks.getStageInfo, tasks.getActiveStageIds())
    ):
        time.sleep(0.05)
    time.sleep(2)


def press_ctrl_c(env: StreamExecutionEnvironment) -> None:
    """What a terminal does: the signal goes to all processes of the group."""
    wait_for_tasks(env)
    os.killpg(os.getpgrp(), signal.SIGINT)


def main(pause: str = "0") -> None:
    """Let jobs finish, cancel one in the middle of an epoch, and interrupt another there.

    Args:
        pause: Seconds without a job, after those that finish.
    """
    for _ in range(FINISHING):
        result = environment(0).execute("finishing")
        print(result.statistics.status.name, flush=True)
    time.sleep(float(pause))
    print(STOPPING, file=sys.stderr, flush=True)
    env = environment(0.2)
    job = env.execute_async("cancelled")
    wait_for_tasks(env)
    job.cancel()
    print(job.status().name, flush=True)
    env = environment(0.2)
    threading.Thread(target=press_ctrl_c, args=(env,), daemon=True).start()
    try:
        env.execute("interrupted")
    except KeyboardInterrupt:
        print("INTERRUPTED", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
