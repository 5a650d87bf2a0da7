"""Sources of Holdfast's own: a collection, and a generator of events.

Both number their elements from 0 and can give any range of them again, so a query
replays exactly. The offset of a query is the number of the next element.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from holdfast.api.streams.output_type import declared_output
from holdfast.clock import monotonic, wait
from holdfast.errors import UserFunctionError
from holdfast.runtime.operators.base import user_traceback
from holdfast.spark.serialization import ShippedByValue, dumps
from holdfast.types.columns.batches import BatchWriter
from holdfast.types.columns.pickling import pickle_by_value_with
from holdfast.types.stream_type import StreamType, infer_type

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.types import StructType

pickle_by_value_with(dumps)

ROWS_PER_BATCH = 10_000
"""Rows a task converts at a time."""
PATIENCE = 0.02
"""Seconds between two looks at the clock while a rate lets nothing through."""
ENDLESS_EPOCH = 100_000
"""Most elements in an epoch of a generator that has neither an end nor a rate."""
UNBOUNDED = 2**62
"""Count of a generator that never ends."""


@dataclass(frozen=True)
class IndexedElements(ShippedByValue):
    """What such a source gives out, and how fast."""

    name: str
    type: StreamType
    count: int | None
    """Elements there are; None if they never end."""
    partitions: int
    elements: Sequence[Any] | Callable[[int], Any]
    """The elements, or a function that makes one from its number."""
    rate: float | None = None
    """Elements a second; as fast as they are read if not given."""
    max_rows: int | None = None
    """Most elements in an epoch."""

    def range(self, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """The elements from `start` to `end`, in batches."""
        writer = BatchWriter(self.type)
        for low in range(start, end, ROWS_PER_BATCH):
            high = min(low + ROWS_PER_BATCH, end)
            yield writer.batch([self._element(i) for i in range(low, high)])

    def _element(self, index: int) -> Any:
        if not callable(self.elements):
            return self.elements[index]
        try:
            return self.elements(index)
        except Exception as error:
            raise UserFunctionError(
                f"source {self.name!r}, element {index}: {type(error).__name__}: {error}\n"
                f"{user_traceback(error)}"
            ) from error

    def split(self, start: int, end: int) -> list[_Range]:
        """The numbers from `start` to `end`, one range per partition."""
        parts = min(self.partitions, max(end - start, 1))
        cuts = [start + (end - start) * i // parts for i in range(parts + 1)]
        return [_Range(low, high) for low, high in pairwise(cuts)]


class _Range(InputPartition):
    """A range of elements that one task reads."""

    def __init__(self, start: int, end: int) -> None:
        self.start = start
        self.end = end


class _Reader(DataSourceReader):
    """Reads all elements in one pass."""

    def __init__(self, source: IndexedElements) -> None:
        self._source = source

    def partitions(self) -> Sequence[InputPartition]:
        """One range per partition."""
        return self._source.split(0, self._source.count or 0)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The elements of one range."""
        assert isinstance(partition, _Range)
        return self._source.range(partition.start, partition.end)


class _StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads elements epoch by epoch, as the rate and the limit allow."""

    def __init__(self, source: IndexedElements) -> None:
        self._source = source
        self._limit = UNBOUNDED if source.count is None else source.count
        self._started: tuple[float, int] | None = None
        self._draining = False

    def initialOffset(self) -> dict[str, int]:
        """The first element's number."""
        return {"index": 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        """The most elements in an epoch."""
        rows = self._source.max_rows
        if rows is None and self._source.count is None and self._source.rate is None:
            # Endless and unpaced: an epoch must end all the same.
            rows = ENDLESS_EPOCH
        return ReadAllAvailable() if rows is None else ReadMaxRows(rows)

    def prepareForTriggerAvailableNow(self) -> None:
        """Read up to the end that there is now, however slowly, then no further."""
        self._draining = True

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        """The number up to which the next epoch may read."""
        first = start["index"]
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else UNBOUNDED
        end = self._due(first)
        while end == first and self._draining and first < self._limit:
            # A query that drains its sources ends at the first look that finds nothing new.
            wait(PATIENCE)
            end = self._due(first)
        return {"index": min(end, first + rows)}

    def _due(self, first: int) -> int:
        rate = self._source.rate
        if rate is None:
            return self._limit
        if self._started is None:
            self._started = (monotonic(), first)
        then, base = self._started
        return min(base + int((monotonic() - then) * rate), self._limit)

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """One range per partition."""
        return self._source.split(start["index"], end["index"])

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The elements of one range."""
        assert isinstance(partition, _Range)
        return self._source.range(partition.start, partition.end)


def data_source(source: IndexedElements, schema: StructType) -> type[DataSource]:
    """A Spark data source class for `source`, to be registered under `source.name`."""

    class Indexed(DataSource):
        """The numbered elements of one source."""

        @classmethod
        def name(cls) -> str:
            return source.name

        def schema(self) -> StructType:
            return schema

        def reader(self, schema: StructType) -> DataSourceReader:
            return _Reader(source)

        def streamReader(self, schema: StructType) -> DataSourceStreamReader:
            return _StreamReader(source)

    return Indexed


def generated_type(function: Callable[[int], Any], type_info: object) -> StreamType:
    """Type of what a generator makes: as declared, or that of its first element."""
    if type_info is not None:
        return StreamType.of(type_info)
    return declared_output(function, per_element=True) or infer_type([function(0)])
