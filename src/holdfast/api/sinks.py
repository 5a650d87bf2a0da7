"""Sinks that write in the tasks and publish in a second step.

    class Sink                 describes the sink; shipped to the tasks
        create_writer()   ->   SinkWriter: writes an epoch's elements on one subtask
        create_committer() ->  Committer: publishes the output of writers

A writer lives for one epoch. When `prepare_commit` returns, its output must be durable but not yet
visible; the committables that it returns identify that output. With exactly once they become part
of the checkpoint, and the committer publishes them when the checkpoint is complete, or again after
a recovery. Otherwise they are published when the epoch ends.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

from holdfast.errors import SinkError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import pyarrow as pa

    from holdfast.api.functions import RuntimeContext, SinkContext


OPENED: Final = "opened-"
"""Prefix of the names of notes about transactions that a writer has opened."""


@dataclass(frozen=True)
class StagedRows:
    """Rows in checkpoint storage that are not published yet; can be a committable."""

    handle: Any
    """Where the rows are; only the checkpoint storage can interpret it."""
    rows: int
    size: int
    """Length in bytes."""


class RowsInStaging(Protocol):
    """Writes rows to checkpoint storage."""

    def write(self, rows: pa.RecordBatch) -> None:
        """Add rows."""

    def close(self) -> StagedRows:
        """Make all rows durable."""

    def abort(self) -> None:
        """Drop the rows."""
        return


class Staging(Protocol):
    """Stores rows in checkpoint storage; can be pickled and is thread-safe."""

    def open(self, name: str, schema: pa.Schema) -> RowsInStaging:
        """Start storing rows; `name` must be unique, and may become the name of a file."""

    def put(self, name: str, rows: Iterable[pa.RecordBatch], schema: pa.Schema) -> StagedRows:
        """Store rows durably."""

    def get(self, staged: StagedRows) -> Iterator[pa.RecordBatch]:
        """Read the rows in order, and verify them."""

    def note(self, name: str, data: bytes) -> None:
        """Store a few bytes under a name, if the storage outlives the job."""


@dataclass(frozen=True)
class WriterContext:
    """Facts about the job, the epoch and the subtask of a writer."""

    job_id: str
    uid: str
    """The sink's uid."""
    job_attempt: str
    """Id of this start or restart of the job; never used twice."""
    epoch: int
    subtask: int
    parallelism: int
    attempt_id: int
    """Unique among all tasks of the Spark application."""
    checkpoint_id: int
    """The first checkpoint that will contain this epoch, unless it fails."""
    exactly_once: bool
    """Whether committables are published with a checkpoint; otherwise with the epoch."""
    schema: pa.Schema
    """Columns of the rows."""
    runtime: RuntimeContext
    staging: Staging | None = None
    """Only with exactly once."""
    restored_state: tuple[Any, ...] = ()
    """This subtask's share of the state that `snapshot_state` last returned."""

    @property
    def unique_name(self) -> str:
        """A name that is unique to this attempt of this epoch."""
        return f"{self.job_attempt}-{self.epoch}-{self.subtask}-{self.attempt_id}"

    def stage(self, rows: Iterable[pa.RecordBatch], name: str = "rows") -> StagedRows:
        """Store rows in checkpoint storage; return the result from `prepare_commit`."""
        assert self.staging is not None, "rows are staged with exactly once only"
        return self.staging.put(f"{self.unique_name}-{name}", rows, self.schema)


class SinkWriter:
    """Writes the elements of one epoch on one subtask: override `write` or `write_rows`."""

    opened: Any = None
    """A committable for a resource that the writer opens at once, such as a transaction.

    It is stored before the first element, so that `Committer.abort_opened` can drop it if the
    process dies before `prepare_commit`.
    """

    def write(self, element: Any, context: SinkContext) -> None:
        """Write one element; called unless the sink sets `takes_rows`."""
        raise SinkError(
            f"{type(self).__name__} has no write() and is handed elements; override it, or "
            "override write_rows() and set takes_rows on its sink"
        )

    def write_rows(self, rows: pa.RecordBatch) -> None:
        """Write rows; called if the sink sets `takes_rows`."""
        raise SinkError(
            f"{type(self).__name__} has no write_rows() and is handed rows; override it, or "
            "override write() and do not set takes_rows on its sink"
        )

    def flush(self) -> None:
        """Called after the last element of the epoch."""
        return

    def prepare_commit(self) -> Sequence[Any]:
        """Make the output durable, and return the committables that publish it."""
        return ()

    def snapshot_state(self, checkpoint_id: int) -> Sequence[Any]:
        """State that the writers of the next epoch find in `restored_state`.

        Only if the sink sets `has_state`; split evenly when the parallelism changes.
        """
        return ()

    def abort(self) -> None:
        """Drop the output: the epoch has failed."""
        return

    def close(self) -> None:
        """Release resources; always the last call, also after `abort`."""
        return


class CommitRequest:
    """A committable to publish, and the outcome.

    A request is done when `commit` returns, unless the committer calls one of the methods.
    """

    def __init__(
        self,
        committable: Any,
        *,
        job_id: str,
        lineage: str,
        uid: str,
        checkpoint_id: int,
        epoch: int,
        subtask: int,
        recovered: bool,
        retries: int = 0,
        staging: Staging | None = None,
    ) -> None:
        """A new request."""
        self.committable = committable
        self.job_id = job_id
        """The job that wrote it: an earlier job if this one was restored from its checkpoint."""
        self.lineage = lineage
        """Id of a sequence of checkpoints in which no checkpoint id occurs twice.

        A job that starts without a checkpoint starts a new sequence, even under the same job id.
        """
        self.uid = uid
        self.checkpoint_id = checkpoint_id
        """The checkpoint that it is published with; 0 if it is published with its epoch."""
        self.epoch = epoch
        self.subtask = subtask
        self.recovered = recovered
        """Whether it may have been published before the job was restored."""
        self.retries = retries
        """Number of earlier attempts."""
        self._staging = staging
        self.outcome: str = "done"
        self.error: BaseException | None = None

    def rows(self) -> Iterator[pa.RecordBatch]:
        """The rows of a committable that is `StagedRows`."""
        assert self._staging is not None
        assert isinstance(self.committable, StagedRows)
        return self._staging.get(self.committable)

    def retry_later(self) -> None:
        """Try again after a pause."""
        self.outcome = "retry"

    def update_and_retry_later(self, committable: Any) -> None:
        """Try again after a pause, with another committable."""
        self.committable = committable
        self.outcome = "retry"

    def signal_already_committed(self) -> None:
        """Report that it had been published before."""
        self.outcome = "already"

    def signal_failed_with_known_reason(self, error: BaseException) -> None:
        """Report that it can never be published: it is logged and dropped."""
        self.outcome, self.error = "dropped", error

    def signal_failed_with_unknown_reason(self, error: BaseException) -> None:
        """Report that it could not be published: the job fails."""
        self.outcome, self.error = "failed", error


class Committer(ABC):
    """Publishes the output of writers."""

    @abstractmethod
    def commit(self, requests: Sequence[CommitRequest]) -> None:
        """Publish the committables of one subtask and one checkpoint, in the order of epochs.

        Called on any executor, or on the driver. Must be idempotent: after a recovery it is called
        again with the same committables and the same checkpoint id.
        """

    def abort_opened(self, committables: Sequence[Any]) -> None:
        """Drop what writers have opened before their processes died; it was never published."""
        return

    def clean_up(self, job_id: str, uid: str, job_attempt: str) -> None:
        """Remove the unpublished output of other attempts of the job, except of later drivers.

        Called on the driver when that output can no longer be published: after the first
        checkpoint of a job attempt, and when the job has ended.

        Args:
            job_id: The job.
            uid: The sink.
            job_attempt: The job attempt whose output stays; when the job has ended, a name that
                none has. The number that it begins with is that of the driver. Output of attempts
                with a higher number stays too: another driver has taken over.
        """
        return

    def close(self) -> None:
        """Release resources."""
        return


class Sink(ABC):
    """Writes a stream in the tasks, and publishes the output in a second step."""

    committable_type: Any = None
    """Type of the committables, as for a state; staged rows need none.

    With `Any` they are pickled: reading a checkpoint then runs code that anyone with write access
    to checkpoint storage can choose.
    """
    takes_rows = False
    """Whether writers get Arrow record batches instead of elements."""
    notes_opened = False
    """Whether writers set `opened`."""
    has_state = False
    """Whether writers have state."""
    state_type: Any = None
    """Type of the elements of that state; pickled if None."""

    @property
    def name(self) -> str:
        """Default name in plans and statistics."""
        return type(self).__name__

    @abstractmethod
    def create_writer(self, context: WriterContext) -> SinkWriter:
        """A writer for one epoch on one subtask."""

    @abstractmethod
    def create_committer(self, runtime: RuntimeContext) -> Committer:
        """A committer for one publication, on the subtask of `runtime`."""

    def check(self, schema: pa.Schema) -> None:
        """Raise ConfigurationError if the sink cannot write these columns; called at build time."""
        return


@dataclass(frozen=True)
class SparkSink:
    """Writes with one of Spark's DataFrame writers.

    With exactly once, rows are written when their checkpoint completes. They are written once,
    unless the driver dies during the write: Spark's writers cannot detect a repetition. Otherwise
    rows are written at the end of every epoch.

    Args:
        format: Name of the format: "parquet", "delta", "jdbc", "noop", ...
        options: The writer's options, such as `{"path": "/data/out"}`.
        mode: How to treat existing rows: "append", "overwrite", ...
        partition_by: Columns to partition the output by.
        staged: Whether rows wait for their checkpoint with exactly once. If False, they are
            written at the end of every epoch, and may repeat after a recovery.
    """

    format: str
    options: dict[str, Any] = field(default_factory=dict)
    mode: str = "append"
    partition_by: tuple[str, ...] = ()
    staged: bool = True


@dataclass(frozen=True)
class ForeachBatchSink:
    """Passes the DataFrame of an epoch or a checkpoint to a function on the driver."""

    function: Callable[[Any, int], object]


@dataclass(frozen=True)
class PrintSink:
    """Prints every element on the driver."""

    label: str | None = None


@dataclass(frozen=True)
class CollectSink:
    """Collects every element on the driver."""

    collector: Callable[[list[Any]], None]
