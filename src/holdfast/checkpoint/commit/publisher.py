"""Publishes staged output by calling the committers of sinks.

The list in the checkpoint's metadata decides what is published, never a directory listing. Every
subtask of every sink is published separately: a failure does not affect the others, and is
published again after the recovery.
"""

from __future__ import annotations

import itertools
import logging
import pickle
import threading
import uuid
from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

from holdfast._faults import fault_point
from holdfast.api.sinks import CommitRequest, Sink
from holdfast.api.streams.graph import OperatorKind
from holdfast.checkpoint.commit.committables import staged_rows
from holdfast.errors import HoldfastError, SinkError
from holdfast.runtime.committable_codec import committable_codec
from holdfast.runtime.context import SubtaskContext
from holdfast.state.store.directories import file_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from holdfast.api.sinks import Committer, StagedRows, Staging
    from holdfast.api.streams.graph import Node
    from holdfast.checkpoint.commit.opened_notes import Note, OpenedNotes
    from holdfast.checkpoint.files.metadata import Committable
    from holdfast.checkpoint.worker_calls import WorkerCalls
    from holdfast.job.model import JobPlan
    from holdfast.runtime.plan import OperatorPlan

logger = logging.getLogger("holdfast")

RETRIES = 10
"""How often a committable is retried if its committer asks for it."""
FIRST_PAUSE = 0.1
LONGEST_PAUSE = 5.0
"""Seconds between two tries; each pause is twice as long as the last one."""


@dataclass(frozen=True)
class Publication:
    """What all committables have in common that are published together."""

    job_id: str
    """The job that wrote them."""
    lineage: str
    """The series of checkpoints that they belong to."""
    staging: Staging | None
    """Where staged rows are."""
    recovered: bool = False
    """Whether they may have been published before."""


@dataclass(frozen=True)
class CommitGroup:
    """Committables of one subtask of one sink, for one checkpoint."""

    sink: bytes
    """The pickled operator."""
    publication: Publication
    checkpoint_id: int
    subtask: int
    committables: tuple[Committable, ...]
    pauses: tuple[float, float] = (FIRST_PAUSE, LONGEST_PAUSE)
    """Seconds before the first retry, and maximum seconds between two tries."""


class FramePublisher(Protocol):
    """Passes all rows of a checkpoint to a sink on the driver, as one DataFrame."""

    def __call__(
        self,
        uid: str,
        sink: Node,
        rows: Sequence[StagedRows],
        staging: Staging,
        checkpoint_id: int,
        /,
    ) -> None:
        """Publish the rows of one sink."""


class Publisher:
    """Publishes the output of one job."""

    def __init__(
        self,
        plan: JobPlan,
        calls: WorkerCalls,
        publish_frame: FramePublisher | None = None,
        *,
        first_pause: float = FIRST_PAUSE,
        longest_pause: float = LONGEST_PAUSE,
    ) -> None:
        """Create a publisher for the sinks of `plan`.

        Args:
            plan: The compiled job.
            calls: Reaches the executors, where committers run.
            publish_frame: Publishes rows on the driver, for sinks that take DataFrames.
            first_pause: Seconds before the first retry of a committable.
            longest_pause: Maximum seconds between two tries.
        """
        self._pauses = first_pause, longest_pause
        self._publish_frame = publish_frame
        # Of this job alone: others of the same session count checkpoints too.
        self._groups = f"holdfast-publish-{uuid.uuid4().hex[:8]}"
        self._calls = calls
        self.replan(plan)

    def replan(self, plan: JobPlan) -> None:
        """Publish the output of another plan of the same job from now on."""
        sinks = {
            uid: operator
            for uid, operator in plan.operators.items()
            if operator.kind is OperatorKind.WRITER
        }
        self._pickled = {
            uid: self._calls.pickle(operator, f"sink {operator.name!r} (uid {uid!r})")
            for uid, operator in sinks.items()
            if uid not in plan.frame_sinks
        }
        self._plan = plan
        self._tasks = plan.operator_tasks
        self._sinks = sinks

    @property
    def sinks(self) -> int:
        """Number of sinks."""
        return len(self._sinks)

    @property
    def most_staged(self) -> int:
        """Most pieces of rows that the tasks of one epoch may stage: output and channel state."""
        return sum(
            tasks * (len(stage.operators) + len(stage.reads.channels))
            for stage, tasks in zip(self._plan.stages, self._plan.stage_parallelism, strict=True)
        )

    @property
    def notes_opened(self) -> bool:
        """Whether any writer notes the transactions that it opens."""
        return len(self.quiet) < len(self._sinks)

    @property
    def quiet(self) -> frozenset[str]:
        """Uids of sinks whose writers write no notes."""
        return frozenset(
            uid for uid, operator in self._sinks.items() if not operator.function.notes_opened
        )

    def publish(
        self,
        committables: Sequence[Committable],
        publication: Publication,
        *,
        wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        """Publish `committables`, whose checkpoints are complete; can be repeated.

        Args:
            committables: In the order of epochs.
            publication: What they have in common.
            wanted: Whether the caller still waits; if not, no further call is made.

        Raises:
            SinkError: Something could not be published; everything else is.
        """
        failures: list[Exception] = []
        for checkpoint_id in dict.fromkeys(one.checkpoint_id for one in committables):
            mine = [one for one in committables if one.checkpoint_id == checkpoint_id]
            failures += self._commit(checkpoint_id, mine, publication, wanted)
            failures += self._publish_frames(checkpoint_id, mine, publication, wanted)
        if failures:
            raise failures[0]

    def _commit(
        self,
        checkpoint_id: int,
        mine: list[Committable],
        publication: Publication,
        wanted: Callable[[], bool],
    ) -> list[Exception]:
        """Call the committers, for every subtask separately; returns the failures."""
        by_subtask: dict[tuple[str, int], list[Committable]] = defaultdict(list)
        for one in mine:
            if one.uid in self._pickled:
                by_subtask[one.uid, one.subtask].append(one)
        groups = []
        for (uid, subtask), some in by_subtask.items():
            sink, tasks = self._pickled[uid], self._tasks[uid]
            group = CommitGroup(
                sink, publication, checkpoint_id, subtask, tuple(some), self._pauses
            )
            groups.append((subtask % tasks, tasks, group))
        commit: Callable[[CommitGroup], Exception | None] = commit_group
        if self._calls.local:
            # On a cluster, `cancel` stops the tasks by the name of their group.
            commit = partial(_commit_if_wanted, wanted)
        done = self._calls.map(commit, groups, self._job_group(checkpoint_id))
        return [failure for failure in done if failure]

    def _publish_frames(
        self,
        checkpoint_id: int,
        mine: list[Committable],
        publication: Publication,
        wanted: Callable[[], bool],
    ) -> list[Exception]:
        """Pass rows to the sinks on the driver; returns the failures."""
        sinks, staging = self._plan.frame_sinks, publication.staging
        failures: list[Exception] = []
        for uid in dict.fromkeys(one.uid for one in mine if one.uid in sinks):
            if not wanted():
                break
            rows = [
                staged_rows(one.rows) for one in mine if one.uid == uid and one.rows is not None
            ]
            assert staging is not None
            try:
                assert self._publish_frame is not None
                self._publish_frame(uid, sinks[uid], rows, staging, checkpoint_id)
            except Exception as failure:
                failures.append(failure)
        return failures

    def cancel(self, committables: Iterable[Committable]) -> None:
        """Cancel the calls that publish these, if they run as Spark tasks."""
        for checkpoint_id in {one.checkpoint_id for one in committables}:
            self._calls.cancel(self._job_group(checkpoint_id))

    def _job_group(self, checkpoint_id: int) -> str:
        return f"{self._groups}-{checkpoint_id}"

    def is_on_driver(self, uid: str) -> bool:
        """Whether a sink takes its rows on the driver, as a DataFrame."""
        return uid in self._plan.frame_sinks

    def describe(self, uid: str) -> str:
        """Name and uid of a sink, for messages."""
        operator = self._sinks.get(uid)
        return (
            f"sink (uid {uid!r})" if operator is None else f"sink {operator.name!r} (uid {uid!r})"
        )

    def clean_up(
        self,
        job_id: str,
        job_attempt: str,
        *,
        wanted: Callable[[], bool] = lambda: True,
        check_fence: Callable[[], None] = lambda: None,
    ) -> None:
        """Call `Committer.clean_up` of all sinks, as long as `wanted` says so.

        Raises:
            FencedError: Another driver has taken over, as `check_fence` says.
        """
        for committer, operator in self._committers():
            if not wanted():
                return
            # A sink may take long, and another driver take over meanwhile.
            check_fence()
            try:
                committer.clean_up(job_id, operator.uid, job_attempt)
            except Exception as error:
                logger.warning("sink %r left something behind: %s", operator.name, error)

    def abort_opened(self, notes: OpenedNotes, orphans: Iterable[Note]) -> None:
        """Let sinks abort transactions that will never be published, and delete their notes.

        Args:
            notes: The notes of the job.
            orphans: The notes of these transactions.
        """
        by_sink: dict[str, list[Note]] = defaultdict(list)
        for note in orphans:
            by_sink[note.sink].append(note)
        for committer, operator in self._committers():
            found = by_sink.pop(file_name(operator.uid), [])
            codec = committable_codec(operator.function)
            data = [notes.read(note) for note in found]
            try:
                committer.abort_opened([codec.decode(one) for one in data if one is not None])
            except Exception as error:
                logger.warning("sink %r could not abort transactions: %s", operator.name, error)
                continue
            notes.drop(found)
        # The program has lost these sinks: their transactions can never be aborted.
        notes.drop(itertools.chain.from_iterable(by_sink.values()))

    def _committers(self) -> Iterator[tuple[Committer, OperatorPlan]]:
        for data in self._pickled.values():
            operator: OperatorPlan = pickle.loads(data)
            committer = operator.function.create_committer(_context(operator, 0))
            try:
                yield committer, operator
            finally:
                committer.close()


def _commit_if_wanted(wanted: Callable[[], bool], group: CommitGroup) -> Exception | None:
    """Publish one subtask's part if the caller still waits."""
    return commit_group(group) if wanted() else None


def commit_group(group: CommitGroup) -> Exception | None:
    """Publish one subtask's part; returns the error, if any."""
    operator: OperatorPlan = pickle.loads(group.sink)
    sink = operator.function
    assert isinstance(sink, Sink)
    where = {
        "uid": operator.uid,
        "subtask": group.subtask,
        "checkpoint": group.checkpoint_id,
    }
    try:
        fault_point("before-publish", **where)
        committer = sink.create_committer(_context(operator, group.subtask))
        try:
            _commit_all(committer, list(_requests(group, operator)), operator, group.pauses)
        finally:
            committer.close()
        fault_point("after-publish", **where)
    except HoldfastError as error:
        return _located(error, operator, group)
    except Exception as error:
        return SinkError(
            f"sink {operator.name!r} (uid {operator.uid!r}), subtask {group.subtask}, could not "
            f"publish the output of checkpoint {group.checkpoint_id}: "
            f"{type(error).__name__}: {error}"
        )
    return None


def _requests(group: CommitGroup, operator: OperatorPlan) -> Iterator[CommitRequest]:
    codec = committable_codec(operator.function)
    for one in group.committables:
        yield CommitRequest(
            codec.decode(one.data) if one.rows is None else staged_rows(one.rows),
            job_id=group.publication.job_id,
            lineage=group.publication.lineage,
            uid=operator.uid,
            checkpoint_id=group.checkpoint_id,
            epoch=one.epoch,
            subtask=group.subtask,
            recovered=group.publication.recovered,
            staging=group.publication.staging,
        )


def _commit_all(
    committer: Committer,
    requests: list[CommitRequest],
    operator: OperatorPlan,
    pauses: tuple[float, float],
) -> None:
    """Commit, and retry the requests that ask for it."""
    pause, longest = pauses
    for attempt in range(RETRIES + 1):
        committer.commit(requests)
        requests = _unfinished(requests, operator)
        if not requests:
            return
        if attempt < RETRIES:
            threading.Event().wait(pause)
            pause = min(pause * 2, longest)
    error = requests[0].error
    raise SinkError(
        f"it still asked for another try after {RETRIES} retries"
        + (f" ({type(error).__name__}: {error})" if error else "")
    )


def _unfinished(requests: Iterable[CommitRequest], operator: OperatorPlan) -> list[CommitRequest]:
    again = []
    for request in requests:
        match request.outcome:
            case "retry":
                request.outcome = "done"
                request.retries += 1
                again.append(request)
            case "dropped":
                logger.error(
                    "sink %r drops output of checkpoint %d, subtask %d, for good: %s",
                    operator.name,
                    request.checkpoint_id,
                    request.subtask,
                    request.error,
                )
            case "failed":
                assert request.error is not None
                raise request.error
    return again


def _context(operator: OperatorPlan, subtask: int) -> SubtaskContext:
    return SubtaskContext(operator, subtask, {}, None)


def _located(error: HoldfastError, operator: OperatorPlan, group: CommitGroup) -> HoldfastError:
    return type(error)(
        f"sink {operator.name!r} (uid {operator.uid!r}), subtask {group.subtask}, publishing the "
        f"output of checkpoint {group.checkpoint_id}: {error}"
    )
