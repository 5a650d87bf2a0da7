"""Rows that wait for their checkpoint, and then go to a Spark writer or a user's function.

The tasks of an epoch keep such rows in checkpoint storage. When the checkpoint is
complete, the driver makes a DataFrame of all of them that reads them again, on the
executors, as often as it is evaluated.
"""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

from holdfast import faults
from holdfast.api.sink import Committer, Sink, SinkWriter
from holdfast.spark.outputs import deliver_frame
from holdfast.spark.types import spark_schema

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from holdfast.api.functions import RuntimeContext
    from holdfast.api.graph import Node
    from holdfast.api.sink import StagedRows, Staging, WriterContext


class StagedFrameSink(Sink):
    """Keeps an epoch's rows for a DataFrame of them."""

    takes_rows = True

    def create_writer(self, context: WriterContext) -> SinkWriter:
        """A writer that puts rows into checkpoint storage."""
        return _Writer(context)

    def create_committer(self, runtime: RuntimeContext) -> Committer:
        """None: the driver publishes all subtasks' rows at once."""
        raise AssertionError("frames are published by the driver")


class _Writer(SinkWriter):
    def __init__(self, context: WriterContext) -> None:
        assert context.staging is not None
        self._rows = context.staging.open(f"{context.unique_name}-rows", context.schema)

    def write_rows(self, rows: pa.RecordBatch) -> None:
        self._rows.write(rows)

    def prepare_commit(self) -> Sequence[StagedRows]:
        return (self._rows.close(),)

    def abort(self) -> None:
        self._rows.abort()


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
    faults.reach("before-publish", **where)
    frame = staged_frame(spark, sink.output.schema, rows, staging)
    deliver_frame(sink, frame, checkpoint_id, f"checkpoint {checkpoint_id}")
    faults.reach("after-publish", **where)


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
