"""Which machine, which boot of it, and which process this is.

Local state is bound to the machine that wrote it, and to one boot of it: nothing
is forced to disk, so what a crash of the machine leaves behind counts for nothing.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_UNKNOWN = "unknown"


@cache
def host_name() -> str:
    """Name that tells this machine apart from others, clones of its name included."""
    return f"{os.uname().nodename}/{_first_line('/etc/machine-id')}"


@cache
def boot_id() -> str:
    """Identifier of this boot of the machine; `unknown` where there is none."""
    return _first_line("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """One process for all time: a process id alone is used again and again."""

    host: str
    boot: str
    namespace: str
    """The process id namespace, since containers of one host count from one each."""
    pid: int
    started: str
    """When the process started, in the kernel's own units."""
    run: str = ""
    """Which of the jobs that it runs this is about: one that is started twice is two."""

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
        """Whether it can be told from here if the process is running."""
        if self.host != host_name() or _UNKNOWN in (self.boot, boot_id()):
            return False
        return self.boot != boot_id() or self.namespace == _pid_namespace()

    def is_certainly_dead(self) -> bool:
        """True only if the process cannot be running any more; doubt means False."""
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
    # The pid is taken; by the same process only if it started at the same time.
    now = _start_time(pid)
    return now is None or started == _UNKNOWN or now == started


def _start_time(pid: int) -> str | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The second field is the program's name in brackets and may hold spaces itself.
    return stat.rpartition(")")[2].split()[19]


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
