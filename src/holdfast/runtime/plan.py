"""What a subtask is told to do: the compiled form of a job graph.

An epoch is a chain of levels. A level is what runs in one task between two
exchanges: operators that feed each other directly. Rows cross from level to level
on channels; the wire between two levels carries all channels that cross there,
those included that only pass through.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from holdfast.api.checkpointed import CheckpointedFunction, CheckpointListener, ListCheckpointed
from holdfast.api.sink import Sink

if TYPE_CHECKING:
    import pyarrow as pa

    from holdfast.api.backends import StateBackend
    from holdfast.api.graph import ErrorPolicy, Kind, Partitioning
    from holdfast.api.sink import StagedRows, Staging
    from holdfast.api.types import StreamType
    from holdfast.state.machine import ProcessIdentity


@dataclass(frozen=True)
class KeyPlan:
    """Where an operator's key comes from."""

    columns: tuple[int, ...] = ()
    """Positions of the key's columns; empty if a selector gives the key."""
    selector: Any = None


@dataclass(frozen=True)
class Channel:
    """Rows on their way from one operator to another level."""

    id: int
    type: StreamType
    level: int
    """Level that takes the rows off the wire; the number of levels for outputs."""
    partitioning: Partitioning
    key: KeyPlan | None
    parallelism: int
    max_parallelism: int


@dataclass(frozen=True)
class Wire:
    """The columns between two levels.

        _hf_subtask int, if routed | _hf_channel int, if there are several | payload

    Channels of one schema share a payload slot. A single slot's columns lie flat;
    several are nullable structs, of which a row fills one.
    """

    channels: tuple[Channel, ...]
    slots: tuple[pa.Schema, ...]
    slot_of: dict[int, int]
    """Slot of every channel, by the channel's id."""
    routed: bool
    """Whether rows say which subtask they go to: on all wires but the last."""

    @property
    def flat(self) -> bool:
        """Whether the payload's columns lie flat."""
        return len(self.slots) <= 1

    @property
    def tagged(self) -> bool:
        """Whether rows say which channel they are on."""
        return len(self.channels) > 1


@dataclass(frozen=True)
class Outlet:
    """One output of an operator, and everything it feeds."""

    tag: str | None
    type: StreamType
    operators: tuple[int, ...]
    """Operators of the same level, by position."""
    channels: tuple[Channel, ...]


@dataclass(frozen=True)
class OperatorPlan:
    """One operator, as a subtask runs it."""

    uid: str
    name: str
    kind: Kind
    function: Any
    input: StreamType
    output: StreamType
    key: KeyPlan | None
    policy: ErrorPolicy
    parallelism: int
    max_parallelism: int
    outlets: tuple[Outlet, ...]

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
class LevelPlan:
    """Everything the tasks of one level need to know, the same in every epoch."""

    index: int
    operators: tuple[OperatorPlan, ...]
    """In an order in which every operator comes before those it feeds."""
    entries: dict[int, tuple[int, ...]]
    """Operators that take a channel off the wire, by the channel's id."""
    reads: Wire
    writes: Wire
    backend: StateBackend
    batch_mode: bool = False
    job_parameters: dict[str, str] = field(default_factory=dict)
    copies: dict[int, tuple[Channel, ...]] = field(default_factory=dict)
    """Channels onto which rows that arrive on another are copied as they are."""


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
class EpochPlan:
    """What the tasks of one epoch are told beside the level's plan."""

    job_id: str
    incarnation: str
    epoch: int
    local_dir: str | None
    owner: ProcessIdentity
    """The driver, whose death makes the job's local state worthless."""
    expected: dict[tuple[str, int], str]
    """Version every store stands at, by uid and subtask; none for a new one."""
    checkpoint: CheckpointOrder | None = None
    """The checkpoint that the epoch ends in, if it does."""
    next_checkpoint: int = 1
    """Id of the first checkpoint that will contain the epoch."""
    restored: int | None = None
    """The checkpoint that the job was last restored from."""
    completed: tuple[int, ...] = ()
    """Checkpoints that were completed since functions were last told."""
    aborted: tuple[int, ...] = ()
    """Checkpoints that were aborted since functions were last told."""
    exactly_once: bool = False
    """Whether the output of sinks waits for a checkpoint."""
    staging: Staging | None = None
    """Where rows are kept that wait for something."""
    channel_rows: tuple[ChannelRows, ...] = ()
    """What earlier epochs have left over; of all subtasks, in the order it was left."""
    cut_at: int | None = None
    """When to stop, in milliseconds since 1970, and to leave the rest for the next epoch."""
    least_work_ms: int = 100
    """Time that a task gets for what was left over before, though it starts after the cut."""
