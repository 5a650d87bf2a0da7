"""Writes the rows of one epoch on one subtask into staged files."""

from __future__ import annotations

import io
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import pyarrow as pa

from holdfast.api.sinks import SinkWriter
from holdfast.connectors.files.directory import SINK_ERRORS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from holdfast.connectors.files.formats import FileFormat, RowsEncoder
    from holdfast.connectors.files.partitions import HivePartitioning
    from holdfast.storage.files import Directory

MAX_OPEN_FILES: Final = 64
"""Most open files of one writer; the least recently used one is closed for another."""

_GROUP_BYTES: Final = 16 * 1024 * 1024
_WAITING_BYTES: Final = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class StagedFile:
    """One file that waits to be published; names are relative to the sink's directory."""

    staged: str
    final: str
    size: int
    """Length in bytes."""
    rows: int


@dataclass(frozen=True, slots=True)
class StagedFiles:
    """All files that one writer has staged in one epoch; they are published together."""

    root: str
    """The sink's directory, without secrets."""
    files: tuple[StagedFile, ...]


@dataclass(frozen=True, slots=True)
class FileNames:
    """Names of a writer's files, unique to it."""

    staging: str
    """Directory of staged files."""
    staged: str
    """Prefix of their names."""
    published: str
    """Prefix of the names of published files."""
    suffix: str
    """Suffix of the names of published files."""

    def pair(self, directory: str, number: int) -> tuple[str, str]:
        """Names of one file, staged and published."""
        # Without the suffix: readers that search all directories for it find nothing.
        final = f"{self.published}-{number}{self.suffix}"
        return (
            f"{self.staging}/{self.staged}-{number}",
            f"{directory}/{final}" if directory else final,
        )


class FileWriter(SinkWriter):
    """Writes one staged file per partition, which readers do not see.

    Args:
        storage: Where files are staged.
        names: Names of its files.
        file_format: Format of the files.
        compression: A compression of the format.
        partitioning: Splits rows into directories.
        max_file_bytes: Approximate size at which a new file is started.
    """

    def __init__(
        self,
        storage: Directory,
        names: FileNames,
        file_format: FileFormat,
        compression: str,
        partitioning: HivePartitioning,
        max_file_bytes: int,
    ) -> None:
        self._storage = storage
        self._names = names
        self._format = file_format
        self._compression = compression
        self._partitioning = partitioning
        self._max_file_bytes = max_file_bytes
        self._group_bytes = min(_GROUP_BYTES, max_file_bytes)
        self._open: OrderedDict[str, _OpenFile] = OrderedDict()
        self._created: list[str] = []
        self._staged: list[StagedFile] = []

    def write_rows(self, rows: pa.RecordBatch) -> None:
        """Buffer rows; they are written when a file, or all files, have enough."""
        if rows.num_rows == 0:
            return
        for directory, part in self._partitioning.split(rows):
            for piece in _pieces(part, self._group_bytes):
                self._add(directory, piece)

    def prepare_commit(self) -> Sequence[StagedFiles]:
        """Close all files, durably; returns one committable, or none without rows."""
        for directory in list(self._open):
            self._close(directory)
        if not self._staged:
            return ()
        self._storage.sync(file.staged for file in self._staged)
        return (StagedFiles(self._storage.root, tuple(self._staged)),)

    def abort(self) -> None:
        """Remove every file that was staged."""
        self.close()
        for name in self._created:
            # A file that cannot be deleted now stays hidden, and is cleaned up later.
            with suppress(Exception):
                self._storage.delete(name)
        self._created.clear()
        self._staged.clear()

    def close(self) -> None:
        """Close files that are still open."""
        while self._open:
            self._open.popitem()[1].drop()

    def _add(self, directory: str, rows: pa.RecordBatch) -> None:
        file = self._file(directory)
        file.add(rows)
        if file.waiting_bytes >= self._group_bytes:
            self._flush(directory, file)
        elif sum(each.waiting_bytes for each in self._open.values()) > _WAITING_BYTES:
            fullest = max(self._open.items(), key=lambda item: item[1].waiting_bytes)
            self._flush(*fullest)

    def _flush(self, directory: str, file: _OpenFile) -> None:
        file.flush()
        if file.written >= self._max_file_bytes:
            self._close(directory)

    def _file(self, directory: str) -> _OpenFile:
        if directory in self._open:
            self._open.move_to_end(directory)
            return self._open[directory]
        if len(self._open) >= MAX_OPEN_FILES:
            self._close(next(iter(self._open)))
        staged, final = self._names.pair(directory, len(self._created))
        # Recorded first, so that a partly created file is deleted too.
        self._created.append(staged)
        stream = self._storage.create(staged)
        self._open[directory] = file = _OpenFile(staged, final, stream)
        file.begin(self._format, self._partitioning.file_schema, self._compression)
        return file

    def _close(self, directory: str) -> None:
        file = self._open[directory]
        file.finish()
        self._storage.finish(file.staged, file.stream, file.written)
        del self._open[directory]
        self._staged.append(StagedFile(file.staged, file.final, file.written, file.rows))


class _OpenFile:
    def __init__(self, staged: str, final: str, stream: BinaryIO) -> None:
        self.staged = staged
        self.final = final
        self.stream = stream
        self.rows = 0
        self.waiting_bytes = 0
        self._waiting: list[pa.RecordBatch] = []
        self._content = _Content(stream)
        self._encoder: RowsEncoder | None = None

    @property
    def written(self) -> int:
        return self._content.written

    def begin(self, file_format: FileFormat, schema: pa.Schema, compression: str) -> None:
        with SINK_ERRORS.translated("writing", self.staged):
            self._encoder = file_format.encoder(self._content, schema, compression)

    def add(self, rows: pa.RecordBatch) -> None:
        self._waiting.append(rows)
        self.waiting_bytes += rows.nbytes
        self.rows += rows.num_rows

    def flush(self) -> None:
        assert self._encoder is not None
        if self._waiting:
            with SINK_ERRORS.translated("writing", self.staged):
                self._encoder.write(pa.Table.from_batches(self._waiting))
            self._waiting, self.waiting_bytes = [], 0

    def finish(self) -> None:
        assert self._encoder is not None
        self.flush()
        with SINK_ERRORS.translated("writing", self.staged):
            self._encoder.finish()

    def drop(self) -> None:
        # An unfinished encoder writes to its stream when it is deleted.
        self._content.drop()
        with suppress(Exception):
            self.stream.close()


class _Content(io.RawIOBase, BinaryIO):
    """Counts the bytes written; closing it leaves the stream open."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream: BinaryIO | None = stream
        self.written = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        length = memoryview(data).nbytes
        if self._stream is not None:
            self._stream.write(data)
            self.written += length
        return length

    def drop(self) -> None:
        self._stream = None


def _pieces(rows: pa.RecordBatch, size: int) -> Iterator[pa.RecordBatch]:
    """Rows in pieces of about `size` bytes."""
    count = max(1, rows.num_rows * size // max(1, rows.nbytes))
    for start in range(0, rows.num_rows, count):
        yield rows.slice(start, count)
