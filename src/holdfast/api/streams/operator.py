"""What every stream and sink has: an operator behind it, and settings of that operator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from holdfast.api.sinks import Sink
from holdfast.api.streams.graph import FORWARD, OperatorKind
from holdfast.config.parallelism import check_max_parallelism
from holdfast.errors import JobGraphError

if TYPE_CHECKING:
    from typing import Self

    from holdfast.api.outputs import ErrorPolicy
    from holdfast.api.streams.graph import Edge, JobGraph, Node
    from holdfast.api.streams.lookup import LookupJoin
    from holdfast.types.stream_type import StreamType


class Environment(Protocol):
    """What streams need of the environment they belong to."""

    _graph: JobGraph

    def execute_and_collect(self, stream: Any, job_name: str | None, limit: int | None) -> Any:
        """Run the program and iterate over what `stream` carries."""

    def lookup(
        self, stream: StreamType, table: Any, on: Any, refresh_interval: Any, how: str
    ) -> LookupJoin:
        """The join of a stream's rows with a table."""


class StreamOperator:
    """What can be said of the operator behind a stream or a sink."""

    def __init__(self, env: Environment, edges: tuple[Edge, ...]) -> None:
        self._env = env
        self._edges = edges

    def uid(self, uid: str) -> Self:
        """Name the operator for good: its state is found under this name."""
        if not isinstance(uid, str) or not uid:
            raise JobGraphError(f"a uid is a non-empty string, not {uid!r}")
        self._operator("uid").uid = uid
        return self

    def name(self, name: str) -> Self:
        """Name the operator for people: in plans, statistics and Spark's UI."""
        self._operator("name").name = name
        return self

    def set_parallelism(self, parallelism: int) -> Self:
        """Set the number of subtasks of the operator."""
        if parallelism < 1:
            raise JobGraphError(f"parallelism must be at least 1, not {parallelism}")
        node = self._operator("set_parallelism")
        _check_not_single(node, parallelism, "set_parallelism")
        node.parallelism = parallelism
        return self

    def set_max_parallelism(self, max_parallelism: int) -> Self:
        """Set the number of key groups of the operator."""
        node = self._operator("set_max_parallelism")
        check_max_parallelism(max_parallelism, node.name)
        _check_not_single(node, max_parallelism, "set_max_parallelism")
        node.max_parallelism = max_parallelism
        return self

    def on_error(self, policy: ErrorPolicy) -> Self:
        """Say what happens to a row on which the operator's function raises."""
        node = self._operator("on_error")
        if node.kind in (OperatorKind.SOURCE, OperatorKind.OUTPUT, OperatorKind.LOOKUP_JOIN) or (
            isinstance(node.function, Sink) and node.function.takes_rows
        ):
            raise JobGraphError(
                f"on_error() speaks of a function that runs on rows in tasks, and {node.name!r} "
                "has none; call it on the result of map, process, add_sink and the like"
            )
        if policy.tag is not None and policy.tag.type is not None:
            raise JobGraphError(
                f"{policy.tag!r} takes failed rows, which have a type of their own; "
                "make the tag without a type"
            )
        node.policy = policy
        return self

    def _operator(self, what: str) -> Node:
        edge = self._edges[0]
        if len(self._edges) > 1 or edge.tag is not None or edge.partitioning is not FORWARD:
            raise JobGraphError(
                f"{what}() speaks of an operator, and this stream is not the output of one; "
                "call it on the result of map, process and the like"
            )
        return edge.node


class DataStreamSink(StreamOperator):
    """The end of a stream."""


def _check_not_single(node: Node, count: int, what: str) -> None:
    """Refuse to spread the windows of a stream that is not keyed: they hold all elements."""
    if count > 1 and node.kind is OperatorKind.WINDOW and not node.keyed:
        raise JobGraphError(
            f"{what}({count}): {node.name!r} has windows of the whole stream, which one subtask "
            "must hold; call key_by before window to spread them"
        )


def checked_function(function: object, kind: type, what: str) -> object:
    """`function`, if it is of the kind that a method takes, or any callable."""
    if isinstance(function, kind) or callable(function):
        return function
    raise JobGraphError(wrong_function(what, function, f"{kind.__name__} or a callable"))


def wrong_function(what: str, function: object, wanted: str) -> str:
    """The message for a method that was given another function than it takes."""
    return f"{what} takes a {wanted}, not {type(function).__name__}"
