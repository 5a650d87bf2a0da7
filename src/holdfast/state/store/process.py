"""Identifies the machine, its boot and a process.

Local state is valid on the machine that wrote it, until that restarts: stores do not sync to
disk, so files left by a crash of the machine are not used.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_UNKNOWN = "unknown"
_ENDED = ("Z", "X")
"""States of a process that has ended, and whose parent has not asked how."""


@cache
def host_name() -> str:
    """Name of this machine, unique even among machines with the same host name."""
    return f"{os.uname().nodename}/{_first_line('/etc/machine-id')}"


@cache
def boot_id() -> str:
    """Id of the current boot of the machine; `unknown` if the system has none."""
    return _first_line("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """A process, identified uniquely: the system reuses process ids."""

    host: str
    boot: str
    namespace: str
    """Process id namespace, since containers on one host count separately."""
    pid: int
    started: str
    """Start time of the process, in the kernel's units."""
    run: str = ""
    """Run of a job in the process; a job that is started twice has two."""

    @classmethod
    def current(cls, run: str = "") -> ProcessIdentity:
        """Identity of the calling process."""
        return cls._of(os.getpid(), run)

    @classmethod
    def parent(cls) -> ProcessIdentity:
        """Identity of the process that started the calling one."""
        return cls._of(os.getppid(), "")

    @classmethod
    def _of(cls, pid: int, run: str) -> ProcessIdentity:
        started = _start_time(pid) or _UNKNOWN
        return cls(host_name(), boot_id(), _pid_namespace(), pid, started, run)

    @property
    def can_be_seen(self) -> bool:
        """Whether this process can see if that one is running."""
        if self.host != host_name() or _UNKNOWN in (self.boot, boot_id()):
            return False
        return self.boot != boot_id() or self.namespace == _pid_namespace()

    def is_certainly_dead(self) -> bool:
        """Whether the process has certainly ended; False in case of doubt."""
        if not self.can_be_seen:
            return False
        return self.boot != boot_id() or not _is_running(self.pid, self.started)


def _is_running(pid: int, started: str) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    fields = _fields(pid)
    if fields is not None and fields[0] in _ENDED:
        return False
    # A process has this pid; it is the same one only if its start time is equal.
    return fields is None or started in (_UNKNOWN, fields[19])


def _start_time(pid: int) -> str | None:
    fields = _fields(pid)
    return None if fields is None else fields[19]


def _fields(pid: int) -> list[str] | None:
    """What the kernel says about a process, from its state on; None if it says nothing."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The second field is the program's name in brackets, which may contain spaces.
    return stat.rpartition(")")[2].split()


def _pid_namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return _UNKNOWN


def _first_line(path: str) -> str:
    try:
        return Path(path).read_text().partition("\n")[0] or _UNKNOWN
    except OSError:
        return _UNKNOWN
