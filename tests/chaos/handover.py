"""Handing the job over: it stops with a savepoint, and another one goes on from that."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.checkpoint.files.endings import STOPPED
from holdfast.checkpoint.files.layout import USED
from tests.chaos.driver import PATIENCE
from tests.chaos.job import successor
from tests.chaos.places import storage_of
from tests.chaos.savepoints import (
    COMPLETE,
    FORMS,
    ask,
    savepoints_in,
    withdraw,
    wrong_savepoints,
)
from tests.chaos.strikes import SAVING

if TYPE_CHECKING:
    from tests.chaos.driver import Driver
    from tests.chaos.job import JobOptions
    from tests.chaos.strikes import Strike


class Handovers:
    """All handovers of a run, and those that were broken off."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._unreported = self._unfinished = 0
        self.savepoints: list[Path] = []
        """Those that another job went on from."""
        self._faults: list[str] = []

    def ask(self) -> None:
        """Ask the job for a savepoint: in one form, and when it was taken, in the other."""
        ask(self._directory, FORMS[len(self.savepoints) % len(FORMS)])

    def break_off(self, strike: Strike) -> None:
        """The driver has died; if it was at a savepoint, nobody goes on from that."""
        withdraw(self._directory)
        self._unreported += strike.kind == COMPLETE
        self._unfinished += strike.kind in SAVING and strike.kind != COMPLETE

    def finish(self, driver: Driver, options: JobOptions) -> JobOptions:
        """Wait until the job has stopped; what the program is told that goes on."""
        ended = driver.wait(PATIENCE)
        withdraw(self._directory)
        left = [
            path.name
            for path in storage_of(self._directory, options).rglob("*")
            if USED not in (path.name, path.parent.name)
        ]
        if ended["status"] != "FINISHED" or left != [STOPPED]:
            self._faults.append(f"stopped with a savepoint: {ended}, checkpoint storage: {left}")
        self.savepoints.append(Path(ended["savepoint"]))
        return successor(options, ended["savepoint"], len(self.savepoints))

    def wrong(self) -> list[str]:
        """What must not be, of all savepoints and the jobs that were stopped with them."""
        target = savepoints_in(self._directory)
        return self._faults + wrong_savepoints(
            target, self.savepoints, unreported=self._unreported, unfinished=self._unfinished
        )
