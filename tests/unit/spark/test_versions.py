"""Which versions of Spark are accepted, and the list of what Holdfast uses of Spark."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from holdfast.errors import UnsupportedSparkError
from holdfast.spark import versions
from holdfast.spark.versions import NEWEST, OLDEST, check_versions

ROOT = Path(__file__).parents[3]
MODULES = sorted((ROOT / "src" / "holdfast").rglob("*.py"))
LISTED = Path(versions.__file__).resolve()
DOCUMENTED = {"pyspark", "pyspark.sql", "pyspark.sql.functions", "pyspark.sql.types"}
"""Modules whose public names Spark keeps."""
TYPES = {"Accumulator", "AccumulatorParam", "Broadcast", "DataStreamWriter", "StreamingQuery"}
"""Public classes of other modules."""
SOURCES = {"DataSource", "DataSourceReader", "DataSourceStreamReader", "InputPartition"}


def written(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


@pytest.mark.parametrize("version", ["4.2.0", "4.2.1", "4.3.0", "4.3.0-vendor-1", "4.2.1.dev0"])
def test_versions_that_are_tested_are_accepted_without_a_word(version: str) -> None:
    assert check_versions(version, version) is None


@pytest.mark.parametrize("version", ["4.1.4", "3.5.9", "4.0.0"])
def test_an_older_version_is_refused_with_those_that_work(version: str) -> None:
    with pytest.raises(UnsupportedSparkError, match=rf"{version} is too old; .* 4\.2 to 4\.3"):
        check_versions(version, version)


@pytest.mark.parametrize("version", ["", "trunk", "4"])
def test_an_unknown_version_is_refused(version: str) -> None:
    with pytest.raises(UnsupportedSparkError, match=rf"gives its version as '{version}'"):
        check_versions(version, version)


@pytest.mark.parametrize("version", ["4.4.0", "4.10.1", "5.0.0-preview1"])
def test_a_newer_version_is_warned_of(version: str) -> None:
    warning = check_versions(version, version)
    assert warning is not None
    assert f"Spark {version} is newer than any" in warning


def test_two_sides_of_different_versions_are_refused() -> None:
    with pytest.raises(UnsupportedSparkError, match=r"Spark 4\.2\.1.*PySpark 4\.3\.0.*SPARK_HOME"):
        check_versions("4.2.1", "4.3.0")
    assert check_versions("4.3.1", "4.3.0") is None


def test_a_pyspark_that_lacks_a_module_is_refused_at_the_import() -> None:
    # An entry of None in sys.modules stands for a module that does not exist.
    program = (
        "import sys; sys.modules['pyspark.sql.streaming.datasource'] = None; "
        "from holdfast import StreamExecutionEnvironment"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT / "src",
    )
    last = ended.stderr.strip().splitlines()[-1]
    assert last.startswith("holdfast.errors.UnsupportedSparkError: PySpark ")
    assert last.endswith(f"Holdfast works on PySpark {written(OLDEST)} to {written(NEWEST)}")


def test_the_package_can_be_installed_with_the_versions_that_are_accepted() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    following = (NEWEST[0], NEWEST[1] + 1)
    assert f"pyspark>={written(OLDEST)},<{written(following)}" in project["dependencies"]


def settings_in(path: Path) -> set[str]:
    """Keys of Spark's settings that a module names."""
    return {
        node.value
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and re.fullmatch(r"spark(\.[A-Za-z]+)+", node.value)
    }


def test_every_setting_of_spark_that_is_used_is_listed_with_its_use() -> None:
    used = set().union(*(settings_in(path) for path in MODULES if path != LISTED))
    # A property of a thread.
    used.discard("spark.job.description")
    listed = versions.SETTINGS.keys() | versions.UNCHECKED_SETTINGS.keys()
    assert used
    assert used - listed == set()


def undocumented(path: Path) -> set[str]:
    """Names that a module imports from PySpark, and that Spark does not promise to keep."""
    return {
        f"{node.module}.{name.name}"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pyspark")
        for name in node.names
        if node.module not in DOCUMENTED and name.name not in TYPES | SOURCES
    }


def test_names_that_spark_may_change_are_imported_in_one_module() -> None:
    assert undocumented(LISTED)
    assert {
        str(path): undocumented(path) for path in MODULES if path != LISTED and undocumented(path)
    } == {}
