"""Opens the store of a state backend."""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from holdfast.config.backends import EmbeddedRocksDBStateBackend, HashMapStateBackend, StateBackend
from holdfast.state.store.lock import PATIENCE, entered_directory

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.state.store.protocol import StateStore


def open_store(
    backend: StateBackend,
    directory: Path,
    expected: str | None,
    *,
    copy_of: Path | None = None,
    patience: float = PATIENCE,
) -> StateStore:
    """Open the local store of a state backend.

    Args:
        backend: The state backend and its options.
        directory: Directory of the store; created for a new store.
        expected: Version that the store must have; None to create a new store.
        copy_of: Snapshot that a new store starts as, with its version; it is not changed.
        patience: Seconds to wait for another attempt to release the store.

    Raises:
        StoreVersionError: The store is missing or has another version, or a new store cannot
            be created because one exists.
        StoreFullError: The disk or the address space is full.
        StateError: Another attempt uses the store, it is not a Holdfast store, or the snapshot
            is missing or damaged.
    """
    # A new worker process loads only the library that its job uses.
    match backend:
        case HashMapStateBackend():
            from holdfast.state.store.lmdb import LmdbStore
            from holdfast.state.store.lmdb_file import belongs_to_lmdb

            with entered_directory(directory, expected, belongs_to_lmdb, patience) as lock:
                return LmdbStore(directory, expected, lock, copy_of)
        case EmbeddedRocksDBStateBackend():
            from holdfast.state.store.rocksdb import RocksDBStore, belongs_to_rocksdb

            with entered_directory(directory, expected, belongs_to_rocksdb, patience) as lock:
                return RocksDBStore(directory, expected, lock, copy_of, backend)
        case _:
            assert_never(backend)
