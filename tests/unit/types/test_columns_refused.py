"""What a writer refuses, and how it says so."""

from __future__ import annotations

import enum
import pickle
import re
from collections import deque, namedtuple
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import NotRequired, TypedDict

import pandas as pd
import pytest

from holdfast.errors import OutputTypeError
from holdfast.types.columns.batches import BatchWriter
from holdfast.types.stream_type import StreamType


class Color(enum.Enum):
    RED = "r"


@dataclass
class Point:
    x: int
    y: float | None = None


class DictClick(TypedDict):
    url: str
    n: NotRequired[int]


def refused(spec, elements):
    with pytest.raises(OutputTypeError) as caught:
        BatchWriter(StreamType.of(spec)).batch(elements)
    with pytest.raises(OutputTypeError) as normalised:
        BatchWriter(StreamType.of(spec)).normalise(elements)
    assert normalised.value.row_index == caught.value.row_index
    return caught.value


@pytest.mark.parametrize(
    ("spec", "value", "declared", "advice"),
    [
        ("bigint", "5", "bigint", "yield an int"),
        ("bigint", 3.5, "bigint", r"a float is not rounded; write int\(value\)"),
        ("bigint", 3.0, "bigint", r"a float is not rounded"),
        ("bigint", True, "bigint", "a bool is no number here"),
        ("bigint", Decimal(3), "bigint", "yield an int"),
        ("bigint", 2**63, "bigint", "beyond the column's range"),
        ("bigint", Color.RED, "bigint", "yield an int"),
        ("int", 2**31, "int", "beyond the column's range"),
        ("tinyint", -129, "tinyint", "beyond the column's range"),
        ("double", True, "double", "a bool is no number here"),
        ("double", "1", "double", "yield a float"),
        ("double", 2**53 + 1, "double", "does not hold this integer exactly"),
        ("double", 10**400, "double", "does not hold this integer exactly"),
        ("float", 1e300, "float", "beyond the column's range"),
        ("string", b"a", "string", r"write value.decode\(\)"),
        ("string", 1, "string", "yield a str"),
        ("string", Color.RED, "string", "yield a str"),
        ("binary", "a", "binary", r"write value.encode\(\)"),
        ("binary", 1, "binary", "yield bytes"),
        ("boolean", 1, "boolean", "yield a bool"),
        ("date", datetime(2024, 1, 1), "date", r"write value.date\(\)"),
        ("date", 5, "date", "yield a datetime.date"),
        ("time", time(1, tzinfo=UTC), "time", "has no zone here"),
        ("time", 5, "time", "yield a datetime.time"),
        ("timestamp", datetime(2024, 1, 1), "timestamp", "a naive datetime names no instant"),
        ("timestamp", date(2024, 1, 1), "timestamp", "yield a datetime.datetime"),
        ("timestamp", 5, "timestamp", "yield a datetime.datetime"),
        ("timestamp", pd.Timestamp(1, tz="UTC"), "timestamp", "round its nanoseconds"),
        (
            "timestamp",
            datetime.max.replace(tzinfo=timezone(-timedelta(hours=1))),
            "timestamp",
            "outside the years",
        ),
        ("timestamp_ntz", datetime(2024, 1, 1, tzinfo=UTC), "timestamp_ntz", "it has a zone"),
        ("decimal(5,2)", Decimal("1.234"), r"decimal\(5,2\)", "data loss"),
        ("decimal(5,2)", Decimal("1000"), r"decimal\(5,2\)", "precision"),
        ("decimal(5,2)", Decimal("NaN"), r"decimal\(5,2\)", "not a valid"),
        ("decimal(5,2)", 1.5, r"decimal\(5,2\)", "yield a Decimal"),
        ("decimal(5,2)", True, r"decimal\(5,2\)", "yield a Decimal"),
        ("void", 1, "void", "holds nothing but None"),
        ("array<int>", "ab", "array<int>", "yield a frozenset or list or set or tuple"),
        ("array<int>", b"ab", "array<int>", "yield a"),
        ("array<int>", {1: 2}, "array<int>", "yield a"),
        ("array<int>", deque([1]), "array<int>", "yield a"),
        ("map<string,int>", [("a", 1)], "map<string, int>", "yield a dict"),
        (set[int], [1, 1], "array<bigint>", "yield a frozenset or set"),
        (Color, "r", "Color", "yield a member of Color"),
    ],
)
def test_a_value_that_would_be_changed_is_refused(spec, value, declared, advice):
    error = refused(spec, [value])
    assert error.row_index == 0
    assert re.search(f"the value is declared {declared}( NOT NULL)? and got", str(error))
    assert re.search(advice, str(error))
    assert f"({type(value).__name__})" in str(error)


def test_text_that_is_not_unicode_is_refused():
    with pytest.raises(OutputTypeError, match="not valid Unicode text") as caught:
        BatchWriter(StreamType.of("string")).batch(["a", "\ud800"])
    assert caught.value.row_index == 1


@pytest.mark.parametrize(
    "spec", ["a int not null", "a string not null", "a timestamp not null", "a array<int> not null"]
)
def test_none_in_a_not_null_column_is_refused(spec):
    good = {"int": 1, "string": "x", "timestamp": datetime.now(UTC), "array<int>": [1]}
    error = refused(spec, [(good[spec.split()[1]],), (None,)])
    assert error.row_index == 1
    assert "NOT NULL and got None" in str(error)
    assert "declare the field `T | None`" in str(error)


@pytest.mark.parametrize("elements", [[(1, "x"), (1,)], [(1, "x"), (1, "x", 2)], [(1, "x"), ()]])
def test_a_row_of_another_width_is_refused(elements):
    error = refused("a int, b string", elements)
    assert error.row_index == 1
    assert "and the columns are 2: a, b" in str(error)


def test_rows_whose_widths_cancel_out_are_refused():
    assert refused("a int, b int", [(1, 2), (3,), (4, 5, 6)]).row_index == 1


@pytest.mark.parametrize("element", [5, "x", None, [1], {1}, b"x", object()])
def test_what_is_no_row_is_refused(element):
    error = refused("a int", [(1,), element])
    assert error.row_index == 1
    assert "a row is a tuple, a dict, a dataclass" in str(error)


@pytest.mark.parametrize(
    "element", [{"a": 1}, {"a": 1, "c": 2}, {"a": 1, "b": 2, "c": 3}, Point(1), {}]
)
def test_a_row_with_other_fields_is_refused(element):
    error = refused("a int, b int", [{"a": 1, "b": 2}, element])
    assert error.row_index == 1
    assert "the columns are a, b" in str(error)


@pytest.mark.parametrize("element", [{}, {"n": 1}, {"url": "/a", "m": 1}])
def test_a_typed_dict_without_its_keys_is_refused(element):
    assert refused(DictClick, [{"url": "/a"}, element]).row_index == 1


def test_none_is_no_member_of_an_enumeration():
    assert refused(Color, [Color.RED, None]).row_index == 1


def test_a_key_left_out_is_not_a_key_that_is_none():
    error = refused(DictClick, [{"url": "/a"}, {"url": "/b", "n": None}])
    assert error.row_index == 1
    assert "the field n got None" in str(error)
    assert "leave the key out instead" in str(error)


@pytest.mark.parametrize(
    ("spec", "elements", "row", "path"),
    [
        ("a array<struct<x:int>>", [([(1,)],), (None,), ([(1,), ("x",)],)], 2, "a[1].x"),
        ("a map<string,array<int>>", [({},), ({"k": [1, "x"]},)], 1, "a['k'][1]"),
        ("a map<int,int>", [({1: 1},), ({"k": 1},)], 1, "a['k']"),
        ("a struct<b:struct<c:int>>", [(((1,),),), (None,), ((("x",),),)], 2, "a.b.c"),
        ("a struct<b:int>", [((1,),), (None,), ((1, 2),)], 2, "a"),
        ("array<array<int>>", [[], None, [[1], [], [2, "x"]]], 2, "the value [2][1]"),
    ],
)
def test_an_error_names_the_row_and_the_path_within_it(spec, elements, row, path):
    error = refused(spec, elements)
    assert error.row_index == row
    assert str(error).startswith(f"output {row} of the batch does not fit the declared type: ")
    assert f"{path} is declared" in str(error)


def test_a_long_value_is_shortened_in_the_error():
    error = refused("a int", [("x" * 10_000,)])
    assert len(str(error)) < 300


def test_the_index_of_the_bad_element_survives_pickling():
    error = pickle.loads(pickle.dumps(refused("a int", [(1,), ("x",)])))
    assert error.row_index == 1
    assert "the field a is declared int and got 'x' (str)" in str(error)


def test_an_error_may_come_without_an_index():
    assert OutputTypeError("no index").row_index is None


def test_a_row_that_shares_only_some_names_is_refused():
    half = namedtuple("half", "b c")
    error = refused("a int, b int", [(1, 2), half(1, 2)])
    assert error.row_index == 1
    assert "it lacks 'a' and it also has 'c'; the columns are a, b" in str(error)
