"""`FileSink`: writes every row to exactly one file, and shows only whole files.

    <path>/[day=2026-01-01/...]part-<unique>.parquet         published
    <path>/.holdfast/<job>/<uid>/<job attempt>/<unique>      staged

Readers ignore names that begin with a dot, so they never see a staged file. The final name
of a file is chosen when it is staged: publishing it twice cannot make two files.
"""

from __future__ import annotations

import logging
import re
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import xxhash

from holdfast._faults import fault_point
from holdfast.api.sinks import Committer, Sink
from holdfast.connectors.files.directory import absolute, open_sink_directory
from holdfast.connectors.files.formats import FORMATS, file_format
from holdfast.connectors.files.partitions import HivePartitioning, check_partitioning
from holdfast.connectors.files.writer import FileNames, FileWriter, StagedFiles
from holdfast.errors import ConfigurationError, SinkError

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    import pyarrow as pa

    from holdfast.api.functions import RuntimeContext
    from holdfast.api.sinks import CommitRequest, SinkWriter, WriterContext
    from holdfast.connectors.files.writer import StagedFile
    from holdfast.storage.files import Directory

STAGING: Final = ".holdfast"
"""Directory of staged files, within that of the sink."""

_MAX_FILE_BYTES: Final = 128 * 1024 * 1024
_PREFIX: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_LONGEST_PART: Final = 100
_NAMED: Final = 10
"""Number of files that a message names."""

logger = logging.getLogger("holdfast")


class FileSink(Sink):
    """Writes rows to Parquet, JSON or CSV files, in Hive's layout of directories.

    Readers that ignore names beginning with `_` or `.`, as Spark, Hive, pyarrow and pandas
    do, see only whole files, and each row once: with exactly once when the checkpoint that
    contains it is complete, otherwise at the end of its epoch. An epoch without rows makes
    no file. After a change of `path`, committables of the old path in a checkpoint are still
    published there.

    The columns of `partition_by` name directories and are not in the files. Null and the
    empty string share a directory, and timestamps with a zone are written in UTC, as Spark does
    in a UTC session. For the values in each format see `holdfast.connectors.files.formats`.

    Args:
        path: A directory, or a URL for fsspec.
        format: "parquet", "json" (one object per line) or "csv".
        partition_by: Columns that name the directories of rows, outermost first.
        storage_options: For fsspec's file system: credentials, endpoints.
        compression: Parquet: snappy (the default), zstd, gzip, lz4, brotli or none. Others:
            none (the default), gzip, bz2 or zstd.
        max_file_bytes: Approximate size at which a new file is started.
        prefix: Prefix of the names of files.

    Raises:
        ConfigurationError: An argument is wrong.

    Example:
        >>> FileSink("/data/orders", "parquet", partition_by=["day"])
        FileSink('/data/orders', 'parquet')
    """

    committable_type = StagedFiles
    takes_rows = True

    def __init__(
        self,
        path: str | os.PathLike[str],
        format: str = "parquet",
        *,
        partition_by: Sequence[str] = (),
        storage_options: Mapping[str, Any] | None = None,
        compression: str | None = None,
        max_file_bytes: int = _MAX_FILE_BYTES,
        prefix: str = "part",
    ) -> None:
        self.path = absolute(path)
        self.format = file_format(format).name
        self.compression = file_format(format).checked_compression(compression)
        self.partition_by = (partition_by,) if isinstance(partition_by, str) else (*partition_by,)
        self.max_file_bytes = max_file_bytes
        self.prefix = prefix
        self._storage_options = dict(storage_options or {})
        self._check_arguments()

    @classmethod
    def for_bulk_format(
        cls, path: str | os.PathLike[str], format: str = "parquet", **options: Any
    ) -> FileSink:
        """A sink for a bulk format, which is written many rows at a time: "parquet".

        Args:
            path: A directory, or a URL for fsspec.
            format: The format.
            options: Further arguments of `FileSink`.
        """
        return cls(path, _of_kind(format, bulk=True), **options)

    @classmethod
    def for_row_format(
        cls, path: str | os.PathLike[str], format: str = "json", **options: Any
    ) -> FileSink:
        """A sink for a row format, which is written row by row: "json" or "csv".

        The arguments are those of `for_bulk_format`.
        """
        return cls(path, _of_kind(format, bulk=False), **options)

    def __repr__(self) -> str:
        return f"FileSink({self.path!r}, {self.format!r})"

    def check(self, schema: pa.Schema) -> None:
        """Raise ConfigurationError if the rows or the storage cannot be used."""
        if not schema.names:
            raise ConfigurationError("rows without columns cannot be written to files")
        check_partitioning(self.partition_by, schema)
        file_format(self.format).check(HivePartitioning(self.partition_by, schema).file_schema)
        open_sink_directory(self.path, self._storage_options)

    def create_writer(self, context: WriterContext) -> SinkWriter:
        """A writer, which creates no file before it has a row."""
        form = file_format(self.format)
        return FileWriter(
            storage=open_sink_directory(self.path, self._storage_options),
            names=self._names(context, form.suffixes[self.compression]),
            file_format=form,
            compression=self.compression,
            partitioning=HivePartitioning(self.partition_by, context.schema),
            max_file_bytes=self.max_file_bytes,
        )

    def create_committer(self, runtime: RuntimeContext) -> Committer:
        """A committer, which publishes files by the names they were staged with."""
        return FileCommitter(self.path, self._storage_options)

    def _names(self, context: WriterContext, suffix: str) -> FileNames:
        # Another sink, or another job, may write to the same directory in the same task.
        owner = xxhash.xxh3_64_hexdigest(f"{context.job_id}/{context.uid}".encode())
        unique = _file_safe(context.unique_name)
        return FileNames(
            staging=f"{_staging(context.job_id, context.uid)}/{_file_safe(context.job_attempt)}",
            staged=unique,
            published=f"{self.prefix}-{owner}-{unique}",
            suffix=suffix,
        )

    def _check_arguments(self) -> None:
        if len(set(self.partition_by)) != len(self.partition_by):
            raise ConfigurationError(
                f"partition_by names a column twice: {', '.join(self.partition_by)}; leave one out"
            )
        if self.max_file_bytes < 1:
            raise ConfigurationError(
                f"max_file_bytes is {self.max_file_bytes}; give the number of bytes after which "
                "another file is begun"
            )
        if not _PREFIX.fullmatch(self.prefix):
            raise ConfigurationError(
                f"prefix is {self.prefix!r}; use letters, digits, `.`, `_` and `-`, and begin with "
                "a letter or digit: readers ignore names that begin with `.` or `_`"
            )


class FileCommitter(Committer):
    """Publishes the staged files that the committables list.

    Args:
        path: The sink's directory.
        storage_options: For its file system, and for those of earlier paths.
    """

    def __init__(self, path: str, storage_options: Mapping[str, Any]) -> None:
        self._path = path
        self._storage_options = storage_options
        self._directories: dict[str, Directory] = {}

    def commit(self, requests: Sequence[CommitRequest]) -> None:
        """Publish all files; files that were published before stay unchanged.

        Raises:
            SinkError: Storage failed, or a file is not the one that was staged.
        """
        number = 0
        for request in requests:
            storage = self._storage(request.committable.root)
            found: list[_Found] = []
            for file in request.committable.files:
                if number:
                    fault_point(
                        "during-publish",
                        uid=request.uid,
                        checkpoint=request.checkpoint_id,
                        subtask=request.subtask,
                        file=number,
                    )
                found.append(_publish(storage, file, may_be_published=_may_be_published(request)))
                number += 1
            # Also files that were published before: that process may have died before the sync.
            storage.sync(file.final for file in request.committable.files)
            missing = [
                f"{storage.root}/{file.final}"
                for file, state in zip(request.committable.files, found, strict=True)
                if state is _Found.NOWHERE
            ]
            if missing:
                _warn_of_missing(missing, request)
            if _Found.STAGED not in found:
                request.signal_already_committed()

    def clean_up(self, job_id: str, uid: str, job_attempt: str) -> None:
        """Delete the staged files of earlier job attempts, and directories that are empty then."""
        storage, own = self._storage(self._path), _staging(job_id, uid)
        there = storage.entries(own)
        for name in there:
            # Job attempts of a driver that has taken over begin with a higher fence.
            if name != _file_safe(job_attempt) and _fence(name) <= _fence(job_attempt):
                storage.delete_tree(f"{own}/{name}")
        if _file_safe(job_attempt) not in there:
            storage.delete_if_empty(own)
            storage.delete_if_empty(own.rpartition("/")[0])
            storage.delete_if_empty(STAGING)

    def _storage(self, root: str) -> Directory:
        if root not in self._directories:
            self._directories[root] = open_sink_directory(root, self._storage_options)
        return self._directories[root]


def _may_be_published(request: CommitRequest) -> bool:
    return request.recovered or request.retries > 0


class _Found(Enum):
    """Where a file was before it was published."""

    STAGED = auto()
    PUBLISHED = auto()
    NOWHERE = auto()


def _warn_of_missing(missing: list[str], request: CommitRequest) -> None:
    """Say which files are gone, since a reader that took them cannot be told from a loss."""
    more = len(missing) - _NAMED
    logger.warning(
        "sink %r, subtask %d: of the output of checkpoint %d, %d files are neither staged nor "
        "published: %s. If something has moved or deleted them since they were published, all is "
        "well. Otherwise they are lost: let nothing else delete files in %s",
        request.uid,
        request.subtask,
        request.checkpoint_id,
        len(missing),
        ", ".join(missing[:_NAMED]) + (f" and {more} more" if more > 0 else ""),
        STAGING,
    )


def _publish(storage: Directory, file: StagedFile, *, may_be_published: bool) -> _Found:
    """Publish one file; returns where it was."""
    staged, final = storage.size(file.staged), storage.size(file.final)
    where = f"{storage.root}/{file.final}"
    if staged is None:
        # Published files belong to the readers: they may have moved it.
        if final is None and not may_be_published:
            raise SinkError(
                f"{where}: {file.rows} rows were staged in {file.staged}, and that file is gone; "
                f"let nothing else delete files in {STAGING}"
            )
        return _Found.NOWHERE if final is None else _Found.PUBLISHED
    if staged != file.size:
        raise SinkError(
            f"{where}: {file.size} bytes were staged in {file.staged}, and {staged} are there; "
            "the storage has lost some: restore from an earlier checkpoint"
        )
    if final is None:
        storage.move(file.staged, file.final, file.size)
    elif final == file.size:
        # It was copied; only the staged file is left to delete.
        storage.delete(file.staged)
    else:
        raise SinkError(
            f"{where}: a file of {final} bytes is where one of {file.size} is to be published; "
            "move it away, and start the job again"
        )
    return _Found.STAGED


def _of_kind(name: str, *, bulk: bool) -> str:
    if file_format(name).bulk is not bulk:
        fitting = ", ".join(each for each, form in FORMATS.items() if form.bulk is bulk)
        other = "for_row_format" if bulk else "for_bulk_format"
        raise ConfigurationError(
            f"{name} is no {'bulk' if bulk else 'row'} format; use {other}, or {fitting}"
        )
    return name


def _fence(job_attempt: str) -> int:
    """The number that the name of a job attempt begins with."""
    number = job_attempt.partition("-")[0]
    return int(number) if number.isdecimal() else 0


def _staging(job_id: str, uid: str) -> str:
    return f"{STAGING}/{_file_safe(job_id)}/{_file_safe(uid)}"


def _file_safe(name: str) -> str:
    """A file name that is unique for `name`."""
    safe = quote(name, safe="").replace(".", "%2E").replace("~", "%7E")
    if len(safe) <= _LONGEST_PART:
        return safe
    return f"{safe[: _LONGEST_PART - 17]}~{xxhash.xxh3_64_hexdigest(name.encode())}"
