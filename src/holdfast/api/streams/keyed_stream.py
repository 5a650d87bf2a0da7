"""KeyedStream: a stream partitioned by key, with keyed state, timers and windows."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic

import pyarrow as pa

from holdfast.api.functions import KeyedProcessFunction, ReduceFunction
from holdfast.api.streams.aggregations import field_aggregate
from holdfast.api.streams.data_stream import Stream
from holdfast.api.streams.graph import OperatorKind
from holdfast.api.streams.operator import checked_function, wrong_function
from holdfast.api.streams.output_type import output_type_of
from holdfast.api.type_variables import OUT, K, T, V
from holdfast.errors import JobGraphError

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.api.streams.connected import IntervalJoin
    from holdfast.api.streams.data_stream import DataStream
    from holdfast.api.streams.windowed import WindowedStream
    from holdfast.api.windows.assigners import WindowAssigner


class KeyedStream(Stream[T], Generic[K, T]):
    """A stream spread by key; its operators have keyed state."""

    def order_by(self, *columns: str) -> KeyedStream[K, T]:
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

    def window(self, assigner: WindowAssigner) -> WindowedStream[K, T]:
        """Cut the stream of every key into windows."""
        from holdfast.api.streams.windowed import WindowedStream

        return WindowedStream(self, assigner)

    def count_window(self, size: int, slide: int | None = None) -> WindowedStream[K, T]:
        """Windows of so many elements of a key.

        Args:
            size: Elements in a window; one that is not full never fires.
            slide: A window of the last `size` elements fires every so many; if None, windows
                follow each other.
        """
        from holdfast.api.streams.windowed import count_windows

        return count_windows(self, size, slide)

    def interval_join(self, other: KeyedStream[Any, V]) -> IntervalJoin[T, V]:
        """Pair elements of two streams that have one key and lie near each other in time."""
        from holdfast.api.streams.connected import IntervalJoin

        return IntervalJoin(self, other)

    def process(
        self, function: KeyedProcessFunction[K, T, OUT], output_type: Any = None
    ) -> DataStream[OUT]:
        """Apply the general operator, with keyed state."""
        if not isinstance(function, KeyedProcessFunction):
            raise JobGraphError(wrong_function("process", function, "KeyedProcessFunction"))
        output = output_type_of(function.process_element, output_type, per_element=False)
        return self._then(OperatorKind.KEYED_PROCESS, output, function)

    def reduce(self, function: ReduceFunction[T] | Callable[[T, T], T]) -> DataStream[T]:
        """Fold the elements of every key; emits the result so far for every element."""
        return self._then(
            OperatorKind.REDUCE, self.type, checked_function(function, ReduceFunction, "reduce")
        )

    def sum(self, field: int | str = 0) -> DataStream[T]:
        """Sum of a field so far; other fields are those of the key's first element."""
        return self._aggregate("sum", field)

    def min(self, field: int | str = 0) -> DataStream[T]:
        """Least value of a field so far, in the key's first element."""
        return self._aggregate("min", field)

    def max(self, field: int | str = 0) -> DataStream[T]:
        """Greatest value of a field so far, in the key's first element."""
        return self._aggregate("max", field)

    def min_by(self, field: int | str = 0) -> DataStream[T]:
        """The element with the least value of a field so far."""
        return self._aggregate("min_by", field)

    def max_by(self, field: int | str = 0) -> DataStream[T]:
        """The element with the greatest value of a field so far."""
        return self._aggregate("max_by", field)

    def _aggregate(self, how: str, field: int | str) -> DataStream[T]:
        stream = self._then(OperatorKind.REDUCE, self.type, field_aggregate(how, field, self.type))
        return stream.name(f"{how}({field!r})")
