"""Functions of two streams: connected streams, broadcast streams and joins.

The two sides of a function share its state. Within an epoch, the elements of a broadcast stream
come first; otherwise the order of the two sides is undefined.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Generic, TypeAlias

from holdfast.api.functions import (
    Function,
    KeyedProcessContext,
    KeyedTimerContext,
    Outputs,
    ProcessContext,
)
from holdfast.api.state import ReadableMap
from holdfast.api.type_variables import IN1, IN2, OUT, K, V

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.api.descriptors import MapStateDescriptor, StateDescriptor
    from holdfast.api.state import MapState


class CoMapFunction(Function, ABC, Generic[IN1, IN2, OUT]):
    """Maps one element of either stream to one."""

    @abstractmethod
    def map1(self, value: IN1) -> OUT:
        """Element to emit for an element of the first stream."""

    @abstractmethod
    def map2(self, value: IN2) -> OUT:
        """Element to emit for an element of the second stream."""


class CoFlatMapFunction(Function, ABC, Generic[IN1, IN2, OUT]):
    """Maps one element of either stream to any number of elements."""

    @abstractmethod
    def flat_map1(self, value: IN1) -> Outputs[OUT]:
        """Yield the elements to emit for an element of the first stream."""

    @abstractmethod
    def flat_map2(self, value: IN2) -> Outputs[OUT]:
        """Yield the elements to emit for an element of the second stream."""


class CoProcessFunction(Function, ABC, Generic[IN1, IN2, OUT]):
    """The general function on two streams that are not keyed."""

    Context: TypeAlias = ProcessContext

    @abstractmethod
    def process_element1(self, value: IN1, ctx: ProcessContext) -> Outputs[OUT]:
        """Yield the elements to emit for an element of the first stream."""

    @abstractmethod
    def process_element2(self, value: IN2, ctx: ProcessContext) -> Outputs[OUT]:
        """Yield the elements to emit for an element of the second stream."""


class KeyedCoProcessFunction(Function, ABC, Generic[K, IN1, IN2, OUT]):
    """The general function on two keyed streams, which share keyed state and timers."""

    Context: TypeAlias = KeyedProcessContext
    OnTimerContext: TypeAlias = KeyedTimerContext

    @abstractmethod
    def process_element1(self, value: IN1, ctx: KeyedProcessContext[K]) -> Outputs[OUT]:
        """Yield the elements to emit for an element of the first stream."""

    @abstractmethod
    def process_element2(self, value: IN2, ctx: KeyedProcessContext[K]) -> Outputs[OUT]:
        """Yield the elements to emit for an element of the second stream."""

    def on_timer(self, timestamp: int, ctx: KeyedTimerContext[K]) -> Outputs[OUT]:
        """Yield the elements to emit when a timer fires; its key is the current key."""


class ReadOnlyBroadcastState(ReadableMap[K, V]):
    """A broadcast state, read-only for the data side. Returned values are copies."""

    __slots__ = ()


class ReadOnlyBroadcastContext(ABC):
    """Read access to broadcast state."""

    __slots__ = ()

    @abstractmethod
    def get_broadcast_state(
        self, descriptor: MapStateDescriptor[K, V]
    ) -> ReadOnlyBroadcastState[K, V]:
        """A state whose descriptor was given to `broadcast(...)`, read-only."""


class BroadcastReadContext(ReadOnlyBroadcastContext, ProcessContext):
    """The context of `BroadcastProcessFunction.process_element`."""

    __slots__ = ()


class KeyedBroadcastReadContext(ReadOnlyBroadcastContext, KeyedProcessContext[K]):
    """The context of `KeyedBroadcastProcessFunction.process_element`."""

    __slots__ = ()


class BroadcastTimerContext(ReadOnlyBroadcastContext, KeyedTimerContext[K]):
    """The context of `KeyedBroadcastProcessFunction.on_timer`."""

    __slots__ = ()


class BroadcastContext(ABC):
    """The context of `process_broadcast_element`; there is no current key."""

    __slots__ = ()

    @abstractmethod
    def get_broadcast_state(self, descriptor: MapStateDescriptor[K, V]) -> MapState[K, V]:
        """A state whose descriptor was given to `broadcast(...)`.

        Every subtask must change it in the same way: depend on the elements only.
        """

    @abstractmethod
    def timestamp(self) -> int | None:
        """Event time of the element in milliseconds, or None if it has none."""

    @abstractmethod
    def current_processing_time(self) -> int:
        """The machine's clock, in milliseconds since 1970."""

    @abstractmethod
    def current_watermark(self) -> int:
        """The current watermark."""


class KeyedBroadcastContext(BroadcastContext):
    """The same for a broadcast stream that is connected with a keyed stream."""

    __slots__ = ()

    @abstractmethod
    def apply_to_keyed_state(
        self, descriptor: StateDescriptor, function: Callable[[Any, Any], None]
    ) -> None:
        """Call `function(key, state)` for every key of this subtask that has the state."""


class BroadcastProcessFunction(Function, ABC, Generic[IN1, IN2, OUT]):
    """The function of a stream that is not keyed, and a broadcast stream."""

    ReadOnlyContext: TypeAlias = BroadcastReadContext
    Context: TypeAlias = BroadcastContext

    @abstractmethod
    def process_element(self, value: IN1, ctx: BroadcastReadContext) -> Outputs[OUT]:
        """Yield the elements to emit for an element of the data stream."""

    @abstractmethod
    def process_broadcast_element(self, value: IN2, ctx: BroadcastContext) -> Outputs[OUT]:
        """Process an element of the broadcast stream; every subtask receives it."""


class KeyedBroadcastProcessFunction(Function, ABC, Generic[K, IN1, IN2, OUT]):
    """The function of a keyed stream, with state and timers, and a broadcast stream."""

    ReadOnlyContext: TypeAlias = KeyedBroadcastReadContext
    Context: TypeAlias = KeyedBroadcastContext
    OnTimerContext: TypeAlias = BroadcastTimerContext

    @abstractmethod
    def process_element(self, value: IN1, ctx: KeyedBroadcastReadContext[K]) -> Outputs[OUT]:
        """Yield the elements to emit for an element of the keyed stream."""

    @abstractmethod
    def process_broadcast_element(self, value: IN2, ctx: KeyedBroadcastContext) -> Outputs[OUT]:
        """Process an element of the broadcast stream; every subtask receives it."""

    def on_timer(self, timestamp: int, ctx: BroadcastTimerContext[K]) -> Outputs[OUT]:
        """Yield the elements to emit when a timer fires; its key is the current key."""


class JoinContext(ABC):
    """The event times of a pair in an interval join."""

    __slots__ = ()

    @abstractmethod
    def get_left_timestamp(self) -> int:
        """Event time of the left element in milliseconds."""

    @abstractmethod
    def get_right_timestamp(self) -> int:
        """Event time of the right element in milliseconds."""

    @abstractmethod
    def get_timestamp(self) -> int:
        """Event time of the pair: the later of the two."""


class ProcessJoinFunction(Function, ABC, Generic[IN1, IN2, OUT]):
    """Processes every pair of an interval join."""

    Context: TypeAlias = JoinContext

    @abstractmethod
    def process_element(self, left: IN1, right: IN2, ctx: JoinContext) -> Outputs[OUT]:
        """Yield the elements to emit for a pair."""
