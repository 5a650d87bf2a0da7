"""Static DataFrames as streams, in jobs that start from another job's snapshot.

A static DataFrame is read from files that the job has written, all of them in the first epoch
that reads any. A job that starts from a savepoint writes its own files of the same rows:
if the snapshot contains the rows, these files count as read.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.checkpoint.restore.checks import _static_sources
from holdfast.job.model import FileLog

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import SparkSession

    from holdfast.job.model import JobPlan, QueryPosition, SourcePosition


def with_rows_read(
    position: QueryPosition, plan: JobPlan, directories: Mapping[str, str], spark: SparkSession
) -> QueryPosition:
    """The position in another job's snapshot, with this job's files.

    Args:
        position: How far the other job had read.
        plan: The program.
        directories: Where this job keeps the rows of static DataFrames, by uid.
        spark: The session.
    """
    moved = {
        uid: tuple(_moved(leaf, directories[uid], spark) for leaf in position.sources[uid])
        for uid in _static_sources(position, plan)
    }
    return replace(position, sources=position.sources | moved)


def _moved(leaf: SourcePosition, directory: str, spark: SparkSession) -> SourcePosition:
    if leaf.log is None:
        return leaf
    entries = tuple(msgspec.json.encode(entry).decode() for entry in _files(directory, spark))
    return replace(leaf, log=FileLog(-1, leaf.log.upto, entries))


def _files(directory: str, spark: SparkSession) -> Iterator[dict[str, Any]]:
    """The files with rows, as entries in the log of a file source."""
    jvm = spark._jvm
    assert jvm is not None
    path = jvm.org.apache.hadoop.fs.Path(directory)
    for status in path.getFileSystem(spark._jsc.hadoopConfiguration()).listStatus(path):
        if not status.getPath().getName().startswith(("_", ".")):
            yield {
                "path": status.getPath().toUri().toString(),
                "timestamp": status.getModificationTime(),
                "batchId": 0,
            }
