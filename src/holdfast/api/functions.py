"""The functions users write, and the context they run in.

A function lives on one subtask. `open` runs before its first element and `close`
after its last, once in every epoch: what must outlive an epoch belongs in state,
not in an attribute. Output is yielded; a side output is yielded as `(tag, value)`.
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
    """Where a function gets its states: those of a key, or of a key's window."""

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
    """What a function can learn and get where it runs; states only on a keyed stream."""

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
        """How often this subtask was tried before, in this epoch."""

    @abstractmethod
    def get_task_name(self) -> str:
        """Name of the operator."""

    @abstractmethod
    def get_job_parameter(self, key: str, default: str | None = None) -> str | None:
        """A parameter given to the environment for the whole job."""

    @abstractmethod
    def get_job_parameters(self) -> Mapping[str, str]:
        """All parameters given to the environment for the whole job."""

    @abstractmethod
    def get_metrics_group(self) -> MetricGroup:
        """Where to register counters, gauges and histograms."""


class Function:
    """Base of all functions with a life cycle."""

    def open(self, ctx: RuntimeContext) -> None:
        """Prepare: obtain state handles, register metrics, connect."""

    def close(self) -> None:
        """Release what `open` acquired; also called after a failure."""

    @property
    def _is_rich(self) -> bool:
        """Whether the class has an `open` or a `close` of its own."""
        cls = type(self)
        return cls.open is not Function.open or cls.close is not Function.close


class MapFunction(Function, ABC, Generic[IN, OUT]):
    """One element in, one out."""

    @abstractmethod
    def map(self, value: IN) -> OUT:
        """Element to emit for `value`."""


class FlatMapFunction(Function, ABC, Generic[IN, OUT]):
    """One element in, any number out."""

    @abstractmethod
    def flat_map(self, value: IN) -> Outputs[OUT]:
        """Yield the elements to emit for `value`."""


class FilterFunction(Function, ABC, Generic[T]):
    """Keeps some elements."""

    @abstractmethod
    def filter(self, value: T) -> bool:
        """Whether to keep `value`."""


class ReduceFunction(Function, Reducer[T]):
    """Folds two values into one of the same type."""


class AggregateFunction(Function, Aggregator[IN, ACC, OUT]):
    """Builds a result from an accumulator to which values are added."""


class KeySelector(ABC, Generic[IN, K]):
    """Extracts the key of an element; must give the same key every time."""

    @abstractmethod
    def get_key(self, value: IN) -> K:
        """Key of `value`."""


class TimerService(ABC):
    """Tells a function the time, and calls it back when a time has come.

    Times are milliseconds since 1970. Timers belong to the current key; one that is set
    twice for a key and a time fires once. They are state, and survive what state survives.
    """

    __slots__ = ()

    @abstractmethod
    def current_processing_time(self) -> int:
        """Milliseconds since 1970, by the clock of the machine."""

    @abstractmethod
    def current_watermark(self) -> int:
        """Event time up to which all is thought to have come; `MIN_WATERMARK` at first."""

    @abstractmethod
    def register_event_time_timer(self, timestamp: int) -> None:
        """Have `on_timer` called when the watermark has reached `timestamp`."""

    @abstractmethod
    def register_processing_time_timer(self, timestamp: int) -> None:
        """Have `on_timer` called when the clock has reached `timestamp`."""

    @abstractmethod
    def delete_event_time_timer(self, timestamp: int) -> None:
        """Take a timer back; nothing happens if there is none."""

    @abstractmethod
    def delete_processing_time_timer(self, timestamp: int) -> None:
        """Take a timer back; nothing happens if there is none."""


class ProcessContext(ABC):
    """What `process_element` learns about the element at hand."""

    __slots__ = ()

    @abstractmethod
    def timer_service(self) -> TimerService:
        """Reads the clock and the watermark; on a keyed stream also sets timers."""

    @abstractmethod
    def timestamp(self) -> int | None:
        """Event time of the element in milliseconds, or None if it has none."""


class KeyedProcessContext(ProcessContext, Generic[K]):
    """The same on a keyed stream."""

    __slots__ = ()

    @abstractmethod
    def get_current_key(self) -> K:
        """Key of the element, or of the timer."""


class KeyedTimerContext(KeyedProcessContext[K]):
    """What `on_timer` learns about the timer at hand; its timestamp is the timer's."""

    __slots__ = ()

    @abstractmethod
    def time_domain(self) -> TimeDomain:
        """Whether the watermark or the clock has reached the timer."""


class ProcessFunction(Function, ABC, Generic[IN, OUT]):
    """The general operator on a stream that is not keyed."""

    Context: TypeAlias = ProcessContext

    @abstractmethod
    def process_element(self, value: IN, ctx: ProcessContext) -> Outputs[OUT]:
        """Yield the elements to emit for `value`."""


class KeyedProcessFunction(Function, ABC, Generic[K, IN, OUT]):
    """The general operator on a keyed stream, with state and timers."""

    Context: TypeAlias = KeyedProcessContext
    OnTimerContext: TypeAlias = KeyedTimerContext

    @abstractmethod
    def process_element(self, value: IN, ctx: KeyedProcessContext[K]) -> Outputs[OUT]:
        """Yield the elements to emit for `value`."""

    def on_timer(self, timestamp: int, ctx: KeyedTimerContext[K]) -> Outputs[OUT]:
        """Yield the elements to emit when a timer fires; its key is set."""


class SinkContext(ABC):
    """What `SinkFunction.invoke` learns about the element at hand."""

    __slots__ = ()

    @abstractmethod
    def timestamp(self) -> int | None:
        """Event time of the element in milliseconds, or None if it has none."""


class SinkFunction(Function, ABC, Generic[IN]):
    """Takes elements out of the job, in the tasks themselves."""

    @abstractmethod
    def invoke(self, value: IN, context: SinkContext) -> None:
        """Take one element."""

    def flush(self) -> None:
        """Bring out what `invoke` holds back; called at the end of every epoch."""
