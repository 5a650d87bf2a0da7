"""When a job's output is published: with its checkpoint, or at the end of its epoch."""

from __future__ import annotations

import logging
import threading
import uuid
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from holdfast import faults
from holdfast.checkpoint.handles import InlineHandle
from holdfast.checkpoint.staging import FileStaging
from holdfast.checkpoint.storage import MOST_INLINE
from holdfast.spark.epochs import Delivery
from holdfast.spark.outbox import Outbox, committables

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from holdfast.checkpoint.job_storage import JobStorage
    from holdfast.checkpoint.metadata import CheckpointMetadata
    from holdfast.checkpoint.storage import JobCheckpointFiles
    from holdfast.runtime.report import TaskReport
    from holdfast.spark.epochs import EpochResult, JobIdentity
    from holdfast.spark.publisher import Publisher

logger = logging.getLogger("holdfast")

PUBLISHED_KNOWN: Final = 100
"""Checkpoints, the newest, that are not published again by the driver that has done so.

Any other is, which changes nothing: publishing can be repeated.
"""


class Publication:
    """Brings the output of one job out, exactly once or at least once."""

    def __init__(
        self,
        publisher: Publisher,
        files: JobCheckpointFiles,
        *,
        exactly_once: bool,
        inline_below: int = 0,
    ) -> None:
        """Output of the sinks that `publisher` knows.

        Args:
            publisher: Carries it out.
            files: Where rows wait, with exactly once.
            exactly_once: Whether output waits for checkpoints.
            inline_below: Size below which rows travel within the metadata.
        """
        self._publisher = publisher
        self._files = files
        self._inline_below = inline_below
        self.exactly_once = exactly_once
        self.lock = threading.RLock()
        """Held from before metadata is written until its output is published.

        So the metadata of a checkpoint never lists what another one is just publishing.
        """
        self.thread: int | None = None
        """The thread that completes a checkpoint now."""
        self._published: deque[int] = deque(maxlen=PUBLISHED_KNOWN)
        self._lineage = uuid.uuid4().hex
        self._tidied: str | None = None
        self._job: JobIdentity | None = None
        self._failed = False
        """Whether the last publication has not come to its end."""
        self.outbox = Outbox(self._lineage)
        self._inline: dict[int, int] = {}
        """Bytes of rows that wait within their handles, by epoch."""

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock, and let others know which thread does."""
        with self.lock:
            before, self.thread = self.thread, threading.get_ident()
            try:
                yield
            finally:
                self.thread = before

    @property
    def owes(self) -> bool:
        """Whether a complete checkpoint has output that is not published."""
        return self._failed or self.outbox.is_owed

    @property
    def delivery(self) -> Delivery:
        """What the tasks of every epoch are told."""
        return Delivery(self.exactly_once and self._publisher.has_sinks, self.staging())

    def staging(self) -> FileStaging:
        """Where the next epoch keeps rows; in its metadata, as long as there is room for all."""
        room = max(MOST_INLINE - sum(list(self._inline.values())), 0)
        share = room // max(self._publisher.most_staged, 1)
        return FileStaging(self._files, min(self._inline_below, share))

    def begin(self, job: JobIdentity) -> None:
        """Another incarnation begins; what the one before has staged is its own."""
        self._job = job
        self.outbox = Outbox(self._lineage)
        self._inline = {}

    def taken(self, result: EpochResult) -> None:
        """An epoch has ended well: its output waits, or goes out at once."""
        epoch = result.statistics.epoch
        if self.exactly_once:
            self._inline[epoch] = _inline_bytes(result.reports)
            self.outbox.add(epoch, result.reports)
        else:
            self._release(epoch, result.reports)

    def _release(self, epoch: int, reports: Iterable[TaskReport]) -> None:
        job, listed = self._job, committables(epoch, reports)
        assert job is not None
        if listed:
            self._publisher.publish(listed, job.job_id, self._lineage, None)
        if self._tidied != job.incarnation:
            self._tidied = job.incarnation
            self._publisher.clean_up(job.job_id, job.incarnation)

    def publish(self, metadata: CheckpointMetadata, outbox: Outbox, storage: JobStorage) -> None:
        """Publish the output of a checkpoint that has just been completed.

        Raises:
            FencedError: Another driver has taken over. It publishes, for it has seen the
                checkpoint: that was written before the fence was looked at.
            SinkError: Something could not be published.
        """
        with self.lock:
            storage.check_fence()
            self._publish(metadata, self._files, recovered=False)
            outbox.published(metadata.epoch)
            for epoch in [epoch for epoch in list(self._inline) if epoch <= metadata.epoch]:
                del self._inline[epoch]
            self._tidy(metadata, storage)

    def recover(self, metadata: CheckpointMetadata, files: JobCheckpointFiles) -> None:
        """Publish what a checkpoint lists that the job goes back to; before its first epoch."""
        with self.lock:
            mine = files is self._files
            if mine:
                # A job that goes on from another one's checkpoint begins a row of its own: the
                # other may still be running, and publish under the same ids.
                self._lineage = metadata.lineage
            if not (mine and metadata.checkpoint_id in self._published):
                if metadata.committables:
                    faults.reach("before-recovered-publish", checkpoint=metadata.checkpoint_id)
                self._publish(metadata, files, recovered=True)
            if mine:
                # Its driver may have died before it did so, and what is published must not be
                # taken for something that was left open.
                self._publisher.forget_opened(files, metadata)

    def _publish(
        self, metadata: CheckpointMetadata, files: JobCheckpointFiles, *, recovered: bool
    ) -> None:
        self._failed = bool(metadata.committables)
        self._publisher.publish(
            metadata.committables,
            metadata.job_id,
            metadata.lineage,
            FileStaging(files),
            recovered=recovered,
        )
        self._failed = False
        self._published.append(metadata.checkpoint_id)

    def _tidy(self, metadata: CheckpointMetadata, storage: JobStorage) -> None:
        """Remove what can never be published, now that no older checkpoint counts.

        Not before: a checkpoint that was given up may still be found complete by another
        driver, and what it lists must be there then.
        """
        job = self._job
        if job is None or metadata.incarnation != job.incarnation:
            return
        first = self._tidied != job.incarnation
        try:
            self._publisher.forget_opened(self._files, metadata)
            if first or self._publisher.notes_opened:
                self._publisher.abort_opened(self._files, job.incarnation, metadata.epoch)
            if first:
                self._tidied = job.incarnation
                self._publisher.clean_up(job.job_id, job.incarnation)
                storage.sweep_staged(job.incarnation)
        except Exception as error:
            logger.warning("output that was given up was not removed: %s", error)

    def close(self, *, ended: bool) -> None:
        """Remove what is staged, if the job has ended and owes nothing."""
        if ended and self._job is not None and not self.owes:
            self._publisher.clean_up(self._job.job_id, None)


def _inline_bytes(reports: Iterable[TaskReport]) -> int:
    staged = (one.rows for report in reports for one in report.prepared)
    return sum(rows.size for rows in staged if rows and isinstance(rows.handle, InlineHandle))
