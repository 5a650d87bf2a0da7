"""Rows that wait in checkpoint storage: kept whole, read back verified, or not at all."""

from __future__ import annotations

import pickle
import tempfile
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from holdfast.api.sinks import StagedRows
from holdfast.checkpoint.files.channel_state import FileStaging
from holdfast.checkpoint.files.layout import STAGED
from holdfast.errors import CheckpointStorageError, CorruptCheckpointError
from holdfast.storage.file_system import FileSystemFiles
from holdfast.storage.files import InlineLimits
from holdfast.storage.handles import FileHandle, InlineHandle, inline
from holdfast.storage.memory import InlineFiles, MemoryNames
from tests.support import checkpoints as _register_file_systems  # noqa: F401

if TYPE_CHECKING:
    from pathlib import Path

SPILL_AT = 200
"""Bytes above which rows go to a local file, where a test wants that."""
SCHEMA = pa.schema([("k", pa.string()), ("n", pa.int64())])


def batch(start: int, count: int = 3) -> pa.RecordBatch:
    numbers = range(start, start + count)
    return pa.record_batch([[f"key-{n}" for n in numbers], list(numbers)], schema=SCHEMA)


def numbers(staging: FileStaging, staged: StagedRows) -> list[int]:
    return [n for rows in staging.get(staged) for n in rows.column("n").to_pylist()]


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory for local files, which a test finds empty again."""
    directory = tmp_path / "scratch"
    directory.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(directory))
    return directory


def test_few_rows_travel_in_their_handle(files: FileSystemFiles) -> None:
    staging = FileStaging(files, 10_000)
    staged = staging.put("few", [batch(0), batch(3)], SCHEMA)
    assert isinstance(staged.handle, InlineHandle)
    assert (staged.rows, staged.size) == (6, staged.handle.size)
    assert numbers(staging, staged) == [0, 1, 2, 3, 4, 5]
    assert files.entries() == {}


def test_rows_of_just_the_size_that_is_too_much_go_to_a_file(files: FileSystemFiles) -> None:
    size = FileStaging(files, 10_000).put("few", [batch(0)], SCHEMA).size
    assert isinstance(
        FileStaging(files, size + 1).put("few", [batch(0)], SCHEMA).handle, InlineHandle
    )
    assert isinstance(FileStaging(files, size).put("few", [batch(0)], SCHEMA).handle, FileHandle)


def test_more_rows_go_to_a_file_named_after_them(files: FileSystemFiles) -> None:
    staging = FileStaging(files)
    staged = staging.put("1-1-7-0-3-rows", [batch(0), batch(3)], SCHEMA)
    assert isinstance(staged.handle, FileHandle)
    [(name, size)] = files.entries(STAGED).items()
    assert staged.handle.path == f"{STAGED}/{name}"
    assert name.startswith("1-1-7-0-3-rows~")
    assert staged.size == size
    assert numbers(staging, staged) == [0, 1, 2, 3, 4, 5]


def test_the_same_name_twice_makes_two_files(files: FileSystemFiles) -> None:
    staging = FileStaging(files)
    first, second = (staging.put("same", [batch(n)], SCHEMA) for n in (0, 10))
    assert numbers(staging, first) == [0, 1, 2]
    assert numbers(staging, second) == [10, 11, 12]


def test_no_rows_at_all_can_be_kept(files: FileSystemFiles) -> None:
    staging = FileStaging(files)
    staged = staging.put("none", [], SCHEMA)
    assert staged.rows == 0
    assert list(staging.get(staged)) == []


def test_many_rows_pass_through_a_local_file_that_goes_again(
    files: FileSystemFiles, scratch: Path
) -> None:
    staging = FileStaging(files, 10_000_000, spill_at=SPILL_AT)
    rows = staging.open("many", SCHEMA)
    rows.write(batch(0))
    rows.write(batch(3, 500))
    assert len(list(scratch.iterdir())) == 1
    staged = rows.close()
    assert list(scratch.iterdir()) == []
    assert isinstance(staged.handle, FileHandle)
    assert numbers(staging, staged) == list(range(503))
    assert list(scratch.iterdir()) == []


def test_a_reader_of_many_rows_that_stops_early_leaves_no_local_file(
    files: FileSystemFiles, scratch: Path
) -> None:
    staging = FileStaging(files, spill_at=SPILL_AT)
    staged = staging.put("many", [batch(0, 200), batch(200, 200)], SCHEMA)
    reading: Any = staging.get(staged)
    assert next(reading).num_rows == 200
    reading.close()
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize("count", [3, 500], ids=["in memory", "in a local file"])
def test_what_is_dropped_leaves_nothing(files: FileSystemFiles, scratch: Path, count: int) -> None:
    rows = FileStaging(files, spill_at=SPILL_AT).open("dropped", SCHEMA)
    rows.write(batch(0, count))
    rows.abort()
    rows.abort()
    assert list(scratch.iterdir()) == []
    assert files.entries() == {}


def test_rows_that_fail_half_way_leave_nothing(files: FileSystemFiles, scratch: Path) -> None:
    def broken() -> Any:
        yield batch(0, 500)
        raise LookupError("no more")

    # What was caught keeps all that was at work alive.
    with pytest.raises(LookupError, match="no more") as caught:
        FileStaging(files, spill_at=SPILL_AT).put("broken", broken(), SCHEMA)
    assert caught.tb is not None
    assert list(scratch.iterdir()) == []
    assert files.entries() == {}


def test_an_upload_that_fails_leaves_nothing(tmp_path: Path, scratch: Path) -> None:
    full = FileSystemFiles(f"fulldisk://{tmp_path}/full")
    for count in (3, 500):
        rows = FileStaging(full, spill_at=SPILL_AT).open("rows", SCHEMA)
        rows.write(batch(0, count))
        with pytest.raises(CheckpointStorageError, match="free some space"):
            rows.close()
    assert list(scratch.iterdir()) == []
    assert full.entries(STAGED) == {}


def test_a_local_disk_that_fails_is_named(
    files: FileSystemFiles, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(scratch / "missing"))
    rows = FileStaging(files, spill_at=SPILL_AT).open("rows", SCHEMA)
    with pytest.raises(CheckpointStorageError, match=r"missing: writing rows on their way"):
        rows.write(batch(0, 500))
    rows.abort()


def test_columns_take_the_layout_of_the_schema(files: FileSystemFiles) -> None:
    staging = FileStaging(files)
    large = pa.schema([("k", pa.large_string()), ("n", pa.int32())])
    rows = pa.record_batch([["a"], [1]], schema=large)
    [read] = staging.get(staging.put("cast", [rows], SCHEMA))
    assert read.schema == SCHEMA
    assert read.to_pylist() == [{"k": "a", "n": 1}]


@pytest.mark.parametrize("spilled", [False, True])
@pytest.mark.parametrize("damage", ["changed", "cut off", "gone"])
def test_a_damaged_file_is_told(
    files: FileSystemFiles,
    tmp_path: Path,
    spilled: bool,
    damage: str,
) -> None:
    staged = FileStaging(files).put("rows", [batch(0, 50)], SCHEMA)
    staging = FileStaging(files, spill_at=10 if spilled else 1_000_000)
    path = tmp_path / "job" / staged.handle.path
    data = bytearray(path.read_bytes())
    match damage:
        case "changed":
            data[len(data) // 2] ^= 1
            path.write_bytes(data)
        case "cut off":
            path.write_bytes(data[:-1])
        case _:
            path.unlink()
    with pytest.raises(CorruptCheckpointError, match="restore from another checkpoint"):
        list(staging.get(staged))


@pytest.mark.parametrize("kept", [0, 20, 60, 300])
def test_rows_in_a_handle_that_are_no_rows_are_told(files: FileSystemFiles, kept: int) -> None:
    staging = FileStaging(files, 10_000)
    data = staging.put("rows", [batch(0)], SCHEMA).handle.data
    damaged = StagedRows(inline(data[:kept] + b"\x07" * 50), 3, kept + 50)
    with pytest.raises(CorruptCheckpointError, match="restore from another checkpoint"):
        list(staging.get(damaged))


def test_it_works_on_the_other_side_of_a_pickle(files: FileSystemFiles) -> None:
    staging = pickle.loads(pickle.dumps(FileStaging(files, 10_000)))
    staged = pickle.loads(pickle.dumps(staging.put("few", [batch(0)], SCHEMA)))
    assert isinstance(staged.handle, InlineHandle)
    assert numbers(FileStaging(files), staged) == [0, 1, 2]


def test_a_note_is_found_by_its_name(files: FileSystemFiles) -> None:
    FileStaging(files).note("opened-1-1-7-0-3@orders", b"transaction 7")
    assert files.read(f"{STAGED}/opened-1-1-7-0-3@orders") == b"transaction 7"


# In the driver's memory


@pytest.fixture
def memory(request: pytest.FixtureRequest) -> InlineFiles:
    return InlineFiles(MemoryNames(request.node.name, 10_000), InlineLimits(per_state=2_000))


def test_in_the_drivers_memory_all_rows_travel_in_their_handle(
    memory: InlineFiles, scratch: Path
) -> None:
    staging = pickle.loads(pickle.dumps(FileStaging(memory, spill_at=SPILL_AT)))
    for count in (3, 30):
        staged = staging.put("rows", [batch(0, count)], SCHEMA)
        assert isinstance(staged.handle, InlineHandle)
        assert numbers(staging, staged) == list(range(count))
    assert memory.entries() == {}


@pytest.mark.parametrize("spill_at", [200, 1_000_000])
def test_in_the_drivers_memory_rows_are_limited(
    memory: InlineFiles, scratch: Path, spill_at: int
) -> None:
    with pytest.raises(CheckpointStorageError, match="at most 2000 for one state"):
        FileStaging(memory, spill_at=spill_at).put("rows", [batch(0, 2_000)], SCHEMA)
    assert list(scratch.iterdir()) == []


def test_in_the_drivers_memory_nothing_is_noted(memory: InlineFiles) -> None:
    FileStaging(memory).note("opened-1", b"transaction")
    assert memory.entries() == {}
