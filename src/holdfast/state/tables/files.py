"""Self-describing Parquet files."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from typing_extensions import override

from holdfast.errors import StateError, StoreFullError
from holdfast.state.store.directories import NO_ROOM
from holdfast.state.store.snapshot import Closing

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator
    from pathlib import Path

    Columns = dict[str, pa.Array]
    """Columns of some rows, by name."""
    Digits = dict[str, list[int]]
    """Digits of the decimals in each column that has some (`decimals.py`), in the order of its
    type."""

FORMAT: Final = 2
"""Version of the table format."""
_READ: Final = (1, FORMAT)
"""Formats that are read."""

DIGITS: Final = "digits"
"""Field of the metadata with the digits of decimals."""
_KEY: Final = b"holdfast"
_OTHERWISE: Final = "restore from another savepoint or checkpoint"


class TableFile(Closing):
    """A table in a Parquet file, open for reading."""

    def __init__(self, path: Path) -> None:
        """Open the file and read its metadata.

        Raises:
            StateError: It is missing, truncated or damaged, was not written by Holdfast, or has a
                later format.
        """
        self.path = path
        with readable(path):
            self._file = pq.ParquetFile(path, page_checksum_verification=True)
        try:
            self.about = _about(self._file.schema_arrow.metadata, path)
        except BaseException:
            self.close()
            raise

    @property
    def digits(self) -> Digits | None:
        """Digits of the decimals in its columns; None if they are texts, as in format 1."""
        return None if self.about["format"] == 1 else self.about.get(DIGITS, {})

    def __len__(self) -> int:
        """Number of rows."""
        return int(self._file.metadata.num_rows)

    def parts(self, key_groups: range | None = None) -> Iterator[Columns]:
        """The columns of the rows, a bounded number at a time.

        Args:
            key_groups: Key groups to read; rows of others may be included.
        """
        for number in range(self._file.num_row_groups):
            if key_groups is not None and not self._may_hold(number, key_groups):
                continue
            with readable(self.path):
                table = self._file.read_row_group(number, use_threads=False)
            yield {name: _whole(table.column(name)) for name in table.column_names}

    def rows(self) -> list[dict[str, Any]]:
        """All rows of a small table."""
        with readable(self.path):
            found: list[dict[str, Any]] = self._file.read(use_threads=False).to_pylist()
        return found

    @override
    def close(self) -> None:
        self._file.close()

    def _may_hold(self, row_group: int, key_groups: range) -> bool:
        if not key_groups:
            return False
        metadata = self._file.metadata.row_group(row_group)
        statistics = metadata.column(0).statistics
        if metadata.column(0).path_in_schema != "key_group" or not statistics.has_min_max:
            return True
        return bool(statistics.max >= key_groups.start and statistics.min < key_groups.stop)


def listed_file(directory: Path, table: str) -> Path:
    """Path of a table listed in an index.

    Raises:
        StateError: The path is outside the directory.
    """
    if any(part in ("", ".", "..") for part in table.split("/")) or "\\" in table:
        raise StateError(
            f"{directory}: the index lists a table {table!r}, a name that leads elsewhere; it was "
            f"not written by Holdfast. {_OTHERWISE.capitalize()}"
        )
    return directory / f"{table}.parquet"


def write_table(
    path: Path, schema: pa.Schema, about: dict[str, Any], parts: Iterable[Columns]
) -> int:
    """Write a table; return the number of its rows.

    Args:
        path: Path of the new file.
        schema: Columns of the table.
        about: Metadata of the file.
        parts: The columns, in parts; each becomes a row group. A column that a part does not
            have is null there.

    Raises:
        StoreFullError: The disk is full.
        StateError: The file cannot be written.
    """
    described = schema.with_metadata({_KEY: msgspec.json.encode({"format": FORMAT} | about)})
    rows = 0
    with _writable(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with pq.ParquetWriter(
            path,
            described,
            compression="zstd",
            # Dictionary encoding may merge different bit patterns of a number.
            use_dictionary=False,
            write_page_checksum=True,
        ) as writer:
            for columns in parts:
                table = _table(columns, described)
                writer.write_table(table, row_group_size=max(1, len(table)))
                rows += len(table)
    return rows


class TableColumns(Protocol):
    """The columns of a table of state; the first values may decide their types."""

    def schema(self, wanted: Collection[str]) -> pa.Schema:
        """Schema of the table, with the wanted optional columns."""

    def digits(self) -> Digits:
        """Digits of the decimals in its columns."""


def write_growing_table(
    path: Path, columns: TableColumns, about: dict[str, Any], parts: Iterator[Columns]
) -> int:
    """Write a table whose later parts may need more columns; return the number of its rows.

    The columns of a file are fixed when its first part is written. If a part needs more, which
    is rare, the file is begun anew, and the parts in it are copied.

    Args:
        path: Path of the new file.
        columns: Columns of the table.
        about: Metadata of the file, without the digits of decimals.
        parts: The columns, in parts, each with the optional columns that it needs.

    Raises:
        StoreFullError: The disk is full.
        StateError: The file cannot be written.
    """
    earlier = path.with_name(f"{path.name}.earlier")
    part, wanted = next(parts, None), set[str]()

    def fitting() -> Iterator[Columns]:
        nonlocal part
        if earlier.exists():
            with TableFile(earlier) as file:
                yield from file.parts()
        while part is not None and wanted.issuperset(part):
            yield part
            part = next(parts, None)

    while True:
        wanted.update(part or ())
        schema, digits = columns.schema(wanted), columns.digits()
        own = about | {DIGITS: digits} if digits else about
        rows = write_table(path, schema, own, fitting())
        earlier.unlink(missing_ok=True)
        if part is None:
            return rows
        path.rename(earlier)


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Translate errors of reading a file.

    Raises:
        StateError: The file cannot be read.
    """
    try:
        yield
    except FileNotFoundError as error:
        raise StateError(
            f"{path}: this table of a savepoint is not there; it was never completed, or was "
            f"removed. {_OTHERWISE.capitalize()}"
        ) from error
    except (pa.ArrowException, OSError, ValueError) as error:
        raise StateError(
            f"{path}: this is no whole table of a savepoint ({error}); it was cut off or damaged, "
            f"or is another file. {_OTHERWISE.capitalize()}"
        ) from error


@contextmanager
def _writable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        kind = StoreFullError if error.errno in NO_ROOM else StateError
        raise kind(
            f"{path}: the table cannot be written ({error}); free space on the disk, or set "
            "`state.local-dir` to a larger one, and try again"
        ) from error


def _about(metadata: dict[bytes, bytes] | None, path: Path) -> dict[str, Any]:
    try:
        about = msgspec.json.decode((metadata or {})[_KEY])
        number = about["format"]
    except (KeyError, TypeError, UnicodeDecodeError, msgspec.DecodeError) as error:
        raise StateError(
            f"{path}: this is a Parquet file, and not a table of a savepoint: it does not say "
            f"under {_KEY.decode()!r} what is in it. If another program has rewritten it, "
            f"let that keep the metadata of the file; else {_OTHERWISE}"
        ) from error
    if number not in _READ:
        raise StateError(
            f"{path}: the table has format {number}, and this release reads the formats "
            f"{' and '.join(map(str, _READ))} only; run the release that wrote it"
        )
    found: dict[str, Any] = about
    return found


def _table(columns: Columns, schema: pa.Schema) -> pa.Table:
    count = len(next(iter(columns.values())))
    arrays = [
        columns[field.name] if field.name in columns else pa.nulls(count, field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
