"""A local copy of a store is used only if it is, bit by bit, what the checkpoint holds."""

from __future__ import annotations

import random
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from holdfast import EmbeddedRocksDBStateBackend, HashMapStateBackend
from holdfast.checkpoint.restore import download
from holdfast.checkpoint.restore.download import Restore, RestoreTarget, StoredCopy, restore_one
from holdfast.checkpoint.transfer import upload_snapshot
from holdfast.errors import StateError
from holdfast.job.model import JobIdentity
from holdfast.runtime.report import STORE
from holdfast.state.restore import restore_store
from holdfast.state.store import header as store_record
from holdfast.state.store.opening import open_store
from holdfast.state.store.process import ProcessIdentity
from holdfast.storage.file_system import FileSystemFiles

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.checkpoint.restore.download import Restored

BACKENDS = [HashMapStateBackend(), EmbeddedRocksDBStateBackend()]
ENTRIES = {
    number.to_bytes(4, "big") + b"key": str(number * 125).encode() * 3 for number in range(300)
}
FLIPS_PER_FILE = 6


class Backup:
    """A checkpoint of one store, in storage and as a local copy."""

    def __init__(
        self, tmp_path: Path, backend: Any, inline_below: int = 0, name: str = "backup"
    ) -> None:
        self.directory = tmp_path
        self.files = FileSystemFiles(str(tmp_path / "checkpoints"))
        self.copy = tmp_path / name / "chk-1" / "count" / "0-1"
        entries = iter(ENTRIES.items())
        version = None
        for epoch in (1, 2, 3):
            store = open_store(backend, tmp_path / f"{name}-store", version)
            store.write([next(entries) for _ in range(100)])
            version = f"{epoch}-1"
            store.commit(version, self.copy / STORE if epoch == 3 else None)
        handles, self.size = upload_snapshot(
            self.copy / STORE, self.files, 1, inline_below=inline_below
        )
        self.order = Restore(
            target=RestoreTarget(
                JobIdentity("job", "Job", str(tmp_path / "local"), "2-0"),
                ProcessIdentity.current(),
                backend,
            ),
            uid="count",
            subtask=0,
            version="restored-1-2",
            copies=(StoredCopy(handles, "3-1", str(self.copy)),),
            kind=backend.name,
            whole=True,
            key_groups=range(128),
            operator_state=None,
        )
        self._restores = 0

    def file_names(self) -> list[str]:
        return sorted(self.order.copies[0].files)

    def restore(self, **changes: Any) -> tuple[Restored, dict[bytes, bytes]]:
        """Restore as another job attempt; what became of it, and the entries there are then."""
        self._restores += 1
        job = replace(self.order.target.job, job_attempt=f"2-{self._restores}")
        order = replace(self.order, target=replace(self.order.target, job=job), **changes)
        restored = restore_one(order, files=self.files)
        store = open_store(order.target.backend, order.target.store("count", 0), restored.version)
        entries = dict(store.scan(b""))
        store.abort()
        return restored, entries


@pytest.fixture(params=BACKENDS, ids=lambda backend: backend.name)
def backend(request: Any) -> Any:
    return request.param


@pytest.fixture(params=[0, 1 << 20], ids=["files", "inline"])
def backup(request: Any, tmp_path: Path, backend: Any) -> Backup:
    return Backup(tmp_path, backend, request.param)


def flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def is_from_storage(restored: Restored, backup: Backup) -> bool:
    return not restored.local and restored.downloaded == backup.size


def test_a_copy_that_is_whole_spares_the_download(backup: Backup) -> None:
    restored, entries = backup.restore()
    assert entries == ENTRIES
    assert restored.local
    assert restored.downloaded == 0
    assert restored.distrusted == ()
    assert backup.copy.exists()


def test_no_flipped_bit_of_any_file_of_a_copy_reaches_the_state(backup: Backup) -> None:
    chance = random.Random(5)
    whole = backup.directory / "whole"
    shutil.copytree(backup.copy, whole)
    for name in backup.file_names():
        data = (whole / STORE / name).read_bytes()
        bits = {0, 8 * len(data) - 1}
        bits |= {chance.randrange(8 * len(data)) for _ in range(FLIPS_PER_FILE)}
        for bit in sorted(bits):
            shutil.rmtree(backup.copy, ignore_errors=True)
            shutil.copytree(whole, backup.copy)
            (backup.copy / STORE / name).write_bytes(flipped(data, bit))
            restored, entries = backup.restore()
            assert entries == ENTRIES, (name, bit)
            assert is_from_storage(restored, backup), (name, bit)
            assert name in restored.distrusted[0]
            assert not backup.copy.exists(), "it is not to be tried again"


@pytest.mark.parametrize("change", ["cut", "longer", "gone", "one more"])
def test_a_copy_with_other_files_than_the_checkpoint_is_not_used(
    backup: Backup, change: str
) -> None:
    name = backup.file_names()[-1]
    file = backup.copy / STORE / name
    match change:
        case "cut":
            file.write_bytes(file.read_bytes()[:-1])
        case "longer":
            file.write_bytes(file.read_bytes() + b"\0")
        case "gone":
            file.unlink()
        case _:
            (backup.copy / STORE / "999999.sst").write_bytes(b"x")
    restored, entries = backup.restore()
    assert entries == ENTRIES
    assert is_from_storage(restored, backup)


def test_a_copy_of_an_earlier_boot_is_not_used(
    backup: Backup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of it was forced to disk: what is read now may not be what is read later."""
    for module in (download, store_record):
        monkeypatch.setattr(module, "boot_id", lambda: "the-boot-after")
    restored, entries = backup.restore()
    assert entries == ENTRIES
    assert is_from_storage(restored, backup)
    assert "restarted" in restored.distrusted[0]


def test_a_copy_of_another_version_is_not_used(backup: Backup) -> None:
    (copy,) = backup.order.copies
    restored, _ = backup.restore(copies=(replace(copy, version="4-1"),))
    assert is_from_storage(restored, backup)


def test_a_copy_that_is_not_here_is_nothing_to_speak_of(backup: Backup) -> None:
    """The subtask has moved to another executor."""
    shutil.rmtree(backup.copy)
    restored, entries = backup.restore()
    assert entries == ENTRIES
    assert is_from_storage(restored, backup)
    assert restored.distrusted == ()


def test_a_restore_that_fails_with_a_copy_goes_to_storage(
    backup: Backup, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = restore_store

    def fails(given: Any, sources: list[Path], target: Path, **options: Any) -> Any:
        if any(source.is_relative_to(backup.copy) for source in sources):
            raise StateError("the copy cannot be read")
        return build(given, sources, target, **options)

    monkeypatch.setattr(download, "restore_store", fails)
    restored, entries = backup.restore()
    assert entries == ENTRIES
    assert is_from_storage(restored, backup)
    assert "the copy cannot be read" in restored.distrusted[0]
    assert not backup.copy.exists()


def test_a_restore_that_fails_without_a_copy_fails(
    backup: Backup, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise StateError("no room")

    monkeypatch.setattr(download, "restore_store", fails)
    (copy,) = backup.order.copies
    with pytest.raises(StateError, match="no room"):
        backup.restore(copies=(replace(copy, local=None),))
    assert backup.copy.exists()


def test_a_part_of_a_copy_is_verified_too(tmp_path: Path) -> None:
    """With another parallelism only entries of some key groups are taken from it."""
    backup = Backup(tmp_path, EmbeddedRocksDBStateBackend())
    sst = next(name for name in backup.file_names() if name.endswith(".sst"))
    file = backup.copy / STORE / sst
    data = file.read_bytes()
    file.unlink()  # The store has a link to it.
    file.write_bytes(flipped(data, 800))
    restored, _ = backup.restore(whole=False)
    assert not restored.local
    assert sst in restored.distrusted[0]


def test_one_bad_copy_of_several_leaves_the_others_in_use(tmp_path: Path, backend: Any) -> None:
    good, bad = Backup(tmp_path, backend), Backup(tmp_path, backend, name="bad")
    (bad.copy / STORE / bad.file_names()[0]).unlink()
    copies = (good.order.copies[0], bad.order.copies[0])
    restored, _ = good.restore(whole=False, copies=copies)
    assert not restored.local
    assert 0 < restored.downloaded <= bad.size
    assert good.copy.exists()
    assert not bad.copy.exists()
