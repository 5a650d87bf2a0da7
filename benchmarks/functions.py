"""`make bench-functions`: what it saves that workers keep functions open between epochs.

model       near-empty epochs of a job whose function loads 200 MB in open()
subtasks    near-empty epochs of a job with one keyed operator, on 2, 64 and 128 subtasks

Each is measured three times: with functions that stay open, with functions that are opened in
every epoch (`task.kept-memory.max` is 0), and in the second way over Spark's default sockets
(`spark.python.unix.domain.socket.enabled` is false), which is how a session starts that
Holdfast did not make. Every run has a process of its own on two cores.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console

from benchmarks import data
from benchmarks.figures import record, show
from benchmarks.harness import session
from benchmarks.processes import in_fresh_process
from holdfast import (
    KeyedProcessFunction,
    SparkSink,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from holdfast import RuntimeContext

LATEST = Path(__file__).resolve().parent / "latest-functions.json"
QUICK = data.DATA_ROOT.parent / "benchmark-functions-quick.json"
WAYS = ("opened in every epoch, Spark's sockets", "opened in every epoch", "kept open")
MODEL_BYTES = 200 << 20
MODEL_SUBTASKS = 4
SUBTASKS = (2, 64, 128)
EPOCHS, QUICK_EPOCHS, WARM_UP = 25, 8, 5
EVENTS = 16


class Scored(KeyedProcessFunction):
    """Counts events; loads a model first, if there is one."""

    def __init__(self, model: str | None) -> None:
        """`model` is a file."""
        self._file = model

    def open(self, ctx: RuntimeContext) -> None:
        """Load the model."""
        self._model = None if self._file is None else np.load(self._file)
        self.count = ctx.get_state(ValueStateDescriptor("count", int))

    def process_element(self, value: Any, ctx: Any) -> Iterator[tuple[int, int]]:
        """Count one event."""
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        yield value[0], count


def median_ms(way: str, subtasks: int, epochs: int, model: str | None) -> float:
    """Median duration of a near-empty epoch."""
    sockets = str(way != WAYS[0]).lower()
    spark = session({"spark.python.unix.domain.socket.enabled": sockets})
    env = StreamExecutionEnvironment.get_execution_environment(spark)
    env.set_parallelism(subtasks).set_max_events_per_epoch(EVENTS)
    kept = "8 gb" if way == WAYS[2] else "0 b"
    env.configure({"task.kept-memory.max": kept})
    numbers = [(n % 1000,) for n in range(EVENTS * (WARM_UP + epochs))]
    took: list[int] = []
    env.add_epoch_listener(lambda epoch: took.append(epoch.duration_ms))
    stream = env.from_collection(numbers, "k bigint").key_by("k")
    stream.process(Scored(model), "k bigint, n bigint").uid("count").sink_to(
        SparkSink("noop", mode="overwrite")
    )
    env.execute("functions")
    spark.stop()
    return statistics.median(took[WARM_UP:])


def measured(way: str, quick: bool) -> list[dict[str, Any]]:
    """All figures of one way, in this process."""
    epochs = QUICK_EPOCHS if quick else EPOCHS
    with tempfile.TemporaryDirectory() as directory:
        model = str(Path(directory) / "model.npy")
        np.save(model, np.zeros(MODEL_BYTES, np.uint8))
        rows: list[tuple[str, int, str | None]] = [
            ("model of 200 MB in open()", MODEL_SUBTASKS, model)
        ]
        rows += [("near-empty epoch", subtasks, None) for subtasks in SUBTASKS]
        return [
            {
                "workload": kind,
                "subtasks": subtasks,
                "functions": way,
                "ms": round(median_ms(way, subtasks, epochs, file)),
            }
            for kind, subtasks, file in rows
        ]


def with_ratios(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Every row with its share of the first way's time."""
    first = {(r["workload"], r["subtasks"]): r["ms"] for r in rows if r["functions"] == WAYS[0]}
    return [{**r, "ratio": round(r["ms"] / first[r["workload"], r["subtasks"]], 2)} for r in rows]


def main(arguments: Sequence[str]) -> None:
    """Measure every way in a process of its own."""
    parser = argparse.ArgumentParser(prog="make bench-functions", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer epochs")
    parser.add_argument("--one", choices=WAYS, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.one:
        print(json.dumps(measured(options.one, options.quick)))
        return
    say = Console() if sys.stdout.isatty() else Console(width=120)
    rows: list[dict[str, Any]] = []
    for way in WAYS:
        quick = ["--quick"] if options.quick else []
        rows += in_fresh_process("benchmarks.functions", [way, *quick], way, say)
    output = QUICK if options.quick else LATEST
    show(record(with_ratios(rows), output), say)
    say.print(f"Written to {output}.")


if __name__ == "__main__":
    main(sys.argv[1:])
