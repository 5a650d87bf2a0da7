"""Spark's types and Arrow's, both ways."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql import types as spark

from holdfast.errors import KeyTypeError, TypeDeclarationError
from holdfast.spark.types import (
    arrow_schema,
    arrow_type,
    is_collated,
    refuse_collated_keys,
    spark_schema,
    spark_type,
    stream_type_of,
)

SPARK_SCHEMA = spark.StructType(
    [
        spark.StructField("a", spark.LongType(), nullable=False),
        spark.StructField("t", spark.TimestampType()),
        spark.StructField("n", spark.TimestampNTZType()),
        spark.StructField("d", spark.DecimalType(10, 2)),
        spark.StructField("l", spark.ArrayType(spark.ShortType(), containsNull=False)),
        spark.StructField("m", spark.MapType(spark.StringType(), spark.TimestampType(), False)),
        spark.StructField(
            "s", spark.StructType([spark.StructField("x", spark.BinaryType(), nullable=False)])
        ),
        spark.StructField("o", spark.TimeType()),
        spark.StructField("v", spark.NullType()),
    ]
)


def test_a_spark_schema_is_the_same_after_the_way_through_arrow():
    assert spark_schema(arrow_schema(SPARK_SCHEMA)) == SPARK_SCHEMA
    assert spark_type(arrow_type(spark.FloatType())) == spark.FloatType()


def test_timestamps_are_given_the_zone_of_the_session_at_every_level():
    schema = arrow_schema(SPARK_SCHEMA, zone="Asia/Tokyo")
    assert schema.field("t").type == pa.timestamp("us", tz="Asia/Tokyo")
    assert schema.field("m").type.item_type == pa.timestamp("us", tz="Asia/Tokyo")
    assert schema.field("n").type == pa.timestamp("us")
    nested = spark.ArrayType(spark.StructType().add("t", spark.TimestampType()))
    assert arrow_type(nested, zone="+09:00").value_type.field("t").type.tz == "+09:00"


def test_a_data_frame_carries_rows():
    stream = stream_type_of(SPARK_SCHEMA)
    assert (stream.kind, stream.element) == ("row", None)
    assert stream.schema == arrow_schema(SPARK_SCHEMA)


@pytest.mark.parametrize(
    ("data_type", "name"),
    [
        (spark.DayTimeIntervalType(), "interval"),
        (spark.YearMonthIntervalType(), "interval"),
        (spark.VariantType(), "variant"),
    ],
)
def test_a_spark_type_without_a_python_form_is_refused_by_name(data_type, name):
    schema = spark.StructType().add("c", spark.ArrayType(data_type))
    with pytest.raises(TypeDeclarationError, match=f"column 'c': the type '{name}' cannot be used"):
        stream_type_of(schema)


def test_an_arrow_type_that_spark_does_not_have_is_refused():
    with pytest.raises(TypeDeclarationError, match="uint8 cannot be used"):
        spark_type(pa.uint8())


def test_a_collated_string_may_be_read_but_not_be_a_key():
    lower = spark.StringType("UTF8_LCASE")
    schema = spark.StructType().add("k", lower).add("plain", spark.StringType())
    assert stream_type_of(schema).columns == ("k", "plain")
    refuse_collated_keys(schema, ("plain",))
    with pytest.raises(KeyTypeError, match=r"'k' cannot be a key: .* UTF8_LCASE"):
        refuse_collated_keys(schema, ("plain", "k"))
    for nested in (
        spark.ArrayType(lower),
        spark.MapType(spark.StringType(), lower),
        spark.StructType().add("x", lower),
    ):
        assert is_collated(nested)
    assert not is_collated(spark.ArrayType(spark.LongType()))
