"""The Holdfast side of the benchmark: the three workloads as a user would write them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from benchmarks.harness import Result, epoch_seconds, rates, read_epochs
from benchmarks.workloads import IDLE, TRANSITIONS, Workload, ddl
from holdfast import (
    EmbeddedRocksDBStateBackend,
    HashMapStateBackend,
    KeyedProcessFunction,
    RuntimeContext,
    SparkSink,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from holdfast.config.backends import StateBackend

BACKENDS: dict[str, StateBackend] = {
    "hashmap": HashMapStateBackend(),
    "rocksdb": EmbeddedRocksDBStateBackend(),
}
"""The state backends that are measured, by name."""


class CountUrl(KeyedProcessFunction):
    """W1: every event emits its URL's count so far."""

    def open(self, ctx: RuntimeContext) -> None:
        """Get hold of the count."""
        self.count = ctx.get_state(ValueStateDescriptor("count", int))

    def process_element(self, value: Any, ctx: Any) -> Iterator[tuple[str, int]]:
        """Count one event."""
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        yield value.url, count


class FollowCall(KeyedProcessFunction):
    """W2: an invalid event emits an alert, one that leads back to idle clears the state."""

    def open(self, ctx: RuntimeContext) -> None:
        """Get hold of the state; none is idle."""
        self.state = ctx.get_state(ValueStateDescriptor("state", str))

    def process_element(self, value: Any, ctx: Any) -> Iterator[tuple[int, str, str]]:
        """Take one step."""
        current = self.state.value() or IDLE
        following = TRANSITIONS.get((current, value.type))
        if following is None:
            yield value.source, current, value.type
        elif following == IDLE:
            self.state.clear()
        else:
            self.state.update(following)


class Account(msgspec.Struct, frozen=True, array_like=True):
    """What W3 keeps of a key."""

    count: int
    total: float
    last: str


class SumAccount(KeyedProcessFunction):
    """W3: keeps three fields, and emits when the count becomes even."""

    def open(self, ctx: RuntimeContext) -> None:
        """Get hold of the account."""
        self.account = ctx.get_state(ValueStateDescriptor("account", Account))

    def process_element(self, value: Any, ctx: Any) -> Iterator[tuple[int, int, float]]:
        """Add one amount."""
        old = self.account.value()
        if old is None:
            new = Account(1, value.amount, value.label)
        else:
            new = Account(old.count + 1, old.total + value.amount, value.label)
        self.account.update(new)
        if not new.count % 2:
            yield value.key, new.count, new.total


FUNCTIONS: dict[str, Callable[[], KeyedProcessFunction]] = {
    "W1": CountUrl,
    "W2": FollowCall,
    "W3": SumAccount,
}


def run(
    workload: Workload,
    backend: str,
    data_dir: Path,
    events_per_epoch: int,
    spark: SparkSession,
    output_dir: Path | None = None,
) -> Result:
    """Run the workload on Holdfast; see `benchmarks.harness.Run`."""
    env = StreamExecutionEnvironment.get_execution_environment(spark)
    env.set_parallelism(2).set_state_backend(BACKENDS[backend]).set_available_now()
    events = env.from_dataframe(read_epochs(spark, workload, data_dir))
    output = (
        events.key_by(workload.key)
        .process(FUNCTIONS[workload.name](), ddl(workload.output))
        .uid(workload.name)
    )
    if output_dir is None:
        output.sink_to(SparkSink("noop", mode="overwrite"))
    else:
        output.sink_to(SparkSink("parquet", {"path": str(output_dir)}))
    client = env.execute_async(workload.name)
    client.result()
    return rates(workload, "holdfast", backend, events_per_epoch, epoch_seconds(client.query))
