"""Windowed streams: settings of windows, and functions on them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Generic

import pyarrow as pa

from holdfast.api.functions import AggregateFunction, ReduceFunction
from holdfast.api.outputs import OutputTag
from holdfast.api.streams.aggregations import field_aggregate
from holdfast.api.streams.checks import check_function, checked_function, wrong_function
from holdfast.api.streams.data_stream import Aggregations, DataStream, Stream
from holdfast.api.streams.graph import Edge, OperatorKind, Partitioner, Partitioning
from holdfast.api.streams.keyed_stream import KeyedStream
from holdfast.api.streams.output_type import output_type_of, return_annotation
from holdfast.api.type_variables import OUT, K, T
from holdfast.api.windows.assigners import GlobalWindows, MergingWindowAssigner, WindowAssigner
from holdfast.api.windows.evictors import CountEvictor, Evictor
from holdfast.api.windows.functions import (
    AllWindowFunction,
    ProcessAllWindowFunction,
    ProcessWindowFunction,
    WindowFunction,
)
from holdfast.api.windows.spec import Caller, Fold, Windowing
from holdfast.api.windows.triggers import CountTrigger, PurgingTrigger, Trigger
from holdfast.api.windows.windows import TimeWindow
from holdfast.config.options import duration_ms
from holdfast.errors import ConfigurationError, JobGraphError
from holdfast.types.stream_type import StreamType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Self

    from holdfast.config.options import DurationLike


class WindowSettings:
    """Settings of windows, of one stream or of a join."""

    def __init__(self, windowing: Windowing) -> None:
        """Default settings."""
        self._windowing = windowing

    def trigger(self, trigger: Trigger) -> Self:
        """Set when windows fire; replaces the default trigger of the assigner."""
        if not isinstance(trigger, Trigger):
            raise JobGraphError(f"trigger takes a Trigger, not {type(trigger).__name__}")
        check_merging(self._windowing.assigner, trigger)
        return self._with(trigger=trigger)

    def evictor(self, evictor: Evictor) -> Self:
        """Remove elements before or after the function. Windows then keep all elements."""
        if not isinstance(evictor, Evictor):
            raise JobGraphError(f"evictor takes an Evictor, not {type(evictor).__name__}")
        return self._with(evictor=evictor)

    def allowed_lateness(self, lateness: DurationLike) -> Self:
        """Keep windows for `lateness` after their end, for late elements.

        Each late element fires the window again. In processing time no element is late.
        """
        try:
            milliseconds = duration_ms(lateness)
        except ValueError as error:
            raise JobGraphError(f"allowed_lateness: {error}, got {lateness!r}") from error
        return self._with(allowed_lateness_ms=milliseconds)

    def side_output_late_data(self, tag: OutputTag) -> Self:
        """Send elements that are too late for all their windows to `tag`.

        By default they are dropped, and counted as numLateRecordsDropped.
        """
        if not isinstance(tag, OutputTag):
            raise JobGraphError(f"side_output_late_data takes an OutputTag, not {tag!r}")
        return self._with(late=tag)

    def _with(self, **changes: Any) -> Self:
        changed = object.__new__(type(self))
        changed.__dict__.update(self.__dict__, _windowing=replace(self._windowing, **changes))
        return changed


class WindowedStream(WindowSettings, Aggregations[T], Generic[K, T]):
    """The windows of every key, or of all elements of a stream that is not keyed.

    If the stream is keyed, functions take the key as their first argument.
    """

    def __init__(self, stream: Stream[T], assigner: WindowAssigner) -> None:
        """The windows of `assigner`."""
        super().__init__(windowing(assigner, stream))
        self._stream = stream
        self._keyed = isinstance(stream, KeyedStream)

    def reduce(
        self,
        function: ReduceFunction[T] | Callable[[T, T], T],
        window_function: Any = None,
        output_type: Any = None,
    ) -> DataStream[Any]:
        """Fold the elements of a window into one as they arrive, and emit it.

        Args:
            function: Folds a new element into the folded value.
            window_function: Called with the folded value when the window fires.
            output_type: Type of the window function's output, unless it is annotated.
        """
        checked_function(function, ReduceFunction, "reduce")
        self._check_plain("reduce", function)
        fold = Fold(function, aggregates=False)
        return self._folded(fold, window_function, output_type, self._stream.type)

    def aggregate(
        self,
        function: AggregateFunction[T, Any, Any],
        window_function: Any = None,
        accumulator_type: Any = None,
        output_type: Any = None,
    ) -> DataStream[Any]:
        """Add the elements of a window to an accumulator as they arrive, and emit its result.

        Args:
            function: Creates and merges accumulators, adds elements to them, builds results.
            window_function: Called with the result when the window fires.
            accumulator_type: Type of the accumulator, unless `create_accumulator` is annotated;
                pickled if neither is given.
            output_type: Type of the output, unless it is annotated.
        """
        check_function(function, AggregateFunction, "aggregate")
        self._check_plain("aggregate", function)
        if accumulator_type is None:
            accumulator_type = return_annotation(function.create_accumulator)
        fold = Fold(function, aggregates=True, type=accumulator_type)
        result = output_type_of(
            function.get_result, None if window_function else output_type, per_element=True
        )
        return self._folded(fold, window_function, output_type, result)

    def apply(
        self,
        function: WindowFunction[T, OUT, K, Any]
        | AllWindowFunction[T, OUT, Any]
        | Callable[..., Iterable[OUT] | None],
        output_type: Any = None,
    ) -> DataStream[OUT]:
        """Call a `WindowFunction` (an `AllWindowFunction`) with all elements of a window.

        A callable of (key, window, elements), or of (window, elements), works as well.
        """
        wanted = WindowFunction if self._keyed else AllWindowFunction
        if not isinstance(function, wanted) and (
            isinstance(function, _WINDOW_FUNCTIONS) or not callable(function)
        ):
            raise JobGraphError(
                wrong_function("apply", function, f"{wanted.__name__} or a callable")
            )
        call: Any = function.apply if isinstance(function, wanted) else function
        output = output_type_of(call, output_type, per_element=False)
        return self._then(function, output, caller=Caller.APPLY)

    def process(
        self,
        function: ProcessWindowFunction[T, OUT, K, Any] | ProcessAllWindowFunction[T, OUT, Any],
        output_type: Any = None,
    ) -> DataStream[OUT]:
        """Call a `ProcessWindowFunction` (a `ProcessAllWindowFunction`) with all elements."""
        wanted = ProcessWindowFunction if self._keyed else ProcessAllWindowFunction
        check_function(function, wanted, "process")
        output = output_type_of(function.process, output_type, per_element=False)
        return self._then(function, output, caller=Caller.PROCESS)

    def count(self) -> DataStream:
        """Count the elements of a window.

        The output has the columns of the key, then, for time windows, `window_start` and
        `window_end`, then `count`. The key must be columns; for a function, use `aggregate`.
        """
        key = self._key_fields()
        fields = [*key, pa.field("count", pa.int64())]
        timed = issubclass(self._windowing.assigner.window_type, TimeWindow)
        if timed:
            moment = pa.timestamp("us", "UTC")
            bounds = [pa.field("window_start", moment), pa.field("window_end", moment)]
            fields = [*key, *bounds, fields[-1]]
        names = [field.name for field in fields]
        if len(set(names)) < len(names):
            raise JobGraphError(
                f"count() would have two columns of one name: {names}; rename the key's columns, "
                "or use aggregate"
            )
        row = _CountRow(len(key), timed)
        stream = self.aggregate(_Count(), row, output_type=pa.schema(fields))
        return stream.name("count()")

    def _aggregate(self, how: str, field: int | str) -> DataStream[T]:
        stream = self.reduce(field_aggregate(how, field, self._stream.type))
        return stream.name(f"{how}({field!r})")

    def _key_fields(self) -> list[pa.Field]:
        if not self._keyed:
            return []
        edge = self._stream._edges[0]
        if not edge.partitioning.columns:
            raise JobGraphError(
                "count() needs a key of columns, to name them in its rows; key by columns, or use "
                "aggregate with a function of your own"
            )
        return [edge.type.schema.field(column) for column in edge.partitioning.columns]

    def _folded(
        self, fold: Fold, window_function: Any, output_type: Any, folded: StreamType
    ) -> DataStream:
        if window_function is None:
            output = folded if output_type is None else StreamType.of(output_type)
            return self._then(None, output, fold=fold, caller=Caller.NOTHING)
        processes = isinstance(window_function, ProcessWindowFunction | ProcessAllWindowFunction)
        changed = self._with(fold=fold)
        way = changed.process if processes else changed.apply
        return way(window_function, output_type)

    def _then(self, function: Any, output: StreamType, **changes: Any) -> DataStream:
        details = replace(self._windowing, **changes)
        stream = self._stream
        edges = stream._edges
        if not self._keyed:
            edges = tuple(replace(edge, partitioning=_TO_ONE) for edge in edges)
        node = stream._env._graph.add(
            OperatorKind.WINDOW, edges, output, function=function, details=details
        )
        if not self._keyed:
            node.parallelism = node.max_parallelism = 1
        return DataStream(stream._env, (Edge(node, None, output),))

    def _check_plain(self, what: str, function: Any) -> None:
        if getattr(function, "_is_rich", False):
            raise JobGraphError(
                f"{what} on windows takes a function without open() and close(); put what needs "
                "them into a window function, the second argument"
            )


def windowing(assigner: WindowAssigner, stream: Stream[Any], second: Any = None) -> Windowing:
    """The default settings of an assigner's windows."""
    if not isinstance(assigner, WindowAssigner):
        raise JobGraphError(
            f"window takes a WindowAssigner, such as TumblingEventTimeWindows.of('1 hour'), not "
            f"{assigner!r}"
        )
    for one in (stream, second):
        if one is not None and assigner.is_event_time() and not one.timed:
            raise JobGraphError(
                f"{assigner!r} uses event time, which the stream does not have; call "
                "assign_timestamps_and_watermarks before key_by, or use windows in processing time"
            )
    trigger = assigner.get_default_trigger()
    check_merging(assigner, trigger)
    second_type = None if second is None else second.type
    return Windowing(assigner, trigger, None, 0, None, None, Caller.APPLY, stream.type, second_type)


def check_merging(assigner: WindowAssigner, trigger: Trigger) -> None:
    """Check that the trigger can merge if the windows do."""
    if isinstance(assigner, MergingWindowAssigner) and not trigger.can_merge():
        raise JobGraphError(
            f"{assigner!r} merges windows, and {trigger!r} cannot be merged; give it can_merge() "
            "and on_merge(), or use another trigger"
        )


def count_windows(stream: Stream[T], size: int, slide: int | None) -> WindowedStream[Any, T]:
    """Windows of `size` elements."""
    windowed = WindowedStream(stream, GlobalWindows.create())
    try:
        if slide is None:
            return windowed.trigger(PurgingTrigger.of(CountTrigger.of(size)))
        evicting = windowed.evictor(CountEvictor.of(size))
        return evicting.trigger(CountTrigger.of(slide))
    except ConfigurationError as error:
        raise JobGraphError(f"count_window: {error}") from error


@dataclass(frozen=True)
class _Count(AggregateFunction):
    """Counts elements."""

    def create_accumulator(self) -> int:
        return 0

    def add(self, value: Any, accumulator: int) -> int:
        return accumulator + 1

    def get_result(self, accumulator: int) -> int:
        return accumulator

    def merge(self, acc_a: int, acc_b: int) -> int:
        return acc_a + acc_b


@dataclass(frozen=True)
class _CountRow:
    """Builds a row of a window's key, bounds and count."""

    key_columns: int
    timed: bool

    def __call__(self, *args: Any) -> Iterator[tuple[Any, ...]]:
        """The row of a window; the key is missing if the stream is not keyed."""
        *key, window, counts = args
        first = key[0] if self.key_columns > 1 else key
        bounds = (_moment(window.start), _moment(window.end)) if self.timed else ()
        yield (*first, *bounds, counts[0])


@lru_cache(maxsize=1024)
def _moment(milliseconds: int) -> datetime:
    return _EPOCH + timedelta(milliseconds=milliseconds)


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_TO_ONE: Final = Partitioning(Partitioner.REBALANCE)
_WINDOW_FUNCTIONS: Final = (
    WindowFunction,
    AllWindowFunction,
    ProcessWindowFunction,
    ProcessAllWindowFunction,
)
