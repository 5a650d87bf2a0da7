"""What is killed on its way with a savepoint: calls without Spark, and a job that claims one.

Each runs as a program of its own, which dies by the fault that it is given.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast import RecoveryClaimMode
from holdfast._faults import VARIABLE
from holdfast.checkpoint.restore.pointer import find_snapshot
from holdfast.checkpoint.savepoint.ownership import ClaimedSnapshot
from holdfast.savepoints import dispose_savepoint, rewrite_max_parallelism
from tests.support.recovery_jobs import TIMEOUT, Event, RecoveryJob, event

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from holdfast import JobClient

ROOT = Path(__file__).parents[2]
RATE, PER_EPOCH = 200, 200
RETAIN = {"externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION"}


def run(place: Path, call: str, *arguments: Any, **fault: Any) -> int:
    """Call a function of this module in a process of its own; its exit code.

    Args:
        place: The process keeps its log and its temporary files here.
        call: Name of the function.
        arguments: What it is given; anything that JSON can hold.
        fault: What the process is killed by.
    """
    temporary = place / "tmp"
    temporary.mkdir(exist_ok=True)
    planned = {"action": "kill", "once": str(place / "struck"), **fault}
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
        "TMPDIR": str(temporary),
        VARIABLE: json.dumps([planned]),
    }
    program = f"from tests.support import kill_jobs; kill_jobs.main(kill_jobs.{call})"
    with (place / "log").open("ab") as log:
        return subprocess.run(
            [sys.executable, "-c", program, json.dumps(arguments)],
            cwd=ROOT,
            env=environment,
            stdout=log,
            stderr=log,
            timeout=TIMEOUT,
            check=False,
        ).returncode


def main(call: Any) -> None:
    """Do what the command line says."""
    call(*json.loads(sys.argv[1]))


def rewrite(source: str, target: str, max_parallelism: int) -> None:
    """See `rewrite_max_parallelism`."""
    rewrite_max_parallelism(source, target, max_parallelism)


def dispose(path: str) -> None:
    """See `dispose_savepoint`."""
    dispose_savepoint(path)


def release(path: str) -> None:
    """Delete a savepoint as a job does that has claimed it, and needs it no more."""
    ClaimedSnapshot(*find_snapshot(path)).release()


def claiming(spark: SparkSession, place: Path, savepoint: str) -> tuple[RecoveryJob, JobClient]:
    """Start the program of the golden savepoints from one of them, which it claims."""
    job = RecoveryJob(spark, place / "checkpoints", chain=True, settings=RETAIN)
    # The savepoint is old, and there is much to catch up with.
    job.env.set_max_events_per_epoch(PER_EPOCH)
    source = job.env.from_generator(event, rate=RATE, type_info=Event).uid("source")
    client = job.start(
        source, job_id="claims", from_savepoint=savepoint, claim_mode=RecoveryClaimMode.CLAIM
    )
    return job, client


def claim(place: str, savepoint: str) -> None:
    """Run a job that claims a savepoint, until something ends it."""
    from tests.chaos.job import session

    (Path(place) / "spark" / "tmp").mkdir(parents=True)
    spark = session(Path(place) / "spark", "local[2]")
    _, client = claiming(spark, Path(place), savepoint)
    client.result(TIMEOUT)
