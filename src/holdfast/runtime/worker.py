"""Tasks that a worker process keeps between epochs, with open functions and cached values.

Spark gives a subtask to any idle worker of an executor. The worker keeps the task that it has
run, for a later epoch. Results never depend on it: a task that does not fit an epoch is closed,
and a new one is made. Functions are closed when

- another attempt of their job runs here, or their job has ended,
- the worker takes more memory than it may, least recently used first,
- the worker has had no task for a while: Spark soon kills it, without notice.

A worker with functions to close has a file in the job's directory (`state/store/directories.py`):

    <job directory>/workers/<pid>     removed when its functions are closed
    <job directory>/closing           asks all workers to close them: the job has ended
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from holdfast.clock import monotonic
from holdfast.state.store.directories import claim_job, job_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from holdfast.runtime.plan import EpochPlan
    from holdfast.runtime.task import StageTask
    from holdfast.state.store.process import ProcessIdentity

IDLE_SECONDS: Final = 50.0
"""Time without a task after which a worker closes its functions; Spark kills it after 60."""
UNUSED_SECONDS: Final = 600.0
"""Time after which a busy worker closes the functions of a job that it has not run since."""
CLOSING_SECONDS: Final = 10.0
"""Time that workers have to close their functions when their job ends."""
COLLECT_EVERY: Final = 64
"""Tasks between two complete runs of the garbage collector."""

_POLL_SECONDS: Final = 0.1
_WORKERS: Final = "workers"
_CLOSING: Final = "closing"
_WAKE: Final = signal.SIGURG
"""Signal to the worker's own main thread; ignored by processes that do not handle it."""


class JobRun(NamedTuple):
    """One run of a job, as workers know it."""

    local_dir: str | None
    job_id: str
    owner: ProcessIdentity

    @property
    def directory(self) -> Path:
        """Directory of its local state on this machine."""
        return job_directory(self.local_dir, self.job_id, self.owner.run)


class TaskKey(NamedTuple):
    """Identifies the tasks of one subtask in one attempt of a job."""

    job: JobRun
    job_attempt: str
    stage: str
    """Digest of the stage."""
    subtask: int


class WorkerTasks:
    """The tasks that a worker process keeps."""

    def __init__(self, memory: Callable[[], int], seconds: Callable[[], float] = monotonic) -> None:
        """Keep no task yet.

        Args:
            memory: Bytes that the process uses.
            seconds: A clock that never goes back.
        """
        self._memory = memory
        self._seconds = seconds
        self._tasks: dict[TaskKey, tuple[StageTask, float]] = {}
        """With the time of last use; in that order."""
        self._registered: set[JobRun] = set()
        """Jobs that know of functions to close here."""
        self.last_used = seconds()
        self.is_busy = False
        """Whether a task runs, which nothing may interrupt."""

    def __len__(self) -> int:
        """Number of kept tasks."""
        return len(self._tasks)

    def take(self, key: TaskKey, epoch: EpochPlan | None) -> StageTask | None:
        """Take the task out, if it is here and may run the epoch; `keep` puts it back."""
        self.is_busy = True
        now = self._seconds()
        for other, (_, used) in list(self._tasks.items()):
            same_job = other.job == key.job
            if other.job_attempt != key.job_attempt if same_job else now - used > UNUSED_SECONDS:
                self._close(other)
        kept = self._tasks.pop(key, None)
        if kept is None:
            return None
        if kept[0].fits(epoch):
            return kept[0]
        _close_quietly(kept[0])
        return None

    def keep(self, key: TaskKey, task: StageTask, most_memory: int) -> None:
        """Keep a task that has run an epoch well, as long as there is memory."""
        self._tasks[key] = (task, self._seconds())
        if task.needs_closing:
            self._register(key.job)
        for oldest in list(self._tasks):
            if self._memory() <= most_memory:
                break
            self._close(oldest)

    def rest(self) -> None:
        """The worker has no task to run."""
        self.is_busy = False
        self.last_used = self._seconds()

    def close_ended(self) -> None:
        """Close the functions of jobs that have ended; of all jobs if the worker is idle."""
        if self.is_busy:
            return
        idle = self.is_idle
        for job in list(self._registered):
            if idle or _has_ended(job):
                for key in [key for key in self._tasks if key.job == job]:
                    self._close(key)
                self._unregister(job)

    def close_all(self) -> None:
        """Close all functions."""
        for key in list(self._tasks):
            self._close(key)
        for job in list(self._registered):
            self._unregister(job)

    @property
    def is_idle(self) -> bool:
        """Whether the worker has had no task for long."""
        return not self.is_busy and self._seconds() - self.last_used > IDLE_SECONDS

    @property
    def has_ended_jobs(self) -> bool:
        """Whether `close_ended` has something to do."""
        return bool(self._registered) and (
            self.is_idle or any(map(_has_ended, tuple(self._registered)))
        )

    def _close(self, key: TaskKey) -> None:
        _close_quietly(self._tasks.pop(key)[0])

    def _register(self, job: JobRun) -> None:
        if job in self._registered:
            return
        # Without the file the functions are closed a little later.
        with suppress(OSError):
            workers = claim_job(job.local_dir, job.job_id, job.owner) / _WORKERS
            workers.mkdir(mode=0o700, exist_ok=True)
            (workers / str(os.getpid())).touch(mode=0o600)
        self._registered.add(job)

    def _unregister(self, job: JobRun) -> None:
        self._registered.discard(job)
        with suppress(OSError):
            (job.directory / _WORKERS / str(os.getpid())).unlink()


def _has_ended(job: JobRun) -> bool:
    directory = job.directory
    return (directory / _CLOSING).exists() or not directory.exists()


def _close_quietly(task: StageTask) -> None:
    """Close a task; there is no epoch that an error could fail."""
    try:
        task.close()
    except Exception as error:
        print(f"holdfast: {error}", file=sys.stderr)


def close_functions(
    local_dir: str | None, job_id: str, run: str, patience: float = CLOSING_SECONDS
) -> None:
    """Let all workers on this machine close the functions of a run, and wait for them.

    Args:
        local_dir: Configured directory.
        job_id: The job.
        run: The run, which has ended.
        patience: Seconds to wait.
    """
    directory = job_directory(local_dir, job_id, run)
    workers = directory / _WORKERS
    if not workers.exists():
        return
    with suppress(OSError):
        (directory / _CLOSING).touch(mode=0o600)
        end = monotonic() + patience
        while any(map(_is_running, _pids(workers))) and monotonic() < end:
            time.sleep(_POLL_SECONDS / 4)


def _pids(workers: Path) -> Iterator[int]:
    return (int(name) for name in os.listdir(workers) if name.isdecimal())


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True


class IdleWatch:
    """Closes functions from the main thread of a worker that waits for its next task.

    The main thread waits for Spark, and a thread watches beside it. It sends the main thread a
    signal when there is something to close: a connection may refuse to be closed by a thread
    that did not open it.
    """

    def __init__(self, tasks: WorkerTasks) -> None:
        """Watch over `tasks`; call it in the main thread."""
        self._tasks = tasks
        self._main = threading.main_thread().ident
        signal.signal(_WAKE, lambda number, frame: tasks.close_ended())
        threading.Thread(target=self._watch, name="holdfast-idle", daemon=True).start()

    def _watch(self) -> None:
        while True:
            time.sleep(_POLL_SECONDS)
            if self._main is not None and not self._tasks.is_busy and self._tasks.has_ended_jobs:
                signal.pthread_kill(self._main, _WAKE)


class Garbage:
    """Keeps the garbage collector away from what a worker keeps.

    Spark runs a complete collection after every task, which looks at every object of the
    process. Objects that survive a task are frozen, so that it finds nothing to look at.
    """

    def __init__(self) -> None:
        """No task has run yet."""
        self._tasks = 0

    def settle(self) -> None:
        """Collect the garbage of a task, and freeze what is left."""
        if self._tasks % COLLECT_EVERY == 0:
            gc.unfreeze()
            gc.collect()
        else:
            gc.collect(1)
        gc.freeze()
        self._tasks += 1


def resident_bytes() -> int:
    """Memory that this process uses, without pages that it shares with files."""
    with open("/proc/self/statm", "rb") as file:
        _, resident, shared, *_ = map(int, file.read().split())
    return (resident - shared) * os.sysconf("SC_PAGE_SIZE")
