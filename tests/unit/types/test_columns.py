from __future__ import annotations

import enum
from collections import OrderedDict, namedtuple
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import NamedTuple, NotRequired, TypedDict
from zoneinfo import ZoneInfo

import msgspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import Row

from holdfast.errors import TypeDeclarationError
from holdfast.types.columns.batches import BatchReader, BatchWriter
from holdfast.types.event import event_class
from holdfast.types.stream_type import StreamType

BERLIN = ZoneInfo("Europe/Berlin")


class Color(enum.Enum):
    RED = "r"
    BLUE = "b"


class Access(enum.IntFlag):
    READ = 1
    WRITE = 2


@dataclass
class Point:
    x: int
    y: float | None = None


@dataclass
class Shape:
    name: str
    color: Color
    points: list[Point]
    path: tuple[int, ...]
    tags: frozenset[str]
    named: dict[str, Point]
    corner: Point | None
    pair: tuple[int, str]


@dataclass(frozen=True, slots=True)
class FrozenClick:
    url: str
    n: int


@dataclass(kw_only=True)
class KeywordClick:
    url: str
    n: int


@dataclass
class DerivedClick:
    url: str
    n: int = field(init=False, default=0)


@dataclass(init=False)
class BareClick:
    url: str
    n: int

    def __init__(self):
        raise AssertionError("never called")


class StructClick(msgspec.Struct):
    url: str
    n: int


class KeywordStruct(msgspec.Struct, kw_only=True):
    url: str
    n: int


class TupleClick(NamedTuple):
    url: str
    n: int = 7


class DictClick(TypedDict):
    url: str
    n: NotRequired[int]


def bare_click(url, n):
    click = object.__new__(BareClick)
    click.url, click.n = url, n
    return click


def derived_click(url, n):
    click = DerivedClick(url)
    click.n = n
    return click


def through(spec, elements):
    stream = StreamType.of(spec)
    batch = BatchWriter(stream).batch(elements)
    assert batch.schema == stream.schema
    batch.validate(full=True)
    return BatchReader(stream).elements(batch)


POINT = Point(2, 0.5)

# What comes through.


@pytest.mark.parametrize(
    ("spec", "values"),
    [
        ("boolean", [True, False, None]),
        ("tinyint", [-128, 127, None]),
        ("smallint", [-(2**15), 2**15 - 1]),
        ("int", [-(2**31), 2**31 - 1]),
        ("bigint", [-(2**63), 2**63 - 1, None]),
        ("double", [0.1, -0.0, float("inf"), 5e-324, None]),
        ("float", [0.5, float("-inf"), None]),
        ("string", ["", "a", "\U0001f600\x00", None]),
        ("binary", [b"", b"\xff\x00", None]),
        ("date", [date.min, date.max, date(2024, 2, 29), None]),
        ("time", [time(0), time(23, 59, 59, 999999), None]),
        ("timestamp_ntz", [datetime.min, datetime.max, datetime(2024, 1, 1, 0, 0, 0, 1), None]),
        ("timestamp", [datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC), None]),
        ("decimal(5,2)", [Decimal("1.50"), Decimal("-999.99"), None]),
        ("decimal(38,18)", [Decimal("12345678901234567890.123456789012345678")]),
        ("void", [None, None]),
        ("array<bigint>", [[], [1, None], None]),
        ("array<array<string>>", [[["a"], None, []], None]),
        ("map<string,bigint>", [{}, {"b": 1, "a": None}, None]),
        ("map<date,array<boolean>>", [{date(2024, 1, 1): [True, None]}]),
        ("array<struct<a:int,b:string>>", [[(1, "x"), None, (None, None)], [], None]),
        ("array<map<int,struct<a:array<double>>>>", [[{1: ([0.5, None],), 2: None}, None]]),
    ],
)
def test_values_come_through_as_they_are(spec, values):
    found = through(spec, values)
    assert found == values
    assert list(map(type, found)) == list(map(type, values))
    assert BatchWriter(StreamType.of(spec)).normalise(values) == values


def test_nan_is_kept_and_is_not_null():
    found = through("double", [float("nan"), None])
    assert found[0] != found[0]
    assert found[1] is None


def test_a_decimal_comes_back_with_the_scale_of_its_column():
    assert str(through("decimal(5,2)", [Decimal("1.5"), 2])) == str(
        [Decimal("1.50"), Decimal("2.00")]
    )


def test_rows_are_events_and_so_are_structs():
    (row,) = through("url string, at struct<x:int,`y z`:int>", [("/a", (1, 2))])
    assert (row.url, row.at.x, row["at"]["y z"]) == ("/a", 1, 2)
    assert type(row) is event_class(("url", "at"))


def test_an_empty_batch_keeps_its_columns():
    for spec in ("a int, b array<string>", "bigint", object, Shape, DictClick):
        assert through(spec, []) == []
        assert BatchWriter(StreamType.of(spec)).normalise([]) == []


def test_a_struct_with_not_null_fields_may_itself_be_null():
    spec = "s struct<a: int not null, b: struct<c: string not null>>"
    assert through(spec, [((1, ("x",)),), (None,), ((2, None),)]) == [
        ((1, ("x",)),),
        (None,),
        ((2, None),),
    ]


@pytest.mark.parametrize(
    "shape",
    [
        Shape("a", Color.RED, [Point(1)], (1, 2), frozenset("xy"), {"p": POINT}, None, (1, "z")),
        Shape("b", Color.BLUE, [], (), frozenset(), {}, POINT, (2, "")),
    ],
)
def test_declared_classes_are_rebuilt_at_every_level(shape):
    (found,) = through(Shape, [shape])
    assert found == shape
    assert (type(found.path), type(found.tags)) == (tuple, frozenset)
    assert all(type(p) is Point for p in [*found.points, *found.named.values()])


@pytest.mark.parametrize(
    ("cls", "make"),
    [
        (FrozenClick, FrozenClick),
        (KeywordClick, lambda url, n: KeywordClick(url=url, n=n)),
        (DerivedClick, derived_click),
        (BareClick, bare_click),
        (StructClick, StructClick),
        (KeywordStruct, lambda url, n: KeywordStruct(url=url, n=n)),
        (TupleClick, TupleClick),
        (DictClick, lambda url, n: {"url": url, "n": n}),
    ],
)
def test_rows_of_any_class_come_back_as_the_declared_one(cls, make):
    declared = [make("/a", 1), make("/b", 2)]
    forms = [
        declared,
        [("/a", 1), ("/b", 2)],
        [{"url": "/a", "n": 1}, {"n": 2, "url": "/b"}],
        [StructClick("/a", 1), FrozenClick("/b", 2)],
        [event_class(("url", "n"))(("/a", 1)), ("/b", 2)],
        [Row(n=1, url="/a"), Row(url="/b", n=2)],
    ]
    for elements in forms:
        found = through(cls, elements)
        assert found == declared
        assert type(found[0]) is type(declared[0])
        normal = BatchWriter(StreamType.of(cls)).normalise(elements)
        assert normal == declared
        assert type(normal[0]) is type(declared[0])


def test_a_key_that_was_left_out_is_left_out_again():
    rows = [{"url": "/a"}, {"url": "/b", "n": 1}]
    assert through(DictClick, rows) == rows
    assert BatchWriter(StreamType.of(DictClick)).normalise([("/a", None)]) == [{"url": "/a"}]


def test_enumerations_and_flags_come_back_as_members():
    assert through(Color | None, [Color.RED, None]) == [Color.RED, None]
    assert through(Access, [Access.READ, Access.READ | Access.WRITE]) == [
        Access.READ,
        Access.READ | Access.WRITE,
    ]


def test_sets_and_tuples_come_back_as_declared():
    assert through(set[int], [{1, 2}, frozenset({3})]) == [{1, 2}, {3}]
    assert through(tuple[int, ...], [(1, 2), [3]]) == [(1, 2), (3,)]


def test_subclasses_of_containers_are_taken():
    pair = namedtuple("pair", "a b")
    assert through("array<int>", [pair(1, 2)]) == [[1, 2]]


def test_objects_are_pickled():
    elements = [{1, 2}, (1, "x"), None, Point(1)]
    assert through(object, elements) == elements
    assert BatchWriter(StreamType.of(object)).normalise(elements) is elements


# Rows by name and by position.


def test_a_named_row_goes_by_name_when_its_names_are_those_of_the_columns():
    swapped = namedtuple("swapped", "b a")
    assert through("a int, b int", [swapped(b=2, a=1), Row(b=4, a=3)]) == [(1, 2), (3, 4)]
    assert through("a int, b int", [event_class(("b", "a"))((2, 1))]) == [(1, 2)]


def test_a_row_without_the_names_of_the_columns_goes_by_position():
    other = namedtuple("other", "x y")
    unnamed = Row("x", "y")("1", "2")
    rows = [other("1", "2"), tuple.__new__(Row, "12"), unnamed]
    assert through("a string, b string", rows) == [("1", "2")] * 3


def test_rows_of_mixed_classes_keep_their_order():
    rows = [(1, "x"), {"a": 2, "b": "y"}, Row(b="z", a=3), (4, None)]
    assert through("a int, b string", rows) == [(1, "x"), (2, "y"), (3, "z"), (4, None)]


# What is taken besides the exact class.


@pytest.mark.parametrize(
    ("spec", "given", "found"),
    [
        ("bigint", np.int64(3), 3),
        ("bigint", Access.READ, 1),
        ("double", 3, 3.0),
        ("double", np.float32(0.5), 0.5),
        ("double", np.int8(3), 3.0),
        ("boolean", np.True_, True),
        ("string", np.str_("a"), "a"),
        ("binary", bytearray(b"a"), b"a"),
        ("binary", memoryview(b"a"), b"a"),
        ("decimal(5,2)", 3, Decimal("3.00")),
        ("array<int>", (1, 2), [1, 2]),
        ("array<int>", {1}, [1]),
        ("array<int>", np.array([1, 2]), [1, 2]),
        ("map<string,int>", OrderedDict(a=1), {"a": 1}),
        ("date", pd.Timestamp("2024-01-01").date(), date(2024, 1, 1)),
        ("timestamp_ntz", pd.Timestamp("2024-01-01T05:00"), datetime(2024, 1, 1, 5)),
        ("timestamp", pd.Timestamp("2024-01-01", tz="UTC"), datetime(2024, 1, 1, tzinfo=UTC)),
    ],
)
def test_values_that_convert_without_loss_are_taken(spec, given, found):
    (value,) = through(spec, [given])
    assert (value, type(value)) == (found, type(found))
    (value,) = BatchWriter(StreamType.of(spec)).normalise([given])
    assert (value, type(value)) == (found, type(found))


# Times and zones.


def test_an_instant_comes_back_in_the_zone_of_the_column():
    stream = StreamType.of(pa.timestamp("us", tz="Europe/Berlin"))
    instant = datetime(2024, 7, 1, 12, 0, 0, 123456, tzinfo=UTC)
    for given in (instant, instant.astimezone(timezone(timedelta(hours=5)))):
        (found,) = BatchReader(stream).elements(BatchWriter(stream).batch([given]))
        assert found == instant
        assert (found.tzinfo, found.hour) == (BERLIN, 14)
        assert BatchWriter(stream).normalise([given])[0].tzinfo is BERLIN


@pytest.mark.parametrize("apart", [timedelta(0), timedelta(days=400)])
def test_both_hours_of_a_clock_set_back_come_through(apart):
    stream = StreamType.of(pa.timestamp("us", tz="Europe/Berlin"))
    first = datetime(2024, 10, 27, 2, 30, tzinfo=BERLIN)
    given = [first, first.replace(fold=1), first + apart]
    found = BatchReader(stream).elements(BatchWriter(stream).batch(given))
    assert [(t.replace(tzinfo=None), t.fold) for t in found] == [
        (t.replace(tzinfo=None), t.fold) for t in given
    ]


def test_a_day_that_a_zone_lived_twice_comes_through():
    zone = ZoneInfo("America/Juneau")  # Alaska crossed the date line in 1867.
    stream = StreamType.of(pa.timestamp("us", tz="America/Juneau"))
    start = datetime(1867, 10, 18, tzinfo=UTC)
    instants = [start + timedelta(hours=h) for h in range(-24, 48, 5)]
    for instant in instants:
        (found,) = BatchReader(stream).elements(BatchWriter(stream).batch([instant]))
        assert found.astimezone(UTC) == instant
        assert found == instant.astimezone(zone)


def test_fixed_offsets_are_zones_too():
    stream = StreamType.of(pa.timestamp("us", tz="-03:30"))
    (found,) = BatchReader(stream).elements(
        BatchWriter(stream).batch([datetime(2024, 1, 1, tzinfo=UTC)])
    )
    assert found.utcoffset() == -timedelta(hours=3, minutes=30)


def test_a_reader_reads_batch_after_batch_in_its_zone():
    stream = StreamType.of(pa.timestamp("us", tz="Europe/Berlin"))
    reader = BatchReader(stream)
    for day in (1, 1, 2, 30):
        given = [datetime(2024, 6, day, hour, tzinfo=UTC) for hour in range(24)]
        found = reader.elements(BatchWriter(stream).batch(given))
        assert found == given
        assert [t.hour for t in found] == [(hour + 2) % 24 for hour in range(24)]


def test_nulls_among_instants_stay_in_their_place():
    given = [None, datetime(2024, 1, 1, tzinfo=UTC), None]
    assert through("timestamp", given) == given
    assert BatchWriter(StreamType.of("timestamp")).normalise(given) == given


@pytest.mark.parametrize(
    ("spec", "integer"),
    [("timestamp", pa.int64()), ("timestamp_ntz", pa.int64()), ("date", pa.int32())],
)
def test_times_beyond_the_years_of_python_are_refused(spec, integer):
    stream = StreamType.of(spec)
    top = pa.array([0, 2 ** (integer.bit_width - 2)], integer).view(stream.schema.field(0).type)
    with pytest.raises(TypeDeclarationError, match="outside the years 1 to 9999"):
        BatchReader(stream).elements(pa.record_batch([top], names=["value"]))


def test_large_types_are_written_as_declared():
    schema = pa.schema([("a", pa.large_string()), ("b", pa.large_list(pa.large_binary()))])
    assert through(schema, [("x", [b"y"]), (None, None)]) == [("x", [b"y"]), (None, None)]


# Normalising without Arrow.


def test_elements_that_are_already_normal_are_not_copied():
    for spec, elements in (
        ("a int, b string", [event_class(("a", "b"))((1, "x"))]),
        (FrozenClick, [FrozenClick("/a", 1)]),
        (TupleClick, [TupleClick("/a", 1)]),
        ("bigint", [1, None]),
        ("timestamp", [datetime(2024, 1, 1, tzinfo=UTC)]),
        ("timestamp_ntz", [datetime(2024, 1, 1)]),
        (Color, [Color.RED]),
    ):
        assert BatchWriter(StreamType.of(spec)).normalise(elements) is elements


def test_tuples_become_events():
    (event,) = BatchWriter(StreamType.of("a int, b string")).normalise([(1, "x")])
    assert type(event) is event_class(("a", "b"))
    (event,) = BatchWriter(StreamType.of("a struct<b:int>")).normalise([((1,),)])
    assert event.a.b == 1


def test_a_column_that_rounds_is_normalised_to_what_is_read():
    assert BatchWriter(StreamType.of("float")).normalise([0.1]) == through("float", [0.1])
    assert str(BatchWriter(StreamType.of("decimal(5,2)")).normalise([Decimal("1.5")])[0]) == "1.50"
