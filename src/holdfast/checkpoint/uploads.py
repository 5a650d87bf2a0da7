"""Uploads the local snapshots of checkpoints from where they are."""

from __future__ import annotations

import threading
import uuid
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from holdfast.checkpoint.subtask_upload import upload_one

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from holdfast.checkpoint.pending import PendingCheckpoint
    from holdfast.checkpoint.subtask_upload import Uploaded
    from holdfast.checkpoint.worker_calls import WorkerCalls
    from holdfast.job.model import JobPlan
    from holdfast.runtime.report import TaskReport
    from holdfast.storage.files import JobCheckpointFiles


class Uploads:
    """Uploads the checkpoints of one job; any thread can cancel an upload."""

    def __init__(self, plan: JobPlan, calls: WorkerCalls, files: JobCheckpointFiles) -> None:
        """Create uploads to `files`."""
        self.replan(plan)
        self._calls = calls
        self._files = files
        # Of this job alone: others of the same session count checkpoints too.
        self._groups = f"holdfast-upload-{uuid.uuid4().hex[:8]}"
        self._cancelled: dict[int, threading.Event] = {}
        """One event for each checkpoint that is neither uploaded nor cancelled."""

    def replan(self, plan: JobPlan) -> None:
        """Upload the snapshots of another plan of the same job from now on."""
        stages = (stage.index for stage in plan.stages)
        self._tasks = dict(zip(stages, plan.stage_parallelism, strict=True))

    def record_locations(self, reports: Iterable[TaskReport]) -> None:
        """Record the executors on which the tasks of an epoch ran."""
        for report in reports:
            # Tasks at the sources run anywhere.
            if report.epoch is not None:
                self._calls.record_location(
                    self._tasks[report.stage], report.subtask, report.executor
                )

    def begin(self, checkpoint_id: int) -> None:
        """Allow a new checkpoint to be cancelled."""
        self._cancelled[checkpoint_id] = threading.Event()

    def cancel(self, checkpoint_id: int) -> None:
        """Cancel the uploads of a checkpoint, if there are any."""
        cancelled = self._cancelled.pop(checkpoint_id, None)
        if cancelled is not None:
            cancelled.set()
        self._calls.cancel(self._group(checkpoint_id))

    def run(self, pending: PendingCheckpoint) -> Iterator[tuple[tuple[int, int], list[Uploaded]]]:
        """Upload a checkpoint; yields every task whose part is complete, with its stores."""
        cancelled = self._cancelled.get(pending.id)
        if cancelled is None:
            # It was aborted already.
            cancelled = threading.Event()
            cancelled.set()
        try:
            upload = partial(upload_one, files=self._files)
            if self._calls.local:
                # On a cluster, `cancel` stops the tasks by the name of their group.
                upload = partial(upload, cancelled=cancelled.is_set)
            for task in pending.tasks_without_state():
                yield task, []
            for kept in pending.kept():
                stores = pending.arrived(kept)
                if stores is not None:
                    yield (kept.upload.stage, kept.upload.subtask), stores
            uploads = list(pending.uploads())
            if not self._calls.local:
                # Spark may repeat the whole task, so the snapshots stay until the next epoch.
                uploads = [replace(one, keep=True) for one in uploads]
            items = [(one.subtask, self._tasks[one.stage], one) for one in uploads]
            for done in self._calls.map(upload, items, self._group(pending.id)):
                stores = pending.arrived(done)
                if stores is not None:
                    yield (done.upload.stage, done.upload.subtask), stores
        finally:
            self._cancelled.pop(pending.id, None)

    def _group(self, checkpoint_id: int) -> str:
        return f"{self._groups}-{checkpoint_id}"
