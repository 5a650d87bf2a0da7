"""Decides when epochs run and how a job ends, by its sources and configuration."""

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
    """Whether the job ends when it has processed all available data."""
    one_pass: bool
    """Whether all data is processed as one epoch, without a streaming query."""
    ends: bool = False
    """Whether all sources are bounded."""
    confirms_end: bool = False
    """Whether the job checks at its end that all data was read, since no other start would."""


def runs_as_batch(graph: JobGraph, configuration: Configuration) -> bool:
    """Whether all input is processed in one pass, with only final results.

    Raises:
        JobGraphError: Batch mode is configured, and a source is unbounded.
    """
    mode = configuration.get(conf.RUNTIME_MODE)
    unbounded = [node for node in _sources(graph) if not node.function.bounded]
    if mode is RuntimeExecutionMode.BATCH and unbounded:
        raise JobGraphError(
            f"BATCH mode needs bounded sources, and {unbounded[0]} is unbounded; static "
            "DataFrames, collections, and generators with a count are bounded"
        )
    return mode is RuntimeExecutionMode.BATCH or (
        mode is RuntimeExecutionMode.AUTOMATIC and not unbounded
    )


def job_trigger(graph: JobGraph, configuration: Configuration) -> JobTrigger:
    """The trigger of a job.

    Raises:
        JobGraphError: Available-now is configured, and a source never ends.
    """
    sources = _sources(graph)
    all_bounded = all(node.function.bounded for node in sources)
    some_static = any(node.function.one_pass for node in sources)
    one_pass = runs_as_batch(graph, configuration) or (all_bounded and some_static)
    available_now = configuration.get(conf.AVAILABLE_NOW)
    endless = [node for node in sources if node.function.endless]
    if available_now and endless:
        raise JobGraphError(
            f"available-now ends when all available data is read, and {endless[0]} never ends; "
            "give the generator a count"
        )
    return JobTrigger(
        interval_ms=configuration.get(conf.EPOCH_INTERVAL),
        available_now=all_bounded or available_now,
        one_pass=one_pass,
        ends=all_bounded,
        confirms_end=all_bounded and configuration.get(conf.JOB_ID) is not None,
    )


def _sources(graph: JobGraph) -> list[Node]:
    """The sources in use."""
    read = {edge.node.id for node in graph.nodes for edge in node.inputs}
    return [node for node in graph.nodes if node.kind is OperatorKind.SOURCE and node.id in read]
