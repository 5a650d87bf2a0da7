"""Hands the rows of an epoch to Spark's sinks and to the driver.

An epoch's plan may run only once, since its tasks change state. One sink that reads
everything takes the plan's rows directly. Several sinks, and sinks that pass the
DataFrame to user code, read a copy that is made first, in one action.
"""

from __future__ import annotations

import pickle
import sys
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from holdfast._faults import fault_point
from holdfast.api.sinks import CollectSink, ForeachBatchSink, PrintSink, SparkSink
from holdfast.errors import JobExecutionError
from holdfast.runtime.exchange import CHANNEL, payload_name
from holdfast.spark.types import spark_schema
from holdfast.types.columns.batches import BatchReader

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from holdfast.api.sinks import StagedRows, Staging
    from holdfast.api.streams.graph import Node
    from holdfast.job.model import OutputPlan
    from holdfast.runtime.plan import Channel, Exchange


class Outputs:
    """The sinks of one job."""

    def __init__(self, outputs: tuple[OutputPlan, ...], exchange: Exchange) -> None:
        """The sinks that read the last exchange."""
        self._exchange = exchange
        self._sinks = [(output.channel, sink) for output in outputs for sink in output.sinks]

    def emit(self, rows: DataFrame, epoch: int) -> None:
        """Run the epoch's plan, once, and hand its rows to every sink."""
        match self._sinks:
            case []:
                run_only(rows)
            case [(channel, sink)] if not isinstance(sink.function, ForeachBatchSink):
                _deliver(sink, self._view(rows, channel), channel, epoch)
            case _:
                self._emit_copies(rows, epoch)

    def _emit_copies(self, rows: DataFrame, epoch: int) -> None:
        staged = rows.persist()
        try:
            # Counting a persisted DataFrame computes and stores every partition.
            staged.count()
            plan = staged._jdf.queryExecution().toRdd()
            for channel, sink in self._sinks:
                _deliver(sink, self._view(staged, channel), channel, epoch)
        finally:
            staged.unpersist()
        plan.cleanShuffleDependencies(False)

    def _view(self, rows: DataFrame, channel: Channel) -> DataFrame:
        exchange = self._exchange
        if exchange.tagged:
            rows = rows.filter(F.col(CHANNEL) == channel.id)
        if exchange.flat:
            return rows.drop(CHANNEL)
        return rows.select(f"{payload_name(exchange.payload_of[channel.id])}.*")


def run_only(rows: DataFrame) -> None:
    """Run an epoch's plan that has no sinks."""
    plan = rows._jdf.queryExecution().toRdd()
    plan.count()
    # Spark does this itself only for actions of DataFrames.
    plan.cleanShuffleDependencies(False)


def _deliver(sink: Node, rows: DataFrame, channel: Channel, epoch: int) -> None:
    match sink.function:
        case SparkSink() | ForeachBatchSink():
            deliver_frame(sink, rows, epoch, f"epoch {epoch}")
        case PrintSink(label):
            prefix = "" if label is None else f"{label}> "
            for element in _elements(rows, channel):
                sys.stdout.write(f"{prefix}{element}\n")
            sys.stdout.flush()
        case CollectSink(collector):
            collector(_elements(rows, channel))
        case other:
            raise AssertionError(f"{other!r} is no sink")


def deliver_frame(sink: Node, rows: DataFrame, number: int, occasion: str) -> None:
    """Hand a DataFrame to a sink that takes one, with its epoch or checkpoint number."""
    match sink.function:
        case SparkSink() as spark_sink:
            writer = rows.write.format(spark_sink.format).mode(spark_sink.mode)
            if spark_sink.partition_by:
                writer = writer.partitionBy(*spark_sink.partition_by)
            writer.options(**spark_sink.options).save()
        case ForeachBatchSink(function):
            try:
                function(rows, number)
            except Exception as error:
                raise JobExecutionError(
                    f"the foreach_batch function of {sink.name!r}, made at {sink.where}, raised in "
                    f"{occasion}: {type(error).__name__}: {error}"
                ) from error
        case other:
            raise AssertionError(f"{other!r} takes no DataFrame")


def _elements(rows: DataFrame, channel: Channel) -> list[Any]:
    reader = BatchReader(channel.type)
    table = rows.toArrow()
    return [element for batch in table.to_batches() for element in reader.elements(batch)]


def publish_frame(
    spark: SparkSession,
    uid: str,
    sink: Node,
    rows: Sequence[StagedRows],
    staging: Staging,
    checkpoint_id: int,
) -> None:
    """Hand all rows of a checkpoint to a sink on the driver, as one DataFrame."""
    where = {"uid": uid, "checkpoint": checkpoint_id}
    fault_point("before-publish", **where)
    frame = staged_frame(spark, sink.output.schema, rows, staging)
    deliver_frame(sink, frame, checkpoint_id, f"checkpoint {checkpoint_id}")
    fault_point("after-publish", **where)


def staged_frame(
    spark: SparkSession, schema: pa.Schema, rows: Sequence[StagedRows], staging: Staging
) -> DataFrame:
    """A DataFrame of staged rows, one partition for each of them."""
    columns = spark_schema(schema)

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for data in batch.column(0).to_pylist():
                yield from staging.get(pickle.loads(data))

    pickled = [(pickle.dumps(one),) for one in rows]
    places = spark.createDataFrame(
        spark.sparkContext.parallelize(pickled, len(rows)), "rows binary"
    )
    return places.mapInArrow(read, columns)
