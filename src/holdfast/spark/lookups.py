"""Lookup joins on the driver: builds them, reads their tables, and refreshes them.

A table's DataFrame is created again for every read.
"""

from __future__ import annotations

import difflib
import itertools
import logging
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame

from holdfast.api.streams.lookup import LookupJoin
from holdfast.config.options import duration_ms
from holdfast.errors import JobExecutionError, JobGraphError, TypeDeclarationError
from holdfast.spark.types import arrow_type, is_collated, spark_type, stream_type_of
from holdfast.types.arrow import ddl_of, leaf_of
from holdfast.types.stream_type import StreamType

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark import Broadcast
    from pyspark.sql import SparkSession

    from holdfast.runtime.plan import TableCopy

logger = logging.getLogger("holdfast")

_numbers = itertools.count(1)
"""Numbers of all copies that this driver makes: workers outlive jobs and restarts."""


def make_lookup(
    stream: StreamType, table: Any, on: Any, refresh_interval: Any, how: Any, zone: str
) -> LookupJoin:
    """The join of a stream's rows with a table.

    Args:
        stream: Type of the stream.
        table: A static DataFrame, or a function that makes one.
        on: Name or names of columns, or a mapping from the stream's columns to the table's.
        refresh_interval: How long a copy of the table may be used; forever if None.
        how: "inner" or "left".
        zone: Zone of the datetimes that the table's timestamps are read as.

    Raises:
        JobGraphError: An argument is wrong, or table and stream do not fit together.
    """
    if how not in ("inner", "left"):
        raise JobGraphError(
            f'lookup_join: how is "inner" or "left", not {how!r}; rows of the table that nothing '
            "in the stream matches cannot be output, since more of the stream may come"
        )
    pairs = _pairs(on)
    refresh_ms = _refresh_ms(refresh_interval)
    load = _loader(table)
    frame = load()
    columns = _columns(frame, zone)
    compared = []
    for name, table_name in pairs.items():
        _check_exists(name, stream.columns, "stream")
        _check_exists(table_name, tuple(columns.names), "table")
        compared.append(columns.field(table_name))
        _check_comparable(stream.schema.field(name), columns.field(table_name))
        if is_collated(frame.schema[table_name].dataType):
            raise JobGraphError(
                f"lookup_join: the table's column {table_name!r} has a collation that treats "
                "different strings as equal, but lookup_join compares strings exactly; cast "
                f"it in the table: col({table_name!r}).cast('string collate UTF8_BINARY')"
            )
    added = [column for column in columns if column.name not in pairs.values()]
    _check_names(stream, added)
    if how == "left":
        added = [column.with_nullable(True) for column in added]
    return LookupJoin(
        id=uuid.uuid4().hex,
        load=load,
        columns=tuple(stream.columns.index(name) for name in pairs),
        table=pa.schema([*compared, *added]),
        outer=how == "left",
        refresh_ms=refresh_ms,
        output=StreamType("row", pa.schema([*stream.schema, *added])),
    )


def _pairs(on: Any) -> dict[str, str]:
    """Pairs of columns to compare: the stream's and the table's."""
    if isinstance(on, str):
        on = [on]
    if isinstance(on, Mapping):
        pairs = dict(on)
    elif isinstance(on, list | tuple) and all(isinstance(name, str) for name in on):
        pairs = dict(zip(on, on, strict=True))
    else:
        pairs = {}
    names = [*pairs, *pairs.values()]
    if not names or not all(isinstance(name, str) for name in names):
        raise JobGraphError(
            "lookup_join: on is the name of a column, a list of names, or a mapping from the "
            f"stream's columns to the table's, not {on!r}"
        )
    if len(set(pairs.values())) < len(pairs):
        raise JobGraphError(f"lookup_join: on={on!r} names a column of the table twice")
    return pairs


def _refresh_ms(interval: Any) -> int | None:
    if interval is None:
        return None
    try:
        return duration_ms(interval)
    except ValueError as error:
        raise JobGraphError(f"lookup_join: refresh_interval={interval!r}: {error}") from None


def _loader(table: Any) -> Callable[[], DataFrame]:
    """Function that makes the table's DataFrame for every read."""
    if callable(table):
        return _Made(table)
    return _Planned(_checked(table, "lookup_join takes"))


def _checked(frame: Any, takes: str) -> DataFrame:
    """`frame`, if it is a static DataFrame of a classic session."""
    if type(frame).__module__.startswith("pyspark.sql.connect"):
        raise JobGraphError(
            f"{takes} a DataFrame of a classic session, and this one belongs to a Spark Connect "
            "session; Holdfast runs in the driver: SparkSession.builder.master(...).getOrCreate()"
        )
    if not isinstance(frame, DataFrame):
        raise JobGraphError(
            f"{takes} a static DataFrame, or a function that makes one, not "
            f"{type(frame).__name__}; spark.createDataFrame makes one of Python data"
        )
    if frame.isStreaming:
        raise JobGraphError(
            f"{takes} a static DataFrame, and this one is streaming; read the table with "
            "spark.read, or make it a stream with from_dataframe and connect the two"
        )
    return frame


class _Made:
    """A table that a function makes."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make

    def __call__(self) -> DataFrame:
        try:
            frame = self._make()
        except Exception as error:
            raise JobGraphError(
                "lookup_join: the function that makes the table, which is called without "
                f"arguments on the driver, raised {type(error).__name__}: {error}"
            ) from error
        return _checked(frame, "lookup_join: the function that makes the table must return")


class _Planned:
    """A table given as a DataFrame, whose files are listed again for every read.

    A DataFrame remembers the files it found when it was made, and the plan of the first
    action. So the files are listed again, and the query is planned again.
    """

    def __init__(self, frame: DataFrame) -> None:
        self._frame = frame
        self._seen: set[int] = set()
        """The plan's relations that have had files."""

    def __call__(self) -> DataFrame:
        plan: Any = self._frame._jdf.queryExecution().analyzed()
        plans = [plan, *_items(plan.subqueriesAll())]
        for one in plans:
            one.refresh()
        leaves = [leaf for one in plans for leaf in _items(one.collectLeaves())]
        for place, leaf in enumerate(leaves):
            self._check_files(place, leaf)
        return self._frame.select("*")

    def _check_files(self, place: int, leaf: Any) -> None:
        """Refuse a directory that has lost all files: for Spark it is an empty table."""
        if leaf.getClass().getSimpleName() != "LogicalRelation":
            return
        relation = leaf.relation()
        if relation.getClass().getSimpleName() != "HadoopFsRelation":
            return
        location = relation.location()
        if location.sizeInBytes() > 0 or len(location.inputFiles()) > 0:
            self._seen.add(place)
        elif place in self._seen:
            paths = ", ".join(str(path) for path in _items(location.rootPaths()))
            raise JobGraphError(
                f"lookup_join: the files of the table are gone, there are none in {paths}; to "
                "empty a table, leave a file without rows"
            )


def _items(sequence: Any) -> list[Any]:
    """Items of a Scala sequence."""
    return [sequence.apply(i) for i in range(sequence.size())]


def _columns(frame: DataFrame, zone: str) -> pa.Schema:
    try:
        return stream_type_of(frame.schema, zone=zone).schema
    except TypeDeclarationError as error:
        raise JobGraphError(
            f"lookup_join: the table cannot be used as it is: {error}; select what is needed"
        ) from error


def _check_exists(name: str, names: tuple[str, ...], what: str) -> None:
    if name not in names:
        known = {other.casefold(): other for other in names}
        near = difflib.get_close_matches(name.casefold(), known, n=1)
        hint = f" Did you mean {known[near[0]]!r}?" if near else ""
        raise JobGraphError(
            f"lookup_join: the {what} has no column {name!r}; it has {list(names)}.{hint}"
        )


def _check_comparable(column: pa.Field, other: pa.Field) -> None:
    kind, other_kind = _family(column.type), _family(other.type)
    for field, family, what in ((column, kind, "stream"), (other, other_kind, "table")):
        if family is None:
            raise JobGraphError(
                f"lookup_join: the {what}'s column {field.name!r} is of type "
                f"{ddl_of(field.type)}, which cannot be compared; join on its parts"
            )
    if kind != other_kind:
        raise JobGraphError(
            f"lookup_join: the stream's column {column.name!r} is of type {ddl_of(column.type)} "
            f"and the table's {other.name!r} of type {ddl_of(other.type)}, so they are never "
            f"equal; cast it in the table: col({other.name!r}).cast({ddl_of(column.type)!r})"
        )


def _family(column: pa.DataType) -> str | None:
    """Values of types in one family are equal if and only if Spark takes them for equal."""
    leaf = leaf_of(column)
    if leaf is None or leaf.family == "void":
        return None
    return "exact number" if leaf.family in ("int", "Decimal") else leaf.family


def _check_names(stream: StreamType, added: list[pa.Field]) -> None:
    taken = {name.casefold() for name in stream.columns}
    twice = [column.name for column in added if column.name.casefold() in taken]
    if twice:
        raise JobGraphError(
            f"lookup_join: the stream and the table both have {', '.join(map(repr, twice))} "
            "beside the columns that are compared; rename or drop it in the table, such as with "
            f"withColumnRenamed({twice[0]!r}, {'table_' + twice[0]!r})"
        )


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
