"""The functions that are called with what a window holds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Generic, TypeAlias

from holdfast.api.functions import Function, KeyedStateStore, Outputs
from holdfast.api.type_variables import IN, IN1, IN2, OUT, K, W

if TYPE_CHECKING:
    from collections.abc import Sequence


class WindowContext(ABC, Generic[W]):
    """What a process window function can learn about the window at hand."""

    __slots__ = ()

    @abstractmethod
    def window(self) -> W:
        """The window."""

    @abstractmethod
    def current_processing_time(self) -> int:
        """Milliseconds since 1970, by the clock of the machine."""

    @abstractmethod
    def current_watermark(self) -> int:
        """Event time up to which all is thought to have come."""

    @abstractmethod
    def window_state(self) -> KeyedStateStore:
        """State of this key and this window: clear it in `clear`. Not where windows merge."""

    @abstractmethod
    def global_state(self) -> KeyedStateStore:
        """State of this key, which all its windows share."""


class WindowFunction(Function, ABC, Generic[IN, OUT, K, W]):
    """Called with a key's window and what it holds."""

    @abstractmethod
    def apply(self, key: K, window: W, inputs: Sequence[IN]) -> Outputs[OUT]:
        """Yield the elements to emit."""


class ProcessWindowFunction(Function, ABC, Generic[IN, OUT, K, W]):
    """The same with more context: state per window and per key, time, the watermark."""

    Context: TypeAlias = WindowContext

    @abstractmethod
    def process(self, key: K, context: WindowContext[W], elements: Sequence[IN]) -> Outputs[OUT]:
        """Yield the elements to emit."""

    def clear(self, context: WindowContext[W]) -> None:
        """Clear the window's own state: the window is gone."""


class AllWindowFunction(Function, ABC, Generic[IN, OUT, W]):
    """Called with a window of a stream that is not keyed, and what it holds."""

    @abstractmethod
    def apply(self, window: W, inputs: Sequence[IN]) -> Outputs[OUT]:
        """Yield the elements to emit."""


class ProcessAllWindowFunction(Function, ABC, Generic[IN, OUT, W]):
    """The same with more context."""

    Context: TypeAlias = WindowContext

    @abstractmethod
    def process(self, context: WindowContext[W], elements: Sequence[IN]) -> Outputs[OUT]:
        """Yield the elements to emit."""

    def clear(self, context: WindowContext[W]) -> None:
        """Clear the window's own state: the window is gone."""


class JoinFunction(Function, ABC, Generic[IN1, IN2, OUT]):
    """Called with every pair of elements that have one key and one window."""

    @abstractmethod
    def join(self, first: IN1, second: IN2) -> OUT:
        """The element to emit for a pair."""


class FlatJoinFunction(Function, ABC, Generic[IN1, IN2, OUT]):
    """The same, with any number of elements for a pair."""

    @abstractmethod
    def join(self, first: IN1, second: IN2) -> Outputs[OUT]:
        """Yield the elements to emit for a pair."""


class CoGroupFunction(Function, ABC, Generic[IN1, IN2, OUT]):
    """Called with all elements of two streams that have one key and one window."""

    @abstractmethod
    def co_group(self, first: Sequence[IN1], second: Sequence[IN2]) -> Outputs[OUT]:
        """Yield the elements to emit; one of the two may be empty."""
