"""What a task tells the driver when it has done its part of an epoch."""

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
    """One operator's figures; of a subtask's epoch, or summed over a job."""

    records_in: int = 0
    records_out: int = 0
    skipped: int = 0
    """Rows dropped or diverted by the error policy."""
    metrics: MetricValues = field(default_factory=MetricValues)


@dataclass(frozen=True, slots=True)
class SnapshotReport:
    """A local snapshot of a store, ready to be uploaded."""

    directory: str
    """On the host of the task; holds `STORE` and, if there is any, `OPERATOR_STATE`."""
    states: tuple[dict[str, Any], ...]
    """Name, kind and schema of every keyed state."""
    key: str | None
    """Name of the shape that keys have; None before the first key."""
    sync_ms: int
    """How long the epoch was held up by it."""
    files: dict[str, int]
    """Size of every file of `STORE`, by name."""
    has_operator_state: bool
    """Whether there is an `OPERATOR_STATE`."""


@dataclass(frozen=True, slots=True)
class KeyReport:
    """What the keys of one operator are, in one subtask."""

    shape: str
    """Name of the shape that they share."""
    example: str
    """A key that came in the epoch, with its row; nothing if none came."""
    stored: bool
    """Whether state is kept under such keys."""


@dataclass(frozen=True, slots=True)
class StoreReport:
    """Where a store stands after an epoch."""

    version: str
    entries: int
    bytes_on_disk: int
    snapshot: SnapshotReport | None = None
    next_event_timer: int | None = None
    """Before this time no timer is pending; None if there are none."""
    next_processing_timer: int | None = None
    expired_removed: int = 0
    """Entries that have expired and were swept out of it in this epoch."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A committable: what a sink's writer has staged."""

    uid: str
    """Of the sink."""
    data: bytes = b""
    """Its encoded form, for the sink's committer."""
    rows: StagedRows | None = None
    """The committable itself, if it is rows in checkpoint storage."""


@dataclass(frozen=True, slots=True)
class TaskReport:
    """The acknowledgement of one task of one stage."""

    epoch: int | None
    """Number of the epoch; None for the stage at the sources, which is told none."""
    stage: int
    subtask: int
    attempt_id: int
    host: str
    executor: str
    """Tells the executors apart that run the job's tasks."""
    operators: dict[str, OperatorReport]
    """By uid."""
    stores: dict[str, StoreReport]
    """By uid; only operators whose state was opened."""
    warnings: tuple[str, ...] = ()
    prepared: tuple[Prepared, ...] = ()
    """Output that waits to be published."""
    channel_state: tuple[ChannelRows, ...] = ()
    """Input for the next epoch."""
    keys: dict[str, KeyReport] = field(default_factory=dict)
    """By uid; only operators of which keys are known."""
    unchanged: dict[str, str] = field(default_factory=dict)
    """Stores that are as the newest complete checkpoint holds them, by uid, with their versions.

    They have no snapshot. One that was not opened is not among `stores`.
    """
    latest: dict[str, int] = field(default_factory=dict)
    """Latest event time that was given to rows, by the uid of what gave it."""
