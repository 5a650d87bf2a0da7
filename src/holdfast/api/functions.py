"""The functions that users write, and their contexts.

A copy of a function runs on one subtask in one worker process. `open` is called before its first
element. It stays open for later epochs; `close` is called when the job ends or the worker no
longer needs it. Another worker may run the next epoch with its own copy, so keep data that must
outlive an epoch in state, not in attributes.
Functions yield their output, and `(tag, value)` for a side output.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Generic, TypeAlias

from holdfast.api.folds import Aggregator, Reducer
from holdfast.api.outputs import OutputTag
from holdfast.api.type_variables import ACC, IN, OUT, K, T, V

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.api.descriptors import (
        AggregatingStateDescriptor,
        ListStateDescriptor,
        MapStateDescriptor,
        ReducingStateDescriptor,
        ValueStateDescriptor,
    )
    from holdfast.api.metrics import MetricGroup
    from holdfast.api.state import (
        AggregatingState,
        ListState,
        MapState,
        ReducingState,
        ValueState,
    )
    from holdfast.api.time import TimeDomain


Outputs: TypeAlias = Iterable[OUT | tuple[OutputTag[Any], Any]] | None
"""What a function yields: elements, and `(tag, value)` for side outputs."""


class KeyedStateStore(ABC):
    """Gives access to the states of a key, or of a key's window."""

    __slots__ = ()

    @abstractmethod
    def get_state(self, descriptor: ValueStateDescriptor[T]) -> ValueState[T]:
        """Handle to a value per key."""

    @abstractmethod
    def get_list_state(self, descriptor: ListStateDescriptor[T]) -> ListState[T]:
        """Handle to a list per key."""

    @abstractmethod
    def get_map_state(self, descriptor: MapStateDescriptor[K, V]) -> MapState[K, V]:
        """Handle to a map per key."""

    @abstractmethod
    def get_reducing_state(self, descriptor: ReducingStateDescriptor[T]) -> ReducingState[T]:
        """Handle to a reduced value per key."""

    @abstractmethod
    def get_aggregating_state(
        self, descriptor: AggregatingStateDescriptor[IN, ACC, OUT]
    ) -> AggregatingState[IN, OUT]:
        """Handle to an accumulator per key."""


class RuntimeContext(KeyedStateStore):
    """State, metrics and facts about the subtask; states only on keyed streams."""

    @abstractmethod
    def get_index_of_this_subtask(self) -> int:
        """Index of this subtask, from 0."""

    @abstractmethod
    def get_number_of_parallel_subtasks(self) -> int:
        """Parallelism of this operator."""

    @abstractmethod
    def get_max_number_of_parallel_subtasks(self) -> int:
        """Max parallelism of this operator: its number of key groups."""

    @abstractmethod
    def get_attempt_number(self) -> int:
        """Number of earlier attempts of this subtask in this epoch."""

    @abstractmethod
    def get_task_name(self) -> str:
        """Name of the operator."""

    @abstractmethod
    def get_job_parameter(self, key: str, default: str | None = None) -> str | None:
        """A job parameter that was set on the environment."""

    @abstractmethod
    def get_job_parameters(self) -> Mapping[str, str]:
        """All job parameters that were set on the environment."""

    @abstractmethod
    def get_metrics_group(self) -> MetricGroup:
        """Registers counters, gauges and histograms."""


class Function:
    """Base class of functions."""

    def open(self, ctx: RuntimeContext) -> None:
        """Get state handles, register metrics, open connections."""

    def close(self) -> None:
        """Release the resources of `open`; also called after a failure."""

    @property
    def _is_rich(self) -> bool:
        """Whether the class overrides `open` or `close`."""
        cls = type(self)
        return cls.open is not Function.open or cls.close is not Function.close


class MapFunction(Function, ABC, Generic[IN, OUT]):
    """Maps one element to one."""

    @abstractmethod
    def map(self, value: IN) -> OUT:
        """Element to emit for `value`."""


class FlatMapFunction(Function, ABC, Generic[IN, OUT]):
    """Maps one element to any number of elements."""

    @abstractmethod
    def flat_map(self, value: IN) -> Outputs[OUT]:
        """Yield the elements to emit for `value`."""


class FilterFunction(Function, ABC, Generic[T]):
    """Selects elements."""

    @abstractmethod
    def filter(self, value: T) -> bool:
        """Whether to keep `value`."""


class ReduceFunction(Function, Reducer[T]):
    """Folds two values into one of the same type."""


class AggregateFunction(Function, Aggregator[IN, ACC, OUT]):
    """Adds values to an accumulator, and builds a result from it."""


class KeySelector(ABC, Generic[IN, K]):
    """Extracts the key of an element; must return the same key every time."""

    @abstractmethod
    def get_key(self, value: IN) -> K:
        """Key of `value`."""


class TimerService(ABC):
    """Reads the time, and sets timers for the current key.

    Times are milliseconds since 1970. A timer that is set twice for one key and time fires once.
    Timers are state: checkpoints and savepoints contain them.
    """

    __slots__ = ()

    @abstractmethod
    def current_processing_time(self) -> int:
        """The machine's clock, in milliseconds since 1970."""

    @abstractmethod
    def current_watermark(self) -> int:
        """The current watermark; `MIN_WATERMARK` at first."""

    @abstractmethod
    def register_event_time_timer(self, timestamp: int) -> None:
        """Call `on_timer` when the watermark reaches `timestamp`."""

    @abstractmethod
    def register_processing_time_timer(self, timestamp: int) -> None:
        """Call `on_timer` when the clock reaches `timestamp`."""

    @abstractmethod
    def delete_event_time_timer(self, timestamp: int) -> None:
        """Delete a timer if it exists."""

    @abstractmethod
    def delete_processing_time_timer(self, timestamp: int) -> None:
        """Delete a timer if it exists."""


class ProcessContext(ABC):
    """Time and timers of the current element."""

    __slots__ = ()

    @abstractmethod
    def timer_service(self) -> TimerService:
        """Reads the clock and the watermark; on a keyed stream also sets timers."""

    @abstractmethod
    def timestamp(self) -> int | None:
        """Event time of the element in milliseconds, or None if it has none."""


class KeyedProcessContext(ProcessContext, Generic[K]):
    """The context of an element of a keyed stream."""

    __slots__ = ()

    @abstractmethod
    def get_current_key(self) -> K:
        """Key of the element, or of the timer."""


class KeyedTimerContext(KeyedProcessContext[K]):
    """The context of a timer; `timestamp()` is the timer's."""

    __slots__ = ()

    @abstractmethod
    def time_domain(self) -> TimeDomain:
        """Whether the watermark or the clock fired the timer."""


class ProcessFunction(Function, ABC, Generic[IN, OUT]):
    """The general function on a stream that is not keyed."""

    Context: TypeAlias = ProcessContext

    @abstractmethod
    def process_element(self, value: IN, ctx: ProcessContext) -> Outputs[OUT]:
        """Yield the elements to emit for `value`."""


class KeyedProcessFunction(Function, ABC, Generic[K, IN, OUT]):
    """The general function on a keyed stream, with state and timers."""

    Context: TypeAlias = KeyedProcessContext
    OnTimerContext: TypeAlias = KeyedTimerContext

    @abstractmethod
    def process_element(self, value: IN, ctx: KeyedProcessContext[K]) -> Outputs[OUT]:
        """Yield the elements to emit for `value`."""

    def on_timer(self, timestamp: int, ctx: KeyedTimerContext[K]) -> Outputs[OUT]:
        """Yield the elements to emit when a timer fires; its key is the current key."""


class SinkContext(ABC):
    """The context of an element in `SinkFunction.invoke`."""

    __slots__ = ()

    @abstractmethod
    def timestamp(self) -> int | None:
        """Event time of the element in milliseconds, or None if it has none."""


class SinkFunction(Function, ABC, Generic[IN]):
    """Writes elements to an external system, in the tasks."""

    @abstractmethod
    def invoke(self, value: IN, context: SinkContext) -> None:
        """Write one element."""

    def flush(self) -> None:
        """Write buffered elements; called at the end of every epoch."""
