"""The job as data: plan, identity, an epoch's order and result, positions of sources."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from holdfast.errors import CorruptCheckpointError
from holdfast.job.watermarks import EventTimes, TimeLine

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.api.sinks import Staging
    from holdfast.api.streams.graph import Node
    from holdfast.api.streams.lookup import LookupJoin
    from holdfast.config.backends import StateBackend
    from holdfast.job.statistics import EpochStatistics, JobStatistics, JobStatus
    from holdfast.runtime.plan import (
        Channel,
        ChannelRows,
        CheckpointOrder,
        Exchange,
        OperatorPlan,
        StagePlan,
        TimeColumn,
    )
    from holdfast.runtime.report import TaskReport
    from holdfast.state.store.directories import KeptSnapshots


@dataclass(frozen=True, slots=True)
class FileLog:
    """The entries of a file source's log in (`after`, `upto`], oldest first."""

    after: int
    """The newest log batch that is left out; -1 if none is."""
    upto: int
    entries: tuple[str, ...]
    """Lines of JSON, as Spark wrote them."""

    def join(self, later: FileLog) -> FileLog:
        """Append `later`, which must begin where this ends, or be complete."""
        if later.after == -1:
            return later
        if later.after != self.upto:
            raise CorruptCheckpointError(
                f"a file source's log ends at log batch {self.upto} and its next part begins "
                f"after {later.after}; the parts between are missing or out of order"
            )
        return FileLog(self.after, later.upto, self.entries + later.entries)


@dataclass(frozen=True, slots=True)
class SourcePosition:
    """How far one Spark source was read, and its files."""

    offset: str | None
    """The end of the batch, as JSON; None if the source had no data yet."""
    previous: str | None = None
    """The end of the previous batch, as JSON."""
    log: FileLog | None = None
    """The log of a file source; None for other sources."""
    files: dict[str, str] = field(default_factory=dict)
    """Contents of the files of other sources, by relative path."""


@dataclass(frozen=True, slots=True)
class QueryPosition:
    """What a query has read after micro-batch `batch_id`."""

    batch_id: int
    metadata: str
    """The settings line of the batch's offsets, as JSON."""
    sources: dict[str, tuple[SourcePosition, ...]]
    """Positions of the streaming leaves of every source's DataFrame, by uid."""


def join(parts: Sequence[QueryPosition]) -> QueryPosition:
    """Join positions, oldest first: the last one, with the complete log of every source."""
    *earlier, last = parts
    sources = {
        uid: tuple(
            _joined([part.sources[uid][leaf] for part in earlier if uid in part.sources], position)
            for leaf, position in enumerate(positions)
        )
        for uid, positions in last.sources.items()
    }
    return replace(last, sources=sources)


def _joined(parts: list[SourcePosition], last: SourcePosition) -> SourcePosition:
    whole = None
    for log in [part.log for part in [*parts, last]]:
        if log is not None:
            whole = log if whole is None else whole.join(log)
    return replace(last, log=whole)


@dataclass(frozen=True)
class JobIdentity:
    """Names a job, its attempt, and its local state."""

    job_id: str
    name: str
    local_dir: str | None
    job_attempt: str = "1"
    """Name of the job attempt; never used twice."""
    run: str = ""
    """Unique name of this driver's run, which owns its local state."""
    replaced: tuple[str, ...] = ()
    """Runs that this one has replaced for good."""


@dataclass(frozen=True)
class StartingPoint:
    """The state from which the first epoch of a job attempt continues."""

    epoch: int = 0
    """The last epoch that the state contains."""
    expected: dict[tuple[str, int], str] = field(default_factory=dict)
    """Version of every restored store, by uid and subtask."""
    checkpoint: int | None = None
    """The checkpoint that was restored."""
    channel_rows: tuple[ChannelRows, ...] = ()
    """Channel state of the checkpoint."""
    with_timers: frozenset[str] = frozenset()
    """Uids of operators that may have timers."""
    key_shapes: dict[str, str] = field(default_factory=dict)
    """Names of the key shapes in the state, by uid."""
    event_times: EventTimes = field(default_factory=EventTimes)
    """How far event time had advanced."""


@dataclass(frozen=True)
class Delivery:
    """How sinks deliver their output."""

    exactly_once: bool = False
    """Whether output is staged until its checkpoint is complete."""
    staging: Staging | None = None
    """Where rows are staged, if at all."""


@dataclass(frozen=True)
class EpochOrder:
    """The order for one epoch: its checkpoint, its limits, and news of earlier checkpoints."""

    checkpoint: CheckpointOrder | None = None
    next_checkpoint: int = 1
    completed: tuple[int, ...] = ()
    aborted: tuple[int, ...] = ()
    idle: bool = False
    """Whether the epoch has no input, and runs for its checkpoint alone."""
    cut_at: int | None = None
    """When tasks stop processing and store the rest of their input, in ms since 1970."""
    cut_within_ms: int = 0
    """Time from the start of the epoch to `cut_at`."""
    least_work_ms: int = 0
    """Least time that a task spends on channel state, even after `cut_at`."""
    last: bool = False
    """Whether the job has no more input, so that all timers fire."""
    drains: bool = False
    """Whether all event-time timers fire."""
    keeps_watermarks: bool = False
    """Whether no watermark advances, although it could."""
    kept_snapshots: KeptSnapshots | None = None
    """Local snapshots to keep; None if no other has to be deleted."""
    held: Mapping[tuple[str, int], str] = field(default_factory=dict)
    """Versions of stores in the newest complete checkpoint, by uid and subtask."""
    staging: Staging | None = None
    """Where rows are staged; None for the staging of `Delivery`."""
    job_attempt: str = ""
    """Name of the job attempt."""


@dataclass(frozen=True)
class EpochResult:
    """The result of an epoch."""

    statistics: EpochStatistics
    reports: list[TaskReport]
    channel_rows: tuple[ChannelRows, ...] = ()
    """Channel state for the next epoch."""
    event_times: EventTimes = field(default_factory=EventTimes)
    """How far event time has advanced."""


@dataclass(frozen=True)
class JobExecutionResult:
    """The result of a job that has finished."""

    job_id: str
    name: str
    runtime_ms: int
    statistics: JobStatistics


class JobHandle(Protocol):
    """A running job, for code that watches it."""

    @property
    def cancelled(self) -> bool:
        """Whether the job was cancelled or suspended."""

    def result(self, timeout: float | None = None) -> JobExecutionResult:
        """Wait for the end; raises TimeoutError after `timeout` seconds."""

    def status(self) -> JobStatus:
        """The job's status."""

    def statistics(self) -> JobStatistics:
        """The job's statistics."""

    def cancel(self) -> None:
        """Stop the job; output since its last completed checkpoint is discarded."""

    def interrupt(self) -> None:
        """Stop the job as a signal to the driver would."""


@dataclass(frozen=True)
class Settings:
    """Settings of the environment for all operators."""

    parallelism: int
    max_parallelism: int | None
    backend: StateBackend
    batch_mode: bool
    job_parameters: dict[str, str]
    exactly_once: bool = False
    """Whether output is published with its checkpoint, if its sink supports that."""
    stored_max_parallelism: dict[str, int] = field(default_factory=dict)
    """Max parallelism of stored state, by uid, for operators that set none."""
    kept_memory: int = 1 << 30
    """Memory of a worker, in bytes, above which it closes functions and drops cached values."""


@dataclass(frozen=True)
class SourcePlan:
    """One source, and the operators before the first exchange."""

    node: Node
    uid: str
    stage: StagePlan
    channels: tuple[Channel, ...]
    """Channels that the source writes to without an operator in between."""
    time_column: TimeColumn | None = None
    """Column of the event time, if the JVM can read it."""

    @property
    def keeps_files(self) -> bool:
        """Whether it is a static DataFrame, read from files of the job."""
        return bool(getattr(self.node.function, "keeps_files", False))

    @property
    def direct(self) -> bool:
        """Whether no Python code runs before the first exchange."""
        return not self.stage.operators


@dataclass(frozen=True)
class OutputPlan:
    """An output of the job, and its sinks."""

    channel: Channel
    sinks: tuple[Node, ...]


@dataclass(frozen=True)
class JobPlan:
    """A compiled job."""

    sources: tuple[SourcePlan, ...]
    stages: tuple[StagePlan, ...]
    """Stages from 1 on."""
    outputs: tuple[OutputPlan, ...]
    first_exchange: Exchange
    uids: dict[int, str]
    parallelism: dict[int, int]
    max_parallelism: dict[int, int]
    stage_parallelism: tuple[int, ...]
    """Number of tasks of every stage from 1 on."""
    frame_sinks: dict[str, Node] = field(default_factory=dict)
    """Sinks on the driver whose rows are staged with exactly once, by uid.

    Also known in other modes, since a checkpoint may hold rows for them.
    """
    sorted_by: tuple[tuple[SortedChannel, ...], ...] = ()
    """Channels that every stage from 1 on reads in order; others in any order."""
    time: TimeLine = field(default_factory=TimeLine)
    """The time sources, and the operators that depend on them."""
    lookups: dict[str, LookupJoin] = field(default_factory=dict)
    """Lookup joins, by uid."""

    @property
    def operators(self) -> dict[str, OperatorPlan]:
        """Operators behind the first exchange, which may have state, by uid."""
        return {operator.uid: operator for stage in self.stages for operator in stage.operators}

    @property
    def operator_tasks(self) -> dict[str, int]:
        """Number of tasks of the stage of each of these operators, by uid."""
        return {
            operator.uid: number
            for stage, number in zip(self.stages, self.stage_parallelism, strict=True)
            for operator in stage.operators
        }

    @property
    def tasks(self) -> list[tuple[int, int]]:
        """Stage and subtask of every task of an epoch; (0, 0) if there are no stages."""
        found = [
            (stage.index, subtask)
            for stage, number in zip(self.stages, self.stage_parallelism, strict=True)
            for subtask in range(number)
        ]
        return found or [(0, 0)]


@dataclass(frozen=True)
class SortedChannel:
    """A channel whose rows are read in order."""

    channel: Channel
    columns: tuple[str, ...]
    """Columns of its payload to sort by; none for event time and for broadcast rows."""
