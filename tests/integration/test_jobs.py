"""Jobs on real Spark, from sources to sinks."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest

from holdfast import (
    Configuration,
    EmbeddedRocksDBStateBackend,
    FlatMapFunction,
    HashMapStateBackend,
    JobStatus,
    KeyedProcessFunction,
    KeySelector,
    ListStateDescriptor,
    MapFunction,
    MapStateDescriptor,
    OutputTag,
    ProcessFunction,
    RuntimeExecutionMode,
    SinkFunction,
    SparkSink,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
)
from holdfast.clock import monotonic
from holdfast.serde.keys import key_hash
from holdfast.spark.placement.routing import key_hash_column
from tests.integration.conftest import CountByKey, final_counts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from holdfast.job.statistics import EpochStatistics

WORDS = [("a",), ("b",), ("a",), ("c",), ("a",), ("b",)]


@pytest.mark.versions
@pytest.mark.parametrize(
    "backend", [HashMapStateBackend(), EmbeddedRocksDBStateBackend()], ids=["hashmap", "rocksdb"]
)
def test_state_lives_from_epoch_to_epoch(
    env: StreamExecutionEnvironment, file_stream: Callable[..., DataFrame], backend: Any
) -> None:
    env.set_state_backend(backend).set_available_now()
    words = env.from_dataframe(file_stream([WORDS, WORDS, WORDS[:2]], "word string"))
    counts = words.key_by("word").process(CountByKey(), "word string, count bigint").uid("count")
    outputs = list(counts.execute_and_collect())
    assert final_counts(outputs) == {"a": 7, "b": 5, "c": 2}


@pytest.mark.parametrize(
    ("schema", "values"),
    [
        ("k string", ["a", "", "ü", "x" * 600]),
        ("k bigint", [0, -1, 2**40]),
        ("k int", [0, -1, 2**31 - 1]),
        ("k boolean", [True, False]),
        ("k double", [0.0, -0.0, 1.5, float("nan")]),
        ("k float", [0.5, -2.0]),
        ("k date", ["2026-11-15", "1969-12-31"]),
        ("k timestamp", ["2026-11-15 04:30:00.123456", "1969-12-31 23:59:59"]),
        ("k timestamp_ntz", ["2026-11-15 04:30:00.123456"]),
        ("k decimal(10,2)", ["1.10", "-3.00", "0.00"]),
        ("k binary", ["ab", ""]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_column_key_and_a_function_key_meet_in_one_subtask(
    env: StreamExecutionEnvironment, spark: SparkSession, schema: str, values: list[Any]
) -> None:
    frame = spark.createDataFrame([(str(v),) for v in values * 3], "v string").selectExpr(
        f"cast(v as {schema.split()[1]}) as k"
    )

    class Where(KeyedProcessFunction):
        def open(self, ctx: Any) -> None:
            self.subtask = ctx.get_index_of_this_subtask()
            self.count = ctx.get_state(ValueStateDescriptor("count", int))

        def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
            self.count.update((self.count.value() or 0) + 1)
            yield repr(ctx.get_current_key()), self.subtask, self.count.value()

    rows = env.from_dataframe(frame)
    by_column = rows.key_by("k").process(Where(), "k string, subtask int, n int")
    by_function = rows.key_by(lambda row: row.k).process(Where(), "k string, subtask int, n int")
    columns = sorted(by_column.execute_and_collect())
    assert columns == sorted(by_function.execute_and_collect())
    distinct = len({repr(v) for v in values} - {"-0.0"})
    assert Counter(n for _, _, n in columns)[1] == distinct


@pytest.mark.versions
def test_the_jvm_takes_all_nan_for_one_key_and_zeros_too(spark: SparkSession) -> None:
    """Whatever their bits: arithmetic makes others than the text `nan` does."""
    doubles = np.array(
        [0x7FF8 << 48, 0xFFF8 << 48, (0x7FF8 << 48) + 291, (0x7FF0 << 48) + 1, 1 << 63, 0],
        np.uint64,
    ).view(np.float64)
    floats = np.array([0x7FC0 << 16, 0xFFC0 << 16, 0x7F80_0001, 1 << 31, 0], np.uint32)
    for values in (doubles, floats.view(np.float32)):
        frame = spark.createDataFrame(pa.table({"k": pa.array(values)}))
        hashes = [row[0] for row in frame.select(key_hash_column(frame, ("k",))).collect()]
        assert [number % 2**64 for number in hashes] == [key_hash(float(v)) for v in values]
        assert len(set(hashes)) == 2


def test_a_composite_key_may_have_nulls_and_meets_its_function_form(
    env: StreamExecutionEnvironment, spark: SparkSession
) -> None:
    data = [("x", 1), ("x", None), (None, 1), (None, None), ("x", 1), (None, 1)]
    rows = env.from_dataframe(spark.createDataFrame(data, "a string, b int"))
    by_columns = rows.key_by("a", "b").process(CountByKey())
    expected = {("x", 1): 2, ("x", None): 1, (None, 1): 2, (None, None): 1}
    assert Counter(k for k, _ in by_columns.execute_and_collect()) == expected
    by_function = rows.key_by(lambda row: (row.a, row.b)).process(CountByKey())
    assert Counter(k for k, _ in by_function.execute_and_collect()) == expected


class CountPairs(KeyedProcessFunction):
    """Of counts by key, how many there are of each."""

    def open(self, ctx: Any) -> None:
        self.keys = ctx.get_map_state(MapStateDescriptor("keys", str, int))
        self.order = ctx.get_list_state(ListStateDescriptor("order", str))

    def process_element(self, value: Any, ctx: Any) -> Iterator[tuple[int, int]]:
        self.keys.put(value.word, value.count)
        self.order.add(value.word)
        yield value.count, len(self.order.get())


def test_keyed_operators_chain_over_several_exchanges(
    env: StreamExecutionEnvironment, file_stream: Callable[..., DataFrame]
) -> None:
    env.set_available_now()
    words = env.from_dataframe(file_stream([WORDS, WORDS], "word string"))
    counts = words.key_by("word").process(CountByKey(), "word string, count bigint").uid("first")
    pairs = counts.key_by("count").process(CountPairs(), "count bigint, words bigint").uid("second")
    totals = pairs.key_by(lambda p: p.count % 2).sum("words").uid("third").set_parallelism(1)
    results = list(totals.execute_and_collect("chain"))
    # Words by how often they were counted so far: 1 -> a b c, 2 -> a b c, 3 -> a b, 4 -> a b, ...
    odd = [(1 + 2 + 3), (1 + 2), 1]
    even = [(1 + 2 + 3), (1 + 2), 1]
    assert max(r.words for r in results if r.count % 2) == sum(odd)
    assert max(r.words for r in results if not r.count % 2) == sum(even)


@pytest.mark.versions
def test_several_outputs_of_one_stateful_stream_are_computed_once(
    env: StreamExecutionEnvironment, file_stream: Callable[..., DataFrame], tmp_path: Path
) -> None:
    env.set_available_now()
    words = env.from_dataframe(file_stream([WORDS, WORDS], "word string"))
    counts = words.key_by("word").process(CountByKey(), "word string, count bigint").uid("count")
    counts.sink_to(SparkSink("parquet", {"path": str(tmp_path / "out")}))
    batches: list[tuple[int, int]] = []
    counts.foreach_batch(lambda df, epoch: batches.append((epoch, df.count())))
    firsts: list[bool] = []
    # A careless sink: it looks at one row only, which must not keep others from being counted.
    counts.foreach_batch(lambda df, epoch: firsts.append(df.isEmpty()))
    doubled = counts.map(lambda c: (c.word, c.count * 2), "word string, twice bigint")
    collected = list(doubled.execute_and_collect())
    assert batches == [(1, 6), (2, 6)]
    assert firsts == [False, False]
    written = env.spark.read.parquet(str(tmp_path / "out")).collect()
    assert final_counts([tuple(row) for row in written]) == {"a": 6, "b": 4, "c": 2}
    assert sorted(collected) == sorted((w, c * 2) for w, c in written)


LATE = OutputTag("late", "word string, at bigint")
ODD = OutputTag("odd")


class Splitter(ProcessFunction):
    """Sends some elements to the side."""

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        if value.at < 0:
            yield LATE, (value.word, value.at)
        elif value.at % 2:
            yield ODD, {"word": value.word}
            yield OutputTag("nobody reads this"), 1
        else:
            yield value.word


def test_side_outputs_are_streams_of_their_own(env: StreamExecutionEnvironment) -> None:
    source = env.from_collection(
        [("a", 0), ("b", 1), ("c", -5), ("d", 2)], "word string, at bigint"
    )
    main = source.process(Splitter(), output_type=str)
    late: list[Any] = []
    main.get_side_output(LATE).foreach_batch(lambda df, _: late.extend(map(tuple, df.collect())))
    late_counts = main.get_side_output(LATE).key_by("word").process(CountByKey())
    odd = main.get_side_output(ODD)
    seen: list[Any] = []
    main.map(lambda w: w.upper(), str).foreach_batch(lambda df, _: seen.extend(df.collect()))
    late_counts.print("late")
    assert list(odd.execute_and_collect()) == [{"word": "b"}]
    assert late == [("c", -5)]
    assert sorted(row.value for row in seen) == ["A", "D"]


@pytest.mark.versions
def test_sources_of_different_types_make_one_query(
    env: StreamExecutionEnvironment, file_stream: Callable[..., DataFrame]
) -> None:
    env.set_available_now()
    words = env.from_dataframe(file_stream([WORDS, WORDS], "word string"), name="words")
    numbers = env.from_collection([(1, "a"), (2, "b"), (3, "a")], "n bigint, word string")
    tagged = numbers.map(lambda row: (row.word,), "word string")
    counts = words.union(tagged).key_by("word").process(CountByKey(), "word string, count bigint")
    sums = numbers.key_by("word").sum("n")
    totals: list[Any] = []
    sums.foreach_batch(lambda df, _: totals.extend(map(tuple, df.collect())))
    assert final_counts(list(counts.execute_and_collect())) == {"a": 8, "b": 5, "c": 2}
    assert sorted(totals) == [(1, "a"), (2, "b"), (4, "a")]
    assert len(env.spark.streams.active) == 0


def test_one_source_may_feed_operators_by_different_keys(
    env: StreamExecutionEnvironment, spark: SparkSession
) -> None:
    rows = env.from_dataframe(
        spark.createDataFrame([("a", 1), ("b", 1), ("a", 2)], "w string, n int")
    )
    by_word = rows.key_by("w").process(CountByKey(), "k string, count bigint")
    by_number = rows.key_by("n").process(CountByKey(), "k bigint, count bigint")
    words: list[Any] = []
    by_word.foreach_batch(lambda df, _: words.extend(map(tuple, df.collect())))
    assert final_counts(list(by_number.execute_and_collect())) == {1: 2, 2: 1}
    assert final_counts(words) == {"a": 2, "b": 1}


@pytest.mark.parametrize("how", ["rebalance", "shuffle"])
def test_rows_can_be_dealt_out_anew(env: StreamExecutionEnvironment, how: str) -> None:
    class Here(MapFunction):
        def open(self, ctx: Any) -> None:
            self.here = (ctx.get_index_of_this_subtask(), ctx.get_number_of_parallel_subtasks())

        def map(self, value: Any) -> Any:
            return (value, *self.here)

    numbers = env.from_collection(range(300))
    mapped = getattr(numbers, how)().map(Here(), tuple[int, int, int]).set_parallelism(3)
    results = list(mapped.execute_and_collect())
    assert sorted(value for value, _, _ in results) == list(range(300))
    per_subtask = Counter(subtask for _, subtask, _ in results)
    assert {parallelism for *_, parallelism in results} == {3}
    if how == "rebalance":
        assert per_subtask == {0: 100, 1: 100, 2: 100}
    else:
        assert all(count > 50 for count in per_subtask.values())
        assert len(per_subtask) == 3


def test_rolling_aggregates_are_flinks(env: StreamExecutionEnvironment) -> None:
    data = [("a", 3, "x"), ("a", 1, "y"), ("b", 5, "z"), ("a", 4, "w"), ("a", 1, "v")]
    env.set_parallelism(1)

    def run(name: str) -> list[Any]:
        rows = env.from_collection(data, "k string, n bigint, t string").key_by("k")
        return [tuple(r) for r in getattr(rows, name)("n").execute_and_collect()]

    assert run("sum") == [
        ("a", 3, "x"), ("a", 4, "x"), ("b", 5, "z"), ("a", 8, "x"), ("a", 9, "x"),
    ]  # fmt: skip
    assert run("min") == [
        ("a", 3, "x"), ("a", 1, "x"), ("b", 5, "z"), ("a", 1, "x"), ("a", 1, "x"),
    ]  # fmt: skip
    assert run("max") == [
        ("a", 3, "x"), ("a", 3, "x"), ("b", 5, "z"), ("a", 4, "x"), ("a", 4, "x"),
    ]  # fmt: skip
    assert run("min_by") == [
        ("a", 3, "x"), ("a", 1, "y"), ("b", 5, "z"), ("a", 1, "y"), ("a", 1, "y"),
    ]  # fmt: skip
    assert run("max_by") == [
        ("a", 3, "x"), ("a", 3, "x"), ("b", 5, "z"), ("a", 4, "w"), ("a", 4, "w"),
    ]  # fmt: skip


@pytest.mark.versions
def test_batch_mode_gives_final_results_only(
    env: StreamExecutionEnvironment, spark: SparkSession
) -> None:
    env.set_runtime_mode(RuntimeExecutionMode.BATCH)
    frame = spark.createDataFrame([("a", 1), ("b", 2), ("a", 3)], "k string, n int")
    rows = env.from_dataframe(frame)
    assert sorted(rows.key_by("k").sum("n").execute_and_collect()) == [("a", 4), ("b", 2)]
    counts = rows.key_by("k").process(CountByKey(), "k string, n bigint")
    assert sorted(counts.execute_and_collect()) == [("a", 1), ("a", 2), ("b", 1)]


def test_a_static_frame_streams_in_one_epoch_and_automatic_mode_follows_the_sources(
    env: StreamExecutionEnvironment, spark: SparkSession
) -> None:
    rows = env.from_dataframe(spark.createDataFrame([("a", 1), ("a", 3)], "k string, n int"))
    assert list(rows.key_by("k").sum("n").execute_and_collect()) == [("a", 1), ("a", 4)]
    env.set_runtime_mode(RuntimeExecutionMode.AUTOMATIC)
    assert list(rows.key_by("k").sum("n").execute_and_collect()) == [("a", 4)]


@pytest.mark.versions
def test_a_generator_replays_by_number_and_keeps_to_the_limit_of_an_epoch(
    env: StreamExecutionEnvironment,
) -> None:
    env.set_max_events_per_epoch(400)
    epochs: list[int] = []
    env.add_epoch_listener(lambda epoch: epochs.append(epoch.events))
    numbers = env.from_generator(lambda i: (i % 7, i), count=1000, type_info="k bigint, n bigint")
    results = list(numbers.key_by("k").process(CountByKey()).execute_and_collect())
    assert final_counts(results) == {k: len(range(k, 1000, 7)) for k in range(7)}
    assert epochs == [400, 400, 200]


def test_a_rate_is_kept_and_an_epoch_interval_spaces_epochs(
    env: StreamExecutionEnvironment,
) -> None:
    env.set_epoch_interval(200)
    numbers = env.from_generator(lambda i: i, count=300, rate=300, type_info=int)
    numbers.map(lambda n: n, int).add_sink(Swallow())
    result = env.execute("paced")
    assert result.statistics.events == 300
    assert result.runtime_ms >= 900
    assert result.statistics.epochs <= 1 + result.runtime_ms / 200


def test_an_endless_job_keeps_its_interval_without_spark_s_trigger(
    env: StreamExecutionEnvironment,
) -> None:
    env.set_epoch_interval(300)
    starts: list[float] = []
    enough = threading.Event()

    def note(epoch: EpochStatistics) -> None:
        starts.append(monotonic() - epoch.duration_ms / 1000)
        if len(starts) == 5:
            enough.set()

    env.add_epoch_listener(note)
    env.from_generator(lambda i: i, rate=300, type_info=int).map(lambda n: n, int).add_sink(
        Swallow()
    )
    client = env.execute_async("paced")
    assert enough.wait(60)
    client.cancel()
    assert starts[4] - starts[1] >= 0.8


class Swallow(SinkFunction):
    """Takes elements and counts them, so that each subtask's part can be seen."""

    def open(self, ctx: Any) -> None:
        group = ctx.get_metrics_group()
        self.seen = group.counter("seen")
        self.sizes = group.add_group("detail").histogram("sizes")
        self.last = -1
        group.gauge("last", lambda: self.last)
        self.parameter = ctx.get_job_parameter("factor", "1")

    def invoke(self, value: Any, context: Any) -> None:
        self.seen.inc(int(self.parameter))
        self.sizes.update(value)
        self.last = value


def test_metrics_end_up_in_the_statistics(env: StreamExecutionEnvironment) -> None:
    env.set_job_parameters({"factor": "10"})
    env.set_max_events_per_epoch(5)
    env.from_collection(range(12)).rebalance().map(lambda n: n, int).add_sink(Swallow()).uid("sink")
    statistics = env.execute("metrics").statistics
    metrics = statistics.operators["sink"].metrics
    assert metrics.counters == {"seen": 120}
    assert metrics.histograms["detail.sizes"].count == 12
    assert metrics.histograms["detail.sizes"].maximum == 11
    assert set(metrics.gauges["last"]) == {0, 1}
    assert statistics.epochs == 3
    assert statistics.status is JobStatus.FINISHED


@pytest.mark.versions
def test_a_running_job_can_be_watched_and_cancelled(
    env: StreamExecutionEnvironment,
) -> None:
    env.from_generator(lambda i: i, rate=2000, type_info=int).map(lambda n: n, int).add_sink(
        Swallow()
    )
    client = env.execute_async("endless")
    assert len(client.job_id) == 32
    while client.statistics().epochs < 2:
        client._supervisor.ended.wait(0.02)
    assert client.status() is JobStatus.RUNNING
    with pytest.raises(TimeoutError):
        client.result(timeout=0.01)
    client.cancel()
    assert client.status() is JobStatus.CANCELED
    assert client.result().statistics.events > 0


def test_a_generator_without_end_or_rate_still_has_epochs_that_end(
    env: StreamExecutionEnvironment,
) -> None:
    numbers = env.from_generator(lambda i: i, type_info=int)
    assert numbers.map(lambda n: n + 1, int).execute_and_collect(limit=2)


def test_collecting_with_a_limit_ends_an_endless_job(env: StreamExecutionEnvironment) -> None:
    numbers = env.from_generator(lambda i: i, rate=5000, type_info=int)
    first = numbers.filter(lambda n: n % 2 == 0).execute_and_collect(limit=3)
    assert len(first) == 3
    assert not env.spark.streams.active


def test_local_state_is_gone_when_a_job_has_ended(spark: SparkSession, tmp_path: Path) -> None:
    conf = Configuration(
        {"state.local-dir": str(tmp_path / "state"), "state.backend.type": "rocksdb"}
    )
    env = StreamExecutionEnvironment.get_execution_environment(spark, conf)
    counts = env.from_collection(WORDS, "word string").key_by("word").process(CountByKey())
    seen: list[bool] = []
    env.add_epoch_listener(lambda _: seen.append(any((tmp_path / "state").rglob("*/CURRENT"))))
    assert len(list(counts.execute_and_collect())) == 6
    assert seen == [True]
    assert not list((tmp_path / "state").glob("holdfast-*"))


class Tokens(FlatMapFunction):
    """Words of a line; None for an empty one, which is allowed."""

    def flat_map(self, value: str) -> list[str] | None:
        return value.split() or None


class ByLength(KeySelector):
    """The length of a word."""

    def get_key(self, value: str) -> int:
        return len(value)


class Sized(NamedTuple):
    """A word and its length."""

    word: str
    size: int


def size(word: str) -> Sized:
    return Sized(word, len(word))


def test_annotations_declare_types_and_classes_come_back(env: StreamExecutionEnvironment) -> None:
    lines = env.from_collection(["a bb ccc", "", "dd"])
    words = lines.flat_map(Tokens())
    assert str(words.type.schema.field(0).type) == "string"
    sized = words.key_by(ByLength()).map(size)
    results = sorted(sized.key_by("size").filter(lambda s: s.size > 1).execute_and_collect())
    assert results == [("bb", 2), ("ccc", 3), ("dd", 2)]
    assert all(type(result) is Sized for result in results)


@pytest.mark.versions
@pytest.mark.spark
def test_functions_of_main_work(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(
        textwrap.dedent(
            """
            from dataclasses import dataclass
            from holdfast import *

            @dataclass
            class Word:
                text: str

            TAG = OutputTag("long")
            FACTOR = 10

            class Count(KeyedProcessFunction):
                def open(self, ctx):
                    self.count = ctx.get_state(ValueStateDescriptor("count", int))
                def process_element(self, value, ctx):
                    self.count.update((self.count.value() or 0) + 1)
                    if len(value.text) > 3:
                        yield TAG, value.text
                    yield value.text, self.count.value() * FACTOR

            env = StreamExecutionEnvironment.get_execution_environment()
            env.spark.sparkContext.setLogLevel("OFF")
            words = env.from_collection([Word("a"), Word("long"), Word("a")])
            counts = words.key_by(lambda w: w.text).process(Count())
            counts.get_side_output(TAG).print("long")
            print(sorted(counts.execute_and_collect()))
            [word] = words.key_by(lambda w: w.text).filter(lambda w: len(w.text) > 3).map(
                lambda w: Word(w.text.upper())).rebalance().map(lambda w: w).execute_and_collect()
            print(word == Word("LONG"))
            """
        )
    )
    run = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=False
    )
    assert run.stdout.splitlines() == [
        "long> long",
        "[('a', 10), ('a', 20), ('long', 10)]",
        "True",
    ], run.stderr


@pytest.mark.versions
def test_explain_shows_graph_uids_state_and_plan_and_runs_nothing(
    env: StreamExecutionEnvironment, spark: SparkSession
) -> None:
    rows = env.from_dataframe(spark.createDataFrame([("a", 1)], "k string, n int"), name="rows")
    rows.uid("the-rows")
    rows.key_by("k").process(CountByKey(), "k string, n bigint").uid("the-count").print()
    text = env.explain()
    for part in (
        "uid the-rows", "bounded", "uid the-count", "by key (k)", "value 'count': int",
        "parallelism 2 of 128 key groups", "(derived)", "MapInArrow", "xxhash64(k",
    ):  # fmt: skip
        assert part in text
    assert env.execute("after").statistics.events == 1


def test_an_environment_runs_what_was_added_since_it_last_ran(
    env: StreamExecutionEnvironment, capsys: pytest.CaptureFixture[str]
) -> None:
    numbers = env.from_collection([1, 2]).map(lambda n: n * 10, int)
    numbers.print("first")
    env.execute("one")
    numbers.print()
    env.execute("two")
    out = capsys.readouterr().out.split("\n")
    assert sorted(filter(None, out)) == ["10", "20", "first> 10", "first> 20"]
