"""User-written sources as Spark data sources.

Spark tells offsets apart by their text and keeps that text for the query, so an offset
is brought into one form before Spark sees it: `{"offset": ...}`, with sorted keys.
"""

from __future__ import annotations

import json
import uuid
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow

from holdfast.api.sources import ReplayableSource
from holdfast.api.streams.output_type import declared_output
from holdfast.errors import (
    HoldfastError,
    JobGraphError,
    NotSerializableError,
    OutputTypeError,
    UserFunctionError,
)
from holdfast.runtime.operators.base import user_traceback
from holdfast.spark.serialization import ShippedByValue, dumps
from holdfast.spark.sources.indexed_source import ROWS_PER_BATCH
from holdfast.spark.sources.source import Source
from holdfast.spark.types import spark_schema
from holdfast.types.columns.batches import BatchWriter
from holdfast.types.stream_type import UNDECLARED, StreamType

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

OFFSET: Final = "offset"
"""Key under which the user's offset lies in the one that Spark keeps."""


@dataclass(frozen=True)
class ReplayedElements(ShippedByValue):
    """A user's source, what it carries, and the name by which messages call it."""

    source: ReplayableSource
    type: StreamType
    title: str

    def first(self) -> Any:
        """Where reading begins."""
        with self._located("initial_offset()"):
            return plain_offset(self.source.initial_offset())

    def latest(self, start: Any) -> Any:
        """Where an epoch from `start` ends."""
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
            raise UserFunctionError(
                f"source {self.title!r}, in {where}: {type(error).__name__}: {error}\n"
                f"{user_traceback(error)}"
            ) from error


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
    """What one task reads."""

    def __init__(self, start: Any, end: Any) -> None:
        self.start = start
        self.end = end


class _Reader(DataSourceReader):
    """Reads a bounded source in one pass, epoch by epoch of it."""

    def __init__(self, elements: ReplayedElements) -> None:
        self._elements = elements

    def partitions(self) -> Sequence[InputPartition]:
        """The tasks of all epochs that a stream of the source would have."""
        found: list[_Range] = []
        start = self._elements.first()
        while (end := self._elements.latest(start)) != start:
            found += self._elements.ranges(start, end)
            start = end
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The elements of one range."""
        assert isinstance(partition, _Range)
        return self._elements.batches(partition.start, partition.end)


class _StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a source epoch by epoch. Spark's own `commit` comes too early to be told."""

    def __init__(self, elements: ReplayedElements) -> None:
        self._elements = elements

    def initialOffset(self) -> dict[str, Any]:
        """Where reading begins."""
        return {OFFSET: self._elements.first()}

    def prepareForTriggerAvailableNow(self) -> None:
        """The query ends at the first look that finds nothing new."""

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Where the next epoch ends; the source itself says how much that is."""
        return {OFFSET: self._elements.latest(start[OFFSET])}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The tasks of one epoch."""
        return self._elements.ranges(start[OFFSET], end[OFFSET])

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The elements of one range."""
        assert isinstance(partition, _Range)
        return self._elements.batches(partition.start, partition.end)


def replayed(
    spark: SparkSession, source: ReplayableSource, type_info: Any, name: str | None
) -> tuple[Source, StreamType, str]:
    """A user's source as a job's: the source, the type of its elements, and its name.

    Raises:
        JobGraphError: It is not a `ReplayableSource`.
        NotSerializableError: It cannot be shipped to where it is read.
    """
    _check(source)
    stream_type = _type_of(source, type_info)
    schema = spark_schema(stream_type.schema)
    title = name or f"Source: {type(source).__name__}"
    elements = ReplayedElements(source, stream_type, title)
    format_name = f"holdfast_{uuid.uuid4().hex}"

    def register() -> str:
        spark.dataSource.register(_data_source(format_name, elements, schema))
        return format_name

    made = Source(
        f"a {type(source).__name__}",
        source.bounded,
        lambda _: spark.readStream.format(register()).load(),
        lambda: spark.read.format(register()).load(),
        commit=lambda offset: source.commit(json.loads(offset)[OFFSET]),
    )
    return made, stream_type, title


def _type_of(source: ReplayableSource, type_info: Any) -> StreamType:
    if type_info is not None:
        return StreamType.of(type_info)
    return declared_output(source.read, per_element=False) or UNDECLARED


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


def _data_source(name: str, elements: ReplayedElements, schema: StructType) -> type[DataSource]:
    """A Spark data source class for a user's source."""

    class Replayable(DataSource):
        """A user's source."""

        @classmethod
        def name(cls) -> str:
            return name

        def schema(self) -> StructType:
            return schema

        def reader(self, schema: StructType) -> DataSourceReader:
            return _Reader(elements)

        def streamReader(self, schema: StructType) -> DataSourceStreamReader:
            return _StreamReader(elements)

    return Replayable
