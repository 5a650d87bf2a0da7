"""The log that all drivers of a run write to."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

_TOLD: Final = {
    "complete": re.compile(rb"INFO checkpoint (\d+) is complete"),
    "restored": re.compile(rb"restored from (?:checkpoint|savepoint) (\d+)"),
    "restarts": re.compile(rb"failed and restarts in ([\d.]+) s"),
    "failed": re.compile(rb"WARNING (checkpoint \d+ failed|job .* failed and restarts)"),
}


class Log:
    """What the log tells; every line of it is read once, for it grows long."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "driver.log"
        self._read = 0
        self._found: dict[str, list[str]] = {name: [] for name in _TOLD}

    @property
    def complete(self) -> list[str]:
        """Ids of all checkpoints that were called complete, in order."""
        return self._told("complete")

    @property
    def restored(self) -> list[str]:
        """Ids of all checkpoints and savepoints that a job began with."""
        return self._told("restored")

    @property
    def restarts(self) -> list[str]:
        """Every time that a job went back to a checkpoint by itself."""
        return self._told("restarts")

    @property
    def failed(self) -> list[str]:
        """Every time that a checkpoint or a job has failed."""
        return self._told("failed")

    def _told(self, name: str) -> list[str]:
        if self._path.exists():
            with self._path.open("rb") as log:
                log.seek(self._read)
                # A line that is not whole yet is read when it is.
                lines = log.read().rpartition(b"\n")[0]
            self._read += len(lines)
            for each, pattern in _TOLD.items():
                self._found[each] += [found.decode() for found in pattern.findall(lines)]
        return self._found[name]
