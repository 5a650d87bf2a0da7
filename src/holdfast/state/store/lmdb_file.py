"""The file of an LMDB store: its generations, its growth, and its compaction.

LMDB works on a writable memory map here, which is fastest, and which has two rules
of its own. A page of the map without room on the disk kills the process instead of
failing a call, so room is allocated before the map covers it. And freed pages stay
in the file, so a file that is mostly free is copied without them:

    state-<generation>.mdb        the newest generation is the store
    state-<generation>.mdb-lock   LMDB's own lock table
    state.copy                    the next generation while it is written

A copy becomes the next generation by one rename, and is complete by then: whatever
dies at whatever moment, the newest generation is a whole store.

Entries whose keys are longer than LMDB allows lie in a table of their own.

LMDB keys end at 511 bytes. A longer key is filed under

    0       495     the first bytes of the key
    495     16      128-bit XXH3 hash of the whole key

with a value that holds the key itself, so that a hash is never taken for the key:

    0       4       length k of the key, big-endian
    4       4       length v of the value, big-endian
    8       k       key
    8+k     v       value
    ...             again, for every other key of the same hash
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import struct
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

import lmdb
import xxhash

from holdfast.errors import StateError, StoreFullError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


LONGEST_KEY: Final = 511
"""Longest key that LMDB takes as it is, in bytes."""


_STEM: Final = LONGEST_KEY - 16

_LENGTHS: Final = struct.Struct(">II")


class LongKeys:
    """The table of long keys; reads and writes in the transaction it is given."""

    __slots__ = ("_digest", "_table")

    def __init__(
        self, table: lmdb._Database, digest: Callable[[bytes], bytes] = xxhash.xxh3_128_digest
    ) -> None:
        """File keys in `table` under their 16-byte `digest`."""
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
        """Entries whose key starts with `prefix`, in the order of the whole keys, from `start`.

        Keys that begin with the same 495 bytes are filed in the order of their hashes:
        they are held in memory together, to be sorted.
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
"""Size that a new file is given at its first commit."""


_FIRST_MAP: Final = 64 * 1024

_LOCK_TABLE: Final = 8192

_COPY: Final = "state.copy"

_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def newest_file(directory: Path) -> Path | None:
    """File of the newest generation in `directory`, or None; removes older ones.

    Older ones, and half a copy, are what a process leaves that dies while compacting.
    """
    generations = _generations(directory)
    newest = generations.pop(max(generations)) if generations else None
    for leftover in (directory / _COPY, *generations.values()):
        _remove(leftover)
    return newest


def first_file(directory: Path) -> Path:
    """File of a store that is about to be created."""
    return directory / "state-1.mdb"


def belongs_to_lmdb(name: str) -> bool:
    """Whether a file of that name is part of an LMDB store."""
    return name == _COPY or re.fullmatch(r"state-\d+\.mdb(-lock)?", name) is not None


def open_environment(path: Path) -> lmdb.Environment:
    """Open the file with a map of exactly its size, or a small one if it is new.

    Raises:
        StoreFullError: The disk or the address space has no room for it.
        StateError: The file cannot be used.
    """
    # The lock table is mapped and written to as well. This has to come first: closing a
    # descriptor of that file releases the locks that LMDB holds on it.
    _allocate(path.with_name(f"{path.name}-lock"), 0, _LOCK_TABLE)
    size = path.stat().st_size if path.exists() else 0
    map_size = max(size // PAGE * PAGE, _FIRST_MAP)
    if 0 < size < map_size:
        # LMDB makes the file as long as its map, but what it adds is not on disk.
        _allocate(path, size, map_size)
    with translated_errors(path):
        return lmdb.open(
            str(path),
            map_size=map_size,
            subdir=False,
            mode=0o600,
            # A store has to survive the death of its process, not that of the machine.
            sync=False,
            metasync=False,
            writemap=True,
            max_dbs=2,
            # Pinned, so that an environment variable cannot change the format.
            lib_version=0,
        )


def grow(environment: lmdb.Environment, path: Path, allocated: int, *sizes: int) -> int:
    """Give the file and its map the first of `sizes` that the disk has room for.

    Of the file, `allocated` bytes are on disk already.

    Raises:
        StoreFullError: The disk or the address space has no room; the file is as before.
    """
    *hoped_for, least = (-(-size // PAGE) * PAGE for size in sizes)
    for size in hoped_for:
        with suppress(StoreFullError):
            _allocate(path, allocated, size)
            break
    else:
        size = least
        _allocate(path, allocated, size)
    # Once only: an environment whose map could not be replaced has none, and must be closed.
    with translated_errors(path):
        environment.set_mapsize(size)
    return size


def compact(environment: lmdb.Environment, path: Path) -> Path:
    """Replace the file by a copy without free pages; return the file that is in force."""
    copy = path.with_name(_COPY)
    following = path.with_name(f"state-{max(_generations(path.parent)) + 1}.mdb")
    try:
        copy_compacted(environment, copy)
        copy.rename(following)
    except (lmdb.Error, OSError):
        # The epoch is committed already. A store that stays large is no reason to fail it.
        _remove(copy)
        return path
    _remove(path)
    return following


def copy_compacted(environment: lmdb.Environment, path: Path) -> None:
    """Write what is committed, without free pages, to a new file.

    Raises:
        lmdb.Error: The copy is not whole; what there is of it is left to the caller.
        OSError: The same.
    """
    # Through a descriptor: by path, LMDB would write around the page cache.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        environment.copyfd(descriptor, compact=True)
    finally:
        os.close(descriptor)


def take_over(source: Path, directory: Path) -> None:
    """Make a copy of a snapshot's file the file of a new store.

    Not a link: a store's file is changed in place.

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
        if error.errno in _NO_ROOM:
            raise _disk_full(path, str(error.strerror)) from error
        raise
    # Whatever brought the file here may have left holes in it.
    _allocate(path, 0, path.stat().st_size)


def open_read_only(path: Path) -> lmdb.Environment:
    """Open a snapshot's file, which nobody changes.

    Raises:
        StateError: The file cannot be used.
    """
    size = path.stat().st_size
    with translated_errors(path):
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
def translated_errors(path: Path) -> Iterator[None]:
    """Turn LMDB's errors into Holdfast's; a map that is full is left to the caller."""
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
        if getattr(error, "code", 0) in _NO_ROOM or isinstance(error, lmdb.DiskError):
            raise _disk_full(path, str(error)) from error
        raise StateError(
            f"{path}: the store cannot be used ({error}); if it is damaged, remove its directory: "
            "the state is restored from the last checkpoint"
        ) from error


def _allocate(path: Path, allocated: int, size: int) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        before = os.fstat(descriptor).st_size
        try:
            os.posix_fallocate(descriptor, allocated, size - allocated)
        except OSError as error:
            os.ftruncate(descriptor, before)
            if error.errno in _NO_ROOM:
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
