"""Opens snapshots of LMDB and RocksDB stores, and canonical savepoint tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from holdfast.config.backends import (
    EmbeddedRocksDBStateBackend,
    HashMapStateBackend,
    StateBackend,
    backend_named,
)
from holdfast.state.store.snapshot import CANONICAL, ReadOnlySnapshot

if TYPE_CHECKING:
    from pathlib import Path


def open_snapshot(
    backend: StateBackend, directory: Path, *, partial: bool = False
) -> ReadOnlySnapshot:
    """Open a snapshot of a store.

    Args:
        backend: State backend of the store.
        directory: Directory of the snapshot.
        partial: Whether only the files named by `files_with` are there.

    Raises:
        StateError: The snapshot is missing or damaged, or has another format.
    """
    # A new worker process loads only the library that its job uses.
    match backend:
        case HashMapStateBackend():
            from holdfast.state.store.lmdb import LmdbSnapshot

            return LmdbSnapshot(directory)
        case EmbeddedRocksDBStateBackend():
            from holdfast.state.store.rocksdb import RocksDBSnapshot

            return RocksDBSnapshot(directory, backend, partial=partial)
        case _:
            assert_never(backend)


def open_snapshot_of(kind: str, directory: Path, *, partial: bool = False) -> ReadOnlySnapshot:
    """Open a snapshot of any kind.

    Args:
        kind: Name of a state backend, or `CANONICAL` for the tables of a savepoint.
        directory: Directory of the snapshot.
        partial: Whether only the files named by `files_with` are there.

    Raises:
        StateError: The snapshot is missing or damaged, or has another format.
    """
    if kind == CANONICAL:
        from holdfast.state.tables.reader import TablesSnapshot

        return TablesSnapshot(directory)
    return open_snapshot(backend_named(kind), directory, partial=partial)


def can_be_partial(kind: str) -> bool:
    """Whether a reader of some key groups can leave out files of such a snapshot."""
    return kind == EmbeddedRocksDBStateBackend.name


def files_with(key_groups: range, directory: Path) -> list[str]:
    """Shareable files that a reader of the key groups needs.

    Args:
        key_groups: Key groups to read; metadata of states is always read.
        directory: A snapshot that can be partial; its shareable files may be missing.

    Raises:
        StateError: The other files cannot be read.
    """
    from holdfast.state.store import rocksdb_files

    return rocksdb_files.files_with(directory, key_groups)
