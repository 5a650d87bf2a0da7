"""Chooses the operator for a function in the harness, or refuses the function."""

from __future__ import annotations

from typing import Any, Final

from holdfast.api.co_functions import (
    BroadcastProcessFunction,
    CoFlatMapFunction,
    CoMapFunction,
    CoProcessFunction,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    ProcessJoinFunction,
)
from holdfast.api.functions import (
    FilterFunction,
    FlatMapFunction,
    Function,
    KeyedProcessFunction,
    MapFunction,
    ProcessFunction,
    ReduceFunction,
    SinkFunction,
)
from holdfast.api.sinks import Sink
from holdfast.api.streams.graph import OperatorKind
from holdfast.errors import JobGraphError
from holdfast.runtime.plan import TIMER_KINDS

_KINDS: Final[tuple[tuple[type, OperatorKind], ...]] = (
    (KeyedProcessFunction, OperatorKind.KEYED_PROCESS),
    (ProcessFunction, OperatorKind.PROCESS),
    (MapFunction, OperatorKind.MAP),
    (FlatMapFunction, OperatorKind.FLAT_MAP),
    (FilterFunction, OperatorKind.FILTER),
    (ReduceFunction, OperatorKind.REDUCE),
    (CoMapFunction, OperatorKind.CO_MAP),
    (CoFlatMapFunction, OperatorKind.CO_FLAT_MAP),
    (CoProcessFunction, OperatorKind.CO_PROCESS),
    (KeyedCoProcessFunction, OperatorKind.KEYED_CO_PROCESS),
    (BroadcastProcessFunction, OperatorKind.BROADCAST_PROCESS),
    (KeyedBroadcastProcessFunction, OperatorKind.KEYED_BROADCAST_PROCESS),
    (SinkFunction, OperatorKind.SINK_FUNCTION),
)
_KEYED: Final = TIMER_KINDS | {OperatorKind.REDUCE}
_NOT_KEYED: Final = {
    OperatorKind.PROCESS, OperatorKind.CO_PROCESS, OperatorKind.BROADCAST_PROCESS,
}  # fmt: skip
"""Kinds that have a twin for keyed streams."""
BROADCAST: Final = {OperatorKind.BROADCAST_PROCESS, OperatorKind.KEYED_BROADCAST_PROCESS}
"""Functions of a stream and a broadcast stream."""
CONNECTED: Final = {
    OperatorKind.CO_MAP, OperatorKind.CO_FLAT_MAP, OperatorKind.CO_PROCESS,
    OperatorKind.KEYED_CO_PROCESS, OperatorKind.WINDOW_JOIN,
}  # fmt: skip
"""Functions of two streams."""


def kind_of(function: Any, *, keyed: bool) -> OperatorKind:
    """The kind of operator that runs `function` on a stream, keyed or not.

    Raises:
        JobGraphError: The stream does not take the function.
    """
    if isinstance(function, type) and issubclass(function, Function):
        raise JobGraphError(f"the harness takes a function, not its class: {function.__name__}()")
    if isinstance(function, Sink):
        if function.takes_rows:
            raise JobGraphError(
                f"the harness gives elements, and {function.name} takes rows; try it in a small job"
            )
        return OperatorKind.WRITER
    if isinstance(function, ProcessJoinFunction):
        raise JobGraphError(
            f"{type(function).__name__} is called by a join; call its process_element, or try it "
            "in a small job"
        )
    kind = next((kind for cls, kind in _KINDS if isinstance(function, cls)), OperatorKind.MAP)
    if kind is OperatorKind.MAP and not (isinstance(function, MapFunction) or callable(function)):
        raise JobGraphError(f"the harness takes a function, not {type(function).__name__}")
    if kind in _KEYED and not keyed:
        raise JobGraphError(f"{type(function).__name__} runs on a keyed stream; give a key")
    if kind in _NOT_KEYED and keyed:
        raise JobGraphError(
            f"{type(function).__name__} does not run on a keyed stream; leave the key out, or "
            "write a KeyedProcessFunction"
        )
    return kind
