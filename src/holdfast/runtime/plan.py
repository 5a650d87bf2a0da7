"""What a subtask is told to do: the compiled form of a job graph.

An epoch is a chain of stages. A stage is what runs in one task between two
exchanges: operators that feed each other directly. Rows cross from stage to stage
on channels; the exchange between two stages carries all channels that cross there,
those included that only pass through.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

import pyarrow as pa

from holdfast.api.checkpointed import CheckpointedFunction, CheckpointListener, ListCheckpointed
from holdfast.api.sinks import Sink
from holdfast.api.streams.graph import OperatorKind, Partitioner

if TYPE_CHECKING:
    from holdfast.api.outputs import ErrorPolicy
    from holdfast.api.sinks import StagedRows, Staging
    from holdfast.api.streams.graph import Partitioning
    from holdfast.config.backends import StateBackend
    from holdfast.state.store.directories import KeptSnapshots
    from holdfast.state.store.process import ProcessIdentity
    from holdfast.types.stream_type import StreamType


TIME: Final = "_hf_time"
"""Column with a row's event time, in milliseconds."""
ORDER: Final = "_hf_order"
"""Column with a broadcast row's place."""

TIMER_KINDS: Final = frozenset(
    {
        OperatorKind.KEYED_PROCESS,
        OperatorKind.KEYED_CO_PROCESS,
        OperatorKind.KEYED_BROADCAST_PROCESS,
        OperatorKind.INTERVAL_JOIN,
        OperatorKind.WINDOW,
        OperatorKind.WINDOW_JOIN,
    }
)
"""Operators that can set timers."""


class TableCopy(Protocol):
    """The rows of a lookup join's table, as tasks get them."""

    @property
    def number(self) -> int:
        """Tells the copies of one table apart."""

    def read(self) -> pa.Table:
        """The rows."""


@dataclass(frozen=True)
class KeyPlan:
    """Where an operator's key comes from."""

    columns: tuple[int, ...] = ()
    """Positions of the key's columns; empty if a selector gives the key."""
    selector: Any = None


@dataclass(frozen=True)
class Channel:
    """Rows on their way from one operator to another stage."""

    id: int
    type: StreamType
    stage: int
    """Stage that takes the rows off the exchange; the number of stages for outputs."""
    partitioning: Partitioning
    key: KeyPlan | None
    parallelism: int
    max_parallelism: int
    side: int = 0
    """Which input of the operator that takes the rows they are for."""
    timed: bool = False
    """Whether rows carry their event time."""
    stamped_by: str | None = None
    """Uid under which the watermark is kept, if these are rows whose event time is new."""
    time_source: str | None = None
    """The same, of what has given rows their event time before; None if it is not one alone."""

    @property
    def broadcast(self) -> bool:
        """Whether every subtask gets all rows, in one order and before those of others."""
        return self.partitioning.partitioner is Partitioner.BROADCAST

    @property
    def schema(self) -> pa.Schema:
        """Columns of the rows in a task: the payload's, then those that the channel adds."""
        fields = list(self.type.schema)
        if self.timed:
            fields.append(pa.field(TIME, pa.int64()))
        if self.broadcast:
            fields.append(pa.field(ORDER, pa.int64()))
        return pa.schema(fields)


@dataclass(frozen=True)
class TimeColumn:
    """Where the rows of a source have their event time."""

    uid: str
    """Of the operator that says so; the watermark is kept under it."""
    column: str


@dataclass(frozen=True)
class Exchange:
    """The columns between two stages.

        _hf_subtask int, if routed | _hf_channel int, if there are several |
        _hf_time bigint, if rows have event time | _hf_order bigint, if some are broadcast |
        payload

    Channels of one schema share a payload slot. A single slot's columns lie flat;
    several are nullable structs, of which a row fills one. The order of a broadcast row
    is its place among all of its channel; other rows have none.
    """

    channels: tuple[Channel, ...]
    payloads: tuple[pa.Schema, ...]
    payload_of: dict[int, int]
    """Slot of every channel, by the channel's id."""
    routed: bool
    """Whether rows say which subtask they go to: on all exchanges but the last."""

    @property
    def flat(self) -> bool:
        """Whether the payload's columns lie flat."""
        return len(self.payloads) <= 1

    @property
    def tagged(self) -> bool:
        """Whether rows say which channel they are on."""
        return len(self.channels) > 1

    @property
    def timed(self) -> bool:
        """Whether rows carry their event time, if they have one."""
        return any(channel.timed for channel in self.channels)

    @property
    def ordered(self) -> bool:
        """Whether broadcast rows carry their place."""
        return any(channel.broadcast for channel in self.channels)


@dataclass(frozen=True)
class Outlet:
    """One output of an operator, and everything it feeds."""

    tag: str | None
    type: StreamType
    operators: tuple[int, ...]
    """Operators of the same stage, by position."""
    channels: tuple[Channel, ...]


@dataclass(frozen=True)
class SecondInput:
    """The second of an operator's two inputs."""

    type: StreamType
    key: KeyPlan | None


@dataclass(frozen=True)
class OperatorPlan:
    """One operator, as a subtask runs it."""

    uid: str
    name: str
    kind: OperatorKind
    function: Any
    input: StreamType
    output: StreamType
    key: KeyPlan | None
    policy: ErrorPolicy
    parallelism: int
    max_parallelism: int
    outlets: tuple[Outlet, ...]
    second: SecondInput | None = None
    """The other input, of an operator that has two."""
    details: Any = None
    """What it is told beside its function; see the operator of its kind."""
    timed: bool = False
    """Whether what it gives out has event time."""

    @property
    def has_timers(self) -> bool:
        """Whether it can set timers."""
        return self.kind in TIMER_KINDS

    @property
    def has_operator_state(self) -> bool:
        """Whether its function has state of its own, beside that of keys."""
        if isinstance(self.function, Sink):
            return self.function.has_state
        return isinstance(self.function, CheckpointedFunction | ListCheckpointed)

    @property
    def takes_rows(self) -> bool:
        """Whether it is handed record batches instead of elements."""
        return isinstance(self.function, Sink) and self.function.takes_rows

    @property
    def listens(self) -> bool:
        """Whether its function wants to hear how checkpoints end."""
        return isinstance(self.function, CheckpointListener)

    @property
    def outlet_tags(self) -> frozenset[str]:
        """Side outputs that something reads."""
        return frozenset(outlet.tag for outlet in self.outlets if outlet.tag is not None)


@dataclass(frozen=True)
class StagePlan:
    """Everything the tasks of one stage need to know, the same in every epoch."""

    index: int
    operators: tuple[OperatorPlan, ...]
    """In an order in which every operator comes before those it feeds."""
    entries: dict[int, tuple[int, ...]]
    """Operators that take a channel off the exchange, by the channel's id."""
    reads: Exchange
    writes: Exchange
    backend: StateBackend
    batch_mode: bool = False
    job_parameters: dict[str, str] = field(default_factory=dict)
    copies: dict[int, tuple[Channel, ...]] = field(default_factory=dict)
    """Channels onto which rows that arrive on another are copied as they are."""
    time_column: TimeColumn | None = None
    """Where rows have their event time, at a source that gives them one."""


@dataclass(frozen=True)
class CheckpointOrder:
    """What an epoch is told that ends in a checkpoint."""

    id: int
    timestamp: int
    """When it was triggered, in milliseconds since 1970."""


@dataclass(frozen=True)
class ChannelRows:
    """Input that a subtask had no time for: channel state, in Flink's words."""

    uid: str
    """Operator that the rows are for."""
    input: int
    """Which of the channels into that operator they are on."""
    subtask: int
    parallelism: int
    """Subtasks that the operator had then."""
    max_parallelism: int
    """Key groups that it had then."""
    rows: StagedRows


@dataclass(frozen=True)
class EpochTime:
    """How time passes in one epoch."""

    watermarks: dict[str, tuple[int, int]]
    """Of every operator with event time, by uid: where it stands, and where it is at the end."""
    due: frozenset[tuple[str, int]] = frozenset()
    """Operators and subtasks that have timers to fire, whether rows come or not."""
    last: bool = False
    """Whether the job ends with it, so that every timer fires."""


@dataclass(frozen=True)
class EpochPlan:
    """What the tasks of one epoch are told beside the stage's plan."""

    job_id: str
    job_attempt: str
    epoch: int
    local_dir: str | None
    owner: ProcessIdentity
    """The driver, whose death makes the job's local state worthless."""
    expected: dict[tuple[str, int], str] = field(default_factory=dict)
    """Version every store stands at, by uid and subtask; none for a new one.

    This, what is held, the timers that are due and what is left over are many where there are many
    subtasks: tasks are told their own part, see `runtime/assignments.py`.
    """
    checkpoint: CheckpointOrder | None = None
    """The checkpoint that the epoch ends in, if it does."""
    held: frozenset[tuple[str, int]] = frozenset()
    """Stores that the newest complete checkpoint holds as they are expected, by uid and subtask.

    If the epoch does not change them, its own checkpoint uses the same files.
    """
    next_checkpoint: int = 1
    """Id of the first checkpoint that will contain the epoch."""
    restored: int | None = None
    """The checkpoint that the job was last restored from."""
    completed: tuple[int, ...] = ()
    """Checkpoints that were completed since functions were last told."""
    aborted: tuple[int, ...] = ()
    """Checkpoints that were aborted since functions were last told."""
    kept_snapshots: KeptSnapshots | None = None
    """Local snapshots that stay, if others are to be removed."""
    exactly_once: bool = False
    """Whether the output of sinks waits for a checkpoint."""
    staging: Staging | None = None
    """Where rows are kept that wait for something."""
    channel_rows: tuple[ChannelRows, ...] = ()
    """What earlier epochs have left over; of all subtasks, in the order it was left."""
    cut_at: int | None = None
    """When to stop, in milliseconds since 1970, and to leave the rest for the next epoch."""
    cut_within_ms: int = 0
    """Time from the start of the epoch until then: no task has more, whatever its clock says."""
    least_work_ms: int = 100
    """Time that a task gets for what was left over before, though it starts after the cut."""
    time: EpochTime | None = None
    """How time passes; None in an epoch that processes nothing."""
    tables: dict[str, TableCopy] = field(default_factory=dict)
    """Tables of lookup joins, by uid."""
    key_shapes: dict[str, str] = field(default_factory=dict)
    """Names of the shapes that keys of state have, by uid; of operators that had some."""
