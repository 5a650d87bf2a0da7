"""Calls window functions on the contents of a window."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.api.functions import AggregateFunction, ReduceFunction
from holdfast.api.windows.functions import (
    AllWindowFunction,
    CoGroupFunction,
    FlatJoinFunction,
    JoinFunction,
    WindowFunction,
)
from holdfast.api.windows.spec import Caller
from holdfast.runtime.operators.base import always_iterable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from holdfast.api.windows.spec import Fold, Windowing
    from holdfast.runtime.windows.contexts import FunctionContext

    Call = Callable[[Any, Any, list[Any]], Iterable[Any]]
    """Gives the output for a key, a window and its elements."""


def window_call(
    windowing: Windowing, function: Any, context: FunctionContext, *, keyed: bool
) -> Call:
    """The function to call when a window fires; called when the user function is open."""
    call = _call(windowing.caller, function, context, keyed=keyed)
    fold = windowing.fold
    if fold is None or windowing.evictor is None:
        return call
    folded = _folding(fold)
    return lambda key, window, elements: call(key, window, folded(elements))


def _call(caller: Caller, function: Any, context: FunctionContext, *, keyed: bool) -> Call:
    match caller:
        case Caller.NOTHING:
            return lambda key, window, elements: elements
        case Caller.APPLY:
            method = isinstance(function, WindowFunction | AllWindowFunction)
            apply = always_iterable(function.apply if method else function)
            if keyed:
                return apply
            return lambda key, window, elements: apply(window, elements)
        case Caller.PROCESS:
            process = always_iterable(function.process)
            if keyed:
                return lambda key, window, elements: process(key, context, elements)
            return lambda key, window, elements: process(context, elements)
        case Caller.JOIN:
            join = function.join if isinstance(function, JoinFunction) else function
            return lambda key, window, elements: _joined(join, elements)
        case Caller.FLAT_JOIN:
            assert isinstance(function, FlatJoinFunction)
            flat_join = always_iterable(function.join)
            return lambda key, window, elements: [
                output for outputs in _joined(flat_join, elements) for output in outputs
            ]
        case Caller.CO_GROUP:
            method = isinstance(function, CoGroupFunction)
            co_group = always_iterable(function.co_group if method else function)
            return lambda key, window, elements: co_group(*_sides(elements))


def _sides(elements: list[tuple[int, Any]]) -> tuple[list[Any], list[Any]]:
    return (
        [value for side, value in elements if side == 0],
        [value for side, value in elements if side == 1],
    )


def _joined(join: Callable[[Any, Any], Any], elements: list[tuple[int, Any]]) -> Iterable[Any]:
    first, second = _sides(elements)
    return (join(one, other) for one in first for other in second)


def _folding(fold: Fold) -> Callable[[list[Any]], list[Any]]:
    """Folds elements when a window fires, since an evictor may drop some before."""
    if fold.aggregates:
        aggregate = fold.function
        assert isinstance(aggregate, AggregateFunction)

        def aggregated(elements: list[Any]) -> list[Any]:
            accumulator = aggregate.create_accumulator()
            for element in elements:
                accumulator = aggregate.add(element, accumulator)
            return [aggregate.get_result(accumulator)]

        return aggregated
    reduce = fold.function.reduce if isinstance(fold.function, ReduceFunction) else fold.function

    def reduced(elements: list[Any]) -> list[Any]:
        if not elements:
            return []
        value = elements[0]
        for element in elements[1:]:
            value = reduce(value, element)
        return [value]

    return reduced
