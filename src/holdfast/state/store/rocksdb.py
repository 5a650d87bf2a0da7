"""Store in RocksDB, for state larger than memory.

    rocksdb/          the database: one column family, the store's record under the
                      empty key, every entry under its own
    rocksdb.commit    the file of a commit while it is written

An epoch's changes, including the record, are written to one sorted file, which RocksDB
ingests atomically. So there is no write-ahead log to replay when the store is opened, and
closing it writes nothing.
"""

from __future__ import annotations

import os
import shutil
import time
from collections import deque
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final, cast
from weakref import WeakSet

import rocksdict
from typing_extensions import override

from holdfast.errors import HoldfastError, StateError, StoreFullError
from holdfast.state.store.header import (
    checked_version,
    corrupt_store,
    encode_record,
    missing_store,
    unusable_store,
)
from holdfast.state.store.protocol import StateStore, StoreStatistics
from holdfast.state.store.rocksdb_files import open_read_only
from holdfast.state.store.rocksdb_options import database_options
from holdfast.state.store.snapshot import (
    ReadOnlySnapshot,
    is_shareable,
    missing_snapshot,
    new_snapshot,
    recorded_origin,
    snapshot_files,
)
from holdfast.state.store.write_buffer import after_prefix

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence
    from pathlib import Path

    from holdfast.config.backends import EmbeddedRocksDBStateBackend
    from holdfast.state.store.lock import StoreLock

_RECORD: Final = b""
_DATABASE: Final = "rocksdb"
_COMMIT: Final = "rocksdb.commit"
_NO_ROOM: Final = ("No space left on device", "Disk quota exceeded", "File too large")

_DAMAGE: Final = ("Corruption", "No such file", "Invalid argument")

_PAUSE: Final = 0.0005
# After half a second per commit, only merges that are running may finish.
_PATIENT_PAUSES: Final = 1000
_IDLE_PAUSES: Final = 20


def belongs_to_rocksdb(name: str) -> bool:
    """Whether a RocksDB store has files with such a name."""
    return name in (_DATABASE, _COMMIT)


class RocksDBStore(StateStore):
    """A store in RocksDB, open for one epoch at a time."""

    def __init__(
        self,
        directory: Path,
        expected: str | None,
        lock: StoreLock,
        copy_of: Path | None,
        backend: EmbeddedRocksDBStateBackend,
    ) -> None:
        """Open the store in a locked directory; call `open_store` instead."""
        if copy_of is not None:
            _take_over(copy_of, directory / _DATABASE)
        self._adopted = copy_of is not None
        """Whether the store has the version of a snapshot, whatever that is."""
        self._commit_file = directory / _COMMIT
        self._options = database_options(backend)
        super().__init__(directory, expected, lock)
        self._adopted = False

    @override
    def _open_files(self, expected: str | None) -> None:
        directory = self._directory
        if expected is not None and not (directory / _DATABASE / "CURRENT").exists():
            raise missing_store(expected, directory)
        self._scans: WeakSet[Generator[tuple[bytes, bytes]]] = WeakSet()
        self._reclaimed: list[bytes] = []
        self._commit_file.unlink(missing_ok=True)
        with _translating(self._translated):
            # Set the options for the column family too: otherwise RocksDict opens an existing one
            # with its last options, without filters and with a separate cache.
            self._database = rocksdict.Rdict(
                str(directory / _DATABASE), self._options, {"default": self._options}
            )
        try:
            with _translating(self._translated):
                record = cast("bytes | None", self._database.get(_RECORD))
            self.version = (
                recorded_origin(record, directory)[0]
                if self._adopted
                else checked_version(record, expected, directory)
            )
        except BaseException:
            self._database.close()
            raise

    @override
    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        self._require_open()
        if b"" in keys:
            return list(map(self.get, keys))
        with _translating(self._translated):
            found = self._database.get(keys if type(keys) is list else list(keys))
        return self._buffer.overlay(keys, cast("list[bytes | None]", found))

    @override
    def scan(self, prefix: bytes, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        self._require_open()
        begin, end = max(prefix, start), after_prefix(prefix)
        committed = _entries(self._database, begin, end, self._translated)
        self._scans.add(committed)
        return self._buffer.merge(prefix, committed, start)

    def reclaim(self, prefix: bytes) -> None:
        """Merge the files with `prefix` at the commit, without deleted entries."""
        self._reclaimed.append(prefix)

    @override
    def _commit(self, version: str, snapshot: Path | None) -> StoreStatistics:
        with _translating(self._translated):
            self._write_commit_file(version)
            options = rocksdict.IngestExternalFileOptions()
            options.set_move_files(True)
            self._database.ingest_external_file([str(self._commit_file)], options)
            self._compact_reclaimed()
            self._let_compaction_catch_up()
            if snapshot is not None:
                self._link_to(snapshot, version)
        return self._statistics()

    @override
    def _statistics(self) -> StoreStatistics:
        with _translating(self._translated):
            return StoreStatistics(
                entries=max(self._property("estimate-num-keys") - 1, 0),
                bytes_on_disk=self._property("total-sst-files-size"),
            )

    @override
    def _close(self) -> None:
        # An unfinished scan would keep the database open and locked.
        for scan in list(self._scans):
            scan.close()
        try:
            with _translating(self._translated):
                self._database.close()
        finally:
            self._commit_file.unlink(missing_ok=True)

    @override
    def _committed(self, key: bytes) -> bytes | None:
        if key == _RECORD:
            return None
        # No context manager here, on the path of single reads.
        try:
            return cast("bytes | None", self._database.get(key))
        except Exception as error:
            raise self._translated(error) from error

    def _write_commit_file(self, version: str) -> None:
        staged = self._buffer.entries
        keys = self._buffer.in_order()
        file = rocksdict.SstFileWriter(self._options)
        file.open(str(self._commit_file))
        file[_RECORD] = encode_record(version)
        if None in staged.values():
            for key in keys:
                value = staged[key]
                if value is None:
                    del file[key]
                else:
                    file[key] = value
        else:
            deque(map(file.__setitem__, keys, map(staged.__getitem__, keys)), maxlen=0)
        file.finish()

    def _link_to(self, snapshot: Path, version: str) -> None:
        with new_snapshot(snapshot, version) as aside:
            rocksdict.Checkpoint(self._database).create_checkpoint(str(aside))
            # The write-ahead log is not used, and the job sets the options.
            for path in (*aside.glob("*.log"), *aside.glob("*.json")):
                path.unlink()

    def _compact_reclaimed(self) -> None:
        # The epoch is already committed; a large store is no reason to fail it.
        with suppress(Exception):
            for prefix in self._reclaimed:
                self._database.compact_range(prefix, after_prefix(prefix))

    def _let_compaction_catch_up(self) -> None:
        """Wait for pending merges, but start no new ones after a time limit.

        Nothing runs between two epochs. If epochs kept interrupting merges, the number of
        files would grow without bound.
        """
        idle = 0
        for pause in range(1_000_000):
            if self._property("num-running-compactions"):
                idle = 0
                if pause == _PATIENT_PAUSES:
                    self._database.set_options({"disable_auto_compactions": "true"})
            elif idle == _IDLE_PAUSES or not self._property("compaction-pending"):
                return
            else:
                idle += 1
            time.sleep(_PAUSE)

    def _property(self, name: str) -> int:
        return self._database.property_int_value(f"rocksdb.{name}") or 0

    def _translated(self, error: Exception) -> StateError:
        # RocksDict raises plain exceptions; only their text says what happened.
        if any(reason in str(error) for reason in _NO_ROOM):
            return StoreFullError(
                f"{self.place}: no room on the disk ({error}); the store stays at its last "
                "version. Free space there, or set `state.local-dir` to a larger disk"
            )
        damaged = any(reason in str(error) for reason in _DAMAGE)
        return (corrupt_store if damaged else unusable_store)(self.place, error)


class RocksDBSnapshot(ReadOnlySnapshot):
    """A snapshot of a RocksDB store, open for reading."""

    def __init__(
        self, directory: Path, backend: EmbeddedRocksDBStateBackend, *, partial: bool = False
    ) -> None:
        """Open the snapshot in `directory`.

        Args:
            directory: Directory of the snapshot.
            backend: Options of the database.
            partial: Whether only the files of some key groups are there, see `files_with`.

        Raises:
            StateError: The snapshot is missing or damaged.
        """
        if not (directory / "CURRENT").is_file():
            raise missing_snapshot(directory)
        self._directory = directory
        self._scans: WeakSet[Generator[tuple[bytes, bytes]]] = WeakSet()
        with _translating(self._translated):
            self._database = open_read_only(directory, backend, partial=partial)
        try:
            with _translating(self._translated):
                record = cast("bytes | None", self._database.get(_RECORD))
            self.version, self.boot = recorded_origin(record, directory)
        except BaseException:
            self._database.close()
            raise

    @override
    def scan(
        self, prefix: bytes, start: bytes = b"", stop: bytes | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        ends = [end for end in (after_prefix(prefix), stop) if end is not None]
        end = min(ends, default=None)
        entries = _entries(self._database, max(prefix, start), end, self._translated)
        self._scans.add(entries)
        return entries

    @override
    def close(self) -> None:
        for scan in list(self._scans):
            scan.close()
        self._database.close()

    def _translated(self, error: Exception) -> StateError:
        return StateError(
            f"{self._directory}: the snapshot cannot be read ({error}); restore from another "
            "checkpoint if it is damaged"
        )


@contextmanager
def _translating(translated: Callable[[Exception], StateError]) -> Iterator[None]:
    try:
        yield
    except HoldfastError:
        raise
    except Exception as error:
        raise translated(error) from error


def _entries(
    database: rocksdict.Rdict,
    start: bytes,
    stop: bytes | None,
    translated: Callable[[Exception], StateError],
) -> Generator[tuple[bytes, bytes]]:
    options = rocksdict.ReadOptions()
    if stop is not None:
        options.set_iterate_upper_bound(stop)
    entries = database.iter(options)
    # Skip the record, which has the empty key.
    entries.seek(start or b"\x00")
    valid, key, value, step = entries.valid, entries.key, entries.value, entries.next
    while valid():
        yield key(), value()
        step()
    # After an error, an iterator looks as if it were exhausted.
    with _translating(translated):
        entries.status()


def _take_over(snapshot: Path, database: Path) -> None:
    files = snapshot_files(snapshot)
    database.mkdir()
    for file in files:
        take_over = _link if is_shareable(file) else shutil.copyfile
        take_over(snapshot / file, database / file)


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        # On another disk, or without support for hard links.
        shutil.copyfile(source, target)
