"""What keeps an epoch true: every subtask runs once, or the epoch is refused."""

from __future__ import annotations

import json
import logging
import signal
import subprocess
import sys
import textwrap
import threading
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

from holdfast import (
    DataStream,
    EmbeddedRocksDBStateBackend,
    HashMapStateBackend,
    KeyedProcessFunction,
    MapFunction,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
)
from holdfast.api.streams.graph import OperatorKind
from holdfast.checkpoint.service import RecoveryOrder
from holdfast.errors import JobExecutionError, NotSerializableError, StoreVersionError
from holdfast.job.model import JobIdentity
from holdfast.job.statistics_keeper import StatisticsKeeper
from holdfast.spark.epoch_runner import EpochRunner
from holdfast.spark.failures import original_error
from holdfast.spark.placement.pinning import Pinning
from holdfast.spark.session import QUERY_SETTINGS
from tests.integration.conftest import CountByKey, final_counts

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

BACKENDS = [HashMapStateBackend(), EmbeddedRocksDBStateBackend()]


@pytest.fixture(params=BACKENDS, ids=["hashmap", "rocksdb"])
def runner(
    request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path
) -> Iterator[EpochRunner]:
    """A runner of a counting job over two subtasks, without a query around it."""
    env = StreamExecutionEnvironment.get_execution_environment(spark).set_parallelism(2)
    env.set_state_backend(request.param)
    words = env.from_dataframe(spark.createDataFrame([("a",)], "word string"))
    words.key_by("word").process(CountByKey(), "word string, n bigint").uid("count").print()
    _, plan, *_ = env._compiled(env._checkpointing("protocol", RecoveryOrder()))
    job = JobIdentity("protocol", "protocol", str(tmp_path))
    pinning = Pinning(spark)
    pinning.anchor(plan.stage_parallelism)
    yield EpochRunner(spark, plan, job, StatisticsKeeper(plan), pinning)
    pinning.close()


def rows_of(runner: EpochRunner, spark: SparkSession, words: str) -> Any:
    return runner.first_rows([spark.createDataFrame([(w,) for w in words], "word string")])


def test_a_plan_that_runs_twice_is_stopped_by_the_versions(
    runner: EpochRunner, spark: SparkSession
) -> None:
    rows = runner.rows(rows_of(runner, spark, "abc"))
    assert len(rows.collect()) == 3
    with pytest.raises(PySparkException) as caught:
        rows.collect()
    assert isinstance(original_error(caught.value), StoreVersionError)


def test_an_epoch_that_not_every_subtask_finished_is_refused(
    runner: EpochRunner, spark: SparkSession
) -> None:
    # A consumer that reads one row only lets the tasks end before they have committed.
    def careless(rows: Any, epoch: int) -> None:
        rows.limit(1).collect()

    runner._outputs.emit = careless  # type: ignore[method-assign]
    with pytest.raises(JobExecutionError, match="never reached the end of their input"):
        runner.run(rows_of(runner, spark, "abcdefgh" * 10))


def test_an_epoch_that_a_subtask_ran_twice_is_refused(
    runner: EpochRunner, spark: SparkSession
) -> None:
    emit = runner._outputs.emit

    def twice(rows: Any, epoch: int) -> None:
        emit(rows, epoch)
        runner._reports.value = [*runner._reports.value, runner._reports.value[-1]]

    runner._outputs.emit = twice  # type: ignore[method-assign]
    with pytest.raises(StoreVersionError, match="ran twice"):
        runner.run(rows_of(runner, spark, "abc"))


def test_epochs_continue_from_the_versions_that_were_acknowledged(
    runner: EpochRunner, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(3):
        runner.run(rows_of(runner, spark, "aab"))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 9
    assert "Event(word='a', n=6)" in lines
    assert "Event(word='b', n=3)" in lines


RETRIES = """
import json, os, random, signal, sys
from pyspark.sql import SparkSession
from holdfast import *

class Fragile(KeyedProcessFunction):
    def __init__(self, fault):
        self.fault = fault
    def open(self, ctx):
        self.fate = random.Random()
        self.first = ctx.get_attempt_number() == 0 and self.fault != "none"
        self.seen = ctx.get_map_state(MapStateDescriptor("seen", int, int))
        self.sums = ctx.get_list_state(ListStateDescriptor("sums", int))
        self.count = ctx.get_state(ValueStateDescriptor("count", int))
    def process_element(self, value, ctx):
        self.count.update((self.count.value() or 0) + 1)
        self.seen.put(value % 10, self.count.value())
        self.sums.add(value)
        if self.first and self.fate.random() < 0.01:
            if self.fault == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            raise RuntimeError("first attempts fail")
        yield ctx.get_current_key(), self.count.value(), sum(self.sums.get()), len(list(self.seen))

spark = (SparkSession.builder.master("local[2,8]").config("spark.ui.enabled", "false")
         .config("spark.driver.bindAddress", "127.0.0.1").getOrCreate())
spark.sparkContext.setLogLevel("OFF")
def outcome(fault):
    env = StreamExecutionEnvironment.get_execution_environment(
        spark,
        Configuration({"state.backend.type": sys.argv[1], "execution.epoch.max-events": 1000}))
    numbers = env.from_generator(lambda i: i, count=4000, type_info=int).set_parallelism(1)
    keyed = numbers.key_by(lambda n: n % 7)
    results = keyed.process(Fragile(fault)).uid("fragile").set_parallelism(2)
    again = results.key_by(lambda r: r[1] % 5).map(lambda r: r).uid("again")
    return sorted(again.execute_and_collect())

print(json.dumps({fault: outcome(fault) for fault in ("none", "raise", "kill")}))
"""


@pytest.mark.versions
@pytest.mark.spark
@pytest.mark.parametrize("backend", [pytest.param("hashmap", marks=pytest.mark.slow), "rocksdb"])
def test_attempts_that_fail_or_are_killed_change_nothing(tmp_path: Path, backend: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(RETRIES)
    run = subprocess.run(
        [sys.executable, str(program), backend],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    outcomes = json.loads(run.stdout.splitlines()[-1])
    assert len(outcomes["none"]) == 4000
    assert outcomes["raise"] == outcomes["none"]
    assert outcomes["kill"] == outcomes["none"]


@pytest.mark.versions
def test_a_driver_that_is_killed_leaves_state_that_the_next_job_sweeps(
    spark: SparkSession, tmp_path: Path
) -> None:
    script = textwrap.dedent(
        f"""
        import os, signal
        from holdfast import *
        env = StreamExecutionEnvironment.get_execution_environment(
            configuration=Configuration({{"state.local-dir": {str(tmp_path)!r}}}))
        env.add_epoch_listener(lambda epoch: os.kill(os.getpid(), signal.SIGKILL))
        env.from_collection([1, 2]).key_by(lambda n: n).sum().print()
        env.execute("killed")
        """
    )
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, timeout=120, check=False
    )
    assert run.returncode == -signal.SIGKILL
    assert len(list(tmp_path.glob("holdfast-*"))) == 1
    env = StreamExecutionEnvironment.get_execution_environment(spark)
    env._configuration.set("state.local-dir", str(tmp_path))
    env.from_collection([1, 2]).key_by(lambda n: n).sum().print()
    env.execute("next")
    assert list(tmp_path.glob("holdfast-*")) == []


def test_a_listener_may_cancel_its_own_job(env: StreamExecutionEnvironment) -> None:
    numbers = env.from_generator(lambda i: i, rate=2000, type_info=int)
    clients: list[Any] = []
    env.add_epoch_listener(lambda epoch: clients[0].cancel() if epoch.epoch == 3 else None)
    numbers.map(lambda n: n, int).print()
    clients.append(env.execute_async("self-cancelling"))
    assert clients[0].result(timeout=60).statistics.epochs == 3


class Untyped(KeyedProcessFunction):
    """Keeps something without saying what."""

    def open(self, ctx: Any) -> None:
        self.anything = ctx.get_state(ValueStateDescriptor("anything"))

    def process_element(self, value: Any, ctx: Any) -> Iterator[int]:
        self.anything.update(value)
        yield self.anything.value()


def test_untyped_state_is_warned_of_once_per_job(
    env: StreamExecutionEnvironment, caplog: pytest.LogCaptureFixture
) -> None:
    env.set_max_events_per_epoch(2)
    numbers = env.from_collection(range(6)).key_by(lambda n: n).process(Untyped())
    with caplog.at_level(logging.WARNING, logger="holdfast"):
        assert sorted(numbers.execute_and_collect()) == list(range(6))
    [record] = [r for r in caplog.records if r.name == "holdfast"]
    assert "state 'anything' has no type and is pickled" in record.getMessage()


def test_static_and_streaming_sources_mix(
    env: StreamExecutionEnvironment, spark: SparkSession
) -> None:
    static = env.from_dataframe(spark.createDataFrame([("a",), ("b",)], "word string"))
    env.set_available_now()
    rate = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 3)
    frame = rate.option("numPartitions", 1).load().selectExpr("'a' as word")
    counts = static.union(env.from_dataframe(frame)).key_by("word").process(CountByKey())
    counted = final_counts(list(counts.execute_and_collect()))
    assert counted["b"] == 1
    assert counted["a"] >= 4


def test_an_empty_collection_is_a_job_without_epochs(env: StreamExecutionEnvironment) -> None:
    nothing = env.from_collection([], "word string").key_by("word").process(CountByKey())
    assert list(nothing.execute_and_collect()) == []


@pytest.mark.versions
@pytest.mark.parametrize("condition", ["false", "word = 'nothing'"])
def test_a_static_frame_without_rows_is_an_epoch_like_any_other(
    env: StreamExecutionEnvironment, spark: SparkSession, condition: str
) -> None:
    frame = spark.createDataFrame([("a",)], "word string").where(condition)
    counts = env.from_dataframe(frame).key_by("word").process(CountByKey())
    assert list(counts.execute_and_collect()) == []


@pytest.mark.versions
def test_the_sessions_settings_are_as_they_were(
    env: StreamExecutionEnvironment, spark: SparkSession
) -> None:
    names = [*QUERY_SETTINGS, "spark.sql.optimizer.excludedRules"]
    before = [spark.conf.get(name, None) for name in names]
    frame = spark.createDataFrame([("a",)], "word string")
    first = env.from_dataframe(frame).key_by("word").process(CountByKey())
    second = env.from_collection(["a"]).key_by(lambda w: w).process(CountByKey())
    one, two = first.execute_and_collect(), second.execute_and_collect()
    assert list(one) == list(two) == [("a", 1)]
    assert [spark.conf.get(name, None) for name in names] == before


def test_a_source_that_nothing_reads_does_not_matter(env: StreamExecutionEnvironment) -> None:
    env.from_generator(lambda i: i, rate=1, type_info=int)
    assert list(env.from_collection([1]).map(lambda n: n, int).execute_and_collect()) == [1]


def test_a_limit_is_reached_without_waiting_for_more(env: StreamExecutionEnvironment) -> None:
    # Three elements, then none for an hour.
    numbers = env.from_generator(lambda i: i, rate=30, count=10**9, type_info=int)
    first = numbers.filter(lambda n: n < 3).execute_and_collect(limit=3)
    assert sorted(first) == [0, 1, 2]
    assert env.from_collection([1]).map(lambda n: n, int).execute_and_collect(limit=0) == []


class Tagging(MapFunction):
    """Changes the very element it is given."""

    def map(self, value: Any) -> Any:
        value["k"] = "changed"
        return value["k"]


def test_consumers_of_one_stream_do_not_see_each_others_changes(
    env: StreamExecutionEnvironment,
) -> None:
    words: DataStream = env.from_collection(["a", "b", "c", "d"]).map(lambda w: {"k": w}, Any)
    words.map(Tagging()).print()
    seen: list[Any] = []
    words.map(lambda e: e["k"], str).foreach_batch(lambda df, _: seen.extend(df.collect()))
    counts = words.key_by(lambda e: e["k"]).process(CountByKey())
    assert final_counts(list(counts.execute_and_collect())) == dict.fromkeys("abcd", 1)
    assert sorted(row.value for row in seen) == ["a", "b", "c", "d"]


def test_rows_keep_their_order_when_another_branch_is_longer(
    env: StreamExecutionEnvironment,
) -> None:
    words = env.from_collection([("a",)] * 50, "word string")
    counts = words.key_by("word").process(CountByKey(), "word string, n bigint")
    again = counts.key_by("n").process(CountByKey())
    again.print()
    assert [n for _, n in counts.execute_and_collect()] == list(range(1, 51))


def test_a_job_that_cannot_start_leaves_no_sink_that_nobody_reads(
    env: StreamExecutionEnvironment,
) -> None:
    lock = threading.Lock()
    broken = env.from_collection([1]).map(lambda n: lock.locked())
    with pytest.raises(NotSerializableError):
        broken.execute_and_collect()
    assert not [node for node in env._graph.nodes if node.kind is OperatorKind.OUTPUT]
