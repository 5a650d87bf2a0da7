"""Plans: the compiled form of a job graph, as tasks get it.

An epoch is a chain of stages. A stage is what runs in one task between two
exchanges: operators that feed each other directly. Rows cross from stage to stage
on channels; the exchange between two stages carries all channels that cross there,
also those that only pass through.
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
"""Column with the position of a broadcast row."""

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
    """One copy of a lookup join's table, as tasks get it."""

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
    """Carries rows from one operator to another stage."""

    id: int
    type: StreamType
    stage: int
    """Stage that takes the rows off the exchange; the number of stages for outputs."""
    partitioning: Partitioning
    key: KeyPlan | None
    parallelism: int
    max_parallelism: int
    side: int = 0
    """Input of the receiving operator."""
    timed: bool = False
    """Whether rows carry their event time."""
    stamped_by: str | None = None
    """Uid of the watermark, if rows are given their event time on this channel."""
    time_source: str | None = None
    """Uid of the one operator that gave rows their event time before; None if there are several."""

    @property
    def broadcast(self) -> bool:
        """Whether every subtask gets all rows, in one order and before all other rows."""
        return self.partitioning.partitioner is Partitioner.BROADCAST

    @property
    def schema(self) -> pa.Schema:
        """Columns of the rows in a task: the payload, then the columns of the channel."""
        fields = list(self.type.schema)
        if self.timed:
            fields.append(pa.field(TIME, pa.int64()))
        if self.broadcast:
            fields.append(pa.field(ORDER, pa.int64()))
        return pa.schema(fields)


@dataclass(frozen=True)
class TimeColumn:
    """Column with the event time of the rows of a source."""

    uid: str
    """Uid of the operator that assigns timestamps; the watermark has the same."""
    column: str


@dataclass(frozen=True)
class Exchange:
    """The columns between two stages.

        _hf_subtask int, if routed | _hf_channel int, if there are several |
        _hf_time bigint, if rows have event time | _hf_order bigint, if some are broadcast |
        payload

    Channels of one schema share a payload slot. A single slot's columns lie flat;
    several are nullable structs, of which a row fills one. The order of a broadcast row
    is its position among all rows of its channel; other rows have none.
    """

    channels: tuple[Channel, ...]
    payloads: tuple[pa.Schema, ...]
    payload_of: dict[int, int]
    """Slot of every channel, by the channel's id."""
    routed: bool
    """Whether rows carry their receiving subtask: on all exchanges but the last."""

    @property
    def flat(self) -> bool:
        """Whether the payload's columns lie flat."""
        return len(self.payloads) <= 1

    @property
    def tagged(self) -> bool:
        """Whether rows carry their channel."""
        return len(self.channels) > 1

    @property
    def timed(self) -> bool:
        """Whether rows carry their event time, if they have one."""
        return any(channel.timed for channel in self.channels)

    @property
    def ordered(self) -> bool:
        """Whether broadcast rows carry their position."""
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
    """Further settings; see the operator of its kind."""
    timed: bool = False
    """Whether its output has event time."""
    made_at: str = ""
    """File and line of the program where it was made."""

    @property
    def has_timers(self) -> bool:
        """Whether it can set timers."""
        return self.kind in TIMER_KINDS

    @property
    def has_operator_state(self) -> bool:
        """Whether its function has operator state."""
        if isinstance(self.function, Sink):
            return self.function.has_state
        return isinstance(self.function, CheckpointedFunction | ListCheckpointed)

    @property
    def takes_rows(self) -> bool:
        """Whether it takes record batches instead of elements."""
        return isinstance(self.function, Sink) and self.function.takes_rows

    @property
    def listens(self) -> bool:
        """Whether its function is a checkpoint listener."""
        return isinstance(self.function, CheckpointListener)


@dataclass(frozen=True)
class StagePlan:
    """Plan of the tasks of one stage, the same in every epoch."""

    index: int
    operators: tuple[OperatorPlan, ...]
    """Every operator comes before those it feeds."""
    entries: dict[int, tuple[int, ...]]
    """Operators that take a channel off the exchange, by the channel's id."""
    reads: Exchange
    writes: Exchange
    backend: StateBackend
    batch_mode: bool = False
    job_parameters: dict[str, str] = field(default_factory=dict)
    copies: dict[int, tuple[Channel, ...]] = field(default_factory=dict)
    """Channels to which the rows of another channel are copied unchanged, by its id."""
    time_column: TimeColumn | None = None
    """Column with the event time, at a source that has one."""
    kept_memory: int = 1 << 30
    """Memory of a worker, in bytes, above which it closes functions and drops cached values."""


@dataclass(frozen=True)
class CheckpointOrder:
    """Orders a checkpoint at the end of an epoch."""

    id: int
    timestamp: int
    """When it was triggered, in milliseconds since 1970."""


@dataclass(frozen=True)
class ChannelRows:
    """Channel state: rows that a subtask stored at the cut of an unaligned checkpoint."""

    uid: str
    """Operator that the rows are for."""
    input: int
    """Number of their channel among those into the operator."""
    subtask: int
    parallelism: int
    """Parallelism of the operator then."""
    max_parallelism: int
    """Max parallelism of the operator then."""
    rows: StagedRows


@dataclass(frozen=True)
class EpochTime:
    """Watermarks and due timers of one epoch."""

    watermarks: dict[str, tuple[int, int]]
    """By uid, for operators with event time: at the start and at the end of the epoch."""
    due: frozenset[tuple[str, int]] = frozenset()
    """Operators and subtasks that must fire timers, even without input."""
    last: bool = False
    """Whether it is the last epoch of the job, in which every timer fires."""
    early: bool = False
    """Whether operators that only sources feed advance before their rows, not behind them."""


@dataclass(frozen=True)
class EpochPlan:
    """Plan of one epoch, for the tasks of all stages."""

    job_id: str
    job_attempt: str
    epoch: int
    local_dir: str | None
    owner: ProcessIdentity
    """The driver, whose death makes the job's local state worthless."""
    expected: dict[tuple[str, int], str] = field(default_factory=dict)
    """Version of every store, by uid and subtask; new stores have none.

    This, `held`, due timers and channel state grow with the number of subtasks: every task gets
    its own part only, see `runtime/assignments.py`.
    """
    checkpoint: CheckpointOrder | None = None
    """The checkpoint at the end of the epoch, if there is one."""
    held: frozenset[tuple[str, int]] = frozenset()
    """Stores whose expected version is in the newest complete checkpoint, by uid and subtask.

    If the epoch does not change them, its own checkpoint uses the same files.
    """
    next_checkpoint: int = 1
    """Id of the first checkpoint that will contain the epoch."""
    restored: int | None = None
    """The checkpoint that the job was last restored from."""
    completed: tuple[int, ...] = ()
    """Checkpoints completed since functions were last notified."""
    aborted: tuple[int, ...] = ()
    """Checkpoints aborted since functions were last notified."""
    kept_snapshots: KeptSnapshots | None = None
    """Local snapshots to keep, if the others are to be deleted."""
    exactly_once: bool = False
    """Whether the output of sinks waits for a checkpoint."""
    staging: Staging | None = None
    """Stores rows that wait for a checkpoint."""
    channel_rows: tuple[ChannelRows, ...] = ()
    """Channel state of earlier epochs, of all subtasks and in order."""
    cut_at: int | None = None
    """Time of the cut, in milliseconds since 1970: the rest is left to the next epoch."""
    cut_within_ms: int = 0
    """Time from the start of the epoch to the cut: no task gets more, whatever its clock says."""
    least_work_ms: int = 100
    """Time that a task gets for channel state, even if it starts after the cut."""
    time: EpochTime | None = None
    """Watermarks and timers; None in an epoch that processes nothing."""
    tables: dict[str, TableCopy] = field(default_factory=dict)
    """Tables of lookup joins, by uid."""
    key_shapes: dict[str, str] = field(default_factory=dict)
    """Names of the shapes of state keys, by uid; of operators that have had keys."""
