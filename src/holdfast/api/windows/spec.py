"""How a stream is cut into windows, as its operator is told."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from holdfast.api.windows.assigners import MergingWindowAssigner

if TYPE_CHECKING:
    from holdfast.api.outputs import OutputTag
    from holdfast.api.windows.assigners import WindowAssigner
    from holdfast.api.windows.evictors import Evictor
    from holdfast.api.windows.triggers import Trigger
    from holdfast.types.stream_type import StreamType


class Caller(Enum):
    """How the function of a window is called."""

    NOTHING = "nothing"
    """There is none: what was folded is given out."""
    APPLY = "apply"
    """With a key, a window and elements."""
    PROCESS = "process"
    """With a key, a context and elements."""
    JOIN = "join"
    """With every pair of elements of two streams; gives one element."""
    FLAT_JOIN = "flat join"
    """With every pair of elements of two streams; gives any number."""
    CO_GROUP = "co-group"
    """With the elements of each of two streams."""


@dataclass(frozen=True)
class Fold:
    """What is kept of a window's elements: one value, to which each is added."""

    function: Any
    """An `AggregateFunction`, or what reduces two elements to one."""
    aggregates: bool
    type: Any = None
    """Type of the accumulator, of an aggregate."""


@dataclass(frozen=True)
class Windowing:
    """Everything about the windows of one operator but the function they are given to."""

    assigner: WindowAssigner
    trigger: Trigger
    evictor: Evictor | None
    allowed_lateness_ms: int
    late: OutputTag | None
    fold: Fold | None
    """None where all elements are kept."""
    caller: Caller
    input: StreamType
    second: StreamType | None = None
    """Type of the other stream's elements, where two are joined."""

    def __str__(self) -> str:
        """The windows in words, for plans."""
        text = f"{self.assigner!r}, fired by {self.trigger!r}"
        if self.evictor is not None:
            text += f", evicted by {type(self.evictor).__name__}"
        if self.allowed_lateness_ms:
            text += f", {self.allowed_lateness_ms} ms of lateness"
        kept = "all elements" if self.fold is None or self.evictor is not None else "one value"
        return f"{text}, keep {kept}"

    @property
    def merges(self) -> bool:
        """Whether windows can become one."""
        return isinstance(self.assigner, MergingWindowAssigner)
