"""Local state on the executors: which snapshots stay, and removing the rest."""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING

from holdfast.state.store.directories import KeptSnapshots, tidy_job

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from holdfast.checkpoint.worker_calls import WorkerCalls
    from holdfast.job.model import JobIdentity, JobPlan


def tidy_local_state(
    plan: JobPlan, job: JobIdentity, calls: WorkerCalls, local_copies: Iterable[str] = ()
) -> None:
    """Remove what earlier job attempts of a job have left on the executors.

    Args:
        plan: The compiled job.
        job: Names the job attempt that begins.
        calls: Reaches the executors.
        local_copies: Local snapshots that stay.
    """
    tidy = partial(
        tidy_job,
        job.local_dir,
        run=job.run,
        job_attempt=job.job_attempt,
        snapshots=list(local_copies),
        replaced=job.replaced,
    )
    tasks = max(plan.stage_parallelism, default=0)
    items = [(subtask, tasks, job.job_id) for subtask in range(tasks)]
    list(calls.map(tidy, items, f"holdfast-tidy-{job.job_attempt}"))


class LocalSnapshots:
    """Knows, for the tasks that remove the others, whose local snapshots stay.

    Tasks leave a snapshot behind in every epoch that carries a checkpoint. An upload in a
    thread of the driver takes its own away. All others, those of uploads that Spark may try
    again, of checkpoints that failed, and backups that are no longer the newest, go with the
    next epoch: every executor that has some takes part in it. A store that has not changed
    has none in the newest checkpoint; its backup is that of an older one. Serves any thread.

    Args:
        keep: Whether those of the newest complete checkpoint stay as a backup.
    """

    def __init__(self, *, keep: bool) -> None:
        self._keep = keep
        self._lock = threading.Lock()
        self._under_way: set[int] = set()
        self._copies: dict[tuple[str, int], tuple[int, str]] = {}
        """Checkpoint and directory, by uid and subtask."""
        self._some_go = False

    @property
    def copies(self) -> dict[tuple[str, int], str]:
        """Those of the newest complete checkpoint, by uid and subtask; none if none are kept."""
        with self._lock:
            return {where: directory for where, (_, directory) in self._copies.items()}

    def begun(self, checkpoint_id: int) -> None:
        """A checkpoint is under way; its snapshots are wanted until it has ended."""
        with self._lock:
            self._under_way.add(checkpoint_id)

    def completed(
        self,
        checkpoint_id: int,
        copies: Mapping[tuple[str, int], str],
        unchanged: Collection[tuple[str, int]] = (),
    ) -> None:
        """A checkpoint is complete.

        Args:
            checkpoint_id: The checkpoint.
            copies: Its local snapshots, by uid and subtask; none if it cannot be restored from.
            unchanged: Stores that are as the checkpoint before holds them.
        """
        with self._lock:
            self._end(checkpoint_id)
            if self._keep and (copies or unchanged):
                kept = {where: self._copies[where] for where in unchanged if where in self._copies}
                new = {where: (checkpoint_id, directory) for where, directory in copies.items()}
                self._copies = kept | new

    def aborted(self, checkpoint_id: int) -> None:
        """A checkpoint has failed."""
        with self._lock:
            self._end(checkpoint_id)

    def order(self, next_checkpoint: int) -> KeptSnapshots | None:
        """Those that stay, for the next epoch; None if none have to go.

        If that epoch fails, another job attempt begins, which clears all that there is.

        Args:
            next_checkpoint: The lowest id that no checkpoint before the epoch has.
        """
        with self._lock:
            if not self._some_go:
                return None
            self._some_go = False
            complete = {checkpoint for checkpoint, _ in self._copies.values()}
            under_way = tuple(sorted(self._under_way))
            return KeptSnapshots(next_checkpoint, under_way, tuple(sorted(complete)))

    def _end(self, checkpoint_id: int) -> None:
        self._under_way.discard(checkpoint_id)
        self._some_go = True
