"""Static DataFrames as streams, in jobs that go on from another job's snapshot.

Such a source is read from files that its job has written, all of them in the first epoch
that reads any. A job that starts from a savepoint writes files of its own, of the same rows:
if the snapshot contains the rows, those files count as read.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import msgspec

from holdfast.checkpoint.storage import TASK_OWNED
from holdfast.errors import RestoreError
from holdfast.spark.source import Source
from holdfast.spark.source_log import FileLog
from holdfast.state.directories import file_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import SparkSession

    from holdfast.spark.compiler import JobPlan
    from holdfast.spark.query_log import QueryPosition
    from holdfast.spark.source_log import SourcePosition

SCRATCH: Final = "source-"
"""Beginning of the name of a directory with rows, where they are not kept with checkpoints."""

_SCRATCH: Final = rf"/holdfast-query-[0-9a-f]{{32}}/{SCRATCH}\d+/[^/]+"


def check_kept_rows(position: QueryPosition, plan: JobPlan, *, one_pass: bool = False) -> None:
    """Refuse a snapshot that has problems with static DataFrames; see `kept_rows_problems`.

    Raises:
        RestoreError: It has one.
    """
    for problem in kept_rows_problems(position, plan, one_pass=one_pass):
        raise RestoreError(problem)


def kept_rows_problems(
    position: QueryPosition, plan: JobPlan, *, one_pass: bool = False
) -> Iterator[str]:
    """Static DataFrames whose rows would be taken for others, or processed once more.

    Args:
        position: How far the sources of the snapshot were read.
        plan: The program.
        one_pass: Whether it reads everything there is in one pass.
    """
    for uid in _static_sources(position, plan):
        read = [leaf for leaf in position.sources[uid] if leaf.offset is not None]
        if read and one_pass:
            yield (
                f"source {uid!r} is a static DataFrame whose rows the snapshot contains, and the "
                "program reads everything in one pass, those rows included. Give it another uid "
                "to have them processed once more, or let the program have a source without end, "
                "or one that is streamed"
            )
        elif not all(_is_of_kept_rows(leaf, uid) for leaf in read):
            yield (
                f"source {uid!r} is a static DataFrame, and was another kind of source when the "
                "snapshot was taken, so it cannot be told which of its rows the state contains. "
                "Go on with the source as it was; or, if the state is to see all rows of the "
                "DataFrame, give it another uid and allow state that is not restored"
            )


def with_rows_read(
    position: QueryPosition, plan: JobPlan, directories: Mapping[str, str], spark: SparkSession
) -> QueryPosition:
    """The position in another job's snapshot, for a job with files of its own.

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


def _static_sources(position: QueryPosition, plan: JobPlan) -> list[str]:
    return [
        source.uid
        for source in plan.sources
        if isinstance(source.node.function, Source)
        and source.node.function.keeps_files
        and source.uid in position.sources
    ]


def _is_of_kept_rows(leaf: SourcePosition, uid: str) -> bool:
    if leaf.log is None:
        return False
    kept = re.compile(rf".*(/{TASK_OWNED}/{re.escape(file_name(uid))}/[^/]+|{_SCRATCH})")
    paths = (unquote(msgspec.json.decode(entry)["path"]) for entry in leaf.log.entries)
    return all(map(kept.fullmatch, paths))


def _moved(leaf: SourcePosition, directory: str, spark: SparkSession) -> SourcePosition:
    if leaf.log is None:
        return leaf
    entries = tuple(msgspec.json.encode(entry).decode() for entry in _files(directory, spark))
    return replace(leaf, log=FileLog(-1, leaf.log.upto, entries))


def _files(directory: str, spark: SparkSession) -> Iterator[dict[str, Any]]:
    """The files with rows, as a file source notes those that it has read."""
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
