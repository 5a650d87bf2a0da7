"""Windows without a job, for the harness.

>>> from holdfast.windows import TumblingEventTimeWindows
>>> from holdfast.testing import OperatorHarness, windowed
>>> longest = windowed(TumblingEventTimeWindows.of("1 min")).reduce(max)
>>> with OperatorHarness(longest, key=len) as harness:
...     harness.push("ab", "cd", at=1_000)
...     harness.advance_watermark(60_000)
...     harness.outputs
['cd']
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.api.streams.data_stream import DataStream
from holdfast.api.streams.graph import Edge, JobGraph, OperatorKind
from holdfast.api.streams.window_joins import CoGroupedStreams, JoinedStreams
from holdfast.api.time import WatermarkStrategy
from holdfast.errors import JobGraphError
from holdfast.types.stream_type import StreamType

if TYPE_CHECKING:
    from holdfast.api.streams.window_joins import JoinWindows
    from holdfast.api.streams.windowed import WindowedStream
    from holdfast.api.windows.assigners import WindowAssigner


class _Program:
    """An environment that only has a graph."""

    def __init__(self) -> None:
        self._graph = JobGraph()

    def execute_and_collect(
        self, stream: DataStream, job_name: str | None, limit: int | None
    ) -> Any:
        raise JobGraphError("windows made for the harness are no part of a job")

    def lookup(self, stream: StreamType, table: Any, on: Any, interval: Any, how: str) -> Any:
        raise JobGraphError("windows made for the harness are no part of a job")

    def stream(self, type_spec: Any) -> DataStream:
        """A stream with event time."""
        stream_type = StreamType.of(type_spec)
        source = self._graph.add(OperatorKind.SOURCE, (), stream_type)
        strategy = WatermarkStrategy.no_watermarks()
        node = self._graph.add(
            OperatorKind.TIMESTAMPS,
            (Edge(source, None, stream_type),),
            stream_type,
            details=strategy,
        )
        return DataStream(self, (Edge(node, None, stream_type),))


def windowed(assigner: WindowAssigner, *, keyed: bool = True, type: Any = Any) -> WindowedStream:
    """A windowed stream; apply a window function, and pass the result to the harness.

    Args:
        assigner: The window assigner.
        keyed: Whether the stream is keyed; the harness takes the key.
        type: Type of the elements, if it matters, as for `sum("amount")`.
    """
    stream = _Program().stream(type)
    return stream.key_by(_no_key).window(assigner) if keyed else stream.window_all(assigner)


def window_joined(
    assigner: WindowAssigner, *, grouped: bool = False, types: tuple[Any, Any] = (Any, Any)
) -> JoinWindows:
    """Two streams in the same windows, joined or `grouped`; for the harness."""
    program = _Program()
    first, second = program.stream(types[0]), program.stream(types[1])
    streams = CoGroupedStreams(first, second) if grouped else JoinedStreams(first, second)
    return streams.where(_no_key).equal_to(_no_key).window(assigner)


def windows_of(stream: DataStream, *, keyed: bool) -> tuple[Any, Any, OperatorKind]:
    """Function, details and kind of the operator behind a stream of windows."""
    node = stream._edges[0].node
    if node.kind not in (OperatorKind.WINDOW, OperatorKind.WINDOW_JOIN):
        raise JobGraphError("the harness takes a function, or windows as windowed() makes them")
    if node.keyed != keyed:
        raise JobGraphError(
            "windows of keys need a key in the harness; windowed(..., keyed=False) has none"
        )
    return node.function, node.details, node.kind


def _no_key(element: Any) -> Any:
    raise JobGraphError("the harness is given the key")
