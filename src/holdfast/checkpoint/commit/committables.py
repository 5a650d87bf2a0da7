"""Staged output that waits for its checkpoint."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from holdfast.api.sinks import StagedRows
from holdfast.checkpoint.files.metadata import Committable, StagedHandle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from holdfast.checkpoint.commit.opened_notes import OpenedNotes
    from holdfast.runtime.report import TaskReport


_NOT_LISTED: Final = 0
"""Checkpoint id of a committable that no metadata lists yet."""


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
        self._waiting: list[Committable] = []

    def add(self, epoch: int, reports: Iterable[TaskReport]) -> None:
        """Add the output that an epoch has staged."""
        staged = committables(epoch, reports)
        with self._lock:
            self._waiting.extend(staged)

    def listed(self, epoch: int, checkpoint_id: int) -> list[Committable]:
        """The committables that a checkpoint of `epoch` lists; assigns its id to new ones."""
        with self._lock:
            self._reassign(
                lambda one: one.epoch <= epoch and one.checkpoint_id == _NOT_LISTED, checkpoint_id
            )
            return [one for one in self._waiting if one.epoch <= epoch]

    def unlist(self, checkpoint_id: int) -> None:
        """Let the next checkpoint publish what this one, which has failed, has listed."""
        with self._lock:
            self._reassign(lambda one: one.checkpoint_id == checkpoint_id, _NOT_LISTED)

    def published(self, epoch: int) -> None:
        """Drop everything up to `epoch`, which is published."""
        with self._lock:
            self._waiting = [one for one in self._waiting if one.epoch > epoch]

    @property
    def stale_notes(self) -> list[str]:
        """Names of notes that could not be deleted, for the metadata."""
        return [] if self._notes is None else self._notes.stale

    @property
    def is_owed(self) -> bool:
        """Whether a complete checkpoint has output that is not published."""
        with self._lock:
            return any(one.checkpoint_id != _NOT_LISTED for one in self._waiting)

    def _reassign(self, which: Callable[[Committable], bool], checkpoint_id: int) -> None:
        self._waiting = [
            replace(one, checkpoint_id=checkpoint_id) if which(one) else one
            for one in self._waiting
        ]


def committables(epoch: int, reports: Iterable[TaskReport]) -> list[Committable]:
    """The output that an epoch has staged; no checkpoint lists it yet."""
    return [
        Committable(
            uid=prepared.uid,
            checkpoint_id=_NOT_LISTED,
            epoch=epoch,
            subtask=report.subtask,
            attempt=report.attempt_id,
            data=prepared.data,
            rows=None if prepared.rows is None else staged_handle(prepared.rows),
        )
        for report in sorted(reports, key=lambda report: (report.stage, report.subtask))
        for prepared in report.prepared
    ]


def staged_handle(rows: StagedRows) -> StagedHandle:
    """The handle of staged rows, for metadata."""
    return StagedHandle(handle=rows.handle, rows=rows.rows)


def staged_rows(staged: StagedHandle) -> StagedRows:
    """The staged rows of a handle in metadata."""
    return StagedRows(staged.handle, staged.rows, staged.handle.size)
