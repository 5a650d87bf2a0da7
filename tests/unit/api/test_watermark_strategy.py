"""What a watermark strategy takes and refuses, and what a stream makes of one."""

from __future__ import annotations

import pickle
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from holdfast import Duration, TimestampAssigner, WatermarkGenerator, WatermarkStrategy
from holdfast.api.streams.graph import OperatorKind
from holdfast.api.time import WatermarkAlignment
from holdfast.errors import ConfigurationError, JobGraphError
from tests.support.programs import Program

if TYPE_CHECKING:
    from holdfast.api.streams.data_stream import DataStream

ROWS = "k string, t timestamp, d date, n bigint, x double"
MONOTONOUS = WatermarkStrategy.for_monotonous_timestamps()


class ByLength(TimestampAssigner):
    def extract_timestamp(self, value: Any, record_timestamp: int | None) -> int:
        return len(value)


class Silent(WatermarkGenerator):
    def on_event(self, value: Any, timestamp: int, output: Any) -> None:
        return


@pytest.fixture
def rows() -> DataStream:
    return Program().source(ROWS)


def test_the_three_strategies_differ_in_how_far_elements_may_lag() -> None:
    assert MONOTONOUS.out_of_orderness_ms == 0
    assert WatermarkStrategy.for_bounded_out_of_orderness("1 s").out_of_orderness_ms == 1000
    assert WatermarkStrategy.no_watermarks().out_of_orderness_ms is None


@pytest.mark.parametrize(
    ("given", "milliseconds"),
    [
        (0, 0),
        (1500, 1500),
        ("1500", 1500),
        ("10 s", 10_000),
        ("2 min", 120_000),
        (timedelta(seconds=1.5), 1500),
        (timedelta(microseconds=1999), 1),
        (Duration.of_millis(7), 7),
        (Duration.of_seconds(7), 7000),
        (Duration.of_minutes(7), 420_000),
        (Duration.of_hours(7), 25_200_000),
        (Duration.of_days(7), 604_800_000),
        (Duration.of_seconds(0.25), 250),
    ],
)
def test_a_duration_is_given_in_any_of_its_forms(given: Any, milliseconds: int) -> None:
    bounded = WatermarkStrategy.for_bounded_out_of_orderness(given)
    assert bounded.out_of_orderness_ms == milliseconds
    if milliseconds:
        assert MONOTONOUS.with_idleness(given).idle_after_ms == milliseconds


@pytest.mark.parametrize("given", [-1, "-1 s", timedelta(seconds=-1), 1.5, True, None, "soon", ""])
def test_what_is_no_duration_is_refused_with_the_method_and_the_value(given: Any) -> None:
    with pytest.raises(
        ConfigurationError, match="for_bounded_out_of_orderness: expected a duration"
    ) as e:
        WatermarkStrategy.for_bounded_out_of_orderness(given)
    assert str(e.value).endswith(f"got {given!r}")
    with pytest.raises(ConfigurationError, match="with_idleness: expected a duration"):
        MONOTONOUS.with_idleness(given)


@pytest.mark.parametrize("given", [0, "0 s", timedelta(microseconds=500)])
def test_no_idleness_at_all_is_refused(given: Any) -> None:
    with pytest.raises(
        ConfigurationError, match="with_idleness: expected a duration of at least 1 ms"
    ):
        MONOTONOUS.with_idleness(given)


def test_refining_a_strategy_leaves_it_as_it_was() -> None:
    refined = MONOTONOUS.with_timestamp_assigner("t").with_idleness("1 s")
    assert (refined.assigner, refined.idle_after_ms, refined.out_of_orderness_ms) == ("t", 1000, 0)
    assert WatermarkStrategy(0, None, None) == MONOTONOUS


def test_an_assigner_is_a_column_a_function_or_an_object() -> None:
    def function(value: Any, record_timestamp: int | None) -> int:
        return 5

    assert MONOTONOUS.with_timestamp_assigner("t").assigner == "t"
    assert MONOTONOUS.with_timestamp_assigner(function).assigner is function
    by_length = MONOTONOUS.with_timestamp_assigner(ByLength()).assigner
    assert callable(by_length)
    assert by_length("abc", None) == 3


@pytest.mark.parametrize("given", ["", None, 5, ["t"]])
def test_what_is_no_assigner_is_refused(given: Any) -> None:
    with pytest.raises(ConfigurationError, match="takes the name of a column, a TimestampAssigner"):
        MONOTONOUS.with_timestamp_assigner(given)


def test_a_strategy_can_be_shipped() -> None:
    strategy = WatermarkStrategy.for_bounded_out_of_orderness("1 s").with_timestamp_assigner("t")
    assert pickle.loads(pickle.dumps(strategy)) == strategy
    shipped = pickle.loads(pickle.dumps(MONOTONOUS.with_timestamp_assigner(ByLength()))).assigner
    assert shipped("abcd", None) == 4


# On a stream


@pytest.mark.parametrize("column", ["t", "d", "n"])
def test_a_stream_takes_its_time_from_a_column_of_times_dates_or_milliseconds(
    rows: DataStream, column: str
) -> None:
    assert not rows.timed
    timed = rows.assign_timestamps_and_watermarks(MONOTONOUS.with_timestamp_assigner(column))
    assert timed.timed
    assert timed.type == rows.type
    assert timed._edges[0].node.kind is OperatorKind.TIMESTAMPS
    assert timed.map(str).key_by(len).timed
    assert timed.union(rows).timed
    assert not rows.timed


def test_what_a_stream_cannot_be_given_is_refused_and_leaves_no_node(rows: DataStream) -> None:
    count = len(rows._env._graph.nodes)
    for strategy, said in [
        ("10 s", "takes a WatermarkStrategy, not str"),
        (MONOTONOUS, "has no timestamp assigner, and the stream has no timestamps yet"),
        (MONOTONOUS.with_timestamp_assigner("tt"), "no column 'tt'.*did you mean 't'"),
        (MONOTONOUS.with_timestamp_assigner("other"), "there is no column 'other' in a stream"),
        (
            MONOTONOUS.with_timestamp_assigner("k"),
            "column 'k' is of type string, which is not a time",
        ),
        (
            MONOTONOUS.with_timestamp_assigner("x"),
            "column 'x' is of type double, which is not a time",
        ),
    ]:
        with pytest.raises(JobGraphError, match=said):
            rows.assign_timestamps_and_watermarks(strategy)  # type: ignore[arg-type]
    assert len(rows._env._graph.nodes) == count


def test_a_stream_without_columns_has_no_time_column(rows: DataStream) -> None:
    for stream in (rows.map(str), rows.map(str, "bigint")):
        with pytest.raises(JobGraphError, match="there is no column 't' in a stream of"):
            stream.assign_timestamps_and_watermarks(MONOTONOUS.with_timestamp_assigner("t"))


def test_a_stream_with_event_time_may_keep_it_under_another_strategy(rows: DataStream) -> None:
    timed = rows.assign_timestamps_and_watermarks(MONOTONOUS.with_timestamp_assigner("t"))
    again = timed.map(str).assign_timestamps_and_watermarks(
        WatermarkStrategy.for_bounded_out_of_orderness(5)
    )
    assert again.timed


# Watermarks of the program's own


def test_watermarks_come_from_a_generator_or_a_column_instead_of_the_latest_element() -> None:
    strategy = WatermarkStrategy.for_generator(Silent).with_timestamp_assigner("t")
    assert (strategy.generator, strategy.out_of_orderness_ms) == (Silent, None)
    assert WatermarkStrategy.punctuated("mark").with_idleness("1 s").generator == "mark"


@pytest.mark.parametrize("given", [Silent(), "Silent", None])
def test_every_task_has_its_own_generator(given: Any) -> None:
    with pytest.raises(ConfigurationError, match="takes a class or function that makes a Water"):
        WatermarkStrategy.for_generator(given)


def test_a_generator_need_not_emit_anything_by_itself() -> None:
    Silent().on_periodic_emit(None)  # type: ignore[arg-type]


@pytest.mark.parametrize("given", ["", None, Silent])
def test_punctuation_is_in_a_column(given: Any) -> None:
    with pytest.raises(ConfigurationError, match="punctuated takes the name of a column"):
        WatermarkStrategy.punctuated(given)


def test_the_column_of_watermarks_must_be_there_and_hold_times(rows: DataStream) -> None:
    for column, problem in (("mark", "there is no column 'mark'"), ("k", "is not a time")):
        strategy = WatermarkStrategy.punctuated(column).with_timestamp_assigner("t")
        with pytest.raises(JobGraphError, match=problem):
            rows.assign_timestamps_and_watermarks(strategy)


# Sources that wait for each other


def test_alignment_names_a_group_and_a_drift() -> None:
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_watermark_alignment(
        "g", Duration.of_seconds(2), Duration.of_millis(500)
    )
    assert strategy.alignment == WatermarkAlignment("g", 2000)
    assert WatermarkStrategy.punctuated("m").with_watermark_alignment("g", "0 s").alignment


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("", "1 s"), "takes the name of a group, not ''"),
        ((7, "1 s"), "takes the name of a group, not 7"),
        (("g", "-1 s"), "with_watermark_alignment"),
        (("g", "soon"), "with_watermark_alignment"),
        (("g", "1 s", "0 s"), "with_watermark_alignment"),
    ],
)
def test_bad_alignment_is_refused(arguments: Any, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        WatermarkStrategy.for_monotonous_timestamps().with_watermark_alignment(*arguments)


def test_a_source_without_watermarks_cannot_be_waited_for() -> None:
    with pytest.raises(ConfigurationError, match="has nothing that others could wait for"):
        WatermarkStrategy.no_watermarks().with_watermark_alignment("g", "1 s")
