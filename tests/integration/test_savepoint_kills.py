"""Savepoints whose writer, reader or remover is killed: nothing half-done is ever accepted."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from holdfast import Configuration, HoldfastError, RestartStrategies, StreamExecutionEnvironment
from holdfast.checkpoint.restore.pointer import find_snapshot
from holdfast.checkpoint.savepoint.storage import load_savepoint
from holdfast.errors import RestoreError
from holdfast.savepoints import dispose_savepoint, rewrite_max_parallelism
from holdfast.storage.file_system import FileSystemFiles
from tests.integration.test_savepoint_schemas import (
    Account,
    Keep,
    Line,
    NewAccount,
    NewLine,
    NewVisit,
    Visit,
    digest,
    new_held,
)
from tests.support.golden_savepoints import GOLDEN
from tests.support.kill_jobs import RETAIN, claiming, run
from tests.support.recovery_jobs import (
    BACKENDS,
    HASHMAP,
    ROCKSDB,
    Event,
    RecoveryJob,
    event,
    expected,
    option,
)
from tests.support.recovery_tools import Faults, Feed, wait_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CANONICAL = "format-5-canonical-hashmap"
OPERATORS = {"books", "numbers", "sums"}
FEWER = 16


@pytest.fixture
def golden(tmp_path: Path) -> Path:
    """A savepoint of three operators."""
    return shutil.copytree(GOLDEN / CANONICAL, tmp_path / "golden")


def tables(savepoint: str) -> dict[str, bytes]:
    """All files of a savepoint but its metadata, by their names in it."""
    return {
        str(path.relative_to(savepoint)): path.read_bytes()
        for path in Path(savepoint).rglob("*")
        if path.is_file() and path.name != "_metadata"
    }


def refused_by_all(left: Path, spark: SparkSession) -> None:
    """Assert that what is left is no savepoint, whoever is asked."""
    assert not (left / "_metadata").exists()
    before = digest(str(left))
    pointers = (str(left), f"{left}/_metadata", str(left.parent))
    for pointer in pointers:
        for read in (find_snapshot, _compared(spark), _started(spark)):
            with pytest.raises(RestoreError, match="no complete savepoint or checkpoint"):
                read(pointer)
        with pytest.raises(RestoreError, match="no complete savepoint or checkpoint"):
            rewrite_max_parallelism(pointer, str(left.parent / "elsewhere"), FEWER)
    with pytest.raises(RestoreError, match="never completed"):
        load_savepoint(FileSystemFiles(str(left)))
    names = ", ".join(repr(path.name) for path in sorted(left.iterdir()))
    with pytest.raises(RestoreError, match=f"nothing was deleted. There is {names}: if"):
        dispose_savepoint(str(left))
    assert digest(str(left)) == before


def _program(spark: SparkSession) -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment(spark, Configuration())
    env.from_generator(int, rate=1, type_info=int).uid("source").print()
    return env


def _compared(spark: SparkSession) -> Any:
    return lambda path: _program(spark).compare_savepoint(path)


def _started(spark: SparkSession) -> Any:
    return lambda path: _program(spark).execute_async("never", from_savepoint=path)


@pytest.mark.parametrize(
    ("form", "fault"),
    [
        (CANONICAL, {"point": "after-savepoint-part", "uid": "books", "subtask": 0}),
        (CANONICAL, {"point": "before-savepoint-metadata"}),
        pytest.param(
            "format-5-native-rocksdb",
            {"point": "before-savepoint-metadata"},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_rewriting_that_is_killed_leaves_no_savepoint_and_is_run_again(
    spark: SparkSession, tmp_path: Path, form: str, fault: dict[str, Any]
) -> None:
    source, target = shutil.copytree(GOLDEN / form, tmp_path / "source"), tmp_path / "target"
    before = digest(str(source))
    code = run(tmp_path, "rewrite", str(source), str(target), FEWER, **fault)
    assert code == -signal.SIGKILL, (tmp_path / "log").read_text()
    [left] = target.iterdir()
    written = {path.name for path in left.iterdir()}
    assert written <= OPERATORS
    assert "books" in written
    assert (written == OPERATORS) == (fault["point"] == "before-savepoint-metadata")
    assert list((tmp_path / "tmp").glob("holdfast-rewrite-*"))
    refused_by_all(left, spark)
    assert digest(str(source)) == before
    # The same once more goes to a directory of its own, and does not mind what is left.
    again = rewrite_max_parallelism(str(source), str(target), FEWER)
    undisturbed = rewrite_max_parallelism(str(source), str(tmp_path / "undisturbed"), FEWER)
    assert tables(again) == tables(undisturbed)
    _, metadata = find_snapshot(again)
    assert {operator.max_parallelism for operator in metadata.operators} == {FEWER}
    assert digest(str(source)) == before


@pytest.mark.parametrize(
    ("call", "at", "left"),
    [
        ("dispose", "Above", ["Above", "books", "numbers", "sums"]),
        ("dispose", "numbers", ["Above", "numbers", "sums"]),
        ("release", "sums", ["Above", "sums"]),
    ],
)
def test_a_deletion_that_is_killed_leaves_no_savepoint_and_it_is_told_what_is_left(
    spark: SparkSession, tmp_path: Path, golden: Path, call: str, at: str, left: list[str]
) -> None:
    # Of all names that are there, it comes first; it is not the savepoint's, and stays.
    (golden / "Above").mkdir()
    (golden / "Above" / "part-00000.parquet").touch()
    code = run(tmp_path, call, str(golden), point="during-delete", name=at)
    assert code == -signal.SIGKILL, (tmp_path / "log").read_text()
    assert sorted(path.name for path in golden.iterdir()) == left
    refused_by_all(golden, spark)


@pytest.mark.slow
def test_a_driver_killed_while_it_deletes_what_it_claimed_goes_on_from_its_own_checkpoints(
    spark: SparkSession, tmp_path: Path, golden: Path
) -> None:
    code = run(tmp_path, "claim", str(tmp_path), str(golden), point="during-delete", name="numbers")
    assert code == -signal.SIGKILL, (tmp_path / "log").read_text()[-3000:]
    assert sorted(path.name for path in golden.iterdir()) == ["numbers", "sums"]
    refused_by_all(golden, spark)
    # Nobody else can begin from it any more; the job, given the same command, goes on.
    other = RecoveryJob(spark, tmp_path / "other", chain=True, settings=RETAIN)
    source = other.env.from_generator(event, rate=1, type_info=Event).uid("source")
    with pytest.raises(RestoreError, match="no complete savepoint or checkpoint"):
        other.start(source, from_savepoint=str(golden))
    job, client = claiming(spark, tmp_path, str(golden))
    wait_for(lambda: len(job.books.final(2)) == 20 and job.sums.rows, "every key to come again")
    client.stop_with_savepoint(str(tmp_path / "savepoints"))
    everything = expected(range(max(row[1] for row in job.books.rows) + 1))
    assert job.outcome().books == everything.books
    assert {key: row[1:] for key, row in job.sums.final(1).items()} == everything.sums
    assert sorted(path.name for path in golden.iterdir()) == ["numbers", "sums"]


OLD, NEW = Keep(Account, Line, Visit), Keep(NewAccount, NewLine, NewVisit)


class Evolved(NamedTuple):
    """Input, and a savepoint that the old program took of its first half."""

    spark: SparkSession
    feed: Feed
    savepoint: str

    def run(
        self, function: Keep, backend: str, directory: Path, restarts: int = 0
    ) -> dict[str, str]:
        """What the program holds of every key, having read all input from the savepoint on."""
        rows: list[Any] = []
        env = _keeping(self.spark, self.feed, function, backend, rows, directory)
        if restarts:
            env.set_restart_strategy(RestartStrategies.fixed_delay_restart(restarts, 0))
        env.set_job_id("evolves").set_available_now()
        statistics = env.execute("evolves", from_savepoint=self.savepoint).statistics
        assert statistics.restarts == restarts
        return {k: held for k, _, held in sorted(rows, key=lambda row: row[1])}

    def expected(self) -> dict[str, str]:
        """The same of a job that nothing disturbs: the first two of each key are old."""
        elements = self.feed.elements
        keys = {f"k{k}": [i for i in elements if i % 20 == k] for k in range(20)}
        return {k: new_held(mine, 2) for k, mine in keys.items()}


def _keeping(
    spark: SparkSession,
    feed: Feed,
    function: Keep,
    backend: str,
    rows: list[Any],
    directory: Path | None = None,
) -> StreamExecutionEnvironment:
    settings = {} if directory is None else {"dir": str(directory), "interval": "10 ms", **RETAIN}
    configuration = Configuration({option(key): value for key, value in settings.items()})
    env = StreamExecutionEnvironment.get_execution_environment(spark, configuration)
    env.set_parallelism(2).set_state_backend(BACKENDS[backend])
    env.set_restart_strategy(RestartStrategies.no_restart())
    events = env.from_dataframe(feed.stream()).uid("events")
    kept = events.key_by("k").process(function, "k string, i bigint, held string").uid("keep")
    kept.foreach_batch(lambda df, _: rows.extend(map(tuple, df.collect()))).uid("rows")
    return env


@pytest.fixture(scope="module")
def evolved(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Evolved:
    directory, rows = tmp_path_factory.mktemp("evolved"), list[Any]()
    feed = Feed(spark, directory / "input").fill(1)
    client = _keeping(spark, feed, OLD, HASHMAP, rows).execute_async("before")
    wait_for(lambda: len(rows) == len(feed.elements), "all input to be processed")
    path = client.stop_with_savepoint(str(directory / "savepoints"))
    return Evolved(spark, feed.fill(2), path)


@pytest.mark.parametrize("backend", [HASHMAP, ROCKSDB])
def test_an_evolved_job_that_nothing_disturbs_comes_to_what_is_expected_of_it(
    evolved: Evolved, tmp_path: Path, backend: str
) -> None:
    assert evolved.run(NEW, backend, tmp_path) == evolved.expected()


@pytest.mark.parametrize(
    ("point", "backend"),
    [
        ("before-commit", ROCKSDB),
        ("after-commit", HASHMAP),
        pytest.param("before-commit", HASHMAP, marks=pytest.mark.slow),
        pytest.param("after-commit", ROCKSDB, marks=pytest.mark.slow),
    ],
)
def test_a_kill_in_the_epoch_that_takes_up_a_new_schema_costs_nothing_but_time(
    evolved: Evolved, injected: Faults, tmp_path: Path, point: str, backend: str
) -> None:
    before = digest(evolved.savepoint)
    fault = {"point": point, "action": "kill", "uid": "keep"}
    [struck] = injected.plan(tmp_path, fault)
    with pytest.raises(HoldfastError):
        evolved.run(NEW, backend, tmp_path / "checkpoints")
    assert struck.exists()
    assert not list((tmp_path / "checkpoints").rglob("_metadata"))
    assert digest(evolved.savepoint) == before
    # The same command once more.
    assert evolved.run(NEW, backend, tmp_path / "checkpoints") == evolved.expected()


@pytest.mark.parametrize(
    ("point", "backend"),
    [
        ("after-commit", ROCKSDB),
        pytest.param("before-commit", ROCKSDB, marks=pytest.mark.slow),
        pytest.param("after-commit", HASHMAP, marks=pytest.mark.slow),
        pytest.param("before-commit", HASHMAP, marks=pytest.mark.slow),
    ],
)
def test_a_job_that_restarts_itself_takes_up_the_new_schema_again(
    evolved: Evolved, injected: Faults, tmp_path: Path, point: str, backend: str
) -> None:
    [struck] = injected.plan(tmp_path, {"point": point, "action": "kill", "uid": "keep"})
    held = evolved.run(NEW, backend, tmp_path / "checkpoints", restarts=1)
    assert struck.exists()
    assert held == evolved.expected()
