"""Runs a FileSink as a job would, and reads its files as anybody would."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, cast

import fsspec
import msgspec
import pyarrow as pa
from pyarrow import csv, dataset

from holdfast.api.sinks import CommitRequest, WriterContext
from holdfast.serde.factory import codec_for

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.api.functions import RuntimeContext
    from holdfast.connectors.files.sink import FileSink

NO_RUNTIME = cast("RuntimeContext", None)
PYTHON_TYPES: dict[pa.DataType, Any] = {
    pa.string(): str,
    pa.int64(): int,
    pa.int8(): int,
    pa.float64(): float,
    pa.bool_(): bool,
    pa.date32(): date,
    pa.timestamp("us", "UTC"): datetime,
    pa.timestamp("us"): datetime,
    pa.decimal128(20, 2): Decimal,
}


def context(schema: pa.Schema, **given: Any) -> WriterContext:
    """What a writer is told: the first epoch of subtask 0, unless something else is given."""
    told = {
        "job_id": "job",
        "uid": "files",
        "job_attempt": "inc-1",
        "epoch": 1,
        "subtask": 0,
        "parallelism": 2,
        "attempt_id": 0,
        "checkpoint_id": 1,
        "exactly_once": True,
        "runtime": NO_RUNTIME,
    }
    return WriterContext(schema=schema, **{**told, **given})


def stage(sink: FileSink, rows: Iterable[pa.RecordBatch], **given: Any) -> list[Any]:
    """Committables of one epoch, as a checkpoint gives them back."""
    batches = list(rows)
    writer = sink.create_writer(context(batches[0].schema, **given))
    for batch in batches:
        writer.write_rows(batch)
    writer.flush()
    codec = codec_for(sink.committable_type)
    committables = [codec.decode(codec.encode(each)) for each in writer.prepare_commit()]
    writer.close()
    return committables


def commit(sink: FileSink, committables: Iterable[Any], **given: Any) -> list[CommitRequest]:
    """Publish; what became of each."""
    told = {
        "job_id": "job",
        "lineage": "lineage",
        "uid": "files",
        "checkpoint_id": 1,
        "epoch": 1,
        "subtask": 0,
        "recovered": False,
    }
    requests = [CommitRequest(each, **{**told, **given}) for each in committables]
    committer = sink.create_committer(NO_RUNTIME)
    committer.commit(requests)
    committer.close()
    return requests


def publish(sink: FileSink, rows: Iterable[pa.RecordBatch], **given: Any) -> None:
    """Stage and commit one epoch."""
    commit(sink, stage(sink, rows, **given))


def clean_up(sink: FileSink, job_attempt: str, job_id: str = "job") -> None:
    """Let the sink remove what it may."""
    sink.create_committer(NO_RUNTIME).clean_up(job_id, "files", job_attempt)


def all_files(sink: FileSink) -> list[str]:
    """Every file below the sink's directory, hidden or not, relative to it."""
    fs, root = fsspec.core.url_to_fs(sink.path)
    fs.invalidate_cache()
    return sorted(path[len(root.rstrip("/")) + 1 :] for path in fs.find(root))


def visible_files(sink: FileSink) -> list[str]:
    """The files that a reader sees, relative to the sink's directory."""
    return [
        path
        for path in all_files(sink)
        if not any(part.startswith((".", "_")) for part in path.split("/"))
    ]


def read_as_dataset(sink: FileSink) -> pa.Table:
    """The rows that pyarrow, with its own defaults, sees in Parquet files."""
    fs, root = fsspec.core.url_to_fs(sink.path)
    return dataset.dataset(root, filesystem=fs, format="parquet", partitioning="hive").to_table()


def read_texts(sink: FileSink, schema: pa.Schema) -> list[dict[str, Any]]:
    """The rows of all visible JSON or CSV files of a local sink without partitions."""
    read = {"json": _read_json, "csv": _read_csv}[sink.format]
    return [row for name in visible_files(sink) for row in read(text_of(sink, name), schema)]


def text_of(sink: FileSink, name: str) -> bytes:
    """Content of a file of a local sink; how it is compressed is told by its name."""
    with pa.input_stream(f"{sink.path}/{name}", compression="detect") as file:
        return bytes(file.read())


def _read_json(text: bytes, schema: pa.Schema) -> list[dict[str, Any]]:
    fields = [(field.name, PYTHON_TYPES[field.type] | None, None) for field in schema]
    row = msgspec.defstruct("Row", fields)
    return [msgspec.structs.asdict(each) for each in msgspec.json.Decoder(row).decode_lines(text)]


def _read_csv(text: bytes, schema: pa.Schema) -> list[dict[str, Any]]:
    convert = csv.ConvertOptions(
        column_types=schema, strings_can_be_null=True, quoted_strings_can_be_null=False
    )
    parse = csv.ParseOptions(newlines_in_values=True)
    table = csv.read_csv(pa.BufferReader(text), parse_options=parse, convert_options=convert)
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows
