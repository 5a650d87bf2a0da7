"""Captures the position of a streaming query, and restores a query directory from it.

Spark keeps a query's position in its checkpoint directory, which is temporary here:

    metadata     the query's id
    offsets/N    v1, a line of settings, then a line for every streaming leaf of the plan
    commits/N    marks batch N as done
    sources/I    the log of source I (see `source_log`)

Within `foreachBatch` of batch N, offsets/N exists and commits/N does not. Later, logs
of sources may be ahead: entries beyond offsets/N are left out. A leaf that occurs twice
in the plan has two lines of offsets and is one source: `source_leaves` maps leaves to
sources. A position is stored by the uids of the job's sources, so it fits a program that
lists them in another order.

A static DataFrame beside streams is read from files that the job has written, all of them in
the first epoch that reads any. A job that starts from a savepoint writes its own files of the
same rows: if the snapshot contains the rows, these files count as read.
"""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast.checkpoint.restore.checks import _static_sources
from holdfast.errors import CheckpointError, RestoreError, UnsupportedSparkError
from holdfast.job.model import FileLog, QueryPosition, SourcePosition
from holdfast.spark.sources.source_log import COMPACT_INTERVAL, VERSION, read_source, write_source

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from holdfast.job.model import JobPlan


VOID: Final = "-"
"""Stands in for an offset that a source does not have yet."""


def source_leaves(frames: Mapping[str, DataFrame]) -> dict[str, tuple[int, ...]]:
    """Indexes of the Spark sources behind the streaming leaves of each DataFrame.

    `frames` are the DataFrames that a query unites, by uid and in that order.
    """
    sources: list[Any] = []
    return {
        uid: tuple(
            _index(sources, leaf) for leaf in _leaves(frame._jdf.queryExecution().analyzed())
        )
        for uid, frame in frames.items()
    }


def capture(
    query_dir: Path,
    leaves: Mapping[str, Sequence[int]],
    batch_id: int,
    since: QueryPosition | None = None,
) -> QueryPosition:
    """The position at the end of `batch_id`, the newest batch that has begun to run.

    With `since`, an earlier position of the same query or the one it started from, logs hold
    only new entries: `join` puts them together. Before the first batch, -1, nothing was read.
    """
    if batch_id < 0:
        return QueryPosition(batch_id, "", {})
    metadata, offsets = _read_offsets(query_dir, batch_id)
    previous: Sequence[str | None] = [None] * len(offsets)
    if batch_id > 0:
        _, previous = _read_offsets(query_dir, batch_id - 1)
    expected = sum(len(indexes) for indexes in leaves.values())
    if not expected == len(offsets) == len(previous):
        raise CheckpointError(
            f"batch {batch_id} in {query_dir} has {len(offsets)} offsets, the one before it "
            f"{len(previous)}, and the job's sources have {expected} streaming leaves; the "
            "numbers must be equal to capture a position"
        )
    bases = _bases(leaves, since)
    order = [index for indexes in leaves.values() for index in indexes]
    # A source that occurs twice has the same offset twice.
    ends = dict(zip(order, zip(offsets, previous, strict=True), strict=True))
    read = {
        index: read_source(query_dir / "sources" / str(index), *ends[index], bases.get(index))
        for index in ends
    }
    sources = {uid: tuple(read[index] for index in indexes) for uid, indexes in leaves.items()}
    return QueryPosition(batch_id, metadata, sources)


def for_sources(
    position: QueryPosition, leaves: Mapping[str, Sequence[int]]
) -> list[SourcePosition]:
    """The positions of Spark's sources by index, for a query with these leaves.

    A source that is not in the position starts at its beginning. The caller decides whether
    a source of the position may be missing.
    """
    found: dict[int, tuple[str, SourcePosition]] = {}
    for uid, indexes in leaves.items():
        known = position.sources.get(uid, (SourcePosition(None),) * len(indexes))
        if len(known) != len(indexes):
            raise RestoreError(
                f"source {uid!r} reads {len(indexes)} streams and read {len(known)} when the "
                "checkpoint was taken, so they cannot be matched; give it another uid to start "
                "it from its beginning"
            )
        for index, source in zip(indexes, known, strict=True):
            other, there = found.setdefault(index, (uid, source))
            if there != source:
                raise RestoreError(
                    f"sources {other!r} and {uid!r} share a stream and stood at different "
                    "offsets of it when the checkpoint was taken; let each read a stream of "
                    "its own"
                )
    return [found[index][1] for index in range(len(found))]


def lay_out(
    directory: Path,
    position: QueryPosition,
    leaves: Mapping[str, Sequence[int]],
    compact_interval: int = COMPACT_INTERVAL,
) -> None:
    """Prepare `directory` for a query that continues with the batch after `position`.

    Logs must be whole (see `join`). `compact_interval` is the session's
    `spark.sql.streaming.fileSource.log.compactInterval`.
    """
    if directory.exists() and any(directory.iterdir()):
        raise RestoreError(f"{directory} is not empty; a query's position needs a fresh directory")
    sources = for_sources(position, leaves)
    for index, source in enumerate(sources):
        write_source(directory / "sources" / str(index), source, compact_interval)
    order = [sources[index] for indexes in leaves.values() for index in indexes]
    if position.batch_id > 0:
        _write_batch(directory, position, position.batch_id - 1, [s.previous for s in order])
    _write_batch(directory, position, position.batch_id, [s.offset for s in order])
    # With the old id, starting this query would stop the one that was captured.
    _write(directory / "metadata", msgspec.json.encode({"id": str(uuid.uuid4())}).decode())


def _index(sources: list[Any], leaf: Any) -> int:
    """The index of `leaf` in Spark: distinct relations, in the order of the plan."""
    for index, source in enumerate(sources):
        if source.equals(leaf):
            return index
    sources.append(leaf)
    return len(sources) - 1


def _leaves(plan: Any) -> Iterator[Any]:
    leaves = plan.collectLeaves()
    for i in range(leaves.size()):
        if leaves.apply(i).isStreaming():
            yield leaves.apply(i)


def _bases(
    leaves: Mapping[str, Sequence[int]], since: QueryPosition | None
) -> dict[int, SourcePosition]:
    known = since.sources if since is not None else {}
    return {
        index: position
        for uid, indexes in leaves.items()
        for index, position in zip(indexes, known.get(uid, ()), strict=False)
    }


def _read_offsets(query_dir: Path, batch_id: int) -> tuple[str, list[str | None]]:
    """The settings line and the offsets of a batch."""
    path = query_dir / "offsets" / str(batch_id)
    try:
        version, metadata, *offsets = path.read_text(encoding="utf-8").split("\n")
    except (FileNotFoundError, ValueError) as error:
        raise CheckpointError(
            f"the offsets of batch {batch_id} are not in {path}: {error}; was Spark's query "
            "directory changed from outside?"
        ) from error
    if version != VERSION:
        raise UnsupportedSparkError(
            f"{path} has the format {version!r}, in which sources cannot be matched to uids; "
            "set spark.sql.streaming.offsetLog.formatVersion=1"
        )
    return metadata, [None if offset == VOID else offset for offset in offsets]


def _write_batch(
    directory: Path, position: QueryPosition, batch_id: int, offsets: list[str | None]
) -> None:
    lines = [VERSION, position.metadata, *(VOID if o is None else o for o in offsets)]
    _write(directory / "offsets" / str(batch_id), "\n".join(lines))
    _write(directory / "commits" / str(batch_id), f"{VERSION}\n{_commit(position.metadata)}")


def _commit(metadata: str) -> str:
    """Spark's record of a finished batch: the watermark, which never goes back."""
    settings = msgspec.json.decode(metadata) if metadata else {}
    watermark = settings.get("batchWatermarkMs", 0)
    return msgspec.json.encode({"nextBatchWatermarkMs": watermark}).decode()


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


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
