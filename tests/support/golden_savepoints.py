"""Savepoints that were written once, and are to be restored for ever.

    scripts/with-spark.sh .venv/bin/python -m tests.support.golden_savepoints

writes those of the formats that are written now, into directories that are not there yet.
What is there never changes. The canonical ones without a format of tables have format 1.
"""

from __future__ import annotations

import shutil
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from holdfast import SavepointFormatType
from holdfast.checkpoint.files.metadata import FORMAT
from holdfast.state.tables.files import FORMAT as TABLES_FORMAT
from tests.support.recovery_jobs import BACKENDS, Event, RecoveryJob, event
from tests.support.recovery_tools import wait_for
from tests.support.time_jobs import start_probe

if TYPE_CHECKING:
    from holdfast import JobClient

GOLDEN = Path(__file__).parents[1] / "formats" / "savepoints"
TIMED = GOLDEN.with_name("timed_savepoints")
"""Of a job with event time and timers."""
RATE = 200


def start(job: RecoveryJob, from_savepoint: str | None = None) -> JobClient:
    """Start the program of the golden savepoints."""
    source = job.env.from_generator(event, rate=RATE, type_info=Event).uid("source")
    return job.start(source, from_savepoint=from_savepoint)


def _has_seen(job: RecoveryJob, elements: int) -> bool:
    return len(job.books.rows) >= elements


def main() -> None:
    """Write what is missing."""
    spark = SparkSession.builder.master("local[2]").getOrCreate()
    for form in SavepointFormatType:
        for backend in BACKENDS if form is SavepointFormatType.NATIVE else ["hashmap"]:
            is_native = form is SavepointFormatType.NATIVE
            kind = "native" if is_native else f"canonical-tables-{TABLES_FORMAT}"
            target = GOLDEN / f"format-{FORMAT}-{kind}-{backend}"
            if target.exists():
                continue
            with tempfile.TemporaryDirectory() as directory:
                job = RecoveryJob(spark, Path(directory) / "chk", backend=backend, chain=True)
                client = start(job)
                wait_for(partial(_has_seen, job, 100), "some elements")
                path = client.stop_with_savepoint(directory, format_type=form)
                shutil.copytree(path, target)
            print(f"written: {target}")
    target = TIMED / f"format-{FORMAT}-native-hashmap"
    if not target.exists():
        with tempfile.TemporaryDirectory() as directory:
            client, ledger = start_probe(spark, Path(directory) / "chk")
            wait_for(lambda: any(row[0] == "timer" for row in ledger.rows), "a timer to fire")
            native = SavepointFormatType.NATIVE
            shutil.copytree(client.stop_with_savepoint(directory, format_type=native), target)
        print(f"written: {target}")
    spark.stop()


if __name__ == "__main__":
    main()
