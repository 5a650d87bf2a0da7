"""Savepoints of a job that takes no checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.clock import Moment
from holdfast.spark.checkpointer import Checkpointer
from holdfast.spark.completion import Completion

if TYPE_CHECKING:
    from holdfast.checkpoint.metadata import CheckpointMetadata
    from holdfast.spark.checkpoint_draft import CheckpointDraft


class SavepointCompletion(Completion):
    """Completes savepoints; of the checkpoint itself, nothing is kept."""

    def _write_metadata(
        self, checkpoint_id: int, draft: CheckpointDraft, now: int
    ) -> CheckpointMetadata:
        metadata = draft.metadata([], self._storage.fence_number, now)
        return self._savepoints.store(checkpoint_id, draft, metadata, draft.position)

    def _completed(self, checkpoint_id: int) -> None:
        self._standing.forget(checkpoint_id)
        self._standing.local_snapshots.completed(checkpoint_id, {})
        path = self._storage.path_of(checkpoint_id)
        self._statistics.completed(checkpoint_id, Moment.of(self._clock), path)
        self._savepoints.complete(checkpoint_id)


class SavepointTaker(Checkpointer):
    """Takes savepoints as a `Checkpointer` does."""

    completion = SavepointCompletion
