"""Streams: how a program is written.

Every method returns a new stream; nothing runs before `execute`.
"""

from __future__ import annotations

import difflib
from dataclasses import replace
from typing import TYPE_CHECKING, Any, overload

import pyarrow as pa

from holdfast.api.aggregations import field_aggregate
from holdfast.api.driver_sinks import ForeachBatchSink, PrintSink, SparkSink
from holdfast.api.functions import (
    FilterFunction,
    FlatMapFunction,
    KeyedProcessFunction,
    KeySelector,
    MapFunction,
    ProcessFunction,
    ReduceFunction,
    SinkFunction,
)
from holdfast.api.graph import Edge, Exchange, Kind, Partitioning
from holdfast.api.sink import Sink
from holdfast.api.stream_operator import DataStreamSink, StreamOperator
from holdfast.api.timestamps import check_strategy
from holdfast.api.two_phase_commit import TwoPhaseCommitSink, TwoPhaseCommitSinkFunction
from holdfast.api.types import StreamType, declared_output
from holdfast.errors import JobGraphError, KeyTypeError, TypeDeclarationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from holdfast.api.connected_streams import (
        BroadcastConnectedStream,
        BroadcastStream,
        ConnectedStreams,
        IntervalJoin,
    )
    from holdfast.api.descriptors import MapStateDescriptor
    from holdfast.api.options import Duration
    from holdfast.api.output import OutputTag
    from holdfast.api.time import WatermarkStrategy
    from holdfast.api.window_assigners import WindowAssigner
    from holdfast.api.window_joins import CoGroupedStreams, JoinedStreams
    from holdfast.api.windowed_streams import WindowedStream


class DataStream(StreamOperator):
    """A stream of elements."""

    @property
    def type(self) -> StreamType:
        """What the stream carries."""
        return self._edges[0].type

    def map(
        self, function: MapFunction | Callable[[Any], Any], output_type: Any = None
    ) -> DataStream:
        """Turn every element into one other."""
        call = function.map if isinstance(function, MapFunction) else function
        output = output_type_of(call, output_type, per_element=True)
        return self._then(Kind.MAP, output, _checked(function, MapFunction, "map"))

    def flat_map(
        self,
        function: FlatMapFunction | Callable[[Any], Iterable[Any] | None],
        output_type: Any = None,
    ) -> DataStream:
        """Turn every element into any number of others."""
        call = function.flat_map if isinstance(function, FlatMapFunction) else function
        output = output_type_of(call, output_type, per_element=False)
        return self._then(Kind.FLAT_MAP, output, _checked(function, FlatMapFunction, "flat_map"))

    def filter(self, function: FilterFunction | Callable[[Any], bool]) -> DataStream:
        """Keep the elements for which `function` is true."""
        return self._then(Kind.FILTER, self.type, _checked(function, FilterFunction, "filter"))

    def process(self, function: ProcessFunction, output_type: Any = None) -> DataStream:
        """Apply the general operator: side outputs, metrics, life cycle."""
        if not isinstance(function, ProcessFunction):
            raise JobGraphError(wrong_function("process", function, "ProcessFunction"))
        output = output_type_of(function.process_element, output_type, per_element=False)
        return self._then(Kind.PROCESS, output, function)

    def key_by(self, *key: str | KeySelector | Callable[[Any], Any]) -> KeyedStream:
        """Spread the stream by key: names of columns, or one function.

        Columns are hashed in the JVM. One column gives its value as the key, several
        give a tuple. A function must give the same key for an element every time.
        """
        if key and all(isinstance(column, str) for column in key):
            columns = tuple(str(column) for column in key)
            self._check_columns(columns, "key_by")
            self._check_key_types(columns)
            partitioning = Partitioning(Exchange.KEY, columns=columns)
        elif len(key) == 1 and isinstance(key[0], KeySelector):
            partitioning = Partitioning(Exchange.KEY, selector=key[0].get_key)
        elif len(key) == 1 and callable(key[0]):
            partitioning = Partitioning(Exchange.KEY, selector=key[0])
        else:
            raise JobGraphError(
                f"key_by takes names of columns, or one function or KeySelector, not {key!r}"
            )
        return KeyedStream(self._env, self._partitioned(partitioning))

    def union(self, *others: DataStream) -> DataStream:
        """This stream and others of the same type as one, which is not keyed."""
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
    def connect(self, other: DataStream) -> ConnectedStreams: ...

    @overload
    def connect(self, other: BroadcastStream) -> BroadcastConnectedStream: ...

    def connect(
        self, other: DataStream | BroadcastStream
    ) -> ConnectedStreams | BroadcastConnectedStream:
        """Bring two streams together in one function, which shares its state between them."""
        from holdfast.api.connected_streams import connected

        return connected(self, other)

    @overload
    def broadcast(self) -> DataStream: ...

    @overload
    def broadcast(
        self, first: MapStateDescriptor, /, *others: MapStateDescriptor
    ) -> BroadcastStream: ...

    def broadcast(self, *descriptors: MapStateDescriptor) -> DataStream | BroadcastStream:
        """Send every element to all subtasks of the next operator.

        With descriptors, the result is connected with another stream, and each subtask keeps
        broadcast states of those names. All subtasks see the elements in the same order, and
        before the other stream's elements of the same epoch.
        """
        from holdfast.api.connected_streams import BroadcastStream

        stream = DataStream(self._env, self._partitioned(Partitioning(Exchange.BROADCAST)))
        return BroadcastStream(stream, descriptors) if descriptors else stream

    def assign_timestamps_and_watermarks(self, strategy: WatermarkStrategy) -> DataStream:
        """Give elements their event time, and say how late they may come."""
        check_strategy(strategy, self.type, timed=self.timed)
        return self._then(Kind.TIMESTAMPS, self.type, None, strategy)

    @property
    def timed(self) -> bool:
        """Whether the elements have event time."""
        return any(edge.node.timed for edge in self._edges)

    def lookup_join(
        self,
        table: Any,
        on: str | Sequence[str] | Mapping[str, str],
        *,
        refresh_interval: Duration | None = None,
        how: str = "inner",
    ) -> DataStream:
        """Join every row with the rows of a static DataFrame that have the same values.

        Args:
            table: A static DataFrame, or a function that makes one: it is read when the job
                starts, and again whenever `refresh_interval` has passed. It is kept in memory.
                Of a DataFrame, files are looked for again; paths, pinned versions and what is
                cached stay as they were, so prefer a function where those change. A function
                is called on the driver, also once when the program is built.
            on: Columns that both have, or a mapping from the stream's columns to the table's.
            refresh_interval: How long a copy of the table may be used; for good if None.
            how: "inner", or "left" to keep rows that have no match, with nulls.
        """
        self._check_typed("lookup_join")
        lookup = self._env.lookup(self.type, table, on, refresh_interval, how)
        return self._then(Kind.LOOKUP_JOIN, lookup.output, None, lookup)

    def window_all(self, assigner: WindowAssigner) -> WindowedStream:
        """Cut the whole stream into windows. One subtask does all the work."""
        from holdfast.api.windowed_streams import WindowedStream

        return WindowedStream(self, assigner)

    def count_window_all(self, size: int, slide: int | None = None) -> WindowedStream:
        """Windows of so many elements of the whole stream; see `KeyedStream.count_window`."""
        from holdfast.api.windowed_streams import count_windows

        return count_windows(self, size, slide)

    def join(self, other: DataStream) -> JoinedStreams:
        """Pair the elements of two streams that have one key and lie in one window."""
        from holdfast.api.window_joins import JoinedStreams

        return JoinedStreams(self, other)

    def co_group(self, other: DataStream) -> CoGroupedStreams:
        """Bring the elements of two streams together that have one key and one window."""
        from holdfast.api.window_joins import CoGroupedStreams

        return CoGroupedStreams(self, other)

    def rebalance(self) -> DataStream:
        """Deal the elements out to the next operator's subtasks in turn."""
        return DataStream(self._env, self._partitioned(Partitioning(Exchange.REBALANCE)))

    def shuffle(self) -> DataStream:
        """Deal the elements out to the next operator's subtasks at random."""
        return DataStream(self._env, self._partitioned(Partitioning(Exchange.SHUFFLE)))

    def get_side_output(self, tag: OutputTag) -> DataStream:
        """The stream of what the operator yields as `(tag, value)`."""
        node = self._operator("get_side_output")
        node.side_outputs.setdefault(tag.tag_id, tag)
        return DataStream(
            self._env, (Edge(node, tag, StreamType.of(Any if tag.type is None else tag.type)),)
        )

    def add_sink(self, sink: SinkFunction | TwoPhaseCommitSinkFunction) -> DataStreamSink:
        """Hand every element to a function, in the tasks."""
        if isinstance(sink, TwoPhaseCommitSinkFunction):
            return self.sink_to(TwoPhaseCommitSink(sink))
        if not isinstance(sink, SinkFunction):
            raise JobGraphError(wrong_function("add_sink", sink, "SinkFunction"))
        return self._sink(Kind.SINK_FUNCTION, sink, "Sink")

    def sink_to(self, sink: Sink | SparkSink) -> DataStreamSink:
        """Write with a sink that publishes in a second step, or with one of Spark's writers."""
        if isinstance(sink, SparkSink):
            self._check_typed(f"a {sink.format} sink")
            return self._sink(Kind.OUTPUT, sink, f"Sink: {sink.format}")
        if not isinstance(sink, Sink):
            raise JobGraphError(
                f"sink_to takes a Sink or a SparkSink, not {type(sink).__name__}; "
                "add_sink takes a SinkFunction, foreach_batch a function of a DataFrame"
            )
        if sink.notes_opened and sink.committable_type is None:
            raise TypeDeclarationError(
                f"{sink.name} notes what its writers open, and does not say of what type that is; "
                "set committable_type on it, as for a state, or to typing.Any to have it pickled"
            )
        if sink.takes_rows:
            self._check_typed(f"a {sink.name}")
            sink.check(self.type.schema)
        return self._sink(Kind.WRITER, sink, f"Sink: {sink.name}")

    def foreach_batch(self, function: Callable[[Any, int], object]) -> DataStreamSink:
        """Hand a DataFrame and its number to `function`, on the driver.

        With exactly once it is called when a checkpoint is complete, with the rows and the
        id of that checkpoint: once, or after a recovery again with the same id. Otherwise
        it is called at the end of every epoch, with the epoch's number.
        """
        if not callable(function):
            raise JobGraphError(
                wrong_function("foreach_batch", function, "function of (df, epoch)")
            )
        self._check_typed("foreach_batch")
        return self._sink(Kind.OUTPUT, ForeachBatchSink(function), "Sink: foreach_batch")

    def print(self, label: str | None = None) -> DataStreamSink:
        """Print every element on the driver, after `label` if one is given."""
        return self._sink(Kind.OUTPUT, PrintSink(label), "Sink: print")

    def execute_and_collect(self, job_name: str | None = None, limit: int | None = None) -> Any:
        """Run the program and iterate over the elements of this stream.

        With `limit`, a list of the first so many; the job is cancelled then.
        """
        return self._env.execute_and_collect(self, job_name, limit)

    def _then(
        self, kind: Kind, output: StreamType, function: object, details: object = None
    ) -> DataStream:
        node = self._env.graph.add(kind, self._edges, output, function=function, details=details)
        return DataStream(self._env, (Edge(node, None, output),))

    def _sink(self, kind: Kind, function: object, name: str) -> DataStreamSink:
        node = self._env.graph.add(kind, self._edges, self.type, function=function, name=name)
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


class KeyedStream(DataStream):
    """A stream spread by key; its operators have keyed state."""

    def order_by(self, *columns: str) -> KeyedStream:
        """Hand the rows of an epoch to the next operator in order of these columns.

        Without columns, in order of event time. Rows that are equal in them come in any
        order, and those of a later epoch come later, whatever they hold.
        """
        if columns:
            self._check_columns(columns, "order_by")
            for column in columns:
                if pa.types.is_map(self.type.schema.field(column).type):
                    raise JobGraphError(f"order_by: column {column!r} is a map, which has no order")
        elif not self.timed:
            raise JobGraphError(
                "order_by() without columns sorts by event time, which this stream does not have; "
                "name columns, or call assign_timestamps_and_watermarks before key_by"
            )
        edges = (
            replace(edge, partitioning=replace(edge.partitioning, order=columns))
            for edge in self._edges
        )
        return KeyedStream(self._env, tuple(edges))

    def window(self, assigner: WindowAssigner) -> WindowedStream:
        """Cut the stream of every key into windows."""
        from holdfast.api.windowed_streams import WindowedStream

        return WindowedStream(self, assigner)

    def count_window(self, size: int, slide: int | None = None) -> WindowedStream:
        """Windows of so many elements of a key.

        Args:
            size: Elements in a window; one that is not full never fires.
            slide: A window of the last `size` elements fires every so many; if None, windows
                follow each other.
        """
        from holdfast.api.windowed_streams import count_windows

        return count_windows(self, size, slide)

    def interval_join(self, other: KeyedStream) -> IntervalJoin:
        """Pair elements of two streams that have one key and lie near each other in time."""
        from holdfast.api.connected_streams import IntervalJoin

        return IntervalJoin(self, other)

    def process(  # type: ignore[override]
        self, function: KeyedProcessFunction, output_type: Any = None
    ) -> DataStream:
        """Apply the general operator, with keyed state."""
        if not isinstance(function, KeyedProcessFunction):
            raise JobGraphError(wrong_function("process", function, "KeyedProcessFunction"))
        output = output_type_of(function.process_element, output_type, per_element=False)
        return self._then(Kind.KEYED_PROCESS, output, function)

    def reduce(self, function: ReduceFunction | Callable[[Any, Any], Any]) -> DataStream:
        """Fold the elements of every key; emits the result so far for every element."""
        return self._then(Kind.REDUCE, self.type, _checked(function, ReduceFunction, "reduce"))

    def sum(self, field: int | str = 0) -> DataStream:
        """Sum of a field so far; other fields are those of the key's first element."""
        return self._aggregate("sum", field)

    def min(self, field: int | str = 0) -> DataStream:
        """Least value of a field so far, in the key's first element."""
        return self._aggregate("min", field)

    def max(self, field: int | str = 0) -> DataStream:
        """Greatest value of a field so far, in the key's first element."""
        return self._aggregate("max", field)

    def min_by(self, field: int | str = 0) -> DataStream:
        """The element with the least value of a field so far."""
        return self._aggregate("min_by", field)

    def max_by(self, field: int | str = 0) -> DataStream:
        """The element with the greatest value of a field so far."""
        return self._aggregate("max_by", field)

    def _aggregate(self, how: str, field: int | str) -> DataStream:
        stream = self._then(Kind.REDUCE, self.type, field_aggregate(how, field, self.type))
        return stream.name(f"{how}({field!r})")


def _unkeyed(edge: Edge) -> Edge:
    """The edge without its key: the parts of a union may be keyed differently, or not at all."""
    keyed = edge.partitioning.exchange is Exchange.KEY
    return Edge(edge.node, edge.tag, edge.type) if keyed else edge


def output_type_of(call: Callable[..., Any], declared: object, *, per_element: bool) -> StreamType:
    """The declared type, else what the annotation of `call` says, else pickled objects."""
    if declared is not None:
        return StreamType.of(declared)
    return declared_output(call, per_element=per_element) or StreamType.of(Any)


def _checked(function: object, kind: type, what: str) -> object:
    if isinstance(function, kind) or callable(function):
        return function
    raise JobGraphError(wrong_function(what, function, f"{kind.__name__} or a callable"))


def wrong_function(what: str, function: object, wanted: str) -> str:
    """The message for a method that was given another function than it takes."""
    return f"{what} takes a {wanted}, not {type(function).__name__}"
