"""Which types a state may have after which, and what is said of those it may not have."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, make_dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Literal, NamedTuple, NotRequired, TypedDict

import msgspec
import pyarrow as pa
import pytest

from holdfast.errors import StateMigrationError
from holdfast.serde.factory import codec_for
from holdfast.serde.reading import reader
from holdfast.serde.tagged import either, timestamped
from holdfast.types.compatibility import Resolution, resolve, schema_id


def resolution(old: Any, new: Any) -> Resolution:
    """What becomes of a state declared `old` when it is declared `new`."""
    return resolve(msgspec.json.decode(msgspec.json.encode(codec_for(old).schema)),
                   codec_for(new).schema)  # fmt: skip


def problems(old: Any, new: Any) -> list[str]:
    found = resolution(old, new)
    assert found.verdict == ("incompatible" if found.problems else "after migration")
    return found.problems


def record(name: str, *fields: Any, **options: Any) -> Any:
    """A dataclass of a module's top level."""
    return make_dataclass(name, fields, namespace={"__module__": __name__}, **options)


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class FewColors(enum.Enum):
    RED = "red"


class MoreColors(enum.Enum):
    GREEN = "green"
    BLUE = "blue"
    RED = "red"


@dataclass
class OldLine:
    price: str


@dataclass
class NewLine:
    price: int


OldOrder = record("Order", ("id", int), ("lines", list[OldLine]))
NewOrder = record("Order", ("id", int), ("lines", list[NewLine]))


class Point(NamedTuple):
    x: int
    y: int


class Flipped(NamedTuple):
    y: int
    x: int


class Maybe(TypedDict):
    x: int
    y: NotRequired[int]


class Surely(TypedDict):
    x: int
    y: int


class Lazy(msgspec.Struct, omit_defaults=True):
    x: int = 0


class A(msgspec.Struct, tag="a"):
    n: int


class B(msgspec.Struct, tag="b"):
    n: int


class C(msgspec.Struct, tag="c"):
    n: int


@dataclass
class Node:
    value: int
    children: list[Node] = field(default_factory=list)


@dataclass
class Branch:
    value: int
    children: list[Branch]


@dataclass
class Knot:
    children: list[Knot]
    value: int
    weight: float = 1.0


@dataclass
class Tangle:
    value: str
    children: list[Tangle] = field(default_factory=list)


@dataclass(frozen=True)
class One:
    n: int


@dataclass(frozen=True)
class Two:
    n: int
    m: int = 0


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (int, int),
        (record("Here", ("n", int)), record("There", ("n", int))),
        (record("One", ("n", int)), record("One", ("n", int, 5))),
        (record("One", ("n", int), ("m", str)), record("One", ("m", str), ("n", int))),
        (record("One", ("x", int), ("y", int)), Surely),
        (list[Node], list[Branch]),
        (int | str | None, None | str | int),
        (Literal["a", "b"], Literal["b", "a"]),
        (Any, Any),
        ("a int, b string", pa.schema([("a", pa.int32()), ("b", pa.large_string())])),
        (pa.timestamp("us", "UTC"), pa.timestamp("us", "Europe/Berlin")),
    ],
)
def test_types_with_the_same_bytes_are_read_as_they_are(old, new):
    assert resolution(old, new).verdict == "as is"
    assert resolution(new, old).verdict == "as is"
    assert schema_id([codec_for(old).schema]) == schema_id([codec_for(new).schema])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (int, int | None),
        (int, int | str),
        (int, float | int),
        (float, float | int),
        (int | None, str | int | None),
        (Literal["a"], Literal["a", "b"]),
        (Literal["a"], str),
        (Literal["a", 1], str | int),
        (Literal["a", 1, None], str | int | None),
        (FewColors, Color),
        (Color, MoreColors),
        (Color, Color | None),
        (list[int], tuple[int, ...]),
        (tuple[int, ...], list[int | None]),
        (tuple[int, str], tuple[int | None, str | None]),
        (tuple[int, str], list[int | str]),
        (set[int], frozenset[int | None]),
        (bytes, bytearray),
        (dict[str, int], dict[str, int | None]),
        (dict[Literal["a"], int], dict[str, int]),
        (list[int], list[Any]),
        (dict[str, list[int | None]], dict[str, Any]),
        (One, Two),
        (Two, One),
        (One | None, Two | None),
        (list[One], list[Two]),
        (dict[str, tuple[One, int]], dict[str, tuple[Two, int]]),
        (set[One], set[Two]),
        (dict[One, int], dict[Two, int]),
        (Point, Flipped),
        (Point, record("Point", ("x", int), ("y", int))),
        (record("Point", ("x", int), ("y", int)), Point),
        (Surely, Maybe),
        (Maybe, record("Point", ("x", int), ("y", int, 0))),
        (Lazy, record("Lazy", ("x", int, 0))),
        (A, B),
        (A | B, A | B | C),
        (A, A | B),
        (Node, Knot),
        (Knot, Node),
        ("tinyint", "smallint"),
        ("int", "bigint"),
        ("float", "double"),
        ("decimal(10,2)", "decimal(12,3)"),
        ("a int", "a bigint"),
        ("a int", "b string, a int"),
        ("a int, b string", "a int"),
        ("a int, b string", "b string, a int"),
        ("a int not null", "a int"),
        ("a void", "a int"),
        ("a array<struct<b: int>>", "a array<struct<c: string, b: bigint>>"),
        ("a map<string, int>", "a map<string, bigint>"),
    ],
)
def test_what_loses_nothing_is_read_after_a_migration(old, new):
    assert problems(old, new) == []


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (int, str, ["value: was int, is str"]),
        (
            int,
            float,
            [
                "value: was int, is float; a float does not hold every int beyond 2**53: declare "
                "int | float"
            ],
        ),
        (int | None, float | None, [
            "value: was int | None, is float | None; a float does not hold every int beyond "
            "2**53: declare int | float"]),
        (bool, int, ["value: was bool, is int"]),
        (int, bool, ["value: was int, is bool"]),
        (str, date, ["value: was str, is date"]),
        (datetime, date, ["value: was datetime, is date"]),
        (float, Decimal, ["value: was float, is decimal"]),
        (str, Literal["a"], ["value: was str, is Literal['a']"]),
        (
            int | None,
            int,
            ["value: was int | None, is int; None may be stored: declare it too"],
        ),
        (
            Literal["a", "b"],
            Literal["a"],
            ["value: was Literal['a', 'b'], is Literal['a']; 'b' may be stored: declare it too"],
        ),
        (
            MoreColors,
            Color,
            ["value: was MoreColors, is Color; 'green' may be stored: declare it too"],
        ),
        (Color, str, ["value: was Color, is str"]),
        (list[Any], list[int], ["value[]: was any, is int; anything may be stored there"]),
        (list[date], list[Any], ["value[]: was date, is any"]),
        (list[int], set[int], ["value: was list[int], is set[int]"]),
        (tuple[int, int], tuple[int, int, int], [
            "value: was tuple[int, int], is tuple[int, int, int]"]),
        (dict[str, int], dict[int, int], ["value[key]: was str, is int"]),
        (dict[str, int], record("One", ("n", int)), ["One: was dict[str, int], is One"]),
        (OldOrder, NewOrder, ["Order.lines[].price: was str, is int"]),
        (
            record("Order", ("a", int), ("b", str), ("gone", int)),
            record("Order", ("a", str), ("b", int | None), ("new", int)),
            [
                "Order.a: was int, is str",
                "Order.b: was str, is int | None",
                "Order.new: is new and has no default; give it one",
            ],
        ),
        (
            Maybe,
            Surely,
            ["Surely.y: may be missing in what is stored, and has no default now"],
        ),
        (
            Lazy,
            record("Lazy", ("x", int)),
            ["Lazy.x: may be missing in what is stored, and has no default now"],
        ),
        (
            record("Point", ("x", int)),
            Surely,
            ["Surely.y: is new and has no default; make it NotRequired"],
        ),
        (
            set[Two],
            set[One],
            [
                "value[].m: is gone: without it, elements of a set or keys of a dict could become "
                "equal"
            ],
        ),
        (
            dict[Two, int],
            dict[One, int],
            [
                "value[key].m: is gone: without it, elements of a set or keys of a dict could "
                "become equal"
            ],
        ),
        (
            dict[Point, int],
            dict[Flipped, int],
            ["value[key]: was Point, is Flipped: keys of a dict stay as they are"],
        ),
        (A | B, A, ["A: was A | B, is A"]),
        (A | B, A | C, ["value: was A | B, is A | C"]),
        (Node, Tangle, ["Tangle.value: was int, is str"]),
        ("bigint", "int", ["value: was int64, is int32"]),
        ("double", "float", ["value: was float64, is float32"]),
        (
            "int",
            "double",
            ["value: was int32, is float64; a float does not hold every integer: declare a wider "
             "integer"],
        ),
        ("decimal(10,2)", "decimal(10,3)", ["value: was decimal(10,2), is decimal(10,3)"]),
        ("decimal(10,2)", "decimal(12,1)", ["value: was decimal(10,2), is decimal(12,1)"]),
        ("timestamp", "timestamp_ntz", ["value: was timestamp, is timestamp_ntz"]),
        (
            "a int",
            "a int, b int not null",
            ["struct.b: is new and has no default; make it nullable"],
        ),
        (
            "a int, b string",
            "a int not null, b binary",
            [
                "struct.a: was int32 | None, is int32; None may be stored: declare it too",
                "struct.b: was string | None, is binary | None",
            ],
        ),
        (
            "map<struct<a: int>, int>",
            "map<struct<b: int, a: int>, int>",
            ["value[key]: was struct, is struct: keys of a dict stay as they are"],
        ),
        (int, "int", ["value: was stored by a Python type, is declared by a type of columns"]),
        (
            int,
            None,
            [
                "value: was stored by a Python type, is declared without a type; pickled state "
                "cannot evolve"
            ],
        ),
        (
            None,
            int,
            [
                "value: was stored without a type, is declared by a Python type; pickled state "
                "cannot evolve"
            ],
        ),
    ],
)  # fmt: skip
def test_what_would_lose_something_is_refused_field_by_field(old, new, expected):
    assert problems(old, new) == expected


def test_a_class_may_become_one_of_another_kind():
    classes = [
        Surely,
        record("Surely", ("x", int), ("y", int)),
        msgspec.defstruct("Surely", [("x", int), ("y", int)]),
        msgspec.defstruct("Surely", [("x", int), ("y", int)], array_like=True),
        Point,
    ]
    for old in classes:
        for new in classes:
            assert resolution(old, new).problems == []


def test_a_dict_with_keys_of_a_class_is_converted_only_if_msgspec_does_it():
    assert problems(tuple[dict[One, int], One], tuple[dict[One, int], Two]) == []
    (problem,) = problems(tuple[dict[One, int], Point], tuple[dict[One, int], Flipped])
    assert problem.startswith("value: has a dict whose keys are of a class")


def test_parts_of_an_element_are_compared_each():
    def of(old, new):
        return resolve(old.schema, new.schema)

    number, text, either_number = codec_for(int), codec_for(str), codec_for(int | None)
    assert of(timestamped(number), timestamped(number)).verdict == "as is"
    assert of(timestamped(number), timestamped(either_number)).verdict == "after migration"
    assert of(timestamped(number), timestamped(text)).problems == ["value: was int, is str"]
    assert of(either(number, text), either(either_number, text)).verdict == "after migration"
    assert of(either(number, text), either(text, number)).problems == [
        "first stream, value: was int, is str",
        "second stream, value: was str, is int",
    ]
    (problem,) = of(timestamped(number), number).problems
    assert "with the times of elements" in problem


@pytest.mark.parametrize("spec", [int, "a int, b array<string>"])
def test_a_description_of_another_format_is_refused(spec: Any) -> None:
    codec = codec_for(spec)
    later = codec.schema | {"format": 9}
    (problem,) = resolve(later, codec.schema).problems
    assert "has format 9, this Holdfast reads format" in problem
    with pytest.raises(StateMigrationError, match="has format 9"):
        schema_id([later])


def test_what_is_incompatible_has_no_reader():
    with pytest.raises(StateMigrationError, match="value: was int, is str"):
        reader(codec_for(int).schema, codec_for(str))


def test_an_id_is_that_of_the_bytes():
    assert schema_id([codec_for(Point).schema]) != schema_id([codec_for(Flipped).schema])
    assert schema_id([codec_for(Point).schema]) == "b372a746"
