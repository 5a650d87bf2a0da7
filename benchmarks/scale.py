"""`make bench-scale`: what an event costs as the state grows.

One subtask's work is run in this process, without Spark, so that only the state is
measured: epochs of 100,000 events, each reading and updating a value of three fields,
over stores of 10 thousand to 5 million keys. There are two patterns of access:

    hot      an epoch's events fall on 10,000 keys, drawn anew for every epoch: the work
             is the same whatever the store holds
    uniform  an epoch's events fall on all keys alike: the larger the store, the fewer
             events share a key, and the more keys are read and written

Every size runs in a process of its own, whose peak memory is reported; the CPU time
per event is the median over the epochs, and the ratio is to the smallest store.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.table import Table

from benchmarks.holdfast_run import BACKENDS, SumAccount
from benchmarks.workloads import W3, ddl
from holdfast.api.outputs import ErrorPolicy
from holdfast.api.streams.graph import FORWARD, OperatorKind, Partitioner, Partitioning
from holdfast.clock import SystemClock
from holdfast.runtime.operator_task import TaskIdentity
from holdfast.runtime.plan import (
    Channel,
    EpochPlan,
    Exchange,
    KeyPlan,
    OperatorPlan,
    Outlet,
    StagePlan,
)
from holdfast.runtime.task import StageTask
from holdfast.state.store.process import ProcessIdentity
from holdfast.types.stream_type import StreamType

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.runtime.plan import CheckpointOrder
    from holdfast.runtime.report import SnapshotReport

SIZES = (10_000, 100_000, 1_000_000, 5_000_000)
EVENTS = 100_000
ROUNDS = 9
HOT = 10_000
"""Keys that share the events of an epoch in the pattern `hot`."""
FILL = 250_000
"""Keys that one epoch of filling a store writes."""
ROWS_PER_BATCH = 50_000
LATEST = Path(__file__).resolve().parent / "latest-scale.json"


class Subtask:
    """One subtask of the W3 job, epoch after epoch, without Spark around it."""

    def __init__(self, backend: str, directory: str) -> None:
        """A subtask with an empty store in `directory`."""
        self._directory = directory
        self._version: str | None = None
        self._epoch = 0
        self.snapshot: SnapshotReport | None = None
        """Of the last epoch, if it ended in a checkpoint."""
        arriving, leaving = StreamType.of(ddl(W3.columns)), StreamType.of(ddl(W3.output))
        key = KeyPlan((W3.key_index,))
        by_key = Partitioning(Partitioner.KEY, columns=(W3.key,))
        reads = Channel(0, arriving, 1, by_key, key, 1, 128)
        writes = Channel(1, leaving, 2, FORWARD, None, 1, 1)
        operator = OperatorPlan(
            uid="scale",
            name="scale",
            kind=OperatorKind.KEYED_PROCESS,
            function=SumAccount(),
            input=arriving,
            output=leaving,
            key=key,
            policy=ErrorPolicy.fail(),
            parallelism=1,
            max_parallelism=128,
            outlets=(Outlet(None, leaving, (), (writes,)),),
        )
        self._schema = arriving.schema
        self._stage = StagePlan(
            index=1,
            operators=(operator,),
            entries={0: (0,)},
            reads=Exchange((reads,), (arriving.schema,), {0: 0}, routed=True),
            writes=Exchange((writes,), (leaving.schema,), {1: 0}, routed=False),
            backend=BACKENDS[backend],
        )

    def run(
        self, keys: np.ndarray[Any, np.dtype[np.int64]], checkpoint: CheckpointOrder | None = None
    ) -> float:
        """Run one epoch over events of these keys; CPU seconds it took."""
        self._epoch += 1
        epoch = EpochPlan(
            job_id="scale",
            job_attempt="1",
            epoch=self._epoch,
            local_dir=self._directory,
            owner=ProcessIdentity.current(),
            expected={} if self._version is None else {("scale", 0): self._version},
            checkpoint=checkpoint,
        )
        batches = list(self._batches(keys))
        task = StageTask(self._stage, 0, SystemClock())
        identity = TaskIdentity(0, 0, self._epoch)
        start = time.process_time()
        for _ in task.run(epoch, identity, iter(batches)):
            pass
        spent = time.process_time() - start
        store = task.report.stores["scale"]
        self._version, self.snapshot = store.version, store.snapshot
        return spent

    def _batches(self, keys: np.ndarray[Any, np.dtype[np.int64]]) -> Iterator[pa.RecordBatch]:
        for start in range(0, len(keys), ROWS_PER_BATCH):
            part = keys[start : start + ROWS_PER_BATCH]
            amounts, labels = pa.array(part * 0.25), pa.array(["label"] * len(part))
            yield pa.RecordBatch.from_arrays([pa.array(part), amounts, labels], schema=self._schema)


def measure(backend: str, size: int) -> list[dict[str, Any]]:
    """Fill a store and measure rounds of random updates on it."""
    directory = tempfile.mkdtemp(prefix="holdfast-scale-")
    random = np.random.default_rng(7)
    try:
        subtask = Subtask(backend, directory)
        for start in range(0, size, FILL):
            subtask.run(np.arange(start, min(start + FILL, size)))
        filled = _resident_kb()
        uniform = [subtask.run(random.integers(0, size, EVENTS)) for _ in range(ROUNDS)]
        hot = [subtask.run(random.choice(_some(random, size), EVENTS)) for _ in range(ROUNDS)]
        on_disk = sum(f.stat().st_blocks * 512 for f in Path(directory).rglob("*") if f.is_file())
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    memory = max(filled, _resident_kb()) / 1024
    common = {"system": "holdfast", "backend": backend, "keys": size, "events_per_epoch": EVENTS}
    common |= {"peak_memory_mb": round(memory), "disk_mb": round(on_disk / 1e6)}
    return [
        {
            "workload": f"scale-{pattern}",
            **common,
            "us_per_event": statistics.median(rounds[2:]) / EVENTS * 1e6,
            "events_per_s": EVENTS / statistics.median(rounds[2:]),
        }
        for pattern, rounds in (("hot", hot), ("uniform", uniform))
    ]


def _some(random: np.random.Generator, size: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return random.choice(size, min(HOT, size), replace=False)


def _resident_kb() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def main() -> None:
    """Measure all sizes and backends, each in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--one", nargs=2, metavar=("BACKEND", "KEYS"), help=argparse.SUPPRESS)
    parser.add_argument("--keys", type=int, nargs="*", default=SIZES)
    parser.add_argument("--output", type=Path, default=LATEST)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(arguments.one[0], int(arguments.one[1]))))
        return
    results: list[dict[str, Any]] = []
    for backend in BACKENDS:
        for size in arguments.keys:
            command = [sys.executable, "-m", "benchmarks.scale", "--one", backend, str(size)]
            out = subprocess.run(command, capture_output=True, text=True, check=True)
            results += json.loads(out.stdout.splitlines()[-1])
            Console(stderr=True).print(f"{backend}, {size:,} keys: done")
    results.sort(key=lambda result: (result["workload"], result["backend"], result["keys"]))
    smallest: dict[tuple[str, str], float] = {}
    for result in results:
        first = smallest.setdefault((result["workload"], result["backend"]), result["us_per_event"])
        result["ratio_to_smallest"] = result["us_per_event"] / first
    arguments.output.write_text(json.dumps(results, indent=1) + "\n")
    _show(results)


def _show(results: list[dict[str, Any]]) -> None:
    table = Table(title="cost of an event as the state grows")
    for column in (
        "pattern",
        "backend",
        "keys",
        "µs/event",
        "to the smallest",
        "peak memory",
        "disk",
    ):
        table.add_column(column, justify="left" if column in ("pattern", "backend") else "right")
    for result in results:
        table.add_row(
            result["workload"].removeprefix("scale-"),
            result["backend"],
            f"{result['keys']:,}",
            f"{result['us_per_event']:.2f}",
            f"{result['ratio_to_smallest']:.2f} x",
            f"{result['peak_memory_mb']:,.0f} MB",
            f"{result['disk_mb']:,.0f} MB",
        )
    Console().print(table)


if __name__ == "__main__":
    main()
