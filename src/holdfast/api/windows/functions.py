"""The functions that are called with what a window holds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, TypeAlias

from holdfast.api.functions import Function, KeyedStateStore

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class WindowContext(ABC):
    """What a process window function can learn about the window at hand."""

    __slots__ = ()

    @abstractmethod
    def window(self) -> Any:
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


class WindowFunction(Function, ABC):
    """Called with a key's window and what it holds."""

    @abstractmethod
    def apply(self, key: Any, window: Any, inputs: Sequence[Any]) -> Iterable[Any] | None:
        """Yield the elements to emit."""


class ProcessWindowFunction(Function, ABC):
    """The same with more context: state per window and per key, time, the watermark."""

    Context: TypeAlias = WindowContext

    @abstractmethod
    def process(
        self, key: Any, context: WindowContext, elements: Sequence[Any]
    ) -> Iterable[Any] | None:
        """Yield the elements to emit."""

    def clear(self, context: WindowContext) -> None:
        """Clear the window's own state: the window is gone."""


class AllWindowFunction(Function, ABC):
    """Called with a window of a stream that is not keyed, and what it holds."""

    @abstractmethod
    def apply(self, window: Any, inputs: Sequence[Any]) -> Iterable[Any] | None:
        """Yield the elements to emit."""


class ProcessAllWindowFunction(Function, ABC):
    """The same with more context."""

    Context: TypeAlias = WindowContext

    @abstractmethod
    def process(self, context: WindowContext, elements: Sequence[Any]) -> Iterable[Any] | None:
        """Yield the elements to emit."""

    def clear(self, context: WindowContext) -> None:
        """Clear the window's own state: the window is gone."""


class JoinFunction(Function, ABC):
    """Called with every pair of elements that have one key and one window."""

    @abstractmethod
    def join(self, first: Any, second: Any) -> Any:
        """The element to emit for a pair."""


class FlatJoinFunction(Function, ABC):
    """The same, with any number of elements for a pair."""

    @abstractmethod
    def join(self, first: Any, second: Any) -> Iterable[Any] | None:
        """Yield the elements to emit for a pair."""


class CoGroupFunction(Function, ABC):
    """Called with all elements of two streams that have one key and one window."""

    @abstractmethod
    def co_group(self, first: Sequence[Any], second: Sequence[Any]) -> Iterable[Any] | None:
        """Yield the elements to emit; one of the two may be empty."""
