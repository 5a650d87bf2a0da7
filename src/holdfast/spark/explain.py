"""Explains a job before anything runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from holdfast.api.functions import Function
from holdfast.api.streams.graph import OperatorKind, Partitioner
from holdfast.api.windows.spec import Windowing
from holdfast.config.submission import current_submission
from holdfast.job.declared_states import declared_states
from holdfast.job.model import EpochOrder, JobIdentity
from holdfast.job.statistics_keeper import StatisticsKeeper
from holdfast.spark.epoch_runner import EpochRunner
from holdfast.spark.placement.pinning import Pinning
from holdfast.spark.session import QUERY_SETTINGS, settings
from holdfast.spark.types import spark_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from holdfast.api.descriptors import StateDescriptor
    from holdfast.api.streams.graph import Edge, JobGraph, Node
    from holdfast.api.time import WatermarkStrategy
    from holdfast.checkpoint.savepoint.comparison import SavepointComparison
    from holdfast.config.options import PathLike
    from holdfast.job.model import JobPlan


class ExplainedProgram(Protocol):
    """An environment that answers about its job."""

    def explain(self) -> str:
        """Describe the job."""

    def compare_savepoint(
        self, path: PathLike, *, allow_non_restored_state: bool | None = None
    ) -> SavepointComparison:
        """Compare the job with a savepoint."""


def answer_preview(env: ExplainedProgram) -> None:
    """End the program with an answer about its job, if `holdfast` has asked for one."""
    submission = current_submission()
    preview = None if submission is None else submission.preview
    if preview is None:
        return
    answer: dict[str, Any] = {}
    if preview.savepoint is None:
        answer["explanation"] = env.explain()
    else:
        comparison = env.compare_savepoint(
            preview.savepoint, allow_non_restored_state=preview.allow_non_restored_state
        )
        answer |= {
            "fits": comparison.fits,
            "problems": comparison.problems,
            "operators": comparison.operators,
            "sources": comparison.sources,
            "text": str(comparison),
        }
    Path(preview.answer).write_bytes(msgspec.json.encode(answer, enc_hook=str))
    raise SystemExit(0)


def explain_job(spark: SparkSession, graph: JobGraph, plan: JobPlan) -> str:
    """Operators with uids and states, then the Spark plan of an epoch."""
    lines = ["== Job graph =="]
    for node in graph.nodes:
        lines.append(_node_line(node, plan))
        lines += [f"      reads {_edge_text(edge)}" for edge in node.inputs]
        if node.kind is OperatorKind.TIMESTAMPS:
            lines.append(f"      time {_strategy_text(node.details)}")
        if isinstance(node.details, Windowing):
            lines.append(f"      windows {node.details}")
        lines += [f"      state {text}" for text in _states(node, plan)]
    lines += ["", "== Spark plan of an epoch ==", _spark_plan(_epoch_rows(spark, plan))]
    return "\n".join(lines)


def _epoch_rows(spark: SparkSession, plan: JobPlan) -> DataFrame:
    """The Spark plan of an epoch, over empty DataFrames in place of the sources."""
    job = JobIdentity("preview", "preview", None)
    runner = EpochRunner(spark, plan, job, StatisticsKeeper(plan), Pinning(spark))
    schemas = [spark_schema(source.node.output.schema) for source in plan.sources]
    with settings(spark, QUERY_SETTINGS):
        frames = [spark.createDataFrame([], schema) for schema in schemas]
        # An idle epoch: it reads nothing, such as the tables of lookup joins.
        rows = runner.rows(runner.first_rows(frames), EpochOrder(idle=True))
        # Planned here, while the settings apply.
        rows._jdf.queryExecution().executedPlan()
        return rows


def _node_line(node: Node, plan: JobPlan) -> str:
    uid = plan.uids[node.id] + ("" if node.uid else " (derived)")
    text = f"[{node.id}] {node.name}  uid {uid}"
    if node.kind is OperatorKind.SOURCE:
        bounded = "bounded" if node.function.bounded else "unbounded"
        return f"{text}  {bounded}, {node.function.description}  gives {node.output}"
    if node.kind is OperatorKind.OUTPUT:
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
    if partitioning.partitioner is not Partitioner.KEY:
        return f"{text} {partitioning.partitioner.value}"
    text += f" by key ({', '.join(partitioning.columns) or 'a function'})"
    if partitioning.order is not None:
        text += f" in order of {', '.join(partitioning.order) or 'event time'}"
    return text


def _strategy_text(strategy: WatermarkStrategy) -> str:
    """Describes the source of event time and the watermark strategy."""
    match strategy.assigner:
        case None:
            text = "as it was before"
        case str(column):
            text = f"from {column}"
        case _:
            text = "from a function"
    if isinstance(strategy.generator, str):
        text += f", watermarks from {strategy.generator}"
    elif strategy.generator is not None:
        text += ", watermarks from a generator"
    elif strategy.out_of_orderness_ms is None:
        return f"{text}, no watermarks"
    else:
        text += f", watermark {strategy.out_of_orderness_ms + 1} ms behind the latest"
    if strategy.idle_after_ms is not None:
        text += f", idle after {strategy.idle_after_ms} ms"
    if strategy.alignment is not None:
        group, drift_ms = strategy.alignment.group, strategy.alignment.max_drift_ms
        text += f", waits if more than {drift_ms} ms ahead of group {group!r}"
    return text


def _states(node: Node, plan: JobPlan) -> list[str]:
    """States that an operator registers; found by opening a copy of its function."""
    if not node.keyed:
        return []
    if node.kind is OperatorKind.REDUCE:
        return [f"value 'reduced': {node.output}"]
    if not isinstance(node.function, Function):
        return []
    operator = plan.operators[plan.uids[node.id]]
    declared = declared_states(operator, plan.stages[0].job_parameters)
    found = [f"{d.kind} {d.name!r}: {_type_text(d)}{_ttl_text(d)}" for d in declared.keyed.values()]
    return (
        found
        if declared.unknown is None
        else [*found, f"unknown before it runs: {declared.unknown}"]
    )


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
