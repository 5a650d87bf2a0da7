"""Makes the Spark session of a job, or checks the user's."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
from typing import TYPE_CHECKING, Final

from pyspark.sql import SparkSession

from holdfast.config.submission import current_submission
from holdfast.errors import UnsupportedSparkError
from holdfast.spark.versions import FILE_MANAGER, PROPAGATE_EMPTY, check_spark

if TYPE_CHECKING:
    from collections.abc import Iterator

logger = logging.getLogger("holdfast")

QUERY_SETTINGS: Final = {
    "spark.sql.streaming.checkpointFileManagerClass": FILE_MANAGER,
    "spark.sql.streaming.minBatchesToRetain": "3",
    "spark.sql.streaming.triggerAvailableNowWrapper.enabled": "true",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.classic.shuffleDependency.fileCleanup.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "50000",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(32 << 20),
}
"""Settings of the query's own copy of the session; `versions` says what each is for."""
_SOCKETS: Final = "spark.python.unix.domain.socket.enabled"
"""Without it the kernel delays the first bytes of every task by 40 ms."""
_REUSES_WORKERS: Final = "spark.python.worker.reuse"
LOCAL_SETTINGS: Final = {
    "spark.app.name": "holdfast",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.adaptive.enabled": "false",
    _SOCKETS: "true",
}
"""Settings of a session made here."""
CLUSTER_SETTINGS: Final = {
    "spark.shuffle.reduceLocality.enabled": ("false", "true"),
    "spark.locality.wait": ("600s", "3s"),
    "spark.stage.maxConsecutiveAttempts": ("1", "4"),
}
"""Settings for pinning subtasks to executors: the required value, and Spark's default."""


def local_session() -> SparkSession:
    """The running session, or a new one on this machine's cores.

    `holdfast run --master` gives another master.
    """
    running = SparkSession.getActiveSession()
    if running is not None:
        return running
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder
    if submitted_master() is None:
        builder = builder.master("local[*]")
    for key, value in LOCAL_SETTINGS.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def check_session(spark: object) -> SparkSession:
    """Refuse a session on which subtasks could not stay with their state."""
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        raise UnsupportedSparkError(
            "Holdfast cannot run on a Spark Connect session, since it lives in the driver's own "
            "process; use a classic one: SparkSession.builder.master(...).getOrCreate()"
        )
    if not isinstance(spark, SparkSession):
        raise UnsupportedSparkError(f"expected a SparkSession, not {type(spark).__name__}")
    check_spark(spark)
    _refuse(spark, "spark.speculation", "two attempts of one subtask would write the same state")
    _refuse(
        spark,
        "spark.dynamicAllocation.enabled",
        "executors that come and go would take the state they hold with them",
    )
    if runs_locally(spark):
        _use_this_python(spark)
    else:
        _check_cluster(spark)
    _warn_of_other_master(spark)
    _advise(spark)
    _find_data_sources(spark)
    return spark


def submitted_master() -> str | None:
    """The master that `holdfast run` was called with, or None."""
    submission = current_submission()
    return None if submission is None else submission.master


def _warn_of_other_master(spark: SparkSession) -> None:
    given, used = submitted_master(), spark.sparkContext.master
    if given not in (None, used):
        logger.warning(
            "the program runs on the master %s that it sets itself, so %s from `holdfast run` has "
            "no effect",
            used,
            given,
        )


def runs_locally(spark: SparkSession) -> bool:
    """Whether all tasks run in the driver's own JVM, so that nothing needs pinning."""
    master = spark.sparkContext.master
    return master is not None and (master == "local" or master.startswith("local["))


def is_alive(spark: SparkSession) -> bool:
    """Whether the session can still run anything."""
    try:
        return not spark.sparkContext._jsc.sc().isStopped()
    except Exception:
        # The JVM is gone, or the context was stopped from Python.
        return False


def _advise(spark: SparkSession) -> None:
    """Say once per application what would make every epoch faster."""
    context = spark.sparkContext
    if context.getConf().get(_SOCKETS, "false") != "true" and context.applicationId not in _advised:
        _advised.add(context.applicationId)
        logger.warning(
            "start the session with %s=true: each Python stage of an epoch then takes 40 ms less",
            _SOCKETS,
        )


def _find_data_sources(spark: SparkSession) -> None:
    """Let Spark find the Python data sources that are installed, in a worker that ends at once.

    Spark does it once, when a data source is first used. Its worker then waits for more to do.
    Spark hangs up on it a minute later, and the worker prints a BrokenPipeError.
    """
    context = spark.sparkContext
    if context.applicationId in _found:
        return
    _found.add(context.applicationId)
    with contextlib.suppress(Exception):
        # Nothing depends on it.
        conf = context._jsc.sc().conf()
        reuses = conf.get(_REUSES_WORKERS, "true")
        conf.set(_REUSES_WORKERS, "false")
        try:
            spark._jsparkSession.sessionState().dataSourceManager().dataSourceExists("holdfast")
        finally:
            conf.set(_REUSES_WORKERS, reuses)


def _refuse(spark: SparkSession, key: str, why: str) -> None:
    if spark.sparkContext.getConf().get(key, "false").lower() == "true":
        raise UnsupportedSparkError(f"{key} is true, but {why}; start the session with {key}=false")


def _check_cluster(spark: SparkSession) -> None:
    conf = spark.sparkContext.getConf()
    wrong = [
        f"    {key}  {wanted}"
        for key, (wanted, default) in CLUSTER_SETTINGS.items()
        if conf.get(key, default) != wanted
    ]
    if wrong:
        raise UnsupportedSparkError(
            f"on {spark.sparkContext.master}, subtasks are pinned to the executors that hold "
            "their state, which needs settings that a running session cannot change. Start it "
            "with these (in spark-defaults.conf, or as --conf key=value):\n" + "\n".join(wrong)
        )


def _use_this_python(spark: SparkSession) -> None:
    """Let local workers run this interpreter, unless it is set, with the same import path."""
    configured = spark.sparkContext.getConf().get("spark.pyspark.python", None)
    if "PYSPARK_PYTHON" not in os.environ and configured is None:
        spark.sparkContext.pythonExec = sys.executable
    # The user's script can import modules beside it, so workers must too.
    environment = spark.sparkContext.environment
    paths = [*environment.get("PYTHONPATH", "").split(os.pathsep), *sys.path]
    environment["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(filter(None, paths)))


def one_pass_settings(spark: SparkSession) -> dict[str, str]:
    """Settings of a job that runs in one pass, on the session itself."""
    excluded = spark.conf.get("spark.sql.optimizer.excludedRules", None)
    # Spark would run no tasks for an empty input, and none would report.
    rules = ",".join(filter(None, [excluded, PROPAGATE_EMPTY]))
    return {**QUERY_SETTINGS, "spark.sql.optimizer.excludedRules": rules}


@contextlib.contextmanager
def settings(spark: SparkSession, wanted: dict[str, str]) -> Iterator[None]:
    """Apply settings to the session within the block, and restore them afterwards.

    Blocks of several jobs may overlap: the last one restores what the first one found.
    """
    with _lock:
        key = id(spark)
        users, before = _in_force.get(key, (0, {}))
        before = {**{name: spark.conf.get(name, None) for name in wanted}, **before}
        _in_force[key] = (users + 1, before)
        for name, value in wanted.items():
            spark.conf.set(name, value)
    try:
        yield
    finally:
        with _lock:
            users, before = _in_force.pop(key)
            if users > 1:
                _in_force[key] = (users - 1, before)
            else:
                _put_back(spark, before)


def _put_back(spark: SparkSession, before: dict[str, str | None]) -> None:
    for name, old in before.items():
        if old is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, old)


_advised: set[str] = set()
"""Ids of applications that were told."""
_found: set[str] = set()
"""Ids of applications that have found their data sources."""


@contextlib.contextmanager
def polling_every(spark: SparkSession, interval_ms: int) -> Iterator[None]:
    """Let a query that starts within the block look for data that often, while there is none.

    Without an interval, Spark's setting stays. Queries of other jobs, which start at the same time,
    have intervals of their own.
    """
    with _starting:
        before = spark.conf.get(_POLLING_DELAY, None)
        if interval_ms:
            spark.conf.set(_POLLING_DELAY, f"{interval_ms}ms")
        try:
            yield
        finally:
            _put_back(spark, {_POLLING_DELAY: before})


_starting = threading.Lock()
_lock = threading.Lock()
_in_force: dict[int, tuple[int, dict[str, str | None]]] = {}
_POLLING_DELAY: Final = "spark.sql.streaming.pollingDelay"
