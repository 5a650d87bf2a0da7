"""Values of every type as a column that other programs read, and back."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Any, Literal, NamedTuple, NotRequired, Optional, TypedDict
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
import pyarrow as pa
import pytest

from holdfast.serde.factory import codec_for
from holdfast.serde.tagged import either, timestamped
from holdfast.state.tables.values import state_value_column, value_column

UTC_TIME = pa.timestamp("us", tz="UTC")


class Color(Enum):
    RED = "red"
    BLUE = "blue"


class Level(IntEnum):
    LOW = 1
    HIGH = 2


@dataclass
class Line:
    item: str
    price: Decimal
    tags: list[str]


@dataclass
class Order:
    id: int
    lines: list[Line]
    at: datetime | None = None
    by: dict[str, tuple[int, float]] | None = None


class Pair(NamedTuple):
    left: int
    right: str | None


class Options(TypedDict):
    name: str
    size: NotRequired[int]


class Sparse(msgspec.Struct, omit_defaults=True):
    n: int = 0
    name: str = ""


class Compact(msgspec.Struct, array_like=True):
    n: int
    name: str = ""


class Maybe(msgspec.Struct, omit_defaults=True):
    n: int | None = None
    name: str = ""


class Renamed(msgspec.Struct, tag="r", tag_field="kind"):
    name: str


class Added(msgspec.Struct, tag="a", tag_field="kind"):
    name: str


class Created(msgspec.Struct, tag=True):
    name: str


class Deleted(msgspec.Struct, tag=True):
    at: date


class Tagged(msgspec.Struct, tag=7, array_like=True):
    n: int


class Tree(msgspec.Struct):
    value: int
    children: list[Tree] = []


@dataclass
class Nothing:
    """No fields, so there is no struct for it."""


class Cased(TypedDict):
    name: str
    NAME: str


NOON = datetime(2026, 11, 15, 12, 0, 0, 250)
DECIMAL = pa.decimal128(38, 18)
BERLIN = ZoneInfo("Europe/Berlin")
LINE = {"item": "tea", "price": Decimal("1.10"), "tags": ["a", "ü"]}
LINE_COLUMN = pa.struct(
    [
        ("item", pa.string()),
        ("price", DECIMAL),
        ("tags", pa.list_(pa.field("element", pa.string()))),
    ]
)


def list_of(column: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("element", column))


EXACT: list[tuple[Any, Any, pa.DataType, Any]] = [
    (int, -(2**63), pa.int64(), -(2**63)),
    (str, "ü\0", pa.string(), "ü\0"),
    (bytes, b"\x00\xff", pa.binary(), b"\x00\xff"),
    (bytearray, bytearray(b"ab"), pa.binary(), b"ab"),
    (bool, True, pa.bool_(), True),
    (float, -0.0, pa.float64(), -0.0),
    (float, math.inf, pa.float64(), math.inf),
    (date, date(1, 1, 1), pa.date32(), date(1, 1, 1)),
    (datetime, NOON, pa.timestamp("us"), NOON),
    (datetime, NOON.replace(tzinfo=UTC), UTC_TIME, NOON.replace(tzinfo=UTC)),
    (datetime, datetime(9999, 12, 31, 23, 59, 59, 999999), pa.timestamp("us"),
     datetime(9999, 12, 31, 23, 59, 59, 999999)),
    (timedelta, timedelta(-5, 3, 7), pa.duration("us"), timedelta(-5, 3, 7)),
    (time, time(23, 59, 59, 999999), pa.time64("us"), time(23, 59, 59, 999999)),
    (Decimal, Decimal("1.10"), DECIMAL, Decimal("1.10")),
    (Decimal, Decimal("-12"), DECIMAL, Decimal(-12)),
    (Decimal, Decimal("9" * 38), pa.decimal128(38, 0), Decimal("9" * 38)),
    (Decimal, Decimal("1E-38"), pa.decimal128(38, 38), Decimal("1E-38")),
    (Decimal, Decimal("-3.3330E-10"), DECIMAL, Decimal("-3.333E-10")),
    (Decimal, Decimal("0E-7"), DECIMAL, Decimal("0E-7")),
    (list[Decimal | None], [None, Decimal("0.5")], list_of(DECIMAL), [None, Decimal("0.5")]),
    (list[Decimal], [], list_of(DECIMAL), []),
    (list[Decimal], list(map(Decimal, ("1", "2.25", "3.125"))), list_of(DECIMAL),
     list(map(Decimal, ("1", "2.25", "3.125")))),
    (dict[Decimal, Decimal], {Decimal("1.5"): Decimal(2)}, pa.map_(DECIMAL, DECIMAL),
     [(Decimal("1.5"), Decimal(2))]),
    (int | Decimal, Decimal("1.5"), pa.struct([("int", pa.int64()), ("decimal", DECIMAL)]),
     {"int": None, "decimal": Decimal("1.5")}),
    (UUID, UUID(int=7), pa.string(), str(UUID(int=7))),
    (list[int], [1, 2], list_of(pa.int64()), [1, 2]),
    (list[int], [], list_of(pa.int64()), []),
    (list[int | None], [None, 2], list_of(pa.int64()), [None, 2]),
    (tuple[date, ...], (date(2026, 1, 2),), list_of(pa.date32()), [date(2026, 1, 2)]),
    (set[str], {"a"}, list_of(pa.string()), ["a"]),
    (frozenset[int], frozenset({3}), list_of(pa.int64()), [3]),
    (tuple[int, str], (1, "a"), pa.struct([("_1", pa.int64()), ("_2", pa.string())]),
     {"_1": 1, "_2": "a"}),
    (Pair, Pair(1, None), pa.struct([("left", pa.int64()), ("right", pa.string())]),
     {"left": 1, "right": None}),
    (Compact, Compact(1, "a"), pa.struct([("n", pa.int64()), ("name", pa.string())]),
     {"n": 1, "name": "a"}),
    (Line, Line("tea", Decimal("1.10"), ["a", "ü"]), LINE_COLUMN, LINE),
    (Optional[Line], Line("tea", Decimal("1.10"), ["a", "ü"]), LINE_COLUMN, LINE),  # noqa: UP045
    (Options, {"name": "a"}, pa.struct([("name", pa.string()), ("size", pa.int64())]),
     {"name": "a", "size": None}),
    (Sparse, Sparse(name="a"), pa.struct([("n", pa.int64()), ("name", pa.string())]),
     {"n": None, "name": "a"}),
    (Created, Created("a"), pa.struct([("name", pa.string())]), {"name": "a"}),
    (Maybe, Maybe(), pa.struct([("n", pa.int64()), ("name", pa.string())]),
     {"n": None, "name": None}),
    (Renamed, Renamed("a"), pa.struct([("name", pa.string())]), {"name": "a"}),
    (Renamed | Added, Added("a"), None, {"Renamed": None, "Added": {"name": "a"}}),
    (Tagged, Tagged(5), pa.struct([("n", pa.int64())]), {"n": 5}),
    (dict[str, list[int]], {"b": [1], "a": []}, pa.map_(pa.string(), list_of(pa.int64())),
     [("b", [1]), ("a", [])]),
    (dict[tuple[int, str], bool], {(1, "a"): True},
     pa.map_(pa.struct([("_1", pa.int64()), ("_2", pa.string())]), pa.bool_()),
     [({"_1": 1, "_2": "a"}, True)]),
    (dict[datetime, int | None], {NOON: None}, pa.map_(pa.timestamp("us"), pa.int64()),
     [(NOON, None)]),
    (Color, Color.RED, pa.string(), "red"),
    (Level, Level.HIGH, pa.int64(), 2),
    (Literal["a", "b"], "b", pa.string(), "b"),
    (Literal["a", 1], 1, pa.struct([("int", pa.int64()), ("str", pa.string())]),
     {"str": None, "int": 1}),
    (int | str, "a", pa.struct([("int", pa.int64()), ("str", pa.string())]),
     {"int": None, "str": "a"}),
    (int | float | None, 2.0, pa.struct([("int", pa.int64()), ("float", pa.float64())]),
     {"int": None, "float": 2.0}),
    (list[int | str | None], [None, 1], None, [None, {"int": 1, "str": None}]),
    (list[dict[int | None, int]], [{None: 1}], list_of(pa.binary()), [b"\x81\xc0\x01"]),
    (list[int] | Line, [5], None, {"list": [5], "Line": None}),
    (Created | Deleted, Deleted(date(2026, 1, 2)), None,
     {"Created": None, "Deleted": {"at": date(2026, 1, 2)}}),
    (datetime | bool, NOON, pa.struct([("datetime", pa.timestamp("us")), ("bool", pa.bool_())]),
     {"bool": None, "datetime": NOON}),
    (Tree, Tree(1, [Tree(2)]),
     pa.struct([("value", pa.int64()), ("children", list_of(pa.binary()))]),
     {"value": 1, "children": [msgspec.msgpack.encode(Tree(2))]}),
    (dict[str, Any], {"a": [1], "b": None}, pa.map_(pa.string(), pa.binary()),
     [("a", b"\x91\x01"), ("b", None)]),
    (tuple[int, None], (1, None), pa.struct([("_1", pa.int64()), ("_2", pa.null())]),
     {"_1": 1, "_2": None}),
    (list[Nothing], [Nothing()], list_of(pa.binary()), [b"\x80"]),
    (pa.int16(), 5, pa.int16(), 5),
    (pa.float32(), 0.5, pa.float32(), 0.5),
    (pa.decimal128(5, 2), Decimal("1.10"), pa.decimal128(5, 2), Decimal("1.10")),
    (pa.large_string(), "a", pa.string(), "a"),
    (pa.time64("ns"), time(1, 2, 3, 4), pa.time64("ns"), time(1, 2, 3, 4)),
    (pa.timestamp("us"), NOON, pa.timestamp("us"), NOON),
    ("timestamp", NOON.replace(tzinfo=UTC), UTC_TIME, NOON.replace(tzinfo=UTC)),
    ("a bigint, b array<string>, c map<string, date>", (1, ["x", None], {"k": date(2026, 1, 2)}),
     None, {"a": 1, "b": ["x", None], "c": [("k", date(2026, 1, 2))]}),
    (pa.struct([pa.field("a", pa.int32(), nullable=False), ("b", pa.null())]), (1, None), None,
     {"a": 1, "b": None}),
]  # fmt: skip


@pytest.mark.parametrize(("spec", "value", "column", "shown"), EXACT, ids=str)
def test_a_value_is_shown_in_its_column_and_comes_back(
    spec: Any, value: Any, column: pa.DataType | None, shown: Any
) -> None:
    codec = codec_for(spec)
    data = codec.encode(value)
    target = value_column(codec.schema)
    typed = target.typed([data, data]).column
    assert typed.to_pylist() == [shown, shown]
    assert typed.type == target.arrow
    if column is not None:
        assert typed.type == column
    assert target.stored(typed) == [data, data]


INEXACT: list[tuple[Any, Any]] = [
    (int, 2**63),
    (int, -(2**90)),
    (datetime, datetime.max.replace(tzinfo=timezone(timedelta(hours=-1)))),
    (datetime | None, datetime.min.replace(tzinfo=timezone(timedelta(hours=1)))),
    (tuple[datetime, time], (NOON, time(1, fold=1))),
    (tuple[datetime, time], (NOON, time(1, tzinfo=BERLIN))),
    (tuple[datetime, int], (NOON.replace(tzinfo=BERLIN), 2**70)),
    (Decimal, Decimal("NaN")),
    (Decimal, Decimal("-Infinity")),
    (Decimal, Decimal("9" * 39)),
    (Decimal, Decimal("1E-39")),
    (Decimal, Decimal("1E+38")),
    (list[Decimal], [Decimal(1), Decimal("NaN")]),
    (list[Decimal | None], [Decimal(1), Decimal("NaN")]),
    (dict[Decimal, int], {Decimal("NaN"): 1}),
    (dict[str, Decimal], {"a": Decimal("Infinity")}),
    (Line, Line("tea", Decimal("NaN"), [])),
    (int | Decimal, Decimal("NaN")),
    (list[int | Decimal], [1, Decimal("NaN")]),
    (time, time(1, tzinfo=UTC)),
    (timedelta, timedelta.max),
    (list[int], [1, 2**64]),
    (dict[str, int], {"a": 2**63}),
    (pa.float32(), 0.1),
    (Optional[Sparse], Sparse(2**63)),  # noqa: UP045
    (int | str, 2**64),
]


@pytest.mark.parametrize(("spec", "value"), INEXACT, ids=str)
def test_a_value_that_its_column_cannot_hold_leaves_a_null(spec: Any, value: Any) -> None:
    codec = codec_for(spec)
    target = value_column(codec.schema)
    assert target.typed([codec.encode(value)]).column.to_pylist() == [None]


def test_values_beside_those_that_the_column_cannot_hold_are_in_it() -> None:
    values = [n if n % 7 else 2**63 + n for n in range(1000)]
    values[3] = 2**80
    codec = codec_for(int)
    typed = value_column(codec.schema).typed(list(map(codec.encode, values))).column
    assert typed.to_pylist() == [n if n < 2**63 else None for n in values]


def test_the_bits_of_a_nan_are_kept() -> None:
    data = b"\xcb\x7f\xf8\x00\x00\x00\x00\x00\x07"
    target = value_column(codec_for(float).schema)
    typed = target.typed([data]).column
    assert typed.null_count == 0
    assert target.stored(typed) == [data]


def test_the_first_datetimes_decide_whether_the_column_has_a_zone() -> None:
    codec = codec_for(list[datetime])
    naive, aware = codec.encode([NOON]), codec.encode([NOON.replace(tzinfo=UTC)])
    target = value_column(codec.schema)
    assert target.typed([codec.encode([])]).column.to_pylist() == [[]]
    target = value_column(codec.schema)
    assert target.typed([naive, aware, naive]).column.to_pylist() == [[NOON], None, [NOON]]
    assert target.typed([aware, aware]).column.to_pylist() == [None, None]
    assert target.arrow == list_of(pa.timestamp("us"))


def test_a_value_that_does_not_fit_decides_nothing() -> None:
    codec = codec_for(tuple[int, datetime])
    target = value_column(codec.schema)
    typed = target.typed([codec.encode((2**63, NOON)), codec.encode((1, NOON))]).column
    assert typed.to_pylist() == [None, {"_1": 1, "_2": NOON}]


def test_each_datetime_of_a_class_has_a_zone_or_none_of_its_own() -> None:
    codec = codec_for(tuple[datetime, datetime])
    target = value_column(codec.schema)
    typed = target.typed([codec.encode((NOON, NOON.replace(tzinfo=UTC)))]).column
    assert typed.to_pylist() == [{"_1": NOON, "_2": NOON.replace(tzinfo=UTC)}]


def test_a_typed_dict_in_another_order_is_the_same() -> None:
    codec = codec_for(Options)
    target = value_column(codec.schema)
    typed = target.typed([codec.encode({"size": 1, "name": "a"})]).column
    assert typed.to_pylist() == [{"name": "a", "size": 1}]
    (data,) = target.stored(typed)
    assert data is not None
    assert codec.decode(data) == {"size": 1, "name": "a"}


@pytest.mark.parametrize("spec", [None, Any, Nothing, Cased, Tree | None | int], ids=str)
def test_a_type_without_a_column_is_kept_as_it_is_encoded(spec: Any) -> None:
    values = {Nothing: Nothing(), Cased: {"name": "a", "NAME": "b"}}
    codec = codec_for(spec)
    data = codec.encode(values.get(spec, 5))
    target = value_column(codec.schema)
    typed = target.typed([data]).column
    if target.arrow == pa.binary():
        assert typed.to_pylist() == [data]
    assert target.stored(typed) == [data]


def test_a_serializer_of_the_user_is_kept_as_it_is_encoded() -> None:
    target = value_column({"format": 1, "kind": "serializer", "class": "a.B"})
    blobs = [b"\xc1\xc1", b"", b"\xc1"]
    assert target.typed(blobs).column.to_pylist() == blobs


def test_bytes_that_are_no_message_leave_a_null() -> None:
    target = value_column(codec_for(int).schema)
    blobs = [b"\x01\x02", b"", b"\x05", b"\xcb", b"\x92"]
    assert target.typed(blobs).column.to_pylist() == [None, None, 5, None, None]


def test_timestamped_values_are_structs() -> None:
    codec = timestamped(codec_for(int))
    pairs: list[Any] = [(5, 1_000), (6, None), (7, 2**63 - 1), (2**63, 0), (8, -1)]
    blobs = list(map(codec.encode, pairs))
    target = value_column(codec.schema)
    typed = target.typed(blobs).column
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    assert typed.to_pylist() == [
        {"timestamp": epoch + timedelta(seconds=1), "value": 5},
        {"timestamp": None, "value": 6},
        None,
        None,
        {"timestamp": epoch - timedelta(milliseconds=1), "value": 8},
    ]
    assert target.stored(typed) == [*blobs[:2], None, None, blobs[4]]


def test_values_of_either_side_are_structs() -> None:
    codec = either(codec_for(int), codec_for(Optional[str]))  # noqa: UP045
    blobs = list(map(codec.encode, [(1, "a"), (0, 5), (1, None), (0, 2**63), (0, 6)]))
    target = value_column(codec.schema)
    typed = target.typed(blobs).column
    assert typed.to_pylist() == [
        {"left": None, "right": "a"},
        {"left": 5, "right": None},
        None,
        None,
        {"left": 6, "right": None},
    ]
    assert target.stored(typed) == [blobs[0], blobs[1], None, None, blobs[4]]


# States whose type has changed

NAME = "1f2e3d4c"
HEAD = b"\xc1\xc1" + bytes.fromhex(NAME)


def schema(spec: Any) -> dict[str, Any]:
    return codec_for(spec).schema


def test_a_state_that_has_changed_has_the_column_of_the_type_of_now() -> None:
    entry = {"schema": [schema(int)], "others": {NAME: [schema(int | None)]}, "now": NAME}
    target = state_value_column(entry)
    typed = target.typed([b"\x05", HEAD + b"\x06", b"\xc1\xc1....\x07"]).column
    assert typed.to_pylist() == [None, 6, None]
    assert target.stored(typed) == [None, HEAD + b"\x06", None]


def test_values_of_another_type_are_kept_as_they_are_encoded() -> None:
    entry = {"schema": [schema(int)], "others": {NAME: [schema(int | str)]}, "now": NAME}
    target = state_value_column(entry)
    typed = target.typed([b"\x05", HEAD + b"\x06"]).column
    assert typed.to_pylist() == [None, {"int": 6, "str": None}]


def test_an_equal_value_of_the_type_of_now_is_shown_beside_values_of_others() -> None:
    entry = {"schema": [schema(int)], "others": {NAME: [schema(Decimal)]}, "now": NAME}
    target = state_value_column(entry)
    blobs = [b"\x05", HEAD + b"\xa41.10", b"\x06", HEAD + b"\xa31.1"]
    column, rest = target.typed(blobs)
    assert column.to_pylist() == [None, Decimal("1.10"), None, Decimal("1.10")]
    assert rest == [0, 1, 2]


def test_a_state_that_has_its_first_type_again_has_its_column() -> None:
    target = state_value_column({"schema": [schema(int)], "others": {NAME: [schema(str)]}})
    typed = target.typed([HEAD + b"\xa1a", b"\x05"]).column
    assert typed.to_pylist() == [None, 5]
    assert target.stored(typed) == [None, b"\x05"]
