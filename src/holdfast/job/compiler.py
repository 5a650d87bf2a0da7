"""Compiles a job graph to stages.

Operators that feed each other directly, with the same parallelism, share a stage. Every exchange
starts a new one. Stage 0 belongs to the sources and is compiled once per source: operators chained
to two sources run behind each of them.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from holdfast.api.checkpointed import CheckpointedFunction, CheckpointListener, ListCheckpointed
from holdfast.api.sinks import ForeachBatchSink, Sink, SparkSink
from holdfast.api.streams.graph import (
    FORWARD,
    Edge,
    JobGraph,
    Node,
    OperatorKind,
    Partitioner,
    Partitioning,
)
from holdfast.config.parallelism import check_parallelism, default_max_parallelism
from holdfast.errors import JobGraphError
from holdfast.job.model import JobPlan, OutputPlan, Settings, SortedChannel, SourcePlan
from holdfast.job.staged_frames import StagedFrameSink
from holdfast.job.watermarks import check_alignment, time_columns, time_line
from holdfast.runtime.committable_codec import committable_codec
from holdfast.runtime.plan import (
    Channel,
    Exchange,
    KeyPlan,
    OperatorPlan,
    Outlet,
    SecondInput,
    StagePlan,
    TimeColumn,
)
from holdfast.types.stream_type import StreamType

if TYPE_CHECKING:
    import pyarrow as pa


_SINKS = -1
"""Used instead of a node's id for all sinks of an output."""
_RAW = -1
"""Id of the channel between a source and its stage."""


def compile_job(graph: JobGraph, settings: Settings) -> JobPlan:
    """Compile a graph to stages, exchanges and outputs."""
    if all(node.kind is OperatorKind.SOURCE for node in graph.nodes):
        raise JobGraphError(
            "the job has no operators, so there is nothing to run; build a stream from a source "
            "and end it with sink_to, add_sink, foreach_batch, print or execute_and_collect"
        )
    for node in graph.nodes:
        if node.kind is OperatorKind.WRITER:
            committable_codec(node.function)
    return _Compiler(graph, settings).plan()


def compile_rescaled(
    graph: JobGraph, settings: Settings, plan: JobPlan, parallelism: int
) -> JobPlan:
    """Compile a running job for another default parallelism; operators keep max parallelism.

    Args:
        graph: The program.
        settings: The settings that the job was started with.
        plan: The job as it runs.
        parallelism: The new default.

    Raises:
        ConfigurationError: It is not within 1 and the max parallelism of every operator.
    """
    limits = {uid: operator.max_parallelism for uid, operator in plan.operators.items()}
    return compile_job(
        graph, replace(settings, parallelism=parallelism, stored_max_parallelism=limits)
    )


class _Compiler:
    """The steps of one compilation, and their results."""

    def __init__(self, graph: JobGraph, settings: Settings) -> None:
        nodes = _in_use(graph)
        self._settings = settings
        self._uids = graph.uids()
        self._time = time_line(nodes, self._uids)
        check_alignment(nodes, self._uids, self._time)
        self._absorbed = time_columns(nodes)
        self._graph = [node for node in nodes if node.id not in self._absorbed]
        self._stages: dict[int, int] = {}
        self._parallelism: dict[int, int] = {}
        self._max_parallelism: dict[int, int] = {}
        self._channels: dict[tuple[int, str | None, int, int], Channel] = {}
        self._channel_ids = itertools.count()

    def plan(self) -> JobPlan:
        for node in self._graph:
            self._place(node)
        for node in self._absorbed.values():
            self._parallelism[node.id] = self._parallelism[node.inputs[0].node.id]
            self._max_parallelism[node.id] = self._max_parallelism[node.inputs[0].node.id]
        self._last = max(self._stages.values())
        self._make_channels()
        exchanges = [self._exchange(stage) for stage in range(1, self._last + 2)]
        stages = tuple(
            self._stage(stage, self._at(stage), exchanges[stage - 1], exchanges[stage])
            for stage in range(1, self._last + 1)
        )
        return JobPlan(
            sources=tuple(
                self._source(node, exchanges[0])
                for node in self._graph
                if node.kind is OperatorKind.SOURCE
            ),
            stages=stages,
            outputs=self._outputs(),
            first_exchange=exchanges[0],
            uids=self._uids,
            parallelism=self._parallelism,
            max_parallelism=self._max_parallelism,
            stage_parallelism=tuple(self._tasks(exchange) for exchange in exchanges[:-1]),
            frame_sinks={self._uids[node.id]: node for node in self._graph if _takes_frames(node)},
            sorted_by=tuple(
                _sorted_channels(exchange, i) for i, exchange in enumerate(exchanges[:-1], 1)
            ),
            time=self._time,
            lookups={
                self._uids[node.id]: node.details
                for node in self._graph
                if node.kind is OperatorKind.LOOKUP_JOIN
            },
        )

    def _producer(self, edge: Edge) -> Node:
        """The node that produces an edge's rows; skips timestamps that the JVM assigns."""
        return edge.node.inputs[0].node if edge.node.id in self._absorbed else edge.node

    def _is_staged(self, node: Node) -> bool:
        """Whether the node's rows are staged until their checkpoint, and then go to the driver."""
        return self._settings.exactly_once and _takes_frames(node)

    def _is_output(self, node: Node) -> bool:
        """Whether the node takes rows on the driver, after the last exchange."""
        return node.kind is OperatorKind.OUTPUT and not self._is_staged(node)

    def _place(self, node: Node) -> None:
        """Decide a node's parallelism and stage."""
        settings = self._settings
        parallelism = node.parallelism or settings.parallelism
        limit = (
            node.max_parallelism
            or settings.max_parallelism
            or settings.stored_max_parallelism.get(self._uids[node.id])
            or default_max_parallelism(parallelism)
        )
        check_parallelism(parallelism, limit, f"operator {node}")
        self._parallelism[node.id] = parallelism
        self._max_parallelism[node.id] = limit
        if self._is_output(node) or not node.inputs:
            self._stages[node.id] = max(
                (self._stages[self._producer(e).id] for e in node.inputs), default=0
            )
        else:
            self._stages[node.id] = max(self._stage_after(edge, node) for edge in node.inputs)

    def _stage_after(self, edge: Edge, node: Node) -> int:
        return self._stages[self._producer(edge).id] + (not self._may_chain(edge, node))

    def _may_chain(self, edge: Edge, node: Node) -> bool:
        """Whether rows can stay in their task on the way to `node`."""
        if edge.partitioning.partitioner is not Partitioner.FORWARD or node.has_two_inputs:
            return False
        if self._stages[self._producer(edge).id] == 0:
            # Tasks at the sources end with their epoch, and keep no state.
            return (
                node.parallelism is None
                and not _keeps_something(node)
                and not self._is_staged(node)
            )
        return self._parallelism[self._producer(edge).id] == self._parallelism[node.id]

    def _chained(self, edge: Edge, node: Node) -> bool:
        same_stage = self._stages[self._producer(edge).id] == self._stages[node.id]
        return same_stage and self._may_chain(edge, node)

    def _make_channels(self) -> None:
        for node in self._graph:
            if self._is_output(node):
                self._make_output_channel(node)
                continue
            for position, edge in enumerate(node.inputs):
                if not self._chained(edge, node):
                    key = (self._producer(edge).id, _tag(edge), node.id, position)
                    self._channels[key] = self._channel(edge, node, is_output=False)

    def _make_output_channel(self, node: Node) -> None:
        # A sink gets an epoch's rows once, so all inputs of a union share one channel.
        channel = self._channels.get(self._output_key(node, 0))
        if channel is None:
            channel = self._channel(node.inputs[0], node, is_output=True)
        for position in range(len(node.inputs)):
            self._channels[self._output_key(node, position)] = channel

    def _output_key(self, node: Node, position: int) -> tuple[int, str | None, int, int]:
        """Key of a sink's channel: sinks of one output share it, a union has a separate one."""
        edge = node.inputs[position]
        consumer = (_SINKS, 0) if len(node.inputs) == 1 else (node.id, position)
        return (self._producer(edge).id, _tag(edge), *consumer)

    def _channel(self, edge: Edge, node: Node, *, is_output: bool) -> Channel:
        producer = self._producer(edge)
        timed = edge.node.timed and not is_output
        partitioning = FORWARD if is_output else edge.partitioning
        if partitioning.partitioner is Partitioner.FORWARD and not self._keeps_place(edge, node):
            partitioning = Partitioning(Partitioner.REBALANCE)
        return Channel(
            id=next(self._channel_ids),
            type=edge.type,
            stage=self._last + 1 if is_output else self._stages[node.id],
            partitioning=partitioning,
            key=None if is_output else _key_plan(edge),
            parallelism=self._parallelism[producer.id if is_output else node.id],
            max_parallelism=self._max_parallelism[node.id],
            side=edge.side,
            timed=timed,
            stamped_by=self._uids[edge.node.id] if timed and producer is not edge.node else None,
            time_source=self._time_source(edge.node) if timed else None,
        )

    def _time_source(self, node: Node) -> str | None:
        """The only time source of a node's rows; None if there are several or none."""
        above = self._time.feeds[self._uids[node.id]]
        return next(iter(above)) if len(above) == 1 else None

    def _keeps_place(self, edge: Edge, node: Node) -> bool:
        """Whether rows can keep their subtask on an edge that crosses stages."""
        return self._is_output(node) or (
            self._stages[self._producer(edge).id] > 0
            and self._parallelism[self._producer(edge).id] == self._parallelism[node.id]
        )

    def _exchange(self, stage: int) -> Exchange:
        """The exchange into `stage`: channels written before it and read in it or later."""
        crossing = {
            channel.id: channel
            for (producer, *_), channel in self._channels.items()
            if self._stages[producer] < stage <= channel.stage
        }
        channels = tuple(crossing.values())
        payloads: list[pa.Schema] = []
        payload_of: dict[int, int] = {}
        for channel in channels:
            schema = channel.type.schema
            if schema not in payloads:
                payloads.append(schema)
            payload_of[channel.id] = payloads.index(schema)
        return Exchange(channels, tuple(payloads), payload_of, routed=stage <= self._last)

    def _tasks(self, exchange: Exchange) -> int:
        # The subtasks of rows that only pass through must exist as well.
        return max((c.parallelism for c in exchange.channels), default=self._settings.parallelism)

    def _at(self, stage: int) -> list[Node]:
        return [
            node
            for node in self._graph
            if self._stages[node.id] == stage
            and node.kind is not OperatorKind.SOURCE
            and not self._is_output(node)
        ]

    def _stage(self, index: int, nodes: list[Node], reads: Exchange, writes: Exchange) -> StagePlan:
        places = {node.id: i for i, node in enumerate(nodes)}
        entries: dict[int, tuple[int, ...]] = {}
        for (_, _, consumer, _), channel in self._channels.items():
            if channel.stage == index and consumer in places:
                entries[channel.id] = (places[consumer],)
        return StagePlan(
            index=index,
            operators=tuple(self._operator(node, places) for node in nodes),
            entries=entries,
            reads=reads,
            writes=writes,
            backend=self._settings.backend,
            batch_mode=self._settings.batch_mode,
            job_parameters=self._settings.job_parameters,
            kept_memory=self._settings.kept_memory,
        )

    def _operator(self, node: Node, places: dict[int, int]) -> OperatorPlan:
        tags: list[str | None] = [None, *node.side_outputs]
        outlets = [self._outlet(node, tag, places) for tag in tags]
        second = next((edge for edge in node.inputs if edge.side), None)
        return OperatorPlan(
            uid=self._uids[node.id],
            name=node.name,
            kind=OperatorKind.WRITER if self._is_staged(node) else node.kind,
            function=StagedFrameSink() if self._is_staged(node) else node.function,
            input=node.inputs[0].type,
            output=node.output,
            key=_key_plan(node.inputs[0]),
            policy=node.policy,
            parallelism=self._parallelism[node.id],
            max_parallelism=self._max_parallelism[node.id],
            outlets=tuple(o for o in outlets if o is not None),
            second=None if second is None else SecondInput(second.type, _key_plan(second)),
            details=node.details,
            timed=node.timed,
            made_at=node.where,
        )

    def _outlet(self, node: Node, tag: str | None, places: dict[int, int]) -> Outlet | None:
        fed = [
            (consumer, edge)
            for consumer in self._graph
            for edge in consumer.inputs
            if self._producer(edge) is node and _tag(edge) == tag
        ]
        if not fed:
            return None
        operators = tuple(
            places[consumer.id]
            for consumer, edge in fed
            if not self._is_output(consumer) and self._chained(edge, consumer)
        )
        return Outlet(tag, _declared_type(node, tag), operators, self._channels_from(node, tag))

    def _channels_from(self, node: Node, tag: str | None) -> tuple[Channel, ...]:
        return tuple(
            channel
            for (producer, channel_tag, *_), channel in self._channels.items()
            if producer == node.id and channel_tag == tag
        )

    def _source(self, node: Node, writes: Exchange) -> SourcePlan:
        behind = self._chained_behind(node)
        raw = Channel(_RAW, node.output, 0, FORWARD, None, 1, 1)
        reads = Exchange((raw,), (node.output.schema,), {_RAW: 0}, routed=False)
        stage = self._stage(0, behind, reads, writes)
        places = {n.id: i for i, n in enumerate(behind)}
        first = tuple(
            places[n.id]
            for n in behind
            for e in n.inputs
            if self._producer(e) is node and _tag(e) is None
        )
        channels = self._channels_from(node, None)
        time = next(
            (
                TimeColumn(self._uids[absorbed.id], absorbed.details.assigner)
                for absorbed in self._absorbed.values()
                if absorbed.inputs[0].node is node
            ),
            None,
        )
        stage = replace(stage, entries={_RAW: first}, copies={_RAW: channels}, time_column=time)
        return SourcePlan(node, self._uids[node.id], stage, channels, time)

    def _chained_behind(self, source: Node) -> list[Node]:
        """Nodes of stage 0 that this source's rows reach."""
        reached = {source.id}
        behind = []
        for node in self._at(0):
            if any(self._producer(edge).id in reached for edge in node.inputs):
                reached.add(node.id)
                behind.append(node)
        return behind

    def _outputs(self) -> tuple[OutputPlan, ...]:
        outputs: dict[int, OutputPlan] = {}
        for node in self._graph:
            if self._is_output(node):
                channel = self._channels[self._output_key(node, 0)]
                known = outputs.get(channel.id, OutputPlan(channel, ()))
                outputs[channel.id] = OutputPlan(channel, (*known.sinks, node))
        return tuple(outputs.values())


def _keeps_something(node: Node) -> bool:
    """Whether it has operator state or a table, listens to checkpoints, or stages output."""
    return node.kind is OperatorKind.LOOKUP_JOIN or isinstance(
        node.function, CheckpointedFunction | ListCheckpointed | CheckpointListener | Sink
    )


def _takes_frames(node: Node) -> bool:
    """Whether the node takes rows as a DataFrame, staged until their checkpoint."""
    sink = node.function
    return isinstance(sink, ForeachBatchSink) or (isinstance(sink, SparkSink) and sink.staged)


def _tag(edge: Edge) -> str | None:
    return None if edge.tag is None else edge.tag.tag_id


def _declared_type(node: Node, tag: str | None) -> StreamType:
    """Type of an output; a union may read it as one that allows more nulls."""
    if tag is None:
        return node.output
    spec = node.side_outputs[tag].type
    return StreamType.of(Any if spec is None else spec)


def _key_plan(edge: Edge) -> KeyPlan | None:
    partitioning = edge.partitioning
    if partitioning.partitioner is not Partitioner.KEY:
        return None
    names = list(edge.type.schema.names)
    return KeyPlan(tuple(map(names.index, partitioning.columns)), partitioning.selector)


def _sorted_channels(exchange: Exchange, stage: int) -> tuple[SortedChannel, ...]:
    """The channels that a stage reads in order: broadcast ones first."""
    taken = [channel for channel in exchange.channels if channel.stage == stage]
    found = [SortedChannel(channel, ()) for channel in taken if channel.broadcast][:1]
    return (
        *found,
        *(
            SortedChannel(channel, channel.partitioning.order)
            for channel in taken
            if channel.partitioning.order is not None
        ),
    )


def _in_use(graph: JobGraph) -> list[Node]:
    """All nodes but sources that nothing reads."""
    read = {edge.node.id for node in graph.nodes for edge in node.inputs}
    return [node for node in graph.nodes if node.kind is not OperatorKind.SOURCE or node.id in read]
