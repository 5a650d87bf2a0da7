"""Sinks that write in the tasks and publish in a second step.

    class Sink                 describes the sink; shipped to the tasks
        create_writer()   ->   SinkWriter: takes an epoch's elements on one subtask
        create_committer() ->  Committer: publishes what writers have staged

A writer lives for one epoch. What it stages must be durable, and seen by nobody, when
`prepare_commit` returns; the committables that it returns name it. With exactly once
they become part of the checkpoint, and the committer publishes them when that is
complete, or again after a recovery. Otherwise they are published when the epoch ends.
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


"""What the names of notes begin with that say what a writer has opened."""


@dataclass(frozen=True)
class StagedRows:
    """Rows that wait in checkpoint storage; may be used as a committable."""

    handle: Any
    """Says where they are; only the checkpoint storage knows what it means."""
    rows: int
    size: int
    """Length in bytes."""


class RowsInStaging(Protocol):
    """Rows on their way into checkpoint storage."""

    def write(self, rows: pa.RecordBatch) -> None:
        """Add rows."""

    def close(self) -> StagedRows:
        """Make all of them durable."""

    def abort(self) -> None:
        """Drop them."""
        return


class Staging(Protocol):
    """Keeps rows in checkpoint storage; pickles, and serves any thread."""

    def open(self, name: str, schema: pa.Schema) -> RowsInStaging:
        """Begin to keep rows; `name` must be unique, and may end up as the name of a file."""

    def put(self, name: str, rows: Iterable[pa.RecordBatch], schema: pa.Schema) -> StagedRows:
        """Keep rows durably, all at once."""

    def get(self, staged: StagedRows) -> Iterator[pa.RecordBatch]:
        """The rows, verified, in their order."""

    def note(self, name: str, data: bytes) -> None:
        """Keep a few bytes durably, to be found by their name, where storage outlives a job."""


@dataclass(frozen=True)
class WriterContext:
    """What a writer is told."""

    job_id: str
    uid: str
    """Of the sink."""
    job_attempt: str
    """Names the start or restart of the job; never used twice."""
    epoch: int
    subtask: int
    parallelism: int
    attempt_id: int
    """Unique among all tasks of the Spark application."""
    checkpoint_id: int
    """Checkpoint that will be the first to contain this epoch, unless it fails."""
    exactly_once: bool
    """Whether committables wait for a checkpoint; else they are published with the epoch."""
    schema: pa.Schema
    """Columns of the rows."""
    runtime: RuntimeContext
    staging: Staging | None = None
    """Given with exactly once."""
    restored_state: tuple[Any, ...] = ()
    """What `snapshot_state` of writers has returned last; of this subtask's share."""

    @property
    def unique_name(self) -> str:
        """Name that no other attempt of any epoch of any job attempt has."""
        return f"{self.job_attempt}-{self.epoch}-{self.subtask}-{self.attempt_id}"

    def stage(self, rows: Iterable[pa.RecordBatch], name: str = "rows") -> StagedRows:
        """Keep rows in checkpoint storage; give the result out in `prepare_commit`."""
        assert self.staging is not None, "rows are staged with exactly once only"
        return self.staging.put(f"{self.unique_name}-{name}", rows, self.schema)


class SinkWriter:
    """Takes the elements of one epoch on one subtask, or its rows; override one of the two."""

    opened: Any = None
    """A committable for what is open from the beginning, such as a transaction.

    It is noted before the first element, so that `Committer.abort_opened` can drop it if
    the process dies before `prepare_commit`.
    """

    def write(self, element: Any, context: SinkContext) -> None:
        """Take one element; called unless the sink has `takes_rows` set."""
        raise SinkError(
            f"{type(self).__name__} has no write() and is handed elements; override it, or write "
            "write_rows() and set takes_rows on its sink"
        )

    def write_rows(self, rows: pa.RecordBatch) -> None:
        """Take rows; called if the sink has `takes_rows` set."""
        raise SinkError(
            f"{type(self).__name__} has no write_rows() and is handed rows; override it, or write "
            "write() and leave takes_rows off its sink"
        )

    def flush(self) -> None:
        """All elements of the epoch have been written."""
        return

    def prepare_commit(self) -> Sequence[Any]:
        """Make what was written durable; whatever the committer needs to publish it."""
        return ()

    def snapshot_state(self, checkpoint_id: int) -> Sequence[Any]:
        """Elements that the writers of the next epoch find in `restored_state`.

        Only if the sink has `has_state` set; dealt out evenly when the parallelism changes.
        """
        return ()

    def abort(self) -> None:
        """The epoch has failed before its end: drop what was written."""
        return

    def close(self) -> None:
        """Release resources; the last call, after `abort` as well."""
        return


class CommitRequest:
    """One committable that is to be published, and what becomes of it.

    A request about which the committer says nothing is done when `commit` returns.
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
        """A request that nothing has become of yet."""
        self.committable = committable
        self.job_id = job_id
        """The job that wrote it, which is another one if this continues its checkpoint."""
        self.lineage = lineage
        """Names the row of checkpoints that it belongs to, within which no id comes twice.

        A job that starts from nothing begins another one, even under the same job id.
        """
        self.uid = uid
        self.checkpoint_id = checkpoint_id
        """The checkpoint it is published with; 0 if it is published with its epoch."""
        self.epoch = epoch
        self.subtask = subtask
        self.recovered = recovered
        """Whether it may have been published before the job was restored."""
        self.retries = retries
        """How often it was tried before."""
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
        """Try again after a pause, with another committable in its place."""
        self.committable = committable
        self.outcome = "retry"

    def signal_already_committed(self) -> None:
        """It was published before: nothing was done."""
        self.outcome = "already"

    def signal_failed_with_known_reason(self, error: BaseException) -> None:
        """It can never be published: log that, drop it, and go on."""
        self.outcome, self.error = "dropped", error

    def signal_failed_with_unknown_reason(self, error: BaseException) -> None:
        """It could not be published: the job fails."""
        self.outcome, self.error = "failed", error


class Committer(ABC):
    """Publishes what writers have staged."""

    @abstractmethod
    def commit(self, requests: Sequence[CommitRequest]) -> None:
        """Publish committables of one subtask and one checkpoint, in the order of epochs.

        Called on any executor, or on the driver. Must be idempotent: after a recovery
        the same ones come again, under the same checkpoint id.
        """

    def abort_opened(self, committables: Sequence[Any]) -> None:
        """Drop what writers had opened whose processes are gone; it was never published."""
        return

    def clean_up(self, job_id: str, uid: str, job_attempt: str | None) -> None:
        """Remove what job attempts of the job other than this one have staged.

        Called on the driver when none of it can be published any more: after the first
        checkpoint of a job attempt, and with None when the job has ended.
        """
        return

    def close(self) -> None:
        """Release resources."""
        return


class Sink(ABC):
    """Where a stream ends: writes in the tasks, publishes in a second step."""

    committable_type: Any = None
    """Type of the committables, as for a state; staged rows need none.

    `Any` has them pickled: then code runs when a checkpoint is read, and whoever can write to
    checkpoint storage decides which.
    """
    takes_rows = False
    """Whether its writers are handed Arrow record batches instead of elements."""
    notes_opened = False
    """Whether its writers have `opened` set."""
    has_state = False
    """Whether its writers have state of their own."""
    state_type: Any = None
    """Type of the elements of that state; pickled if there is none."""

    @property
    def name(self) -> str:
        """Its name in plans and statistics, unless the program gives it another."""
        return type(self).__name__

    @abstractmethod
    def create_writer(self, context: WriterContext) -> SinkWriter:
        """A writer for one epoch on one subtask."""

    @abstractmethod
    def create_committer(self, runtime: RuntimeContext) -> Committer:
        """A committer for one publication; what it learns of `runtime` is the subtask's."""

    def check(self, schema: pa.Schema) -> None:
        """Raise ConfigurationError if it cannot take such rows; when the program is built."""
        return


@dataclass(frozen=True)
class SparkSink:
    """Writes with one of Spark's DataFrame writers.

    With exactly once, rows wait for their checkpoint and are written with it: once, unless
    the driver dies in the middle of that, for Spark's writers do not know what they have
    written before. Otherwise they are written at the end of every epoch.

    Args:
        format: Name of the format: "parquet", "delta", "jdbc", "noop", ...
        options: The writer's options, such as `{"path": "/data/out"}`.
        mode: What happens to rows that are there already.
        partition_by: Columns to partition the output by.
        staged: Whether rows wait for their checkpoint with exactly once. If not, they are
            written at the end of every epoch, and may repeat after a recovery.
    """

    format: str
    options: dict[str, Any] = field(default_factory=dict)
    mode: str = "append"
    partition_by: tuple[str, ...] = ()
    staged: bool = True


@dataclass(frozen=True)
class ForeachBatchSink:
    """Hands the DataFrame of an epoch, or of a checkpoint, to a function on the driver."""

    function: Callable[[Any, int], object]


@dataclass(frozen=True)
class PrintSink:
    """Prints every element on the driver."""

    label: str | None = None


@dataclass(frozen=True)
class CollectSink:
    """Brings every element to the driver's own iterator."""

    collector: Callable[[list[Any]], None]
