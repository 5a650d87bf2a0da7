"""Settings of the operator behind a stream or a sink: uid, name, parallelism, error policy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from typing_extensions import TypeVar

from holdfast.api.sinks import Sink
from holdfast.api.streams.graph import FORWARD, OperatorKind
from holdfast.config.parallelism import check_max_parallelism
from holdfast.errors import JobGraphError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType
    from typing import Self

    from holdfast.api.outputs import ErrorPolicy
    from holdfast.api.streams.graph import Edge, JobGraph, Node
    from holdfast.api.streams.lookup import LookupJoin
    from holdfast.types.stream_type import StreamType

T_co = TypeVar("T_co", covariant=True, default=Any)
"""Type of the elements that are collected."""


class CollectedElements(Protocol[T_co]):
    """The elements of a stream, as the epochs of its job deliver them.

    As a context manager, it cancels the job at the end of the block.
    """

    def __iter__(self) -> Iterator[T_co]:
        """Iterate over all elements; raises at the end if the job failed."""

    def close(self) -> None:
        """Cancel the job, if it still runs."""

    @property
    def client(self) -> Any:
        """The `JobClient` of the job that produces the elements."""

    def __enter__(self) -> Self:
        """Return the elements."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Cancel the job if it still runs."""


class Environment(Protocol):
    """The part of an environment that streams use."""

    _graph: JobGraph

    def execute_and_collect(self, stream: Any, job_name: str | None, limit: int | None) -> Any:
        """Run the program and iterate over the elements of `stream`."""

    def lookup(
        self, stream: StreamType, table: Any, on: Any, refresh_interval: Any, how: str
    ) -> LookupJoin:
        """The join of a stream's rows with a table."""


class StreamOperator:
    """Base class of streams and sinks: settings of their operator."""

    def __init__(self, env: Environment, edges: tuple[Edge, ...]) -> None:
        self._env = env
        self._edges = edges

    def uid(self, uid: str) -> Self:
        """Set the operator's permanent id, which identifies its state."""
        if not isinstance(uid, str) or not uid:
            raise JobGraphError(f"a uid is a non-empty string, not {uid!r}")
        self._operator("uid").uid = uid
        return self

    def name(self, name: str) -> Self:
        """Set the operator's name in plans, statistics and Spark's UI."""
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
        """Set the policy for rows on which the operator's function raises."""
        node = self._operator("on_error")
        if node.kind in (OperatorKind.SOURCE, OperatorKind.OUTPUT, OperatorKind.LOOKUP_JOIN) or (
            isinstance(node.function, Sink) and node.function.takes_rows
        ):
            raise JobGraphError(
                f"on_error() needs an operator whose function runs in tasks, and {node.name!r} has "
                "none; call it on the result of an operator such as map(), process() or add_sink()"
            )
        if policy.tag is not None and policy.tag.type is not None:
            raise JobGraphError(
                f"{policy.tag!r} takes failed rows, whose type is FailedRow; "
                "create the tag without a type"
            )
        node.policy = policy
        return self

    def _operator(self, what: str) -> Node:
        edge = self._edges[0]
        if len(self._edges) > 1 or edge.tag is not None or edge.partitioning is not FORWARD:
            raise JobGraphError(
                f"{what}() must be called directly on the result of an operator such as map() or "
                "process(); this stream is a union, a side output or a repartitioning"
            )
        return edge.node


class DataStreamSink(StreamOperator):
    """The end of a stream."""


def _check_not_single(node: Node, count: int, what: str) -> None:
    """Check that windows of a stream that is not keyed keep a parallelism of 1."""
    if count > 1 and node.kind is OperatorKind.WINDOW and not node.keyed:
        raise JobGraphError(
            f"{what}({count}): {node.name!r} has windows of the whole stream, which run on one "
            "subtask; call key_by before window to distribute them"
        )
