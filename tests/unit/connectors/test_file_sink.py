"""FileSink: what readers see, and when, whatever happens in between."""

from __future__ import annotations

import gc
import json
import os
import pickle
import resource
from collections import Counter
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pytest
from pyarrow import parquet

from holdfast import _faults as faults
from holdfast.connectors.files.sink import FileSink
from holdfast.connectors.files.writer import MAX_OPEN_FILES, StagedFiles
from holdfast.errors import ConfigurationError, SinkError
from tests.support.file_sinks import (
    all_files,
    clean_up,
    commit,
    context,
    publish,
    read_as_dataset,
    stage,
    visible_files,
)

ROWS = pa.record_batch({"day": ["mon", "tue", "mon", "wed"], "n": [1, 2, 3, 4]})


ENDED = "inc-9-ended"
"""A name that no job attempt has."""


@pytest.fixture(params=["local", "memory"])
def path(request, tmp_path):
    """A place of each kind."""
    return str(tmp_path / "out") if request.param == "local" else f"memory://{tmp_path}/out"


def numbers(sink: FileSink) -> list[int]:
    """The values of column n that a reader sees."""
    return sorted(read_as_dataset(sink)["n"].to_pylist()) if visible_files(sink) else []


def copy_by_hand(sink: FileSink, source: str, target: str) -> None:
    """The first half of publishing on an object store."""
    fs, root = fsspec.core.url_to_fs(sink.path)
    fs.makedirs(f"{root}/{target}".rpartition("/")[0], exist_ok=True)
    fs.cp_file(f"{root}/{source}", f"{root}/{target}")


def test_nothing_is_visible_before_the_commit_and_all_after_it(path):
    sink = FileSink(path, partition_by="day")
    committables = stage(sink, [ROWS, ROWS])
    assert len(committables) == 1
    assert len(all_files(sink)) == 3
    assert visible_files(sink) == []
    assert read_as_dataset(sink).num_rows == 0
    commit(sink, committables)
    assert [name.rpartition("/")[0] for name in visible_files(sink)] == [
        "day=mon",
        "day=tue",
        "day=wed",
    ]
    assert visible_files(sink) == all_files(sink)
    seen = Counter((row["day"], row["n"]) for row in read_as_dataset(sink).to_pylist())
    assert seen == Counter((row["day"], row["n"]) for row in ROWS.to_pylist() * 2)


def test_the_committable_tells_sizes_and_rows(path):
    sink = FileSink(path, "json", partition_by=["day"])
    (staged,) = stage(sink, [ROWS])
    assert isinstance(staged, StagedFiles)
    assert staged.root == path
    fs, root = fsspec.core.url_to_fs(path)
    assert [file.rows for file in staged.files] == [2, 1, 1]
    assert [file.size for file in staged.files] == [
        fs.size(f"{root}/{file.staged}") for file in staged.files
    ]


def test_a_name_that_is_staged_ends_in_no_suffix_that_a_reader_looks_for(path):
    sink = FileSink(path)
    (staged,) = stage(sink, [ROWS])
    assert staged.files[0].staged.startswith(".holdfast/job/files/inc-1/")
    assert not staged.files[0].staged.endswith(".parquet")
    assert staged.files[0].final.startswith("part-")


def test_an_epoch_without_rows_leaves_no_trace(path):
    sink = FileSink(path)
    assert stage(sink, [ROWS.slice(0, 0)]) == []
    assert not fsspec.core.url_to_fs(path)[0].exists(fsspec.core.url_to_fs(path)[1])


def test_rows_of_a_partition_keep_their_order_and_lose_its_columns(path):
    sink = FileSink(path, partition_by=["a", "c"])
    rows = pa.record_batch({"a": [1, 2, 1, 1], "b": [4, 3, 2, 1], "c": ["x", "x", "y", "x"]})
    publish(sink, [rows, rows])
    fs, root = fsspec.core.url_to_fs(path)
    (name,) = (name for name in visible_files(sink) if name.startswith("a=1/c=x/"))
    with fs.open(f"{root}/{name}", "rb") as file:
        assert parquet.read_table(file).to_pydict() == {"b": [4, 1, 4, 1]}


def test_every_row_of_a_large_batch_goes_where_all_its_values_say(tmp_path):
    sink = FileSink(tmp_path, partition_by=["a", "c"])
    order = [n * 7919 % 3000 for n in range(3000)]
    a, c = [n % 3 or None for n in order], [str(n % 5) for n in order]
    publish(sink, [pa.record_batch({"a": a, "n": order, "c": c})])
    assert len(visible_files(sink)) == 15
    for name in visible_files(sink):
        whole, text = (part.partition("=")[2] for part in name.split("/")[:2])
        n = parquet.ParquetFile(tmp_path / name).read()["n"].to_pylist()
        third = 0 if whole == "__HIVE_DEFAULT_PARTITION__" else int(whole)
        assert n == [each for each in order if each % 3 == third and each % 5 == int(text)]


@pytest.mark.parametrize(
    ("values", "type_", "directories"),
    [
        (
            ["a/b", "x=y", "50%", "ü ~!", "..", "10:30", "a\nb", "\\[*]?", "\x00"],
            pa.string(),
            ["a%2Fb", "x%3Dy", "50%25", "ü ~!", "..", "10%3A30", "a%0Ab", "%5C%5B%2A%5D%3F", "%00"],
        ),
        ([None, "", "x"], pa.string(), ["__HIVE_DEFAULT_PARTITION__", "x"]),
        ([None, 7, -7], pa.int32(), ["__HIVE_DEFAULT_PARTITION__", "7", "-7"]),
        ([True, False], pa.bool_(), ["true", "false"]),
        ([date(2026, 1, 2)], pa.date32(), ["2026-01-02"]),
        ([Decimal("1.50"), Decimal("1E-9")], pa.decimal128(20, 9), ["1.500000000", "0.000000001"]),
        (
            [datetime(2026, 1, 2, 3, 4, 5, 500000, UTC), datetime(2026, 1, 2, tzinfo=UTC)],
            pa.timestamp("us", "Europe/Vienna"),
            ["2026-01-02 03%3A04%3A05.5", "2026-01-02 00%3A00%3A00"],
        ),
    ],
)
def test_directories_are_named_as_spark_names_them(tmp_path, values, type_, directories):
    sink = FileSink(tmp_path, partition_by=["p = q"])
    publish(sink, [pa.record_batch({"p = q": pa.array(values, type_), "n": range(len(values))})])
    found = [name.rpartition("/")[0] for name in visible_files(sink)]
    assert sorted(found) == sorted(f"p %3D q={name}" for name in directories)
    assert numbers(sink) == list(range(len(values)))


def test_a_file_that_is_long_enough_is_followed_by_another(path):
    sink = FileSink(path, max_file_bytes=2000)
    rows = pa.record_batch({"n": range(5000)})
    (staged,) = stage(sink, [rows.slice(0, 100), rows.slice(100)])
    assert len(staged.files) == 10
    assert sum(file.rows for file in staged.files) == 5000
    assert max(file.size for file in staged.files) < 4000
    commit(sink, [staged])
    assert numbers(sink) == list(range(5000))


def test_more_partitions_than_files_may_be_open_lose_nothing(tmp_path):
    most = 0
    sink = FileSink(tmp_path, "json", partition_by=["p"])
    count = MAX_OPEN_FILES + 20
    rows = pa.record_batch({"p": [*range(count)] * 2, "n": range(2 * count)})
    writer = sink.create_writer(context(rows.schema))
    for start in range(0, rows.num_rows, 7):
        writer.write_rows(rows.slice(start, 7))
        staging = os.path.realpath(tmp_path / ".holdfast")
        opened = (os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd"))
        most = max(most, sum(name.startswith(staging) for name in opened))
    assert most == MAX_OPEN_FILES
    commit(sink, writer.prepare_commit())
    found = [
        {"p": int(name.split("/")[0][2:]), **json.loads(line)}
        for name in visible_files(sink)
        for line in (tmp_path / name).read_text().splitlines()
    ]
    assert sorted(found, key=lambda row: row["n"]) == rows.to_pylist()


def test_committing_twice_changes_nothing_and_is_told(path):
    sink = FileSink(path, partition_by=["day"])
    committables = stage(sink, [ROWS])
    assert [request.outcome for request in commit(sink, committables)] == ["done"]
    before = visible_files(sink)
    for recovered in (False, True):
        (again,) = commit(sink, committables, recovered=recovered)
        assert again.outcome == "already"
    assert visible_files(sink) == before
    assert numbers(sink) == [1, 2, 3, 4]


def test_published_files_that_were_moved_away_do_not_come_back(tmp_path):
    sink = FileSink(tmp_path, partition_by=["day"])
    committables = stage(sink, [ROWS])
    commit(sink, committables)
    for name in visible_files(sink):
        (tmp_path / name).unlink()
        (tmp_path / name).parent.rmdir()
    (again,) = commit(sink, committables, recovered=True)
    assert again.outcome == "already"
    assert visible_files(sink) == []


@pytest.mark.parametrize("published", [1, 2, 3])
def test_a_commit_that_breaks_off_between_files_is_completed_later(
    path, published, monkeypatch, tmp_path
):
    fault = {
        "point": "during-publish",
        "action": "raise",
        "once": str(tmp_path / "struck"),
        "uid": "files",
        "checkpoint": 1,
        "subtask": 0,
        "file": published,
    }
    monkeypatch.setenv(faults.VARIABLE, json.dumps([fault]))
    sink = FileSink(path, partition_by=["day"])
    committables = [*stage(sink, [ROWS]), *stage(sink, [ROWS.slice(3)], epoch=2)]
    with pytest.raises(faults.InjectedFault):
        commit(sink, committables)
    assert len(visible_files(sink)) == published
    commit(sink, committables, recovered=True)
    assert numbers(sink) == [1, 2, 3, 4, 4]
    assert visible_files(sink) == all_files(sink)


@pytest.mark.parametrize("file", [0, 1, 2])
def test_a_copy_whose_original_was_not_removed_yet_is_not_made_again(path, file):
    sink = FileSink(path, partition_by=["day"])
    (staged,) = stage(sink, [ROWS])
    copy_by_hand(sink, staged.files[file].staged, staged.files[file].final)
    commit(sink, [staged], recovered=True)
    assert numbers(sink) == [1, 2, 3, 4]
    assert visible_files(sink) == all_files(sink)


def test_a_staged_file_that_is_gone_before_its_first_commit_is_a_loss(path):
    sink = FileSink(path)
    (staged,) = stage(sink, [ROWS])
    clean_up(sink, ENDED)
    with pytest.raises(SinkError, match=r"4 rows were staged in \.holdfast/.*that file is gone"):
        commit(sink, [staged])


def test_a_file_of_somebody_else_is_not_overwritten(path):
    sink = FileSink(path)
    (staged,) = stage(sink, [ROWS])
    fs, root = fsspec.core.url_to_fs(path)
    fs.pipe_file(f"{root}/{staged.files[0].final}", b"mine")
    with pytest.raises(SinkError, match=r"a file of 4 bytes is where one of .* move it away"):
        commit(sink, [staged])
    assert fs.cat_file(f"{root}/{staged.files[0].final}") == b"mine"


def test_a_staged_file_that_was_cut_off_is_not_published(path):
    sink = FileSink(path)
    (staged,) = stage(sink, [ROWS])
    fs, root = fsspec.core.url_to_fs(path)
    fs.pipe_file(f"{root}/{staged.files[0].staged}", b"PAR1")
    with pytest.raises(SinkError, match=r"bytes were staged in .*, and 4 are there"):
        commit(sink, [staged])
    assert visible_files(sink) == []


def test_attempts_sinks_and_jobs_never_share_a_name(path):
    sink = FileSink(path)
    who: list[dict[str, Any]] = [{}, {"attempt_id": 1}, {"subtask": 1}, {"epoch": 2}]
    who += [{"job_attempt": "inc-2"}, {"uid": "other"}, {"job_id": "other"}, {"uid": "o/t.h~er"}]
    staged = [stage(sink, [ROWS], **each)[0] for each in who]
    assert len(all_files(sink)) == len(who)
    assert len({file.final for each in staged for file in each.files}) == len(who)
    commit(sink, [staged[1]])
    assert numbers(sink) == [1, 2, 3, 4]
    commit(sink, staged[2:])
    assert numbers(sink) == sorted([1, 2, 3, 4] * (len(who) - 1))


def test_what_was_aborted_is_removed(path):
    sink = FileSink(path, partition_by=["day"], max_file_bytes=1)
    writer = sink.create_writer(context(ROWS.schema))
    writer.write_rows(ROWS)
    writer.abort()
    writer.close()
    assert all_files(sink) == []
    late = sink.create_writer(context(ROWS.schema, epoch=2))
    late.write_rows(ROWS)
    assert late.prepare_commit()
    late.abort()
    late.close()
    assert all_files(sink) == []


def test_a_writer_that_died_leaves_hidden_files_only(path):
    sink = FileSink(path, partition_by=["day"])
    writer = sink.create_writer(context(ROWS.schema))
    writer.write_rows(ROWS)
    writer.close()
    assert visible_files(sink) == []
    clean_up(sink, "inc-2")
    assert all_files(sink) == []


def test_cleaning_up_keeps_the_current_job_attempt_and_other_jobs(path):
    sink = FileSink(path)
    stage(sink, [ROWS])
    current = stage(sink, [ROWS], job_attempt="inc-2")
    foreign = stage(sink, [ROWS], job_id="other")
    clean_up(sink, "inc-2")
    assert all_files(sink) == sorted(each.files[0].staged for each in (*current, *foreign))
    commit(sink, current)
    assert numbers(sink) == [1, 2, 3, 4]
    clean_up(sink, ENDED)
    assert numbers(sink) == [1, 2, 3, 4]
    assert [name for name in all_files(sink) if name.startswith(".")] == [
        foreign[0].files[0].staged
    ]


def test_cleaning_up_leaves_what_the_next_driver_has_staged(path):
    """A driver that was replaced does not know it yet."""
    sink = FileSink(path)
    stage(sink, [ROWS], job_attempt="2-9-aa")
    own = stage(sink, [ROWS], job_attempt="2-10-bb")
    successor = stage(sink, [ROWS], job_attempt="3-1-cc")
    clean_up(sink, "2-10-bb")
    assert all_files(sink) == sorted(each.files[0].staged for each in (*own, *successor))


def test_a_driver_that_ends_leaves_what_the_next_one_has_staged(path):
    """It looked at its fence, and another driver took over right after that."""
    sink = FileSink(path)
    stage(sink, [ROWS], job_attempt="2-10-bb")
    successor = stage(sink, [ROWS], job_attempt="3-1-cc")
    clean_up(sink, "2-10-bb-ended")
    assert all_files(sink) == sorted(each.files[0].staged for each in successor)
    commit(sink, successor, recovered=True)
    assert numbers(sink) == [1, 2, 3, 4]


@pytest.mark.parametrize("files", [1, 12])
def test_files_that_are_nowhere_at_a_recovery_are_named(path, caplog, files):
    """A reader may have moved them, or they are lost: nobody can tell."""
    sink = FileSink(path, partition_by=["n"])
    rows = pa.record_batch({"day": ["mon"] * files, "n": list(range(files))})
    (staged,) = stage(sink, [rows])
    clean_up(sink, ENDED)
    (request,) = commit(sink, [staged], recovered=True, checkpoint_id=7)
    assert request.outcome == "already"
    assert f"of the output of checkpoint 7, {files} files are neither staged nor" in caplog.text
    assert staged.files[0].final in caplog.text
    assert ("and 2 more" in caplog.text) == (files == 12)


def test_files_that_were_published_before_are_not_missed(path, caplog):
    sink = FileSink(path)
    (staged,) = stage(sink, [ROWS])
    commit(sink, [staged])
    commit(sink, [staged], recovered=True)
    assert caplog.text == ""


def test_the_last_job_to_end_leaves_nothing_but_published_files(path):
    sink = FileSink(path)
    publish(sink, [ROWS])
    stage(sink, [ROWS], job_attempt="inc-2", epoch=2)
    clean_up(sink, ENDED)
    clean_up(sink, ENDED)
    fs, root = fsspec.core.url_to_fs(path)
    fs.invalidate_cache()
    assert [name.rpartition("/")[2] for name in fs.ls(root, detail=False)] == visible_files(sink)
    assert numbers(sink) == [1, 2, 3, 4]


def test_cleaning_up_where_nothing_was_written_does_nothing(path):
    clean_up(FileSink(path), "inc-1")
    clean_up(FileSink(path), ENDED)


def test_what_was_staged_under_an_older_path_is_published_there(tmp_path):
    old, new = FileSink(tmp_path / "old"), FileSink(tmp_path / "new")
    commit(new, stage(old, [ROWS]), recovered=True)
    assert numbers(old) == [1, 2, 3, 4]
    assert visible_files(new) == []


def test_a_relative_path_stays_where_it_was_when_the_working_directory_changes(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    pickled = pickle.dumps(FileSink("out", "csv", partition_by=["day"], prefix="orders"))
    monkeypatch.chdir("/")
    sink = pickle.loads(pickled)
    publish(sink, [ROWS])
    assert all(Path(name).name.startswith("orders-") for name in visible_files(sink))
    assert {name.name for name in (tmp_path / "out").iterdir()} >= {"day=mon", "day=tue"}


def test_a_very_long_uid_still_makes_a_name(tmp_path):
    sink = FileSink(tmp_path)
    publish(sink, [ROWS], uid="ü" * 300)
    assert numbers(sink) == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("format", "compression"),
    [("parquet", None), ("json", None), ("json", "gzip"), ("csv", "zstd")],
)
def test_a_disk_that_takes_no_more_is_a_clear_error_and_leaves_nothing(
    tmp_path, format, compression
):
    sink = FileSink(tmp_path, format, compression=compression)
    rows = pa.record_batch({"b": [os.urandom(1000).hex() for _ in range(3000)]})
    writer = sink.create_writer(context(rows.schema))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        writer.write_rows(rows)
        with pytest.raises(SinkError, match=r"\.holdfast/.*: writing failed \(File too large\); "):
            writer.prepare_commit()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    writer.abort()
    writer.close()
    del writer
    gc.collect()
    assert all_files(sink) == []


def test_a_path_that_is_a_file_is_a_clear_error(tmp_path):
    (tmp_path / "out").write_text("")
    sink = FileSink(tmp_path / "out")
    writer = sink.create_writer(context(ROWS.schema))
    with pytest.raises(SinkError, match=r"creating failed .*give the sink the path of a directory"):
        writer.write_rows(ROWS)
    writer.abort()
    writer.close()


@pytest.mark.parametrize(
    ("columns", "schema", "complaint"),
    [
        (["x"], {"day": pa.string(), "n": pa.int64()}, "names 'x', and the rows have .* day, n"),
        (["day"], {"day": pa.string()}, "names every column"),
        (["day"], {"day": pa.list_(pa.string()), "n": pa.int64()}, "'day', which is array<string>"),
        (["day"], {"day": pa.float64(), "n": pa.int64()}, "'day', which is double: only text"),
        (["_day"], {"_day": pa.string(), "n": pa.int64()}, "readers ignore directories"),
        ([], {}, "rows without columns"),
    ],
)
def test_columns_that_cannot_partition_are_refused(tmp_path, columns, schema, complaint):
    with pytest.raises(ConfigurationError, match=complaint):
        FileSink(tmp_path, partition_by=columns).check(pa.schema(schema))


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"partition_by": ["a", "a"]}, "names a column twice: a, a"),
        ({"max_file_bytes": 0}, "max_file_bytes is 0"),
        ({"prefix": "_part"}, "prefix is '_part'; use letters"),
        ({"prefix": "a/b"}, "prefix is 'a/b'; use letters"),
        ({"path": ""}, "the path of a FileSink is empty"),
        ({"path": "sftp://me:secret@host/out"}, r"sftp://\.\.\.@host/out: .* holds a password"),
    ],
)
def test_wrong_arguments_are_refused(arguments, complaint):
    with pytest.raises(ConfigurationError, match=complaint) as refusal:
        FileSink(**{"path": "/tmp/out", **arguments})
    assert "secret" not in str(refusal.value)


def test_a_file_system_that_does_not_exist_is_refused_when_the_program_is_built():
    with pytest.raises(ConfigurationError, match="nowhere://out: the file system cannot be opened"):
        FileSink("nowhere://out").check(ROWS.schema)


def test_options_of_the_storage_are_shown_nowhere():
    sink = FileSink("memory://out", storage_options={"key": "secret"})
    assert "secret" not in repr(sink)
    (staged,) = stage(sink, [ROWS])
    assert "secret" not in repr(staged)
    clean_up(sink, ENDED)


def test_flinks_ways_of_making_one_give_the_same_class(tmp_path):
    bulk = FileSink.for_bulk_format(tmp_path, "parquet", partition_by=["day"])
    row = FileSink.for_row_format(tmp_path, "csv", compression="gzip")
    assert (type(bulk), bulk.format, bulk.partition_by) == (FileSink, "parquet", ("day",))
    assert (type(row), row.format, row.compression) == (FileSink, "csv", "gzip")
    with pytest.raises(
        ConfigurationError, match="json is no bulk format; use for_row_format, or p"
    ):
        FileSink.for_bulk_format(tmp_path, "json")
    with pytest.raises(ConfigurationError, match="parquet is no row format; use for_bulk_format"):
        FileSink.for_row_format(tmp_path, "parquet")
