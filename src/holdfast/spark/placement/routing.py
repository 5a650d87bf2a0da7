"""Routes a source's rows in the JVM: key groups as Spark expressions.

Gives the same subtask for a row as `runtime/partitioners.py` does in Python; see
`serde/keys.py` for how keys are hashed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F
from pyspark.sql import types as T

from holdfast.api.streams.graph import Partitioner
from holdfast.runtime.exchange import CHANNEL, SUBTASK, payload_name
from holdfast.runtime.plan import ORDER, TIME
from holdfast.spark.types import spark_schema

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from holdfast.job.model import SortedChannel
    from holdfast.runtime.plan import Channel, Exchange, TimeColumn

ARRIVED = "_hf_arrived"
"""Column with the position of a row in its partition, while that is sorted."""
_AS_LONG = (T.BooleanType, T.ByteType, T.ShortType, T.IntegerType, T.LongType)
_AS_THEY_ARE = (T.DoubleType, T.BinaryType, T.TimestampType, T.TimestampNTZType)


def routable(df: DataFrame, channel: Channel) -> bool:
    """Whether the JVM can compute the receiving subtasks of the rows of `df`."""
    if channel.partitioning.partitioner in (Partitioner.REBALANCE, Partitioner.BROADCAST):
        # A streaming plan cannot number its rows.
        return False
    if channel.partitioning.partitioner is not Partitioner.KEY:
        return True
    columns = channel.partitioning.columns
    return bool(columns) and all(
        _hashable(df.schema[name].dataType) is not None for name in columns
    )


def time_readable(df: DataFrame, time: TimeColumn | None) -> bool:
    """Whether the JVM can read the event time of a row of `df`."""
    if time is None:
        return True
    kind = df.schema[time.column].dataType
    return isinstance(kind, (*_AS_LONG[1:], T.TimestampType, T.DateType))


def _time_column(df: DataFrame, time: TimeColumn) -> Column:
    column = F.col(_quoted(time.column))
    match df.schema[time.column].dataType:
        case T.TimestampType():
            return F.unix_millis(column)
        case T.DateType():
            return F.unix_date(column).cast("bigint") * F.lit(86_400_000)
        case _:
            return column.cast("bigint")


def _hashable(kind: T.DataType) -> str | None:
    """Converts a column for `xxhash64`; None if the JVM cannot."""
    if isinstance(kind, _AS_LONG):
        return "bigint"
    if isinstance(kind, T.FloatType):
        return "double"
    if isinstance(kind, T.DateType):
        return "date"
    if isinstance(kind, _AS_THEY_ARE) or (
        isinstance(kind, T.StringType) and kind.isUTF8BinaryCollation()
    ):
        return "as is"
    return None


def _prepared(df: DataFrame, name: str) -> Column:
    column = F.col(_quoted(name))
    how = _hashable(df.schema[name].dataType)
    if how == "date":
        return F.unix_date(column).cast("bigint")
    return column if how == "as is" else column.cast(str(how))


def key_hash_column(df: DataFrame, columns: tuple[str, ...]) -> Column:
    """The hash of a row's key."""
    parts = [_prepared(df, name) for name in columns]
    if len(parts) == 1:
        return F.xxhash64(parts[0])
    marked: list[Column] = []
    for part in parts:
        marked += [F.when(part.isNull(), F.lit(0)).otherwise(F.lit(1)).cast("bigint"), part]
    return F.xxhash64(*marked)


def _subtask_column(df: DataFrame, channel: Channel) -> Column:
    p = channel.parallelism
    match channel.partitioning.partitioner:
        case Partitioner.KEY:
            groups = channel.max_parallelism
            group = F.pmod(key_hash_column(df, channel.partitioning.columns), F.lit(groups))
            # Whole-number division: both are below 2^15, so their product is exact.
            return F.floor(group * F.lit(p) / F.lit(groups)).cast("int")
        case Partitioner.FORWARD:
            return F.pmod(F.spark_partition_id(), F.lit(p)).cast("int")
        case _:
            return F.floor(F.rand() * p).cast("int")


def routed(
    df: DataFrame, channels: tuple[Channel, ...], exchange: Exchange, time: TimeColumn | None = None
) -> DataFrame:
    """A source's rows on the exchange, once for each of `channels`."""
    names = df.columns
    if exchange.tagged or len(channels) > 1:
        ids = F.array(*[F.lit(channel.id) for channel in channels])
        df = df.select("*", F.explode(ids).alias(CHANNEL))
    columns: list[Column] = []
    if exchange.routed:
        columns.append(_by_channel(df, channels).alias(SUBTASK))
    if exchange.tagged:
        columns.append(F.col(CHANNEL))
    if exchange.timed:
        found = F.lit(None).cast("bigint") if time is None else _time_column(df, time)
        columns.append(found.alias(TIME))
    if exchange.ordered:
        columns.append(F.lit(None).cast("bigint").alias(ORDER))
    fields = [F.col(_quoted(name)) for name in names]
    if exchange.flat:
        return df.select(*columns, *fields)
    mine = {exchange.payload_of[channel.id] for channel in channels}
    for payload, schema in enumerate(exchange.payloads):
        if payload in mine:
            columns.append(F.struct(*fields).alias(payload_name(payload)))
        else:
            columns.append(F.lit(None).cast(spark_schema(schema)).alias(payload_name(payload)))
    return df.select(*columns)


def in_order(df: DataFrame, channels: tuple[SortedChannel, ...], exchange: Exchange) -> DataFrame:
    """Sort the rows of a partition as these channels require: broadcast rows first.

    The sort is stable: rows that compare equal keep their order of arrival. Spark's own sort
    is not stable once it spills to disk.
    """
    if not channels:
        return df
    by_column = _sort_keys([one for one in channels if not one.channel.broadcast], exchange)
    arrived = F.monotonically_increasing_id()
    if not by_column:
        # One number for both, which Spark sorts fastest; broadcast rows are below zero.
        arrived = F.coalesce(F.col(ORDER) - F.lit(1 << 62), arrived)
    elif exchange.ordered:
        by_column.insert(0, F.col(ORDER).asc_nulls_last())
    df = df.withColumn(ARRIVED, arrived)
    return df.sortWithinPartitions(*by_column, F.col(ARRIVED)).drop(ARRIVED)


def _sort_keys(channels: list[SortedChannel], exchange: Exchange) -> list[Column]:
    """The sort key of rows; the same for all inputs of a union."""
    alike: dict[tuple[int, tuple[str, ...]], list[int]] = {}
    for one in channels:
        same = (exchange.payload_of[one.channel.id], one.columns)
        alike.setdefault(same, []).append(one.channel.id)
    keys = []
    for (payload, names), ids in alike.items():
        inside = "" if exchange.flat else f"{payload_name(payload)}."
        for path in [f"{inside}{_quoted(name)}" for name in names] or [TIME]:
            column = F.col(path)
            keys.append(F.when(F.col(CHANNEL).isin(ids), column) if exchange.tagged else column)
    return keys


def _by_channel(df: DataFrame, channels: tuple[Channel, ...]) -> Column:
    if len(channels) == 1:
        return _subtask_column(df, channels[0])
    chosen = F.when(F.col(CHANNEL) == channels[0].id, _subtask_column(df, channels[0]))
    for channel in channels[1:]:
        chosen = chosen.when(F.col(CHANNEL) == channel.id, _subtask_column(df, channel))
    return chosen


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
