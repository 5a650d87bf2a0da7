"""A part of a RocksDB snapshot is enough for a part of the key groups."""

from __future__ import annotations

import random
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import rocksdict

from holdfast import EmbeddedRocksDBStateBackend
from holdfast.checkpoint.restore.download import Restore, RestoreTarget, StoredCopy, restore_one
from holdfast.checkpoint.transfer import upload_snapshot
from holdfast.errors import CorruptCheckpointError, StateError
from holdfast.job.model import JobIdentity
from holdfast.state.snapshots import files_with, open_snapshot
from holdfast.state.store.header import encode_record
from holdfast.state.store.opening import open_store
from holdfast.state.store.process import ProcessIdentity
from holdfast.state.store.rocksdb_options import FILES_BEFORE_MERGE, database_options
from holdfast.state.store.snapshot import snapshot_files
from holdfast.storage.file_system import FileSystemFiles

if TYPE_CHECKING:
    from pathlib import Path

BACKEND = EmbeddedRocksDBStateBackend()
OPERATOR = b'{"format": 1, "max_parallelism": 128, "key": "int"}'
COMMITS = FILES_BEFORE_MERGE + 1
"""With these, all files are merged into those of the lowest level."""
Entries = dict[bytes, bytes]


def entry_key(state: int, group: int, rest: bytes) -> bytes:
    return state.to_bytes(2, "big") + group.to_bytes(2, "big") + rest


def scattered(chance: random.Random, groups: range) -> Entries:
    """Entries of some states: many, few, or none at all in long stretches of key groups."""
    entries: Entries = {}
    for state in chance.sample(range(1, 40), 6):
        some = chance.sample(groups, chance.choice([1, 3, len(groups) // 3, len(groups)]))
        for group in some:
            for _ in range(chance.choice([1, 2, 40])):
                entries[entry_key(state, group, chance.randbytes(8))] = chance.randbytes(200)
    return entries


def many_files(directory: Path, entries: Entries, later: Entries) -> None:
    """A snapshot's files, smaller than a store's are: most in the lowest level, some above."""
    options = database_options(BACKEND)
    options.set_target_file_size_base(4096)
    options.set_disable_auto_compactions(True)
    database = rocksdict.Rdict(str(directory), options, {"default": options})
    described = {b"": encode_record("7-1"), b"\x00\x00operator": OPERATOR}
    for keys in (sorted(entries)[::2], sorted(entries)[1::2]):
        for key in keys:
            database[key] = entries[key]
        for key, value in described.items():
            database[key] = value
        database.flush()
    database.compact_range(None, None)
    for key, value in ({b"": encode_record("8-1")} | later).items():
        database[key] = value
    database.flush()
    database.close()
    for log in directory.glob("*.log"):
        log.unlink()


def partial_copy(whole: Path, directory: Path, groups: range) -> int:
    """What a reader of the key groups needs; the number of table files it does without."""
    directory.mkdir()
    names = [file.name for file in snapshot_files(whole)]
    for name in names:
        if not name.endswith(".sst"):
            shutil.copyfile(whole / name, directory / name)
    needed = files_with(groups, directory)
    for name in needed:
        shutil.copyfile(whole / name, directory / name)
    return sum(name.endswith(".sst") for name in names) - len(needed)


@pytest.mark.parametrize("seed", range(6))
def test_a_part_of_the_files_gives_all_entries_of_its_key_groups(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    groups = range(128)
    entries, later = scattered(chance, groups), scattered(chance, groups)
    many_files(tmp_path / "whole", entries, later)
    spared = 0
    for start, stop in [(0, 1), (0, 43), (43, 86), (64, 128), (100, 101), (127, 128)]:
        part = tmp_path / f"part-{start}-{stop}"
        spared += partial_copy(tmp_path / "whole", part, range(start, stop))
        with open_snapshot(BACKEND, part, partial=True) as snapshot:
            assert snapshot.version == "8-1"
            assert list(snapshot.scan(b"\x00\x00operator")) == [(b"\x00\x00operator", OPERATOR)]
            for state in range(42):
                first, last = entry_key(state, start, b""), entry_key(state, stop, b"")
                wanted = {k: v for k, v in (entries | later).items() if first <= k < last}
                prefix = state.to_bytes(2, "big")
                if state:
                    assert dict(snapshot.scan(prefix, first, last)) == wanted
    assert spared > 20


def test_reading_where_files_are_missing_is_an_error(tmp_path: Path) -> None:
    chance = random.Random(1)
    entries = {entry_key(1, group, b"%d" % n): b"v" * 200 for group in range(128) for n in range(9)}
    many_files(tmp_path / "whole", entries, scattered(chance, range(4)))
    assert partial_copy(tmp_path / "whole", tmp_path / "part", range(100, 128)) > 10
    with (
        open_snapshot(BACKEND, tmp_path / "part", partial=True) as snapshot,
        pytest.raises(StateError, match="cannot be read"),
    ):
        list(snapshot.scan(b"\x00\x01", entry_key(1, 50, b""), entry_key(1, 60, b"")))


def test_a_whole_snapshot_is_not_opened_if_a_file_is_missing(tmp_path: Path) -> None:
    chance = random.Random(2)
    many_files(tmp_path / "whole", scattered(chance, range(128)), {})
    next(iter((tmp_path / "whole").glob("*.sst"))).unlink()
    with pytest.raises(StateError, match="No such file"):
        open_snapshot(BACKEND, tmp_path / "whole")


def below(directory: Path) -> RestoreTarget:
    """Restores below a directory."""
    job = JobIdentity("job", "Job", str(directory), "2-1")
    return RestoreTarget(job, ProcessIdentity.current(), BACKEND)


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> tuple[Restore, FileSystemFiles, Entries]:
    """A store of several files, as commits and merges make them, in checkpoint storage."""
    directory = tmp_path_factory.mktemp("stored")
    chance = random.Random(3)
    entries: Entries = {}
    version: str | None = None
    for epoch in range(1, COMMITS + 1):
        some = {
            entry_key(1, chance.randrange(128), chance.randbytes(8)): chance.randbytes(2000)
            for _ in range(4000)
        }
        store = open_store(BACKEND, directory / "store", version)
        if version is None:
            described = b'{"id": 1, "kind": "value", "schema": ["bytes"]}'
            store.write([(b"\x00\x00operator", OPERATOR), (b"\x00\x00statetotals", described)])
        store.write(some.items())
        version = f"{epoch}-1"
        last = epoch == COMMITS
        if last:
            # A merge is due now, but on a busy machine it begins too late for the snapshot.
            store.reclaim(b"")
        store.commit(version, directory / "snapshot" if last else None)
        entries |= some
    files = FileSystemFiles(str(directory / "checkpoints"))
    handles, _ = upload_snapshot(directory / "snapshot", files, 1)
    order = Restore(
        target=below(directory),
        uid="count",
        subtask=0,
        version="restored-1-2-1",
        copies=(StoredCopy(handles, f"{COMMITS}-1"),),
        kind=BACKEND.name,
        whole=False,
        key_groups=range(128),
        operator_state=None,
    )
    return order, files, entries


def test_a_new_subtask_downloads_the_files_of_its_key_groups_only(
    stored: tuple[Restore, FileSystemFiles, Entries], tmp_path: Path
) -> None:
    order, files, entries = stored
    (copy,) = order.copies
    size = sum(handle.size for handle in copy.files.values())
    for number, groups in enumerate([range(16), range(60, 68), range(112, 128)]):
        one = replace(order, key_groups=groups, subtask=number, target=below(tmp_path))
        restored = restore_one(one, files=files)
        assert restored.downloaded < size * 0.6
        local = one.target.store("count", number)
        store = open_store(BACKEND, local, restored.version)
        wanted = {k: v for k, v in entries.items() if int.from_bytes(k[2:4], "big") in groups}
        assert dict(store.scan(b"\x00\x01")) == wanted
        store.abort()


def test_a_journal_that_names_a_file_the_checkpoint_does_not_list_is_refused(
    stored: tuple[Restore, FileSystemFiles, Entries], tmp_path: Path
) -> None:
    order, files, _ = stored
    (copy,) = order.copies
    lost = max(name for name in copy.files if name.endswith(".sst"))
    without = {name: handle for name, handle in copy.files.items() if name != lost}
    copies = (StoredCopy(without, copy.version),)
    broken = replace(order, copies=copies, target=below(tmp_path))
    with pytest.raises(CorruptCheckpointError, match=lost):
        restore_one(broken, files=files)
