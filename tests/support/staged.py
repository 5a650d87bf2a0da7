"""Sinks of two steps whose world is this process, and epochs of theirs without Spark."""

from __future__ import annotations

import pickle
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from holdfast.api.sinks import Committer, Sink, SinkWriter
from holdfast.clock import SystemClock
from holdfast.runtime.channel_cut import SLICE_SIZES
from holdfast.runtime.operator_task import TaskIdentity
from holdfast.runtime.plan import CheckpointOrder, EpochPlan
from holdfast.spark.serialization import dump_function
from holdfast.state.store.process import ProcessIdentity
from tests.support.programs import Run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    import pyarrow as pa

    from holdfast.api.sinks import CommitRequest, Staging, WriterContext
    from holdfast.clock import Clock
    from holdfast.job.model import JobPlan
    from holdfast.runtime.channel_cut import SliceSizes
    from holdfast.runtime.plan import ChannelRows, StagePlan
    from holdfast.runtime.report import Prepared

CALLS: list[tuple[Any, ...]] = []
"""What writers and committers were told, in order; emptied by `forget`."""
ANSWERS: dict[Any, list[str]] = {}
"""What becomes of a committable, try after try; it is published where nothing is said."""


def forget() -> None:
    """Empty what this process remembers."""
    CALLS.clear()
    ANSWERS.clear()


def calls(*names: str) -> list[tuple[Any, ...]]:
    """Calls of these names."""
    return [call for call in CALLS if call[0] in names]


LEAST_WORK_MS = 100
"""Time that a task gets for what was left over, though it starts after the cut."""
CUT_WITHIN_MS = 1_000_000
"""Longest that a task goes on before the cut."""


class Notebook(Sink):
    """Notes every call; a committable is the list of its writer's elements or rows."""

    committable_type = Any

    def __init__(
        self,
        label: str = "notebook",
        *,
        rows: bool = False,
        state: bool = False,
        opens: bool = False,
        stages: bool = False,
        fails_in: str = "",
    ) -> None:
        self.label = label
        self.takes_rows, self.has_state, self.notes_opened = rows, state, opens
        self.stages = stages
        self.fails_in = fails_in

    def create_writer(self, context: WriterContext) -> SinkWriter:
        return NotebookWriter(self, context)

    def create_committer(self, runtime: Any) -> Committer:
        CALLS.append(("committer", self.label, runtime.get_index_of_this_subtask()))
        return NotebookCommitter(self)


class NotebookWriter(SinkWriter):
    def __init__(self, sink: Notebook, context: WriterContext) -> None:
        self.sink, self.context = sink, context
        self.elements: list[Any] = []
        self.batches: list[pa.RecordBatch] = []
        if sink.notes_opened:
            self.opened = context.unique_name
        self.note("create", context)

    def note(self, call: str, *what: Any) -> None:
        CALLS.append((call, self.sink.label, self.context.subtask, *what))
        if self.sink.fails_in == call:
            raise OSError(f"no {call} today")

    def write(self, element: Any, context: Any) -> None:
        self.note("write", element)
        self.elements.append(tuple(element))

    def write_rows(self, rows: pa.RecordBatch) -> None:
        self.note("write", rows.num_rows)
        self.batches.append(rows)
        self.elements += [tuple(row.values()) for row in rows.to_pylist()]

    def flush(self) -> None:
        self.note("flush")

    def prepare_commit(self) -> Sequence[Any]:
        self.note("prepare")
        if self.sink.stages:
            return (self.context.stage(self.batches),)
        return (self.elements,) if self.elements else ()

    def snapshot_state(self, checkpoint_id: int) -> Sequence[Any]:
        self.note("snapshot", checkpoint_id)
        return [*self.context.restored_state, *self.elements]

    def abort(self) -> None:
        self.note("abort")

    def close(self) -> None:
        self.note("close")


class NotebookCommitter(Committer):
    def __init__(self, sink: Notebook) -> None:
        self.sink = sink

    def commit(self, requests: Sequence[CommitRequest]) -> None:
        label = self.sink.label
        for request in requests:
            self._commit_one(label, request)

    def _commit_one(self, label: str, request: CommitRequest) -> None:
        committable = request.committable
        said = ANSWERS.get(committable if isinstance(committable, str) else "", [])
        match said.pop(0) if said else "done":
            case "done":
                CALLS.append(("commit", label, request.subtask, request.checkpoint_id, committable))
            case "retry":
                request.retry_later()
            case "already":
                request.signal_already_committed()
            case "drop":
                request.signal_failed_with_known_reason(ValueError("it is malformed"))
            case "fail":
                request.signal_failed_with_unknown_reason(ValueError("nobody knows"))
            case "raise":
                raise OSError("no connection")
            case other:
                request.update_and_retry_later(other)

    def abort_opened(self, committables: Sequence[Any]) -> None:
        CALLS.append(("abort_opened", self.sink.label, list(committables)))
        if self.sink.fails_in == "abort_opened":
            raise OSError("no connection")

    def clean_up(self, job_id: str, uid: str, job_attempt: str) -> None:
        CALLS.append(("clean_up", self.sink.label, job_id, uid, job_attempt))
        if self.sink.fails_in == "clean_up":
            raise OSError("no connection")

    def close(self) -> None:
        CALLS.append(("committer closed", self.sink.label))


def no_frames(uid: str, *rows: Any) -> None:
    """Stands where sinks on the driver would be served, for programs that have none."""
    raise AssertionError(f"sink {uid!r} takes DataFrames")


class LocalCalls:
    """Calls in this process, one after the other; notes where each would have gone."""

    local = True
    threads = 1

    def __init__(self) -> None:
        self.places: list[tuple[int, int]] = []

    def pickle(self, function: object, what: str) -> bytes:
        return dump_function(function, what)

    def record_location(self, tasks: int, subtask: int, executor: str) -> None:
        return None

    def cancel(self, group: str) -> None:
        return None

    def map(
        self, function: Callable[[Any], Any], items: Sequence[tuple[int, int, Any]], group: str
    ) -> Iterator[Any]:
        for subtask, tasks, item in items:
            self.places.append((subtask, tasks))
            yield function(item)


class StagedRun(Run):
    """Epochs of a compiled program whose tasks have staging, and can be cut."""

    def __init__(
        self,
        plan: JobPlan,
        directory: Path,
        staging: Staging,
        clock: Clock | None = None,
        job_attempt: str = "1-1",
        sizes: SliceSizes = SLICE_SIZES,
    ) -> None:
        super().__init__(plan, directory)
        self._sizes = sizes
        self.staging = staging
        self.clock = clock or SystemClock()
        self.job_attempt = job_attempt
        self.channel_rows: tuple[ChannelRows, ...] = ()
        self.told: dict[str, Any] = {}

    def run(self, *feeds: list[Any], **told: Any) -> None:
        """One epoch, whose tasks are told what is given here as well."""
        self.told = told
        self.push(*feeds)
        self.channel_rows = tuple(left for report in self.reports for left in report.channel_state)

    @property
    def prepared(self) -> list[tuple[int, Prepared]]:
        """Output of the epoch, each with its subtask."""
        return [(report.subtask, one) for report in self.reports for one in report.prepared]

    def committed(self, uid: str) -> dict[int, Any]:
        """What the epoch would publish for a sink, by subtask."""
        found: dict[int, Any] = defaultdict(list)
        for subtask, one in self.prepared:
            if one.uid == uid:
                found[subtask] += pickle.loads(one.data)
        return dict(found)

    def epoch_plan(self) -> EpochPlan:
        told: dict[str, Any] = {
            "exactly_once": True,
            "staging": self.staging,
            "channel_rows": self.channel_rows,
            "least_work_ms": LEAST_WORK_MS,
            "cut_within_ms": CUT_WITHIN_MS,
            **self.told,
        }
        if told.get("checkpoint") is not None:
            told["checkpoint"] = CheckpointOrder(told["checkpoint"], 500)
        return EpochPlan(
            job_id="job",
            job_attempt=self.job_attempt,
            epoch=self.epoch,
            local_dir=str(self._directory),
            owner=ProcessIdentity.current(),
            expected=self.expected,
            **told,
        )

    def _task(
        self, stage: StagePlan, subtask: int, batches: list[pa.RecordBatch]
    ) -> list[pa.RecordBatch]:
        identity = TaskIdentity(subtask, 0, next(self._attempts))
        epoch = None if stage.index == 0 else self.epoch_plan()
        out, report = self.workers.run(
            stage, epoch, identity, batches, self.clock, sizes=self._sizes
        )
        self.reports.append(report)
        for uid, store in report.stores.items():
            self.expected[uid, subtask] = store.version
        return out
