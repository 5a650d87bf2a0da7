"""Output that is staged and waits for its checkpoint."""

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
    """The checkpoint it is published with, once that is complete or about to be."""


class PendingCommittables:
    """What the epochs of one job attempt have staged, until it is published.

    A committable is published under the id of the first checkpoint that is completed with
    it. If that fails half-way, the checkpoints after it list it again, under the same id:
    sinks tell by the id what they have seen.

    Epochs add to it in their thread while checkpoints list and publish in others.
    """

    def __init__(self, lineage: str = "", notes: OpenedNotes | None = None) -> None:
        """Nothing waits.

        Args:
            lineage: The row of checkpoints that the job attempt goes on with.
            notes: Knows which notes are left of what was listed before.
        """
        self.lineage = lineage
        self._notes = notes
        self._lock = threading.Lock()
        self._waiting: list[_Waiting] = []

    def add(self, epoch: int, reports: Iterable[TaskReport]) -> None:
        """Take what an epoch has staged."""
        staged = [
            _Waiting(epoch, report.subtask, report.attempt_id, prepared)
            for report in sorted(reports, key=lambda report: (report.stage, report.subtask))
            for prepared in report.prepared
        ]
        with self._lock:
            self._waiting.extend(staged)

    def listed(self, epoch: int, checkpoint_id: int) -> list[Committable]:
        """All that a checkpoint of `epoch` has to list; labels what has no label yet."""
        with self._lock:
            due = [waiting for waiting in self._waiting if waiting.epoch <= epoch]
            for waiting in due:
                waiting.checkpoint_id = waiting.checkpoint_id or checkpoint_id
            return list(map(_committable, due))

    def unlist(self, checkpoint_id: int) -> None:
        """The checkpoint has failed: what it would have published, the next one will."""
        with self._lock:
            for waiting in self._waiting:
                if waiting.checkpoint_id == checkpoint_id:
                    waiting.checkpoint_id = None

    def published(self, epoch: int) -> None:
        """All up to `epoch` is out."""
        with self._lock:
            self._waiting = [waiting for waiting in self._waiting if waiting.epoch > epoch]

    @property
    def stale_notes(self) -> list[str]:
        """What a checkpoint has to say of notes that are left of what was listed before."""
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
    """What an epoch has staged, to be published at once."""
    pending_committables = PendingCommittables()
    pending_committables.add(epoch, reports)
    return pending_committables.listed(epoch, 0)


def staged_handle(rows: StagedRows) -> StagedHandle:
    """Staged rows, as metadata names them."""
    return StagedHandle(handle=rows.handle, rows=rows.rows)


def staged_rows(staged: StagedHandle) -> StagedRows:
    """Staged rows that metadata names."""
    return StagedRows(staged.handle, staged.rows, staged.handle.size)
