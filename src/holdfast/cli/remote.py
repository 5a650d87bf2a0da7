"""A job as its driver answers for it, over HTTP."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from holdfast.cli.output import FAILED, UNKNOWN, UNREACHABLE, CommandError
from holdfast.clock import wait
from holdfast.config.configuration_file import load_configuration
from holdfast.config.registry_options import REGISTRY_DIR
from holdfast.control.client import ControlClient, Trigger
from holdfast.errors import ControlError, RegistryError
from holdfast.registry.directory import JobRegistry
from holdfast.registry.resuming import describe_end

if TYPE_CHECKING:
    from holdfast.registry.entries import JobEntry

TOKEN: Final = "HOLDFAST_TOKEN"
"""The environment variable that holds a token for `--rest`."""
NOT_FOUND: Final = 404
QUICK: Final = 2.0
"""Seconds that `list` waits for a driver."""
LOOK: Final = 0.2

Tick = Callable[[], None]


def registry() -> JobRegistry:
    """The registry that is configured here."""
    directory = load_configuration().get(REGISTRY_DIR)
    return JobRegistry(None if directory is None else Path(directory))


def find_remote(job: str, rest: str | None, token_file: str | None) -> Remote:
    """The running job of that id or name."""
    if rest is not None:
        return Remote(client_at(rest, token_file), job)
    try:
        entry = registry().find(job).entry
    except RegistryError as error:
        raise CommandError(str(error), UNKNOWN) from error
    return Remote(client_of(entry), entry.job_id)


def client_at(url: str, token_file: str | None) -> ControlClient:
    """The driver at an address, with the token of a file or of the environment."""
    token = os.environ.get(TOKEN, "") if token_file is None else _read_token(token_file)
    if not token:
        raise CommandError(f"give the token of {url}: --token-file FILE, or {TOKEN}", 2)
    return ControlClient(url, token)


def client_of(entry: JobEntry, timeout: float = 30.0) -> ControlClient:
    """The driver of a job in the registry."""
    if entry.has_ended:
        raise CommandError("\n".join(describe_end(entry)), UNREACHABLE)
    if entry.url is None or entry.token_file is None:
        raise CommandError(
            f"job {entry.job_id} cannot be controlled: it was started with rest.enabled=false",
            UNREACHABLE,
        )
    return ControlClient(entry.url, _read_token(entry.token_file), timeout=timeout)


def status_of(entry: JobEntry) -> str:
    """The status of a job that runs, as its driver says it; UNREACHABLE if it says nothing."""
    if entry.url is None:
        return entry.state
    try:
        return str(client_of(entry, QUICK).job(entry.job_id)["state"])
    except (CommandError, ControlError):
        # It may have ended meanwhile. The token of another user cannot be read.
        return entry.state if entry.has_ended or not _is_mine(entry) else "UNREACHABLE"


@dataclass(frozen=True, slots=True)
class Remote:
    """One job of a driver."""

    client: ControlClient
    job_id: str

    def savepoint(self, directory: str | None, form: str, tick: Tick, *, cancels: bool) -> str:
        """Take a savepoint, and return its path."""
        return str(
            self._result(
                lambda: self.client.trigger_savepoint(
                    self.job_id,
                    _absolute(directory),
                    cancel_job=cancels,
                    format_type=form.upper(),
                ),
                tick,
            )
        )

    def stop(self, directory: str | None, form: str, tick: Tick, *, drain: bool) -> str:
        """Stop the job with a savepoint, and return its path."""
        return str(
            self._result(
                lambda: self.client.stop(
                    self.job_id, _absolute(directory), drain=drain, format_type=form.upper()
                ),
                tick,
            )
        )

    def checkpoint(self, tick: Tick) -> int:
        """Take a checkpoint, and return its number."""
        return int(self._result(lambda: self.client.trigger_checkpoint(self.job_id), tick))

    def rescale(self, parallelism: int, tick: Tick) -> None:
        """Go on with another number of subtasks."""
        self._result(lambda: self.client.rescale(self.job_id, parallelism), tick)

    def checkpoints(self) -> dict[str, Any]:
        """The history of checkpoints."""
        history: dict[str, Any] = answered(lambda: self.client.checkpoints(self.job_id))
        return history

    def cancel(self, tick: Tick) -> None:
        """Cancel the job, and wait for its end."""
        answered(lambda: self.client.cancel(self.job_id))
        while True:
            tick()
            try:
                if self.client.job(self.job_id)["state"] not in ("RUNNING", "RESTARTING"):
                    return
            except ControlError:
                # The driver ends with its last job.
                return
            wait(LOOK)

    def _result(self, begin: Callable[[], Trigger], tick: Tick) -> Any:
        def ask() -> Any:
            return self.client.wait_for(begin(), on_progress=lambda seconds: tick())

        return answered(ask)


def answered(ask: Callable[[], Any]) -> Any:
    """The answer of a driver; its refusal ends the command."""
    try:
        return ask()
    except ControlError as error:
        codes = {None: UNREACHABLE, NOT_FOUND: UNKNOWN}
        raise CommandError(str(error), codes.get(error.status, FAILED)) from error


def _read_token(file: str) -> str:
    try:
        return Path(file).read_text().strip()
    except OSError as error:
        raise CommandError(
            f"the token in {file} cannot be read ({error.strerror}): only the owner of a job can "
            "control it",
            UNREACHABLE,
        ) from error


def _is_mine(entry: JobEntry) -> bool:
    return entry.token_file is not None and os.access(entry.token_file, os.R_OK)


def _absolute(directory: str | None) -> str | None:
    """A directory that means the same to the driver, which runs elsewhere."""
    if directory is None or "://" in directory:
        return directory
    return os.path.abspath(directory)
