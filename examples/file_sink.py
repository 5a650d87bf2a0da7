"""Files, exactly once: every row in one file, though the driver be killed.

Orders are numbered by customer, with state, and written to Parquet files in a directory
for each day. Files appear when the checkpoint that contains their rows is complete.

    file_sink.py [OUTPUT] [--checkpoints DIRECTORY]

Kill it midway and start it again with the same arguments. The job has a lasting id, so
it continues from its newest checkpoint, and publishes what that one has not published
yet. At its end the program reads all files and checks that no order is missing and none
is there twice.

Run it with `make example-file_sink`.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pyarrow.dataset as ds

from holdfast import (
    FileSink,
    KeyedProcessFunction,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from holdfast import JobExecutionResult, RuntimeContext

JOB_ID = "file-sink"
CUSTOMERS = 5
ORDERS = 120
PER_EPOCH = 12


class Order(NamedTuple):
    """One order."""

    customer: int
    number: int
    day: str


def order(number: int) -> Order:
    """The order of that number."""
    return Order(number % CUSTOMERS, number, f"2026-01-{1 + number * 3 // ORDERS:02d}")


class NumberByCustomer(KeyedProcessFunction):
    """Counts the orders of every customer."""

    def open(self, ctx: RuntimeContext) -> None:
        """Get hold of the count."""
        self.count = ctx.get_state(ValueStateDescriptor("count", int))

    def process_element(self, value: Order, ctx: Any) -> Iterator[tuple[str, int, int, int]]:
        """One more order."""
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        yield value.day, value.customer, value.number, count


def run(output: str, checkpoints: str) -> JobExecutionResult:
    """Run the job to its end, from its newest checkpoint if it has one."""
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(2).set_max_events_per_epoch(PER_EPOCH)
    env.enable_checkpointing(100).set_job_id(JOB_ID)
    env.get_checkpoint_config().set_checkpoint_storage_dir(checkpoints)
    numbered = (
        env.from_generator(order, count=ORDERS)
        .uid("orders")
        .key_by("customer")
        .process(NumberByCustomer(), "day string, customer bigint, number bigint, nth bigint")
        .uid("number-by-customer")
    )
    numbered.sink_to(FileSink(output, "parquet", partition_by=["day"])).uid("order-files")
    return env.execute("file-sink")


def check(output: str) -> int:
    """Number of rows in all files, having checked that they are the right ones."""
    # As every reader does: names that begin with a dot or an underscore are passed over.
    rows = ds.dataset(output, format="parquet", partitioning="hive").to_table().to_pylist()
    written = sorted((row["number"], row["customer"], row["nth"], row["day"]) for row in rows)
    expected = [
        (number, number % CUSTOMERS, number // CUSTOMERS + 1, order(number).day)
        for number in range(ORDERS)
    ]
    if written != expected:
        raise SystemExit(f"{output} holds {len(written)} rows, and not each order once")
    return len(written)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the job, and check what it wrote."""
    parser = argparse.ArgumentParser(description="Writes files, exactly once.")
    parser.add_argument("output", nargs="?", help="directory to write to")
    parser.add_argument("--checkpoints", help="directory of checkpoints")
    given = parser.parse_args(arguments)
    scratch = tempfile.mkdtemp(prefix="file-sink-")
    output = str(Path(given.output or f"{scratch}/orders").absolute())
    result = run(output, given.checkpoints or f"{scratch}/checkpoints")
    checkpoints = result.statistics.checkpoints
    assert checkpoints is not None
    restored = checkpoints.latest_restored
    begun = "anew" if restored is None else f"from checkpoint {restored.checkpoint_id}"
    print(f"started {begun}; {check(output)} orders, each once, in {output}")


if __name__ == "__main__":
    main()
