"""What tests of PostgresSink share: checkpoint storage, staging, committing, and a server."""

from __future__ import annotations

import json
import pickle
from itertools import count
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from holdfast.api.sinks import CommitRequest, StagedRows, WriterContext
from holdfast.connectors.postgres.sink import PostgresSink

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from holdfast.api.functions import RuntimeContext
    from tests.support.postgres import PostgresServer

SCHEMA = pa.schema([("user", pa.string()), ("n", pa.int64())])
NO_RUNTIME: RuntimeContext = None  # type: ignore[assignment]  # PostgresSink asks it nothing
numbers = count()


class _Rows:
    def __init__(self, kept: dict[str, list[pa.RecordBatch]], name: str) -> None:
        self._kept, self._name, self._rows = kept, name, list[pa.RecordBatch]()

    def write(self, rows: pa.RecordBatch) -> None:
        self._rows.append(rows)

    def close(self) -> StagedRows:
        assert self._name not in self._kept, "names are unique"
        self._kept[self._name] = self._rows
        return StagedRows(self._name, sum(batch.num_rows for batch in self._rows), 0)

    def abort(self) -> None:
        self._rows.clear()


class MemoryStaging:
    """Checkpoint storage of one test."""

    def __init__(self) -> None:
        self.kept: dict[str, list[pa.RecordBatch]] = {}

    def open(self, name: str, schema: pa.Schema) -> _Rows:
        return _Rows(self.kept, name)

    def put(self, name: str, rows: Iterable[pa.RecordBatch], schema: pa.Schema) -> StagedRows:
        writer = self.open(name, schema)
        for batch in rows:
            writer.write(batch)
        return writer.close()

    def get(self, staged: StagedRows) -> Iterator[pa.RecordBatch]:
        return iter(self.kept[staged.handle])

    def note(self, name: str, data: bytes) -> None:
        raise AssertionError("the sink opens nothing that would be noted")


def batch(rows: Iterable[tuple[Any, ...]], schema: pa.Schema = SCHEMA) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        [dict(zip(schema.names, row, strict=True)) for row in rows], schema=schema
    )


def writer_context(
    schema: pa.Schema, staging: MemoryStaging | None, subtask: int = 0
) -> WriterContext:
    return WriterContext(
        job_id="job",
        uid="sink",
        job_attempt="inc",
        epoch=1,
        subtask=subtask,
        parallelism=2,
        attempt_id=next(numbers),
        checkpoint_id=1,
        exactly_once=staging is not None,
        schema=schema,
        runtime=NO_RUNTIME,
        staging=staging,
    )


def staged(
    sink: PostgresSink,
    *batches: pa.RecordBatch,
    checkpoint: int = 1,
    epoch: int = 1,
    subtask: int = 0,
    lineage: str = "lineage",
    uid: str = "sink",
    retries: int = 0,
) -> CommitRequest:
    """What becomes of an epoch's rows when a writer has staged them."""
    staging = MemoryStaging()
    context = writer_context(batches[0].schema, staging, subtask)
    writer = sink.create_writer(context)
    for rows in batches:
        writer.write_rows(rows)
    writer.flush()
    (committable,) = writer.prepare_commit()
    writer.close()
    return CommitRequest(
        pickle.loads(pickle.dumps(committable)),
        job_id="job",
        lineage=lineage,
        uid=uid,
        checkpoint_id=checkpoint,
        epoch=epoch,
        subtask=subtask,
        recovered=False,
        retries=retries,
        staging=staging,
    )


def commit(sink: PostgresSink, *requests: CommitRequest) -> list[str]:
    """Outcomes of publishing requests together."""
    committer = pickle.loads(pickle.dumps(sink)).create_committer(NO_RUNTIME)
    for request in requests:
        request.outcome = "done"
    try:
        committer.commit(requests)
    finally:
        committer.close()
    return [request.outcome for request in requests]


def publish(url: str, table: str, arguments: str) -> None:
    """Stage and commit a row; called in a process that is killed meanwhile."""
    sink = PostgresSink(url, table)
    commit(sink, staged(sink, batch([("a", 1)]), **json.loads(arguments)))


def in_log(db: PostgresServer) -> list[tuple[Any, ...]]:
    return db.execute("SELECT * FROM log ORDER BY 1, 2")
