"""Opens a snapshot of any kind: of an LMDB store, of a RocksDB store, or canonical tables."""

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
    """Open the snapshot in `directory`, which a store of the kind of `backend` made.

    Args:
        backend: What made it.
        directory: Where it is.
        partial: Whether only the files that `files_with` names are there.

    Raises:
        StateError: There is no such snapshot, or it is damaged, or of another format.
    """
    # A fresh worker process loads only the library that its job uses.
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
    """Open the snapshot in `directory`, given what wrote it.

    Args:
        kind: Name of a state backend; or `CANONICAL`, for the tables of a savepoint.
        directory: Where it is.
        partial: Whether only the files that `files_with` names are there.

    Raises:
        StateError: There is no such snapshot, or it is damaged, or of another format.
    """
    if kind == CANONICAL:
        from holdfast.state.tables.reader import TablesSnapshot

        return TablesSnapshot(directory)
    return open_snapshot(backend_named(kind), directory, partial=partial)


def can_be_partial(kind: str) -> bool:
    """Whether snapshots of that kind have files that a reader of some key groups can spare."""
    return kind == EmbeddedRocksDBStateBackend.name


def files_with(key_groups: range, directory: Path) -> list[str]:
    """Shareable files that a reader of the key groups needs, by the other files alone.

    Args:
        key_groups: What is to be read, beside all that is known of the states.
        directory: A snapshot that can be partial; its shareable files may be missing.

    Raises:
        StateError: The other files cannot be read.
    """
    from holdfast.state.store import rocksdb_files

    return rocksdb_files.files_with(directory, key_groups)
