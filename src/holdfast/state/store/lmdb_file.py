"""File of an LMDB store: generations, growth and compaction.

LMDB uses a writable memory map, which is fastest but has two consequences. A mapped page
without disk space kills the process instead of raising an error, so space is allocated before
it is mapped. And freed pages stay in the file, so a mostly free file is copied without them:

    state-<generation>.mdb        the newest generation is the store
    state-<generation>.mdb-lock   LMDB's own lock table
    state.copy                    the next generation while it is written

A complete copy becomes the next generation by a rename, so the newest generation is always
a whole store, even after a crash.

LMDB keys have at most 511 bytes. A separate table holds entries with longer keys, under

    0       495     the first bytes of the key
    495     16      128-bit XXH3 hash of the whole key

with the key in the value, so that keys with the same hash stay apart:

    0       4       length k of the key, big-endian
    4       4       length v of the value, big-endian
    8       k       key
    8+k     v       value
    ...             repeated for every other key with the same hash
"""

from __future__ import annotations

import os
import re
import shutil
import struct
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

import lmdb
import xxhash

from holdfast.errors import StateError, StoreFullError
from holdfast.state.store.directories import NO_ROOM
from holdfast.state.store.header import corrupt_store, unusable_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


DAMAGE: Final = (
    lmdb.CorruptedError,
    lmdb.InvalidError,
    lmdb.PageNotFoundError,
    lmdb.VersionMismatchError,
    lmdb.IncompatibleError,
    lmdb.PanicError,
)
"""What LMDB raises about a damaged file."""
LONGEST_KEY: Final = 511
"""Maximum length of LMDB keys, in bytes."""


_STEM: Final = LONGEST_KEY - 16

_LENGTHS: Final = struct.Struct(">II")


class LongKeys:
    """Table of long keys; reads and writes in a given transaction."""

    __slots__ = ("_digest", "_table")

    def __init__(
        self, table: lmdb._Database, digest: Callable[[bytes], bytes] = xxhash.xxh3_128_digest
    ) -> None:
        """Store keys in `table` under their 16-byte `digest`."""
        self._table = table
        self._digest = digest

    def get(self, transaction: lmdb.Transaction[bytes], key: bytes) -> bytes | None:
        """Value of `key`, or None."""
        return self._bucket(transaction, self._filed(key)).get(key)

    def put(self, transaction: lmdb.Transaction[bytes], key: bytes, value: bytes | None) -> None:
        """Set the value of `key`; None deletes it."""
        filed = self._filed(key)
        bucket = self._bucket(transaction, filed)
        if value is None:
            bucket.pop(key, None)
        else:
            bucket[key] = value
        if bucket:
            transaction.put(filed, _encode(bucket), db=self._table)
        else:
            transaction.delete(filed, db=self._table)

    def scan(
        self, transaction: lmdb.Transaction[bytes], prefix: bytes, start: bytes = b""
    ) -> Iterator[tuple[bytes, bytes]]:
        """Entries whose key starts with `prefix`, in order of the whole keys, from `start` on.

        Keys with the same first 495 bytes are stored in order of their hashes, so they are
        collected in memory and sorted.
        """
        begin, beginning = max(prefix, start), prefix[:_STEM]
        cursor = transaction.cursor(self._table)
        if not (cursor.set_range(begin[:_STEM]) if begin else cursor.first()):
            return
        stem, group = b"", dict[bytes, bytes]()
        for filed, bucket in cursor.iternext():
            if not filed.startswith(beginning):
                break
            if filed[:_STEM] != stem:
                yield from _sorted_under(prefix, begin, group)
                stem, group = filed[:_STEM], {}
            group.update(_decode(bucket))
        yield from _sorted_under(prefix, begin, group)

    def _filed(self, key: bytes) -> bytes:
        return key[:_STEM] + self._digest(key)

    def _bucket(self, transaction: lmdb.Transaction[bytes], filed: bytes) -> dict[bytes, bytes]:
        found = transaction.get(filed, db=self._table)
        return {} if found is None else _decode(found)


def _sorted_under(
    prefix: bytes, begin: bytes, group: dict[bytes, bytes]
) -> list[tuple[bytes, bytes]]:
    return sorted(item for item in group.items() if item[0] >= begin and item[0].startswith(prefix))


def _encode(bucket: dict[bytes, bytes]) -> bytes:
    parts: list[bytes] = []
    for key, value in bucket.items():
        parts += (_LENGTHS.pack(len(key), len(value)), key, value)
    return b"".join(parts)


def _decode(bucket: bytes) -> dict[bytes, bytes]:
    entries, at = {}, 0
    while at < len(bucket):
        key_length, value_length = _LENGTHS.unpack_from(bucket, at)
        middle = at + _LENGTHS.size + key_length
        entries[bucket[middle - key_length : middle]] = bucket[middle : middle + value_length]
        at = middle + value_length
    return entries


PAGE: Final = 4096
"""Granularity of files and maps."""


SMALLEST: Final = 256 * 1024
"""Size of a new file at its first commit."""


_FIRST_MAP: Final = 64 * 1024

_LOCK_TABLE: Final = 8192

_COPY: Final = "state.copy"


def newest_file(directory: Path) -> Path | None:
    """File of the newest generation in `directory`, or None; removes older ones.

    A process that dies while compacting leaves an older generation or a partial copy.
    """
    generations = _generations(directory)
    newest = generations.pop(max(generations)) if generations else None
    for leftover in (directory / _COPY, *generations.values()):
        _remove(leftover)
    return newest


def first_file(directory: Path) -> Path:
    """File of a new store."""
    return directory / "state-1.mdb"


def belongs_to_lmdb(name: str) -> bool:
    """Whether an LMDB store has files with such a name."""
    return name == _COPY or re.fullmatch(r"state-\d+\.mdb(-lock)?", name) is not None


def open_environment(path: Path) -> lmdb.Environment:
    """Open the file with a map of its size, or a small map if it is new.

    Raises:
        StoreFullError: The disk or the address space has no room for it.
        StoreError: The file is damaged, or cannot be used.
    """
    # The lock table is mapped and written as well. Allocate it first: closing a descriptor of
    # that file later would release LMDB's locks on it.
    _allocate(path.with_name(f"{path.name}-lock"), 0, _LOCK_TABLE)
    size = path.stat().st_size if path.exists() else 0
    map_size = max(size // PAGE * PAGE, _FIRST_MAP)
    if 0 < size < map_size:
        # LMDB extends the file to the size of its map, without allocating disk space.
        _allocate(path, size, map_size)
    with translated_errors(path):
        environment = lmdb.open(
            str(path),
            map_size=map_size,
            subdir=False,
            mode=0o600,
            # A store must survive a crash of its process, not of the machine.
            sync=False,
            metasync=False,
            writemap=True,
            max_dbs=2,
            # Pinned, so that an environment variable cannot change the format.
            lib_version=0,
        )
        needed = (environment.info()["last_pgno"] + 1) * PAGE
    if needed > size > 0:
        environment.close()
        raise corrupt_store(path, f"it is cut off after {size:,} of {needed:,} bytes")
    return environment


def grow(environment: lmdb.Environment, path: Path, allocated: int, *sizes: int) -> int:
    """Grow the file and its map to the first of `sizes` that fits on the disk.

    `allocated` bytes of the file are already on disk.

    Raises:
        StoreFullError: The disk or the address space is full; the file is unchanged.
    """
    *hoped_for, least = (-(-size // PAGE) * PAGE for size in sizes)
    for size in hoped_for:
        with suppress(StoreFullError):
            _allocate(path, allocated, size)
            break
    else:
        size = least
        _allocate(path, allocated, size)
    # Only once: if the map cannot be replaced, the environment has none and must be closed.
    with translated_errors(path):
        environment.set_mapsize(size)
    return size


def compact(environment: lmdb.Environment, path: Path) -> Path:
    """Replace the file by a copy without free pages; return the current file."""
    copy = path.with_name(_COPY)
    following = path.with_name(f"state-{max(_generations(path.parent)) + 1}.mdb")
    try:
        copy_compacted(environment, copy)
        copy.rename(following)
    except (lmdb.Error, OSError):
        # The epoch is already committed; a large file is no reason to fail it.
        _remove(copy)
        return path
    _remove(path)
    return following


def copy_compacted(environment: lmdb.Environment, path: Path) -> None:
    """Copy the committed data, without free pages, to a new file.

    Raises:
        lmdb.Error: The copy is incomplete; the caller removes it.
        OSError: The same.
    """
    # By descriptor: by path, LMDB would bypass the page cache.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        environment.copyfd(descriptor, compact=True)
    finally:
        os.close(descriptor)


def take_over(source: Path, directory: Path) -> None:
    """Copy a snapshot's file as the file of a new store.

    Not a hard link, since a store changes its file in place.

    Raises:
        StoreFullError: The disk has no room for it.
        StateError: The file is damaged.
        OSError: The file cannot be copied.
    """
    open_read_only(source).close()
    path = first_file(directory)
    try:
        shutil.copyfile(source, path)
    except OSError as error:
        if error.errno in NO_ROOM:
            raise _disk_full(path, str(error.strerror)) from error
        raise
    # The copied file may have holes.
    _allocate(path, 0, path.stat().st_size)


def open_read_only(path: Path) -> lmdb.Environment:
    """Open the file of a snapshot, read-only.

    Raises:
        StateError: The file cannot be used.
    """
    size = path.stat().st_size
    with translated_errors(path, snapshot=True):
        environment = lmdb.open(
            str(path),
            map_size=max(size, _FIRST_MAP),
            subdir=False,
            readonly=True,
            lock=False,
            max_dbs=2,
            lib_version=0,
        )
        needed = (environment.info()["last_pgno"] + 1) * environment.stat()["psize"]
    if needed > size:
        # Reading beyond the end of a mapped file would kill the process.
        environment.close()
        raise StateError(
            f"{path}: the snapshot is cut off after {size:,} of {needed:,} bytes; copy it again, "
            "or restore from another checkpoint"
        )
    return environment


@contextmanager
def translated_errors(path: Path, *, snapshot: bool = False) -> Iterator[None]:
    """Translate LMDB's errors about a store or a snapshot, except for that of a full map."""
    try:
        yield
    except lmdb.MapFullError:
        raise
    except lmdb.Error as error:
        if isinstance(error, lmdb.MemoryError):
            raise StoreFullError(
                f"{path}: the store does not fit into the address space of the worker ({error}); "
                "raise spark.executor.pyspark.memory, raise the parallelism, or use "
                "EmbeddedRocksDBStateBackend"
            ) from error
        if getattr(error, "code", 0) in NO_ROOM or isinstance(error, lmdb.DiskError):
            raise _disk_full(path, str(error)) from error
        if snapshot:
            raise StateError(
                f"{path}: the snapshot cannot be read ({error}); restore from another checkpoint "
                "if it is damaged"
            ) from error
        raise (corrupt_store if isinstance(error, DAMAGE) else unusable_store)(
            path, error
        ) from error


def _allocate(path: Path, allocated: int, size: int) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        before = os.fstat(descriptor).st_size
        try:
            os.posix_fallocate(descriptor, allocated, size - allocated)
        except OSError as error:
            os.ftruncate(descriptor, before)
            if error.errno in NO_ROOM:
                raise _disk_full(path, f"{error.strerror}, for {size:,} bytes") from error
            raise
    finally:
        os.close(descriptor)


def _disk_full(path: Path, reason: str) -> StoreFullError:
    return StoreFullError(
        f"{path}: no room on the disk ({reason}); the store stays at its last version. "
        "Free space there, or set `state.local-dir` to a larger disk"
    )


def _generations(directory: Path) -> dict[int, Path]:
    found = (re.fullmatch(r"state-(\d+)\.mdb", name) for name in os.listdir(directory))
    return {int(match[1]): directory / match[0] for match in found if match}


def _remove(path: Path) -> None:
    for name in (path, path.with_name(f"{path.name}-lock")):
        name.unlink(missing_ok=True)
