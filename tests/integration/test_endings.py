"""A job that finishes or is cancelled prints nothing that frightens."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_a_job_that_finishes_or_is_cancelled_prints_no_errors() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.ending_jobs"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert done.stdout.split() == ["FINISHED", "CANCELED"]
    for frightening in ("StackOverflowError", "Traceback", "ERROR", "Exception in thread"):
        assert frightening not in done.stderr, done.stderr[-5_000:]
    # Spark's own warnings about cancelled tasks are a few lines.
    assert len(done.stderr.splitlines()) < 40, done.stderr[-5_000:]
