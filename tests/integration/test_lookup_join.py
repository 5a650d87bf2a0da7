"""Lookup joins on Spark: tables that are read again, cannot be read, or do not fit."""

from __future__ import annotations

import logging
import os
import pickle
import shutil
import signal
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as f

from holdfast import Configuration, MapFunction, RestartStrategies
from holdfast.errors import JobExecutionError, JobGraphError
from holdfast.spark.lookups import BroadcastTable, LookupTables, make_lookup, read_table
from holdfast.types.stream_type import StreamType
from tests.support.recovery_tools import Feed, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession

    from holdfast import JobClient, StreamExecutionEnvironment
    from holdfast.api.streams.lookup import LookupJoin

TIMEOUT = 120
STREAM = StreamType.of("id bigint, n bigint")
UID = "names"


@pytest.fixture
def names(spark: SparkSession) -> DataFrame:
    """Two keys with a row each, one with two."""
    rows = [(1, "one"), (2, "two"), (2, "zwei"), (4, "four")]
    return spark.createDataFrame(rows, "id int, name string")


class Directory:
    """A Parquet directory that is overwritten."""

    def __init__(self, spark: SparkSession, path: Path) -> None:
        self._spark = spark
        self.path = str(path)

    def write(self, name: str) -> Directory:
        """Have every key from 0 to 99 with this name, and nothing else."""
        rows = self._spark.range(100).select("id", f.lit(name).alias("name"))
        rows.coalesce(1).write.mode("overwrite").parquet(self.path)
        return self

    def read(self) -> DataFrame:
        return self._spark.read.parquet(self.path)

    def remove(self) -> None:
        shutil.rmtree(self.path)


@pytest.fixture
def directory(spark: SparkSession, tmp_path: Path) -> Directory:
    return Directory(spark, tmp_path / "table").write("old")


def lookup(table: Any, on: Any = "id", **options: Any) -> LookupJoin:
    given = {"refresh_interval": None, "how": "inner", "zone": "UTC", **options}
    return make_lookup(STREAM, table, on, **given)


# What a job gives out


def test_rows_are_joined_with_the_table(env: StreamExecutionEnvironment, names: DataFrame) -> None:
    stream = env.from_collection([(1, 10), (2, 20), (3, 30), (None, 40)], "id bigint, n bigint")
    joined = stream.lookup_join(names, "id")
    assert str(joined.type) == "id bigint, n bigint, name string"
    found = sorted(joined.execute_and_collect())
    assert found == [(1, 10, "one"), (2, 20, "two"), (2, 20, "zwei")]
    assert found[0].name == "one"


def test_a_left_join_keeps_rows_without_a_match(
    env: StreamExecutionEnvironment, names: DataFrame
) -> None:
    stream = env.from_collection([(1, 10), (3, 30), (None, 40)], "id bigint, n bigint")
    found = list(stream.lookup_join(names, ["id"], how="left").execute_and_collect())
    assert sorted(found, key=str) == [(1, 10, "one"), (3, 30, None), (None, 40, None)]


@dataclass
class Visit:
    who: int
    at: datetime


def test_spark_finds_the_same_rows_for_keys_of_every_type(
    spark: SparkSession, env: StreamExecutionEnvironment
) -> None:
    values = (
        "values (1, 'a', date'2024-02-29', timestamp'2024-02-29 10:00:00', 1.5bd, 2.5d, true), "
        "(1, 'b', date'0001-01-01', timestamp'2024-10-27 01:30:00', 7bd, double('nan'), false), "
        "(2, '', date'9999-12-31', timestamp'1969-12-31 23:59:59.999999', 0bd, -0d, true), "
        "(null, null, null, null, null, null, null) as t(i, s, d, t, m, f, b)"
    )
    stream = spark.sql(f"select *, monotonically_increasing_id() as row from {values}")
    table = spark.sql(
        "select i as i2, s as s2, d as d2, t as t2, cast(m as decimal(20, 4)) as m2, "
        "cast(f as float) as f2, b as b2, monotonically_increasing_id() as row2 "
        f"from {values}"
    )
    table = table.withColumn("f2", f.when(f.col("f2") == 0, f.lit(0.0)).otherwise(f.col("f2")))
    table = table.withColumn("f2", f.col("f2").cast("float"))
    for key in "isdtmfb":
        wanted = stream.join(table, f.col(key) == f.col(f"{key}2")).select("row", "row2")
        joined = env.from_dataframe(stream).lookup_join(table, {key: f"{key}2"})
        found = [(row.row, row.row2) for row in joined.execute_and_collect()]
        assert sorted(found) == sorted(map(tuple, wanted.collect())), key
        assert found


def test_elements_of_a_class_become_events_of_all_columns(
    env: StreamExecutionEnvironment, names: DataFrame
) -> None:
    visits = env.from_collection([Visit(1, datetime(2024, 1, 1, tzinfo=UTC))], Visit)
    [found] = visits.lookup_join(names, {"who": "id"}).execute_and_collect()
    assert found._asdict() == {"who": 1, "at": datetime(2024, 1, 1, tzinfo=UTC), "name": "one"}


def test_a_job_may_have_several_lookup_joins(
    spark: SparkSession, env: StreamExecutionEnvironment, names: DataFrame
) -> None:
    sizes = spark.createDataFrame([("one", 3), ("four", 4)], "word string, size int")
    stream = env.from_collection([(1, 10), (2, 20), (4, 40)], "id bigint, n bigint")
    named = stream.lookup_join(names, "id").uid("names")
    sized = named.lookup_join(sizes, {"name": "word"}).uid("sizes")
    spread = sized.key_by("name").lookup_join(names.withColumnRenamed("name", "again"), "id")
    found = spread.uid("again").execute_and_collect()
    assert sorted(found) == [(1, 10, "one", 3, "one"), (4, 40, "four", 4, "four")]


# Reading again


class Job:
    """A job that joins what a feed brings, epoch by epoch."""

    def __init__(self, env: StreamExecutionEnvironment, feed: Feed) -> None:
        self._env, self._feed = env, feed
        self.names: list[str] = []

    def start(self, table: Any, refresh_interval: Any) -> JobClient:
        stream = self._env.from_dataframe(self._feed.stream())
        joined = stream.lookup_join(table, {"i": "id"}, refresh_interval=refresh_interval)
        joined.uid(UID).foreach_batch(self._note)
        return self._env.execute_async("lookup")

    def _note(self, df: DataFrame, epoch: int) -> None:
        self.names += [row.name for row in df.collect()]

    def next(self) -> str:
        """The name that the next element is joined with."""
        count = len(self.names)
        self._feed.fill(1, each=1)
        wait_for(lambda: len(self.names) > count, "an epoch")
        return self.names[-1]


@pytest.fixture
def job(spark: SparkSession, env: StreamExecutionEnvironment, tmp_path: Path) -> Job:
    return Job(env, Feed(spark, tmp_path / "input"))


@pytest.mark.versions
@pytest.mark.parametrize("made", [False, True], ids=["DataFrame", "function"])
def test_a_table_is_read_again_while_the_job_runs(
    job: Job, directory: Directory, made: bool
) -> None:
    client = job.start(directory.read if made else directory.read(), refresh_interval=0)
    try:
        assert job.next() == "old"
        directory.write("new")
        assert job.next() == "new"
        directory.write("newest")
        assert job.next() == "newest"
    finally:
        client.cancel()


def test_without_an_interval_the_first_copy_is_used_for_good(
    job: Job, directory: Directory
) -> None:
    client = job.start(directory.read, refresh_interval=None)
    try:
        assert job.next() == "old"
        directory.write("new")
        assert job.next() == "old"
    finally:
        client.cancel()


@pytest.mark.parametrize("made", [False, True], ids=["DataFrame", "function"])
def test_a_table_that_cannot_be_read_again_stays_as_it_was(
    job: Job, directory: Directory, caplog: pytest.LogCaptureFixture, made: bool
) -> None:
    client = job.start(directory.read if made else directory.read(), refresh_interval=0)
    try:
        with caplog.at_level(logging.WARNING, "holdfast"):
            assert job.next() == "old"
            assert not caplog.records
            directory.remove()
            assert job.next() == "old"
            assert job.next() == "old"
            said = [record.getMessage() for record in caplog.records]
            assert len(said) == 2
            assert "uid 'names' could not be read again" in said[0]
            assert directory.path in said[0]
        directory.write("new")
        assert job.next() == "new"
    finally:
        client.cancel()


def test_a_table_that_cannot_be_read_at_first_fails_the_job(job: Job, directory: Directory) -> None:
    client = job.start(directory.read, refresh_interval=0)
    directory.remove()
    job._feed.fill(1)
    with pytest.raises(JobExecutionError, match=r"uid 'names' cannot be read: .*PATH_NOT_FOUND"):
        client.result(TIMEOUT)


class KillOnce(MapFunction):
    """Kills its worker when a certain element arrives for the first time."""

    def __init__(self, at: int, marker: Path) -> None:
        self._at, self._marker = at, str(marker)

    def map(self, value: Any) -> Any:
        if value.i == self._at and not Path(self._marker).exists():
            Path(self._marker).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return value


def test_a_job_joins_on_after_a_worker_was_killed(
    spark: SparkSession, env: StreamExecutionEnvironment, directory: Directory, tmp_path: Path
) -> None:
    feed = Feed(spark, tmp_path / "input").fill(3, each=30)
    env.configure(Configuration({"execution.checkpointing.dir": (tmp_path / "chk").as_uri()}))
    env.enable_checkpointing(10)
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(3, 0)).set_available_now()
    written: list[Any] = []
    stream = env.from_dataframe(feed.stream())
    joined = stream.lookup_join(directory.read(), {"i": "id"}, refresh_interval=0).uid(UID)
    killing = joined.map(KillOnce(50, tmp_path / "killed"), "i bigint, k string, name string")
    killing.uid("kill").foreach_batch(lambda df, _: written.extend(df.collect())).uid("out")
    statistics = env.execute("killed").statistics
    assert statistics.restarts == 1
    assert Counter(row.i for row in written) == Counter(feed.elements)
    assert {row.name for row in written} == {"old"}


# Copies


class Counted:
    """Makes a table that says how often it was made; fails where it is told to."""

    def __init__(self, spark: SparkSession, fails: frozenset[int] = frozenset()) -> None:
        self._spark, self._fails = spark, fails
        self.made = -1  # The first one tells its columns.

    def __call__(self) -> DataFrame:
        self.made += 1
        if self.made in self._fails:
            raise OSError(f"no table {self.made}")
        return self._spark.createDataFrame([(1, self.made)], "id int, made int")


@pytest.fixture
def held(spark: SparkSession) -> Iterator[Callable[..., LookupTables]]:
    """Makes tables, of which all copies are dropped at the end."""
    made: list[LookupTables] = []

    def make(**lookups: LookupJoin) -> LookupTables:
        made.append(LookupTables(spark, lookups))
        return made[-1]

    yield make
    for one in made:
        one.close()


def read_at(tables: LookupTables, now: int) -> int:
    [made] = tables.copies(now)["a"].read().column("made").to_pylist()
    return int(made)


def test_a_table_is_read_when_its_interval_has_passed(
    spark: SparkSession, held: Callable[..., LookupTables]
) -> None:
    tables = held(a=lookup(Counted(spark), refresh_interval="1 s"))
    assert [read_at(tables, now) for now in (500, 1499, 1500, 2499, 2500)] == [1, 1, 2, 2, 3]


def test_after_a_failure_the_interval_passes_before_the_next_try(
    spark: SparkSession, held: Callable[..., LookupTables], caplog: pytest.LogCaptureFixture
) -> None:
    table = Counted(spark, fails=frozenset({2}))
    tables = held(a=lookup(table, refresh_interval="1 s"))
    assert [read_at(tables, now) for now in (0, 1000, 1999, 2000)] == [1, 1, 1, 3]
    [record] = caplog.records
    assert "it is tried again in 1.0 s: JobGraphError: " in record.getMessage()
    assert "no table 2" in record.getMessage()


def test_a_copy_is_dropped_when_the_next_has_taken_its_place(
    spark: SparkSession, held: Callable[..., LookupTables]
) -> None:
    tables = held(a=lookup(Counted(spark), refresh_interval=0), b=lookup(Counted(spark)))
    first, second = tables.copies(0), tables.copies(0)
    assert first["a"].number != second["a"].number
    assert first["b"] is second["b"]
    files = [file_of(copy) for copy in (first["a"], second["a"], second["b"])]
    assert [file.exists() for file in files] == [False, True, True]
    tables.close()
    assert not any(file.exists() for file in files)


def file_of(copy: Any) -> Path:
    assert isinstance(copy, BroadcastTable)
    return Path(copy.broadcast._path)


def test_a_copy_is_tiny_for_who_carries_it(
    spark: SparkSession, held: Callable[..., LookupTables]
) -> None:
    table = spark.range(100_000).withColumn("name", f.col("id").cast("string"))
    [copy] = held(a=lookup(table)).copies(0).values()
    size = len(pickle.dumps(copy))
    # Spark has noted that the variable is used, and would ship it with the next function.
    spark.sparkContext._pickled_broadcast_vars.clear()
    assert size < 500
    assert copy.read().num_rows == 100_000


@pytest.mark.versions
def test_a_dataframe_of_a_metastore_table_and_a_subquery_is_read_anew(
    spark: SparkSession,
) -> None:
    def write(name: str) -> None:
        rows = spark.createDataFrame([(1, name)], "id int, name string")
        rows.write.mode("overwrite").saveAsTable("looked_up")

    write("old")
    try:
        direct = lookup(spark.table("looked_up"))
        nested = lookup(spark.sql("select 1 as id, (select max(name) from looked_up) as name"))
        write("new")
        for join in (direct, nested):
            assert read_table(join).to_pylist() == [{"id": 1, "name": "new"}]
    finally:
        spark.sql("drop table looked_up")


@pytest.mark.versions
def test_a_table_without_rows_is_not_one_without_files(
    spark: SparkSession, directory: Directory
) -> None:
    join = lookup(directory.read())
    directory.read().limit(0).write.mode("overwrite").parquet(directory.path + "-empty")
    directory.remove()
    Path(directory.path + "-empty").rename(directory.path)
    assert read_table(join).num_rows == 0
    directory.remove()
    for _ in range(2):
        with pytest.raises(JobGraphError, match=f"there are none in file:{directory.path}"):
            read_table(join)


def test_a_table_that_changes_its_type_is_not_read(spark: SparkSession) -> None:
    frames = iter(
        [
            spark.sql("select 1 as id, 'a' as name"),
            spark.sql("select 1 as id, 'a' as name, 2 as more"),
            spark.sql("select 1 as id"),
            spark.sql("select 1L as id, 'a' as name"),
            spark.sql("select 1 as id, nullif('a', 'a') as name"),
        ]
    )
    join = lookup(lambda: next(frames))
    assert read_table(join).column_names == ["id", "name"]
    with pytest.raises(JobGraphError, match=r"'name' was of type string .* is missing"):
        read_table(join)
    with pytest.raises(JobGraphError, match=r"'id' was of type int .* now is bigint"):
        read_table(join)
    with pytest.raises(JobGraphError, match=r"'name' was NOT NULL .* now has nulls"):
        read_table(join)


# What does not fit


@pytest.mark.parametrize(
    ("table", "on", "message"),
    [
        ("select 1 as id", "ID", r"stream has no column 'ID'.* Did you mean 'id'\?"),
        ("select 1 as idd", "id", r"table has no column 'id'; it has \['idd'\]. Did you mean"),
        ("select 1 as id", {"n": "zebra"}, r"table has no column 'zebra'; it has \['id'\]\.$"),
        ("select '1' as id", "id", r"bigint and .*'id' of type string.* never equal; cast it"),
        ("select 1d as id", "id", "'id' of type double, so they are never equal"),
        ("select array(1) as id", "id", "of type array<int>, which cannot be compared"),
        ("select 1 as id, 2 as N", "id", r"both have 'N' .* withColumnRenamed\('N', 'table_N'\)"),
        ("select 1 as id, 2 as id", "n", "two columns are named 'id'"),
        ("select 1 as id, interval 1 day as i", "id", "column 'i'.*; select what is needed"),
    ],
)
def test_a_table_that_does_not_fit_is_refused(
    spark: SparkSession, table: str, on: Any, message: str
) -> None:
    with pytest.raises(JobGraphError, match=message):
        lookup(spark.sql(table), on)


def test_a_collated_column_is_not_compared_and_may_be_added(spark: SparkSession) -> None:
    table = spark.sql("select 'a' collate UTF8_LCASE as name, 1 as id")
    stream = StreamType.of("name string")
    with pytest.raises(JobGraphError, match="'name' has a collation"):
        make_lookup(stream, table, "name", None, "inner", "UTC")
    assert read_table(lookup(table)).to_pylist() == [{"id": 1, "name": "a"}]


def test_a_streaming_table_is_refused(spark: SparkSession) -> None:
    streaming = spark.readStream.format("rate").load()
    with pytest.raises(JobGraphError, match="this one is streaming; read the table with"):
        lookup(streaming, {"id": "value"})
    with pytest.raises(JobGraphError, match="must return a static DataFrame"):
        lookup(lambda: streaming, {"id": "value"})


def test_a_dataframe_of_spark_connect_is_refused() -> None:
    connect = type("DataFrame", (), {"__module__": "pyspark.sql.connect.dataframe"})
    with pytest.raises(JobGraphError, match="belongs to a Spark Connect session"):
        lookup(connect())


def test_an_untyped_stream_is_refused(env: StreamExecutionEnvironment, names: DataFrame) -> None:
    untyped = env.from_collection([1]).map(lambda n: n)
    with pytest.raises(JobGraphError, match="lookup_join needs columns"):
        untyped.lookup_join(names, "id")
