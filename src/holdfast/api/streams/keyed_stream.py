"""KeyedStream: a stream partitioned by key, with keyed state, timers and windows."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic

import pyarrow as pa

from holdfast.api.functions import KeyedProcessFunction, ReduceFunction
from holdfast.api.streams.aggregations import field_aggregate
from holdfast.api.streams.checks import check_function, checked_function
from holdfast.api.streams.data_stream import Aggregations, Stream
from holdfast.api.streams.graph import OperatorKind
from holdfast.api.streams.output_type import output_type_of
from holdfast.api.type_variables import OUT, K, T, V
from holdfast.errors import JobGraphError

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.api.streams.connected import IntervalJoin
    from holdfast.api.streams.data_stream import DataStream
    from holdfast.api.streams.windowed import WindowedStream
    from holdfast.api.windows.assigners import WindowAssigner


class KeyedStream(Stream[T], Aggregations[T], Generic[K, T]):
    """A stream that is partitioned by key; its operators have keyed state.

    Its aggregates are rolling: every element emits the result so far.
    """

    def order_by(self, *columns: str) -> KeyedStream[K, T]:
        """Sort the rows of an epoch by columns before the next operator.

        Without columns, sort by event time. The order of equal rows is undefined. Rows of different
        epochs are not sorted.
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
        """Assign the elements of every key to windows."""
        from holdfast.api.streams.windowed import WindowedStream

        return WindowedStream(self, assigner)

    def count_window(self, size: int, slide: int | None = None) -> WindowedStream[K, T]:
        """Windows of `size` elements of a key.

        Args:
            size: Number of elements in a window; a window that is not full never fires.
            slide: Fire a window of the last `size` elements every `slide` elements; if None,
                windows do not overlap.
        """
        from holdfast.api.streams.windowed import count_windows

        return count_windows(self, size, slide)

    def interval_join(self, other: KeyedStream[Any, V]) -> IntervalJoin[T, V]:
        """Join elements of two streams with the same key and close event times."""
        from holdfast.api.streams.connected import IntervalJoin

        return IntervalJoin(self, other)

    def process(
        self, function: KeyedProcessFunction[K, T, OUT], output_type: Any = None
    ) -> DataStream[OUT]:
        """Apply the general operator, with keyed state."""
        check_function(function, KeyedProcessFunction, "process", "process_element")
        output = output_type_of(function.process_element, output_type, per_element=False)
        return self._then(OperatorKind.KEYED_PROCESS, output, function)

    def reduce(self, function: ReduceFunction[T] | Callable[[T, T], T]) -> DataStream[T]:
        """Fold the elements of every key; emits the current result for every element."""
        return self._then(
            OperatorKind.REDUCE, self.type, checked_function(function, ReduceFunction, "reduce")
        )

    def _aggregate(self, how: str, field: int | str) -> DataStream[T]:
        stream = self._then(OperatorKind.REDUCE, self.type, field_aggregate(how, field, self.type))
        return stream.name(f"{how}({field!r})")
