"""Finds the directories for a job's local state, and deletes it at the end."""

from __future__ import annotations

import os
import tempfile
import uuid
from typing import TYPE_CHECKING

from holdfast.runtime.worker import close_functions
from holdfast.spark.session import runs_locally
from holdfast.state.store.directories import claim_job, delete_job, sweep_dead_jobs
from holdfast.state.store.process import ProcessIdentity

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from holdfast.job.model import JobIdentity


def local_state_root(spark: SparkSession, configured: str | None) -> str | None:
    """Directory for local state; None lets every executor use its local directory.

    If all tasks run on this machine, the state of dead jobs is deleted from it.
    """
    if not runs_locally(spark):
        return configured
    root = configured or _spark_local_dir(spark)
    sweep_dead_jobs(root)
    return root


def scratch_directory() -> Path:
    """A new directory for the driver; the directories of killed drivers are deleted."""
    job_id = f"query-{uuid.uuid4().hex}"
    return claim_job(tempfile.gettempdir(), job_id, ProcessIdentity.current())


def delete_local_state(spark: SparkSession, job: JobIdentity, tasks: int) -> None:
    """Close functions, and delete all local state, of a run that has ended; no other runs'."""
    if not job.run:
        # It ended before it had any state.
        return
    root, job_id, run = job.local_dir, job.job_id, job.run
    if runs_locally(spark):
        close_functions(root, job_id, run)
        delete_job(root, job_id, run)
        return

    def delete(_: Iterable[int]) -> None:
        close_functions(root, job_id, run)
        delete_job(root, job_id, run)

    # More tasks than slots that held state, so that every executor gets one.
    spark.sparkContext.parallelize(range(4 * tasks), 4 * tasks).foreachPartition(delete)


def _spark_local_dir(spark: SparkSession) -> str:
    """Where Spark keeps its own local files; of several directories, the first."""
    configured = spark.sparkContext.getConf().get("spark.local.dir", "")
    listed = os.environ.get("SPARK_LOCAL_DIRS") or configured or tempfile.gettempdir()
    return listed.split(",")[0]
