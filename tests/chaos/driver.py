"""A driver process: starting the job's program, watching it, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark

from holdfast import _faults as faults
from tests.chaos import seams
from tests.chaos.job import arguments
from tests.chaos.processes import Process, processes_of
from tests.chaos.trap import Trap

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.chaos.job import JobOptions

ROOT = Path(__file__).parents[2]
LOOK_EVERY = 0.02
PATIENCE = 180.0
"""Seconds within which a job must get anywhere, on a machine that has much else to do."""
WRITING = 1.0
"""Seconds in which a program has written the stacks of its threads."""
SLOWEST = 40.0
"""Events in a second that a job gets through at least, be it slow and the machine busy."""


class ChaosError(AssertionError):
    """The job has not done what it must."""


def wait_for(condition: Callable[[], Any], timeout: float, what: str) -> Any:
    """Wait until `condition` holds; what it gave."""
    end = time.monotonic() + timeout
    while not (found := condition()):
        if time.monotonic() > end:
            raise ChaosError(f"{what}: not within {timeout:.0f} s")
        time.sleep(LOOK_EVERY)
    return found


class Driver:
    """One start of the program; all starts in one directory belong together."""

    def __init__(self, directory: Path, options: JobOptions) -> None:
        for name in ("tmp", "local"):
            (directory / name).mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.log = directory / "driver.log"
        (directory / "ended.json").unlink(missing_ok=True)
        environment = {k: v for k, v in os.environ.items() if k != "SPARK_LOCAL_DIRS"}
        environment |= {
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")]),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_HOME": str(Path(pyspark.__file__).parent),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "TMPDIR": str(directory / "tmp"),
            faults.VARIABLE: str(Trap.file_in(directory)),
            seams.DIRECTORY: str(directory),
        }
        with self.log.open("ab") as log:
            # A session of its own: by that, all it has started is found, orphans included.
            self._popen = subprocess.Popen(
                arguments(directory, options),
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=directory,
                env=environment,
                start_new_session=True,
            )
        self.session = self._popen.pid

    def processes(self) -> list[Process]:
        """What runs of it."""
        return processes_of(self.session)

    def has_ended(self) -> bool:
        """Whether the program has ended, one way or another."""
        return self._popen.poll() is not None

    def kill(self) -> None:
        """Let the driver crash: its Python side and its Java side, and nothing else."""
        jvms = [process for process in self.processes() if process.is_jvm]
        self._popen.kill()
        for jvm in jvms:
            jvm.kill()
        self._popen.wait()

    def kill_java(self) -> None:
        """Let its Java side crash alone."""
        for process in self.processes():
            if process.is_jvm:
                process.kill()

    def write_stacks(self) -> None:
        """Let the program write into its log what all its threads are at, if it lives."""
        if not self.has_ended():
            os.kill(self._popen.pid, signal.SIGUSR1)
            time.sleep(WRITING)

    def kill_all(self) -> None:
        """Clear away whatever runs of it."""
        for process in self.processes():
            process.kill()
        self._popen.wait()

    def end(self, timeout: float) -> tuple[int, dict[str, Any]]:
        """Wait for the end, good or bad; the exit code, and what the program says of it."""
        try:
            code = self._popen.wait(timeout)
        except subprocess.TimeoutExpired:
            raise ChaosError(f"the driver has not ended within {timeout:.0f} s") from None
        said = self.directory / "ended.json"
        return code, json.loads(said.read_text()) if said.exists() else {}

    def wait(self, timeout: float) -> dict[str, Any]:
        """Wait for a good end; what the program says of it."""
        code, ended = self.end(timeout)
        if code != 0:
            raise ChaosError(
                f"the driver has ended with {code}: {ended}; the end of {self.log} says why"
            )
        return ended
