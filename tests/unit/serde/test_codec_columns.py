"""State declared with Arrow and Spark types."""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from decimal import Decimal
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql import types as spark

from holdfast.errors import StateValueError, TypeDeclarationError
from holdfast.serde.factory import codec_for
from holdfast.types.event import event_class

BERLIN = ZoneInfo("Europe/Berlin")


def same(left, right):
    """Equal, of the same classes at every level, and the same to the eye."""
    return left == right and repr(left) == repr(right) and type(left) is type(right)


def refused(spec, value):
    codec = codec_for(spec)
    with pytest.raises(StateValueError) as caught:
        codec.encode(value)
    return str(caught.value)


DDL = "a int, b struct<x:string,y:array<struct<q:decimal(5,2)>>>, m map<string,timestamp>"


@pytest.mark.parametrize(
    "value",
    [
        (1, ("s", [(Decimal("1.5"),), None]), {"k": datetime(2024, 1, 1, tzinfo=BERLIN)}),
        {"a": 1, "b": {"x": None, "y": None}, "m": None},
        Row(b=Row(y=[], x="q"), m={}, a=None),
        event_class(("a", "b", "m"))((None, None, None)),
    ],
)
def test_a_struct_takes_any_row_and_gives_events(value):
    codec = codec_for(DDL)
    codec.check(value)
    found = codec.decode(codec.encode(value))
    assert type(found) is event_class(("a", "b", "m"))
    expected = value if isinstance(value, dict) else None
    if isinstance(value, Row):
        expected = value.asDict()
    for name in ("a", "m"):
        wanted = expected[name] if expected else value[("a", "b", "m").index(name)]
        assert same(found[name], wanted)
    if found.b is not None:
        assert type(found.b) is event_class(("x", "y"))


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ((2**31, None, None), "at .a, which is declared int; it is out of range"),
        (("1", None, None), "at .a, which is declared int"),
        ((1, (5, None), None), "5 (int) at .b.x, which is declared string"),
        ((1, ("s", [(Decimal("1.555"),)]), None), "at .b.y[0].q, which is declared decimal(5,2)"),
        ((1, ("s", [(Decimal("1000"),)]), None), "more than 3 digits before the point"),
        ((1, ("s", [(Decimal("NaN"),)]), None), "a decimal is a finite number"),
        ((1, ("s", [(1.5,)]), None), "at .b.y[0].q, which is declared decimal(5,2)"),
        ((1, ("s", "text"), None), "at .b.y, which is declared array<"),
        ((1, None, {"k": datetime(2024, 1, 1)}), "at .m['k'], which is declared timestamp; give"),
        ((1, None, {"k": 5}), "at .m['k'], which is declared timestamp"),
        ((1, None, {5: None}), "5 (int) at .m[5], which is declared string"),
        ((1, None, [1]), "at .m, which is declared map<string, timestamp>"),
        ((1, None), "a struct takes a tuple, Row or dict with the fields a, b, m"),
        ({"a": 1}, "a struct takes a tuple, Row or dict with the fields a, b, m"),
        (Row(a=1, b=None, other=2), "a struct takes a tuple, Row or dict"),
        (5, "cannot hold 5 (int)"),
    ],
)
def test_a_struct_refuses_what_its_columns_could_not_hold(value, place):
    assert place in refused(DDL, value)


def test_a_structs_check_refuses_what_is_no_row():
    with pytest.raises(StateValueError, match="cannot hold 5"):
        codec_for(DDL).check(5)
    with pytest.raises(StateValueError, match="cannot hold"):
        codec_for("array<int>").check({1: 2})
    with pytest.raises(StateValueError, match="cannot hold"):
        codec_for("map<int,int>").check([1])


def test_a_not_null_field_refuses_none():
    assert "None (NoneType) at .a, which is declared int" in refused("a int not null", (None,))


@pytest.mark.parametrize(
    ("spec", "value", "bad"),
    [
        (spark.LongType(), 2**63 - 1, 2**63),
        (spark.IntegerType(), 1, "1"),
        (spark.DoubleType(), 0.1, 1),
        (spark.StringType(), "x", b"x"),
        (spark.BinaryType(), b"x", "x"),
        (spark.BooleanType(), True, 1),
        (spark.DateType(), date(2024, 1, 1), datetime(2024, 1, 1)),
        (spark.TimestampType(), datetime(2024, 1, 1, tzinfo=BERLIN), datetime(2024, 1, 1)),
        (spark.TimestampNTZType(), datetime(2024, 1, 1), datetime(2024, 1, 1, tzinfo=UTC)),
        (spark.DecimalType(5, 2), Decimal("1.5"), Decimal("1.555")),
        (pa.int8(), -128, 128),
        (pa.time64("us"), time(1, 2), 5),
        (pa.large_string(), "x", None),
        (pa.list_(pa.int64()), [1, None], ["x"]),
        (pa.map_(pa.string(), pa.int64()), {"a": None}, {"a": "x"}),
        (spark.ArrayType(spark.StructType().add("a", "integer")), [(1,), None], [("x",)]),
        (pa.schema([("a", pa.map_(pa.int8(), pa.struct([("b", pa.int8())])))]), ({1: (2,)},), 5),
    ],
)
def test_arrow_and_spark_types_hold_their_values(spec, value, bad):
    codec = codec_for(spec)
    codec.check(value)
    assert codec.decode(codec.encode(value)) == value
    assert codec.schema["kind"] == "columns"
    refused(spec, bad)


def test_a_scalar_spark_type_is_as_cheap_as_its_python_type():
    codec = codec_for(spark.LongType())
    assert codec.immutable
    assert codec.canonical
    assert codec.exact_type is int


def test_a_spark_type_without_a_python_form_is_refused():
    with pytest.raises(TypeDeclarationError, match="'variant' cannot be used"):
        codec_for(spark.VariantType())
