"""The type of stored keys held against what a program tells of its own."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from functools import partial
from types import GenericAlias
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, NewType

import pyarrow as pa
import pytest

from holdfast import KeyedCoProcessFunction, KeyedProcessFunction, KeySelector, ValueStateDescriptor
from holdfast.checkpoint.savepoint.state_comparison import compare_keys
from holdfast.job.compiler import compile_job
from holdfast.runtime.partitioners import Keys
from holdfast.runtime.plan import KeyPlan
from holdfast.serde.key_shapes import KeyShape
from holdfast.types.columns.batches import BatchWriter
from tests.support.programs import Program

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.checkpoint.savepoint.state_comparison import KeyComparison

NOON = datetime(2024, 1, 1, 12, tzinfo=UTC)
Name = NewType("Name", str)


class Place(NamedTuple):
    city: str
    zip: int | None


class Unresolved(NamedTuple):
    what: Missing  # type: ignore[name-defined] # noqa: F821


class Color(Enum):
    RED = "red"


class Size(IntEnum):
    LARGE = 3


class Tone(StrEnum):
    LOW = "low"


@dataclass
class Thing:
    color: Color
    size: Size
    tone: Tone


class Counts(KeyedProcessFunction):
    def open(self, ctx: Any) -> None:
        ctx.get_state(ValueStateDescriptor("count", int))

    def process_element(self, value: Any, ctx: Any) -> None:
        return None


class CountsBoth(KeyedCoProcessFunction):
    def open(self, ctx: Any) -> None:
        ctx.get_state(ValueStateDescriptor("count", int))

    def process_element1(self, value: Any, ctx: Any) -> None:
        return None

    def process_element2(self, value: Any, ctx: Any) -> None:
        return None


def keyed(*key: Any, rows: Any = "k string, n bigint") -> Program:
    program = Program()
    program.source(rows).uid("in").key_by(*key).process(Counts(), "k string").uid("op")
    return program


def compared(stored: str, program: Program, *, has_state: bool = True) -> KeyComparison:
    operator = compile_job(program.graph, program.settings).operators["op"]
    return compare_keys(stored, operator, has_state=has_state)


COLUMNS: list[tuple[str, Any]] = [
    ("boolean", True),
    ("tinyint", 3),
    ("smallint", 3),
    ("int", 3),
    ("bigint", 3),
    ("float", 0.5),
    ("double", 0.5),
    ("decimal(10,2)", Decimal("1.50")),
    ("string", "text"),
    ("binary", b"bytes"),
    ("date", date(2024, 1, 1)),
    ("timestamp", NOON),
    ("timestamp_ntz", datetime(2024, 1, 1)),
]


@pytest.mark.parametrize(("column", "value"), COLUMNS)
def test_a_column_tells_the_type_that_its_keys_have_when_rows_come(column: str, value: Any) -> None:
    rows = f"a {column}, n bigint"
    for columns in (("a",), ("a", "n")):
        program = keyed(*columns, rows=rows)
        kind = program.graph.nodes[0].output
        batch = BatchWriter(kind).batch([(value, 1)])
        places = tuple(range(len(columns)))
        [key] = Keys(KeyPlan(places), kind, "an operator").of_rows(batch)
        real = KeyShape.of(key).name
        assert compared(real, program).verdict == "as is"
        for other, _ in KEYS:
            if other != real:
                assert compared(other, program).verdict == "incompatible", other


KEYS: list[tuple[str, Any]] = [
    ("bool", True),
    ("int", 3),
    ("float", 0.5),
    ("str", "text"),
    ("bytes", b"bytes"),
    ("date", date(2024, 1, 1)),
    ("datetime", NOON),
    ("datetime_ntz", datetime(2024, 1, 1)),
    ("Decimal", Decimal(1)),
    ("tuple[str, int]", ("a", 1)),
    ("tuple[str]", ("a",)),
]


def test_every_shape_that_is_compared_is_one_that_keys_have() -> None:
    assert all(KeyShape.of(key).name == name for name, key in KEYS)


def test_an_enum_in_a_column_is_a_key_by_the_class_that_it_extends() -> None:
    assert compared("int", keyed("size", rows=Thing)).verdict == "as is"
    assert compared("str", keyed("tone", rows=Thing)).verdict == "as is"
    assert compared("int", keyed("tone", rows=Thing)).verdict == "incompatible"
    # It is no key at all, which a start says.
    assert compared("str", keyed("color", rows=Thing)).verdict == "not compared"


def test_a_column_of_no_key_type_tells_nothing() -> None:
    found = compared("str", keyed("t", rows=pa.schema([("t", pa.time64("ns"))])))
    assert (found.verdict, found.note) == ("not compared", "its type is known only when rows come")


def returning(annotation: Any) -> Callable[[Any], Any]:
    def key(element: Any) -> Any:
        raise AssertionError("nothing runs")

    key.__annotations__["return"] = annotation
    return key


@pytest.mark.parametrize(
    ("annotation", "as_is", "open_to"),
    [
        (str, "str", ()),
        ("str", "str", ()),
        (str | None, "str", ()),
        (Name, "str", ()),
        (Annotated[int, "positive"], "int", ("bool",)),
        (Literal["a", "b"], "str", ()),
        (Tone, "str", ()),
        (bool, "bool", ()),
        (int, "int", ("bool",)),
        (float, "float", ("int", "bool")),
        (bytes, "bytes", ()),
        (Decimal, "Decimal", ()),
        (date, "date", ("datetime", "datetime_ntz")),
        (datetime, None, ("datetime", "datetime_ntz")),
        (tuple[str, int], "tuple[str, int]", ("tuple[str, bool]",)),
        (tuple[str], "tuple[str]", ()),
        (Place, "tuple[str, int]", ("tuple[str, bool]",)),
        (tuple[str, Any], None, ("tuple[str, int]",)),
    ],
)
def test_a_key_function_tells_it_by_its_annotation(
    annotation: Any, as_is: str | None, open_to: tuple[str, ...]
) -> None:
    program = keyed(returning(annotation))
    if as_is is not None:
        assert compared(as_is, program).verdict == "as is"
    for other, _ in KEYS:
        if other != as_is:
            verdict = "not compared" if other in open_to else "incompatible"
            assert compared(other, program).verdict == verdict, other


OPEN = [None, Any, object, "Missing", int | str, Literal["a", 1], tuple, tuple[str, ...], list[int]]


UNPACKED: Any = tuple[int, *tuple[str, ...]]
MANY = GenericAlias(tuple, (float,) * 30)
"""So many parts that all shapes which they allow for cannot be gone through."""


@pytest.mark.parametrize("annotation", [*OPEN, UNPACKED, MANY, Thing, Color, Unresolved])
def test_an_annotation_that_tells_no_type_of_key_leaves_it_open(annotation: Any) -> None:
    for stored, _ in KEYS:
        assert compared(stored, keyed(returning(annotation))).verdict == "not compared"


class ByText(KeySelector):
    def get_key(self, value: Any) -> str:
        return str(value)


def after(text: str, element: Any) -> str:
    return f"{text}{element}"


@pytest.mark.parametrize("key", [ByText(), str, partial(after, "x")])
def test_selectors_classes_and_partial_functions_are_key_functions_too(key: Any) -> None:
    assert compared("str", keyed(key)).verdict == "as is"
    assert compared("int", keyed(key)).verdict == "incompatible"


def test_a_lambda_tells_nothing() -> None:
    assert compared("str", keyed(lambda row: row.k)).verdict == "not compared"


def test_parts_that_were_always_null_are_not_compared_and_the_others_are() -> None:
    program = keyed("k", "n")
    found = compared("tuple[str, ?]", program)
    assert (found.verdict, found.note) == ("not compared", "a part of it was null in all rows")
    assert compared("tuple[int, ?]", program).verdict == "incompatible"
    assert compared("tuple[str, ?, int]", program).verdict == "incompatible"


def test_both_inputs_of_an_operator_are_compared() -> None:
    def both(first: Any, second: Any) -> Program:
        program = Program()
        one, two = (program.source("k string, n bigint").key_by(key) for key in (first, second))
        one.connect(two).process(CountsBoth(), "k string").uid("op")
        return program

    assert compared("str", both("k", "k")).verdict == "as is"
    assert compared("int", both("k", "k")).verdict == "incompatible"
    assert compared("str", both("k", returning(int))).verdict == "incompatible"
    assert compared("int", both("k", returning(int))).verdict == "incompatible"
    assert compared("str", both("k", lambda row: row.k)).verdict == "not compared"
    assert compared("str", both(lambda row: row.k, "n")).verdict == "incompatible"


def test_keys_that_no_state_is_declared_for_are_not_compared() -> None:
    found = compared("int", keyed("k"), has_state=False)
    assert (found.verdict, found.note) == ("not compared", "it does not declare keyed state")


def test_an_operator_that_is_not_keyed_any_more_has_no_keys_to_compare() -> None:
    program = Program()
    program.source("k string").rebalance().map(lambda row: row, "k string").uid("op")
    assert compared("str", program).verdict == "not compared"


def test_what_is_incompatible_says_what_to_do() -> None:
    found = compared("int", keyed("k"))
    assert found.note == "is str"
    assert found.problem is not None
    assert "the key is a str, but the stored state of this operator has int keys" in found.problem
    assert "let all keys be int as before, or give the operator another uid" in found.problem
