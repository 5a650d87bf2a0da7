"""Staged output that waits for its checkpoint."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.api.sinks import StagedRows
from holdfast.checkpoint.files.metadata import Committable, StagedHandle

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.checkpoint.commit.opened_notes import OpenedNotes
    from holdfast.runtime.report import Prepared, TaskReport


@dataclass
class _Waiting:
    epoch: int
    subtask: int
    attempt: int
    prepared: Prepared
    checkpoint_id: int | None = None
    """The checkpoint that publishes it, once its metadata lists it."""


class PendingCommittables:
    """Staged output of one job attempt, until it is published; thread-safe.

    A committable is published under the id of the first checkpoint that completes with it. If
    publishing fails, later checkpoints list it again under the same id: sinks recognize by the id
    what they have published.
    """

    def __init__(self, lineage: str = "", notes: OpenedNotes | None = None) -> None:
        """Create it without committables.

        Args:
            lineage: The series of checkpoints that the job attempt continues.
            notes: The notes of open transactions.
        """
        self.lineage = lineage
        self._notes = notes
        self._lock = threading.Lock()
        self._waiting: list[_Waiting] = []

    def add(self, epoch: int, reports: Iterable[TaskReport]) -> None:
        """Add the output that an epoch has staged."""
        staged = [
            _Waiting(epoch, report.subtask, report.attempt_id, prepared)
            for report in sorted(reports, key=lambda report: (report.stage, report.subtask))
            for prepared in report.prepared
        ]
        with self._lock:
            self._waiting.extend(staged)

    def listed(self, epoch: int, checkpoint_id: int) -> list[Committable]:
        """The committables that a checkpoint of `epoch` lists; assigns its id to new ones."""
        with self._lock:
            due = [waiting for waiting in self._waiting if waiting.epoch <= epoch]
            for waiting in due:
                waiting.checkpoint_id = waiting.checkpoint_id or checkpoint_id
            return list(map(_committable, due))

    def unlist(self, checkpoint_id: int) -> None:
        """Let the next checkpoint publish what this one, which has failed, has listed."""
        with self._lock:
            for waiting in self._waiting:
                if waiting.checkpoint_id == checkpoint_id:
                    waiting.checkpoint_id = None

    def published(self, epoch: int) -> None:
        """Drop everything up to `epoch`, which is published."""
        with self._lock:
            self._waiting = [waiting for waiting in self._waiting if waiting.epoch > epoch]

    @property
    def stale_notes(self) -> list[str]:
        """Names of notes that could not be deleted, for the metadata."""
        return [] if self._notes is None else self._notes.stale

    @property
    def is_owed(self) -> bool:
        """Whether a complete checkpoint has output that is not published."""
        with self._lock:
            return any(waiting.checkpoint_id is not None for waiting in self._waiting)


def _committable(waiting: _Waiting) -> Committable:
    prepared = waiting.prepared
    assert waiting.checkpoint_id is not None
    return Committable(
        uid=prepared.uid,
        checkpoint_id=waiting.checkpoint_id,
        epoch=waiting.epoch,
        subtask=waiting.subtask,
        attempt=waiting.attempt,
        data=prepared.data,
        rows=None if prepared.rows is None else staged_handle(prepared.rows),
    )


def committables(epoch: int, reports: Iterable[TaskReport]) -> list[Committable]:
    """The committables of one epoch, to be published at once."""
    pending_committables = PendingCommittables()
    pending_committables.add(epoch, reports)
    return pending_committables.listed(epoch, 0)


def staged_handle(rows: StagedRows) -> StagedHandle:
    """The handle of staged rows, for metadata."""
    return StagedHandle(handle=rows.handle, rows=rows.rows)


def staged_rows(staged: StagedHandle) -> StagedRows:
    """The staged rows of a handle in metadata."""
    return StagedRows(staged.handle, staged.rows, staged.handle.size)
