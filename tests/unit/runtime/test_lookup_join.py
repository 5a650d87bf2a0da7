"""Joining rows with a table, in the tasks: real tasks, and a table that is simply there."""

from __future__ import annotations

import pickle
import uuid
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest

from holdfast.api.functions import ProcessFunction
from holdfast.api.streams.lookup import LookupJoin
from holdfast.api.time import WatermarkStrategy
from holdfast.errors import JobGraphError, TypeDeclarationError
from holdfast.runtime.operators import lookup_join
from holdfast.runtime.operators.lookup_join import MOST_TABLES, kept_index
from holdfast.spark.lookups import make_lookup
from holdfast.types.stream_type import StreamType
from tests.support.programs import Program, Run

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.runtime.plan import EpochPlan

NAMES = pa.table({"id": pa.array([1, 2, 2, None], pa.int32()), "name": ["one", "two", "zwei", "-"]})


@dataclass
class Copy:
    """A copy of a table that is simply there; counts how often it is read."""

    table: pa.Table
    number: int = 1
    reads: int = 0

    def read(self) -> pa.Table:
        self.reads += 1
        return self.table


class Tables(Program):
    """An environment whose tables are Arrow tables."""

    def lookup(
        self, stream: StreamType, table: Any, on: Any, refresh_interval: Any, how: str
    ) -> LookupJoin:
        return join_of(stream, table, on, outer=how == "left")


def join_of(
    stream: StreamType, table: pa.Table, on: dict[str, str], *, outer: bool = False
) -> LookupJoin:
    added = [field for field in table.schema if field.name not in on.values()]
    columns = StreamType.of(table.schema).schema
    compared = [columns.field(name) for name in on.values()]
    return LookupJoin(
        id=uuid.uuid4().hex,
        load=None,
        columns=tuple(stream.columns.index(name) for name in on),
        table=pa.schema([*compared, *added]),
        outer=outer,
        refresh_ms=None,
        output=StreamType.of(pa.schema([*stream.schema, *added])),
    )


class TableRun(Run):
    """Epochs in which every lookup join has the same table."""

    copy: Copy

    def epoch_plan(self) -> EpochPlan:
        return replace(super().epoch_plan(), tables=dict.fromkeys(self.plan.lookups, self.copy))


@pytest.fixture(autouse=True)
def _no_tables_from_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup_join, "_indexes", {})


def joined(
    tmp_path: Path,
    elements: list[Any],
    table: pa.Table,
    on: dict[str, str],
    *,
    spec: Any = "id bigint, n bigint",
    how: str = "inner",
) -> list[Any]:
    """What the join of these elements gives out."""
    program = Tables()
    out = program.collect(program.source(spec).lookup_join(table, on, how=how))
    run = TableRun(program.compile(), tmp_path)
    run.copy = Copy(table)
    run.push(elements)
    return out


def pairs(tmp_path: Path, kind: str, values: list[Any], keys: pa.Array) -> list[Any]:
    """Which values of the stream meet which rows of the table, by the rows' numbers."""
    table = pa.table({"key": keys, "row": pa.array(range(len(keys)), pa.int64())})
    numbered = list(zip(values, range(len(values)), strict=True))
    spec = StreamType.of(f"k {kind}, i bigint")
    out = joined(tmp_path, numbered, table, {"k": "key"}, spec=spec)
    return sorted((i, row) for _, i, row in out)


# What is joined


def test_every_row_meets_all_rows_of_the_table_with_its_key(tmp_path: Path) -> None:
    out = joined(tmp_path, [(2, 10), (1, 20), (3, 30)], NAMES, {"id": "id"})
    assert sorted(out) == [(1, 20, "one"), (2, 10, "two"), (2, 10, "zwei")]


def test_a_left_join_keeps_rows_without_a_match(tmp_path: Path) -> None:
    out = joined(tmp_path, [(1, 20), (3, 30)], NAMES, {"id": "id"}, how="left")
    assert sorted(out) == [(1, 20, "one"), (3, 30, None)]


def test_null_equals_nothing_not_even_null(tmp_path: Path) -> None:
    assert joined(tmp_path, [(None, 1)], NAMES, {"id": "id"}) == []
    assert joined(tmp_path, [(None, 1)], NAMES, {"id": "id"}, how="left") == [(None, 1, None)]


def test_a_null_in_one_of_several_columns_equals_nothing(tmp_path: Path) -> None:
    table = pa.table({"a": [1, 1, None], "b": ["x", None, "x"], "c": [1, 2, 3]})
    rows = [(1, "x"), (1, None), (None, "x"), (1, "y")]
    out = joined(tmp_path, rows, table, {"a": "a", "b": "b"}, spec="a bigint, b string")
    assert out == [(1, "x", 1)]


def test_a_table_without_further_columns_selects_rows(tmp_path: Path) -> None:
    table = pa.table({"id": [1, 3, 3]})
    out = joined(tmp_path, [(1, 10), (2, 20), (3, 30)], table, {"id": "id"})
    assert sorted(out) == [(1, 10), (3, 30), (3, 30)]


def test_an_empty_table_matches_nothing(tmp_path: Path) -> None:
    assert joined(tmp_path, [(1, 10)], NAMES.slice(0, 0), {"id": "id"}) == []
    out = joined(tmp_path, [(1, 10)], NAMES.slice(0, 0), {"id": "id"}, how="left")
    assert out == [(1, 10, None)]


def test_the_result_is_events_of_all_columns(tmp_path: Path) -> None:
    program = Tables()
    stream = program.source("id bigint, n bigint").lookup_join(NAMES, {"id": "id"})
    out = program.collect(stream.map(lambda event: f"{event.name} {event.n}", str))
    run = TableRun(program.compile(), tmp_path)
    run.copy = Copy(NAMES)
    run.push([(1, 20)])
    assert out == ["one 20"]


def test_a_table_in_several_pieces_is_one(tmp_path: Path) -> None:
    table = pa.concat_tables([NAMES, NAMES.slice(0, 1)])
    out = joined(tmp_path, [(1, 20), (2, 1)], table, {"id": "id"})
    assert sorted(out) == [(1, 20, "one"), (1, 20, "one"), (2, 1, "two"), (2, 1, "zwei")]


# What is equal


def test_numbers_are_equal_whatever_their_width(tmp_path: Path) -> None:
    assert pairs(tmp_path, "tinyint", [1, 2], pa.array([2, 1], pa.int64())) == [(0, 1), (1, 0)]
    huge = 2**63 - 1
    assert pairs(tmp_path, "bigint", [huge, huge - 1], pa.array([huge])) == [(0, 0)]


def test_decimals_are_equal_whatever_their_scale(tmp_path: Path) -> None:
    keys = pa.array([Decimal("1.100"), Decimal("2.000")], pa.decimal128(10, 3))
    values = [Decimal("1.1"), Decimal("2.0"), Decimal("3.0")]
    assert pairs(tmp_path, "decimal(5, 1)", values, keys) == [(0, 0), (1, 1)]
    assert pairs(tmp_path, "int", [1, 2], keys) == [(1, 1)]


def test_all_nan_are_equal_and_so_are_both_zeros(tmp_path: Path) -> None:
    keys = pa.array([float("nan"), 0.0, 0.5], pa.float32())
    values = [float("nan"), -0.0, 0.5, 1.5]
    assert pairs(tmp_path, "double", values, keys) == [(0, 0), (1, 1), (2, 2)]


@pytest.mark.parametrize("values", [["a", "é", ""], [b"a", b"", b"\x00"]], ids=["text", "bytes"])
def test_text_and_bytes_are_equal_if_all_of_them_is(tmp_path: Path, values: list[Any]) -> None:
    kind = "string" if isinstance(values[0], str) else "binary"
    assert pairs(tmp_path, kind, values, pa.array(values)) == [(0, 0), (1, 1), (2, 2)]


def test_dates_and_times_without_a_zone_are_equal_by_what_they_show(tmp_path: Path) -> None:
    day = date(2024, 2, 29)
    assert pairs(tmp_path, "date", [day], pa.array([day])) == [(0, 0)]
    moment = datetime(2024, 2, 29, 12, 0, 0, 1)
    keys = pa.array([moment, moment.replace(microsecond=0)], pa.timestamp("us"))
    assert pairs(tmp_path, "timestamp_ntz", [moment], keys) == [(0, 0)]


@pytest.mark.parametrize("zones", [("UTC", "Europe/Berlin"), ("Europe/Berlin", "UTC")])
def test_instants_are_equal_in_any_zone_and_in_a_repeated_hour(
    tmp_path: Path, zones: tuple[str, str]
) -> None:
    first = datetime(2024, 10, 27, 0, 30, tzinfo=UTC)  # Half past two in Berlin, twice.
    later = first + timedelta(hours=1)
    table = pa.table(
        {"key": pa.array([first, later], pa.timestamp("us", tz=zones[0])), "row": [0, 1]}
    )
    spec = pa.schema([("k", pa.timestamp("us", tz=zones[1])), ("i", pa.int64())])
    rows = [(at.astimezone(ZoneInfo(zones[1])), i) for i, at in enumerate((first, later))]
    out = joined(tmp_path, rows, table, {"k": "key"}, spec=spec)
    assert sorted((i, row) for _, i, row in out) == [(0, 0), (1, 1)]


# Elements that are no events


class Color(Enum):
    RED = "red"


class Part(NamedTuple):
    color: Color
    id: int


@dataclass
class Item:
    id: int
    label: str | None


@dataclass
class Box:
    id: int
    part: Part


def test_elements_of_a_class_become_events(tmp_path: Path) -> None:
    items = [Item(1, "a"), Item(2, None)]
    out = joined(tmp_path, items, NAMES, {"id": "id"}, spec=Item)
    assert sorted(out, key=str) == [(1, "a", "one"), (2, None, "two"), (2, None, "zwei")]
    assert out[0].name == "one"


def test_classes_within_columns_become_plain_values(tmp_path: Path) -> None:
    colors = pa.table({"color": ["red"], "code": [7]})
    out = joined(tmp_path, [Part(Color.RED, 1)], colors, {"color": "color"}, spec=Part)
    assert out == [("red", 1, 7)]
    boxes = [Box(1, Part(Color.RED, 5))]
    assert joined(tmp_path, boxes, NAMES, {"id": "id"}, spec=Box) == [(1, ("red", 5), "one")]


def test_bare_values_are_in_the_column_value(tmp_path: Path) -> None:
    out = joined(tmp_path, [1, 4], NAMES, {"value": "id"}, spec=int, how="left")
    assert sorted(out, key=str) == [(1, "one"), (4, None)]
    out = joined(tmp_path, [Color.RED], pa.table({"c": ["red"]}), {"value": "c"}, spec=Color)
    assert out == [("red",)]


def test_a_function_that_changes_a_row_changes_no_other(tmp_path: Path) -> None:
    table = pa.table({"id": [1, 1], "tags": [["x"], ["y"]]})

    def spoil(event: Any) -> str:
        event.seen.append(event.tags[0])
        event.tags.append("spoilt")
        return f"{event.seen} {event.tags}"

    program = Tables()
    stream = program.source("id bigint, seen array<string>").lookup_join(table, {"id": "id"})
    out = program.collect(stream.map(spoil, str))
    run = TableRun(program.compile(), tmp_path)
    run.copy = Copy(table)
    run.push([(1, [])])
    run.push([(1, [])])
    assert out == ["['x'] ['x', 'spoilt']", "['y'] ['y', 'spoilt']"] * 2


# Time


class Stamp(ProcessFunction):
    """Gives out names with their event time."""

    def process_element(self, value: Any, ctx: Any) -> Any:
        yield value.name, ctx.timestamp()


def test_every_output_has_the_event_time_of_its_row(tmp_path: Path) -> None:
    program = Tables()
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("n")
    stream = program.source("id bigint, n bigint").assign_timestamps_and_watermarks(strategy)
    times = stream.lookup_join(NAMES, {"id": "id"}).process(Stamp(), "name string, time bigint")
    out = program.collect(times)
    run = TableRun(program.compile(), tmp_path)
    run.copy = Copy(NAMES)
    run.push([(1, 20), (3, 30), (2, 40), (None, 50), (1, 60)])
    assert sorted(out, key=str) == [("one", 20), ("one", 60), ("two", 40), ("zwei", 40)]


# Copies of the table


def test_a_copy_is_read_once_in_a_process(tmp_path: Path) -> None:
    program = Tables()
    out = program.collect(program.source("id bigint").lookup_join(NAMES, {"id": "id"}))
    run = TableRun(program.compile(), tmp_path)
    run.copy = old = Copy(NAMES)
    run.push([(1,)])
    run.push([(1,)])
    assert old.reads == 1
    run.copy = Copy(pa.table({"id": pa.array([1], pa.int32()), "name": ["uno"]}), number=2)
    run.push([(1,)])
    assert out == [(1, "one"), (1, "one"), (1, "uno")]
    assert list(lookup_join._indexes.values()) == [(2, {1: (("uno",),)})]


def test_a_process_keeps_the_tables_that_it_used_last() -> None:
    stream = StreamType.of("id bigint")
    joins = [replace(join_of(stream, NAMES, {"id": "id"}), id=f"{i}") for i in range(MOST_TABLES)]
    copies = [Copy(NAMES) for _ in joins]
    for join, copy in zip(joins, copies, strict=True):
        kept_index(join, copy)
    kept_index(joins[0], copies[0])
    kept_index(replace(joins[0], id="one more"), Copy(NAMES))
    assert "0" in lookup_join._indexes
    assert "1" not in lookup_join._indexes
    assert len(lookup_join._indexes) == MOST_TABLES


def test_tasks_do_not_get_what_makes_the_table() -> None:
    join = replace(join_of(StreamType.of("id bigint"), NAMES, {"id": "id"}), load=lambda: None)
    assert pickle.loads(pickle.dumps(join)) == replace(join, load=None)


def test_a_table_that_python_cannot_hold_is_an_error_of_the_operator(tmp_path: Path) -> None:
    beyond = pa.array([2**31 - 1], pa.int32()).view(pa.date32())
    table = pa.table({"id": [1], "day": beyond})
    with pytest.raises(TypeDeclarationError, match=r"'LookupJoin'.*reading its table: .*years"):
        joined(tmp_path, [(1, 2)], table, {"id": "id"})


def test_rows_straight_from_a_source_are_joined_behind_an_exchange() -> None:
    program = Tables()
    program.collect(program.source().map(tuple, "id bigint").lookup_join(NAMES, {"id": "id"}))
    plan = program.compile()
    [source] = plan.sources
    assert [operator.name for operator in source.stage.operators] == ["Map"]
    assert [operator.name for operator in plan.stages[0].operators] == ["LookupJoin"]


# Refusals that need no table


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"how": "outer"}, r'how is "inner" or "left", not \'outer\''),
        ({"on": []}, "on is the name of a column, a list of names, or a mapping"),
        ({"on": 3}, "not 3"),
        ({"on": {"a": 1}}, "on is the name of a column"),
        ({"on": {"id": "k", "n": "k"}}, "names a column of the table twice"),
        ({"refresh_interval": "soon"}, "refresh_interval='soon': expected a duration such as"),
        ({"refresh_interval": -1}, "refresh_interval=-1: expected a duration such as"),
        ({"table": [(1, "a")]}, "not list; spark.createDataFrame makes one of Python data"),
        ({"table": lambda: None}, "the function that makes the table must return .* not NoneType"),
        ({"table": lambda: 1 / 0}, "raised ZeroDivisionError: division by zero"),
        ({"table": lambda path: None}, "called without arguments on the driver, raised TypeError"),
    ],
)
def test_wrong_arguments_are_refused(changed: dict[str, Any], message: str) -> None:
    given = {"table": None, "on": "id", "refresh_interval": None, "how": "inner", **changed}
    with pytest.raises(JobGraphError, match=message):
        make_lookup(StreamType.of("id bigint, n bigint"), zone="UTC", **given)
