"""Operators that call a function on each element."""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from holdfast.api.descriptors import ValueStateDescriptor
from holdfast.api.functions import FilterFunction, FlatMapFunction, MapFunction, ReduceFunction
from holdfast.api.state import ValueState
from holdfast.runtime.operators.base import Operator, Reported, always_iterable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from holdfast.runtime.operators.base import Ends, Times
    from holdfast.types.stream_type import StreamType

REDUCED: Final = "reduced"
"""Name of the state in which `reduce` and the rolling aggregates keep their results."""


class MapOperator(Operator):
    """One element in, one out."""

    def _bind(self) -> Callable[..., Any]:
        return bound(self._function, MapFunction, "map")

    def _run(self, elements: list[Any], keys: Iterable[Any], out: list[Any]) -> None:
        call, append, current = self._call, out.append, self.current
        for current.key, element in zip(keys, elements, strict=False):
            append(call(element))

    def _run_timed(
        self, elements: list[Any], keys: Iterable[Any], times: Times, out: list[Any], ends: Ends
    ) -> None:
        call, append, current = self._call, out.append, self.current
        context = self._element_context
        # The function does not get the time, but the TTL of its states uses it.
        for current.key, context.time, element in zip(keys, times, elements, strict=False):
            append(call(element))
        ends.extend(range(1, len(elements) + 1))


class FilterOperator(Operator):
    """Keeps some elements."""

    def _bind(self) -> Callable[..., Any]:
        return bound(self._function, FilterFunction, "filter")

    def _run(self, elements: list[Any], keys: Iterable[Any], out: list[Any]) -> None:
        call, append, current = self._call, out.append, self.current
        for current.key, element in zip(keys, elements, strict=False):
            if call(element):
                append(element)

    def _run_timed(
        self, elements: list[Any], keys: Iterable[Any], times: Times, out: list[Any], ends: Ends
    ) -> None:
        call, append, current, end = self._call, out.append, self.current, ends.append
        context = self._element_context
        for current.key, context.time, element in zip(keys, times, elements, strict=False):
            if call(element):
                append(element)
            end(len(out))


class FlatMapOperator(Operator):
    """One element in, any number out."""

    def _bind(self) -> Callable[..., Any]:
        return always_iterable(bound(self._function, FlatMapFunction, "flat_map"))

    def _run(self, elements: list[Any], keys: Iterable[Any], out: list[Any]) -> None:
        call, append, current = self._call, out.append, self.current
        for current.key, element in zip(keys, elements, strict=False):
            for output in call(element):
                append(output)

    def _run_timed(
        self, elements: list[Any], keys: Iterable[Any], times: Times, out: list[Any], ends: Ends
    ) -> None:
        call, append, current, end = self._call, out.append, self.current, ends.append
        context = self._element_context
        for current.key, context.time, element in zip(keys, times, elements, strict=False):
            for output in call(element):
                append(output)
            end(len(out))


class SinkOperator(Operator):
    """Hands every element to a sink function."""

    def _bind(self) -> Callable[..., Any]:
        return self._function.invoke  # type: ignore[no-any-return]

    def _run(self, elements: list[Any], keys: Iterable[Any], out: list[Any]) -> None:
        call, context, current = self._call, self._element_context, self.current
        for current.key, element in zip(keys, elements, strict=False):
            call(element, context)

    def finish(self) -> list[Any]:
        """Flush the sink."""
        with Reported(self, "in flush()"):
            self._function.flush()
        return []


class ReduceOperator(Operator):
    """Folds the elements of every key; in batch mode it outputs only the final results."""

    def _bind(self) -> Callable[..., Any]:
        backend = self._keyed_state()
        table = backend.register(ValueStateDescriptor(REDUCED, state_spec(self.plan.output)))
        assert isinstance(table, ValueState)
        self._table = table
        self._backend = backend
        return bound(self._function, ReduceFunction, "reduce")

    def _run(self, elements: list[Any], keys: Iterable[Any], out: list[Any]) -> None:
        call, append, current = self._call, out.append, self.current
        value, update = self._table.value, self._table.update
        start = len(out)
        for current.key, element in zip(keys, elements, strict=False):
            old = value()
            new = element if old is None else call(old, element)
            update(new)
            append(new)
        if self._batch_mode:
            del out[start:]

    def _run_timed(
        self, elements: list[Any], keys: Iterable[Any], times: Times, out: list[Any], ends: Ends
    ) -> None:
        call, append, current = self._call, out.append, self.current
        value, update = self._table.value, self._table.update
        context, start = self._element_context, len(out)
        for current.key, context.time, element in zip(keys, times, elements, strict=False):
            old = value()
            new = element if old is None else call(old, element)
            update(new)
            append(new)
        if self._batch_mode:
            del out[start:]
        ends.extend(repeat(0, len(elements)) if self._batch_mode else range(1, len(elements) + 1))

    def finish(self) -> list[Any]:
        """In batch mode, the final results."""
        return list(self._backend.values(REDUCED)) if self._batch_mode else []


def bound(function: Any, kind: type, method: str) -> Callable[..., Any]:
    """The method of a function object, or the callable itself."""
    return getattr(function, method) if isinstance(function, kind) else function  # type: ignore[no-any-return]


def state_spec(stream: StreamType) -> Any:
    """The type of a stream's elements in state."""
    if stream.kind == "object":
        return None
    if stream.element is not None:
        return stream.element
    return stream.schema.field(0).type if stream.kind == "value" else pa.struct(list(stream.schema))
