"""The Spark that runs the tests has what Holdfast uses, and what one lacks is named."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from holdfast.spark.versions import Internal, check_spark, check_versions, missing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.versions
def test_this_spark_lacks_nothing(spark: SparkSession) -> None:
    assert missing(spark) == []
    check_spark(spark)


@pytest.mark.versions
def test_this_spark_is_one_that_is_tested(spark: SparkSession) -> None:
    assert check_versions(spark.version, spark.version) is None


def test_what_is_missing_is_named_with_its_use(spark: SparkSession) -> None:
    internals = (
        Internal("org.apache.spark.Gone", "counts sheep"),
        Internal("java.lang.String", "makes words", ("length", "gone")),
        Internal("java.lang.String", "takes flags", ("length",), takes_flag=True),
    )
    assert missing(spark, internals, {"spark.sql.gone": "hides wolves"}) == [
        "org.apache.spark.Gone: counts sheep",
        "java.lang.String.gone: makes words",
        "java.lang.String.length: takes flags",
        "spark.sql.gone: hides wolves",
    ]
