"""Both local stores under the one contract, and what is particular to each."""

from __future__ import annotations

import errno
import os
import shutil
from typing import TYPE_CHECKING

import lmdb
import pytest

from holdfast.config.backends import EmbeddedRocksDBStateBackend, HashMapStateBackend
from holdfast.errors import StateError, StoreVersionError
from holdfast.state.store.lmdb import LmdbStore
from holdfast.state.store.lmdb_file import LongKeys
from holdfast.state.store.lock import StoreLock
from holdfast.state.store.opening import open_store
from holdfast.state.store.rocksdb_options import FILES_BEFORE_MERGE
from holdfast.state.store.snapshot import is_shareable, snapshot_files
from tests.contract.snapshot_contract import SnapshotContract
from tests.contract.store_children import child, heard, kill_after, run_child
from tests.contract.store_contract import StoreContract
from tests.contract.store_survival import StoreSurvival

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.state.store.protocol import StateStore


class TestLmdbStore(StoreContract, StoreSurvival, SnapshotContract):
    backend = "hashmap"

    def open(self, directory: Path, expected: str | None = None) -> StateStore:
        return open_store(HashMapStateBackend(), directory, expected, patience=0)

    def open_small(self, directory: Path, expected: str) -> StateStore:
        """Open a store that counts as large."""
        lock = StoreLock.acquire(directory, patience=0)
        return LmdbStore(directory, expected, lock, compact_from=4_000_000)

    def test_a_small_snapshot_that_is_taken_over_has_no_holes(self, directory, tmp_path):
        """Writing to a hole kills the process when the disk is full."""
        self.filled(directory, {b"key": b"value"})
        store = self.open(directory, "v1")
        store.commit("v2", snapshot=tmp_path / "snapshot")
        adopted = open_store(
            HashMapStateBackend(), tmp_path / "adopted", None, copy_of=tmp_path / "snapshot"
        )
        [file] = (tmp_path / "adopted").glob("*.mdb")
        found = file.stat()
        adopted.abort()
        assert found.st_blocks * 512 >= found.st_size

    def test_a_file_that_is_mostly_free_is_compacted(self, directory):
        self.filled(directory, {b"%05d" % i: bytes(4000) for i in range(2000)})
        store = self.open_small(directory, "v1")
        store.write((b"%05d" % i, None) for i in range(2000) if i % 50)
        statistics = store.commit("v2")
        assert statistics.entries == 40
        assert statistics.bytes_on_disk < 400_000
        assert [path.name for path in directory.glob("*.mdb")] == ["state-2.mdb"]
        assert self.contents(directory, "v2") == {
            b"%05d" % i: bytes(4000) for i in range(0, 2000, 50)
        }
        self.open_small(directory, "v2").commit("v3")
        assert len(self.contents(directory, "v3")) == 40

    def test_a_small_file_is_left_alone_though_it_is_mostly_free(self, directory):
        self.filled(directory, {b"%05d" % i: bytes(4000) for i in range(2000)})
        store = self.open(directory, "v1")
        store.write((b"%05d" % i, None) for i in range(2000) if i % 50)
        store.commit("v2")
        assert [path.name for path in directory.glob("*.mdb")] == ["state-1.mdb"]

    def test_a_file_whose_free_pages_are_used_again_is_left_alone(self, directory):
        self.filled(directory, {b"%05d" % i: bytes(4000) for i in range(2000)}, "v0")
        for epoch in range(5):
            store = self.open_small(directory, f"v{epoch}")
            store.write((b"%05d" % i, bytes([epoch]) * 4000) for i in range(2000))
            store.commit(f"v{epoch + 1}")
        assert [path.name for path in directory.glob("*.mdb")] == ["state-1.mdb"]

    def test_a_process_killed_while_it_compacts_leaves_a_whole_store(self, tmp_path):
        program = """
from holdfast.state.store.lmdb import LmdbStore
from holdfast.state.store.lock import StoreLock
directory = Path(sys.argv[2])
lock = StoreLock.acquire(directory)
store = LmdbStore(directory, 'v1', lock, compact_from=4_000_000)
store.write((b"%05d" % i, None) for i in range(6000) if i % 8)
say('now')
start = time.perf_counter()
store.commit('v2')
say(time.perf_counter() - start)
"""
        self.filled(tmp_path / "full", {b"%05d" % i: bytes(4000) for i in range(6000)})
        shutil.copytree(tmp_path / "full", tmp_path / "timed")
        took = float(run_child(self.backend, tmp_path / "timed", program))
        assert (tmp_path / "timed" / "state-2.mdb").exists()
        for moment in range(8):
            directory = tmp_path / str(moment)
            shutil.copytree(tmp_path / "full", directory)
            with child(self.backend, directory, program) as process:
                assert heard(process) == "now"
                kill_after(process, took * (moment + 0.5) / 8)
            try:
                found = self.contents(directory, "v2")
            except StoreVersionError:
                assert len(self.contents(directory, "v1")) == 6000
            else:
                assert list(found) == [b"%05d" % i for i in range(0, 6000, 8)]
            assert len(list(directory.glob("state*"))) == 2

    def test_what_a_dead_compaction_left_is_removed(self, directory):
        self.filled(directory, {b"a": b"1"})
        (directory / "state-1.mdb").rename(directory / "state-7.mdb")
        for leftover in ("state.copy", "state-6.mdb", "state-6.mdb-lock"):
            (directory / leftover).write_bytes(b"half")
        assert self.contents(directory, "v1") == {b"a": b"1"}
        names = sorted(path.name for path in directory.glob("state*"))
        assert names[0] == "state-1.mdb-lock"
        assert names[1:] == ["state-7.mdb", "state-7.mdb-lock"]

    def test_a_snapshot_that_does_not_fit_on_the_disk_fails_and_the_store_has_moved_on(
        self, directory
    ):
        self.filled(directory, {b"%05d" % i: bytes(1000) for i in range(9000)})
        program = """
store = open_at('v1')
store.write([(b'a', b'1')])
resource.setrlimit(resource.RLIMIT_FSIZE, (5_000_000, 5_000_000))
try:
    store.commit('v2', Path(sys.argv[2] + '-snapshot'))
except HoldfastError as error:
    say(f"{type(error).__name__}: {error}")
"""
        said = run_child(self.backend, directory, program)
        assert said.startswith("StateError: no snapshot could be made of the store at 'v2'")
        assert len(self.contents(directory, "v2")) == 9001
        assert [path.name for path in directory.parent.iterdir()] == [directory.name]

    def test_a_store_that_is_compacted_has_a_snapshot_of_the_same(self, directory, tmp_path):
        self.filled(directory, {b"%05d" % i: bytes(4000) for i in range(2000)})
        store = self.open_small(directory, "v1")
        store.write((b"%05d" % i, None) for i in range(2000) if i % 50)
        store.commit("v2", tmp_path / "snapshot")
        assert [path.name for path in directory.glob("*.mdb")] == ["state-2.mdb"]
        assert self.read(tmp_path / "snapshot") == self.contents(directory, "v2")

    @pytest.mark.parametrize("size", [0, 100, 8192, 100_000, 180_000])
    def test_a_snapshot_that_was_cut_off_is_refused(self, tmp_path, size):
        snapshot = self.made(tmp_path, {b"%06d" % i: b"v" * 50 for i in range(3000)})
        assert (snapshot / "state-1.mdb").stat().st_size > 200_000
        os.truncate(snapshot / "state-1.mdb", size)
        with pytest.raises(StateError, match=str(snapshot)):
            self.read(snapshot)
        with pytest.raises(StateError, match=str(snapshot)):
            self.restored([snapshot], tmp_path / "new", whole=True)
        assert not (tmp_path / "new").exists()

    @pytest.mark.parametrize("damage", [b"", b"not a database", bytes(300_000)])
    def test_a_damaged_file_is_refused(self, directory, damage):
        self.filled(directory, {b"a": b"1"})
        (directory / "state-1.mdb").write_bytes(damage)
        with pytest.raises(StateError, match=str(directory)):
            self.open(directory, "v1")

    def test_keys_of_the_same_hash_are_kept_apart(self, tmp_path):
        environment = lmdb.open(str(tmp_path), max_dbs=1)
        table = LongKeys(environment.open_db(b"long"), digest=lambda key: bytes(16))
        stem = b"s" * 495
        keys = [stem + bytes([i]) * 50 for i in range(9)]
        with environment.begin(write=True) as transaction:
            for key in keys:
                table.put(transaction, key, b"v" + key[-1:])
            table.put(transaction, keys[3], None)
            table.put(transaction, keys[4], b"other")
            assert table.get(transaction, keys[3]) is None
            assert table.get(transaction, keys[4]) == b"other"
            assert table.get(transaction, keys[5]) == b"v\x05"
            assert [key for key, _ in table.scan(transaction, stem)] == keys[:3] + keys[4:]
            for key in keys:
                table.put(transaction, key, None)
            assert list(table.scan(transaction, b"")) == []
        environment.close()


class TestRocksDBStore(StoreContract, StoreSurvival, SnapshotContract):
    backend = "rocksdb"

    def open(self, directory: Path, expected: str | None = None) -> StateStore:
        return open_store(EmbeddedRocksDBStateBackend(), directory, expected, patience=0)

    def test_files_are_merged_before_they_are_many(self, directory):
        version = None
        for epoch in range(5 * FILES_BEFORE_MERGE):
            store = self.open(directory, version)
            store.write((b"%05d" % (i * 7919 % 100_000), b"%d" % epoch) for i in range(2000))
            version = f"v{epoch}"
            store.commit(version)
            assert len(list(directory.rglob("*.sst"))) <= FILES_BEFORE_MERGE + 2

    def test_a_store_may_be_opened_with_other_options_than_it_was_written_with(self, directory):
        version, model = None, dict[bytes, bytes]()
        for number, backend in enumerate(
            [
                EmbeddedRocksDBStateBackend(compression="lz4"),
                EmbeddedRocksDBStateBackend(compression="zstd", bloom_bits_per_key=0),
                EmbeddedRocksDBStateBackend(block_cache_bytes=2**20),
            ]
            * 4
        ):
            store = open_store(backend, directory, version)
            assert store.get_many(list(model)) == list(model.values())
            fresh = {b"%d-%d" % (number, i): b"v" * 100 for i in range(1000)}
            store.write(fresh.items())
            model |= fresh
            version = f"v{number}"
            store.commit(version)
        assert self.contents(directory, "v11") == model

    def test_snapshots_and_stores_taken_over_share_the_files_of_the_store(self, tmp_path):
        snapshot = self.made(tmp_path, {b"%06d" % i: b"v" * 50 for i in range(20_000)})
        self.restored([snapshot], tmp_path / "new", whole=True)
        store = self.open(tmp_path / "store", "v1")
        store.write([(b"a", b"1")])
        store.commit("v2", tmp_path / "later")
        for file in filter(is_shareable, snapshot_files(snapshot)):
            inode = (snapshot / file).stat().st_ino
            assert (tmp_path / "later" / file).stat().st_ino == inode
            assert (tmp_path / "new" / "rocksdb" / file).stat().st_ino == inode

    def test_a_snapshot_on_another_disk_is_copied(self, tmp_path, monkeypatch):
        model = {b"%06d" % i: b"v" * 50 for i in range(2000)}
        snapshot = self.made(tmp_path, model)

        def refuse(source: Path, target: Path) -> None:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

        monkeypatch.setattr(os, "link", refuse)
        self.restored([snapshot], tmp_path / "new", whole=True)
        assert self.found(tmp_path / "new") == model

    @pytest.mark.parametrize("damage", ["CURRENT", "MANIFEST-*", "*.sst"])
    def test_a_damaged_snapshot_is_refused_or_reported_never_misread(self, tmp_path, damage):
        model = {b"%06d" % i: b"%d" % i * 20 for i in range(20_000)}
        snapshot = self.made(tmp_path, model)
        for path in snapshot.glob(damage):
            data = bytearray(path.read_bytes())
            middle = len(data) // 2
            data[middle : middle + 64] = bytes(byte ^ 0xFF for byte in data[middle : middle + 64])
            path.write_bytes(data)
        with pytest.raises(StateError, match=str(snapshot)):
            assert self.read(snapshot) == model, "misread"

    @pytest.mark.parametrize("damage", ["CURRENT", "MANIFEST-*", "*.sst"])
    def test_a_damaged_store_is_refused_or_reported_never_misread(self, directory, damage):
        model = {b"%06d" % i: b"%d" % i * 20 for i in range(20_000)}
        self.filled(directory, model)
        for path in (directory / "rocksdb").glob(damage):
            data = bytearray(path.read_bytes())
            middle = len(data) // 2
            data[middle : middle + 64] = bytes(byte ^ 0xFF for byte in data[middle : middle + 64])
            path.write_bytes(data)
        with pytest.raises(StateError, match=str(directory)):
            assert self.contents(directory, "v1") == model, "misread"
