"""Keeps the entry of a job in the registry up to date, in the driver."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from msgspec.structs import replace

from holdfast.clock import SystemClock
from holdfast.config.registry_options import REGISTRY_DIR
from holdfast.config.submission import Submission, current_submission
from holdfast.errors import HoldfastError, RegistryError
from holdfast.registry.directory import JobRegistry, user_name
from holdfast.registry.entries import JobEntry
from holdfast.state.store.process import ProcessIdentity

if TYPE_CHECKING:
    from holdfast.config.configuration import Configuration
    from holdfast.job.statistics import JobStatus
    from holdfast.registry.entries import EntryStatus

logger = logging.getLogger("holdfast")


class AnnouncedJob(Protocol):
    """A started job, as the registry knows it."""

    @property
    def job_id(self) -> str:
        """The job's id."""

    @property
    def name(self) -> str:
        """The job's name."""

    @property
    def lasting_id(self) -> bool:
        """Whether another start finds the job by its id."""

    @property
    def checkpoint_directory(self) -> str | None:
        """Where its checkpoints are, if they outlive the driver."""

    @property
    def final_savepoint(self) -> str | None:
        """The savepoint that it was stopped with."""

    def status(self) -> JobStatus:
        """The job's status."""

    def result(self) -> object:
        """Wait for the end; raises if the job failed."""


def announce(
    job: AnnouncedJob,
    configuration: Configuration,
    url: str | None = None,
    token_file: str | None = None,
) -> Announcement | None:
    """Enter a started job into the registry, if it is to be found there.

    A job is entered if it was started by `holdfast run`, if it is controlled over HTTP, or if
    `registry.dir` is set. A registry that cannot be written does not stop the job.
    """
    submission = current_submission()
    given = configuration.get(REGISTRY_DIR)
    if submission is None and given is None and url is None:
        return None
    registry = JobRegistry(None if given is None else Path(given))
    try:
        announcement = Announcement(registry, job, submission or _of_this_process())
        announcement.enter(url, token_file)
    except RegistryError as error:
        logger.warning("the job is not listed: %s", error)
        return None
    return announcement


class Announcement:
    """The entry of one job, from its start to its end."""

    def __init__(self, registry: JobRegistry, job: AnnouncedJob, submission: Submission) -> None:
        """Nothing is written yet."""
        self._registry = registry
        self._job = job
        self._submission = submission
        self._lock = threading.Lock()
        self._has_ended = False

    def enter(self, url: str | None, token_file: str | None) -> None:
        """Write the entry, and write it again when the job ends."""
        job = self._job
        self._entry = JobEntry(
            job_id=job.job_id,
            name=job.name,
            status="RUNNING",
            user=user_name(),
            process=ProcessIdentity.current(),
            started_ms=SystemClock().now_ms(),
            lasting_id=job.lasting_id,
            command=self._submission.command,
            directory=self._submission.directory,
            log=self._submission.log,
            checkpoints=job.checkpoint_directory,
            url=url,
            token_file=token_file,
        )
        self._registry.prune()
        self.path = self._registry.enter(self._entry)
        # The thread may not come to it if the program ends right behind its job.
        atexit.register(self._note_end)
        threading.Thread(target=self._watch, daemon=True, name=f"end of {job.name}").start()

    def _watch(self) -> None:
        self._failure()
        self._note_end()
        atexit.unregister(self._note_end)

    def _failure(self) -> str | None:
        """Wait for the end, and return why the job failed, or None."""
        try:
            self._job.result()
        except HoldfastError as error:
            return str(error)
        return None

    def _note_end(self) -> None:
        with self._lock:
            if self._has_ended or not self._job.status().is_terminal:
                # A program that ends before its job takes it along: the entry shows it as lost.
                return
            self._has_ended = True
            ended = replace(
                self._entry,
                status=cast("EntryStatus", self._job.status().value),
                ended_ms=SystemClock().now_ms(),
                savepoint=self._job.final_savepoint,
                failure=self._failure(),
            )
            try:
                self._registry.enter(ended, self.path)
            except RegistryError as error:
                logger.warning("the end of the job is not listed: %s", error)


def _of_this_process() -> Submission:
    """The command line of a program that was not started by `holdfast run`."""
    return Submission(command=[sys.executable, *sys.argv], directory=os.getcwd())
