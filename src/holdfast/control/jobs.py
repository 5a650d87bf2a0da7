"""The jobs that are controlled: those that run, and the newest that have ended."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from holdfast.clock import SystemClock
from holdfast.config.checkpoint_options import SavepointFormatType

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.job.statistics import JobFailure, JobStatistics, JobStatus

ENDED_KEPT: Final = 20
"""Number of ended jobs that are remembered."""


class ControlledJob(Protocol):
    """A started job, as the client of a job shows it."""

    @property
    def job_id(self) -> str:
        """The job's id."""

    @property
    def name(self) -> str:
        """The job's name."""

    @property
    def configuration(self) -> Mapping[str, object]:
        """The options that were set for the job, by their keys."""

    @property
    def job_parameters(self) -> Mapping[str, str]:
        """The parameters that the job's functions can read."""

    @property
    def start_time(self) -> int:
        """When the job was started, in milliseconds since 1970."""

    @property
    def end_time(self) -> int | None:
        """When the job ended; None while it runs."""

    @property
    def failure(self) -> str | None:
        """Why the job has ended, if a failure has ended it."""

    def failures(self) -> tuple[JobFailure, ...]:
        """The newest failures of the job, oldest first."""

    def status(self) -> JobStatus:
        """The job's status."""

    def statistics(self) -> JobStatistics:
        """The job's statistics so far."""

    def trigger_savepoint(
        self,
        directory: str | None = None,
        format_type: SavepointFormatType = SavepointFormatType.CANONICAL,
    ) -> str:
        """Take a savepoint, and return its path once it is complete."""

    def stop_with_savepoint(
        self,
        directory: str | None = None,
        *,
        drain: bool = False,
        format_type: SavepointFormatType = SavepointFormatType.CANONICAL,
    ) -> str:
        """Take a savepoint, finish the job, and return the path."""

    def cancel_with_savepoint(
        self,
        directory: str | None = None,
        format_type: SavepointFormatType = SavepointFormatType.CANONICAL,
    ) -> str:
        """Take a savepoint, cancel the job, and return the path."""

    def trigger_checkpoint(self) -> int:
        """Take a checkpoint, and return its id once it is complete."""

    def rescale(self, parallelism: int) -> None:
        """Continue on another number of subtasks; returns when the job runs again."""

    def cancel(self) -> None:
        """Stop the job; returns when it has ended."""

    def suspend(self) -> None:
        """Stop the job so that another start continues it; returns when it has ended."""


@dataclass(frozen=True, slots=True)
class JobRecord:
    """All that is shown of a job, at one moment."""

    statistics: JobStatistics
    configuration: Mapping[str, object]
    job_parameters: Mapping[str, str]
    now: int
    start_time: int
    end_time: int | None
    failure: str | None
    failures: tuple[JobFailure, ...]

    @property
    def duration(self) -> int:
        """Milliseconds from the start to the end, or to this moment."""
        return max(0, (self.end_time or self.now) - self.start_time)


def record_of(job: ControlledJob) -> JobRecord:
    """What is shown of a job now."""
    # The end first: all else that is read after it is final.
    end_time = job.end_time
    return JobRecord(
        statistics=job.statistics(),
        configuration=job.configuration,
        job_parameters=job.job_parameters,
        now=SystemClock().now_ms(),
        start_time=job.start_time,
        end_time=end_time,
        failure=job.failure,
        failures=job.failures(),
    )


class Jobs:
    """The jobs of a driver: running ones, and records of the newest ended ones; thread-safe."""

    def __init__(self, ended_kept: int = ENDED_KEPT) -> None:
        """Create it without jobs; it remembers `ended_kept` ended ones."""
        self._lock = threading.Lock()
        self._ended_kept = ended_kept
        self._running: dict[str, ControlledJob] = {}
        self._ended: dict[str, JobRecord] = {}
        """Oldest first."""

    def add(self, job: ControlledJob) -> None:
        """Add a started job; it replaces an ended one with the same id."""
        self._sweep()
        with self._lock:
            self._ended.pop(job.job_id, None)
            self._running[job.job_id] = job

    def ids(self) -> list[str]:
        """Ids of all jobs, ended ones last."""
        with self._lock:
            return [*self._running, *self._ended]

    def records(self) -> list[JobRecord]:
        """Records of all jobs, ended ones last."""
        self._sweep()
        with self._lock:
            running, ended = list(self._running.values()), list(self._ended.values())
        return [*map(record_of, running), *reversed(ended)]

    def record(self, job_id: str) -> JobRecord | None:
        """The record of a job, or None if it is not known."""
        with self._lock:
            job, ended = self._running.get(job_id), self._ended.get(job_id)
        if job is None:
            return ended
        record = record_of(job)
        if record.end_time is not None:
            self._file(job, record)
        return record

    def running(self, job_id: str) -> ControlledJob | None:
        """A job that has not ended, or None."""
        with self._lock:
            job = self._running.get(job_id)
        return None if job is None or job.status().is_terminal else job

    def _sweep(self) -> None:
        """Replace the jobs that have ended by records, so that their memory is free."""
        with self._lock:
            jobs = list(self._running.values())
        for job in jobs:
            if job.end_time is not None:
                self._file(job, record_of(job))

    def _file(self, job: ControlledJob, record: JobRecord) -> None:
        with self._lock:
            if self._running.get(job.job_id) is not job:
                return
            del self._running[job.job_id]
            self._ended[job.job_id] = record
            while len(self._ended) > self._ended_kept:
                del self._ended[next(iter(self._ended))]
