"""The methods of an environment that make streams from sources."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import partial
from typing import TYPE_CHECKING, Any, overload

from holdfast.api.streams.data_stream import DataStream
from holdfast.api.streams.graph import Edge, OperatorKind
from holdfast.config import configuration as conf
from holdfast.errors import ConfigurationError
from holdfast.spark.lookups import make_lookup
from holdfast.spark.sources.data_source import IndexedSource, generated_type, indexed, replayed
from holdfast.spark.sources.source import (
    Source,
    as_stream,
    check_classic_frame,
    check_streaming_frame,
)
from holdfast.spark.types import stream_type_of
from holdfast.types.stream_type import StreamType, infer_type

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pyspark.sql import DataFrame, SparkSession

    from holdfast.api.sources import ReplayableSource
    from holdfast.api.streams.data_stream import Stream
    from holdfast.api.streams.graph import JobGraph
    from holdfast.api.streams.lookup import LookupJoin
    from holdfast.api.type_variables import T
    from holdfast.config.configuration import Configuration
    from holdfast.job.results import CollectedResults


class SourceMethods(ABC):
    """The methods of an environment that make streams from sources."""

    spark: SparkSession
    _graph: JobGraph
    _configuration: Configuration

    @abstractmethod
    def get_parallelism(self) -> int:
        """Number of subtasks of operators that set none themselves."""

    @abstractmethod
    def execute_and_collect(
        self, stream: Stream[Any], job_name: str | None = None, limit: int | None = None
    ) -> CollectedResults | list[Any]:
        """Run the program and iterate over `stream`."""

    def from_dataframe(self, df: DataFrame, name: str | None = None) -> DataStream:
        """A stream of a DataFrame's rows. A static one is bounded, a streaming one is not."""
        check_classic_frame(df)
        if df.isStreaming:
            check_streaming_frame(df)
            source = Source("a streaming DataFrame", False, lambda _: df, None)
        else:
            stream = partial(as_stream, df)
            source = Source(
                "a static DataFrame", True, stream, lambda: df, one_pass=True, keeps_files=True
            )
        zone = self.spark.conf.get("spark.sql.session.timeZone")
        stream_type = stream_type_of(df.schema, zone=zone or "UTC")
        return self._add_source(source, stream_type, name or "Source: dataframe")

    @overload
    def from_collection(
        self, collection: Iterable[T], type_info: None = None, name: str | None = None
    ) -> DataStream[T]: ...

    @overload
    def from_collection(
        self, collection: Iterable[Any], type_info: type[T], name: str | None = None
    ) -> DataStream[T]: ...

    @overload
    def from_collection(
        self, collection: Iterable[Any], type_info: Any, name: str | None = None
    ) -> DataStream[Any]: ...

    def from_collection(
        self, collection: Iterable[Any], type_info: Any = None, name: str | None = None
    ) -> DataStream[Any]:
        """A bounded stream of Python values, in their order."""
        elements = list(collection)
        stream_type = infer_type(elements) if type_info is None else StreamType.of(type_info)
        source = IndexedSource(name or "Source: collection", elements, len(elements))
        return self._add_indexed(source, stream_type, f"{len(elements)} elements")

    def from_generator(
        self,
        function: Callable[[int], Any],
        *,
        count: int | None = None,
        rate: float | None = None,
        type_info: Any = None,
        name: str | None = None,
    ) -> DataStream:
        """A stream of the results of `function` for the numbers 0, 1, 2, ...

        The function must return the same element for the same number: after a failure
        elements are generated again.

        Args:
            function: Makes an element from its number.
            count: Number of elements; the stream is bounded if given.
            rate: Elements a second; as fast as they are processed if not given.
            type_info: Type of the elements; taken from the function's annotation if not given.
            name: Name of the source.
        """
        if count is not None and count < 0:
            raise ConfigurationError(f"from_generator: count must not be negative, not {count}")
        if rate is not None and rate <= 0:
            raise ConfigurationError(f"from_generator: rate must be positive, not {rate}")
        stream_type = generated_type(function, type_info)
        source = IndexedSource(
            name or "Source: generator", function, count, self.get_parallelism(), rate
        )
        described = "generated" if count is None else f"{count} generated elements"
        return self._add_indexed(source, stream_type, described)

    def _add_indexed(
        self, source: IndexedSource, stream_type: StreamType, description: str
    ) -> DataStream:
        def settings() -> dict[str, Any]:
            tasks = node.parallelism or source.tasks
            return {"max_rows": self._configuration.get(conf.MAX_EVENTS_PER_EPOCH), "tasks": tasks}

        made = indexed(self.spark, source, stream_type, description, settings)
        stream = self._add_source(made, stream_type, source.title)
        [node] = self._graph.nodes[-1:]
        return stream

    def add_source(
        self, source: ReplayableSource[T], type_info: Any = None, name: str | None = None
    ) -> DataStream[T]:
        """A stream of the elements of a `ReplayableSource`.

        Args:
            source: The source; it must be picklable.
            type_info: Type of the elements; taken from the annotation of `read` if not given,
                and pickled objects if that has none.
            name: Name of the source.
        """
        return self._add_source(*replayed(self.spark, source, type_info, name))

    def _add_source(self, source: Source, stream_type: StreamType, name: str) -> DataStream:
        node = self._graph.add(OperatorKind.SOURCE, (), stream_type, function=source, name=name)
        return DataStream(self, (Edge(node, None, stream_type),))

    def lookup(
        self, stream: StreamType, table: Any, on: Any, refresh_interval: Any, how: str
    ) -> LookupJoin:
        """The join of a stream's rows with a table; see `DataStream.lookup_join`."""
        zone = self.spark.conf.get("spark.sql.session.timeZone")
        return make_lookup(stream, table, on, refresh_interval, how, zone or "UTC")
