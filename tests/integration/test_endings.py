"""A job that finishes, is cancelled or interrupted prints nothing that frightens."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.ending_jobs import FINISHING, STOPPING

ROOT = Path(__file__).parents[2]


FRIGHTENING = (
    "StackOverflowError",
    "Traceback",
    "BrokenPipeError",
    "KeyboardInterrupt",
    "ERROR",
    "Exception in thread",
)


IDLE = 90
"""Spark ends workers that had nothing to do for 60 s; it looks every 10 s."""


@pytest.mark.versions
@pytest.mark.parametrize("pause", [0, pytest.param(IDLE, marks=pytest.mark.slow)])
def test_a_job_that_finishes_is_cancelled_or_interrupted_prints_no_errors(pause: int) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.ending_jobs", str(pause)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
        # The interrupt goes to its group of processes.
        start_new_session=True,
    )
    assert done.stdout.split() == ["FINISHED"] * FINISHING + ["CANCELED", "INTERRUPTED"]
    finishing, stopping = done.stderr.split(STOPPING)
    for frightening in FRIGHTENING:
        assert frightening not in finishing, finishing[-5_000:]
        assert frightening not in stopping, stopping[-5_000:]
    # Spark's own warnings about cancelled tasks are a few lines.
    assert len(done.stderr.splitlines()) < 40, done.stderr[-5_000:]
