"""Several executors: every subtask stays with its state."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyspark
import pytest

from tests.support.output_jobs import expected

PROGRAM = Path(__file__).parents[1] / "support" / "cluster_program.py"


def run_on_cluster(*args: str, timeout: int = 240) -> subprocess.CompletedProcess[str]:
    """Run a program with what `local-cluster` needs of the environment."""
    environment = {k: v for k, v in os.environ.items() if k != "SPARK_LOCAL_DIRS"}
    environment["SPARK_HOME"] = str(Path(pyspark.__file__).parent)
    environment["PYSPARK_PYTHON"] = sys.executable
    return subprocess.run(
        [sys.executable, *args],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        env=environment,
    )


@pytest.mark.versions
@pytest.mark.spark
def test_subtasks_run_where_their_state_is() -> None:
    run = run_on_cluster(str(PROGRAM))
    assert run.returncode == 0, run.stderr[-4000:]
    result: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    assert result["epochs"] == [2000] * 5
    homes: dict[tuple[str, int], set[str]] = {}
    for epoch, what, *rest in result["rows"]:
        if what == "max":
            # Every key was counted in every epoch: no state was lost on the way.
            assert rest == [20 * epoch, 2000]
        else:
            homes.setdefault((what, rest[0]), set()).add(rest[1])
    assert set(homes) == {(level, i) for level in ("first", "second") for i in range(4)}
    assert all(len(executors) == 1 for executors in homes.values()), homes
    assert len({executor for executors in homes.values() for executor in executors}) == 2


@pytest.mark.slow
@pytest.mark.spark
def test_a_job_that_is_rescaled_leaves_no_local_state_on_any_executor(tmp_path: Path) -> None:
    run = run_on_cluster("-m", "tests.support.cluster_rescale", str(tmp_path), timeout=600)
    assert run.returncode == 0, run.stderr[-4000:]
    result: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    rows = sorted(tuple(row) for row in result["rows"])
    assert rows == expected(len(rows))
    assert result["restarts"] == 0
    for executors in result["left"]:
        assert len(executors) == 2
        # Only that of the attempt that runs.
        assert len({attempt for found in executors.values() for attempt in found}) == 1


REFUSAL = """
import sys
from pyspark.sql import SparkSession
from holdfast import StreamExecutionEnvironment
builder = SparkSession.builder.master({master!r}).config("spark.ui.enabled", "false")
for setting in {settings!r}:
    builder = builder.config(*setting.split("=", 1))
try:
    StreamExecutionEnvironment.get_execution_environment(builder.getOrCreate())
except Exception as error:
    print(type(error).__name__, error)
"""


@pytest.mark.versions
@pytest.mark.spark
@pytest.mark.parametrize(
    ("master", "settings", "said"),
    [
        ("local[1]", ["spark.speculation=true"], ["spark.speculation is true", "=false"]),
        (
            "local[1]",
            ["spark.dynamicAllocation.enabled=true", "spark.dynamicAllocation.testing=true"],
            ["spark.dynamicAllocation.enabled is true"],
        ),
        (
            "local-cluster[1,1,1024]",
            [],
            [
                "spark.shuffle.reduceLocality.enabled  false",
                "spark.locality.wait  600s",
                "spark.stage.maxConsecutiveAttempts  1",
            ],
        ),
    ],
    ids=["speculation", "dynamic allocation", "cluster settings"],
)
def test_settings_that_would_lose_state_are_refused_by_name(
    master: str, settings: list[str], said: list[str]
) -> None:
    run = run_on_cluster("-c", REFUSAL.format(master=master, settings=settings))
    assert run.stdout.startswith("UnsupportedSparkError"), run.stderr[-4000:]
    for text in said:
        assert text in run.stdout
