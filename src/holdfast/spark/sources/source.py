"""Sources as the environment sees them: their DataFrames, and whether they end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast.errors import JobGraphError, UnsupportedSparkError
from holdfast.spark.session import runs_locally

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from holdfast.spark.sources.gates import Gate

STATEFUL_PLANS = frozenset(
    {
        "Aggregate",
        "Deduplicate",
        "DeduplicateWithinWatermark",
        "Distinct",
        "FlatMapGroupsWithState",
        "TransformWithState",
        "TransformWithStateInPySpark",
        "FlatMapGroupsInPandasWithState",
        "GlobalLimit",
        "Window",
    }
)
"""Nodes of a streaming plan that keep state in Spark."""


@dataclass(frozen=True)
class SourcePlace:
    """Where a source finds what the job keeps for it."""

    directory: str
    """URI of a directory that lives as long as the job."""
    gate: Gate | None = None
    """Its gate; None if it never waits for other sources."""


@dataclass(frozen=True)
class Source:
    """A source of a job, as a node's function."""

    description: str
    bounded: bool
    streaming: Callable[[SourcePlace], DataFrame]
    """Makes the streaming DataFrame."""
    static: Callable[[], DataFrame] | None
    """Makes the DataFrame of all rows, for one pass; None if the source never ends."""
    endless: bool = False
    """Whether there is always more to read right now."""
    one_pass: bool = False
    """Whether one pass is better, if the job allows it."""
    keeps_files: bool = False
    """Whether it is read from files of the job, with which no other job can continue."""
    can_pause: bool = False
    """Whether it has a gate."""
    commit: Callable[[str], None] | None = None
    """Called on the driver with the offset in a completed checkpoint, as Spark writes it."""


def in_one_pass(source: Source) -> DataFrame:
    """The DataFrame of all rows."""
    assert source.static is not None, f"{source.description} has no end"
    return source.static()


def as_stream(df: DataFrame, place: SourcePlace) -> DataFrame:
    """A static DataFrame as a stream, through files in the source's directory."""
    path = place.directory
    if not runs_locally(df.sparkSession):
        raise JobGraphError(
            "a static DataFrame beside streaming sources is handed over in files on this machine, "
            f"which executors of {df.sparkSession.sparkContext.master} cannot read; write it to "
            "storage that they can, and use spark.readStream on that"
        )
    if not _is_whole(df.sparkSession, path):
        df.write.mode("overwrite").parquet(path)
    return df.sparkSession.readStream.schema(df.schema).parquet(path)


def _is_whole(spark: SparkSession, path: str) -> bool:
    """Whether the files exist already, from before a recovery."""
    jvm = spark._jvm
    assert jvm is not None
    success = jvm.org.apache.hadoop.fs.Path(f"{path}/_SUCCESS")
    return bool(success.getFileSystem(spark._jsc.hadoopConfiguration()).exists(success))


def check_streaming_frame(df: DataFrame) -> None:
    """Refuse a streaming DataFrame that cannot be replayed exactly."""
    plan = df._jdf.queryExecution().analyzed()
    for node in _walk(plan):
        name = node.nodeName()
        if name in STATEFUL_PLANS or (name == "Join" and _streams_on_both_sides(node)):
            raise JobGraphError(
                f"from_dataframe: the streaming DataFrame has a {name}, which keeps state in Spark "
                "that Holdfast could not bring back after a failure; do that step on the stream "
                "(key_by and state), or on static data"
            )
        option = _clean_source(node)
        if option not in (None, "off"):
            raise JobGraphError(
                f"from_dataframe: the source has cleanSource={option}, which removes files that a "
                "recovery must read again; leave the option out"
            )


def check_classic_frame(df: object) -> None:
    """Refuse anything but a DataFrame of a classic Spark session."""
    if type(df).__module__.startswith("pyspark.sql.connect"):
        raise UnsupportedSparkError(
            "from_dataframe: this DataFrame belongs to a Spark Connect session; Holdfast runs in "
            "the driver and needs a classic one: SparkSession.builder.master(...).getOrCreate()"
        )
    if not hasattr(df, "isStreaming") or not hasattr(df, "_jdf"):
        raise JobGraphError(
            f"from_dataframe takes a Spark DataFrame, not {type(df).__name__}; "
            "from_collection takes Python data"
        )


def _walk(plan: Any) -> Any:
    yield plan
    children = plan.children()
    for i in range(children.size()):
        yield from _walk(children.apply(i))


def _streams_on_both_sides(join: Any) -> bool:
    return bool(join.left().isStreaming() and join.right().isStreaming())


def _clean_source(node: Any) -> str | None:
    if node.nodeName() != "StreamingRelation":
        return None
    options = node.dataSource().options()
    keys = options.keys().iterator()
    while keys.hasNext():
        key = keys.next()
        if key.lower() == "cleansource":
            return str(options.apply(key)).lower()
    return None
