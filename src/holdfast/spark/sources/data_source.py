"""Replayable sources, the user's and the built-in ones, as Spark data sources.

Spark compares offsets by their text and keeps that text for the query, so an offset
is brought into one form before Spark sees it: `{"offset": ...}`, with sorted keys. The
built-in sources number their elements from 0; their offset is `{"index": ...}`, the
number of the next element.
"""

from __future__ import annotations

import json
import sys
import uuid
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)

from holdfast.api.sources import ReplayableSource
from holdfast.api.streams.output_type import declared_output, output_type_of
from holdfast.clock import monotonic, wait
from holdfast.errors import HoldfastError, JobGraphError, NotSerializableError, OutputTypeError
from holdfast.runtime.operators.base import user_error
from holdfast.runtime.worker import HangUps
from holdfast.spark.serialization import ShippedByValue, dumps
from holdfast.spark.sources.source import Source
from holdfast.spark.types import spark_schema
from holdfast.spark.versions import ReadLimit, SupportsTriggerAvailableNow
from holdfast.types.columns.batches import BatchWriter
from holdfast.types.columns.pickling import pickle_by_value_with
from holdfast.types.stream_type import StreamType, infer_type

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from holdfast.spark.sources.gates import Gate

pickle_by_value_with(dumps)
HangUps.leave_out(sys.modules["__main__"])

OFFSET: Final = "offset"
"""Key under which the user's offset lies in the one that Spark keeps."""
INDEX: Final = "index"
"""The same, of the built-in sources."""
ROWS_PER_BATCH: Final = 10_000
"""Rows a task converts at a time."""
PATIENCE: Final = 0.02
"""Seconds between two looks at the clock while a rate lets nothing through."""
ENDLESS_EPOCH: Final = 100_000
"""Most elements in an epoch of a generator that has neither an end nor a rate."""
UNBOUNDED: Final = 2**62
"""Count of a generator that never ends."""


@dataclass
class IndexedSource(ReplayableSource):
    """The built-in source: a collection, or a generator of elements from their numbers."""

    title: str
    """What messages call it."""
    elements: Sequence[Any] | Callable[[int], Any]
    """The elements, or a function that makes one from its number."""
    count: int | None
    """Number of elements; None if they never end."""
    tasks: int = 1
    """Tasks that read an epoch."""
    rate: float | None = None
    """Elements a second; as fast as they are read if None."""
    max_rows: int | None = None
    """Most elements in an epoch."""

    def __post_init__(self) -> None:
        self.bounded = self.count is not None
        self._limit = UNBOUNDED if self.count is None else self.count
        self._started: tuple[float, int] | None = None
        self._draining = False
        if self.max_rows is None and self.count is None and self.rate is None:
            # Endless and unpaced: an epoch must end all the same.
            self.max_rows = ENDLESS_EPOCH

    def initial_offset(self) -> int:
        """The first element's number."""
        return 0

    def drain(self) -> None:
        """Wait for elements from now on: the query ends when there is nothing new."""
        self._draining = True

    def pause(self) -> None:
        """Begin to count anew: a rate does not make up for the time of a pause."""
        self._started = None

    def latest_offset(self, start: int) -> int:
        """The number up to which the next epoch may read."""
        end = self._due(start)
        while end == start and self._draining and start < self._limit:
            wait(PATIENCE)
            end = self._due(start)
        return end if self.max_rows is None else min(end, start + self.max_rows)

    def _due(self, start: int) -> int:
        if self.rate is None:
            return self._limit
        if self._started is None:
            self._started = (monotonic(), start)
        then, base = self._started
        return min(base + int((monotonic() - then) * self.rate), self._limit)

    def partitions(self, start: int, end: int) -> list[tuple[int, int]]:
        """The numbers from `start` to `end`, one range per task."""
        parts = max(min(self.tasks, end - start), 1)
        return list(pairwise(start + (end - start) * i // parts for i in range(parts + 1)))

    def read(self, start: int, end: int) -> Iterable[Any]:
        """The elements from `start` to `end`."""
        if callable(self.elements):
            return self._generated(self.elements, start, end)
        return self.elements[start:end]

    def _generated(self, function: Callable[[int], Any], start: int, end: int) -> Iterator[Any]:
        index = start
        try:
            for index in range(start, end):
                yield function(index)
        except Exception as error:
            raise user_error(f"source {self.title!r}, element {index}", error) from error


@dataclass(frozen=True)
class ReplayedElements(ShippedByValue):
    """A source, the type of its elements, and its name for messages."""

    source: ReplayableSource
    type: StreamType
    title: str
    key: str = OFFSET
    """Key under which the source's offset lies in the one that Spark keeps."""
    gate: Gate | None = None
    """Closed while the source must wait."""

    def first(self) -> Any:
        """The initial offset."""
        with self._located("initial_offset()"):
            return plain_offset(self.source.initial_offset())

    def latest(self, start: Any) -> Any:
        """End offset of an epoch from `start`."""
        with self._located("latest_offset()"):
            return plain_offset(self.source.latest_offset(start))

    def ranges(self, start: Any, end: Any) -> list[_Range]:
        """The tasks that read from `start` to `end`."""
        if start == end:
            return []
        with self._located("partitions()"):
            return [_Range(low, high) for low, high in self.source.partitions(start, end)]

    def batches(self, start: Any, end: Any) -> Iterator[pa.RecordBatch]:
        """The elements from `start` to `end`."""
        if start == end:
            return
        writer = BatchWriter(self.type)
        elements = self._elements(start, end)
        while chunk := list(islice(elements, ROWS_PER_BATCH)):
            try:
                yield writer.batch(chunk)
            except OutputTypeError as error:
                raise OutputTypeError(
                    f"source {self.title!r}, read from {start!r} to {end!r}: {error}",
                    error.row_index,
                ) from error

    def _elements(self, start: Any, end: Any) -> Iterator[Any]:
        with self._located(f"read() from {start!r} to {end!r}"):
            yield from self.source.read(start, end)

    @contextmanager
    def _located(self, where: str) -> Iterator[None]:
        try:
            yield
        except HoldfastError:
            raise
        except Exception as error:
            raise user_error(f"source {self.title!r}, in {where}", error) from error


def plain_offset(offset: Any) -> Any:
    """`offset` as JSON gives it back, with sorted keys.

    Raises:
        TypeError: JSON cannot hold it, or would give something else back.
    """
    _check_keys(offset)
    try:
        return json.loads(json.dumps(offset, sort_keys=True, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"the offset {offset!r} cannot be kept as JSON ({error}); make it of numbers, "
            "strings, lists, and dicts with strings as keys"
        ) from error


def _check_keys(offset: Any) -> None:
    if isinstance(offset, dict):
        for key, value in offset.items():
            if not isinstance(key, str):
                raise TypeError(
                    f"the offset has the key {key!r}, which JSON would give back as a string; use "
                    "strings as keys"
                )
            _check_keys(value)
    elif isinstance(offset, list | tuple):
        for item in offset:
            _check_keys(item)


class _Range(InputPartition):
    """The range that one task reads."""

    def __init__(self, start: Any, end: Any) -> None:
        self.start = start
        self.end = end


class _Ranges:
    """Reads the elements of ranges, in tasks."""

    def __init__(self, elements: ReplayedElements) -> None:
        self._elements = elements

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The elements of one range."""
        assert isinstance(partition, _Range)
        return self._elements.batches(partition.start, partition.end)


class _Reader(_Ranges, DataSourceReader):
    """Reads a bounded source in one pass, epoch by epoch of it."""

    def partitions(self) -> Sequence[InputPartition]:
        """The tasks of all epochs that a stream of the source would have."""
        found: list[_Range] = []
        start = self._elements.first()
        while (end := self._elements.latest(start)) != start:
            found += self._elements.ranges(start, end)
            start = end
        # Without any, Spark would make up one.
        return found or [_Range(start, start)]


class _StreamReader(_Ranges, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a source epoch by epoch. Spark's `commit` comes too early for the source's."""

    def __init__(self, elements: ReplayedElements) -> None:
        super().__init__(elements)
        self._draining = False

    def initialOffset(self) -> dict[str, Any]:
        """The initial offset."""
        return {self._elements.key: self._elements.first()}

    def prepareForTriggerAvailableNow(self) -> None:
        """The query ends as soon as there is nothing new."""
        self._draining = True
        if isinstance(self._elements.source, IndexedSource):
            self._elements.source.drain()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """End offset of the next epoch, which the source decides; `start` while it must wait."""
        elements, gate = self._elements, self._elements.gate
        if gate is not None and gate.is_closed:
            if isinstance(elements.source, IndexedSource):
                elements.source.pause()
            gate.note(refused=True)
            return start
        end = {elements.key: elements.latest(start[elements.key])}
        if gate is not None:
            ends = elements.source.bounded or self._draining
            gate.note(ended=ends and end == start)
        return end

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The tasks of one epoch."""
        return self._elements.ranges(start[self._elements.key], end[self._elements.key])


def replayed(
    spark: SparkSession, source: ReplayableSource, type_info: Any, name: str | None
) -> tuple[Source, StreamType, str]:
    """Makes a job's source of a user's: the source, the type of its elements, and its name.

    Raises:
        JobGraphError: It is not a `ReplayableSource`.
        NotSerializableError: It cannot be shipped to where it is read.
    """
    _check(source)
    stream_type = output_type_of(source.read, type_info, per_element=False)
    title = name or f"Source: {type(source).__name__}"
    elements = ReplayedElements(source, stream_type, title)
    data_source = _RegisteredSource(spark, stream_type)
    made = Source(
        f"a {type(source).__name__}",
        source.bounded,
        lambda place: data_source.stream(replace(elements, gate=place.gate)),
        lambda: data_source.table(elements),
        can_pause=True,
        commit=lambda offset: source.commit(json.loads(offset)[OFFSET]),
    )
    return made, stream_type, title


def indexed(
    spark: SparkSession,
    source: IndexedSource,
    stream_type: StreamType,
    description: str,
    settings: Callable[[], Mapping[str, Any]],
) -> Source:
    """Makes a job's source of a collection or a generator.

    Args:
        spark: The session.
        source: The collection or generator.
        stream_type: Type of its elements.
        description: For messages.
        settings: Gives the fields of the source that are known only when the job starts.
    """
    elements = ReplayedElements(source, stream_type, source.title, INDEX)
    data_source = _RegisteredSource(spark, stream_type)

    def set_for(gate: Gate | None = None, **more: Any) -> ReplayedElements:
        return replace(elements, source=replace(source, **{**settings(), **more}), gate=gate)

    return Source(
        description,
        source.bounded,
        lambda place: data_source.stream(set_for(place.gate)),
        # One pass takes everything at once.
        (lambda: data_source.table(set_for(rate=None, max_rows=None))) if source.bounded else None,
        endless=not source.bounded,
        can_pause=True,
    )


def generated_type(function: Callable[[int], Any], type_info: object) -> StreamType:
    """Type of a generator's elements: as declared, or that of the first element."""
    if type_info is not None:
        return StreamType.of(type_info)
    return declared_output(function, per_element=True) or infer_type([function(0)])


def _check(source: object) -> None:
    if not isinstance(source, ReplayableSource):
        kind = f"the class {source.__name__}" if isinstance(source, type) else type(source).__name__
        raise JobGraphError(
            f"add_source takes a ReplayableSource, not {kind}; from_collection, from_generator and "
            "from_dataframe take other data"
        )
    try:
        dumps(source)
    except Exception as error:
        raise NotSerializableError(
            f"the source {type(source).__name__} cannot be shipped to workers: "
            f"{type(error).__name__}: {error}. It holds something that exists in this process "
            "only, such as a connection or a lock; open that in read() and latest_offset() instead"
        ) from error


class _RegisteredSource:
    """A source, registered under its name as a Spark data source."""

    def __init__(self, spark: SparkSession, stream_type: StreamType) -> None:
        self._spark = spark
        self._name = f"holdfast_{uuid.uuid4().hex}"
        self._schema = spark_schema(stream_type.schema)

    def stream(self, elements: ReplayedElements) -> DataFrame:
        """The elements as a streaming DataFrame."""
        self._register(elements)
        return self._spark.readStream.format(self._name).load()

    def table(self, elements: ReplayedElements) -> DataFrame:
        """The elements as a static DataFrame."""
        self._register(elements)
        return self._spark.read.format(self._name).load()

    def _register(self, elements: ReplayedElements) -> None:
        format_name, columns = self._name, self._schema

        class Replayable(DataSource):
            """The elements of one source."""

            @classmethod
            def name(cls) -> str:
                return format_name

            def schema(self) -> StructType:
                return columns

            def reader(self, schema: StructType) -> DataSourceReader:
                return _Reader(elements)

            def streamReader(self, schema: StructType) -> DataSourceStreamReader:
                return _StreamReader(elements)

        self._spark.dataSource.register(Replayable)
