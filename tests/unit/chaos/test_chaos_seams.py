"""What chaos runs disturb a job with does what it says."""

from __future__ import annotations

import errno
import random
import time
from itertools import count
from typing import TYPE_CHECKING

import pytest

from holdfast.clock import SystemClock, monotonic
from holdfast.errors import CheckpointStorageError
from holdfast.storage.file_system import FileSystemFiles
from tests.chaos import seams
from tests.chaos.disks import SmallDisk, may_mount
from tests.chaos.ground import flip_bits
from tests.chaos.seams import CALM, LOOK_EVERY, Glance, Seams, Weather

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HOUR_MS = 3_600_000


@pytest.fixture
def disturbed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Seams]:
    """The seams of this process, which are taken out again."""
    import fsspec
    from fsspec.registry import _registry

    monkeypatch.setenv(seams.DIRECTORY, str(tmp_path))
    # Put back when the test ends.
    monkeypatch.setattr(SystemClock, "now_ms", SystemClock.now_ms)
    monkeypatch.setattr(seams, "LOOK_EVERY", 0.0)
    seams.install()
    yield Seams(tmp_path)
    fsspec.filesystem("flaky").clear_instance_cache()
    _registry.pop("flaky", None)


@pytest.fixture
def files(tmp_path: Path, disturbed: Seams) -> FileSystemFiles:
    return FileSystemFiles(f"flaky://{tmp_path}/checkpoints")


def test_the_clock_steps_and_durations_do_not(disturbed: Seams) -> None:
    wall, durations = SystemClock().now_ms(), monotonic()
    for hours in (5, -5):
        disturbed.step_clock(hours * HOUR_MS)
        assert SystemClock().now_ms() - wall == pytest.approx(hours * HOUR_MS, abs=60_000)
    assert monotonic() - durations < 60


def test_without_the_variable_nothing_is_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(seams.DIRECTORY, raising=False)
    before = SystemClock.now_ms
    seams.install()
    assert SystemClock.now_ms is before


def test_storage_in_calm_weather_does_what_storage_does(files: FileSystemFiles) -> None:
    handle = files.write_bytes("chk-1/part", b"content")
    assert files.read_bytes(handle) == b"content"
    assert files.create_exclusive("chk-1/_metadata", b"1")
    assert not files.create_exclusive("chk-1/_metadata", b"2")
    assert files.read("chk-1/_metadata") == b"1"
    assert files.entries("chk-1") == {"part": 7, "_metadata": 1}
    assert files.entries("chk-2") == {}
    files.delete("chk-1/part")
    assert not files.exists("chk-1/part")
    files.delete_tree("chk-1")
    assert files.entries() == {}


def test_storage_in_bad_weather_fails_with_the_errors_of_storage(
    files: FileSystemFiles, disturbed: Seams
) -> None:
    files.write_bytes("a", b"content")
    files.write_bytes("d/e", b"content")
    disturbed.change(Weather(failing=1.0))
    for request in (
        lambda: files.write_bytes("b", b"content"),
        lambda: files.create_exclusive("c", b"content"),
        lambda: files.read("a"),
        lambda: files.exists("a"),
        lambda: files.entries(),
        lambda: files.delete("a"),
        lambda: files.delete_tree("d"),
    ):
        with pytest.raises(CheckpointStorageError):
            request()
    disturbed.change(CALM)
    files.write_bytes("b", b"content")


def test_what_fails_may_have_happened_all_the_same(
    files: FileSystemFiles, disturbed: Seams
) -> None:
    files.write_bytes("x/any", b"")
    happened = set()
    for number in range(40):
        disturbed.change(Weather(failing=1.0))
        with pytest.raises(CheckpointStorageError):
            files.create_exclusive(f"x/{number}", b"whole")
        disturbed.change(CALM)
        happened.add(files.read(f"x/{number}"))
    assert happened == {None, b"whole"}


def test_a_write_that_fails_leaves_half_of_it(tmp_path: Path, disturbed: Seams) -> None:
    import fsspec

    disturbed.change(Weather(failing=1.0))
    path = tmp_path / "half"
    system = fsspec.filesystem("flaky")
    with pytest.raises(OSError, match="Input/output"), system.open(f"flaky://{path}", "wb") as file:
        file.write(b"12345678")
    assert path.read_bytes() == b"1234"


def test_full_storage_takes_nothing_and_gives_everything(
    files: FileSystemFiles, disturbed: Seams
) -> None:
    handle = files.write_bytes("a", b"content")
    disturbed.change(Weather(full=True))
    with pytest.raises(CheckpointStorageError, match="No space left"):
        files.write_bytes("b", b"content")
    with pytest.raises(CheckpointStorageError, match="No space left"):
        files.create_exclusive("c", b"content")
    assert files.read_bytes(handle) == b"content"
    assert sorted(files.entries()) == ["a"]


def test_slow_storage_takes_its_time(files: FileSystemFiles, disturbed: Seams) -> None:
    disturbed.change(Weather(slow=1.0, delay=0.05))
    start = time.monotonic()
    for _ in range(20):
        files.exists("a")
    assert time.monotonic() - start > 0.1


def test_a_glance_is_taken_for_granted_for_a_moment() -> None:
    glance = Glance(count(1).__next__)
    assert {glance() for _ in range(3)} == {1}
    glance._until = time.monotonic() - LOOK_EVERY
    assert glance() == 2


@pytest.mark.skipif(not may_mount(), reason="needs the right to mount a file system")
def test_a_small_disk_is_full_as_long_as_it_is_told(tmp_path: Path) -> None:
    disk = SmallDisk(tmp_path / "disk", megabytes=2)
    try:
        (disk.data / "kept").write_bytes(bytes(100_000))
        with disk.full():
            while disk.free():
                time.sleep(0.01)
            with pytest.raises(OSError, match="No space") as raised:
                (disk.data / "more").write_bytes(bytes(10_000))
            assert raised.value.errno == errno.ENOSPC
        (disk.data / "more").write_bytes(bytes(10_000))
    finally:
        disk.unmount()
    assert [*(tmp_path / "disk").iterdir()] == []


def test_bits_flip_in_a_copy_and_not_in_what_it_was_linked_to(tmp_path: Path) -> None:
    store, copy = tmp_path / "store", tmp_path / "copy"
    content = bytes(1000) + b"x" * 1000
    store.write_bytes(content)
    flipped = set()
    for seed in range(20):
        copy.hardlink_to(store)
        flip_bits(copy, random.Random(seed))
        assert store.read_bytes() == content
        damaged = copy.read_bytes()
        assert len(damaged) == 2000
        assert not any(damaged[:1000])
        flipped.add(
            sum((one ^ other).bit_count() for one, other in zip(content, damaged, strict=True))
        )
        assert copy.stat().st_mtime_ns == store.stat().st_mtime_ns
        copy.unlink()
    assert flipped == {1, 10}
