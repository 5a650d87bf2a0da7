"""Streams: the fluent API of programs.

Every method returns a new stream; nothing runs before `execute`.
"""

from __future__ import annotations

import difflib
from abc import ABC, abstractmethod
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, overload

import pyarrow as pa

from holdfast.api.functions import (
    FilterFunction,
    FlatMapFunction,
    KeyedProcessFunction,
    KeySelector,
    MapFunction,
    ProcessFunction,
    SinkFunction,
)
from holdfast.api.sinks import ForeachBatchSink, PrintSink, Sink, SparkSink
from holdfast.api.streams.checks import (
    check_function,
    checked_function,
    missing_method,
    wrong_function,
)
from holdfast.api.streams.graph import Edge, OperatorKind, Partitioner, Partitioning
from holdfast.api.streams.operator import DataStreamSink, StreamOperator
from holdfast.api.streams.output_type import output_type_of
from holdfast.api.time import check_strategy
from holdfast.api.two_phase_commit import TwoPhaseCommitSink, TwoPhaseCommitSinkFunction
from holdfast.api.type_variables import OUT, K, T, V
from holdfast.errors import JobGraphError, KeyTypeError, TypeDeclarationError
from holdfast.types.stream_type import UNDECLARED, StreamType

if TYPE_CHECKING:
    import builtins
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from holdfast.api.descriptors import MapStateDescriptor
    from holdfast.api.outputs import OutputTag
    from holdfast.api.streams.connected import (
        BroadcastConnectedStream,
        BroadcastStream,
        ConnectedStreams,
    )
    from holdfast.api.streams.keyed_stream import KeyedStream
    from holdfast.api.streams.operator import CollectedElements
    from holdfast.api.streams.window_joins import CoGroupedStreams, JoinedStreams
    from holdfast.api.streams.windowed import WindowedStream
    from holdfast.api.time import WatermarkStrategy
    from holdfast.api.windows.assigners import WindowAssigner
    from holdfast.config.options import DurationLike


class Stream(StreamOperator, Generic[T]):
    """A stream of elements, keyed or not."""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Say what to use instead of a name that streams do not have."""
            from holdfast.api.streams.keyed_stream import KeyedStream

            raise AttributeError(missing_method(type(self), KeyedStream, name))

    @property
    def type(self) -> StreamType:
        """The type of the elements."""
        return self._edges[0].type

    @overload
    def map(
        self, function: MapFunction[T, OUT] | Callable[[T], OUT], output_type: None = None
    ) -> DataStream[OUT]: ...

    @overload
    def map(
        self, function: MapFunction[T, Any] | Callable[[T], Any], output_type: builtins.type[OUT]
    ) -> DataStream[OUT]: ...

    @overload
    def map(
        self, function: MapFunction[T, Any] | Callable[[T], Any], output_type: Any
    ) -> DataStream[Any]: ...

    def map(
        self, function: MapFunction[T, Any] | Callable[[T], Any], output_type: Any = None
    ) -> DataStream[Any]:
        """Map every element to one element."""
        call = function.map if isinstance(function, MapFunction) else function
        output = output_type_of(call, output_type, per_element=True)
        return self._then(OperatorKind.MAP, output, checked_function(function, MapFunction, "map"))

    @overload
    def flat_map(
        self,
        function: FlatMapFunction[T, OUT] | Callable[[T], Iterable[OUT] | None],
        output_type: None = None,
    ) -> DataStream[OUT]: ...

    @overload
    def flat_map(
        self,
        function: FlatMapFunction[T, Any] | Callable[[T], Iterable[Any] | None],
        output_type: builtins.type[OUT],
    ) -> DataStream[OUT]: ...

    @overload
    def flat_map(
        self,
        function: FlatMapFunction[T, Any] | Callable[[T], Iterable[Any] | None],
        output_type: Any,
    ) -> DataStream[Any]: ...

    def flat_map(
        self,
        function: FlatMapFunction[T, Any] | Callable[[T], Iterable[Any] | None],
        output_type: Any = None,
    ) -> DataStream[Any]:
        """Map every element to any number of elements."""
        call = function.flat_map if isinstance(function, FlatMapFunction) else function
        output = output_type_of(call, output_type, per_element=False)
        return self._then(
            OperatorKind.FLAT_MAP, output, checked_function(function, FlatMapFunction, "flat_map")
        )

    def filter(self, function: FilterFunction[T] | Callable[[T], bool]) -> DataStream[T]:
        """Keep the elements for which `function` is true."""
        return self._then(
            OperatorKind.FILTER, self.type, checked_function(function, FilterFunction, "filter")
        )

    @overload
    def key_by(self, key: KeySelector[T, K] | Callable[[T], K], /) -> KeyedStream[K, T]: ...

    @overload
    def key_by(self, *key: str) -> KeyedStream[Any, T]: ...

    def key_by(self, *key: Any) -> KeyedStream[Any, T]:
        """Partition the stream by key: names of columns, or one function.

        Columns are hashed in the JVM. The key of one column is its value, the key of several is a
        tuple. A function must return the same key for an element every time.
        """
        from holdfast.api.streams.keyed_stream import KeyedStream

        if key and all(isinstance(column, str) for column in key):
            columns = tuple(str(column) for column in key)
            self._check_columns(columns, "key_by")
            self._check_key_types(columns)
            partitioning = Partitioning(Partitioner.KEY, columns=columns)
        elif len(key) == 1 and isinstance(key[0], KeySelector):
            partitioning = Partitioning(Partitioner.KEY, selector=key[0].get_key)
        elif len(key) == 1 and callable(key[0]):
            partitioning = Partitioning(Partitioner.KEY, selector=key[0])
        else:
            raise JobGraphError(
                f"key_by takes names of columns, or one function or KeySelector, not {key!r}"
            )
        return KeyedStream(self._env, self._partitioned(partitioning))

    def union(self, *others: Stream[T]) -> DataStream[T]:
        """Merge streams of one type into one, which is not keyed."""
        stream_type = self.type
        for other in others:
            if other.type.nullable != stream_type.nullable:
                raise JobGraphError(
                    f"union needs streams of one type; this one carries {self.type}, "
                    f"the other {other.type}"
                )
            if other.type != stream_type:
                stream_type = stream_type.nullable
            if other._env is not self._env:
                raise JobGraphError("union needs streams of one environment")
        edges = self._edges + tuple(edge for other in others for edge in other._edges)
        return DataStream(
            self._env, tuple(replace(_unkeyed(edge), type=stream_type) for edge in edges)
        )

    @overload
    def connect(self, other: Stream[V]) -> ConnectedStreams[T, V]: ...

    @overload
    def connect(self, other: BroadcastStream[V]) -> BroadcastConnectedStream[T, V]: ...

    def connect(
        self, other: Stream[V] | BroadcastStream[V]
    ) -> ConnectedStreams[T, V] | BroadcastConnectedStream[T, V]:
        """Process two streams in one function, with shared state."""
        from holdfast.api.streams.connected import connected

        return connected(self, other)

    @overload
    def broadcast(self) -> DataStream[T]: ...

    @overload
    def broadcast(
        self, first: MapStateDescriptor, /, *others: MapStateDescriptor
    ) -> BroadcastStream[T]: ...

    def broadcast(self, *descriptors: MapStateDescriptor) -> DataStream[T] | BroadcastStream[T]:
        """Send every element to all subtasks of the next operator.

        With descriptors, connect the result with another stream: each subtask then has broadcast
        states of those names. All subtasks get the elements in the same order, and before the other
        stream's elements of the same epoch.
        """
        from holdfast.api.streams.connected import BroadcastStream

        stream = DataStream(self._env, self._partitioned(Partitioning(Partitioner.BROADCAST)))
        return BroadcastStream(stream, descriptors) if descriptors else stream

    def assign_timestamps_and_watermarks(self, strategy: WatermarkStrategy) -> DataStream[T]:
        """Assign event times and watermarks."""
        check_strategy(strategy, self.type, timed=self.timed)
        return self._then(OperatorKind.TIMESTAMPS, self.type, None, strategy)

    @property
    def timed(self) -> bool:
        """Whether the elements have event time."""
        return any(edge.node.timed for edge in self._edges)

    def lookup_join(
        self,
        table: Any,
        on: str | Sequence[str] | Mapping[str, str],
        *,
        refresh_interval: DurationLike | None = None,
        how: str = "inner",
    ) -> DataStream:
        """Join every row with the matching rows of a static DataFrame.

        Args:
            table: A static DataFrame, or a function that returns one. It is read when the job
                starts, and again after every `refresh_interval`, and kept in memory. A refresh
                lists the files of a DataFrame again, but keeps its paths, pinned versions and
                cache; use a function if those change. The function is called on the driver, and
                also once when the program is built.
            on: Columns of both, or a mapping from the stream's columns to the table's.
            refresh_interval: How long a copy of the table is used; for the whole job if None.
            how: "inner", or "left" to keep rows without a match, with nulls.
        """
        self._check_typed("lookup_join")
        lookup = self._env.lookup(self.type, table, on, refresh_interval, how)
        return self._then(OperatorKind.LOOKUP_JOIN, lookup.output, None, lookup)

    def window_all(self, assigner: WindowAssigner) -> WindowedStream[Any, T]:
        """Assign the whole stream to windows. One subtask does all the work."""
        from holdfast.api.streams.windowed import WindowedStream

        return WindowedStream(self, assigner)

    def count_window_all(self, size: int, slide: int | None = None) -> WindowedStream[Any, T]:
        """Windows of `size` elements of the whole stream; see `KeyedStream.count_window`."""
        from holdfast.api.streams.windowed import count_windows

        return count_windows(self, size, slide)

    def join(self, other: Stream[V]) -> JoinedStreams[T, V]:
        """Join elements of two streams with the same key and window."""
        from holdfast.api.streams.window_joins import JoinedStreams

        return JoinedStreams(self, other)

    def co_group(self, other: Stream[V]) -> CoGroupedStreams[T, V]:
        """Group elements of two streams with the same key and window."""
        from holdfast.api.streams.window_joins import CoGroupedStreams

        return CoGroupedStreams(self, other)

    def rebalance(self) -> DataStream[T]:
        """Distribute the elements to the next operator's subtasks in turn."""
        return DataStream(self._env, self._partitioned(Partitioning(Partitioner.REBALANCE)))

    def shuffle(self) -> DataStream[T]:
        """Distribute the elements to the next operator's subtasks at random."""
        return DataStream(self._env, self._partitioned(Partitioning(Partitioner.SHUFFLE)))

    def get_side_output(self, tag: OutputTag[V]) -> DataStream[V]:
        """The stream of the values that the operator yields as `(tag, value)`."""
        node = self._operator("get_side_output")
        node.side_outputs.setdefault(tag.tag_id, tag)
        stream_type = UNDECLARED if tag.type is None else StreamType.of(tag.type)
        return DataStream(self._env, (Edge(node, tag, stream_type),))

    def add_sink(
        self, sink: SinkFunction[T] | TwoPhaseCommitSinkFunction[T, Any]
    ) -> DataStreamSink:
        """Write every element with a function, in the tasks."""
        if isinstance(sink, TwoPhaseCommitSinkFunction):
            return self.sink_to(TwoPhaseCommitSink(sink))
        check_function(sink, SinkFunction, "add_sink")
        return self._sink(OperatorKind.SINK_FUNCTION, sink, "Sink")

    def sink_to(self, sink: Sink | SparkSink) -> DataStreamSink:
        """Write with a `Sink`, or with one of Spark's writers."""
        if isinstance(sink, SparkSink):
            self._check_typed(f"a {sink.format} sink")
            return self._sink(OperatorKind.OUTPUT, sink, f"Sink: {sink.format}")
        if not isinstance(sink, Sink):
            raise JobGraphError(
                f"sink_to takes a Sink or a SparkSink, not {type(sink).__name__}; "
                "add_sink takes a SinkFunction, foreach_batch a function of a DataFrame"
            )
        if sink.notes_opened and sink.committable_type is None:
            raise TypeDeclarationError(
                f"{sink.name} sets notes_opened, and has no type for what its writers open; set "
                "committable_type on it, as for a state, or to typing.Any to pickle it"
            )
        if sink.takes_rows:
            self._check_typed(f"a {sink.name}")
            sink.check(self.type.schema)
        return self._sink(OperatorKind.WRITER, sink, f"Sink: {sink.name}")

    def foreach_batch(self, function: Callable[[Any, int], object]) -> DataStreamSink:
        """Call `function` with a DataFrame and an id, on the driver.

        With exactly once it is called when a checkpoint completes, with the rows and the id of that
        checkpoint; after a recovery it may be called again with the same id. Otherwise it is called
        at the end of every epoch, with the epoch's number.
        """
        if not callable(function):
            raise JobGraphError(
                wrong_function("foreach_batch", function, "function of (df, epoch)")
            )
        self._check_typed("foreach_batch")
        return self._sink(OperatorKind.OUTPUT, ForeachBatchSink(function), "Sink: foreach_batch")

    def print(self, label: str | None = None) -> DataStreamSink:
        """Print every element on the driver, prefixed with `label`."""
        return self._sink(OperatorKind.OUTPUT, PrintSink(label), "Sink: print")

    @overload
    def execute_and_collect(
        self, job_name: str | None = None, limit: None = None
    ) -> CollectedElements[T]: ...

    @overload
    def execute_and_collect(self, job_name: str | None = None, *, limit: int) -> list[T]: ...

    @overload
    def execute_and_collect(self, job_name: str | None, limit: int) -> list[T]: ...

    def execute_and_collect(self, job_name: str | None = None, limit: int | None = None) -> Any:
        """Run the program and iterate over the elements of this stream.

        With `limit`, return a list of the first `limit` elements and cancel the job.
        """
        return self._env.execute_and_collect(self, job_name, limit)

    def _then(
        self, kind: OperatorKind, output: StreamType, function: object, details: object = None
    ) -> DataStream[Any]:
        node = self._env._graph.add(kind, self._edges, output, function=function, details=details)
        return DataStream(self._env, (Edge(node, None, output),))

    def _sink(self, kind: OperatorKind, function: object, name: str) -> DataStreamSink:
        node = self._env._graph.add(kind, self._edges, self.type, function=function, name=name)
        return DataStreamSink(self._env, (Edge(node, None, self.type),))

    def _partitioned(self, partitioning: Partitioning) -> tuple[Edge, ...]:
        return tuple(Edge(e.node, e.tag, e.type, partitioning) for e in self._edges)

    def _check_columns(self, columns: tuple[str, ...], what: str) -> None:
        names = list(self.type.schema.names)
        if self.type.kind != "row":
            raise JobGraphError(
                f"{what}{columns!r}: this stream has no columns, it carries {self.type}; "
                "use a function, or declare a row type for the operator before it"
            )
        for column in columns:
            if column not in names:
                near = difflib.get_close_matches(column, names, n=1)
                hint = f"did you mean {near[0]!r}?" if near else ""
                raise JobGraphError(
                    f"{what}: there is no column {column!r}; the stream has {names}. {hint}".strip()
                )

    def _check_key_types(self, columns: tuple[str, ...]) -> None:
        for column in columns:
            kind = self.type.schema.field(column).type
            if pa.types.is_nested(kind):
                raise KeyTypeError(
                    f"key_by: column {column!r} is of type {kind}, which cannot be a key; "
                    "key by its parts, or by a function"
                )

    def _check_typed(self, what: str) -> None:
        if self.type.kind == "object":
            raise TypeDeclarationError(
                f"{what} needs columns, and the elements of this stream have no declared type; "
                'give the operator before it an output_type, such as "url string, count bigint"'
            )


class DataStream(Stream[T]):
    """A stream of elements that is not keyed."""

    def process(
        self, function: ProcessFunction[T, OUT], output_type: Any = None
    ) -> DataStream[OUT]:
        """Apply the general operator: side outputs, metrics, life cycle."""
        if isinstance(function, KeyedProcessFunction):
            raise JobGraphError(
                f"process: {type(function).__name__} is a KeyedProcessFunction, and this stream is "
                "not keyed; call key_by directly before process"
            )
        check_function(function, ProcessFunction, "process", "process_element")
        output = output_type_of(function.process_element, output_type, per_element=False)
        return self._then(OperatorKind.PROCESS, output, function)


class Aggregations(ABC, Generic[T]):
    """Aggregates of one field, over the elements of a key or of a window.

    A field is given by its name or its position.
    """

    def sum(self, field: int | str = 0) -> DataStream[T]:
        """Sum of a field; the other fields are those of the first element."""
        return self._aggregate("sum", field)

    def min(self, field: int | str = 0) -> DataStream[T]:
        """Least value of a field; the other fields are those of the first element."""
        return self._aggregate("min", field)

    def max(self, field: int | str = 0) -> DataStream[T]:
        """Greatest value of a field; the other fields are those of the first element."""
        return self._aggregate("max", field)

    def min_by(self, field: int | str = 0) -> DataStream[T]:
        """The element with the least value of a field."""
        return self._aggregate("min_by", field)

    def max_by(self, field: int | str = 0) -> DataStream[T]:
        """The element with the greatest value of a field."""
        return self._aggregate("max_by", field)

    @abstractmethod
    def _aggregate(self, how: str, field: int | str) -> DataStream[T]:
        """The stream of one of these aggregates."""


def _unkeyed(edge: Edge) -> Edge:
    """The edge without its key: the streams of a union may have different keys, or none."""
    keyed = edge.partitioning.partitioner is Partitioner.KEY
    return Edge(edge.node, edge.tag, edge.type) if keyed else edge
