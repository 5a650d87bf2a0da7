"""Reads the tables of lookup joins on the driver, and refreshes them."""

from __future__ import annotations

import itertools
import logging
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError

from holdfast.errors import JobExecutionError, JobGraphError
from holdfast.spark.types import arrow_type, spark_type

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa
    from pyspark import Broadcast
    from pyspark.sql import SparkSession

    from holdfast.api.streams.lookup import LookupJoin
    from holdfast.runtime.plan import TableCopy

logger = logging.getLogger("holdfast")

_numbers = itertools.count(1)
"""Numbers of all copies that this driver makes: workers outlive jobs and restarts."""


@dataclass
class BroadcastTable:
    """A copy of a table that reaches tasks as a broadcast variable."""

    number: int
    broadcast: Broadcast[pa.Table]

    def read(self) -> pa.Table:
        """The rows."""
        table = self.broadcast.value
        if hasattr(self.broadcast, "_path"):
            # It can be read again from there; otherwise it would stay in memory beside the index.
            vars(self.broadcast).pop("_value", None)
        return table


@dataclass
class _Held:
    """The current copy of a table."""

    copy: BroadcastTable
    read_at: int
    """Time of the last attempt to read the table, on the monotonic clock."""


class LookupTables:
    """The tables of one job attempt."""

    def __init__(self, spark: SparkSession, lookups: Mapping[str, LookupJoin]) -> None:
        """Nothing is read yet."""
        self._spark = spark
        self._lookups = lookups
        self._held: dict[str, _Held] = {}

    def copies(self, now: int) -> dict[str, TableCopy]:
        """The copies for an epoch that begins now, by uid.

        `now` is in milliseconds on the monotonic clock. Copies that were returned before must
        no longer be in use: their epochs have ended.

        Raises:
            JobExecutionError: A table cannot be read, and there is no copy of it yet.
        """
        return {uid: self._copy(uid, join, now) for uid, join in self._lookups.items()}

    def close(self) -> None:
        """Drop all copies; none may be in use."""
        while self._held:
            _, held = self._held.popitem()
            _destroy(held.copy)

    def _copy(self, uid: str, join: LookupJoin, now: int) -> BroadcastTable:
        held = self._held.get(uid)
        if held is None:
            held = self._held[uid] = _Held(self._first(uid, join), now)
        elif join.refresh_ms is not None and now - held.read_at >= join.refresh_ms:
            held.read_at = now
            self._refresh(uid, join, held)
        return held.copy

    def _first(self, uid: str, join: LookupJoin) -> BroadcastTable:
        try:
            return self._shipped(read_table(join))
        except Exception as error:
            raise JobExecutionError(
                f"the table of the lookup join with uid {uid!r} cannot be read: {_brief(error)}"
            ) from error

    def _refresh(self, uid: str, join: LookupJoin, held: _Held) -> None:
        try:
            copy = self._shipped(read_table(join))
        except Exception as error:
            logger.warning(
                "the table of the lookup join with uid %r could not be read again, so rows are "
                "still joined with the previous copy; it is tried again in %.1f s: %s",
                uid,
                (join.refresh_ms or 0) / 1000,
                _brief(error),
            )
        else:
            held.copy, old = copy, held.copy
            _destroy(old)

    def _shipped(self, table: pa.Table) -> BroadcastTable:
        return BroadcastTable(next(_numbers), self._spark.sparkContext.broadcast(table))


def read_table(join: LookupJoin) -> pa.Table:
    """The columns of a join's table that it uses, as they are now.

    Raises:
        JobGraphError: The table is no longer of the type that it had.
    """
    assert join.load is not None, "tables are read on the driver"
    frame = join.load()
    found = {field.name: field.dataType for field in frame.schema}
    for column in join.table:
        kind = found.get(column.name)
        if kind is None or arrow_type(kind) != arrow_type(spark_type(column.type)):
            raise JobGraphError(
                f"its column {column.name!r} was of type {spark_type(column.type).simpleString()} "
                "when the job was built, and now "
                + ("is missing" if kind is None else f"is {kind.simpleString()}")
            )
    names = [f"`{column.name.replace('`', '``')}`" for column in join.table]
    table: pa.Table = frame.select(*names).toArrow()
    for column in join.table:
        if not column.nullable and table.column(column.name).null_count:
            raise JobGraphError(
                f"its column {column.name!r} was NOT NULL when the job was built, and now has nulls"
            )
    return table


def _destroy(copy: BroadcastTable) -> None:
    with suppress(Exception):
        # A stopped session has released everything already.
        copy.broadcast.destroy()


def _brief(error: Exception) -> str:
    """The innermost cause of an error, in one line."""
    if isinstance(error, Py4JJavaError):
        cause: Any = error.java_exception
        while cause.getCause() is not None:
            cause = cause.getCause()
        return str(cause.toString()).split("\n", 1)[0]
    return f"{type(error).__name__}: {error}".split("\n", 1)[0]
