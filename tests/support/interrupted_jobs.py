"""A driver process of its own, on which something befalls a running job.

    python -m tests.support.interrupted_jobs DIRECTORY WHAT

The job is started with default retention. When some of its output is out, WHAT happens. How the
job has ended is written to `DIRECTORY/status`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.errors import JobExecutionError
from tests.support.output_jobs import ROOT, OutputJob
from tests.support.recovery_jobs import TIMEOUT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFAULTS: dict[str, Any] = {"externalized-checkpoint-retention": "NO_EXTERNALIZED_CHECKPOINTS"}
EVENTS = 2_000


def interrupted(place: Path, what: str) -> tuple[int, str]:
    """Let something befall a job; the exit code of its driver, and how the job has ended."""
    with (place / "log").open("ab") as log:
        code = subprocess.run(
            [sys.executable, "-m", "tests.support.interrupted_jobs", str(place), what],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])},
            stdout=log,
            stderr=log,
            timeout=TIMEOUT,
            check=False,
        ).returncode
    status = place / "status"
    return code, status.read_text() if status.exists() else ""


def main(place: Path, what: str) -> None:
    """Run the job until it ends, one way or another."""
    from tests.chaos.job import session

    (place / "spark" / "tmp").mkdir(parents=True)
    spark = session(place / "spark", "local[2]")
    job = OutputJob(place, DEFAULTS, count=EVENTS)
    env = job.environment(spark)
    job.add_sinks(job.counted(env))
    threading.Thread(target=befall, args=(spark, job, what), daemon=True).start()
    if what == "interrupted":
        # As a user's program has it: in the main thread, which gets the signal.
        env.execute("interrupted")
    client = env.execute_async("interrupted")
    try:
        client.result(TIMEOUT)
    except JobExecutionError as error:
        (place / "status").write_text(f"{client.status().name} {error}")


def befall(spark: SparkSession, job: OutputJob, what: str) -> None:
    """Wait until output is out; then it happens."""
    gateway: Any = spark.sparkContext._gateway
    while not job.files():
        time.sleep(0.01)
    match what:
        case "java-killed":
            os.kill(gateway.proc.pid, signal.SIGKILL)
        case "java-terminated":
            os.kill(gateway.proc.pid, signal.SIGTERM)
        case "session-stopped":
            spark.stop()
        case "interrupted":
            os.kill(os.getpid(), signal.SIGINT)
        case "terminated":
            os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
