"""Two streams whose elements meet where they have one key and one window."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from holdfast.api.streams.connected import check_one_environment, joined
from holdfast.api.streams.data_stream import DataStream, output_type_of, wrong_function
from holdfast.api.streams.graph import OperatorKind
from holdfast.api.streams.windowed import WindowSettings, windowing
from holdfast.api.windows.functions import CoGroupFunction, FlatJoinFunction, JoinFunction
from holdfast.api.windows.spec import Caller
from holdfast.errors import JobGraphError

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.api.streams.keyed_stream import KeyedStream
    from holdfast.api.windows.assigners import WindowAssigner


@dataclass(frozen=True)
class _Meeting:
    """Two streams, before their keys are named."""

    first: DataStream
    second: DataStream

    def __post_init__(self) -> None:
        if not isinstance(self.second, DataStream):
            raise JobGraphError(
                f"join and co_group take a stream, not {type(self.second).__name__}"
            )
        check_one_environment(self.first, self.second)


class JoinedStreams(_Meeting):
    """Two streams whose elements are to be paired."""

    def where(self, *key: Any) -> Where:
        """The key of the first stream: names of columns, or a function."""
        return Where(self, self.first.key_by(*key), pairs=True)


class CoGroupedStreams(_Meeting):
    """Two streams whose elements are to be brought together."""

    def where(self, *key: Any) -> Where:
        """The key of the first stream: names of columns, or a function."""
        return Where(self, self.first.key_by(*key), pairs=False)


@dataclass(frozen=True)
class Where:
    """Two streams, of which the first has a key."""

    streams: _Meeting
    first: KeyedStream
    pairs: bool

    def equal_to(self, *key: Any) -> EqualTo:
        """The key of the second stream, of the same type as the first one's."""
        return EqualTo(self.first, self.streams.second.key_by(*key), self.pairs)


@dataclass(frozen=True)
class EqualTo:
    """Two streams with their keys."""

    first: KeyedStream
    second: KeyedStream
    pairs: bool

    def window(self, assigner: WindowAssigner) -> JoinWindows:
        """Cut both streams into the same windows."""
        return JoinWindows(self, assigner)


class JoinWindows(WindowSettings):
    """Two streams cut into windows: those without a partner in theirs give nothing out."""

    def __init__(self, streams: EqualTo, assigner: WindowAssigner) -> None:
        """Windows that `assigner` makes, for both streams."""
        super().__init__(windowing(assigner, streams.first, streams.second))
        self._streams = streams

    def apply(
        self,
        function: JoinFunction | FlatJoinFunction | CoGroupFunction | Callable[[Any, Any], Any],
        output_type: Any = None,
    ) -> DataStream:
        """Call a function with what meets in a window.

        Of `join`: a `JoinFunction`, a `FlatJoinFunction`, or a function of two elements that
        gives one. Of `co_group`: a `CoGroupFunction`, or a function of two lists.
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
