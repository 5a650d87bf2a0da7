"""The settings of a window operator."""

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
    """There is no function: the folded value is emitted."""
    APPLY = "apply"
    """With a key, a window and elements."""
    PROCESS = "process"
    """With a key, a context and elements."""
    JOIN = "join"
    """With every pair of elements of two streams; returns one element."""
    FLAT_JOIN = "flat join"
    """With every pair of elements of two streams; returns any number of elements."""
    CO_GROUP = "co-group"
    """With the elements of each of two streams."""


@dataclass(frozen=True)
class Fold:
    """Folds the elements of a window into one value."""

    function: Any
    """An `AggregateFunction`, a `ReduceFunction` or a callable of two elements."""
    aggregates: bool
    type: Any = None
    """Type of the accumulator of an aggregate."""


@dataclass(frozen=True)
class Windowing:
    """All settings of a window operator except its function."""

    assigner: WindowAssigner
    trigger: Trigger
    evictor: Evictor | None
    allowed_lateness_ms: int
    late: OutputTag | None
    fold: Fold | None
    """None if all elements are kept."""
    caller: Caller
    input: StreamType
    second: StreamType | None = None
    """Type of the second stream's elements in a join."""

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
        """Whether windows can merge."""
        return isinstance(self.assigner, MergingWindowAssigner)
