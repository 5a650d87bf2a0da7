"""The job as data: its plan, its identity, an epoch's order and result, positions of sources."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from holdfast.errors import CorruptCheckpointError
from holdfast.job.watermarks import TimeLine

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
        StagePlan,
        TimeColumn,
    )
    from holdfast.runtime.report import TaskReport
    from holdfast.state.store.directories import KeptSnapshots


@dataclass(frozen=True, slots=True)
class FileLog:
    """The entries of a file source's log in (`after`, `upto`], oldest first."""

    after: int
    """The newest log batch left out; -1 if none is."""
    upto: int
    entries: tuple[str, ...]
    """Lines of JSON as Spark wrote them."""

    def join(self, later: FileLog) -> FileLog:
        """Both as one; `later` must begin where this ends, or be whole itself."""
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
    """How far one Spark source was read, and what it needs to go on from there."""

    offset: str | None
    """The end of the batch, as JSON; None if the source had nothing to offer yet."""
    previous: str | None = None
    """The end of the batch before, likewise."""
    log: FileLog | None = None
    """What a file source has seen; None for other sources."""
    files: dict[str, str] = field(default_factory=dict)
    """Texts of the files another kind of source keeps, by relative path."""


@dataclass(frozen=True, slots=True)
class QueryPosition:
    """What a query has read when `batch_id` is done, and no more."""

    batch_id: int
    metadata: str
    """The settings line of the batch's offsets, as JSON."""
    sources: dict[str, tuple[SourcePosition, ...]]
    """By uid: a position for each streaming leaf of the source's DataFrame, in order."""


def join(parts: Sequence[QueryPosition]) -> QueryPosition:
    """The last of `parts` with the whole of every log, from parts oldest first."""
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
    """Which job this is, and where its local state lives."""

    job_id: str
    name: str
    local_dir: str | None
    job_attempt: str = "1"
    """Names the start or restart whose stores these are; never used twice."""
    run: str = ""
    """Names what this driver runs: local state of a job's other runs is not its own."""
    replaced: tuple[str, ...] = ()
    """Runs that have held the job before, and never will again."""


@dataclass(frozen=True)
class StartingPoint:
    """Where the first epoch of a job attempt continues from."""

    epoch: int = 0
    """Number of the last epoch that its state contains."""
    expected: dict[tuple[str, int], str] = field(default_factory=dict)
    """Version of every store that there is, by uid and subtask."""
    checkpoint: int | None = None
    """Checkpoint that it was restored from."""
    channel_rows: tuple[ChannelRows, ...] = ()
    """Input that the checkpoint holds."""
    with_timers: frozenset[str] = frozenset()
    """Operators, by uid, that have had timers."""
    key_shapes: dict[str, str] = field(default_factory=dict)
    """Names of the shapes of the keys that there is state of, by uid."""


@dataclass(frozen=True)
class Delivery:
    """What becomes of the output of sinks that publish in a second step."""

    exactly_once: bool = False
    """Whether it waits for a checkpoint."""
    staging: Staging | None = None
    """Where rows are kept that wait for something, if any are."""


@dataclass(frozen=True)
class EpochOrder:
    """What is special about one epoch."""

    checkpoint: CheckpointOrder | None = None
    next_checkpoint: int = 1
    completed: tuple[int, ...] = ()
    aborted: tuple[int, ...] = ()
    idle: bool = False
    """Whether nothing is processed: the epoch runs for its checkpoint alone."""
    cut_at: int | None = None
    """When tasks stop before the end of their input, in milliseconds since 1970."""
    cut_within_ms: int = 0
    """Time from the start of the epoch until then."""
    least_work_ms: int = 0
    """Time that each of them gets for what was left over before, all the same."""
    last: bool = False
    """Whether the job has no more input, so that time comes to its end."""
    drains: bool = False
    """Whether event time alone comes to its end."""
    kept_snapshots: KeptSnapshots | None = None
    """Local snapshots that stay, if others are to be removed."""
    held: Mapping[tuple[str, int], str] = field(default_factory=dict)
    """Versions of stores that the newest complete checkpoint holds, by uid and subtask."""
    staging: Staging | None = None
    """Where rows are kept that wait; where all epochs keep them, if None."""
    job_attempt: str = ""
    """The start of the job that it was given to, for whoever keeps the checkpoints."""


@dataclass(frozen=True)
class EpochResult:
    """What an epoch has come to."""

    statistics: EpochStatistics
    reports: list[TaskReport]
    channel_rows: tuple[ChannelRows, ...] = ()
    """Input that is left for the next one."""


@dataclass(frozen=True)
class JobExecutionResult:
    """How a job ended that ended well."""

    job_id: str
    name: str
    runtime_ms: int
    statistics: JobStatistics


class JobHandle(Protocol):
    """What watches a running job asks of it."""

    @property
    def cancelled(self) -> bool:
        """Whether the job has been told to stop."""

    def result(self, timeout: float | None = None) -> JobExecutionResult:
        """Wait for the job's end; TimeoutError if it has not ended in time."""

    def status(self) -> JobStatus:
        """What the job does now."""

    def statistics(self) -> JobStatistics:
        """The job in figures."""

    def cancel(self) -> None:
        """Stop the job; output since its last completed checkpoint is discarded."""

    def interrupt(self) -> None:
        """Stop the job as a signal to the driver would."""


@dataclass(frozen=True)
class Settings:
    """What the environment decides for all operators."""

    parallelism: int
    max_parallelism: int | None
    backend: StateBackend
    batch_mode: bool
    job_parameters: dict[str, str]
    exactly_once: bool = False
    """Whether output waits for a checkpoint where its sink allows that."""
    stored_max_parallelism: dict[str, int] = field(default_factory=dict)
    """Number of key groups that state was written with, by uid; where none is set."""


@dataclass(frozen=True)
class SourcePlan:
    """One source, and what runs on its rows before the first exchange."""

    node: Node
    uid: str
    stage: StagePlan
    channels: tuple[Channel, ...]
    """Channels on which the source's own rows leave, if nothing runs on them first."""
    time_column: TimeColumn | None = None
    """Where rows have their event time, if the JVM can say so."""

    @property
    def keeps_files(self) -> bool:
        """Whether it is a static DataFrame, read from files that belong to the job."""
        return bool(getattr(self.node.function, "keeps_files", False))

    @property
    def direct(self) -> bool:
        """Whether no Python runs on the rows before the first exchange."""
        return not self.stage.operators


@dataclass(frozen=True)
class OutputPlan:
    """Rows that leave the job, and the sinks that take them."""

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
    """Number of tasks of every level from 1 on."""
    frame_sinks: dict[str, Node] = field(default_factory=dict)
    """Sinks on the driver whose rows wait for a checkpoint with exactly once, by uid.

    They are known in other modes too: a checkpoint may hold rows for them.
    """
    sorted_by: tuple[tuple[SortedChannel, ...], ...] = ()
    """In which order every level from 1 on reads its rows; in any, where there is nothing."""
    time: TimeLine = field(default_factory=TimeLine)
    """What gives rows their event time, and which operators depend on it."""
    lookups: dict[str, LookupJoin] = field(default_factory=dict)
    """Lookup joins, by uid."""

    @property
    def tasks(self) -> list[tuple[int, int]]:
        """Stage and subtask of every task of an epoch; (0, 0) if there is none."""
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
    """Columns of its payload; none for event time, and for the place of broadcast rows."""
