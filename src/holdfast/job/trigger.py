"""How fast a job goes and how it ends, by what its sources are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.api.streams.graph import OperatorKind
from holdfast.config import configuration as conf
from holdfast.config.configuration import RuntimeExecutionMode
from holdfast.errors import JobGraphError

if TYPE_CHECKING:
    from holdfast.api.streams.graph import JobGraph, Node
    from holdfast.config.configuration import Configuration


@dataclass(frozen=True)
class JobTrigger:
    """When epochs run and when the job ends."""

    interval_ms: int
    available_now: bool
    """Whether the job ends when it has processed all there is."""
    one_pass: bool
    """Whether all data is processed as one epoch, without a streaming query."""
    ends: bool = False
    """Whether there will never be more data than there is."""
    confirms_end: bool = False
    """Whether the job makes sure that it has read all of it, since no other start would."""


def runs_as_batch(graph: JobGraph, configuration: Configuration) -> bool:
    """Whether all input is processed in one pass, and only final results are given out.

    Raises:
        JobGraphError: Batch mode is asked for, and a source never ends.
    """
    mode = configuration.get(conf.RUNTIME_MODE)
    unbounded = [node for node in _sources(graph) if not node.function.bounded]
    if mode is RuntimeExecutionMode.BATCH and unbounded:
        raise JobGraphError(
            f"BATCH mode needs bounded sources, and {unbounded[0]} is unbounded; bounded are "
            "static DataFrames, collections, and generators with a count"
        )
    return mode is RuntimeExecutionMode.BATCH or (
        mode is RuntimeExecutionMode.AUTOMATIC and not unbounded
    )


def job_trigger(graph: JobGraph, configuration: Configuration) -> JobTrigger:
    """When epochs begin, and whether the job ends by itself.

    Raises:
        JobGraphError: The job is to end when all is read, and a source never runs out.
    """
    sources = _sources(graph)
    all_bounded = all(node.function.bounded for node in sources)
    some_static = any(node.function.one_pass for node in sources)
    one_pass = runs_as_batch(graph, configuration) or (all_bounded and some_static)
    available_now = configuration.get(conf.AVAILABLE_NOW)
    endless = [node for node in sources if node.function.endless]
    if available_now and endless:
        raise JobGraphError(
            f"available-now ends when all there is has been read, and {endless[0]} never runs "
            "out; give the generator a count"
        )
    return JobTrigger(
        interval_ms=configuration.get(conf.EPOCH_INTERVAL),
        available_now=all_bounded or available_now,
        one_pass=one_pass,
        ends=all_bounded,
        confirms_end=all_bounded and configuration.get(conf.JOB_ID) is not None,
    )


def _sources(graph: JobGraph) -> list[Node]:
    """Sources that something reads; the others do not run."""
    read = {edge.node.id for node in graph.nodes for edge in node.inputs}
    return [node for node in graph.nodes if node.kind is OperatorKind.SOURCE and node.id in read]
