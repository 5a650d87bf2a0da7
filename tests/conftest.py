"""What all tests share: one Spark session, the backends, and how Hypothesis searches."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

from holdfast import EmbeddedRocksDBStateBackend, HashMapStateBackend
from tests.support.in_memory import IN_MEMORY

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

# "ci" gives the same verdict on the same code, always; "dev" looks for new counterexamples.
settings.register_profile("ci", derandomize=True, deadline=None, print_blob=True)
settings.register_profile("dev", deadline=None, max_examples=200)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

MEMORY_NEEDED = 2 << 30
"""Bytes that are free in memory where temporary files go there."""
SPARK_SETTINGS = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def pytest_configure(config: pytest.Config) -> None:
    """Keep temporary files in memory if they go with their test and there is room for them."""
    go = config.getini("tmp_path_retention_policy") == "failed"
    if go and IN_MEMORY and shutil.disk_usage(IN_MEMORY).free > MEMORY_NEEDED:
        os.environ["TMPDIR"] = tempfile.tempdir = IN_MEMORY


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test that uses the `spark` fixture, so that `-m "not spark"` is safe."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)


@pytest.fixture(
    params=[HashMapStateBackend(), EmbeddedRocksDBStateBackend()], ids=["hashmap", "rocksdb"]
)
def backend(request: pytest.FixtureRequest) -> Any:
    """Each of the state backends, in turn."""
    return request.param


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One session on two local cores, which leaves nothing behind outside pytest's directory."""
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master("local[2]").appName("holdfast-tests")
    for key, value in SPARK_SETTINGS.items():
        builder = builder.config(key, value)
    directory = tmp_path_factory.mktemp("spark")
    builder = builder.config("spark.sql.warehouse.dir", str(directory / "warehouse"))
    builder = builder.config("spark.local.dir", str(directory / "local"))
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()
