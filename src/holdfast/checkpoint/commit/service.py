"""When a job's output is published: with its checkpoint, or at the end of its epoch."""

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
from holdfast.checkpoint.files.channel_state import FileStaging
from holdfast.config.checkpoint_options import COMMITTER_TIMEOUT
from holdfast.errors import CheckpointError, CorruptCheckpointError, SinkError
from holdfast.job.model import Delivery
from holdfast.job.threads import NoAnswerError, Patience
from holdfast.storage.files import MOST_INLINE
from holdfast.storage.handles import InlineHandle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from holdfast.api.sinks import Staging
    from holdfast.checkpoint.commit.publisher import Publisher
    from holdfast.checkpoint.files.job_files import JobStorage
    from holdfast.checkpoint.files.metadata import CheckpointMetadata, Committable
    from holdfast.job.model import EpochResult, JobIdentity
    from holdfast.runtime.report import TaskReport
    from holdfast.storage.files import JobCheckpointFiles

logger = logging.getLogger("holdfast")

PUBLISHED_KNOWN: Final = 100
"""Checkpoints, the newest, that are not published again by the driver that has done so.

Any other is, which changes nothing: publishing can be repeated.
"""


class _CleanUps:
    """Clean-ups of sinks under way in this process, by job id.

    One that hangs may come back much later, and would take what a newer job attempt has staged
    for something that was left behind. So none begins before it has come back.
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
        """Raise SinkError while one of the job has not come back."""
        with self._lock:
            hanging = self._running[job_id] > 0
        if hanging:
            raise SinkError(
                "a sink that was to remove what an earlier run of the job had staged has not come "
                "back, and could remove what the next one stages. Find out what the sink waits "
                "for; end this program and start it again if that does not help"
            )


_CLEAN_UPS: Final = _CleanUps()


class CommitService:
    """Brings the output of one job out, exactly once or at least once.

    The output of one checkpoint at a time: whoever completes checkpoints does so one after the
    other, so that the metadata of one never lists what another is just publishing. A sink that
    does not answer is given up after a while, and its output stays owed. Its call may come back
    much later: what it commits then is what the recovery commits as well, under the same
    checkpoint id, and nothing follows upon it.
    """

    def __init__(
        self,
        publisher: Publisher,
        files: JobCheckpointFiles,
        *,
        exactly_once: bool,
        inline_below: int = 0,
        patience: Patience | None = None,
        most_inline: int = MOST_INLINE,
        published_known: int = PUBLISHED_KNOWN,
    ) -> None:
        """Output of the sinks that `publisher` knows.

        Args:
            publisher: Carries it out.
            files: Where rows wait, with exactly once.
            exactly_once: Whether output waits for checkpoints.
            inline_below: Size below which rows travel within the metadata.
            patience: How long sinks are waited for.
            most_inline: Bytes of all rows that travel within the metadata.
            published_known: How many published checkpoints are remembered.
        """
        self._publisher = publisher
        self._most_inline = most_inline
        self._files = files
        self._inline_below = inline_below
        self.exactly_once = exactly_once
        self._patience = patience or Patience()
        self._closed = False
        self._published: deque[int] = deque(maxlen=published_known)
        self._lineage = uuid.uuid4().hex
        self._tidied: str | None = None
        self._job: JobIdentity | None = None
        self._failed = False
        """Whether the last publication has not come to its end."""
        self._notes = OpenedNotes(files, publisher.quiet)
        self.pending_committables = PendingCommittables(self._lineage, self._notes)
        self._inline: dict[int, int] = {}
        """Bytes of rows that wait within their handles, by epoch."""

    @property
    def owes(self) -> bool:
        """Whether a complete checkpoint has output that is not published."""
        return self._failed or self.pending_committables.is_owed

    @property
    def longest(self) -> float:
        """Seconds after which a publication has ended, well or not."""
        return self._patience.answer * (1 + self._publisher.sinks)

    @property
    def delivery(self) -> Delivery:
        """What the tasks of every epoch are told."""
        return Delivery(self.exactly_once and self._publisher.has_sinks, self.staging())

    def staging(self) -> FileStaging:
        """Where the next epoch keeps rows; in its metadata, as long as there is room for all."""
        room = max(self._most_inline - sum(list(self._inline.values())), 0)
        share = room // max(self._publisher.most_staged, 1)
        return FileStaging(self._files, min(self._inline_below, share))

    def begin(self, job: JobIdentity) -> None:
        """Another job attempt begins; what the one before has staged is its own.

        Raises:
            SinkError: A sink still cleans up after another one.
        """
        _CLEAN_UPS.check(job.job_id)
        self._job = job
        self.pending_committables = PendingCommittables(self._lineage, self._notes)
        self._inline = {}

    def inherit(self, completed: Iterable[CheckpointMetadata]) -> None:
        """Drivers before have completed these checkpoints, and may have published them."""
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
        self._commit(listed, job.job_id, self._lineage, None, recovered=False)
        if self._tidied != job.job_attempt:
            self._tidied = job.job_attempt
            self._clean_up(job.job_id, job.job_attempt)

    def publish(
        self,
        metadata: CheckpointMetadata,
        pending_committables: PendingCommittables,
        storage: JobStorage,
    ) -> None:
        """Publish the output of a checkpoint that has just been completed.

        Raises:
            FencedError: Another driver has taken over. It publishes, for it has seen the
                checkpoint: that was written before the fence was looked at.
            SinkError: Something could not be published.
        """
        self._failed = bool(metadata.committables)
        storage.check_fence()
        if self._closed:
            raise CheckpointError(
                f"checkpoint {metadata.checkpoint_id} was completed when the job had ended; its "
                "output is published by the next start under the same job id"
            )
        self._settle_notes(metadata)
        self._publish(metadata, self._files, recovered=False)
        pending_committables.published(metadata.epoch)
        for epoch in [epoch for epoch in list(self._inline) if epoch <= metadata.epoch]:
            del self._inline[epoch]
        self._tidy(metadata, storage)

    def recover(self, metadata: CheckpointMetadata, files: JobCheckpointFiles) -> None:
        """Publish what a checkpoint lists that the job goes back to; before its first epoch."""
        mine = files is self._files
        if mine:
            # A job that goes on from another one's checkpoint begins a row of its own: the
            # other may still be running, and publish under the same ids.
            self._lineage = metadata.lineage
            self._settle_notes(metadata)
        if not (mine and metadata.checkpoint_id in self._published):
            if metadata.committables:
                fault_point("before-recovered-publish", checkpoint=metadata.checkpoint_id)
            self._publish(metadata, files, recovered=True)

    def _settle_notes(self, metadata: CheckpointMetadata) -> None:
        """What a complete checkpoint lists must never be taken for something left open."""
        self._notes.listed([metadata])
        self._notes.drop_listed()

    def _publish(
        self, metadata: CheckpointMetadata, files: JobCheckpointFiles, *, recovered: bool
    ) -> None:
        self._failed = bool(metadata.committables)
        self._commit(
            metadata.committables,
            metadata.job_id,
            metadata.lineage,
            FileStaging(files),
            recovered=recovered,
        )
        self._failed = False
        self._published.append(metadata.checkpoint_id)

    def _commit(
        self,
        listed: Sequence[Committable],
        job_id: str,
        lineage: str,
        staging: Staging | None,
        *,
        recovered: bool,
    ) -> None:
        """Publish what is listed, sink by sink: one that fails or hangs does not stop others.

        Functions and Spark sinks on the driver come last. They may not notice that they get the
        same rows again, which happens if the job dies before all of it is published.

        Raises:
            SinkError: A sink has failed, or has not answered.
        """
        failures: list[Exception] = []
        uids = dict.fromkeys(one.uid for one in listed)
        for uid in sorted(uids, key=self._publisher.is_on_driver):
            mine = [one for one in listed if one.uid == uid]

            def publish(wanted: Callable[[], bool], mine: Sequence[Committable] = mine) -> None:
                self._publisher.publish(
                    mine, job_id, lineage, staging, recovered=recovered, wanted=wanted
                )

            try:
                self._patience.call(self._publisher.describe(uid), publish)
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
                "The output stays owed: it is published when the job has recovered, or is started "
                "again under the same job id"
            )
        text = f"{self._publisher.describe(uid)} has not published the output of {what}: {error}. "
        if self._patience.is_lost:
            text += "The job was told to end, and waits for it no longer. "
        text += (
            f"{follows}. Find out what the sink waits for; give its connections timeouts; if it "
            f"needs more time, set {COMMITTER_TIMEOUT.key} higher"
        )
        logger.error("%s", text)
        return SinkError(text)

    def _tidy(self, metadata: CheckpointMetadata, storage: JobStorage) -> None:
        """Remove what can never be published, now that no older checkpoint counts.

        Not before: a checkpoint that was given up may still be found complete by another
        driver, and what it lists must be there then.
        """
        job = self._job
        if job is None or metadata.job_attempt != job.job_attempt:
            return
        first = self._tidied != job.job_attempt
        try:
            if first or self._publisher.notes_opened:
                self._abort_opened(job.job_attempt, metadata.epoch, storage.check_fence)
            if first:
                # Another driver may have taken over while this one published.
                storage.check_fence()
                self._tidied = job.job_attempt
                self._clean_up(job.job_id, job.job_attempt)
                storage.sweep_staged(job.job_attempt)
        except Exception as error:
            logger.warning("output that was given up was not removed: %s", error)

    def abort_left_open(self, check_fence: Callable[[], None]) -> None:
        """Let sinks abort all that no checkpoint lists: the job has ended for good."""
        try:
            self._abort_opened("", 0, check_fence)
        except Exception as error:
            logger.warning("what writers have left open was not aborted: %s", error)

    def _abort_opened(self, job_attempt: str, epoch: int, check_fence: Callable[[], None]) -> None:
        try:
            orphans = self._notes.orphans(job_attempt, epoch)
        except CorruptCheckpointError as error:
            logger.warning(
                "nothing that writers have left open is aborted, for this checkpoint may list it: "
                "%s",
                error,
            )
            return
        if orphans:
            # Looked at only now: what another driver has opened is noted after its fence.
            check_fence()
            self._patience.call(
                "sinks, to abort what is open",
                lambda _: self._publisher.abort_opened(self._notes, orphans),
            )

    def _clean_up(self, job_id: str, job_attempt: str | None) -> None:
        """Let sinks remove what can never be published; what hangs is left behind."""

        def clean_up(wanted: Callable[[], bool]) -> None:
            with _CLEAN_UPS.running(job_id):
                self._publisher.clean_up(job_id, job_attempt, wanted=wanted)

        try:
            self._patience.call("sinks, to clean up", clean_up)
        except NoAnswerError as error:
            logger.error("sinks left something behind, since one of them hangs: %s", error)

    def abandon(self) -> None:
        """Somebody hangs who completes a checkpoint: whether that is published is not known."""
        self._failed = True

    def close(self, *, ended: bool) -> None:
        """Remove what is staged, if the job has ended and owes nothing."""
        self._closed = True
        if ended and self._job is not None and not self.owes:
            self._clean_up(self._job.job_id, None)


def _inline_bytes(reports: Iterable[TaskReport]) -> int:
    staged = (one.rows for report in reports for one in report.prepared)
    return sum(rows.size for rows in staged if rows and isinstance(rows.handle, InlineHandle))
