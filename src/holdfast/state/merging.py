"""Bringing the states of several namespaces together in one, as when windows merge."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.api.state import ListState, ReducingState, State
from holdfast.errors import StateAccessError
from holdfast.state.value_table import AggregatingValue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


def merge_namespaces(
    state: State, enter: Callable[[Any], None], target: Any, sources: Iterable[Any]
) -> None:
    """Add what `sources` hold to `target`, in their order, and clear them.

    Args:
        state: Handle to a list, reducing or aggregating state.
        enter: Sets the current key of the state to one of the others.
        target: A key with a namespace.
        sources: Others, of the same key.

    Raises:
        StateAccessError: A state of this kind does not say how two of them become one.
    """
    for source in sources:
        enter(source)
        match state:
            case ListState():
                elements = state.get()
                state.clear()
                enter(target)
                state.add_all(elements)
            case ReducingState():
                value = state.get()
                state.clear()
                enter(target)
                if value is not None:
                    state.add(value)
            case AggregatingValue():
                accumulator = state.accumulator()
                state.clear()
                enter(target)
                if accumulator is not None:
                    state.merge(accumulator)
            case _:
                raise StateAccessError(
                    "only list, reducing and aggregating states can be merged: a value or a map "
                    "does not say how two of them become one"
                )
