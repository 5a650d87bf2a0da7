"""Publishes a job's output with its checkpoint, or at the end of its epoch."""

from __future__ import annotations

import logging
import threading
import uuid
from collections import Counter, deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from holdfast._faults import fault_point
from holdfast.checkpoint.commit.committables import PendingCommittables, committables
from holdfast.checkpoint.commit.opened_notes import OpenedNotes
from holdfast.checkpoint.commit.publisher import Publication
from holdfast.checkpoint.files.channel_state import FileStaging
from holdfast.config.checkpoint_options import COMMITTER_TIMEOUT
from holdfast.errors import CheckpointError, CorruptCheckpointError, SinkError
from holdfast.job.model import Delivery
from holdfast.job.threads import NoAnswerError, TimeLimits
from holdfast.storage.files import MOST_INLINE
from holdfast.storage.handles import InlineHandle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from holdfast.checkpoint.commit.publisher import Publisher
    from holdfast.checkpoint.files.job_files import JobStorage
    from holdfast.checkpoint.files.metadata import CheckpointMetadata, Committable
    from holdfast.job.model import EpochResult, JobIdentity, JobPlan
    from holdfast.runtime.report import TaskReport
    from holdfast.storage.files import JobCheckpointFiles

logger = logging.getLogger("holdfast")

PUBLISHED_KNOWN: Final = 100
"""Number of published checkpoints that this driver remembers and does not publish again.

Publishing an older one again is harmless: publishing can be repeated.
"""


ENDED: Final = "ended"
"""Ends the name that sinks are told when no job attempt's staged output is needed any more."""


class _CleanUps:
    """Running clean-ups of sinks in this process, by job id.

    A clean-up that hangs may resume much later, and would delete what a newer job attempt has
    staged. So no job attempt begins before it has returned.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: Counter[str] = Counter()

    @contextmanager
    def running(self, job_id: str) -> Iterator[None]:
        """Within the block, sinks of the job clean up."""
        with self._lock:
            self._running[job_id] += 1
        try:
            yield
        finally:
            with self._lock:
                self._running -= Counter([job_id])

    def check(self, job_id: str) -> None:
        """Raise SinkError while a clean-up of the job runs."""
        with self._lock:
            hanging = self._running[job_id] > 0
        if hanging:
            raise SinkError(
                "a sink that deletes what an earlier run of the job had staged hangs, and could "
                "delete what the next one stages. Find out what the sink waits for; if that does "
                "not help, end this program and start it again"
            )


_CLEAN_UPS: Final = _CleanUps()


class CommitService:
    """Publishes the output of one job, exactly once or at least once.

    Checkpoints are completed one after the other, so the metadata of one never lists output that
    another is just publishing. A sink that hangs gets a time limit; its output is then published by
    the recovery. If the hanging call resumes later, it commits the same output under the same
    checkpoint id, which is harmless.
    """

    def __init__(
        self,
        publisher: Publisher,
        files: JobCheckpointFiles,
        *,
        exactly_once: bool,
        inline_below: int = 0,
        time_limits: TimeLimits | None = None,
        most_inline: int = MOST_INLINE,
        published_known: int = PUBLISHED_KNOWN,
    ) -> None:
        """Create the service for the sinks of `publisher`.

        Args:
            publisher: Calls the committers.
            files: Where rows are staged, with exactly once.
            exactly_once: Whether output waits for checkpoints.
            inline_below: Size below which rows are stored inside the metadata.
            time_limits: How long to wait for sinks.
            most_inline: Maximum bytes of rows inside the metadata.
            published_known: Number of published checkpoints to remember.
        """
        self._publisher = publisher
        self._most_inline = most_inline
        self._files = files
        self._inline_below = inline_below
        self.exactly_once = exactly_once
        self._time_limits = time_limits or TimeLimits()
        self._closed = False
        self._published: deque[int] = deque(maxlen=published_known)
        self._lineage = uuid.uuid4().hex
        self._tidied: str | None = None
        self._job: JobIdentity | None = None
        self._failed = False
        """Whether the last publication did not succeed."""
        self._notes = OpenedNotes(files, publisher.quiet)
        self.pending_committables = PendingCommittables(self._lineage, self._notes)
        self._inline: dict[int, int] = {}
        """Bytes of staged rows inside handles, by epoch."""

    @property
    def owes(self) -> bool:
        """Whether a complete checkpoint has output that is not published."""
        return self._failed or self.pending_committables.is_owed

    @property
    def longest(self) -> float:
        """Longest time that a publication can take, in seconds."""
        return self._time_limits.answer * (1 + self._publisher.sinks)

    @property
    def delivery(self) -> Delivery:
        """How the tasks of every epoch deliver output."""
        return Delivery(self.exactly_once and self._publisher.sinks > 0, self.staging())

    def staging(self) -> FileStaging:
        """Where the next epoch stages rows: inside the metadata as long as there is room."""
        room = max(self._most_inline - sum(list(self._inline.values())), 0)
        share = room // max(self._publisher.most_staged, 1)
        return FileStaging(self._files, min(self._inline_below, share))

    def begin(self, job: JobIdentity) -> None:
        """Begin a job attempt, without the staged output of the last one.

        Raises:
            SinkError: A sink still cleans up after an earlier job attempt.
        """
        _CLEAN_UPS.check(job.job_id)
        self._job = job
        self.pending_committables = PendingCommittables(self._lineage, self._notes)
        self._inline = {}

    def replan(self, plan: JobPlan) -> None:
        """Publish the output of another plan of the same job from now on."""
        self._publisher.replan(plan)

    def inherit(self, completed: Iterable[CheckpointMetadata]) -> None:
        """Take over the checkpoints that earlier drivers have completed."""
        self._notes.listed(completed)

    def epoch_completed(self, result: EpochResult) -> None:
        """Keep the epoch's output for its checkpoint; with at least once, publish it now."""
        epoch = result.statistics.epoch
        if self.exactly_once:
            self._inline[epoch] = _inline_bytes(result.reports)
            self.pending_committables.add(epoch, result.reports)
        else:
            self._release(epoch, result.reports)

    def _release(self, epoch: int, reports: Iterable[TaskReport]) -> None:
        job, listed = self._job, committables(epoch, reports)
        assert job is not None
        self._commit(listed, Publication(job.job_id, self._lineage, None))
        if self._tidied != job.job_attempt:
            self._tidied = job.job_attempt
            self._clean_up(job.job_id, job.job_attempt)

    def publish(
        self,
        metadata: CheckpointMetadata,
        pending_committables: PendingCommittables,
        storage: JobStorage,
    ) -> None:
        """Publish the output of a checkpoint right after its completion.

        Raises:
            FencedError: Another driver has taken over. It publishes the output: it has seen the
                checkpoint, which was written before this check of the fence.
            SinkError: Something could not be published.
        """
        self._failed = bool(metadata.committables)
        storage.fence.check()
        if self._closed:
            raise CheckpointError(
                f"checkpoint {metadata.checkpoint_id} was completed after the job had ended; its "
                "output is published by the next start under the same job id"
            )
        self._settle_notes(metadata)
        self._publish(metadata, self._files, recovered=False)
        pending_committables.published(metadata.epoch)
        for epoch in [epoch for epoch in list(self._inline) if epoch <= metadata.epoch]:
            del self._inline[epoch]
        self._tidy(metadata, storage)

    def recover(self, metadata: CheckpointMetadata, files: JobCheckpointFiles) -> None:
        """Publish what the restored checkpoint lists, before the first epoch."""
        mine = files is self._files
        if mine:
            # A job that starts from another job's checkpoint begins a new lineage: the other
            # job may still run, and publish under the same ids.
            self._lineage = metadata.lineage
            self._settle_notes(metadata)
        if not (mine and metadata.checkpoint_id in self._published):
            if metadata.committables:
                fault_point("before-recovered-publish", checkpoint=metadata.checkpoint_id)
            self._publish(metadata, files, recovered=True)

    def _settle_notes(self, metadata: CheckpointMetadata) -> None:
        """Delete the notes of transactions that a complete checkpoint lists."""
        self._notes.listed([metadata])
        self._notes.drop_listed()

    def _publish(
        self, metadata: CheckpointMetadata, files: JobCheckpointFiles, *, recovered: bool
    ) -> None:
        self._failed = bool(metadata.committables)
        publication = Publication(metadata.job_id, metadata.lineage, FileStaging(files), recovered)
        self._commit(metadata.committables, publication)
        self._failed = False
        self._published.append(metadata.checkpoint_id)

    def _commit(self, listed: Sequence[Committable], publication: Publication) -> None:
        """Publish committables sink by sink; a sink that fails or hangs does not stop others.

        Sinks on the driver come last. They may not recognize rows that they get again, which
        happens if the job dies before everything is published.

        Raises:
            SinkError: A sink has failed or hangs.
        """
        failures: list[Exception] = []
        uids = dict.fromkeys(one.uid for one in listed)
        for uid in sorted(uids, key=self._publisher.is_on_driver):
            mine = [one for one in listed if one.uid == uid]

            def publish(wanted: Callable[[], bool], mine: Sequence[Committable] = mine) -> None:
                self._publisher.publish(mine, publication, wanted=wanted)

            try:
                self._time_limits.call(self._publisher.describe(uid), publish)
            except NoAnswerError as error:
                self._publisher.cancel(mine)
                failures.append(self._unanswered(uid, mine, error))
            except Exception as error:
                failures.append(error)
        if failures:
            raise failures[0]

    def _unanswered(self, uid: str, mine: Sequence[Committable], error: NoAnswerError) -> SinkError:
        what = "an epoch"
        follows = "The epoch is repeated when the job has recovered"
        if self.exactly_once:
            ids = dict.fromkeys(one.checkpoint_id for one in mine)
            what = f"checkpoint {', '.join(map(str, ids))}"
            follows = (
                "The output is published when the job has recovered, or is started again under "
                "the same job id"
            )
        text = f"{self._publisher.describe(uid)} has not published the output of {what}: {error}. "
        if self._time_limits.has_stopped:
            text += "The job was told to end, and no longer waits for it. "
        text += (
            f"{follows}. Find out what the sink waits for; give its connections timeouts; if it "
            f"needs more time, set {COMMITTER_TIMEOUT.key} higher"
        )
        logger.error("%s", text)
        return SinkError(text)

    def _tidy(self, metadata: CheckpointMetadata, storage: JobStorage) -> None:
        """Delete what can never be published, now that a newer checkpoint is complete.

        Not earlier: another driver may find an aborted checkpoint complete, and needs what it
        lists.
        """
        job = self._job
        if job is None or metadata.job_attempt != job.job_attempt:
            return
        first = self._tidied != job.job_attempt
        try:
            if first or self._publisher.notes_opened:
                self._abort_opened(job.job_attempt, metadata.epoch, storage.fence.check)
            if first:
                # Another driver may have taken over while this one published.
                storage.fence.check()
                self._tidied = job.job_attempt
                self._clean_up(job.job_id, job.job_attempt, storage.fence.check)
                storage.delete_unlisted(job.job_attempt)
        except Exception as error:
            logger.warning("output that is never published was not deleted: %s", error)

    def abort_left_open(self, check_fence: Callable[[], None]) -> None:
        """Let sinks abort all transactions that no checkpoint lists: the job has ended."""
        try:
            self._abort_opened("", 0, check_fence)
        except Exception as error:
            logger.warning("open transactions of writers were not aborted: %s", error)

    def _abort_opened(self, job_attempt: str, epoch: int, check_fence: Callable[[], None]) -> None:
        try:
            orphans = self._notes.orphans(job_attempt, epoch)
        except CorruptCheckpointError as error:
            logger.warning(
                "no open transactions of writers are aborted, since this checkpoint may list them: "
                "%s",
                error,
            )
            return
        if orphans:
            # Only now: another driver writes its notes after it has taken its fence.
            check_fence()
            self._time_limits.call(
                "sinks, to abort open transactions",
                lambda _: self._publisher.abort_opened(self._notes, orphans),
            )

    def _clean_up(
        self, job_id: str, job_attempt: str, check_fence: Callable[[], None] = lambda: None
    ) -> None:
        """Let sinks delete what can never be published, with a time limit."""

        def clean_up(wanted: Callable[[], bool]) -> None:
            with _CLEAN_UPS.running(job_id):
                self._publisher.clean_up(
                    job_id, job_attempt, wanted=wanted, check_fence=check_fence
                )

        try:
            self._time_limits.call("sinks, to clean up", clean_up)
        except NoAnswerError as error:
            logger.error("sinks left something behind, since one of them hangs: %s", error)

    def abandon(self) -> None:
        """Assume unpublished output: the completion of a checkpoint hangs."""
        self._failed = True

    def close(self, *, ended: bool, check_fence: Callable[[], None] = lambda: None) -> None:
        """Delete staged output, if the job has ended and everything is published.

        Args:
            ended: Whether the job has ended for good.
            check_fence: Raises FencedError if another driver has taken over.
        """
        self._closed = True
        if ended and self._job is not None and not self.owes:
            # No job attempt has this name. It says which driver the job ended with.
            none = f"{self._job.job_attempt}-{ENDED}"
            self._clean_up(self._job.job_id, none, check_fence)


def _inline_bytes(reports: Iterable[TaskReport]) -> int:
    staged = (one.rows for report in reports for one in report.prepared)
    return sum(rows.size for rows in staged if rows and isinstance(rows.handle, InlineHandle))
