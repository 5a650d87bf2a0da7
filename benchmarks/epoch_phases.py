"""`python -m benchmarks.epoch_phases`: where the time of a near-empty epoch goes.

W1 in epochs of ten events on two cores, with the sockets of Holdfast's own sessions. The phases of
a micro-batch come from Spark's query progress, the times of stages from its status store, and
what Holdfast does on the driver is timed around its calls. Medians over all epochs but the first.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from functools import wraps
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from benchmarks import data
from benchmarks.harness import read_epochs, session
from benchmarks.holdfast_run import CountUrl
from benchmarks.workloads import W1, ddl
from holdfast import SparkSink, StreamExecutionEnvironment
from holdfast.spark.epoch_runner import EpochRunner
from holdfast.spark.outputs import Outputs

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

EVENTS, EPOCHS, WARM_UP = 10, 60, 20


class Timers:
    """Adds up the time of calls, in milliseconds, one figure per epoch."""

    def __init__(self) -> None:
        """Nothing was called."""
        self.taken: dict[str, list[float]] = defaultdict(list)

    def around(self, owner: type, method: str, name: str) -> None:
        """Time a method of a class from now on."""
        function: Callable[..., Any] = getattr(owner, method)

        @wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self.taken[name].append((time.perf_counter() - start) * 1000)

        setattr(owner, method, timed)


def stages(spark: SparkSession) -> dict[str, list[float]]:
    """Times of all complete stages: from submission to completion, and of their tasks."""
    found: dict[str, list[float]] = defaultdict(list)
    store = spark.sparkContext._jsc.sc().statusStore()
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    no_quantiles = gateway.new_array(gateway.jvm.double, 0)
    listed = store.stageList(None, False, False, no_quantiles, None)
    for index in reversed(range(listed.size())):
        # The newest comes first.
        stage = listed.apply(index)
        if stage.completionTime().isEmpty():
            continue
        kind = "sources" if stage.shuffleWriteBytes() else "operators"
        took = stage.completionTime().get().getTime() - stage.submissionTime().get().getTime()
        found[f"stage of the {kind}"].append(took)
        found[f"tasks of the {kind}"].append(stage.executorRunTime() / stage.numTasks())
    return found


def main() -> None:
    """Run the job and print a table."""
    timers = Timers()
    timers.around(EpochRunner, "run", "epoch")
    timers.around(EpochRunner, "rows", "building the plan")
    timers.around(Outputs, "emit", "the action: Spark plans and runs the epoch")
    timers.around(EpochRunner, "_acknowledge", "checking the reports")
    spark = session({"spark.python.unix.domain.socket.enabled": "true"})
    data_dir = data.prepare(W1, EVENTS, EPOCHS)
    env = StreamExecutionEnvironment.get_execution_environment(spark)
    env.set_parallelism(2).set_available_now()
    events = env.from_dataframe(read_epochs(spark, W1, data_dir))
    counts = events.key_by(W1.key).process(CountUrl(), ddl(W1.output)).uid("W1")
    counts.sink_to(SparkSink("noop", mode="overwrite"))
    client = env.execute_async("phases")
    client.result()
    figures: dict[str, list[float]] = defaultdict(list)
    for progress in client.query.recentProgress:
        for phase, took in progress["durationMs"].items():
            figures[f"Spark: {phase}"].append(took)
    for name, taken in timers.taken.items():
        figures[f"Holdfast: {name}"] = taken
    figures |= {f"Spark: {name}": taken for name, taken in stages(spark).items()}
    table = Table(title="a near-empty epoch, median, two cores", title_justify="left")
    table.add_column("phase")
    table.add_column("ms", justify="right")
    for name, taken in figures.items():
        table.add_row(name, f"{statistics.median(taken[WARM_UP:]):.1f}")
    Console(width=100).print(table)
    spark.stop()


if __name__ == "__main__":
    main()
