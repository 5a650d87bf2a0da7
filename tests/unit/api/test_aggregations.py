"""Rolling aggregates over one field of an element, whatever class it is of."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
import pytest

from holdfast.api.streams.aggregations import field_aggregate
from holdfast.errors import JobGraphError
from holdfast.types.event import event_class
from holdfast.types.stream_type import StreamType

SPEC = "k string, n bigint, t string"
Event = event_class(("k", "n", "t"))


class Named(NamedTuple):
    k: str
    n: int
    t: str


@dataclass(frozen=True)
class Record:
    k: str
    n: int
    t: str


class Struct(msgspec.Struct, frozen=True):
    k: str
    n: int
    t: str


def as_event(*values: Any) -> Any:
    return Event(values)


def as_dict(*values: Any) -> Any:
    return dict(zip(("k", "n", "t"), values, strict=True))


def as_tuple(*values: Any) -> Any:
    return values


MAKERS = [as_tuple, as_event, as_dict, Named, Record, Struct]


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("sum", [("a", 4, "x"), ("a", 8, "x"), ("a", 9, "x")]),
        ("min", [("a", 1, "x"), ("a", 1, "x"), ("a", 1, "x")]),
        ("max", [("a", 3, "x"), ("a", 4, "x"), ("a", 4, "x")]),
        ("min_by", [("a", 1, "y"), ("a", 1, "y"), ("a", 1, "y")]),
        ("max_by", [("a", 3, "x"), ("a", 4, "w"), ("a", 4, "w")]),
    ],
)
@pytest.mark.parametrize("field", [1, "n"])
def test_a_field_is_folded_and_the_class_kept(
    make: Any, how: str, expected: list[Any], field: int | str
) -> None:
    fold = field_aggregate(how, field, StreamType.of(SPEC))
    result = make("a", 3, "x")
    seen = []
    for values in [("a", 1, "y"), ("a", 4, "w"), ("a", 1, "v")]:
        result = fold(result, make(*values))
        seen.append(result)
    assert seen == [make(*values) for values in expected]
    assert {type(element) for element in seen} == {type(make("a", 1, "x"))}


@pytest.mark.parametrize("how", ["min_by", "max_by"])
def test_of_two_equal_extremes_the_earlier_is_kept(how: str) -> None:
    fold = field_aggregate(how, "n", StreamType.of(SPEC))
    first, second = ("a", 1, "first"), ("a", 1, "second")
    assert fold(first, second) is first


def test_folding_changes_neither_element() -> None:
    fold = field_aggregate("sum", "n", StreamType.of(SPEC))
    old, new = {"k": "a", "n": 1, "t": "x"}, {"k": "a", "n": 2, "t": "y"}
    assert fold(old, new) == {"k": "a", "n": 3, "t": "x"}
    assert old["n"] == 1
    assert new["n"] == 2


@pytest.mark.parametrize(
    ("how", "expected"), [("sum", 7), ("min", 3), ("max", 4), ("min_by", 3), ("max_by", 4)]
)
@pytest.mark.parametrize("field", [0, "value"])
def test_a_bare_value_is_folded_itself(how: str, expected: int, field: int | str) -> None:
    assert field_aggregate(how, field, StreamType.of(int))(3, 4) == expected


def test_the_function_can_be_shipped() -> None:
    fold = field_aggregate("sum", "n", StreamType.of(SPEC))
    assert pickle.loads(pickle.dumps(fold))(("a", 1, "x"), ("a", 2, "y")) == ("a", 3, "x")


@pytest.mark.parametrize(
    ("field", "said"),
    [
        (3, r"sum\(3\): the stream has 3 columns"),
        (-1, r"sum\(-1\): the stream has 3 columns"),
        ("m", r"sum\('m'\): the column does not exist; the stream has \['k', 'n', 't'\]"),
    ],
)
def test_a_field_that_is_not_there_is_refused(field: int | str, said: str) -> None:
    with pytest.raises(JobGraphError, match=said):
        field_aggregate("sum", field, StreamType.of(SPEC))


def test_a_stream_of_objects_has_no_fields_to_fold() -> None:
    with pytest.raises(JobGraphError, match="output_type"):
        field_aggregate("max", 0, StreamType.of(Any))
