"""A job in words, before anything runs."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

from pyspark import cloudpickle

from holdfast.api.functions import Function, RuntimeContext
from holdfast.api.graph import Exchange, Kind
from holdfast.api.metrics import MetricGroup
from holdfast.api.windowing import Windowing

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame

    from holdfast.api.descriptors import StateDescriptor
    from holdfast.api.graph import Edge, JobGraph, Node
    from holdfast.api.time import WatermarkStrategy
    from holdfast.spark.compiler import JobPlan


class _RecordingContext(RuntimeContext):
    """Notes which states a function asks for."""

    def __init__(self) -> None:
        self.descriptors: list[StateDescriptor] = []

    def _note(self, descriptor: StateDescriptor) -> Any:
        self.descriptors.append(descriptor)

    get_state = get_list_state = get_map_state = _note
    get_reducing_state = get_aggregating_state = _note

    def get_index_of_this_subtask(self) -> int:
        return 0

    def get_number_of_parallel_subtasks(self) -> int:
        return 1

    def get_max_number_of_parallel_subtasks(self) -> int:
        return 1

    def get_attempt_number(self) -> int:
        return 0

    def get_task_name(self) -> str:
        return "explain"

    def get_job_parameter(self, key: str, default: str | None = None) -> str | None:
        return default

    def get_job_parameters(self) -> Mapping[str, str]:
        return {}

    def get_metrics_group(self) -> MetricGroup:
        return MetricGroup()


def explain_job(graph: JobGraph, plan: JobPlan, epoch_rows: DataFrame) -> str:
    """Operators with uids and states, then the Spark plan of an epoch."""
    lines = ["== Job graph =="]
    for node in graph.nodes:
        lines.append(_node_line(node, plan))
        lines += [f"      reads {_edge_text(edge)}" for edge in node.inputs]
        if node.kind is Kind.TIMESTAMPS:
            lines.append(f"      time {_strategy_text(node.details)}")
        if isinstance(node.details, Windowing):
            lines.append(f"      windows {node.details}")
        lines += [f"      state {text}" for text in _states(node)]
    lines += ["", "== Spark plan of an epoch ==", _spark_plan(epoch_rows)]
    return "\n".join(lines)


def _node_line(node: Node, plan: JobPlan) -> str:
    uid = plan.uids[node.id] + ("" if node.uid else " (derived)")
    text = f"[{node.id}] {node.name}  uid {uid}"
    if node.kind is Kind.SOURCE:
        bounded = "bounded" if node.function.bounded else "unbounded"
        return f"{text}  {bounded}, {node.function.description}  gives {node.output}"
    if node.kind is Kind.OUTPUT:
        return text
    text += f"  parallelism {plan.parallelism[node.id]}"
    if node.keyed:
        text += f" of {plan.max_parallelism[node.id]} key groups"
    return text + f"  gives {node.output}"


def _edge_text(edge: Edge) -> str:
    partitioning = edge.partitioning
    text = f"[{edge.node.id}]"
    if edge.tag is not None:
        text += f" side output {edge.tag.tag_id!r}"
    if edge.side:
        text += " as second input"
    if partitioning.exchange is not Exchange.KEY:
        return f"{text} {partitioning.exchange.value}"
    text += f" by key ({', '.join(partitioning.columns) or 'a function'})"
    if partitioning.order is not None:
        text += f" in order of {', '.join(partitioning.order) or 'event time'}"
    return text


def _strategy_text(strategy: WatermarkStrategy) -> str:
    """Where event time comes from, and how the watermark follows it."""
    match strategy.assigner:
        case None:
            text = "as it was before"
        case str(column):
            text = f"from {column}"
        case _:
            text = "from a function"
    if strategy.out_of_orderness_ms is None:
        return f"{text}, no watermarks"
    text += f", watermark {strategy.out_of_orderness_ms + 1} ms behind the latest"
    if strategy.idle_after_ms is not None:
        text += f", idle after {strategy.idle_after_ms} ms"
    return text


def _states(node: Node) -> list[str]:
    """States that a function asks for in `open`, tried on a copy of it."""
    if not node.keyed:
        return []
    if node.kind is Kind.REDUCE:
        return [f"value 'reduced': {node.output}"]
    if not isinstance(node.function, Function):
        return []
    context = _RecordingContext()
    try:
        copy = pickle.loads(cloudpickle.dumps(node.function))  # type: ignore[no-untyped-call]
        copy.open(context)
    except Exception as error:
        return [f"unknown before it runs: open() raised {type(error).__name__}: {error}"]
    return [f"{d.kind} {d.name!r}: {_type_text(d)}{_ttl_text(d)}" for d in context.descriptors]


def _ttl_text(descriptor: StateDescriptor) -> str:
    config = descriptor.time_to_live
    return "" if config is None else f", lives {config.ttl_ms} ms"


def _type_text(descriptor: Any) -> str:
    if descriptor.kind == "map":
        return f"{_spec_text(descriptor.key_type)} -> {_spec_text(descriptor.value_type)}"
    return _spec_text(descriptor.type)


def _spec_text(spec: object) -> str:
    if spec is None:
        return "pickled"
    return spec.__name__ if isinstance(spec, type) else str(spec)


def _spark_plan(rows: DataFrame) -> str:
    execution = rows._jdf.queryExecution()
    return str(execution.executedPlan().toString()).rstrip()
