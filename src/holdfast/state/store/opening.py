"""The one place where a state backend becomes a store."""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from holdfast.config.backends import EmbeddedRocksDBStateBackend, HashMapStateBackend, StateBackend

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.state.store.protocol import StateStore


def open_store(backend: StateBackend, directory: Path, expected: str | None) -> StateStore:
    """Open the local store in `directory`, of the kind that `backend` names.

    Args:
        backend: The kind of store, and its options.
        directory: The store's own directory; created for a new store.
        expected: Version the store must stand at; None to start a new store.

    Raises:
        StoreVersionError: The store stands at another version, or is missing, or a new
            one was to start and there is one.
        StoreFullError: The disk or the address space has no room for it.
        StateError: Another attempt uses the store, or it is not a store of Holdfast.
    """
    # A fresh worker process loads only the library that its job uses.
    match backend:
        case HashMapStateBackend():
            from holdfast.state.store.lmdb import LmdbStore

            return LmdbStore.open(directory, expected=expected)
        case EmbeddedRocksDBStateBackend():
            from holdfast.state.store.rocksdb import RocksDBStore

            return RocksDBStore.open(directory, expected=expected, backend=backend)
        case _:
            assert_never(backend)
