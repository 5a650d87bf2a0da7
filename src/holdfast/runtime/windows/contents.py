"""The contents of a window: one folded value, or all of its elements.

They lie in a separate scope, whose current key is a tuple of a key and a window's bytes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import override

from holdfast.api.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
)
from holdfast.api.functions import ReduceFunction
from holdfast.api.state import AggregatingState, ListState, ReducingState
from holdfast.api.windows.evictors import TimestampedValue
from holdfast.runtime.operators.element import state_spec
from holdfast.serde.factory import codec_for
from holdfast.serde.tagged import either, timestamped
from holdfast.state.value import ValueTable

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.api.state import State
    from holdfast.api.windows.spec import Fold, Windowing
    from holdfast.state.backend import KeyedStateBackend
    from holdfast.state.namespaces import StateScope

CONTENTS: Final = "window-contents"
"""Name of the state."""


class Contents(ABC):
    """Contents of the window that the scope's current key names."""

    state: State
    """The state that holds the contents."""

    @abstractmethod
    def add(self, value: Any, time: int | None) -> None:
        """Add an element."""

    @abstractmethod
    def get(self) -> list[Any] | None:
        """The argument for the window function; None if the window is empty."""

    def clear(self) -> None:
        """Empty the window."""
        self.state.clear()


class FoldedContents(Contents):
    """One folded value."""

    state: ReducingState[Any] | AggregatingState[Any, Any]

    def __init__(self, fold: Fold, state: State, scope: StateScope) -> None:
        """Elements are added to `state`, the first of `scope`, with `fold`."""
        self.fold = fold
        assert isinstance(state, ReducingState | AggregatingState)
        self.state = state
        table = scope.tables[0]
        assert isinstance(table, ValueTable)
        self.table = table
        """The table of accumulators."""
        self._add = _adding(fold)
        self._get = state.get

    def add(self, value: Any, time: int | None) -> None:
        """See `Contents.add`. None is an element too, and does not clear the state."""
        table = self.table
        table.update(self._add(table.value(), value))

    def get(self) -> list[Any] | None:
        """The value alone."""
        value = self._get()
        return None if value is None else [value]


class ListedContents(Contents):
    """All elements."""

    state: ListState[Any]

    def __init__(self, state: State) -> None:
        """Elements are added to `state`."""
        assert isinstance(state, ListState)
        self.state = state

    @override
    def add(self, value: Any, time: int | None) -> None:
        self.state.add(value)

    def get(self) -> list[Any] | None:
        """The elements, in the order of their arrival."""
        return self.state.get() or None


class TimedContents(ListedContents):
    """All elements with their event times, for an evictor."""

    @override
    def add(self, value: Any, time: int | None) -> None:
        self.state.add((value, time))

    def timestamped(self) -> list[TimestampedValue]:
        """The elements with their times."""
        return list(map(TimestampedValue._make, self.state.get()))

    def keep(self, elements: list[TimestampedValue]) -> None:
        """Replace all elements."""
        self.state.update(map(tuple, elements))


def _adding(fold: Fold) -> Callable[[Any, Any], Any]:
    """Function from the value so far, or None, and an element to the new value."""
    function = fold.function
    if fold.aggregates:
        add, create = function.add, function.create_accumulator
        return lambda old, value: add(value, create() if old is None else old)
    reduce = function.reduce if isinstance(function, ReduceFunction) else function
    return lambda old, value: value if old is None else reduce(old, value)


def contents_of(windowing: Windowing, backend: KeyedStateBackend, scope: StateScope) -> Contents:
    """The contents of an operator's windows."""
    state = backend.register(contents_descriptor(windowing), scope)
    if windowing.evictor is not None:
        return TimedContents(state)
    return (
        ListedContents(state)
        if windowing.fold is None
        else FoldedContents(windowing.fold, state, scope)
    )


def contents_descriptor(windowing: Windowing) -> StateDescriptor:
    """Descriptor of the state that holds the contents of windows."""
    spec, fold = state_spec(windowing.input), windowing.fold
    if fold is not None and windowing.evictor is None:
        if fold.aggregates:
            return AggregatingStateDescriptor(CONTENTS, fold.function, fold.type)
        return ReducingStateDescriptor(CONTENTS, fold.function, spec)
    codec = codec_for(spec)
    if windowing.second is not None:
        codec = either(codec, codec_for(state_spec(windowing.second)))
    return ListStateDescriptor(CONTENTS, codec if windowing.evictor is None else timestamped(codec))
