"""Publishing what sinks have staged.

By the list in the checkpoint's metadata, never by looking into a directory. Every
sink, and every subtask of one, is published by itself: what fails does not hold up the
others, and is published again after the job has recovered.
"""

from __future__ import annotations

import itertools
import logging
import pickle
import threading
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
"""How often a committable is tried again whose committer asks for it."""
FIRST_PAUSE = 0.1
LONGEST_PAUSE = 5.0
"""Seconds between two tries; each pause is twice as long as the one before."""


@dataclass(frozen=True)
class CommitGroup:
    """Committables of one subtask of one sink that go with one checkpoint."""

    sink: bytes
    """The pickled operator."""
    job_id: str
    lineage: str
    checkpoint_id: int
    subtask: int
    recovered: bool
    staging: Staging | None
    committables: tuple[Committable, ...]
    pauses: tuple[float, float] = (FIRST_PAUSE, LONGEST_PAUSE)
    """Seconds from the first try to the second, and at most between two tries."""


class FramePublisher(Protocol):
    """Hands all rows of a checkpoint to a sink on the driver, as one DataFrame."""

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
        """Publishes for the sinks of `plan`.

        Args:
            plan: The compiled job.
            calls: Reaches the executors, where committers run.
            publish_frame: Publishes rows on the driver; None if no sink of the plan takes
                DataFrames.
            first_pause: Seconds before a committable is tried again for the first time.
            longest_pause: Most seconds between two tries.
        """
        self._pauses = first_pause, longest_pause
        self._publish_frame = publish_frame
        self._plan = plan
        self._calls = calls
        self._sinks: dict[str, OperatorPlan] = {}
        self._tasks: dict[str, int] = {}
        for stage, tasks in zip(plan.stages, plan.stage_parallelism, strict=True):
            for operator in stage.operators:
                if operator.kind is OperatorKind.WRITER:
                    self._sinks[operator.uid] = operator
                    self._tasks[operator.uid] = tasks
        self._pickled = {
            uid: calls.pickle(operator, f"sink {operator.name!r} (uid {uid!r})")
            for uid, operator in self._sinks.items()
            if uid not in plan.frame_sinks
        }

    @property
    def sinks(self) -> int:
        """How many sinks there are."""
        return len(self._sinks)

    @property
    def has_sinks(self) -> bool:
        """Whether there is anything to publish, ever."""
        return bool(self._sinks)

    @property
    def most_staged(self) -> int:
        """Pieces of rows that the tasks of one epoch may keep: output, and input left over."""
        return sum(
            tasks * (len(stage.operators) + len(stage.reads.channels))
            for stage, tasks in zip(self._plan.stages, self._plan.stage_parallelism, strict=True)
        )

    @property
    def notes_opened(self) -> bool:
        """Whether writers note what they have opened."""
        return len(self.quiet) < len(self._sinks)

    @property
    def quiet(self) -> frozenset[str]:
        """Uids of sinks whose writers note nothing."""
        return frozenset(
            uid for uid, operator in self._sinks.items() if not operator.function.notes_opened
        )

    def publish(
        self,
        committables: Sequence[Committable],
        job_id: str,
        lineage: str,
        staging: Staging | None,
        *,
        recovered: bool = False,
        wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        """Publish all of `committables`, whose checkpoint is complete; again if need be.

        Args:
            committables: In the order of epochs.
            job_id: The job that wrote them.
            lineage: The row of checkpoints that they belong to.
            staging: Where its staged rows are.
            recovered: Whether they may have been published before.
            wanted: Whether somebody still waits for that; if not, no further call is made.

        Raises:
            SinkError: Something could not be published. Everything else is.
        """
        failures: list[Exception] = []
        for checkpoint_id in dict.fromkeys(one.checkpoint_id for one in committables):
            mine = [one for one in committables if one.checkpoint_id == checkpoint_id]
            common = partial(
                CommitGroup,
                job_id=job_id,
                lineage=lineage,
                checkpoint_id=checkpoint_id,
                recovered=recovered,
                staging=staging,
                pauses=self._pauses,
            )
            failures += self._publish(checkpoint_id, mine, common, staging, wanted)
        if failures:
            raise failures[0]

    def _publish(
        self,
        checkpoint_id: int,
        mine: list[Committable],
        common: Callable[..., CommitGroup],
        staging: Staging | None,
        wanted: Callable[[], bool],
    ) -> list[Exception]:
        by_subtask: dict[tuple[str, int], list[Committable]] = defaultdict(list)
        by_frame: dict[str, list[Committable]] = defaultdict(list)
        for one in mine:
            if one.uid in self._plan.frame_sinks:
                by_frame[one.uid].append(one)
            elif one.uid in self._sinks:
                by_subtask[one.uid, one.subtask].append(one)
        groups = [
            (
                subtask % self._tasks[uid],
                self._tasks[uid],
                common(sink=self._pickled[uid], subtask=subtask, committables=tuple(some)),
            )
            for (uid, subtask), some in by_subtask.items()
        ]
        commit: Callable[[CommitGroup], Exception | None] = commit_group
        if self._calls.local:
            # Elsewhere the tasks are cancelled, by the name of their group.
            commit = partial(_commit_if_wanted, wanted)
        group = _job_group(checkpoint_id)
        failures: list[Exception] = [
            failure for failure in self._calls.map(commit, groups, group) if failure
        ]
        for uid, some in by_frame.items():
            if not wanted():
                break
            rows = [staged_rows(one.rows) for one in some if one.rows is not None]
            assert staging is not None
            try:
                sink = self._plan.frame_sinks[uid]
                assert self._publish_frame is not None
                self._publish_frame(uid, sink, rows, staging, checkpoint_id)
            except Exception as failure:
                failures.append(failure)
        return failures

    def cancel(self, committables: Iterable[Committable]) -> None:
        """Let calls that publish these end soon, where they run as tasks."""
        for checkpoint_id in {one.checkpoint_id for one in committables}:
            self._calls.cancel(_job_group(checkpoint_id))

    def is_on_driver(self, uid: str) -> bool:
        """Whether a sink gets its rows on the driver, as a DataFrame."""
        return uid in self._plan.frame_sinks

    def describe(self, uid: str) -> str:
        """A sink, for people to read."""
        operator = self._sinks.get(uid)
        return (
            f"sink (uid {uid!r})" if operator is None else f"sink {operator.name!r} (uid {uid!r})"
        )

    def clean_up(
        self,
        job_id: str,
        job_attempt: str | None,
        *,
        wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        """Let sinks remove what can never be published, as long as that is wanted.

        See `Committer.clean_up`.
        """
        for committer, operator in self._committers():
            if not wanted():
                return
            try:
                committer.clean_up(job_id, operator.uid, job_attempt)
            except Exception as error:
                logger.warning("sink %r left something behind: %s", operator.name, error)

    def abort_opened(self, notes: OpenedNotes, orphans: Iterable[Note]) -> None:
        """Let sinks abort what writers have opened, and nobody will prepare or publish.

        Args:
            notes: All of them.
            orphans: Those that speak of it.
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
                logger.warning("sink %r could not abort what is open: %s", operator.name, error)
                continue
            notes.drop(found)
        # The program has no such sinks any more: nobody could ever abort these.
        notes.drop(itertools.chain.from_iterable(by_sink.values()))

    def _committers(self) -> Iterator[tuple[Committer, OperatorPlan]]:
        for data in self._pickled.values():
            operator: OperatorPlan = pickle.loads(data)
            committer = operator.function.create_committer(_context(operator, 0))
            try:
                yield committer, operator
            finally:
                committer.close()


def _job_group(checkpoint_id: int) -> str:
    return f"holdfast-publish-{checkpoint_id}"


def _commit_if_wanted(wanted: Callable[[], bool], group: CommitGroup) -> Exception | None:
    """Publish one subtask's part, unless nobody waits for that any more."""
    return commit_group(group) if wanted() else None


def commit_group(group: CommitGroup) -> Exception | None:
    """Publish one subtask's part; what went wrong, if something did."""
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
            job_id=group.job_id,
            lineage=group.lineage,
            uid=operator.uid,
            checkpoint_id=group.checkpoint_id,
            epoch=one.epoch,
            subtask=group.subtask,
            recovered=group.recovered,
            staging=group.staging,
        )


def _commit_all(
    committer: Committer,
    requests: list[CommitRequest],
    operator: OperatorPlan,
    pauses: tuple[float, float],
) -> None:
    """Commit, and try those again that ask for it."""
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
    return SubtaskContext(operator, subtask, 0, {}, None)


def _located(error: HoldfastError, operator: OperatorPlan, group: CommitGroup) -> HoldfastError:
    return type(error)(
        f"sink {operator.name!r} (uid {operator.uid!r}), subtask {group.subtask}, publishing the "
        f"output of checkpoint {group.checkpoint_id}: {error}"
    )
