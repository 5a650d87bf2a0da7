"""Giving elements their event time: in lists, and in columns."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

import msgspec
import pyarrow as pa
import pytest

from holdfast import ErrorPolicy, OutputTag, WatermarkGenerator, WatermarkStrategy
from holdfast.api.outputs import FailedRow
from holdfast.errors import EventTimeError, UserFunctionError
from holdfast.runtime.exchange import appended, times_of
from holdfast.runtime.operators.base import Output
from holdfast.runtime.operators.timestamps import column_time, latest_time, millis, with_time
from holdfast.runtime.outlets import by_tag, time_array
from holdfast.runtime.plan import TIME
from holdfast.types.stream_type import StreamType
from tests.support.programs import Program

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.runtime.operators.base import Operator

ROWS = "k string, t bigint"
LATE = OutputTag("late")


def operator(
    assigner: Any, policy: ErrorPolicy | None = None, spec: Any = ROWS, generator: Any = None
) -> Operator:
    """The operator that gives event time, open, as a task has it."""
    from holdfast.runtime.operator_task import TaskIdentity
    from holdfast.testing.clock import ManualClock
    from tests.support.workers import EpochTask

    program = Program()
    strategy = WatermarkStrategy(0, assigner, generator=generator)
    stream = program.source(spec).map(as_it_is, spec)
    if assigner is None:
        stream = stream.assign_timestamps_and_watermarks(
            strategy.with_timestamp_assigner(lambda value, _: 1)
        )
    stream = stream.assign_timestamps_and_watermarks(strategy).uid("time").name("times")
    if policy is not None:
        stream.on_error(policy)
    stream.print()
    stage = program.compile().sources[0].stage
    task = EpochTask(stage, None, TaskIdentity(0, 0, 1), ManualClock())
    return task.operator(len(stage.operators) - 1)


def as_it_is(value: Any) -> Any:
    return value


# Lists


def test_a_function_is_given_the_element_and_the_time_it_had_before() -> None:
    seen: list[Any] = []

    def assigner(value: Any, before: int | None) -> Any:
        seen.append((value, before))
        return value[1] * 10

    found = operator(assigner)
    assert found.process([("a", 1), ("b", 3)], None) == Output([("a", 1), ("b", 3)], [10, 30])
    found.process([("c", 2)], None, [7])
    assert seen == [(("a", 1), None), (("b", 3), None), (("c", 2), 7)]
    assert found.latest == 30


def test_elements_keep_their_time_where_the_strategy_gives_none() -> None:
    found = operator(None)
    assert found.process(["a", "b"], None, [5, 4]) == Output(["a", "b"], [5, 4])
    assert found.latest == 5
    with pytest.raises(EventTimeError, match="the event time is None"):
        found.process(["a", "b"], None, [5, None])


def test_no_elements_have_no_times() -> None:
    found = operator(lambda value, _: 1)
    assert found.process([], None) == Output([], [])
    assert found.latest is None


@pytest.mark.parametrize("time", [None, 1.0, "1", True, 2**63, -(2**63) - 1, datetime(2026, 1, 1)])
def test_what_is_no_time_is_refused_with_operator_and_row(time: Any) -> None:
    found = operator(lambda value, _: time)
    with pytest.raises(EventTimeError) as caught:
        found.process([("a", 1)], None)
    said = str(caught.value)
    assert said.startswith("operator 'times' (uid 'time'), subtask 1/2: the event time is ")
    assert f"{time!r}; it must be a whole number of milliseconds since 1970" in said
    assert said.endswith("row: ('a', 1)")


def test_the_ends_of_time_are_times() -> None:
    ends = [2**63 - 1, -(2**63)]
    assert operator(lambda value, _: value).process(ends, None).times == ends


def test_a_function_that_raises_is_named_with_the_row() -> None:
    def assigner(value: Any, before: int | None) -> int:
        return int(1 / value[1])

    with pytest.raises(UserFunctionError) as caught:
        operator(assigner).process([("a", 1), ("b", 0)], None)
    said = str(caught.value)
    assert said.startswith("operator 'times' (uid 'time'), subtask 1/2: ZeroDivisionError: ")
    assert "row: ('b', 0)" in said
    assert "row: None" not in said
    assert "return int(1 / value[1])" in said


def test_rows_without_a_time_are_skipped_or_diverted_as_the_policy_says() -> None:
    def assigner(value: Any, before: int | None) -> Any:
        return 10 if value == "ok" else None

    skipping = operator(assigner, ErrorPolicy.skip())
    assert skipping.process(["ok", "bad", "ok"], None) == Output(["ok", "ok"], [10, 10])
    assert skipping.skipped == 1
    diverting = operator(assigner, ErrorPolicy.side_output(LATE))
    out = diverting.process(["ok", "bad", "ok"], None)
    main, sides = by_tag(out)
    assert main == Output(["ok", "ok"], [10, 10])
    [failed] = sides["late"].elements
    assert isinstance(failed, FailedRow)
    assert (failed.row, failed.key) == ("bad", None)
    assert failed.error.startswith("holdfast.errors.EventTimeError: the event time is None")
    assert sides["late"].times == [None]
    assert diverting.latest == 10


# Watermarks of the program's own


class Markers(WatermarkGenerator):
    """Emits the time of elements "mark", and at the end how many elements there were."""

    def __init__(self) -> None:
        self.seen = 0

    def on_event(self, value: Any, timestamp: int, output: Any) -> None:
        self.seen += 1
        if value[0] == "mark":
            output.emit_watermark(timestamp)

    def on_periodic_emit(self, output: Any) -> None:
        output.emit_watermark(self.seen)


def test_the_greatest_watermark_of_a_generator_counts() -> None:
    found = operator("t", generator=Markers)
    found.process([("a", 90), ("mark", 70), ("mark", 50)], None)
    assert (found.latest, found.emitted) == (90, 70)
    found.finish()
    assert found.emitted == 70, "a watermark does not go back"


def test_a_generator_may_emit_when_its_task_has_seen_everything() -> None:
    found = operator("t", generator=Markers)
    found.process([("a", 90)], None)
    found.process([("a", 91)], None)
    assert found.emitted is None
    found.finish()
    assert found.emitted == 2


def test_a_generator_lives_for_an_epoch_and_says_nothing_without_elements() -> None:
    found = operator("t", generator=Markers)
    for _ in range(2):
        found.begin(None, 1, own_state=True)
        found.process([("a", 90)], None)
        found.finish()
        assert found.emitted == 1
    found.begin(None, 1, own_state=True)
    found.finish()
    assert found.emitted is None


def test_a_generator_does_not_see_elements_without_event_time() -> None:
    found = operator("t", ErrorPolicy.skip(), generator=Markers)
    found.process([("a", 90), ("b", None), ("mark", 70)], None)
    assert found.emitted == 70
    found.emitted = None
    found.finish()
    assert found.emitted == 2


def test_a_column_carries_watermarks_where_it_is_not_null() -> None:
    found = operator("t", spec="k string, t bigint, mark timestamp", generator="mark")
    at = datetime(1970, 1, 1, 0, 0, 1)
    found.process([("a", 90, None), ("b", 91, at), ("c", 95, None)], None)
    found.finish()
    assert (found.latest, found.emitted) == (95, 1000)


@pytest.mark.parametrize(
    ("emitted", "problem"), [(1.5, "the watermark is 1.5"), (2**63, "a whole number of mill")]
)
def test_a_watermark_is_a_whole_number_of_milliseconds(emitted: Any, problem: str) -> None:
    class Wrong(WatermarkGenerator):
        def on_event(self, value: Any, timestamp: int, output: Any) -> None:
            output.emit_watermark(emitted)

    with pytest.raises(EventTimeError, match=f"times.*in a watermark generator: .*{problem}"):
        operator("t", generator=Wrong).process([("a", 1)], None)


def test_an_error_in_a_generator_is_not_that_of_a_row(tmp_path: Path) -> None:
    def broken() -> WatermarkGenerator:
        raise RuntimeError("no such file")

    found = operator("t", ErrorPolicy.skip(), generator=broken)
    with pytest.raises(UserFunctionError, match="in a watermark generator"):
        found.process([("a", 1)], None)


# Columns of elements


class Tuple(NamedTuple):
    k: str
    t: int


class Dict(TypedDict):
    k: str
    t: int


class Struct(msgspec.Struct):
    k: str
    t: int


@dataclass
class Data:
    k: str
    t: int


@pytest.mark.parametrize(
    ("spec", "element"),
    [
        (ROWS, ("a", 7)),
        (Tuple, Tuple("a", 7)),
        (Dict, Dict(k="a", t=7)),
        (Struct, Struct("a", 7)),
        (Data, Data("a", 7)),
    ],
    ids=["row", "named tuple", "typed dict", "struct", "dataclass"],
)
def test_a_column_is_read_from_elements_of_every_kind(spec: Any, element: Any) -> None:
    assert column_time(StreamType.of(spec), "t")(element, 5) == 7
    assert operator("t", spec=spec).process([element], None).times == [7]


def test_a_null_in_the_column_is_refused_with_what_to_do() -> None:
    with pytest.raises(EventTimeError, match="the event time is None; filter such rows out"):
        operator("t").process([("a", None)], None)


# Columns of rows

BERLIN_IN_OCTOBER = [
    datetime(2026, 10, 25, 0, 30, 0, 1999, tzinfo=UTC),
    datetime(2026, 10, 25, 1, 30, 0, 1999, tzinfo=UTC),
]
INSTANTS = [
    datetime(1970, 1, 1, tzinfo=UTC),
    datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
    datetime(1969, 12, 31, 23, 59, 59, 998_000, tzinfo=UTC),
    datetime(1, 1, 2, tzinfo=UTC),
    datetime(9999, 12, 30, 23, 59, 59, 999_999, tzinfo=UTC),
    datetime(2026, 3, 29, 1, 30, tzinfo=UTC),
    *BERLIN_IN_OCTOBER,
]
MILLIS = [(instant - INSTANTS[0]) // timedelta(milliseconds=1) for instant in INSTANTS]


def rows(values: Any, kind: pa.DataType) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(values, kind)], names=["t"])


def times(batch: pa.RecordBatch) -> list[int | None]:
    stamped = with_time(batch, "t")
    assert stamped.schema.names == ["t", TIME]
    assert stamped.column("t").equals(batch.column("t"))
    assert stamped.column(TIME).type == pa.int64()
    found: list[int | None] = stamped.column(TIME).to_pylist()
    return found


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/New_York", "+05:30", None])
def test_a_column_of_timestamps_gives_the_same_as_its_elements(zone: str | None) -> None:
    naive = [instant.replace(tzinfo=None) for instant in INSTANTS]
    batch = rows([*naive, None], pa.timestamp("us"))
    if zone is not None:
        aware = pa.array([*INSTANTS, None], pa.timestamp("us", "UTC"))
        batch = pa.RecordBatch.from_arrays([aware.cast(pa.timestamp("us", zone))], names=["t"])
    assert times(batch) == [*MILLIS, None]
    assert [millis(value) for value in batch.column("t").to_pylist()[:-1]] == MILLIS


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", None])
def test_nanoseconds_are_cut_off_towards_the_past(zone: str | None) -> None:
    nanoseconds = [-1, -1_000_001, 999_999, 1_761_355_800_001_999_999, None]
    batch = pa.RecordBatch.from_arrays(
        [pa.array(nanoseconds, pa.int64()).cast(pa.timestamp("ns", zone))], names=["t"]
    )
    assert times(batch) == [-1, -2, 0, 1_761_355_800_001, None]


@pytest.mark.parametrize(("unit", "factor"), [("s", 1000), ("ms", 1)])
def test_coarser_timestamps_are_widened(unit: str, factor: int) -> None:
    batch = pa.RecordBatch.from_arrays(
        [pa.array([-1, 0, 1_792_891_800, None]).cast(pa.timestamp(unit, "Europe/Berlin"))],
        names=["t"],
    )
    assert times(batch) == [-factor, 0, 1_792_891_800 * factor, None]


@pytest.mark.parametrize("kind", [pa.date32(), pa.date64()])
def test_a_date_is_its_first_moment_in_utc(kind: pa.DataType) -> None:
    days = [date(1970, 1, 2), date(1969, 12, 31), date(2026, 11, 15)]
    wanted = [86_400_000, -86_400_000, 1_794_700_800_000]
    assert times(rows([*days, None], kind)) == [*wanted, None]
    assert [millis(day) for day in days] == wanted


@pytest.mark.parametrize("kind", [pa.int8(), pa.int16(), pa.int32(), pa.int64()])
def test_whole_numbers_are_milliseconds(kind: pa.DataType) -> None:
    assert times(rows([-5, 0, 5, None], kind)) == [-5, 0, 5, None]
    assert [millis(n) for n in (-5, 0, 5)] == [-5, 0, 5]


def test_a_time_with_a_zone_of_its_own_is_the_instant_it_names() -> None:
    assert millis(datetime(1970, 1, 1, 2, tzinfo=timezone(timedelta(hours=2)))) == 0
    assert millis(datetime(1970, 1, 1)) == 0


@pytest.mark.parametrize("time", [None, "2026-01-01", 1.5])
def test_what_a_column_cannot_hold_as_a_time_is_refused(time: Any) -> None:
    with pytest.raises(EventTimeError, match="filter such rows out, or give them a time"):
        millis(time)


def test_the_latest_time_of_rows_that_all_have_one() -> None:
    assert latest_time(with_time(rows([3, 9, 4], pa.int64()), "t"), "x") == 9
    assert latest_time(with_time(rows([], pa.int64()), "t"), "x") is None
    with pytest.raises(EventTimeError, match=r"x: the event time is null in row \{'t': None"):
        latest_time(with_time(rows([3, None, 4], pa.int64()), "t"), "x")


def test_a_source_refuses_a_row_without_a_time(tmp_path: Path) -> None:
    program = Program()
    strategy = WatermarkStrategy(0, "t")
    stream = program.source(ROWS).assign_timestamps_and_watermarks(strategy).uid("time")
    stream.map(as_it_is, ROWS).print()
    assert program.compile().sources[0].time_column is not None
    with pytest.raises(EventTimeError, match="operator 'time': the event time is null in row"):
        program.start(tmp_path).push([("a", 1), ("b", None)])


# Beside elements


def test_times_are_read_from_their_column_and_written_into_one() -> None:
    batch = rows([1, 2], pa.int64())
    assert times_of(batch) is None
    assert times_of(appended(batch, TIME, time_array([5, None], 2))) == [5, None]
    assert times_of(appended(batch, TIME, time_array([5, 6], 2))) == [5, 6]
    assert times_of(appended(batch, TIME, time_array(None, 2))) == [None, None]


def test_side_outputs_take_their_times_with_them() -> None:
    tag, other = OutputTag("a"), OutputTag("b")
    output = Output([1, (tag, 2), (other, 3), (tag, 4), 5], [10, 20, None, 40, 50])
    main, sides = by_tag(output)
    assert main == Output([1, 5], [10, 50])
    assert sides == {"a": Output([2, 4], [20, 40]), "b": Output([3], [None])}
    assert by_tag(Output([1, (tag, 2)])) == (Output([1]), {"a": Output([2])})
    plain = Output([1, 2], [1, 2])
    assert by_tag(plain) == (plain, {})
    assert by_tag(Output([(tag, 1)], [7])) == (Output([], []), {"a": Output([1], [7])})
