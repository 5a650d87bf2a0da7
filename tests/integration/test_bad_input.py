"""What goes wrong says what happened, where, and what to do; nothing is written."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from holdfast import (
    Configuration,
    ErrorPolicy,
    FailedRow,
    KeyedProcessFunction,
    MapFunction,
    OutputTag,
    ProcessFunction,
    RuntimeExecutionMode,
    SparkSink,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
)
from holdfast.errors import (
    ConfigurationError,
    DuplicateUidError,
    JobExecutionError,
    JobGraphError,
    KeyTypeError,
    NotSerializableError,
    NullKeyError,
    OutputTypeError,
    StateAccessError,
    StateDescriptorError,
    StateValueError,
    TypeDeclarationError,
    UnsupportedSparkError,
    UserFunctionError,
)
from holdfast.serde.keys import key_group_of
from holdfast.state.key_groups import subtask_of
from tests.integration.conftest import CountByKey

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession


class Reciprocal(KeyedProcessFunction):
    """Fails on zero, after it has changed its state."""

    def open(self, ctx: Any) -> None:
        self.seen = ctx.get_state(ValueStateDescriptor("seen", int))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.seen.update((self.seen.value() or 0) + 1)
        yield value.k, self.seen.value(), 0.0
        yield value.k, self.seen.value(), 1 / value.n


ROWS = [("a", 1), ("a", 0), ("b", 2), ("a", 4)]


def failure_of(env: StreamExecutionEnvironment) -> BaseException:
    with pytest.raises(JobExecutionError) as caught:
        env.execute("failing")
    assert caught.value.__cause__ is not None
    return caught.value.__cause__


@pytest.mark.versions
def test_an_exception_in_user_code_names_operator_subtask_key_and_row(
    env: StreamExecutionEnvironment, tmp_path: Path
) -> None:
    rows = env.from_collection(ROWS, "k string, n bigint")
    results = rows.key_by("k").process(Reciprocal(), "k string, seen bigint, r double")
    results.uid("reciprocal").name("1/n").sink_to(
        SparkSink("json", {"path": str(tmp_path / "out")})
    )
    error = failure_of(env)
    assert isinstance(error, UserFunctionError)
    text = str(error)
    assert "operator '1/n' (uid 'reciprocal'), subtask" in text
    assert "ZeroDivisionError: division by zero" in text
    assert "key: 'a'" in text
    assert "row: Event(k='a', n=0)" in text
    assert "yield value.k, self.seen.value(), 1 / value.n" in text
    assert not list(tmp_path.glob("out/part-*"))


def test_rows_that_fail_can_be_skipped_and_leave_no_trace(env: StreamExecutionEnvironment) -> None:
    env.set_parallelism(1)
    rows = env.from_collection(ROWS, "k string, n bigint")
    results = rows.key_by("k").process(Reciprocal()).uid("r").on_error(ErrorPolicy.skip())
    collected = results.execute_and_collect()
    assert list(collected) == [
        ("a", 1, 0.0), ("a", 1, 1.0), ("b", 1, 0.0), ("b", 1, 0.5), ("a", 2, 0.0), ("a", 2, 0.25),
    ]  # fmt: skip
    assert collected.client.statistics().operators["r"].skipped == 1


def test_rows_that_fail_can_go_to_a_side_output(env: StreamExecutionEnvironment) -> None:
    failed = OutputTag("failed")
    rows = env.from_collection(ROWS, "k string, n bigint")
    results = rows.key_by("k").process(Reciprocal()).on_error(ErrorPolicy.side_output(failed))
    [row] = results.get_side_output(failed).execute_and_collect()
    assert isinstance(row, FailedRow)
    assert row.row == ("a", 0)
    assert row.key == "a"
    assert row.error == "ZeroDivisionError: division by zero"
    assert "process_element" in row.traceback


def test_a_null_key_is_refused(env: StreamExecutionEnvironment, spark: SparkSession) -> None:
    frame = spark.createDataFrame([("a", 1), (None, 2)], "k string, n int")
    rows = env.from_dataframe(frame)
    rows.key_by("k").process(CountByKey()).print()
    error = failure_of(env)
    assert isinstance(error, NullKeyError)
    assert "filter such rows out before key_by" in str(error)
    rows.key_by(lambda row: row.k).process(CountByKey()).print()
    assert isinstance(failure_of(env), NullKeyError)


def test_keys_of_two_types_are_refused(env: StreamExecutionEnvironment) -> None:
    env.set_parallelism(1)
    numbers = env.from_collection([1, 2])
    numbers.key_by(lambda n: n if n == 1 else "two").process(CountByKey()).print()
    error = failure_of(env)
    assert isinstance(error, KeyTypeError)
    assert "key 'two' is a str, but the keys of this operator are int" in str(error)
    assert "row: 2" in str(error)


@pytest.mark.parametrize("together", [True, False], ids=["in one epoch", "over epochs"])
def test_keys_of_two_types_on_two_subtasks_are_refused(
    env: StreamExecutionEnvironment, together: bool
) -> None:
    subtasks = {key: subtask_of(key_group_of(key, 128), 2, 128) for key in (*range(9), "two")}
    number = next(n for n in range(9) if subtasks[n] != subtasks["two"])
    env.set_max_events_per_epoch(2 if together else 1)
    rows = env.from_collection([number, 10])
    counts = rows.key_by(lambda n: n if n == number else "two").process(CountByKey())
    counts.uid("count").name("counter").print()
    error = failure_of(env)
    assert isinstance(error, KeyTypeError)
    text = str(error)
    assert "operator 'counter' (uid 'count')" in text
    if together:
        assert f"int in subtask {subtasks[number]}, such as key {number} of row {number}" in text
        assert f"str in subtask {subtasks['two']}, such as key 'two' of row 10" in text
    else:
        assert "key 'two' is a str, but the stored state of this operator has int keys" in text
        assert "row: 10" in text


def test_a_key_function_that_raises_is_named(env: StreamExecutionEnvironment) -> None:
    env.from_collection([1, 0]).key_by(lambda n: 1 // n).process(CountByKey()).print()
    error = failure_of(env)
    assert isinstance(error, UserFunctionError)
    assert "key function" in str(error)
    assert "ZeroDivisionError" in str(error)


def test_an_output_that_does_not_fit_its_type_is_refused(env: StreamExecutionEnvironment) -> None:
    env.from_collection([1, 2]).map(lambda n: (n, "x"), "n bigint, m bigint").name("wrong").print()
    error = failure_of(env)
    assert isinstance(error, OutputTypeError)
    assert "operator 'wrong'" in str(error)
    assert "'x' (str)" in str(error)


def test_a_wrong_value_for_state_is_refused_with_its_place(env: StreamExecutionEnvironment) -> None:
    class Wrong(KeyedProcessFunction):
        def open(self, ctx: Any) -> None:
            self.n = ctx.get_state(ValueStateDescriptor("n", int))

        def process_element(self, value: Any, ctx: Any) -> None:
            self.n.update("text")

    env.from_collection([1]).key_by(lambda n: n).process(Wrong()).name("wrong").print()
    error = failure_of(env)
    assert isinstance(error, StateValueError)
    assert "operator 'wrong'" in str(error)
    assert "row: 1" in str(error)


class AsksForState(ProcessFunction):
    def open(self, ctx: Any) -> None:
        ctx.get_state(ValueStateDescriptor("n", int))

    def process_element(self, value: Any, ctx: Any) -> None:
        return None


def test_keyed_state_off_a_keyed_stream_is_refused(env: StreamExecutionEnvironment) -> None:
    env.from_collection([1]).process(AsksForState()).name("plain").print()
    error = failure_of(env)
    assert isinstance(error, StateAccessError)
    assert "can only be used on a 'keyed stream'" in str(error)
    assert "'n'" in str(error)


def test_one_name_for_two_kinds_of_state_is_refused(env: StreamExecutionEnvironment) -> None:
    class Twice(KeyedProcessFunction):
        def open(self, ctx: Any) -> None:
            from holdfast import ListStateDescriptor

            ctx.get_state(ValueStateDescriptor("n", int))
            ctx.get_list_state(ListStateDescriptor("n", int))

        def process_element(self, value: Any, ctx: Any) -> None:
            return None

    env.from_collection([1]).key_by(lambda n: n).process(Twice()).print()
    assert isinstance(failure_of(env), StateDescriptorError)


def test_an_unknown_column_is_refused_at_once(env: StreamExecutionEnvironment) -> None:
    rows = env.from_collection(ROWS, "user_id string, n bigint")
    with pytest.raises(JobGraphError, match=r"no column 'userid'.*did you mean 'user_id'"):
        rows.key_by("userid")
    with pytest.raises(JobGraphError, match="has no columns"):
        env.from_collection([1]).key_by("n")
    nested = env.from_collection([([1],)], "tags array<int>")
    with pytest.raises(KeyTypeError, match="cannot be a key"):
        nested.key_by("tags")


def test_a_function_that_cannot_be_shipped_is_named(env: StreamExecutionEnvironment) -> None:
    class Locked(MapFunction):
        def __init__(self) -> None:
            self.lock = threading.Lock()

        def map(self, value: Any) -> Any:
            return value

    env.from_collection([1]).map(Locked()).name("locked").print()
    with pytest.raises(NotSerializableError, match=r"function of operator 'locked'.*in open\(\)"):
        env.execute("unshippable")


def test_parallelism_above_the_maximum_is_refused(env: StreamExecutionEnvironment) -> None:
    numbers = env.from_collection([1]).key_by(lambda n: n)
    numbers.process(CountByKey()).name("wide").set_max_parallelism(4).set_parallelism(5).print()
    with pytest.raises(
        ConfigurationError, match=r"'wide'.*parallelism 5 is above max parallelism 4"
    ):
        env.execute("too wide")
    with pytest.raises(ConfigurationError, match=r"1\.\.32768"):
        env.set_max_parallelism(40_000)


def test_a_uid_given_twice_is_an_error_that_says_where(env: StreamExecutionEnvironment) -> None:
    numbers = env.from_collection([1])
    numbers.map(lambda n: n).uid("same").print()
    numbers.filter(lambda n: True).uid("same").print()
    with pytest.raises(DuplicateUidError, match=r"'same' is given twice.*test_bad_input\.py:\d+"):
        env.execute("twice")


def test_missing_uids_are_warned_of_or_refused(
    env: StreamExecutionEnvironment, spark: SparkSession
) -> None:
    strict = Configuration({"pipeline.auto-generate-uids": False})
    other = StreamExecutionEnvironment.get_execution_environment(spark, strict)
    other.from_collection([1]).key_by(lambda n: n).process(CountByKey()).name("nameless").print()
    with pytest.raises(JobGraphError, match="no uid: 'nameless'"):
        other.execute("strict")
    env.configure(Configuration({"execution.checkpointing.interval": "10 s"}))
    env.from_collection([1]).key_by(lambda n: n).process(CountByKey()).name("nameless").print()
    with pytest.warns(UserWarning, match="'nameless'"):
        env.execute("lenient")


def test_a_uid_on_a_keyed_stream_is_refused(env: StreamExecutionEnvironment) -> None:
    with pytest.raises(JobGraphError, match="result of an operator such as map"):
        env.from_collection([1]).key_by(lambda n: n).uid("x")


def test_untyped_streams_are_refused_where_columns_are_needed(
    env: StreamExecutionEnvironment,
) -> None:
    untyped = env.from_collection([1]).map(lambda n: object())
    with pytest.raises(TypeDeclarationError, match="output_type"):
        untyped.sink_to(SparkSink("noop"))
    with pytest.raises(TypeDeclarationError, match="output_type"):
        untyped.foreach_batch(lambda df, epoch: None)


@pytest.mark.versions
def test_sources_that_cannot_be_replayed_are_refused(
    env: StreamExecutionEnvironment, spark: SparkSession, tmp_path: Path
) -> None:
    stream = spark.readStream.schema("k string").format("json")
    with pytest.raises(JobGraphError, match=r"Aggregate.*keeps state in Spark"):
        env.from_dataframe(stream.load(str(tmp_path)).groupBy("k").count())
    with pytest.raises(JobGraphError, match="Deduplicate"):
        env.from_dataframe(stream.load(str(tmp_path)).dropDuplicates(["k"]))
    cleaning = stream.option("cleanSource", "delete").load(str(tmp_path))
    with pytest.raises(JobGraphError, match="cleanSource=delete"):
        env.from_dataframe(cleaning)
    with pytest.raises(JobGraphError, match="takes a Spark DataFrame, not list"):
        env.from_dataframe([1, 2])  # type: ignore[arg-type]


def test_batch_mode_refuses_an_unbounded_source(
    env: StreamExecutionEnvironment, spark: SparkSession
) -> None:
    env.set_runtime_mode(RuntimeExecutionMode.BATCH)
    env.from_dataframe(spark.readStream.format("rate").load()).map(str, str).print()
    with pytest.raises(JobGraphError, match="BATCH mode needs bounded sources"):
        env.execute("never")


def test_a_sink_function_that_raises_is_named(env: StreamExecutionEnvironment) -> None:
    def careless(df: Any, epoch: int) -> None:
        raise RuntimeError("no room")

    env.from_collection([1]).map(lambda n: n, int).foreach_batch(careless)
    error = failure_of(env)
    assert isinstance(error, JobExecutionError)
    assert "foreach_batch" in str(error)
    assert "RuntimeError: no room" in str(error)


def test_a_listener_that_raises_is_named(env: StreamExecutionEnvironment) -> None:
    def careless(epoch: Any) -> None:
        raise RuntimeError("no time")

    env.add_epoch_listener(careless)
    env.from_collection([1]).map(lambda n: n, int).print()
    error = failure_of(env)
    assert "an epoch listener raised after epoch 1: RuntimeError: no time" in str(error)


def test_available_now_refuses_a_source_that_never_runs_out(
    env: StreamExecutionEnvironment,
) -> None:
    env.set_available_now()
    env.from_generator(lambda i: i, type_info=int).map(lambda n: n, int).print()
    with pytest.raises(JobGraphError, match="give the generator a count"):
        env.execute("never")


def test_an_error_policy_where_no_function_runs_is_refused(
    env: StreamExecutionEnvironment,
) -> None:
    numbers = env.from_collection([1])
    with pytest.raises(JobGraphError, match="has none"):
        numbers.print().on_error(ErrorPolicy.skip())


def test_a_job_without_operators_is_refused(env: StreamExecutionEnvironment) -> None:
    env.from_collection([1])
    with pytest.raises(JobGraphError, match="no operators"):
        env.execute("nothing")


@pytest.mark.versions
def test_sessions_that_cannot_hold_state_are_refused() -> None:
    class Connect:
        pass

    Connect.__module__ = "pyspark.sql.connect.session"
    with pytest.raises(UnsupportedSparkError, match="Spark Connect"):
        StreamExecutionEnvironment.get_execution_environment(Connect())  # type: ignore[arg-type]
    with pytest.raises(UnsupportedSparkError, match="expected a SparkSession"):
        StreamExecutionEnvironment.get_execution_environment("local")  # type: ignore[arg-type]


def test_the_wrong_kind_of_function_is_refused_at_once(env: StreamExecutionEnvironment) -> None:
    numbers = env.from_collection([1])
    with pytest.raises(JobGraphError, match="CountByKey is a KeyedProcessFunction"):
        numbers.process(CountByKey())  # type: ignore[arg-type]
    with pytest.raises(JobGraphError, match="takes a KeyedProcessFunction"):
        numbers.key_by(lambda n: n).process(AsksForState())  # type: ignore[arg-type]
    with pytest.raises(JobGraphError, match="callable"):
        numbers.map(5)  # type: ignore[call-overload]
    with pytest.raises(JobGraphError, match="SparkSink"):
        numbers.sink_to("parquet")  # type: ignore[arg-type]
    with pytest.raises(JobGraphError, match="one type"):
        numbers.union(env.from_collection(["a"]))  # type: ignore[list-item]
