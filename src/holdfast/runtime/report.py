"""Reports of tasks to the driver at the end of an epoch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from holdfast.api.metrics import MetricValues

if TYPE_CHECKING:
    from holdfast.api.sinks import StagedRows
    from holdfast.runtime.plan import ChannelRows

STORE: Final = "store"
"""Directory of a local snapshot that holds the copy of the store."""
OPERATOR_STATE: Final = "operator-state"
"""File of a local snapshot that holds the operator state."""


@dataclass(slots=True)
class OperatorReport:
    """Figures of one operator, for an epoch of one subtask or summed over a job."""

    records_in: int = 0
    records_out: int = 0
    skipped: int = 0
    """Rows dropped or diverted by the error policy."""
    opened: int = 0
    """Times that a function was opened."""
    metrics: MetricValues = field(default_factory=MetricValues)


@dataclass(frozen=True, slots=True)
class SnapshotReport:
    """A local snapshot of a store, ready to be uploaded."""

    directory: str
    """On the host of the task; holds `STORE` and, if there is any, `OPERATOR_STATE`."""
    states: tuple[dict[str, Any], ...]
    """Name, kind and schema of every keyed state."""
    key: str | None
    """Name of the shape of keys; None before the first key."""
    sync_ms: int
    """Time that the epoch spent on it, in milliseconds."""
    files: dict[str, int]
    """Size of every file of `STORE`, by name."""
    has_operator_state: bool
    """Whether there is an `OPERATOR_STATE`."""


@dataclass(frozen=True, slots=True)
class KeyReport:
    """Describes the keys of one operator in one subtask."""

    shape: str
    """Name of the shape that they share."""
    example: str
    """A key that the task has seen, with its row; empty if there was none."""
    stored: bool
    """Whether there is state under these keys."""


@dataclass(frozen=True, slots=True)
class StoreReport:
    """A store after an epoch."""

    version: str
    entries: int
    bytes_on_disk: int
    snapshot: SnapshotReport | None = None
    next_event_timer: int | None = None
    """No timer is pending before this time; None if there are none."""
    next_processing_timer: int | None = None
    expired_removed: int = 0
    """Expired entries that were removed in this epoch."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A committable of a sink's writer."""

    uid: str
    """Uid of the sink."""
    data: bytes = b""
    """Encoded form, for the sink's committer."""
    rows: StagedRows | None = None
    """The committable itself, if it consists of rows in checkpoint storage."""


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """The worker process that ran a task."""

    pid: int
    memory: int
    """Memory that it uses, in bytes."""
    kept_tasks: int
    """Tasks of the job that it keeps for later epochs."""


@dataclass(frozen=True, slots=True)
class TaskReport:
    """The acknowledgement of one task of one stage."""

    epoch: int | None
    """Number of the epoch; None for the stage at the sources."""
    stage: int
    subtask: int
    attempt_id: int
    host: str
    executor: str
    """Identifies the executor."""
    operators: dict[str, OperatorReport]
    """By uid."""
    stores: dict[str, StoreReport]
    """By uid; only operators whose state was opened."""
    warnings: tuple[str, ...] = ()
    prepared: tuple[Prepared, ...] = ()
    """Committables of the epoch."""
    channel_state: tuple[ChannelRows, ...] = ()
    """Channel state for the next epoch."""
    keys: dict[str, KeyReport] = field(default_factory=dict)
    """By uid; only operators whose keys are known."""
    unchanged: dict[str, str] = field(default_factory=dict)
    """Versions of stores that the newest complete checkpoint holds unchanged, by uid.

    They have no snapshot. One that was not opened is not among `stores`.
    """
    latest: dict[str, int] = field(default_factory=dict)
    """Latest event time given to rows, by the uid of the operator that gave it."""
    emitted: dict[str, int] = field(default_factory=dict)
    """Greatest watermark of generators, by the uid of their operator."""
    worker: WorkerReport | None = None
    """None if the task did not run in a worker of Spark."""
    rows_read: dict[int, int] = field(default_factory=dict)
    """Rows that came from the sources, by channel; only in tasks that read them first."""
