"""Window joins and co-groups: elements of two streams with the same key and window."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Generic

from holdfast.api.streams.connected import check_one_environment, joined
from holdfast.api.streams.data_stream import DataStream, Stream
from holdfast.api.streams.graph import OperatorKind
from holdfast.api.streams.operator import wrong_function
from holdfast.api.streams.output_type import output_type_of
from holdfast.api.streams.windowed import WindowSettings, windowing
from holdfast.api.type_variables import IN1, IN2, OUT
from holdfast.api.windows.functions import CoGroupFunction, FlatJoinFunction, JoinFunction
from holdfast.api.windows.spec import Caller
from holdfast.errors import JobGraphError

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.api.streams.keyed_stream import KeyedStream
    from holdfast.api.windows.assigners import WindowAssigner


@dataclass(frozen=True)
class _Meeting(Generic[IN1, IN2]):
    """Two streams, without keys yet."""

    _pairs: ClassVar[bool]
    """Whether a function gets pairs of elements; otherwise it gets both lists."""
    first: Stream[IN1]
    second: Stream[IN2]

    def __post_init__(self) -> None:
        if not isinstance(self.second, Stream):
            raise JobGraphError(
                f"join and co_group take a stream, not {type(self.second).__name__}"
            )
        check_one_environment(self.first, self.second)

    def where(self, *key: Any) -> Where[IN1, IN2]:
        """The key of the first stream: names of columns, or a function."""
        return Where(self, self.first.key_by(*key), self._pairs)


class JoinedStreams(_Meeting[IN1, IN2]):
    """Two streams to join."""

    _pairs = True


class CoGroupedStreams(_Meeting[IN1, IN2]):
    """Two streams to co-group."""

    _pairs = False


@dataclass(frozen=True)
class Where(Generic[IN1, IN2]):
    """Two streams; the first has a key."""

    streams: _Meeting[IN1, IN2]
    first: KeyedStream[Any, IN1]
    pairs: bool

    def equal_to(self, *key: Any) -> EqualTo[IN1, IN2]:
        """The key of the second stream, of the same type as the first one's."""
        return EqualTo(self.first, self.streams.second.key_by(*key), self.pairs)


@dataclass(frozen=True)
class EqualTo(Generic[IN1, IN2]):
    """Two streams with their keys."""

    first: KeyedStream[Any, IN1]
    second: KeyedStream[Any, IN2]
    pairs: bool

    def window(self, assigner: WindowAssigner) -> JoinWindows[IN1, IN2]:
        """Assign both streams to the same windows."""
        return JoinWindows(self, assigner)


class JoinWindows(WindowSettings, Generic[IN1, IN2]):
    """The windows of a join or co-group; elements without a partner are not joined."""

    def __init__(self, streams: EqualTo[IN1, IN2], assigner: WindowAssigner) -> None:
        """The windows of `assigner`, for both streams."""
        super().__init__(windowing(assigner, streams.first, streams.second))
        self._streams = streams

    def apply(
        self,
        function: JoinFunction[IN1, IN2, OUT]
        | FlatJoinFunction[IN1, IN2, OUT]
        | CoGroupFunction[IN1, IN2, OUT]
        | Callable[[Any, Any], Any],
        output_type: Any = None,
    ) -> DataStream[OUT]:
        """Call a function with the elements of both streams in a window.

        For `join`: a `JoinFunction`, a `FlatJoinFunction`, or a callable that makes one element of
        two. For `co_group`: a `CoGroupFunction`, or a callable of two lists.
        """
        caller, call = self._caller(function)
        output = output_type_of(call, output_type, per_element=caller is Caller.JOIN)
        details = replace(self._windowing, caller=caller)
        streams = self._streams
        return joined(
            streams.first, streams.second, OperatorKind.WINDOW_JOIN, function, output, details
        )

    def _caller(self, function: Any) -> tuple[Caller, Callable[..., Any]]:
        pairs = self._streams.pairs
        if pairs and isinstance(function, FlatJoinFunction):
            return Caller.FLAT_JOIN, function.join
        if pairs and isinstance(function, JoinFunction):
            return Caller.JOIN, function.join
        if not pairs and isinstance(function, CoGroupFunction):
            return Caller.CO_GROUP, function.co_group
        wanted = "JoinFunction or FlatJoinFunction" if pairs else "CoGroupFunction"
        if not callable(function):
            raise JobGraphError(wrong_function("apply", function, f"{wanted} or a callable"))
        return (Caller.JOIN if pairs else Caller.CO_GROUP), function
