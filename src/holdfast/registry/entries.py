"""The entry of a job in the registry, and its format on disk: JSON.

Fields may be added within a format; readers ignore fields that they do not know.
"""

from __future__ import annotations

import time
from typing import Final, Literal

import msgspec

from holdfast.state.store.process import ProcessIdentity

FORMAT: Final = 1

EntryStatus = Literal["RUNNING", "FINISHED", "CANCELED", "FAILED", "SUSPENDED"]


class JobEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One started job."""

    format: int = FORMAT
    job_id: str
    name: str
    status: EntryStatus
    user: str
    process: ProcessIdentity
    started_ms: int
    ended_ms: int | None = None
    lasting_id: bool
    """Whether the program or the user chose the job id, so that another start finds it."""
    command: list[str]
    """Starts the program again."""
    directory: str
    """Working directory of that command."""
    log: str | None = None
    checkpoints: str | None = None
    """Directory of the job's checkpoints; None if they do not outlive the driver."""
    savepoint: str | None = None
    """The savepoint that the job was stopped with."""
    failure: str | None = None
    url: str | None = None
    """Where the job is controlled; None if control is off."""
    token_file: str | None = None

    @property
    def state(self) -> str:
        """The status; LOST if the driver died without a word."""
        lost = self.status == "RUNNING" and self.process.is_certainly_dead()
        return "LOST" if lost else self.status

    @property
    def has_ended(self) -> bool:
        """Whether the job does not run any more."""
        return self.state != "RUNNING"


def moment(milliseconds: int | None) -> str:
    """A time for people, in the zone of this machine."""
    if milliseconds is None:
        return "-"
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(milliseconds / 1000))
