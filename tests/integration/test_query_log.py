"""A query that is laid out from a captured position goes on where that one stood."""

from __future__ import annotations

import functools
import json
import os
import sys
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamReader,
    InputPartition,
    SimpleDataSourceStreamReader,
)

from holdfast.errors import CheckpointError, UnsupportedSparkError
from holdfast.job.model import QueryPosition, join
from holdfast.spark.sources.query_log import capture, lay_out, source_leaves
from holdfast.spark.versions import FILE_MANAGER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

# Workers cannot import this module, and need its data sources.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

AVAILABLE_NOW = {"availableNow": True}
AT_ONCE = {"processingTime": "0 seconds"}


@pytest.fixture(autouse=True)
def _local_files(spark: SparkSession) -> Iterator[None]:
    spark.conf.set("spark.sql.streaming.checkpointFileManagerClass", FILE_MANAGER)
    yield
    spark.conf.unset("spark.sql.streaming.checkpointFileManagerClass")


@dataclass
class Run:
    """What one query did."""

    query_dir: Path
    batches: dict[int, list[str]] = field(default_factory=dict)
    positions: dict[int, QueryPosition] = field(default_factory=dict)


Sources = dict[str, DataFrame]


def run(
    query_dir: Path,
    sources: Sources,
    trigger: dict[str, Any],
    capture_in: tuple[int, ...] = (),
    last: int | None = None,
    since: QueryPosition | None = None,
) -> Run:
    """Run a query over `sources`, to its end or through batch `last`."""
    result = Run(query_dir)
    leaves = source_leaves(sources)
    done = threading.Event()

    def each(batch: DataFrame, batch_id: int) -> None:
        if done.is_set():
            return
        assert (query_dir / "offsets" / str(batch_id)).exists()
        assert not (query_dir / "commits" / str(batch_id)).exists()
        result.batches[batch_id] = sorted(row.v for row in batch.collect())
        if batch_id in capture_in:
            base = max(result.positions, default=None)
            earlier = since if base is None else result.positions[base]
            result.positions[batch_id] = capture(query_dir, leaves, batch_id, earlier)
        if batch_id == last:
            done.set()

    united = functools.reduce(DataFrame.unionByName, sources.values())
    writer = united.writeStream.foreachBatch(each).trigger(**trigger)
    query = writer.option("checkpointLocation", query_dir.as_uri()).start()
    if last is None:
        query.awaitTermination()
    else:
        while not done.wait(0.05):
            assert query.isActive, query.exception()
        query.stop()
    return result


def through_json(position: QueryPosition) -> QueryPosition:
    return msgspec.json.decode(msgspec.json.encode(position), type=QueryPosition)


def write_files(directory: Path, start: int, stop: int) -> None:
    directory.mkdir(exist_ok=True)
    for i in range(start, stop):
        path = directory / f"{i:03d}.json"
        path.write_text(json.dumps({"v": f"{directory.name}{i:03d}"}))
        os.utime(path, (1_700_000_000 + i, 1_700_000_000 + i))


def file_stream(spark: SparkSession, directory: Path, per_batch: int = 1) -> DataFrame:
    reader = spark.readStream.schema("v string").option("maxFilesPerTrigger", per_batch)
    return reader.json(str(directory))


def rate_stream(spark: SparkSession, kind: str, rows: int) -> DataFrame:
    option = "rowsPerSecond" if kind == "rate" else "rowsPerBatch"
    frame = spark.readStream.format(kind).option(option, rows).load()
    return frame.select(F.format_string("r%06d", "value").alias("v"))


def names(prefix: str, numbers: range) -> list[str]:
    return [f"{prefix}{i:03d}" for i in numbers]


def all_rows(batches: dict[int, list[str]]) -> list[str]:
    return sorted(row for rows in batches.values() for row in rows)


@pytest.mark.versions
@pytest.mark.parametrize("at", [0, 8, 9, 19, 24])
def test_a_file_source_goes_on_with_the_same_batches(
    spark: SparkSession, tmp_path: Path, at: int
) -> None:
    write_files(tmp_path / "a", 0, 28)
    sources = {"a": file_stream(spark, tmp_path / "a")}
    first = run(tmp_path / "q1", sources, AVAILABLE_NOW, capture_in=(at,), last=at + 2)

    lay_out(tmp_path / "q2", through_json(first.positions[at]), source_leaves(sources))
    second = run(tmp_path / "q2", sources, AVAILABLE_NOW)

    assert second.batches == {i: names("a", range(i, i + 1)) for i in range(at + 1, 28)}


def test_several_files_a_batch_are_cut_the_same_way_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_files(tmp_path / "a", 0, 40)
    sources = {"a": file_stream(spark, tmp_path / "a", per_batch=3)}
    undisturbed = run(tmp_path / "q1", sources, AVAILABLE_NOW, capture_in=(4, 10))

    position = join([undisturbed.positions[4], undisturbed.positions[10]])
    lay_out(tmp_path / "q2", position, source_leaves(sources))
    again = run(tmp_path / "q2", sources, AVAILABLE_NOW)

    assert again.batches == {i: rows for i, rows in undisturbed.batches.items() if i > 10}


def test_logs_of_several_job_attempts_join_to_the_whole_log(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_files(tmp_path / "a", 0, 40)
    sources = {"a": file_stream(spark, tmp_path / "a")}
    leaves = source_leaves(sources)
    first = run(tmp_path / "q1", sources, AT_ONCE, capture_in=(3, 12), last=14)
    lay_out(tmp_path / "q2", join(list(first.positions.values())), leaves)
    second = run(
        tmp_path / "q2",
        sources,
        AT_ONCE,
        capture_in=(13, 22, 23),
        last=23,
        since=first.positions[12],
    )
    parts = [*first.positions.values(), *second.positions.values()]
    assert [part.sources["a"][0].log.after for part in parts if part.sources["a"][0].log] == [
        -1,
        3,
        12,
        13,
        22,
    ]

    lay_out(tmp_path / "q3", join(parts), leaves)
    third = run(tmp_path / "q3", sources, AVAILABLE_NOW)

    assert third.batches == {i: names("a", range(i, i + 1)) for i in range(24, 40)}


def test_files_that_arrive_after_the_restart_are_read_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_files(tmp_path / "a", 0, 12)
    sources = {"a": file_stream(spark, tmp_path / "a")}
    first = run(tmp_path / "q1", sources, AT_ONCE, capture_in=(11,), last=11)
    lay_out(tmp_path / "q2", first.positions[11], source_leaves(sources))
    nothing = run(tmp_path / "q2", sources, AVAILABLE_NOW)
    write_files(tmp_path / "a", 12, 14)
    second = run(tmp_path / "q2", sources, AVAILABLE_NOW)

    assert nothing.batches == {}
    assert second.batches == {12: ["a012"], 13: ["a013"]}


def test_a_position_can_be_captured_when_the_query_has_moved_on(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_files(tmp_path / "a", 0, 12)
    sources = {"a": file_stream(spark, tmp_path / "a")}
    leaves = source_leaves(sources)
    run(tmp_path / "q1", sources, AVAILABLE_NOW)

    lay_out(tmp_path / "q2", capture(tmp_path / "q1", leaves, 8), leaves)
    assert run(tmp_path / "q2", sources, AVAILABLE_NOW).batches == {
        i: names("a", range(i, i + 1)) for i in range(9, 12)
    }


@pytest.mark.versions
def test_a_session_that_compacts_at_another_interval_reads_what_was_laid_out(
    spark: SparkSession, tmp_path: Path
) -> None:
    key = "spark.sql.streaming.fileSource.log.compactInterval"
    write_files(tmp_path / "a", 0, 12)
    spark.conf.set(key, "3")
    try:
        sources = {"a": file_stream(spark, tmp_path / "a")}
        first = run(tmp_path / "q1", sources, AVAILABLE_NOW, capture_in=(4, 7))
        position = join(list(first.positions.values()))
        lay_out(tmp_path / "q2", position, source_leaves(sources), compact_interval=3)
        second = run(tmp_path / "q2", sources, AVAILABLE_NOW)
    finally:
        spark.conf.unset(key)
    assert second.batches == {i: names("a", range(i, i + 1)) for i in range(8, 12)}


@pytest.mark.versions
@pytest.mark.parametrize("kind", ["rate", "rate-micro-batch"])
def test_a_rate_source_goes_on_with_the_next_number(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    sources = {"r": rate_stream(spark, kind, rows=7)}
    first = run(tmp_path / "q1", sources, AT_ONCE, capture_in=(1,), last=2)
    lay_out(tmp_path / "q2", through_json(first.positions[1]), source_leaves(sources))
    second = run(tmp_path / "q2", sources, AT_ONCE, last=3)

    assert min(second.batches) == 2
    rows = all_rows({**second.batches, 0: first.batches[0], 1: first.batches[1]})
    assert rows == [f"r{i:06d}" for i in range(len(rows))]


class Numbers(DataSourceStreamReader):
    """Three numbers a batch, up to thirty."""

    def initialOffset(self) -> dict[str, int]:
        return {"logOffset": 0}

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:
        return {"logOffset": min(start["logOffset"] + 3, 30)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [InputPartition(i) for i in range(start["logOffset"], end["logOffset"])]

    def read(self, partition: InputPartition) -> Iterator[tuple[str]]:
        yield (f"n{partition.value:03d}",)


class SimpleNumbers(SimpleDataSourceStreamReader):
    """The same, from a simple reader."""

    def initialOffset(self) -> dict[str, int]:
        return {"at": 0}

    def read(self, start: dict[str, int]) -> tuple[Iterator[tuple[str]], dict[str, int]]:
        end = {"at": min(start["at"] + 3, 30)}
        return self.readBetweenOffsets(start, end), end

    def readBetweenOffsets(
        self, start: dict[str, int], end: dict[str, int]
    ) -> Iterator[tuple[str]]:
        return iter([(f"n{i:03d}",) for i in range(start["at"], end["at"])])


class NumbersSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "query_log_numbers"

    def schema(self) -> str:
        return "v string"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return Numbers()


class SimpleNumbersSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "query_log_simple_numbers"

    def schema(self) -> str:
        return "v string"

    def simpleStreamReader(self, schema: Any) -> SimpleDataSourceStreamReader:
        return SimpleNumbers()


@pytest.mark.versions
@pytest.mark.parametrize("source", [NumbersSource, SimpleNumbersSource])
def test_a_python_source_goes_on_with_the_next_offset(
    spark: SparkSession, tmp_path: Path, source: type[DataSource]
) -> None:
    spark.dataSource.register(source)
    sources = {"n": spark.readStream.format(source.name()).load()}
    first = run(tmp_path / "q1", sources, AT_ONCE, capture_in=(4,), last=6)
    lay_out(tmp_path / "q2", through_json(first.positions[4]), source_leaves(sources))
    second = run(tmp_path / "q2", sources, AT_ONCE, last=9)

    assert second.batches == {i: names("n", range(3 * i, 3 * i + 3)) for i in range(5, 10)}


def mixed(spark: SparkSession, tmp_path: Path) -> Callable[[str], Sources]:
    """Sources by uid: two of files, one of numbers, and one that reads two of them again."""
    spark.dataSource.register(NumbersSource)
    a = file_stream(spark, tmp_path / "a", per_batch=2)
    b = file_stream(spark, tmp_path / "b")
    n = spark.readStream.format(NumbersSource.name()).load()
    again = n.union(a).select(F.concat(F.lit("again-"), "v").alias("v"))
    frames = {"a": a, "b": b, "n": n, "z": again}
    return lambda order: {uid: frames[uid] for uid in order}


@pytest.mark.parametrize("order", ["abnz", "znba", "nzab"])
def test_several_sources_go_on_in_whatever_order_the_program_lists_them(
    spark: SparkSession, tmp_path: Path, order: str
) -> None:
    write_files(tmp_path / "a", 0, 26)
    write_files(tmp_path / "b", 0, 3)
    make = mixed(spark, tmp_path)
    first = run(tmp_path / "q1", make("abnz"), AT_ONCE, capture_in=(2, 5), last=7)
    position = through_json(join([first.positions[2], first.positions[5]]))

    sources = make(order)
    lay_out(tmp_path / "q2", position, source_leaves(sources))
    second = run(tmp_path / "q2", sources, AT_ONCE, last=12)

    assert min(second.batches) == 6
    whole = all_rows({**{i: first.batches[i] for i in range(6)}, **second.batches})
    once = [*names("a", range(26)), *names("n", range(30))]
    assert whole == sorted([*once, *names("b", range(3)), *(f"again-{v}" for v in once)])


@pytest.mark.versions
def test_spark_numbers_distinct_leaves_in_the_order_of_the_plan(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_files(tmp_path / "a", 0, 1)
    write_files(tmp_path / "b", 0, 1)
    a, b = (file_stream(spark, tmp_path / name) for name in "ab")
    rate = rate_stream(spark, "rate", rows=1)
    sources = {"b": b, "rate": rate, "both": a.union(b).filter("v <> ''"), "a": a.selectExpr("*")}
    leaves = source_leaves(sources)
    assert leaves == {"b": (0,), "rate": (1,), "both": (2, 0), "a": (2,)}

    steps = {
        uid: frame.mapInArrow(lambda rows: rows, frame.schema) for uid, frame in sources.items()
    }
    assert source_leaves(steps) == leaves
    done = run(tmp_path / "q", steps, AT_ONCE, last=1)
    assert sorted(p.name for p in (done.query_dir / "sources").iterdir()) == ["0", "1", "2"]
    lines = (done.query_dir / "offsets" / "1").read_text().splitlines()[2:]
    assert [json.loads(line) for line in lines[:1] + lines[2:]] == [{"logOffset": 0}] * 4
    for index, name in (("0", "b"), ("2", "a")):
        assert f"/{name}/000.json" in (done.query_dir / "sources" / index / "0").read_text()


def test_a_source_that_is_new_starts_at_its_beginning(spark: SparkSession, tmp_path: Path) -> None:
    write_files(tmp_path / "a", 0, 6)
    write_files(tmp_path / "b", 0, 6)
    a, b = (file_stream(spark, tmp_path / name) for name in "ab")
    first = run(tmp_path / "q1", {"a": a}, AT_ONCE, capture_in=(3,), last=3)
    sources = {"b": b, "a": a}
    lay_out(tmp_path / "q2", first.positions[3], source_leaves(sources))
    second = run(tmp_path / "q2", sources, AVAILABLE_NOW)

    assert min(second.batches) == 4
    assert all_rows(second.batches) == ["a004", "a005", *names("b", range(6))]


def test_the_copy_runs_beside_the_query_it_was_taken_from(
    spark: SparkSession, tmp_path: Path
) -> None:
    sources = {"r": rate_stream(spark, "rate-micro-batch", rows=1)}
    leaves = source_leaves(sources)
    going = threading.Event()
    positions: list[QueryPosition] = []

    def each(_: DataFrame, batch_id: int) -> None:
        if batch_id == 0:
            positions.append(capture(tmp_path / "q1", leaves, batch_id))
            going.set()

    writer = sources["r"].writeStream.foreachBatch(each)
    original = writer.option("checkpointLocation", (tmp_path / "q1").as_uri()).start()
    assert going.wait(60)
    lay_out(tmp_path / "q2", positions[0], leaves)
    copy = run(tmp_path / "q2", sources, AT_ONCE, last=2)
    assert original.isActive
    original.stop()
    assert copy.batches == {1: ["r000001"], 2: ["r000002"]}


@pytest.mark.versions
def test_offsets_are_there_as_long_as_a_capture_needs_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    # Only two batches are kept; a capture reads no more.
    key = "spark.sql.streaming.minBatchesToRetain"
    write_files(tmp_path / "a", 0, 26)
    spark.conf.set(key, "2")
    spark.conf.set("spark.sql.streaming.fileSource.log.cleanupDelay", "0")
    try:
        sources = {"a": file_stream(spark, tmp_path / "a")}
        first = run(tmp_path / "q1", sources, AT_ONCE, capture_in=(4, 23), last=24)
    finally:
        spark.conf.unset(key)
        spark.conf.unset("spark.sql.streaming.fileSource.log.cleanupDelay")
    assert not (tmp_path / "q1" / "offsets" / "4").exists()
    assert not (tmp_path / "q1" / "sources" / "0" / "8").exists()
    lay_out(tmp_path / "q2", join(list(first.positions.values())), source_leaves(sources))
    assert run(tmp_path / "q2", sources, AVAILABLE_NOW).batches == {24: ["a024"], 25: ["a025"]}


@pytest.mark.versions
def test_named_offsets_are_refused_with_the_setting_that_helps(
    spark: SparkSession, tmp_path: Path
) -> None:
    key = "spark.sql.streaming.offsetLog.formatVersion"
    write_files(tmp_path / "a", 0, 1)
    spark.conf.set(key, "2")
    try:
        sources = {"a": file_stream(spark, tmp_path / "a")}
        run(tmp_path / "q1", sources, AVAILABLE_NOW)
    finally:
        spark.conf.unset(key)
    with pytest.raises(UnsupportedSparkError, match="formatVersion=1"):
        capture(tmp_path / "q1", source_leaves(sources), 0)


def test_sources_that_are_not_the_query_s_are_noticed(spark: SparkSession, tmp_path: Path) -> None:
    write_files(tmp_path / "a", 0, 1)
    a = file_stream(spark, tmp_path / "a")
    run(tmp_path / "q1", {"a": a}, AVAILABLE_NOW)
    with pytest.raises(CheckpointError, match="2 streaming leaves"):
        capture(tmp_path / "q1", source_leaves({"a": a, "b": a}), 0)
