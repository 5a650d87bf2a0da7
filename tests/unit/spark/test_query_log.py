"""Positions of a query as data: what is read, what is put together, what is written."""

from __future__ import annotations

import io
import json
import re
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import CheckpointError, CorruptCheckpointError, RestoreError
from holdfast.job.model import FileLog, QueryPosition, SourcePosition, join
from holdfast.spark.sources.query_log import capture, for_sources, lay_out
from holdfast.spark.sources.source_log import lines_backwards

if TYPE_CHECKING:
    from pathlib import Path

METADATA = '{"batchWatermarkMs":42,"batchTimestampMs":1,"conf":{}}'


def entry(batch: int, file: int = 0) -> str:
    return f'{{"path":"file:///in/{batch:05d}-{file}","timestamp":{batch},"batchId":{batch}}}'


def log(after: int, upto: int) -> FileLog:
    return FileLog(after, upto, tuple(entry(i) for i in range(after + 1, upto + 1)))


def file_source(upto: int, after: int = -1) -> SourcePosition:
    previous = f'{{"logOffset":{upto - 1}}}' if upto else None
    return SourcePosition(f'{{"logOffset":{upto}}}', previous, log(after, upto))


def position(batch_id: int, **sources: SourcePosition) -> QueryPosition:
    return QueryPosition(batch_id, METADATA, {uid: (s,) for uid, s in sources.items()})


def write_offsets(query_dir: Path, batch_id: int, *offsets: str) -> None:
    path = query_dir / "offsets" / str(batch_id)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(["v1", METADATA, *offsets]))


def write_source_log(
    query_dir: Path, upto: int, compacted: tuple[int, ...] = (), oldest: int = 0
) -> None:
    directory = query_dir / "sources" / "0"
    directory.mkdir(parents=True)
    for batch in range(oldest, upto + 1):
        batches = range(batch + 1) if batch in compacted else [batch]
        name = f"{batch}.compact" if batch in compacted else str(batch)
        (directory / name).write_text("\n".join(["v1", *(entry(i) for i in batches)]))


def test_a_capture_holds_both_offsets_of_every_source(tmp_path: Path) -> None:
    write_offsets(tmp_path, 3, "5", '{"a":1}')
    write_offsets(tmp_path, 4, "6", '{"a":2}')
    taken = capture(tmp_path, {"x": [0], "y": [1]}, 4)
    assert taken == position(4, x=SourcePosition("6", "5"), y=SourcePosition('{"a":2}', '{"a":1}'))


def test_the_first_batch_has_no_offsets_before_it(tmp_path: Path) -> None:
    write_offsets(tmp_path, 0, "5", "-")
    taken = capture(tmp_path, {"x": [0], "y": [1]}, 0)
    assert taken == position(0, x=SourcePosition("5"), y=SourcePosition(None))


def test_a_shared_leaf_is_one_source_with_two_lines(tmp_path: Path) -> None:
    write_offsets(tmp_path, 0, "5", "7", "5")
    taken = capture(tmp_path, {"x": [0], "y": [1, 0]}, 0)
    assert taken.sources == {
        "x": (SourcePosition("5"),),
        "y": (SourcePosition("7"), SourcePosition("5")),
    }
    lay_out(tmp_path / "new", taken, {"y": [0, 1], "x": [1]})
    assert (tmp_path / "new" / "offsets" / "0").read_text().split("\n")[2:] == ["7", "5", "5"]


def test_small_files_of_a_source_come_along(tmp_path: Path) -> None:
    write_offsets(tmp_path, 0, "5")
    directory = tmp_path / "sources" / "0"
    (directory / "deep").mkdir(parents=True)
    (directory / "0").write_bytes(b"\0v1\n123\r\n")
    (directory / ".0.crc").write_bytes(b"\xff")
    (directory / "deep" / "x").write_text("y")
    taken = capture(tmp_path, {"x": [0]}, 0)
    assert taken.sources["x"][0].files == {"0": "\0v1\n123\r\n", "deep/x": "y"}
    lay_out(tmp_path / "new", taken, {"x": [0]})
    assert (tmp_path / "new" / "sources" / "0" / "0").read_bytes() == b"\0v1\n123\r\n"


def test_a_source_that_keeps_something_else_than_text_is_refused(tmp_path: Path) -> None:
    write_offsets(tmp_path, 0, "5")
    (tmp_path / "sources" / "0").mkdir(parents=True)
    (tmp_path / "sources" / "0" / "0").write_bytes(b"\xff")
    with pytest.raises(CheckpointError, match="not text"):
        capture(tmp_path, {"x": [0]}, 0)


@pytest.mark.parametrize("chunk", [1, 7, 100, 1 << 16])
@pytest.mark.parametrize("content", [b"", b"one", b"one\n", b"a\n\nlong line\nb", b"x\n" * 99])
def test_lines_are_read_from_the_end(content: bytes, chunk: int) -> None:
    file = io.BytesIO(b"head\n" + content)
    expected = content.split(b"\n") if content else []
    found = list(lines_backwards(file, start=5, chunk=chunk))
    assert found[::-1] == expected


@pytest.mark.parametrize("after", [-1, 0, 8, 9, 18, 19, 20, 22])
def test_a_capture_reads_what_is_new_in_a_log(tmp_path: Path, after: int) -> None:
    write_source_log(tmp_path, upto=25, compacted=(9, 19))
    write_offsets(tmp_path, 39, '{"logOffset":21}')
    write_offsets(tmp_path, 40, '{"logOffset":22}')
    taken = capture(tmp_path, {"x": [0]}, 40, position(30, x=file_source(after)))
    assert taken.sources["x"][0].log == log(after, 22)


def test_a_capture_needs_nothing_older_than_the_newest_compact_file(tmp_path: Path) -> None:
    write_source_log(tmp_path, upto=21, compacted=(19,), oldest=19)
    write_offsets(tmp_path, 0, '{"logOffset":21}')
    assert capture(tmp_path, {"x": [0]}, 0).sources["x"][0].log == log(-1, 21)


def test_a_log_with_a_hole_is_noticed(tmp_path: Path) -> None:
    write_source_log(tmp_path, upto=5)
    (tmp_path / "sources" / "0" / "3").unlink()
    write_offsets(tmp_path, 0, '{"logOffset":5}')
    with pytest.raises(CheckpointError, match=re.escape("3.compact")):
        capture(tmp_path, {"x": [0]}, 0)


@pytest.mark.parametrize("name", ["3", "5"])
def test_a_log_of_a_later_format_is_refused(tmp_path: Path, name: str) -> None:
    write_source_log(tmp_path, upto=5, compacted=(3,))
    path = next((tmp_path / "sources" / "0").glob(f"{name}*"))
    path.write_text("v2\n" + entry(1))
    write_offsets(tmp_path, 0, '{"logOffset":5}')
    with pytest.raises(CheckpointError, match="'v2'"):
        capture(tmp_path, {"x": [0]}, 0)


def test_offsets_that_are_not_there_are_named(tmp_path: Path) -> None:
    write_offsets(tmp_path, 4, "5")
    with pytest.raises(CheckpointError, match="batch 3 are not in"):
        capture(tmp_path, {"x": [0]}, 4)


@given(st.lists(st.integers(1, 15), min_size=1, max_size=5), st.integers(1, 12))
def test_parts_of_a_log_join_to_what_is_laid_out_and_captured_again(
    tmp_path_factory: pytest.TempPathFactory, steps: list[int], interval: int
) -> None:
    ends = [sum(steps[: i + 1]) - 1 for i in range(len(steps))]
    parts = [
        position(end, x=file_source(end, after))
        for after, end in zip([-1, *ends], ends, strict=False)
    ]
    whole = join(parts)
    assert whole == position(ends[-1], x=file_source(ends[-1]))
    directory = tmp_path_factory.mktemp("query")
    lay_out(directory, whole, {"x": [0]}, interval)
    assert capture(directory, {"x": [0]}, ends[-1]) == whole


def test_a_part_that_is_whole_replaces_what_was_before_it() -> None:
    parts = [position(4, x=file_source(2)), position(9, x=file_source(7))]
    assert join(parts) == parts[1]


def test_a_log_may_begin_in_a_later_part() -> None:
    parts = [position(0, x=SourcePosition(None)), position(1, x=file_source(0))]
    assert join(parts) == parts[1]


def test_a_source_may_come_in_with_a_later_part() -> None:
    parts = [position(0, x=file_source(0)), position(1, x=file_source(1, 0), y=file_source(0))]
    assert join(parts) == position(1, x=file_source(1), y=file_source(0))


def test_a_missing_part_of_a_log_is_noticed() -> None:
    with pytest.raises(CorruptCheckpointError, match=r"ends at log batch 2 .* begins after 5"):
        join([position(4, x=file_source(2)), position(9, x=file_source(7, after=5))])


def test_a_log_that_is_not_whole_is_not_laid_out(tmp_path: Path) -> None:
    with pytest.raises(CorruptCheckpointError, match="begins after log batch 5"):
        lay_out(tmp_path, position(9, x=file_source(7, after=5)), {"x": [0]})


def test_a_directory_holds_the_batch_the_one_before_and_nothing_else(tmp_path: Path) -> None:
    lay_out(tmp_path, position(12, x=file_source(11)), {"x": [0]})
    files = {p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*") if p.is_file()}
    assert files == {
        "metadata",
        *("offsets/11", "offsets/12", "commits/11", "commits/12"),
        *("sources/0/9.compact", "sources/0/10", "sources/0/11"),
    }
    assert (tmp_path / "offsets" / "12").read_text() == f'v1\n{METADATA}\n{{"logOffset":11}}'
    assert (tmp_path / "commits" / "12").read_text() == 'v1\n{"nextBatchWatermarkMs":42}'


def test_every_directory_has_an_id_of_its_own(tmp_path: Path) -> None:
    ids = set()
    for name in "ab":
        lay_out(tmp_path / name, position(0, x=SourcePosition("1")), {"x": [0]})
        ids.add(json.loads((tmp_path / name / "metadata").read_text())["id"])
    assert len(ids) == 2


def test_a_directory_in_use_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "metadata").write_text("")
    with pytest.raises(RestoreError, match="not empty"):
        lay_out(tmp_path, position(0, x=SourcePosition("1")), {"x": [0]})


def test_sources_are_found_by_uid_whatever_their_order() -> None:
    taken = position(3, x=SourcePosition("1"), y=SourcePosition("2"))
    assert for_sources(taken, {"y": [0], "new": [1], "x": [2]}) == [
        SourcePosition("2"),
        SourcePosition(None),
        SourcePosition("1"),
    ]


def test_a_source_that_reads_more_streams_than_before_is_refused() -> None:
    with pytest.raises(RestoreError, match="'x' reads 2 streams and read 1"):
        for_sources(position(3, x=SourcePosition("1")), {"x": [0, 1]})


def test_streams_that_became_one_must_stand_at_the_same_offset() -> None:
    leaves = {"x": [0], "y": [0]}
    same = position(3, x=SourcePosition("1"), y=SourcePosition("1"))
    assert for_sources(same, leaves) == [SourcePosition("1")]
    with pytest.raises(RestoreError, match="'x' and 'y' share a stream"):
        for_sources(position(3, x=SourcePosition("1"), y=SourcePosition("2")), leaves)
