"""Local state on the executors: decides which snapshots stay, and deletes the rest."""

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
    """Delete what earlier job attempts have left on the executors.

    Args:
        plan: The compiled job.
        job: The job attempt that begins.
        calls: Reaches the executors.
        local_copies: Local snapshots to keep.
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
    """Decides which local snapshots stay; thread-safe.

    Tasks leave a local snapshot in every epoch that carries a checkpoint. An upload in a thread of
    the driver deletes its own. All others are deleted in the next epoch, in which every executor
    takes part: snapshots of uploads that Spark may repeat, of failed checkpoints, and old
    backups. A store that has not changed has no snapshot in the newest checkpoint; its backup is
    that of an older one.

    Args:
        keep: Whether the snapshots of the newest complete checkpoint stay as a backup.
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
        """Backups of the newest complete checkpoint, by uid and subtask; empty without backups."""
        with self._lock:
            return {where: directory for where, (_, directory) in self._copies.items()}

    def begun(self, checkpoint_id: int) -> None:
        """Keep the snapshots of a checkpoint until it has ended."""
        with self._lock:
            self._under_way.add(checkpoint_id)

    def completed(
        self,
        checkpoint_id: int,
        copies: Mapping[tuple[str, int], str],
        unchanged: Collection[tuple[str, int]] = (),
    ) -> None:
        """Make the snapshots of a completed checkpoint the backup.

        Args:
            checkpoint_id: The checkpoint.
            copies: Its local snapshots, by uid and subtask; empty if it cannot be restored.
            unchanged: Stores that have not changed since the checkpoint before.
        """
        with self._lock:
            self._end(checkpoint_id)
            if self._keep and (copies or unchanged):
                kept = {where: self._copies[where] for where in unchanged if where in self._copies}
                new = {where: (checkpoint_id, directory) for where, directory in copies.items()}
                self._copies = kept | new

    def aborted(self, checkpoint_id: int) -> None:
        """Let the snapshots of an aborted checkpoint go."""
        with self._lock:
            self._end(checkpoint_id)

    def forget(self) -> None:
        """Forget the backups: they are deleted, since other subtasks hold the state now."""
        with self._lock:
            self._copies = {}

    def order(self, next_checkpoint: int) -> KeptSnapshots | None:
        """The snapshots that the next epoch keeps; None if it has none to delete.

        If that epoch fails, the next job attempt deletes all of them.

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
