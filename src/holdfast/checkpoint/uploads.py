"""Bringing the local snapshots of checkpoints to storage, where they are."""

from __future__ import annotations

import threading
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from holdfast.checkpoint.subtask_upload import Upload, upload_one

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from holdfast.checkpoint.pending import CheckpointDraft
    from holdfast.checkpoint.subtask_upload import Uploaded
    from holdfast.checkpoint.worker_calls import WorkerCalls
    from holdfast.job.model import JobPlan
    from holdfast.runtime.report import TaskReport
    from holdfast.storage.files import JobCheckpointFiles


class Uploads:
    """Uploads of one job; those of a checkpoint can be cancelled, from any thread."""

    def __init__(self, plan: JobPlan, calls: WorkerCalls, files: JobCheckpointFiles) -> None:
        """Upload to `files`."""
        stages = (stage.index for stage in plan.stages)
        self._tasks = dict(zip(stages, plan.stage_parallelism, strict=True))
        self._calls = calls
        self._files = files
        self._cancelled: dict[int, threading.Event] = {}
        """Of checkpoints that are begun, and neither uploaded nor cancelled."""

    def learn(self, reports: Iterable[TaskReport]) -> None:
        """Note where the tasks of an epoch have run."""
        for report in reports:
            # Tasks at the sources run anywhere.
            if report.epoch is not None:
                self._calls.record_location(
                    self._tasks[report.stage], report.subtask, report.executor
                )

    def begin(self, checkpoint_id: int) -> None:
        """A checkpoint has begun, and can be cancelled from here on."""
        self._cancelled[checkpoint_id] = threading.Event()

    def cancel(self, checkpoint_id: int) -> None:
        """Let the uploads of a checkpoint end soon, if there are any."""
        cancelled = self._cancelled.pop(checkpoint_id, None)
        if cancelled is not None:
            cancelled.set()
        self._calls.cancel(_group(checkpoint_id))

    def run(
        self, checkpoint_id: int, draft: CheckpointDraft, uploads: list[Upload]
    ) -> Iterator[tuple[tuple[int, int], list[Uploaded]]]:
        """Upload; stage and subtask of every task whose part is complete, with its stores."""
        cancelled = self._cancelled.get(checkpoint_id)
        if cancelled is None:
            # It was given up already.
            cancelled = threading.Event()
            cancelled.set()
        try:
            upload = partial(upload_one, files=self._files)
            if self._calls.local:
                # Elsewhere the tasks are cancelled, by the name of their group.
                upload = partial(upload, cancelled=cancelled.is_set)
            for task in draft.tasks_without_state():
                yield task, []
            for kept in draft.kept():
                stores = draft.arrived(kept)
                if stores is not None:
                    yield (kept.upload.stage, kept.upload.subtask), stores
            if not self._calls.local:
                # Spark may run their task again, from its beginning: the next epoch removes them.
                uploads = [replace(one, keep=True) for one in uploads]
            items = [(one.subtask, self._tasks[one.stage], one) for one in uploads]
            for done in self._calls.map(upload, items, _group(checkpoint_id)):
                stores = draft.arrived(done)
                if stores is not None:
                    yield (done.upload.stage, done.upload.subtask), stores
        finally:
            self._cancelled.pop(checkpoint_id, None)


def _group(checkpoint_id: int) -> str:
    return f"holdfast-upload-{checkpoint_id}"
