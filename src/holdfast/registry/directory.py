r"""The directory in which the jobs of a machine are listed.

    <registry>/<user>/<job id>~<start>.json     one entry per started job, of that user
    <registry>/<user>/<job id>~<start>.log      output of a job that was started detached

A user writes only below the directory of their own name, which nobody else may write to. So a
registry may be shared: its directory then needs mode 1777, as /tmp has. Entries hold no secrets;
the token that controls a job is in a file that only its owner can read.

An entry is written when a job starts, and again when it ends. The entry of a driver that was
killed still says RUNNING: `JobEntry.process` tells whether the process is alive.
"""

from __future__ import annotations

import getpass
import os
import re
import stat
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from holdfast.errors import RegistryError
from holdfast.registry.entries import JobEntry

if TYPE_CHECKING:
    from collections.abc import Iterator

KEPT: Final = 100
"""Entries of ended jobs that a user's directory keeps."""
SHARED_MODE: Final = 0o1777


class FoundEntry(msgspec.Struct, frozen=True):
    """An entry and its file."""

    path: Path
    entry: JobEntry


def default_registry() -> Path:
    """The registry of this user, below $XDG_STATE_HOME or ~/.local/state."""
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(state).expanduser() / "holdfast" / "jobs"


class JobRegistry:
    """Reads the entries of all users, and writes those of this one."""

    def __init__(self, directory: Path | None = None) -> None:
        """Use `directory`, or this user's own registry; it is created when it is first written."""
        self.directory = directory or default_registry()

    def own_directory(self) -> Path:
        """The directory of this user's entries; made if it does not exist.

        Raises:
            RegistryError: It cannot be made, or another user could write to it.
        """
        own = self.directory / user_name()
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            own.mkdir(mode=0o755, exist_ok=True)
            found = os.lstat(own)
        except OSError as error:
            raise RegistryError(
                f"the registry of jobs {self.directory} cannot be written ({error}); set "
                "registry.dir to a directory of yours, or let its owner run: "
                f"chmod {SHARED_MODE:o} {self.directory}"
            ) from error
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            raise RegistryError(f"{own} belongs to another user; ask them to remove it")
        if found.st_mode & 0o022:
            raise RegistryError(f"{own} can be written by others; run: chmod go-w {own}")
        return own

    def enter(self, entry: JobEntry, path: Path | None = None) -> Path:
        """Write an entry, or write it again to `path`; returns its path."""
        if path is None:
            name = f"{entry.job_id}~{entry.started_ms}-{uuid.uuid4().hex[:6]}.json"
            path = self.own_directory() / name
        aside = path.with_name(f".{path.name}.{uuid.uuid4().hex[:6]}")
        try:
            aside.write_bytes(msgspec.json.format(msgspec.json.encode(entry), indent=2) + b"\n")
            aside.replace(path)
        except OSError as error:
            aside.unlink(missing_ok=True)
            raise RegistryError(f"the entry {path} cannot be written: {error}") from error
        return path

    def entries(self) -> list[FoundEntry]:
        """All entries, the newest first. Files that are no entries are left out."""
        found = [entry for path in self._files() if (entry := _read(path)) is not None]
        return sorted(found, key=lambda one: one.entry.started_ms, reverse=True)

    def find(self, job: str) -> FoundEntry:
        """The job of that id, of that name, or whose id starts like that.

        Of several runs of one job, it is the one that runs, or else the newest.

        Raises:
            RegistryError: There is no such job, or several.
        """
        entries = self.entries()
        for matching in (
            [one for one in entries if one.entry.job_id == job],
            [one for one in entries if one.entry.name == job],
            [one for one in entries if one.entry.job_id.startswith(job)],
        ):
            running = [one for one in matching if not one.entry.has_ended]
            ids = {one.entry.job_id for one in running or matching}
            if len(ids) > 1:
                raise RegistryError(f"{job!r} fits several jobs: {', '.join(sorted(ids))}")
            if ids:
                return (running or matching)[0]
        known = ", ".join(sorted({one.entry.job_id for one in entries})) or "none"
        raise RegistryError(f"there is no job {job!r} in {self.directory}; known jobs: {known}")

    def prune(self, keep: int = KEPT) -> None:
        """Delete this user's oldest entries of ended jobs, with their logs."""
        own = self.own_directory()
        ended = [one for one in self.entries() if one.path.parent == own and one.entry.has_ended]
        for one in ended[keep:]:
            one.path.unlink(missing_ok=True)
            one.path.with_suffix(".log").unlink(missing_ok=True)

    def new_log(self, stem: str) -> Path:
        """A new file for the output of a detached job; only this user can read it."""
        safe = re.sub(r"[^A-Za-z0-9_.-]", "_", stem)
        path = self.own_directory() / f"{safe}~{uuid.uuid4().hex[:8]}.log"
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        return path

    def _files(self) -> Iterator[Path]:
        try:
            users = [user for user in os.scandir(self.directory) if user.is_dir()]
        except FileNotFoundError:
            return
        except OSError as error:
            raise RegistryError(f"the registry {self.directory} cannot be read: {error}") from error
        for user in users:
            try:
                names = os.listdir(user.path)
            except OSError:
                continue
            yield from (Path(user.path, name) for name in names if name.endswith(".json"))


def _read(path: Path) -> FoundEntry | None:
    try:
        # A link could name a file of somebody else.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(descriptor, "rb") as file:
            of_directory = os.lstat(path.parent).st_uid
            if os.fstat(descriptor).st_uid != of_directory:
                return None
            return FoundEntry(path, msgspec.json.decode(file.read(), type=JobEntry))
    except (OSError, msgspec.DecodeError):
        return None


def user_name() -> str:
    """Name of this user, for a directory."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid-{os.geteuid()}"
