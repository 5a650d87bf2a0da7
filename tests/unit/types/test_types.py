from __future__ import annotations

import enum
import pickle
from collections import namedtuple
from collections.abc import Iterable
from dataclasses import InitVar, dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    NamedTuple,
    NewType,
    NotRequired,
    Optional,
    TypedDict,
)
from uuid import UUID

import msgspec
import pyarrow as pa
import pytest
from pyspark.sql import types as spark

from holdfast.errors import TypeDeclarationError
from holdfast.types.event import Event, event_class
from holdfast.types.stream_type import OBJECTS, StreamType

if TYPE_CHECKING:
    from decimal import Decimal as OnlyForTypeCheckers

UTC = pa.timestamp("us", tz="UTC")


class Color(enum.Enum):
    RED = "r"
    BLUE = "b"


class Level(enum.IntEnum):
    LOW = 1


class Mixed(enum.Enum):
    A = 1
    B = "b"


@dataclass
class Point:
    x: int
    y: float | None


@dataclass
class Click:
    url: str
    at: datetime
    points: list[Point]
    tags: set[str]
    color: Color | None = None


class ClickStruct(msgspec.Struct):
    url: str
    n: int


class ClickTuple(NamedTuple):
    url: str
    n: int = 0


class ClickDict(TypedDict):
    url: str
    n: NotRequired[int]


@dataclass
class Node:
    next: Node | None


@dataclass
class Transient:
    a: int
    b: InitVar[int]


@dataclass
class Empty:
    pass


@dataclass
class Unresolved:
    a: OnlyForTypeCheckers


class Ambiguous(TypedDict):
    n: NotRequired[int | None]


UserId = NewType("UserId", int)


def column(spec):
    (field,) = StreamType.of(spec).schema
    return field


@pytest.mark.parametrize(
    ("annotation", "arrow"),
    [
        (int, pa.int64()),
        (float, pa.float64()),
        (str, pa.string()),
        (bytes, pa.binary()),
        (bool, pa.bool_()),
        (date, pa.date32()),
        (datetime, UTC),
        (time, pa.time64("ns")),
        (Decimal, pa.decimal128(38, 18)),
        (UserId, pa.int64()),
        (Annotated[int, "seconds"], pa.int64()),
        (Color, pa.string()),
        (Level, pa.int64()),
        (Literal["a", "b"], pa.string()),
        (Literal[1, 2], pa.int64()),
    ],
)
def test_a_python_type_is_a_not_null_value(annotation, arrow):
    stream = StreamType.of(annotation)
    assert (stream.kind, stream.columns) == ("value", ("value",))
    assert stream.schema == pa.schema([pa.field("value", arrow, nullable=False)])


def test_none_in_a_type_makes_its_column_nullable():
    assert column(int | None) == pa.field("value", pa.int64())
    assert column(Optional[int]) == pa.field("value", pa.int64())  # noqa: UP045
    assert column(list[int | None]).type.value_field.nullable
    assert not column(list[int]).type.value_field.nullable


@pytest.mark.parametrize(
    "annotation", [list[int], tuple[int, ...], set[int], frozenset[int], Iterable[int]]
)
def test_sequences_and_sets_are_arrays(annotation):
    assert pa.types.is_list(column(annotation).type)


def test_a_dict_is_a_map():
    assert column(dict[str, int | None]).type == pa.map_(pa.string(), pa.int64())
    assert not column(dict[str, int]).type.item_field.nullable


@pytest.mark.parametrize("cls", [ClickStruct, ClickTuple])
def test_a_class_with_named_fields_is_a_row(cls):
    stream = StreamType.of(cls)
    assert (stream.kind, stream.element, stream.columns) == ("row", cls, ("url", "n"))
    assert not stream.schema.field("n").nullable


def test_a_key_that_may_be_left_out_is_a_nullable_column():
    stream = StreamType.of(ClickDict)
    assert [field.nullable for field in stream.schema] == [False, True]


def test_classes_within_classes_are_structs():
    stream = StreamType.of(Click)
    assert stream.schema.field("points").type.value_type == pa.struct(
        [pa.field("x", pa.int64(), nullable=False), pa.field("y", pa.float64())]
    )
    assert stream.schema.field("color") == pa.field("color", pa.string())


def test_a_fixed_tuple_is_a_row_with_numbered_columns():
    stream = StreamType.of(tuple[str, int])
    assert (stream.kind, stream.columns, stream.element) == ("row", ("f0", "f1"), None)


def test_any_and_object_are_pickled_objects():
    assert StreamType.of(Any) is StreamType.of(object) is OBJECTS
    assert OBJECTS.schema == pa.schema([pa.field("value", pa.binary(), nullable=False)])


def test_the_element_is_kept_only_where_columns_do_not_tell_it():
    assert StreamType.of(list[int]).element is None
    assert StreamType.of(dict[str, list[int]]).element is None
    assert StreamType.of(set[int]).element == set[int]
    assert StreamType.of(dict[str, Point | None]).element == dict[str, Point | None]
    assert StreamType.of(tuple[str, Color]).element == tuple[str, Color]


def test_arrow_schemas_and_types_are_taken_as_they_are():
    schema = pa.schema([("a", pa.int64()), ("b", pa.large_string())])
    assert StreamType.of(schema) == StreamType("row", schema)
    assert StreamType.of(pa.struct(list(schema))) == StreamType("row", schema)
    assert StreamType.of(pa.int8()).kind == "value"


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (pa.dictionary(pa.int32(), pa.string()), pa.string()),
        (pa.string_view(), pa.string()),
        (pa.binary_view(), pa.binary()),
        (pa.timestamp("ms", tz="Europe/Berlin"), pa.timestamp("us", tz="Europe/Berlin")),
        (pa.timestamp("s"), pa.timestamp("us")),
        (pa.date64(), pa.date32()),
        (pa.time32("s"), pa.time64("ns")),
        (pa.large_list(pa.string_view()), pa.large_list(pa.string())),
        (pa.map_(pa.string_view(), pa.date64()), pa.map_(pa.string(), pa.date32())),
    ],
)
def test_variants_of_an_arrow_type_are_given_their_common_form(given, kept):
    assert column(given).type == kept


@pytest.mark.parametrize(
    "arrow", [pa.uint8(), pa.float16(), pa.timestamp("ns"), pa.duration("us"), pa.decimal256(50, 2)]
)
def test_an_arrow_type_that_spark_or_python_cannot_hold_is_refused(arrow):
    with pytest.raises(TypeDeclarationError, match=r"column 'a': the Arrow type .* cannot be used"):
        StreamType.of(pa.schema([("a", arrow)]))


def test_a_map_whose_keys_cannot_be_those_of_a_dict_is_refused():
    with pytest.raises(TypeDeclarationError, match="use an array of structs"):
        StreamType.of("map<array<int>,int>")
    with pytest.raises(TypeDeclarationError, match="use an array of structs"):
        StreamType.of("map<struct<a:map<int,int>>,int>")
    assert StreamType.of("map<struct<a:int>,int>").kind == "value"


def test_two_columns_of_one_name_are_refused():
    with pytest.raises(TypeDeclarationError, match="two columns are named 'a'; rename one"):
        StreamType.of("a int, b int, a string")


def test_rows_and_structs_without_columns_are_refused():
    with pytest.raises(TypeDeclarationError, match="at least one column"):
        StreamType.of(pa.schema([]))
    with pytest.raises(TypeDeclarationError, match="a struct without fields"):
        StreamType.of("a struct<>")
    with pytest.raises(TypeDeclarationError, match="Empty has no fields"):
        StreamType.of(Empty)


def test_ddl_columns_are_a_row_and_a_ddl_type_a_value():
    assert StreamType.of("url string, count bigint").columns == ("url", "count")
    assert StreamType.of("struct<url:string>").kind == "row"
    assert StreamType.of("bigint").kind == "value"


def test_spark_types_are_recognised_without_importing_them():
    struct = spark.StructType([spark.StructField("a", spark.LongType(), nullable=False)])
    assert StreamType.of(struct) == StreamType.of("a bigint not null")
    assert StreamType.of(spark.LongType()) == StreamType.of("bigint")
    assert StreamType.of(spark.LongType) == StreamType.of("bigint")
    assert StreamType.of(spark.StringType("UTF8_LCASE")) == StreamType.of("string")


def test_a_stream_type_is_its_own_declaration_and_pickles():
    for spec in (int, Click, "a int", Any, set[int], tuple[str, Color]):
        stream = StreamType.of(spec)
        assert StreamType.of(stream) is stream
        assert pickle.loads(pickle.dumps(stream)) == stream
        assert hash(stream) == hash(pickle.loads(pickle.dumps(stream)))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (complex, r"complex has no columnar form; declare tuple\[float, float\]"),
        (timedelta, "declare int and store a number of microseconds"),
        (UUID, r"declare str and store str\(value\)"),
        (list, r"say what it holds, as in list\[int\]"),
        (dict, r"say what it holds, as in dict\[str, int\]"),
        (list[Any], "only a whole element may be Any"),
        (int | str, r"int \| str has no columnar form; a column has one type"),
        (dict[str | None, int], "the keys of a map cannot be None"),
        (Mixed, "its values must be all str or all int"),
        (Literal[True], "its values must be all str or all int"),
        (Point | None, "rows that are None; leave them out"),
        (Node, "Node.next: Node contains itself"),
        (Transient, "Transient.b: an InitVar is not kept"),
        (Unresolved, "names 'OnlyForTypeCheckers', which cannot be found"),
        (Ambiguous, "Ambiguous.n: a key that may be left out cannot also be None"),
        (namedtuple("Bare", "a b"), "Bare has no columnar form; declare a builtin type"),
        (Event, "Event has no columnar form"),
        (event_class(("a",)), "Event has no columnar form"),
        (42, "42 has no columnar form"),
    ],
)
def test_a_type_without_columns_is_refused_with_advice(spec, message):
    with pytest.raises(TypeDeclarationError, match=message):
        StreamType.of(spec)


def test_a_refusal_names_the_field_it_is_about():
    with pytest.raises(TypeDeclarationError, match=r"Outer\.inner: .*Inner\.z: complex has no"):
        StreamType.of(Outer)


@dataclass
class Inner:
    z: complex


@dataclass
class Outer:
    inner: list[Inner]
