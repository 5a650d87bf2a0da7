"""State that tests write as tables, and what they read of it again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow.parquet as pq

from holdfast.config.backends import backend_named
from holdfast.state.backend import OPERATOR_KEY, KeyedStateBackend
from holdfast.state.catalog import STATE_PREFIX
from holdfast.state.key_groups import key_groups
from holdfast.state.list import pack_chunk, unpack_chunk
from holdfast.state.restore import restore_store
from holdfast.state.snapshots import open_snapshot
from holdfast.state.store.opening import open_store
from holdfast.state.store.snapshot import CANONICAL
from holdfast.state.table import CurrentKey
from holdfast.state.tables.reader import TablesSnapshot
from holdfast.state.tables.writer import write_tables
from holdfast.state.ttl.states import ClockTime, TtlContext
from holdfast.testing.clock import ManualClock

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.state.store.snapshot import ReadOnlySnapshot

    Entries = dict[bytes, bytes]

CHUNK_BYTES = 12
"""Bytes of the number of a chunk, at the end of its key."""


class State:
    """The keyed state of an operator during an epoch."""

    def __init__(
        self,
        root: Path,
        backend: str = "hashmap",
        *,
        now: int = 0,
        max_parallelism: int = 128,
        epoch: int = 1,
        store: Path | None = None,
        version: str | None = None,
    ) -> None:
        """Of a new operator, or of one whose store is at a version."""
        self.root = root
        self.backend = backend_named(backend)
        self.current = CurrentKey()
        self.clock = ManualClock(now)
        self.keyed = KeyedStateBackend(
            open_store(self.backend, store or root / "store", version),
            max_parallelism=max_parallelism,
            epoch=epoch,
            current=self.current,
            ttl=TtlContext(ClockTime(self.clock)),
        )
        self.windows = self.keyed.namespaced()
        self.register: Any = self.keyed.register

    def commit(self) -> ReadOnlySnapshot:
        """End the epoch; the snapshot of its state is the caller's to close."""
        self.keyed.commit("1-test", self.root / "snapshot")
        return self.snapshot()

    def snapshot(self) -> ReadOnlySnapshot:
        """The snapshot of the epoch that has ended."""
        return open_snapshot(self.backend, self.root / "snapshot")

    def written(self, **options: Any) -> Path:
        """End the epoch; the directory of the tables."""
        with self.commit() as snapshot:
            write_tables(snapshot, self.root / "tables", **options)
        return self.root / "tables"


def rows(tables: Path, table: str) -> list[dict[str, Any]]:
    """The rows of a table, without columns that are empty."""
    found = pq.read_table(tables / f"{table}.parquet")
    empty = [name for name in found.column_names if found[name].null_count == len(found)]
    listed: list[dict[str, Any]] = found.drop_columns(empty).to_pylist()
    return listed


def kept_entries(snapshot: ReadOnlySnapshot) -> Entries:
    """Entries that tables keep; each list in one chunk, as it would be read."""
    kinds = {}
    found: Entries = {}
    for key, value in snapshot.scan(b""):
        if key.startswith(STATE_PREFIX):
            described = msgspec.json.decode(value)
            kinds[described["id"]] = described["kind"]
        elif key[:2] == b"\x00\x00" and key != OPERATOR_KEY:
            continue
        if kinds.get(int.from_bytes(key[:2], "big")) == "list":
            head = key[:-CHUNK_BYTES]
            value = pack_chunk(unpack_chunk(found.get(head, pack_chunk([]))) + unpack_chunk(value))
            found[head] = value
        else:
            found[key] = value
    return found


def restored_entries(
    backend: str, tables: list[Path], directory: Path, *, parallelism: int, max_parallelism: int
) -> list[Entries]:
    """What new stores of a backend hold that are restored from tables, by subtask."""
    found = []
    for subtask in range(parallelism):
        store = directory / f"store-{subtask}"
        restore_store(
            backend_named(backend),
            tables,
            store,
            version="restored",
            key_groups=key_groups(subtask, parallelism, max_parallelism),
            whole=False,
            operator_state=None,
            kind=CANONICAL,
        )
        snapshot = directory / f"snapshot-{subtask}"
        open_store(backend_named(backend), store, "restored").commit("again", snapshot)
        with open_snapshot(backend_named(backend), snapshot) as opened:
            found.append(kept_entries(opened))
    return found


def by_name(stores: list[Entries]) -> dict[Any, Any]:
    """Entries of keys in all stores, by the names of their states, and what is known of these."""
    found: dict[Any, Any] = {}
    for entries in stores:
        names = {}
        for key, value in entries.items():
            if key.startswith(STATE_PREFIX):
                described = msgspec.json.decode(value)
                names[described.pop("id")] = key
                assert found.setdefault(key, described) == described
        for key, value in entries.items():
            state_id = int.from_bytes(key[:2], "big")
            if state_id:
                assert (names[state_id], key[2:]) not in found
                found[names[state_id], key[2:]] = value
    return found


def require_same_state(state: State, tables: Path) -> None:
    """The tables hold the entries of the state's snapshot, and so does a store of each backend."""
    with state.snapshot() as snapshot, TablesSnapshot(tables) as opened:
        expected = kept_entries(snapshot)
        assert kept_entries(opened) == expected
        keys = [key for key, _ in opened.scan(b"")]
        assert keys == sorted(set(keys))
        assert opened.version == snapshot.version
    for backend in ("hashmap", "rocksdb"):
        found = restored_entries(
            backend, [tables], state.root / backend, parallelism=1, max_parallelism=128
        )
        assert by_name(found) == by_name([expected])
