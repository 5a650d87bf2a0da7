"""What a job takes of the machine, looked at every few seconds and written down."""

from __future__ import annotations

import json
import os
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from holdfast.checkpoint.files.endings import STOPPED
from holdfast.checkpoint.files.layout import USED
from tests.chaos.growth import COUNT, DISK, FILES, HEAP, JAVA, MEMORY, Sample, Tolerance
from tests.chaos.sinks import STAGING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.chaos.driver import Driver

EVERY: Final = 3.0
PAGE: Final = os.sysconf("SC_PAGE_SIZE")
HEAP_FILE: Final = "heap.json"
"""Where the driver says how much of its Java heap is in use, right after a collection."""

TOLERANCES: Final[dict[str, Tolerance]] = {
    "memory": MEMORY,
    "Java memory": JAVA,
    "Java heap": HEAP,
    "open files": COUNT,
    "threads": COUNT,
    "processes": COUNT,
    "bytes": DISK,
    "files": FILES,
    "directories": FILES,
}


class Sampler:
    """Looks at the driver that runs, its workers and its directories, in a thread."""

    def __init__(
        self, directory: Path, disks: dict[str, Path], driver: Callable[[], Driver | None]
    ) -> None:
        """Look at what `driver` gives.

        Args:
            directory: Of the run; the samples go to a file there.
            disks: Directories whose contents are counted, by a name for people.
            driver: The driver that runs now.
        """
        self._directory = directory
        self._disks = disks
        self._driver = driver
        self._started = time.monotonic()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.samples: list[Sample] = []
        self._heap_at = 0.0

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """Look no more."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        with (self._directory / "samples.jsonl").open("a") as file:
            while not self._ended.wait(EVERY):
                found = list(self._look())
                self.samples += found
                file.writelines(json.dumps(sample) + "\n" for sample in found)
                file.flush()

    def _look(self) -> Iterator[Sample]:
        at = time.monotonic() - self._started
        for life, figures in self._figures():
            yield from (Sample(at, life, figure, value) for figure, value in figures.items())

    def _figures(self) -> Iterator[tuple[str, dict[str, float]]]:
        driver = self._driver()
        if driver is None or driver.has_ended():
            return
        yield from self._figures_of(driver)
        for name, place in self._disks.items():
            yield f"driver {driver.session}, {name}", contents(place)

    def _figures_of(self, driver: Driver) -> Iterator[tuple[str, dict[str, float]]]:
        name = f"driver {driver.session}"
        workers = 0
        for process in driver.processes():
            figures = process_figures(process.pid)
            if figures is None:
                continue
            if process.pid == driver.session:
                yield name, figures
            elif process.is_jvm:
                renamed = {"memory": "Java memory"}
                yield f"{name}, Java", {renamed.get(k, k): v for k, v in figures.items()}
            elif process.is_worker:
                workers += 1
                yield f"worker {process.pid} of {name}", figures
        yield f"{name}, workers", {"processes": workers}
        heap = self._new_heap(driver.session)
        if heap is not None:
            yield f"{name}, Java", {"Java heap": heap}

    def _new_heap(self, pid: int) -> float | None:
        """What the driver has said of its heap since the last look."""
        with suppress(OSError, ValueError):
            said: dict[str, Any] = json.loads((self._directory / HEAP_FILE).read_text())
            if said["pid"] == pid and said["at"] != self._heap_at:
                self._heap_at = said["at"]
                return float(said["used"])
        return None


def process_figures(pid: int) -> dict[str, float] | None:
    """What a process takes; None if it is gone."""
    proc = Path(f"/proc/{pid}")
    try:
        resident = int((proc / "statm").read_text().split()[1]) * PAGE
        return {
            "memory": resident,
            "open files": len(os.listdir(proc / "fd")),
            "threads": len(os.listdir(proc / "task")),
        }
    except OSError:
        return None


def contents(place: Path) -> dict[str, float]:
    """How much is in a directory; notes of jobs that were stopped are not counted."""
    size = files = directories = 0
    for root, below, names in os.walk(place):
        if names == [STOPPED] or os.path.basename(root) == USED:
            below.clear()
            continue
        directories += len(below)
        for name in names:
            with suppress(OSError):
                size += os.lstat(os.path.join(root, name)).st_size
                files += 1
    return {"bytes": size, "files": files, "directories": directories}


def watched(directory: Path, checkpoints: Path, state: Path) -> dict[str, Path]:
    """The directories that must not grow while a job runs, by their names."""
    return {
        "checkpoint storage": checkpoints,
        "local state": state,
        "Spark's directory": directory / "local",
        "scratch": directory / "tmp",
        "staged files": directory / "files" / STAGING,
    }


def report_heap(spark: Any, directory: Path, every: float) -> None:
    """Tell from the driver, again and again, what its Java heap holds after a collection."""

    def report() -> None:
        runtime = spark._jvm.java.lang.Runtime.getRuntime()
        while True:
            time.sleep(every)
            runtime.gc()
            used = runtime.totalMemory() - runtime.freeMemory()
            said = {"pid": os.getpid(), "at": time.monotonic(), "used": used}
            fresh = directory / f"{HEAP_FILE}.new"
            fresh.write_text(json.dumps(said))
            fresh.rename(directory / HEAP_FILE)

    def run() -> None:
        # The session ends before the process does.
        with suppress(Exception):
            report()

    threading.Thread(target=run, daemon=True).start()
