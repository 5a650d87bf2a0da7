"""The processes of a driver, as the kernel knows them."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True)
class Process:
    """A process that was alive a moment ago."""

    pid: int
    parent: int
    session: int
    command: str

    @property
    def is_jvm(self) -> bool:
        """Whether it is the driver's Java side."""
        return "org.apache.spark.deploy.SparkSubmit" in self.command

    @property
    def is_executor(self) -> bool:
        """Whether it is an executor of its own."""
        return "CoarseGrainedExecutorBackend" in self.command

    @property
    def is_worker(self) -> bool:
        """Whether it runs the job's Python functions, be it a worker or what forks them."""
        return " pyspark.worker" in self.command

    def holds_state(self) -> bool:
        """Whether it has a file of a local store open: it is in the middle of an epoch."""
        with suppress(OSError):
            for descriptor in Path(f"/proc/{self.pid}/fd").iterdir():
                with suppress(OSError):
                    if "/holdfast-" in os.readlink(descriptor):
                        return True
        return False

    def kill(self) -> bool:
        """Kill it at once; whether it was still there."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
            return True
        return False

    def __str__(self) -> str:
        """Its number, and the end of its command."""
        return f"{self.pid} ({self.command[-60:].strip()})"


def processes_of(session: int) -> list[Process]:
    """All living processes of a session: what was started in it, even by the dead."""
    return [process for process in _all() if process.session == session]


def _all() -> Iterator[Process]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):
                stat = (entry / "stat").read_text()
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                # The name in brackets may hold spaces and brackets itself.
                state, parent, _, session, *_ = stat.rpartition(")")[2].split()
                if state not in "ZX":
                    yield Process(int(entry.name), int(parent), int(session), command)
