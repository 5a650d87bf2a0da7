"""Functions of two streams: connected streams, broadcast and interval join."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic

from holdfast.api.co_functions import (
    BroadcastProcessFunction,
    CoFlatMapFunction,
    CoMapFunction,
    CoProcessFunction,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    ProcessJoinFunction,
)
from holdfast.api.descriptors import MapStateDescriptor
from holdfast.api.streams.checks import check_function
from holdfast.api.streams.data_stream import DataStream, Stream
from holdfast.api.streams.graph import Edge, OperatorKind
from holdfast.api.streams.keyed_stream import KeyedStream
from holdfast.api.streams.output_type import output_type_of
from holdfast.api.type_variables import IN1, IN2, OUT, T
from holdfast.config.options import signed_duration_ms
from holdfast.errors import JobGraphError, StateDescriptorError
from holdfast.types.arrow import key_type

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from holdfast.api.outputs import OutputTag
    from holdfast.config.options import DurationLike
    from holdfast.types.stream_type import StreamType


@dataclass(frozen=True)
class JoinInterval:
    """The condition of an interval join.

    The right time minus the left time must lie between `lower` and `upper`, both included.
    """

    lower: int
    upper: int
    left: StreamType
    right: StreamType
    late_left: OutputTag | None = None
    late_right: OutputTag | None = None


class BroadcastStream(Generic[T]):
    """A stream whose elements go to every subtask; connect it with another stream."""

    def __init__(self, stream: DataStream[T], descriptors: tuple[MapStateDescriptor, ...]) -> None:
        """The broadcast `stream`, and the descriptors of its broadcast states."""
        for descriptor in descriptors:
            if not isinstance(descriptor, MapStateDescriptor):
                raise JobGraphError(
                    "broadcast takes MapStateDescriptors, since a broadcast state is a map, not "
                    f"{type(descriptor).__name__}"
                )
            if descriptor.time_to_live is not None:
                raise StateDescriptorError(
                    f"broadcast state {descriptor.name!r} cannot have a time to live, which only "
                    "keyed state has; leave the ttl of its descriptor out"
                )
        self._stream = stream
        self._descriptors = descriptors


def connected(
    first: Stream[IN1], second: Stream[IN2] | BroadcastStream[IN2]
) -> ConnectedStreams[IN1, IN2] | BroadcastConnectedStream[IN1, IN2]:
    """Connect two streams."""
    if isinstance(second, BroadcastStream):
        check_one_environment(first, second._stream)
        return BroadcastConnectedStream(first, second)
    if not isinstance(second, Stream):
        raise JobGraphError(
            f"connect takes a stream, or a BroadcastStream as broadcast(descriptor) makes it, not "
            f"{type(second).__name__}"
        )
    check_one_environment(first, second)
    return ConnectedStreams(first, second)


class ConnectedStreams(Generic[IN1, IN2]):
    """Two streams, possibly of different types, for a function with a method for each."""

    def __init__(self, first: Stream[IN1], second: Stream[IN2]) -> None:
        """Two streams; their functions have keyed state if both are keyed."""
        self._first = first
        self._second = second

    def key_by(self, key1: Any, key2: Any) -> ConnectedStreams[IN1, IN2]:
        """Key each stream by columns or by a function; both keys must have the same type."""
        return ConnectedStreams(
            self._first.key_by(*several(key1)), self._second.key_by(*several(key2))
        )

    def map(
        self, function: CoMapFunction[IN1, IN2, OUT], output_type: Any = None
    ) -> DataStream[OUT]:
        """Map every element of either stream to one element."""
        check_function(function, CoMapFunction, "map")
        output = _common_output(function.map1, function.map2, output_type, per_element=True)
        return self._then(OperatorKind.CO_MAP, function, output)

    def flat_map(
        self, function: CoFlatMapFunction[IN1, IN2, OUT], output_type: Any = None
    ) -> DataStream[OUT]:
        """Map every element of either stream to any number of elements."""
        check_function(function, CoFlatMapFunction, "flat_map")
        output = _common_output(
            function.flat_map1, function.flat_map2, output_type, per_element=False
        )
        return self._then(OperatorKind.CO_FLAT_MAP, function, output)

    def process(
        self,
        function: CoProcessFunction[IN1, IN2, OUT] | KeyedCoProcessFunction[Any, IN1, IN2, OUT],
        output_type: Any = None,
    ) -> DataStream[OUT]:
        """Apply the general operator; with keyed state and timers if both streams are keyed."""
        kind = OperatorKind.KEYED_CO_PROCESS if self._keyed() else OperatorKind.CO_PROCESS
        wanted = KeyedCoProcessFunction if self._keyed() else CoProcessFunction
        check_function(function, wanted, "process")
        output = _common_output(
            function.process_element1, function.process_element2, output_type, per_element=False
        )
        return self._then(kind, function, output)

    def _keyed(self) -> bool:
        keyed = isinstance(self._first, KeyedStream)
        if keyed != isinstance(self._second, KeyedStream):
            raise JobGraphError(
                "connect: one of the two streams is keyed and the other is not; key both, or "
                "neither, or broadcast the other one with the descriptors of its states, as in "
                "rules.broadcast(MapStateDescriptor(...))"
            )
        return keyed

    def _then(self, kind: OperatorKind, function: object, output: StreamType) -> DataStream[Any]:
        self._keyed()
        return joined(self._first, self._second, kind, function, output)


class BroadcastConnectedStream(Generic[IN1, IN2]):
    """A stream, keyed or not, and a broadcast stream."""

    def __init__(self, data: Stream[IN1], control: BroadcastStream[IN2]) -> None:
        """The stream `data`, connected with the broadcast stream `control`."""
        self._data = data
        self._control = control

    def process(
        self,
        function: BroadcastProcessFunction[IN1, IN2, OUT]
        | KeyedBroadcastProcessFunction[Any, IN1, IN2, OUT],
        output_type: Any = None,
    ) -> DataStream[OUT]:
        """Apply a function to the elements of both."""
        keyed = isinstance(self._data, KeyedStream)
        wanted = KeyedBroadcastProcessFunction if keyed else BroadcastProcessFunction
        check_function(function, wanted, "process")
        kind = OperatorKind.KEYED_BROADCAST_PROCESS if keyed else OperatorKind.BROADCAST_PROCESS
        output = _common_output(
            function.process_element,
            function.process_broadcast_element,
            output_type,
            per_element=False,
        )
        states = self._control._descriptors
        return joined(self._data, self._control._stream, kind, function, output, states)


class IntervalJoin(Generic[IN1, IN2]):
    """Two keyed streams, without an interval yet."""

    def __init__(self, left: KeyedStream[Any, IN1], right: KeyedStream[Any, IN2]) -> None:
        """Check that both streams are keyed and have event time."""
        if not isinstance(right, KeyedStream):
            raise JobGraphError("interval_join takes a keyed stream; call key_by on it first")
        check_one_environment(left, right)
        for which, stream in (("left", left), ("right", right)):
            if not stream.timed:
                raise JobGraphError(
                    f"interval_join compares event times, and the {which} stream has none; call "
                    "assign_timestamps_and_watermarks before key_by"
                )
        self._left = left
        self._right = right

    def between(
        self, lower_bound: DurationLike, upper_bound: DurationLike
    ) -> IntervalJoined[IN1, IN2]:
        """Pair a left element with right ones from `lower_bound` to `upper_bound` after it.

        Bounds may be negative: a right element may lie before the left one. Both are included.
        """
        lower, upper = signed_duration_ms(lower_bound), signed_duration_ms(upper_bound)
        if lower > upper:
            raise JobGraphError(
                f"interval_join: the lower bound ({lower} ms) lies above the upper ({upper} ms)"
            )
        interval = JoinInterval(lower, upper, self._left.type, self._right.type)
        return IntervalJoined(self._left, self._right, interval)


class IntervalJoined(Generic[IN1, IN2]):
    """Two keyed streams and an interval, without a function yet."""

    def __init__(
        self, left: KeyedStream[Any, IN1], right: KeyedStream[Any, IN2], interval: JoinInterval
    ) -> None:
        """Two keyed streams and the condition of their join."""
        self._left = left
        self._right = right
        self._interval = interval

    def lower_bound_exclusive(self) -> Self:
        """Exclude right elements exactly at the lower bound."""
        return self._with(lower=self._interval.lower + 1)

    def upper_bound_exclusive(self) -> Self:
        """Exclude right elements exactly at the upper bound."""
        return self._with(upper=self._interval.upper - 1)

    def side_output_left_late_data(self, tag: OutputTag) -> Self:
        """Send left elements that are too late to `tag`, instead of dropping them."""
        return self._with(late_left=tag)

    def side_output_right_late_data(self, tag: OutputTag) -> Self:
        """Send right elements that are too late to `tag`, instead of dropping them."""
        return self._with(late_right=tag)

    def _with(self, **changes: Any) -> Self:
        return type(self)(self._left, self._right, replace(self._interval, **changes))

    def process(
        self, function: ProcessJoinFunction[IN1, IN2, OUT], output_type: Any = None
    ) -> DataStream[OUT]:
        """Call a function with every pair."""
        check_function(function, ProcessJoinFunction, "process")
        interval = self._interval
        if interval.lower > interval.upper:
            raise JobGraphError("interval_join: with its bounds left out, the interval is empty")
        output = output_type_of(function.process_element, output_type, per_element=False)
        return joined(
            self._left, self._right, OperatorKind.INTERVAL_JOIN, function, output, interval
        )


def joined(
    first: Stream[Any],
    second: Stream[Any],
    kind: OperatorKind,
    function: object,
    output: StreamType,
    details: object = None,
) -> DataStream[Any]:
    """The output of an operator with two inputs, whose keys must be of one type."""
    _check_keys(first, second)
    edges = first._edges + tuple(replace(edge, side=1) for edge in second._edges)
    node = first._env._graph.add(kind, edges, output, function=function, details=details)
    return DataStream(first._env, (Edge(node, None, output),))


def _common_output(
    first: Callable[..., Any], second: Callable[..., Any], declared: object, *, per_element: bool
) -> StreamType:
    """The declared type, or the type that both methods declare."""
    output = output_type_of(first, declared, per_element=per_element)
    other = output_type_of(second, declared, per_element=per_element)
    if output == other or other.kind == "object":
        return output
    if output.kind == "object":
        return other
    raise JobGraphError(
        f"the two methods of the function declare different types, {output} and {other}; give an "
        "output_type that holds both"
    )


def _check_keys(first: Stream[Any], second: Stream[Any]) -> None:
    """Check that the types of the keys allow equal keys."""
    mine, theirs = _key_types(first), _key_types(second)
    if mine is not None and theirs is not None and mine != theirs:
        raise JobGraphError(
            f"the two streams have keys of different types, {', '.join(mine)} and "
            f"{', '.join(theirs)}, which are never equal; cast one of them before key_by"
        )


def _key_types(stream: Stream[Any]) -> list[str] | None:
    """Types of the columns of a key, as keys are compared; None if the key is a function."""
    edge = stream._edges[0]
    columns = edge.partitioning.columns
    return [key_type(edge.type.schema.field(column).type) for column in columns] or None


def check_one_environment(first: Stream[Any], second: Stream[Any]) -> None:
    """Check that both streams belong to one environment."""
    if first._env is not second._env:
        raise JobGraphError("connect needs streams of one environment")


def several(key: Any) -> tuple[Any, ...]:
    """One key or a list of them, as `key_by` takes them."""
    return tuple(key) if isinstance(key, list | tuple) else (key,)
