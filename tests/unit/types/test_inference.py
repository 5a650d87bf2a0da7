"""The type of a collection, from its elements."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, NamedTuple

import msgspec
import pytest
from pyspark.sql import Row

from holdfast.errors import TypeDeclarationError
from holdfast.types.columns.batches import BatchReader, BatchWriter
from holdfast.types.stream_type import OBJECTS, StreamType, infer_type


class Point(NamedTuple):
    x: int
    y: float


@dataclass
class Visit:
    url: str
    at: datetime


@dataclass
class Unusual:
    """Has a field that no column can hold."""

    anything: object


class Click(msgspec.Struct):
    url: str


class Colour(Enum):
    RED = 1


Plain = namedtuple("Plain", "a b")


def carried(elements: list[Any]) -> list[Any]:
    """The elements as a stream of the inferred type gives them back."""
    stream = infer_type(elements)
    return BatchReader(stream).elements(BatchWriter(stream).batch(elements))


@pytest.mark.parametrize(
    ("elements", "spec"),
    [
        ([1, 2], "bigint"),
        ([1, None], "bigint"),
        ([1.5], "double"),
        ([True], "boolean"),
        (["a", None], "string"),
        ([b"a"], "binary"),
        ([date(2026, 11, 15)], "date"),
        ([time(4, 30)], "time"),
        ([datetime(2026, 11, 15)], "timestamp_ntz"),
        ([datetime(2026, 11, 15, tzinfo=UTC)], "timestamp"),
        ([Decimal("1.5")], "decimal(38,18)"),
        ([[1], []], "array<bigint>"),
        ([("a", 1), ("b", None)], "f0 string, f1 bigint"),
        ([(1,), (2.5,)], "f0 double"),
        ([{"k": "a", "n": 1}, {"n": 2, "k": None}], "k string, n bigint"),
        ([Plain("a", 1)], "a string, b bigint"),
        ([Row(k="a", n=1), Row(k="b", n=2)], "k string, n bigint"),
    ],
    ids=str,
)
def test_elements_of_one_class_make_columns(elements: list[Any], spec: str) -> None:
    assert infer_type(elements) == StreamType.of(spec)
    assert carried(elements) is not None


@pytest.mark.parametrize(
    "elements",
    [[Point(1, 2.0)], [Visit("/a", datetime(2026, 11, 15, tzinfo=UTC))], [Click("/a")]],
    ids=lambda elements: type(elements[0]).__name__,
)
def test_a_class_that_declares_its_fields_is_the_type(elements: list[Any]) -> None:
    assert infer_type(elements) == StreamType.of(type(elements[0]))
    assert carried(elements) == elements
    assert type(carried(elements)[0]) is type(elements[0])


@pytest.mark.parametrize(
    "elements",
    [
        [1, "a"],
        [1, 2.5],
        [1, True],
        [(1,), ("a",)],
        [(1,), (1, 2)],
        [{"a": 1}, {"b": 1}],
        [{"a": 1}, {"a": 1, "b": 2}],
        [{1: 2}],
        [None, None],
        [(None,)],
        [()],
        [{}],
        [{1, 2}],
        [frozenset([1])],
        [bytearray(b"a")],
        [timedelta(1)],
        [1j],
        [Colour.RED],
        [Unusual({1})],
        [2**70],
        [("a", 2**70)],
        ["\ud800"],
        [Decimal("1E+30"), Decimal("0.5")],
        [Decimal("0." + "1" * 25)],
    ],
    ids=repr,
)
def test_what_no_columns_can_give_back_is_pickled(elements: list[Any]) -> None:
    assert infer_type(elements) == OBJECTS
    assert carried(elements) == elements
    assert list(map(type, carried(elements))) == list(map(type, elements))


@pytest.mark.parametrize(
    "elements",
    [[("a", 1), None], [{"a": 1}, None], [None, Point(1, 2.0)], [Click("/a"), None]],
    ids=repr,
)
def test_no_row_is_none_so_rows_with_none_among_them_are_pickled(elements: list[Any]) -> None:
    assert infer_type(elements) == OBJECTS
    assert carried(elements) == elements


def test_nothing_has_no_type() -> None:
    with pytest.raises(TypeDeclarationError, match=r"empty collection.*type_info"):
        infer_type([])
