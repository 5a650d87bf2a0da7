"""Store in a memory-mapped LMDB file, at memory speed.

The file has three tables: the unnamed one with the store's record, `entries`, and `long` for
entries with keys that are too long for LMDB (see `LongKeys`).
"""

from __future__ import annotations

from collections import deque
from heapq import merge
from itertools import takewhile
from struct import error as StructError
from typing import TYPE_CHECKING, Final

import lmdb
from typing_extensions import override

from holdfast.state.store.header import (
    checked_version,
    corrupt_store,
    encode_record,
    missing_store,
    unusable_store,
)
from holdfast.state.store.lmdb_file import (
    DAMAGE,
    LONGEST_KEY,
    PAGE,
    SMALLEST,
    LongKeys,
    compact,
    copy_compacted,
    first_file,
    grow,
    newest_file,
    open_environment,
    open_read_only,
    take_over,
    translated_errors,
)
from holdfast.state.store.protocol import StateStore, StoreStatistics
from holdfast.state.store.snapshot import (
    ReadOnlySnapshot,
    missing_snapshot,
    new_snapshot,
    recorded_origin,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from holdfast.errors import StoreError
    from holdfast.state.store.lock import StoreLock

COMPACT_FROM: Final = 64 * 1024 * 1024
"""File size from which mostly free files are compacted."""
RECLAIM_FROM: Final = 2 * SMALLEST
"""File size from which `reclaim` compacts mostly free files."""

_DOUBLE_BELOW: Final = 64 * 1024 * 1024
_RECORD: Final = b"holdfast"


class LmdbStore(StateStore):
    """A store in a memory-mapped file, open for one epoch at a time."""

    def __init__(
        self,
        directory: Path,
        expected: str | None,
        lock: StoreLock,
        copy_of: Path | None = None,
        *,
        compact_from: int = COMPACT_FROM,
    ) -> None:
        """Open the store in a locked directory; call `open_store` instead."""
        if copy_of is not None:
            take_over(_file_of(copy_of), directory)
        self._adopted = copy_of is not None
        """Whether the store has the version of a snapshot, whatever that is."""
        self._usually_compact_from = compact_from
        super().__init__(directory, expected, lock)
        self._adopted = False

    @override
    def _open_files(self, expected: str | None) -> None:
        directory = self._directory
        path = newest_file(directory)
        if path is None and expected is not None:
            raise missing_store(expected, directory)
        self._path = self.place = path or first_file(directory)
        self._compact_from = self._usually_compact_from
        self._environment = open_environment(self._path)
        try:
            with translated_errors(self._path):
                self._read_tables(directory, expected)
        except BaseException:
            self._environment.close()
            raise

    def _read_tables(self, directory: Path, expected: str | None) -> None:
        environment = self._environment
        with environment.begin() as transaction:
            record = transaction.get(_RECORD)
        self.version = (
            recorded_origin(record, directory)[0]
            if self._adopted
            else checked_version(record, expected, directory)
        )
        self._size = environment.info()["map_size"]
        # A killed process leaves its slot in LMDB's reader table, which would
        # keep pages from being used again for as long as another process reads the file.
        environment.reader_check()
        if self.version is None:
            # Before the first commit, the allocated size of the file is unknown.
            self._size = grow(environment, self._path, 0, max(SMALLEST, self._size))
        self._record_table = environment.open_db()
        self._entry_table = environment.open_db(b"entries")
        long_table = environment.open_db(b"long")
        self._long = LongKeys(long_table)
        self._snapshot = environment.begin(db=self._entry_table)
        self._get = self._snapshot.get
        self._entries = self._snapshot.stat(self._entry_table)["entries"]
        self._long_entries = self._snapshot.stat(long_table)["entries"]
        self._tables = (self._record_table, self._entry_table, long_table)

    @override
    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        self._require_open()
        if self._long_entries and max(map(len, keys), default=0) > LONGEST_KEY:
            return self._buffer.overlay(keys, list(map(self._committed, keys)))
        try:
            committed = list(map(self._get, keys))
        except lmdb.BadValsizeError:
            committed = list(map(self._committed, keys))
        except lmdb.Error as error:
            raise self._unreadable(error) from error
        return self._buffer.overlay(keys, committed)

    @override
    def scan(self, prefix: bytes, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        self._require_open()
        long = self._long if self._long_entries else None
        committed = _entries(self._snapshot, self._entry_table, long, prefix, start)
        return self._buffer.merge(prefix, self._readable(committed), start)

    def _readable(self, entries: Iterator[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
        try:
            yield from entries
        except (lmdb.Error, StructError) as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: Exception) -> StoreError:
        damaged = isinstance(error, (*DAMAGE, StructError))
        return (corrupt_store if damaged else unusable_store)(self.place, error)

    def reclaim(self, prefix: bytes) -> None:
        """Compact the file at the commit if it is mostly free, even if it is small."""
        self._compact_from = RECLAIM_FROM

    @override
    def _commit(self, version: str, snapshot: Path | None) -> StoreStatistics:
        with translated_errors(self._path):
            entries, used = self._write(version)
        path = self._path
        if self._is_mostly_free(used):
            path = compact(self._environment, path)
        if snapshot is not None:
            with new_snapshot(snapshot, version) as aside:
                aside.mkdir()
                copy_compacted(self._environment, first_file(aside))
        return StoreStatistics(entries, path.stat().st_size)

    @override
    def _statistics(self) -> StoreStatistics:
        entries = self._entries + self._long_entries
        return StoreStatistics(entries, self._path.stat().st_size)

    @override
    def _close(self) -> None:
        self._snapshot.abort()
        self._environment.close()

    @override
    def _committed(self, key: bytes) -> bytes | None:
        try:
            if 0 < len(key) <= LONGEST_KEY:
                return self._get(key)
            return self._long.get(self._snapshot, key) if key else None
        except (lmdb.Error, StructError) as error:
            raise self._unreadable(error) from error

    def _write(self, version: str) -> tuple[int, int]:
        """Write all changes; return the number of entries and of used pages."""
        self._snapshot.abort()
        keys = self._buffer.in_order()
        if len(keys) > self._entries:
            self._reserve(keys)
        while True:
            try:
                with self._environment.begin(write=True, db=self._entry_table) as transaction:
                    self._apply(transaction, keys)
                    transaction.put(_RECORD, encode_record(version), db=self._record_table)
                    tables = [transaction.stat(table) for table in self._tables]
            except lmdb.MapFullError:
                self._grow(0)
            else:
                used = sum(
                    t["branch_pages"] + t["leaf_pages"] + t["overflow_pages"] for t in tables
                )
                return tables[1]["entries"] + tables[2]["entries"], used

    def _apply(self, transaction: lmdb.Transaction[bytes], keys: list[bytes]) -> None:
        staged = self._buffer.entries
        if max(map(len, keys), default=0) > LONGEST_KEY:
            for key in keys:
                if len(key) > LONGEST_KEY:
                    self._long.put(transaction, key, staged[key])
            keys = [key for key in keys if len(key) <= LONGEST_KEY]
        if None in staged.values():
            deque(map(transaction.delete, (k for k in keys if staged[k] is None)), maxlen=0)
            keys = [key for key in keys if staged[key] is not None]
        if keys:
            cursor = transaction.cursor()
            # Appended entries fill their pages; inserted ones leave them half empty.
            append = not cursor.last() or keys[0] > cursor.key()
            values: Iterator[bytes] = map(staged.__getitem__, keys)  # type: ignore[arg-type]
            cursor.putmulti(zip(keys, values, strict=True), append=append)

    def _reserve(self, keys: list[bytes]) -> None:
        # A store that is being filled would reach its limit again and again.
        values = filter(None, self._buffer.entries.values())
        staged = sum(map(len, keys)) + sum(map(len, values)) + 24 * len(keys)
        used = (self._environment.info()["last_pgno"] + 1) * PAGE
        if used + staged > self._size:
            self._grow(used + staged + staged // 4)

    def _grow(self, at_least: int) -> None:
        # By half or more, so that growing is cheap overall; on a nearly full disk, by the
        # minimum.
        generous = int(self._size * (2 if self._size < _DOUBLE_BELOW else 1.5))
        modest = self._size + self._size // 8
        self._size = grow(
            self._environment,
            self._path,
            self._size,
            max(at_least, generous),
            max(at_least, modest),
        )

    def _is_mostly_free(self, used: int) -> bool:
        pages = self._environment.info()["last_pgno"] + 1
        # LMDB copies a page before it changes it, and reuses freed pages two commits later. So
        # this many free pages are working space for the next epochs, not waste.
        in_turnover = 2 * min(used, len(self._buffer.entries))
        return pages * PAGE > self._compact_from and 2 * (pages - used - in_turnover) > pages


class LmdbSnapshot(ReadOnlySnapshot):
    """A snapshot of an LMDB store, open for reading."""

    def __init__(self, directory: Path) -> None:
        """Open the snapshot in `directory`.

        Raises:
            StateError: The snapshot is missing or damaged.
        """
        path = _file_of(directory)
        self._environment = open_read_only(path)
        try:
            with translated_errors(path, snapshot=True):
                self._entry_table = self._environment.open_db(b"entries", create=False)
                long_table = self._environment.open_db(b"long", create=False)
                self._transaction = self._environment.begin()
                has_long_keys = self._transaction.stat(long_table)["entries"] > 0
                self._long = LongKeys(long_table) if has_long_keys else None
                record = self._transaction.get(_RECORD)
            self.version, self.boot = recorded_origin(record, directory)
        except BaseException:
            self._environment.close()
            raise

    @override
    def scan(
        self, prefix: bytes, start: bytes = b"", stop: bytes | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        entries = _entries(self._transaction, self._entry_table, self._long, prefix, start)
        return entries if stop is None else takewhile(lambda entry: entry[0] < stop, entries)

    @override
    def close(self) -> None:
        self._transaction.abort()
        self._environment.close()


def _entries(
    transaction: lmdb.Transaction[bytes],
    table: lmdb._Database,
    long: LongKeys | None,
    prefix: bytes,
    start: bytes,
) -> Iterator[tuple[bytes, bytes]]:
    """Entries whose key starts with `prefix`, in key order, from `start` on."""
    short = _short_entries(transaction.cursor(table), prefix, max(prefix, start))
    return short if long is None else merge(short, long.scan(transaction, prefix, start))


def _short_entries(
    cursor: lmdb.Cursor[bytes], prefix: bytes, begin: bytes
) -> Iterator[tuple[bytes, bytes]]:
    if len(prefix) > LONGEST_KEY:
        return
    if not (cursor.set_range(begin[:LONGEST_KEY]) if begin else cursor.first()):
        return
    # Only the key that was cut from `begin` can sort before it.
    if len(begin) > LONGEST_KEY and cursor.key() < begin and not cursor.next():
        return
    for item in cursor.iternext():
        if not item[0].startswith(prefix):
            return
        yield item


def _file_of(snapshot: Path) -> Path:
    path = first_file(snapshot)
    if not path.is_file():
        raise missing_snapshot(snapshot)
    return path
