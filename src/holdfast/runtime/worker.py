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
import resource
import signal
import sys
import threading
import time
import traceback
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from holdfast.clock import monotonic
from holdfast.state.store.directories import WORKERS, claim_job, job_directory

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

_DAEMON: Final = "pyspark.daemon"
_POLL_SECONDS: Final = 0.1
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


class Garbage:
    """Keeps the garbage collector away from what a worker keeps.

    Spark runs a complete collection after every task, which looks at every object of the
    process. Objects that survive a task are frozen, so that it finds nothing to look at.
    """

    def __init__(self) -> None:
        """No task has run yet."""
        self._tasks = 0
        self.is_needed = True
        """Whether frozen objects have become garbage: a task's objects refer to each other."""

    def settle(self) -> None:
        """Collect the garbage of a task, and freeze what is left."""
        self._tasks += 1
        if self._tasks % COLLECT_EVERY == 1:
            self.is_needed = True
            self.collect_if_needed()
        else:
            gc.collect(1)
        gc.freeze()

    def collect_if_needed(self) -> None:
        """Collect all garbage, also that of frozen objects."""
        if self.is_needed:
            self.is_needed = False
            gc.unfreeze()
            gc.collect()


class WorkerTasks:
    """The tasks that a worker process keeps."""

    def __init__(
        self,
        memory: Callable[[], int],
        seconds: Callable[[], float] = monotonic,
        garbage: Garbage | None = None,
        *,
        reuses: bool = True,
    ) -> None:
        """Keep no task yet.

        Args:
            memory: Bytes that the process uses.
            seconds: A clock that never goes back.
            garbage: Frees the memory of tasks that are closed.
            reuses: Whether the process runs several tasks.
        """
        self._memory = memory
        self._garbage = garbage or Garbage()
        self._seconds = seconds
        self._tasks: dict[TaskKey, tuple[StageTask, float]] = {}
        """With the time of last use; in that order."""
        self._reuses = reuses
        self._jobs: set[JobRun] = set()
        """Jobs that have run here."""
        self._seen: set[JobRun] = set()
        """Those whose directory was seen, so that its absence means that they have ended."""
        self._noted: set[JobRun] = set()
        """Those that know of functions to close here."""
        self.last_used = seconds()
        self.is_busy = False
        """Whether a task runs, which nothing may interrupt."""

    def __len__(self) -> int:
        """Number of kept tasks, of all jobs."""
        return len(self._tasks)

    def count_of(self, job: JobRun) -> int:
        """Number of kept tasks of a job."""
        return sum(1 for key in self._tasks if key.job == job)

    def take(self, key: TaskKey, epoch: EpochPlan | None) -> StageTask | None:
        """Take the task out, if it is here and may run the epoch; `keep` puts it back."""
        self.is_busy = True
        self._jobs.add(key.job)
        now = self._seconds()
        for other, (_, used) in list(self._tasks.items()):
            same_job = other.job == key.job
            if other.job_attempt != key.job_attempt if same_job else now - used > UNUSED_SECONDS:
                self._close(other)
        if key in self._tasks and not self._tasks[key][0].fits(epoch):
            self._close(key)
        return self._tasks.pop(key, (None, 0.0))[0]

    def keep(self, key: TaskKey, task: StageTask, most_memory: int) -> None:
        """Keep a task that has run an epoch well, unless nothing may be kept.

        The process may then have more memory than it may: call `trim`.
        """
        self._tasks[key] = (task, self._seconds())
        if not most_memory or not self._reuses or (task.needs_closing and not self._note(key.job)):
            self._close(key)
        elif key.job not in self._seen and key.job.directory.exists():
            self._seen.add(key.job)

    def trim(self, key: TaskKey, most_memory: int) -> None:
        """Close the least recently used tasks of a job while the process has too much memory.

        Other jobs have limits of their own, which count when they run.
        """
        for oldest in [other for other in self._tasks if other.job == key.job]:
            if self._memory() > most_memory:
                # Tasks that were closed before may be enough.
                self._garbage.collect_if_needed()
            if self._memory() <= most_memory:
                return
            self._close(oldest)
        if self._memory() > most_memory:
            self._garbage.collect_if_needed()

    def rest(self) -> None:
        """The worker has no task to run."""
        self.last_used = self._seconds()
        self.is_busy = False

    def drop(self) -> None:
        """A task that was taken out has failed: it is not kept."""
        self._garbage.is_needed = True

    def close_ended(self) -> None:
        """Close the functions of jobs that have ended; of all jobs if the worker is idle."""
        if self.is_busy:
            return
        ended = tuple(self._jobs) if self.is_idle else self._ended_jobs()
        # Closing takes time, in which neither this nor a signal may come again.
        self.is_busy = True
        try:
            for job in ended:
                self._close_job(job)
            self._garbage.collect_if_needed()
        finally:
            self.is_busy = False

    def close_all(self) -> None:
        """Close all functions."""
        for job in tuple(self._jobs):
            self._close_job(job)

    @property
    def is_idle(self) -> bool:
        """Whether the worker has had no task for long."""
        return not self.is_busy and self._seconds() - self.last_used > IDLE_SECONDS

    @property
    def has_ended_jobs(self) -> bool:
        """Whether `close_ended` has something to do."""
        return bool(self._jobs) and (self.is_idle or bool(self._ended_jobs()))

    def _ended_jobs(self) -> tuple[JobRun, ...]:
        """Jobs that ask for their functions to be closed, or are gone."""
        return tuple(job for job in tuple(self._seen) if _has_ended(job))

    def _close_job(self, job: JobRun) -> None:
        for key in [key for key in self._tasks if key.job == job]:
            self._close(key)
        self._jobs.discard(job)
        self._seen.discard(job)
        if job in self._noted:
            self._noted.discard(job)
            with suppress(OSError):
                _note_of(job).unlink()

    def _close(self, key: TaskKey) -> None:
        task, _ = self._tasks.pop(key, (None, 0.0))
        if task is not None:
            _close_quietly(task)
            self._garbage.is_needed = True

    def _note(self, job: JobRun) -> bool:
        """Let the job know of functions to close here; False if it has ended already."""
        if job in self._noted:
            return True
        # Without the file the functions are closed a little later.
        with suppress(OSError):
            claim_job(job.local_dir, job.job_id, job.owner)
            if _has_ended(job):
                return False
            _note_of(job).parent.mkdir(mode=0o700, exist_ok=True)
            _note_of(job).touch(mode=0o600)
        self._seen.add(job)
        self._noted.add(job)
        return True


def _note_of(job: JobRun) -> Path:
    """The file of this worker in the job's directory."""
    return job.directory / WORKERS / str(os.getpid())


def _has_ended(job: JobRun) -> bool:
    directory = job.directory
    try:
        return (directory / _CLOSING).exists() or not directory.exists()
    except OSError:
        # In case of doubt it has not.
        return False


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
    workers = directory / WORKERS
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

    def __init__(self, tasks: WorkerTasks, is_waiting: Callable[[], bool]) -> None:
        """Watch over `tasks`; call it in the main thread.

        Args:
            tasks: What the worker keeps.
            is_waiting: Whether the main thread waits for Spark and can be interrupted.
        """
        self._tasks = tasks
        self._is_waiting = is_waiting
        self._main = threading.main_thread().ident
        signal.signal(_WAKE, lambda number, frame: self._close_between_tasks())
        threading.Thread(target=self._watch, name="holdfast-idle", daemon=True).start()

    def _watch(self) -> None:
        while True:
            time.sleep(_POLL_SECONDS)
            ended = not self._tasks.is_busy and self._tasks.has_ended_jobs
            if ended and self._main is not None and self._is_waiting():
                signal.pthread_kill(self._main, _WAKE)

    def _close_between_tasks(self) -> None:
        # Spark's worker must survive whatever comes up here.
        try:
            self._tasks.close_ended()
        except BaseException as error:
            print(f"holdfast: closing functions: {error!r}", file=sys.stderr)


class HangUps:
    """Stands for the module `traceback` where Spark's daemon ends a worker.

    A worker that is stopped while it writes finds that Spark has hung up. It would print a
    traceback, which tells nothing. Workers are forked from the daemon, so each has its own copy of
    the daemon's main module.
    """

    format_exc = staticmethod(traceback.format_exc)

    @staticmethod
    def print_exc() -> None:
        """Print the current exception, unless it is that Spark has hung up."""
        if not isinstance(sys.exc_info()[1], BrokenPipeError | ConnectionResetError):
            traceback.print_exc()

    @classmethod
    def leave_out(cls, main: Any) -> None:
        """Leave them out in this process, if `main`, its main module, is the daemon's."""
        if getattr(getattr(main, "__spec__", None), "name", None) == _DAEMON:
            main.traceback = cls


def memory_to_keep(most: int) -> int:
    """Memory up to which this process keeps tasks: `most`, or half of what Spark allows it.

    `spark.executor.pyspark.memory` limits the address space of workers.
    """
    allowed, _ = resource.getrlimit(resource.RLIMIT_AS)
    return most if allowed == resource.RLIM_INFINITY else min(most, allowed // 2)


def resident_bytes() -> int:
    """Memory that this process uses, without pages that it shares with files."""
    with open("/proc/self/statm", "rb") as file:
        _, resident, shared, *_ = map(int, file.read().split())
    return (resident - shared) * os.sysconf("SC_PAGE_SIZE")
