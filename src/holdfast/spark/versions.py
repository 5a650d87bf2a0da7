"""Versions of Spark: those that Holdfast runs on, and what it uses that Spark may change.

Everything that Spark does not promise to keep is listed here with its use. Other modules take
private names of PySpark from here. The Java side is checked when a job gets its session: an
unsuitable Spark is refused before anything runs.

PySpark 4.2 and 4.3 have all of it, in the same form. What differs between versions belongs here.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyspark
from py4j.protocol import Py4JJavaError

from holdfast.errors import UnsupportedSparkError

try:
    from pyspark.accumulators import _accumulatorRegistry

    # Programs are pickled as Spark pickles functions.
    from pyspark.cloudpickle import cloudpickle as cloudpickle

    # A worker that is in this function waits for its next task.
    from pyspark.serializers import read_int as read_int

    # Schemas go from Arrow to Spark.
    from pyspark.sql.pandas.types import from_arrow_schema as from_arrow_schema
    from pyspark.sql.pandas.types import from_arrow_type as from_arrow_type

    # A source decides itself where an epoch ends. New in PySpark 4.2.
    from pyspark.sql.streaming.datasource import ReadLimit as ReadLimit
    from pyspark.sql.streaming.datasource import (
        SupportsTriggerAvailableNow as SupportsTriggerAvailableNow,
    )
except ImportError as error:
    raise UnsupportedSparkError(
        f"PySpark {pyspark.__version__} lacks what Holdfast uses ({error}); Holdfast works on "
        "PySpark 4.2 to 4.3"
    ) from error

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyspark.sql import SparkSession

logger = logging.getLogger("holdfast")

accumulators_by_id: Final = _accumulatorRegistry
"""Accumulators of this process, such as the one with the reports of a job's tasks."""

OLDEST: Final = (4, 2)
"""An older Spark asks a Python source for the end of an epoch and does not say where it begins."""
NEWEST: Final = (4, 3)
"""Newest version that the tests run on."""

FILE_MANAGER: Final = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)
PROPAGATE_EMPTY: Final = "org.apache.spark.sql.catalyst.optimizer.PropagateEmptyRelation"
_QUERY: Final = "org.apache.spark.sql.execution.QueryExecution"
_PLAN: Final = "org.apache.spark.sql.catalyst.plans.logical.LogicalPlan"


@dataclass(frozen=True, slots=True)
class Internal:
    """A class of Spark's Java side, and methods of it."""

    name: str
    """Full name of the class."""
    use: str
    """What Holdfast uses it for."""
    methods: tuple[str, ...] = ()
    takes_flag: bool = False
    """Whether the methods take a boolean; otherwise they take no arguments."""


INTERNALS: Final = (
    Internal(FILE_MANAGER, "writes the directory of a query without atomic renames"),
    Internal(PROPAGATE_EMPTY, "left out, so that tasks run, and report, for an empty input"),
    Internal(_QUERY, "plans and runs an epoch", ("analyzed", "executedPlan", "toRdd")),
    Internal(
        "org.apache.spark.rdd.RDD",
        "deletes the shuffle files of an epoch",
        ("cleanShuffleDependencies",),
        takes_flag=True,
    ),
    Internal(
        _PLAN,
        "tells the sources of a DataFrame, and the tables of a lookup join",
        ("children", "collectLeaves", "isStreaming", "nodeName", "refresh", "subqueriesAll"),
    ),
    Internal("org.apache.spark.SparkStatusTracker", "tells lost executors", ("getExecutorInfos",)),
)
"""Classes and methods of the Java side that no job can do without; all of them are checked.

Not checked are nodes of a plan, which are known by their short names: those that keep state in
Spark and `StreamingRelation` (`sources/source.py`), `LogicalRelation` and `HadoopFsRelation`
(`lookups.py`). Jobs can do without `SessionState.dataSourceManager` (`session.py`).
"""

SETTINGS: Final = {
    "spark.sql.adaptive.enabled": "off: it would merge the partitions that stand for subtasks",
    "spark.sql.classic.shuffleDependency.fileCleanup.enabled": (
        "deletes the shuffle files of an epoch before Java collects garbage in the driver"
    ),
    "spark.sql.execution.arrow.maxBytesPerBatch": "bounds a batch of wide rows",
    "spark.sql.execution.arrow.maxRecordsPerBatch": (
        "makes batches larger, so that state is read in fewer, larger reads"
    ),
    "spark.sql.optimizer.excludedRules": "lets tasks run, and report, for an empty input",
    "spark.sql.session.timeZone": "the zone of datetimes, where a program names none",
    "spark.sql.streaming.fileSource.log.compactInterval": "tells the form of a file source's log",
    "spark.sql.streaming.minBatchesToRetain": (
        "shortens the log of a query: a position is captured from the newest two batches"
    ),
    "spark.sql.streaming.offsetLog.formatVersion": "tells the form of a query's position, 1",
    "spark.sql.streaming.pollingDelay": "how often a query without input looks for some",
    "spark.sql.streaming.triggerAvailableNowWrapper.enabled": (
        "reads in epochs, even if one of the sources cannot stop by itself"
    ),
}
"""Settings of Spark SQL that Holdfast sets or reads, with their use; all of them are checked."""
UNCHECKED_SETTINGS: Final = {
    "spark.app.name": "the name of a session that Holdfast starts",
    "spark.dynamicAllocation.enabled": "refused: executors that go would take state with them",
    "spark.local.dir": "where local state is kept, unless that is configured",
    "spark.locality.wait": "lets a task wait for the executor that holds its state",
    "spark.pyspark.python": "the Python of workers; without it, that of the driver",
    "spark.python.unix.domain.socket.enabled": "saves 40 ms at the start of every Python task",
    "spark.python.worker.reuse": "off while Spark looks for Python data sources",
    "spark.shuffle.reduceLocality.enabled": "off, so that only state decides where a task runs",
    "spark.speculation": "refused: two attempts of one subtask would write the same state",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "avoids atomic renames in the scratch directory of a query, a tenth of a second per epoch"
    ),
    "spark.stage.maxConsecutiveAttempts": "1, so that Spark does not repeat a part of an epoch",
    "spark.ui.showConsoleProgress": "off in a session that Holdfast starts",
}
"""Other settings, with their use. Spark accepts any, so there is nothing to check."""


def check_spark(spark: SparkSession) -> None:
    """Refuse a Spark that lacks something; warn if it is newer than tested.

    An application is checked once.

    Raises:
        UnsupportedSparkError: It is too old, its Python side is of another version, or
            something that Holdfast uses is missing.
    """
    application = spark.sparkContext.applicationId
    if application in _checked:
        return
    warning = check_versions(spark.version, pyspark.__version__)
    lacks = missing(spark)
    if lacks:
        raise UnsupportedSparkError(
            f"Spark {spark.version} lacks what Holdfast uses; {_WORKS_ON}. Missing:\n"
            + "\n".join(f"    {one}" for one in lacks)
        )
    if warning is not None:
        logger.warning(warning)
    _checked.add(application)


def check_versions(java: str, python: str) -> str | None:
    """A warning if Spark is newer than tested.

    Args:
        java: Version of the session.
        python: Version of PySpark.

    Raises:
        UnsupportedSparkError: The version is unknown or too old, or there are two.
    """
    version = _minor(java)
    if version is None:
        raise UnsupportedSparkError(f"Spark gives its version as {java!r}; {_WORKS_ON}")
    if version < OLDEST:
        raise UnsupportedSparkError(f"Spark {java} is too old; {_WORKS_ON}")
    if version != _minor(python):
        raise UnsupportedSparkError(
            f"the session runs Spark {java}, and this process has PySpark {python}; unset "
            "SPARK_HOME, or install the PySpark of that Spark"
        )
    if version > NEWEST:
        return (
            f"Spark {java} is newer than any that Holdfast is tested on, up to {_text(NEWEST)}; "
            "test your job on it before you rely on it"
        )
    return None


def missing(
    spark: SparkSession,
    internals: Iterable[Internal] = INTERNALS,
    settings: Mapping[str, str] = SETTINGS,
) -> list[str]:
    """What this Spark lacks of the classes, methods and settings, with their use."""
    jvm: Any = spark._jvm
    find = jvm.java.lang.Class.forName
    gateway: Any = spark.sparkContext._gateway
    nothing = gateway.new_array(jvm.java.lang.Class, 0)
    flag = gateway.new_array(jvm.java.lang.Class, 1)
    flag[0] = jvm.java.lang.Boolean.TYPE
    lacks = []
    for internal in internals:
        try:
            found = find(internal.name)
        except Py4JJavaError:
            lacks.append(f"{internal.name}: {internal.use}")
            continue
        for method in internal.methods:
            try:
                found.getMethod(method, flag if internal.takes_flag else nothing)
            except Py4JJavaError:
                lacks.append(f"{internal.name}.{method}: {internal.use}")
    lacks += [f"{key}: {use}" for key, use in settings.items() if not spark.conf.isModifiable(key)]
    return lacks


def _minor(version: str) -> tuple[int, int] | None:
    """Major and minor number of a version; vendors add things behind them."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else None


def _text(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


_WORKS_ON: Final = f"Holdfast works on PySpark {_text(OLDEST)} to {_text(NEWEST)}"
_checked: set[str] = set()
"""Ids of applications that were checked."""
