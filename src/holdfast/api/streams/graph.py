"""The job graph: what a program has built, before anything runs.

Nodes are operators; an edge says which output of which node feeds another, and how
its rows are spread over the receiving subtasks. A graph knows nothing of Spark.
"""

from __future__ import annotations

import hashlib
import sys
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from holdfast.api.checkpointed import CheckpointedFunction, ListCheckpointed
from holdfast.api.outputs import ErrorPolicy
from holdfast.api.sinks import Sink
from holdfast.errors import DuplicateUidError, JobGraphError
from holdfast.types.stream_type import UNDECLARED

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.api.outputs import OutputTag
    from holdfast.types.stream_type import StreamType


_PACKAGE: Final = str(Path(__file__).absolute().parents[2])


class OperatorKind(Enum):
    """What an operator does; the value is its default name."""

    SOURCE = "Source"
    MAP = "Map"
    FLAT_MAP = "FlatMap"
    FILTER = "Filter"
    PROCESS = "Process"
    KEYED_PROCESS = "KeyedProcess"
    REDUCE = "Reduce"
    TIMESTAMPS = "Timestamps/Watermarks"
    CO_MAP = "CoMap"
    CO_FLAT_MAP = "CoFlatMap"
    CO_PROCESS = "CoProcess"
    KEYED_CO_PROCESS = "KeyedCoProcess"
    BROADCAST_PROCESS = "BroadcastProcess"
    KEYED_BROADCAST_PROCESS = "KeyedBroadcastProcess"
    INTERVAL_JOIN = "IntervalJoin"
    WINDOW = "Window"
    WINDOW_JOIN = "WindowJoin"
    LOOKUP_JOIN = "LookupJoin"
    SINK_FUNCTION = "Sink"
    WRITER = "Writer"
    OUTPUT = "Output"


class Partitioner(Enum):
    """How rows find the subtask that receives them."""

    FORWARD = "forward"
    """They stay where they are."""
    KEY = "key"
    """By key group."""
    REBALANCE = "rebalance"
    """In turn."""
    SHUFFLE = "shuffle"
    """At random."""
    BROADCAST = "broadcast"
    """To all of them, before the rows of other exchanges."""


@dataclass(frozen=True)
class Partitioning:
    """An exchange, and for one by key, the key."""

    partitioner: Partitioner
    columns: tuple[str, ...] = ()
    """Columns the key is made of, if it is made of columns."""
    selector: Callable[[Any], Any] | None = None
    """Function that gives the key, if it is not made of columns."""
    order: tuple[str, ...] | None = None
    """Columns that rows are sorted by within an epoch; empty for event time, None for none."""


FORWARD: Final = Partitioning(Partitioner.FORWARD)
_KEEP_TYPE: Final = (OperatorKind.FILTER, OperatorKind.TIMESTAMPS, OperatorKind.REDUCE)


@dataclass(frozen=True, eq=False)
class Edge:
    """One output of a node, on its way to another."""

    node: Node
    tag: OutputTag | None
    type: StreamType
    partitioning: Partitioning = FORWARD
    side: int = 0
    """Which input of a node with two of them it leads to."""


@dataclass(eq=False)
class Node:
    """One operator."""

    id: int
    kind: OperatorKind
    name: str
    inputs: tuple[Edge, ...]
    output: StreamType
    function: Any = None
    details: Any = None
    """What the operator is told beside its function; of a kind that its own kind decides."""
    where: str = ""
    uid: str | None = None
    parallelism: int | None = None
    max_parallelism: int | None = None
    policy: ErrorPolicy = field(default_factory=ErrorPolicy)
    side_outputs: dict[str, OutputTag] = field(default_factory=dict)
    """Side outputs that something reads."""

    @property
    def keyed(self) -> bool:
        """Whether its input is spread by key."""
        return any(edge.partitioning.partitioner is Partitioner.KEY for edge in self.inputs)

    @cached_property
    def timed(self) -> bool:
        """Whether its output has event time."""
        return self.kind is OperatorKind.TIMESTAMPS or any(edge.node.timed for edge in self.inputs)

    @property
    def has_two_inputs(self) -> bool:
        """Whether two streams come together in it, each with a method of its own."""
        return any(edge.side for edge in self.inputs)

    @property
    def may_have_state(self) -> bool:
        """Whether it can have keyed state, or has operator state."""
        if isinstance(self.function, CheckpointedFunction | ListCheckpointed | Sink):
            # Of a sink, output that waits to be published is found by its uid.
            return True
        if self.kind in (OperatorKind.BROADCAST_PROCESS, OperatorKind.WINDOW):
            return True
        return self.keyed and self.kind is not OperatorKind.OUTPUT

    def __str__(self) -> str:
        """Name, uid and where it was made, for messages."""
        uid = f" (uid {self.uid!r})" if self.uid else ""
        return f"{self.name!r}{uid}, made at {self.where}"


class JobGraph:
    """All nodes of a program, in the order they were made."""

    def __init__(self) -> None:
        """An empty graph."""
        self.nodes: list[Node] = []
        self._executed: set[int] = set()

    def add(
        self,
        kind: OperatorKind,
        inputs: tuple[Edge, ...],
        output: StreamType,
        *,
        function: Any = None,
        details: Any = None,
        name: str | None = None,
    ) -> Node:
        """Add a node; remembers which line of the user's program made it."""
        node = Node(
            id=len(self.nodes),
            kind=kind,
            name=name or kind.value,
            inputs=inputs,
            output=output,
            function=function,
            details=details,
            where=calling_line(),
        )
        self.nodes.append(node)
        return node

    def pending(self) -> JobGraph:
        """The part of the graph that no execution has run yet.

        Like Flink, an environment runs what was added since it last ran something.
        """
        wanted: set[int] = set()
        for node in reversed(self.nodes):
            is_leaf = not any(e.node is node for n in self.nodes for e in n.inputs)
            if node.id in wanted or (is_leaf and node.id not in self._executed):
                wanted.add(node.id)
                wanted.update(edge.node.id for edge in node.inputs)
        part = JobGraph()
        part.nodes = [node for node in self.nodes if node.id in wanted]
        return part

    def mark_executed(self, part: JobGraph) -> None:
        """Note that all of `part` has been run."""
        self._executed.update(node.id for node in part.nodes)

    def without_uid(self) -> list[Node]:
        """Nodes that may have state, and were given no uid."""
        return [node for node in self.nodes if node.may_have_state and node.uid is None]

    def untyped(self) -> list[Node]:
        """Nodes whose output crosses an exchange although nobody has declared its type."""
        found: dict[int, Node] = {}
        for edge in (edge for node in self.nodes for edge in node.inputs):
            failed_rows = edge.tag is not None and edge.tag == edge.node.policy.tag
            if edge.type is UNDECLARED and edge.partitioning != FORWARD and not failed_rows:
                node = _declaring(edge.node)
                found[node.id] = node
        return list(found.values())

    def check_uids(self, *, generate: bool) -> None:
        """Refuse a uid given twice, and, unless they are generated, one not given."""
        seen: dict[str, Node] = {}
        for node in self.nodes:
            if node.uid is not None and (other := seen.setdefault(node.uid, node)) is not node:
                raise DuplicateUidError(
                    f"uid {node.uid!r} is given twice: to {other.name!r} at {other.where} and to "
                    f"{node.name!r} at {node.where}; a uid names one operator for good"
                )
        missing = self.without_uid()
        if missing and not generate:
            raise JobGraphError(
                "pipeline.auto-generate-uids is false, and these stateful operators have no uid: "
                + "; ".join(map(str, missing))
                + '; call .uid("...") on each'
            )

    def uids(self) -> dict[int, str]:
        """The uid of every node: the given one, or one derived from its place in the graph.

        A derived uid depends on what the node does and on what feeds it, not on the
        order in which the program made its nodes.
        """
        uids: dict[int, str] = {}
        taken = {node.uid for node in self.nodes if node.uid is not None}
        for node in self.nodes:
            uids[node.id] = node.uid or _derived_uid(node, uids, taken)
            taken.add(uids[node.id])
        return uids


def _declaring(node: Node) -> Node:
    """The node that decides on the type of a node's output."""
    while node.kind in _KEEP_TYPE and node.inputs[0].tag is None:
        node = node.inputs[0].node
    return node


def _derived_uid(node: Node, uids: dict[int, str], taken: set[str]) -> str:
    parts = [node.kind.name, str(len(node.inputs))]
    for edge in node.inputs:
        parts += [
            uids[edge.node.id],
            edge.tag.tag_id if edge.tag else "",
            edge.partitioning.partitioner.name,
            ",".join(edge.partitioning.columns),
        ]
        if edge.side:
            parts.append(f"side {edge.side}")
    count = 0
    while True:
        text = "\x1f".join([*parts, str(count)])
        uid = hashlib.sha256(text.encode()).hexdigest()[:16]
        if uid not in taken:
            return uid
        count += 1


def calling_line() -> str:
    """File and line of the innermost frame outside Holdfast."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
