"""What Spark itself offers for the same work, and the floor under all of it.

Each system is a `benchmarks.harness.Run`. None of them is held back: state is in the
RocksDB state store with changelog checkpoints, a key's state is read once and written
once per epoch, and the output goes to Spark's own no-op sink.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import DataType, StructType

from benchmarks.harness import Result, Run, rates, read_epochs, timed
from benchmarks.workloads import Event, State, Workload, ddl

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle

MAX_PARALLELISM = 128
PARALLELISM = 2


class RowProcessor(StatefulProcessor):
    """A workload in `transformWithState`: rows in, rows out."""

    def __init__(self, workload: Workload) -> None:
        self._step = workload.step
        self._state_schema = ddl(workload.state)
        self._row = Row(*workload.output)

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Obtain the one value state of the workload."""
        self._state = handle.getValueState("state", self._state_schema)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        """Run the events of one key; its state is read once and written once."""
        state = before = self._state.get()
        for row in rows:
            state, output = self._step(state, row)
            if output is not None:
                yield self._row(*output)
        _store(self._state, before, state)


class PandasProcessor(StatefulProcessor):
    """A workload in `transformWithStateInPandas`: data frames in, data frames out."""

    def __init__(self, workload: Workload) -> None:
        self._step = workload.step
        self._state_schema = ddl(workload.state)
        self._columns = list(workload.output)

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Obtain the one value state of the workload."""
        self._state = handle.getValueState("state", self._state_schema)

    def handleInputRows(
        self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any
    ) -> Iterator[pd.DataFrame]:
        """Run the events of one key; its state is read once and written once."""
        state = before = self._state.get()
        outputs: list[Event] = []
        for frame in rows:
            for event in zip(*(frame[column].tolist() for column in frame), strict=True):
                state, output = self._step(state, event)
                if output is not None:
                    outputs.append(output)
        _store(self._state, before, state)
        if outputs:
            yield pd.DataFrame(outputs, columns=self._columns)


def _store(handle: Any, before: State, after: State) -> None:
    if after is None:
        if before is not None:
            handle.clear()
    elif after != before:
        handle.update(after)


def _transform_with_state(workload: Workload, events: DataFrame) -> DataFrame:
    return events.groupBy(workload.key).transformWithState(
        statefulProcessor=RowProcessor(workload),
        outputStructType=ddl(workload.output),
        outputMode="Update",
        timeMode="None",
    )


def _transform_with_state_in_pandas(workload: Workload, events: DataFrame) -> DataFrame:
    return events.groupBy(workload.key).transformWithStateInPandas(
        statefulProcessor=PandasProcessor(workload),
        outputStructType=ddl(workload.output),
        outputMode="Update",
        timeMode="None",
    )


def _aggregate(workload: Workload, events: DataFrame) -> DataFrame:
    """Spark's own aggregation: no Python at all, one output per key and epoch."""
    if workload.name == "W1":
        return events.groupBy("url").count()
    # The condition on `last` keeps the optimizer from dropping a third of the state.
    return (
        events.groupBy("key")
        .agg(
            F.count("*").alias("count"),
            F.sum("amount").alias("total"),
            F.last("label").alias("last"),
        )
        .where("count % 2 = 0 AND last IS NOT NULL")
        .select("key", "count", "total")
    )


def _stream(system: str, plan: Callable[[Workload, DataFrame], DataFrame]) -> Run:
    """A system whose whole work is one streaming plan."""

    def run(
        workload: Workload,
        backend: str,
        data_dir: Path,
        events_per_epoch: int,
        spark: SparkSession,
        output_dir: Path | None = None,
    ) -> Result:
        def start(checkpoint: Path) -> StreamingQuery:
            output = plan(workload, read_epochs(spark, workload, data_dir))
            writer = output.writeStream.outputMode("update").trigger(availableNow=True)
            writer = writer.option("checkpointLocation", str(checkpoint))
            if output_dir is None:
                return writer.format("noop").start()
            return writer.foreachBatch(_keep(output_dir)).start()

        return rates(workload, system, backend, events_per_epoch, timed(start))

    return run


def _keep(output_dir: Path) -> Callable[[DataFrame, int], None]:
    def keep(batch: DataFrame, _: int) -> None:
        batch.write.mode("append").parquet(str(output_dir))

    return keep


def _same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def _identity(_: Workload, keyed: DataFrame) -> DataFrame:
    """The floor: every event through a keyed shuffle and a Python worker, no work done."""
    return keyed.mapInArrow(_same, keyed.schema)


def _python(workload: Workload, keyed: DataFrame) -> DataFrame:
    """The least that Python can do: the function on every event, and a dictionary per epoch.

    Nothing is stored or carried over, so its output is that of every epoch for itself.
    """
    step, key = workload.step, workload.key_index
    schema = to_arrow_schema(cast("StructType", DataType.fromDDL(ddl(workload.output))))

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        states: dict[Any, State] = {}
        for batch in batches:
            rows = []
            for event in zip(*(column.to_pylist() for column in batch.columns[:-1]), strict=True):
                states[event[key]], output = step(states.get(event[key]), event)
                if output is not None:
                    rows.append(output)
            columns = list(zip(*rows, strict=True)) or [()] * len(schema)
            yield pa.record_batch(
                [pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema
            )

    return keyed.mapInArrow(run, ddl(workload.output))


def _keyed(system: str, plan: Callable[[Workload, DataFrame], DataFrame]) -> Run:
    """A system that gets every event of a key in the same Python worker, as Holdfast does."""

    def run(
        workload: Workload,
        backend: str,
        data_dir: Path,
        events_per_epoch: int,
        spark: SparkSession,
        output_dir: Path | None = None,
    ) -> Result:
        events = read_epochs(spark, workload, data_dir)
        group = f"pmod(xxhash64(`{workload.key}`), {MAX_PARALLELISM})"
        subtask = f"cast({group} * {PARALLELISM} div {MAX_PARALLELISM} as int)"
        keyed = events.withColumn("subtask", F.expr(subtask))

        def epoch(batch: DataFrame, _: int) -> None:
            passed = plan(workload, batch.repartitionById(PARALLELISM, "subtask"))
            passed.write.format("noop").mode("overwrite").save()

        def start(checkpoint: Path) -> StreamingQuery:
            writer = keyed.writeStream.foreachBatch(epoch).trigger(availableNow=True)
            return writer.option("checkpointLocation", str(checkpoint)).start()

        return rates(workload, system, backend, events_per_epoch, timed(start))

    return run


STATELESS: Mapping[str, Run] = {
    "identity": _keyed("identity", _identity),
    "python": _keyed("python", _python),
}
"""What bounds every function that sees each event; nothing they do survives."""

PEERS: Mapping[str, Run] = {
    **STATELESS,
    "aggregate": _stream("aggregate", _aggregate),
    "transformWithState": _stream("transformWithState", _transform_with_state),
    "transformWithStateInPandas": _stream(
        "transformWithStateInPandas", _transform_with_state_in_pandas
    ),
}
"""Every peer, by name."""
