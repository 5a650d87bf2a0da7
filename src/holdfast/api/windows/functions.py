"""Functions of windows: they are called with the elements of a window."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Generic, TypeAlias

from holdfast.api.functions import Function, KeyedStateStore, Outputs
from holdfast.api.type_variables import IN, IN1, IN2, OUT, K, W

if TYPE_CHECKING:
    from collections.abc import Sequence


class WindowContext(ABC, Generic[W]):
    """The window, the time, and state of the key and of the window."""

    __slots__ = ()

    @abstractmethod
    def window(self) -> W:
        """The window."""

    @abstractmethod
    def current_processing_time(self) -> int:
        """The machine's clock, in milliseconds since 1970."""

    @abstractmethod
    def current_watermark(self) -> int:
        """The current watermark."""

    @abstractmethod
    def window_state(self) -> KeyedStateStore:
        """State of this key and window; clear it in `clear`. Not available if windows merge."""

    @abstractmethod
    def global_state(self) -> KeyedStateStore:
        """State of this key, shared by all its windows."""


class WindowFunction(Function, ABC, Generic[IN, OUT, K, W]):
    """Processes the elements of a key's window."""

    @abstractmethod
    def apply(self, key: K, window: W, inputs: Sequence[IN]) -> Outputs[OUT]:
        """Yield the elements to emit."""


class ProcessWindowFunction(Function, ABC, Generic[IN, OUT, K, W]):
    """Processes the elements of a key's window, with state, time and the watermark."""

    Context: TypeAlias = WindowContext

    @abstractmethod
    def process(self, key: K, context: WindowContext[W], elements: Sequence[IN]) -> Outputs[OUT]:
        """Yield the elements to emit."""

    def clear(self, context: WindowContext[W]) -> None:
        """Clear the state of the window, which is removed."""


class AllWindowFunction(Function, ABC, Generic[IN, OUT, W]):
    """Processes the elements of a window of a stream that is not keyed."""

    @abstractmethod
    def apply(self, window: W, inputs: Sequence[IN]) -> Outputs[OUT]:
        """Yield the elements to emit."""


class ProcessAllWindowFunction(Function, ABC, Generic[IN, OUT, W]):
    """Like `AllWindowFunction`, with state, time and the watermark."""

    Context: TypeAlias = WindowContext

    @abstractmethod
    def process(self, context: WindowContext[W], elements: Sequence[IN]) -> Outputs[OUT]:
        """Yield the elements to emit."""

    def clear(self, context: WindowContext[W]) -> None:
        """Clear the state of the window, which is removed."""


class JoinFunction(Function, ABC, Generic[IN1, IN2, OUT]):
    """Joins every pair of elements of one key and window."""

    @abstractmethod
    def join(self, first: IN1, second: IN2) -> OUT:
        """The element to emit for a pair."""


class FlatJoinFunction(Function, ABC, Generic[IN1, IN2, OUT]):
    """Joins every pair of elements of one key and window; any number of elements out."""

    @abstractmethod
    def join(self, first: IN1, second: IN2) -> Outputs[OUT]:
        """Yield the elements to emit for a pair."""


class CoGroupFunction(Function, ABC, Generic[IN1, IN2, OUT]):
    """Processes all elements of two streams of one key and window."""

    @abstractmethod
    def co_group(self, first: Sequence[IN1], second: Sequence[IN2]) -> Outputs[OUT]:
        """Yield the elements to emit; one of the two may be empty."""
