"""Positions of sources in checkpoints: in full, in parts, and together again."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.checkpoint.files.metadata import SourceSnapshot
from holdfast.checkpoint.source_positions import (
    PARTS,
    SourceCommits,
    _larger,
    end_of,
    position_of,
    source_snapshots,
)
from holdfast.errors import CheckpointError
from holdfast.job.model import FileLog, QueryPosition, SourcePosition
from holdfast.spark.sources.source import Source
from holdfast.storage.handles import FileHandle
from tests.support.checkpoints import checkpoint
from tests.support.programs import Program

if TYPE_CHECKING:
    from holdfast.checkpoint.files.metadata import CheckpointMetadata
    from holdfast.job.model import JobPlan
    from holdfast.storage.file_system import FileSystemFiles
    from holdfast.storage.handles import Handle

BIG = 100_000
SETTINGS = '{"batchWatermarkMs":0}'


def entry(batch: int) -> str:
    return f'{{"path":"file:///in/{batch:05d}","timestamp":{batch},"batchId":{batch}}}'


def log(after: int, upto: int) -> FileLog:
    return FileLog(after, upto, tuple(map(entry, range(after + 1, upto + 1))))


def file_position(upto: int, after: int = -1) -> QueryPosition:
    leaf = SourcePosition(
        f'{{"logOffset":{upto}}}', f'{{"logOffset":{upto - 1}}}', log(after, upto)
    )
    return QueryPosition(upto, SETTINGS, {"files": (leaf,)})


def completed(position: QueryPosition, sources: list[SourceSnapshot]) -> CheckpointMetadata:
    return msgspec.structs.replace(
        checkpoint(position.batch_id + 1),
        batch_id=position.batch_id,
        sources=sources,
        spark={"offset_metadata": position.metadata},
    )


def chain(
    files: FileSystemFiles, ends: list[int], inline_below: int = 0
) -> list[CheckpointMetadata]:
    """Checkpoints of a file source that stood at these log batches."""
    base: CheckpointMetadata | None = None
    found = []
    after = -1
    for upto in ends:
        position = file_position(upto, after)
        base = completed(position, source_snapshots(position, base, files, upto + 1, inline_below))
        # As it comes back from the file.
        base = msgspec.json.decode(msgspec.json.encode(base), type=type(base))
        found.append(base)
        after = upto
    return found


def parts_of(metadata: CheckpointMetadata) -> list[Any]:
    return metadata.sources[0].logs.get(PARTS, [])


def test_a_source_without_a_log_is_held_in_the_metadata(files: FileSystemFiles) -> None:
    leaf = SourcePosition('{"index":50}', '{"index":40}', files={"0": "v1\n{}"})
    position = QueryPosition(4, SETTINGS, {"numbers": (leaf,)})
    [snapshot] = source_snapshots(position, None, files, 1, 0)
    assert snapshot.logs == {PARTS: []}
    assert position_of(completed(position, [snapshot]), files) == position
    assert files.entries() == {}


def test_a_small_log_is_held_in_the_metadata(files: FileSystemFiles) -> None:
    *_, last = chain(files, [3, 7], inline_below=BIG)
    assert parts_of(last) == []
    assert files.entries() == {}
    assert position_of(last, files) == file_position(7)


def test_a_large_log_is_written_once_and_what_is_new_beside_it(files: FileSystemFiles) -> None:
    first, second, third = chain(files, [9, 13, 14])
    assert [len(parts_of(one)) for one in (first, second, third)] == [1, 2, 3]
    assert parts_of(third)[:2] == parts_of(second)
    written = [json.loads(files.read_bytes(part))[0]["log"] for part in parts_of(third)]
    assert [(part["after"], part["upto"]) for part in written] == [(-1, 9), (9, 13), (13, 14)]
    assert position_of(third, files) == file_position(14)
    assert position_of(first, files) == file_position(9)


def test_parts_are_shared_files_of_the_checkpoint_that_wrote_them(files: FileSystemFiles) -> None:
    _, second = chain(files, [3, 7])
    names = [part.path for part in parts_of(second)]
    assert [name.partition("-")[0] for name in names] == ["shared/4", "shared/8"]


def test_what_is_held_in_the_metadata_waits_until_it_is_large(files: FileSystemFiles) -> None:
    size = len(msgspec.json.encode(file_position(5).sources["files"]))
    checkpoints = chain(files, [2, 4, 6, 8, 10], inline_below=size)
    assert [len(parts_of(one)) for one in checkpoints] == [0, 0, 1, 1, 1]
    assert [position_of(one, files) for one in checkpoints] == [
        file_position(upto) for upto in (2, 4, 6, 8, 10)
    ]


def test_parts_are_merged_with_those_of_their_size(files: FileSystemFiles) -> None:
    checkpoints = chain(files, list(range(64)))
    counts = [len(parts_of(one)) for one in checkpoints]
    assert max(counts) <= 7
    for one in checkpoints:
        sizes = [part.size for part in parts_of(one)]
        assert all(size > sum(sizes[at + 1 :]) for at, size in enumerate(sizes))
    for upto in (0, 30, 31, 32, 63):
        assert position_of(checkpoints[upto], files) == file_position(upto)


@given(st.lists(st.integers(1, 1_000), max_size=200))
def test_however_large_new_parts_are_there_are_few(sizes: list[int]) -> None:
    parts: list[FileHandle] = []
    for size in sizes:
        kept = _larger(parts, size)
        merged = size + sum(part.size for part in parts[kept:])
        parts[kept:] = [FileHandle("", merged, "")]
        assert len(parts) <= sum(sizes).bit_length()


def test_what_is_written_of_a_log_hardly_grows_faster_than_the_log(files: FileSystemFiles) -> None:
    written = []
    for upto in (32, 128):
        before = sum(size or 0 for size in files.entries("shared").values())
        chain(files, list(range(upto)))
        total = sum(size or 0 for size in files.entries("shared").values()) - before
        written.append(total / len(msgspec.json.encode(file_position(upto - 1).sources["files"])))
    # Four times as long: two more times that each entry is written, and not four times as many.
    assert written[1] - written[0] < 3
    assert written[1] < 10


def test_parts_of_one_size_that_were_written_before_become_one(files: FileSystemFiles) -> None:
    """As they were before parts were merged by their size."""
    parts: list[Handle] = [
        files.write_bytes(
            f"shared/{upto + 1}-{upto:02x}",
            msgspec.json.encode(file_position(upto, upto - 1).sources["files"]),
        )
        for upto in range(31)
    ]
    leaf = SourcePosition('{"logOffset":30}', None, FileLog(30, 30, ()))
    old = SourceSnapshot(uid="files", position=msgspec.to_builtins((leaf,)), logs={PARTS: parts})
    base = completed(file_position(30), [old])
    assert position_of(base, files).sources["files"][0].log == log(-1, 30)
    position = file_position(31, 30)
    new = completed(position, source_snapshots(position, base, files, 40, 0))
    assert len(parts_of(new)) == 1
    assert position_of(new, files) == file_position(31)
    # The checkpoint before still needs them, and they go when it does.
    assert {part.path for part in parts if isinstance(part, FileHandle)} <= {
        f"shared/{n}" for n in files.entries("shared")
    }


def test_a_checkpoint_without_new_files_writes_nothing(files: FileSystemFiles) -> None:
    _, second = chain(files, [3, 7])
    before = files.entries("shared")
    still = QueryPosition(
        9, SETTINGS, {"files": (SourcePosition('{"logOffset":7}', None, FileLog(7, 7, ())),)}
    )
    [snapshot] = source_snapshots(still, second, files, 10, 0)
    assert files.entries("shared") == before
    found = position_of(completed(still, [snapshot]), files).sources["files"][0]
    assert found.log == log(-1, 7)


def test_the_end_of_a_position_tells_where_the_next_capture_begins(files: FileSystemFiles) -> None:
    _, second = chain(files, [3, 7])
    end = end_of(second)
    assert (end.batch_id, end.metadata) == (7, SETTINGS)
    [leaf] = end.sources["files"]
    assert (leaf.offset, leaf.log) == ('{"logOffset":7}', FileLog(7, 7, ()))


def test_a_source_that_is_new_or_gone_leaves_the_others_alone(files: FileSystemFiles) -> None:
    *_, base = chain(files, [3])
    new = SourcePosition('{"index":1}')
    both = QueryPosition(4, SETTINGS, {"new": (new,), **file_position(4, 3).sources})
    snapshots = source_snapshots(both, base, files, 5, 0)
    assert [snapshot.uid for snapshot in snapshots] == ["new", "files"]
    whole = position_of(completed(both, snapshots), files)
    assert whole.sources == {"new": (new,), **file_position(4).sources}
    alone = source_snapshots(QueryPosition(5, SETTINGS, {"new": (new,)}), base, files, 6, 0)
    assert [snapshot.uid for snapshot in alone] == ["new"]


# What sources are told of them


class Told:
    """Notes what it is told, and fails if it is to."""

    def __init__(self, error: Exception | None = None) -> None:
        self.offsets: list[str] = []
        self.error = error

    def __call__(self, offset: str) -> None:
        self.offsets.append(offset)
        if self.error is not None:
            raise self.error


def plan_with(**commits: Any) -> JobPlan:
    program = Program()
    for uid, commit in commits.items():
        stream = program.source("n bigint", name=uid).uid(uid)
        stream._edges[0].node.function = Source(uid, False, Told, None, commit=commit)  # type: ignore[arg-type]
        program.collect(stream)
    return program.compile()


def stored(checkpoint_id: int, **offsets: str | None) -> CheckpointMetadata:
    sources = [
        SourceSnapshot(uid=uid, position=msgspec.to_builtins([SourcePosition(offset)]))
        for uid, offset in offsets.items()
    ]
    return msgspec.structs.replace(
        checkpoint(checkpoint_id), sources=sources, spark={"offset_metadata": ""}
    )


def test_sources_that_want_it_are_told_the_offset_in_a_completed_checkpoint() -> None:
    told = Told()
    commits = SourceCommits(plan_with(mine=told, other=None))
    commits.completed(stored(1, mine=None, other="1"))
    commits.completed(stored(2, mine="5", other="2"))
    assert told.offsets == ["5"]


def test_an_older_checkpoint_that_completes_late_is_passed_over() -> None:
    told = Told()
    commits = SourceCommits(plan_with(mine=told))
    for number in (2, 1, 2, 3):
        commits.completed(stored(number, mine=str(number)))
    assert told.offsets == ["2", "3"]


def test_a_source_that_raises_is_named_and_the_others_are_told() -> None:
    told = Told()
    plan = plan_with(bad=Told(PermissionError("not mine")), good=told)
    said = r"checkpoint 4, .*source \(uid 'bad'\) raised in commit\(\): PermissionError: not mine"
    with pytest.raises(CheckpointError, match=said):
        SourceCommits(plan).completed(stored(4, bad="1", good="2"))
    assert told.offsets == ["2"]
