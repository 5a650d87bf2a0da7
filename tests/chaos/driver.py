"""A driver process: starting the job's program, watching it, and what it leaves behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark

from holdfast import faults
from holdfast.api.sink import OPENED
from holdfast.checkpoint.completed import checkpoint_ids, load
from holdfast.checkpoint.files import FileSystemFiles
from holdfast.checkpoint.metadata import paths_of
from holdfast.checkpoint.storage import FENCES, STAGED, metadata_name
from holdfast.errors import CheckpointError
from tests.chaos.job import arguments
from tests.chaos.processes import Process, processes_of
from tests.chaos.strikes import Trap

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.checkpoint.metadata import CheckpointMetadata
    from tests.chaos.job import JobOptions

ROOT = Path(__file__).parents[2]
LOOK_EVERY = 0.02
PATIENCE = 180.0
"""Seconds within which a job must get anywhere, on a machine that has much else to do."""
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

    def kill_all(self) -> None:
        """Clear away whatever runs of it."""
        for process in self.processes():
            process.kill()
        self._popen.wait()

    def wait(self, timeout: float) -> dict[str, Any]:
        """Wait for a good end; what the program says of it."""
        try:
            code = self._popen.wait(timeout)
        except subprocess.TimeoutExpired:
            # The program writes the stacks of its threads into its log.
            os.kill(self._popen.pid, signal.SIGUSR1)
            raise ChaosError(f"the driver has not ended within {timeout:.0f} s") from None
        if code != 0:
            raise ChaosError(f"the driver has ended with {code}; the end of {self.log} says why")
        ended: dict[str, Any] = json.loads((self.directory / "ended.json").read_text())
        return ended


def log_lines(directory: Path, pattern: str) -> list[str]:
    """What the pattern's group matched in the log of all drivers, in order."""
    log = directory / "driver.log"
    return re.findall(pattern, log.read_text(errors="replace")) if log.exists() else []


def completed_checkpoints(directory: Path) -> list[str]:
    """Ids of all checkpoints that the log calls complete."""
    return log_lines(directory, r"INFO checkpoint (\d+) is complete")


def storage_of(directory: Path, options: JobOptions) -> Path:
    """Where a job keeps its checkpoints."""
    return directory / "checkpoints" / options.job_id


def orphans(storage: Path) -> list[str]:
    """Files in a job's checkpoint storage that no complete checkpoint needs.

    Notes of what writers have opened count as needed: the next start reads them.
    """
    files = FileSystemFiles(str(storage))
    needed = set()
    for checkpoint_id in checkpoint_ids(files):
        if files.exists(metadata_name(checkpoint_id)):
            needed |= {metadata_name(checkpoint_id), *paths_of(load(files, checkpoint_id))}
    found = {str(path.relative_to(storage)) for path in storage.rglob("*") if path.is_file()}
    kept = (f"{FENCES}/", f"{STAGED}/{OPENED}")
    return sorted(name for name in found - needed if not name.startswith(kept))


def newest_checkpoint(storage: Path) -> CheckpointMetadata | None:
    """The checkpoint that a job would go back to now."""
    files = FileSystemFiles(str(storage))
    for checkpoint_id in sorted(checkpoint_ids(files), reverse=True):
        # One may go, or not be complete: the job goes on meanwhile.
        with suppress(CheckpointError):
            return load(files, checkpoint_id)
    return None


def holds_input(storage: Path) -> bool:
    """Whether the newest checkpoint holds input that was not processed."""
    newest = newest_checkpoint(storage)
    return newest is not None and bool(newest.channel_state)


def lists_output(storage: Path) -> bool:
    """Whether a job that goes back to the newest checkpoint has something to publish."""
    newest = newest_checkpoint(storage)
    return newest is not None and bool(newest.committables)


def missing(storage: Path) -> list[str]:
    """Files that complete checkpoints need and storage does not hold."""
    files = FileSystemFiles(str(storage))
    return sorted(
        path
        for checkpoint_id in checkpoint_ids(files)
        for path in paths_of(load(files, checkpoint_id))
        if not (storage / path).exists()
    )


def local_leftovers(directory: Path) -> list[str]:
    """Directories of Holdfast on the machine's own disk, the lock file aside."""
    found = [
        path
        for name in ("local", "tmp")
        for path in (directory / name).rglob("*holdfast-*")
        if path.is_dir()
    ]
    return sorted(str(path.relative_to(directory)) for path in found)
