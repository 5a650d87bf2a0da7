"""A run of the job as it stands: its drivers, its files, what was seen and said of it."""

from __future__ import annotations

import random
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from tests.chaos.driver import PATIENCE, ChaosError, Driver, wait_for
from tests.chaos.job import REFUSED, SUSPENDED
from tests.chaos.log import Log
from tests.chaos.places import holds_input, storage_of
from tests.chaos.plan import Kill, Outcome
from tests.chaos.results import events_given_out

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.chaos.job import JobOptions
    from tests.chaos.plan import Plan
    from tests.chaos.processes import Process


def is_refusal(error: str) -> bool:
    """Whether a start was refused since a checkpoint is not whole."""
    return error.startswith(("RestoreError", "CorruptCheckpointError"))


class Stage:
    """One run of the job, for those who disturb it."""

    def __init__(
        self, plan: Plan, directory: Path, options: JobOptions, say: Callable[[str], None]
    ) -> None:
        self.plan = plan
        self.directory = directory
        self.options = options
        """What the next driver is told."""
        self.random = random.Random(plan.seed)
        self.drivers: list[Driver] = []
        self.log = Log(directory)
        self.outcome = Outcome()
        self.say = say
        self._started = time.monotonic()

    @property
    def driver(self) -> Driver:
        """The driver that was started last."""
        return self.drivers[-1]

    @property
    def storage(self) -> Path:
        """The checkpoint storage of the job that runs now."""
        return storage_of(self.directory, self.options)

    @property
    def seconds(self) -> float:
        """How long the run takes so far."""
        return time.monotonic() - self._started

    def start(self) -> Driver:
        """Start the program."""
        self.drivers.append(Driver(self.directory, self.options))
        self.outcome.starts += 1
        return self.driver

    def start_on(self, *, flaky: bool) -> None:
        """Start the program on checkpoint storage that fails when it is told to, or on plain."""
        self.options = replace(self.options, flaky=flaky)
        self.start()

    def check_alive(self) -> None:
        """Raise if the driver has ended by itself."""
        if self.driver.has_ended():
            code, ended = self.driver.end(0)
            raise ChaosError(
                f"the driver has ended by itself with {code}: {ended}; its log says why"
            )

    def revive(self) -> None:
        """Start the job again if it was suspended, or not even started for want of storage.

        Storage that fails is no reason to call a checkpoint bad, nor to let a job fail for
        good that ran before.
        """
        if self.driver.has_ended():
            code, ended = self.driver.end(0)
            errors = ended.get("errors", [])
            refused = code == REFUSED and ended["status"] == "REFUSED"
            if code == SUSPENDED or (refused and not any(map(is_refusal, errors))):
                self.say(f"{self.seconds:7.1f} s  {ended['status']}, started again: {errors[-1:]}")
                self.outcome.suspended += 1
                self.start()
        self.check_alive()

    def await_progress(self) -> None:
        """Wait for another checkpoint."""
        self._await_more(lambda: len(self.log.complete), "a checkpoint", self.check_alive)

    def await_recovery(self) -> None:
        """Wait for another checkpoint of a job that may have been suspended meanwhile."""
        self._await_more(lambda: len(self.log.complete), "a checkpoint", self.revive)

    def await_output(self) -> None:
        """Wait for output, which comes from the last operator: all of them have state then."""
        self._await_more(self.seen, "output", self.check_alive)

    def _await_more(self, measure: Callable[[], int], what: str, check: Callable[[], None]) -> None:
        before = measure()

        def progressed() -> bool:
            check()
            return measure() > before

        wait_for(progressed, PATIENCE, f"{what} after the {before} so far")

    def seen(self) -> int:
        """Events that the job has given out."""
        return events_given_out(self.directory / "results.json")

    def pass_time(self, seconds: float) -> None:
        """Let some time pass."""
        # The moment is the point here: there is no condition to wait for.
        time.sleep(seconds)

    def kill_any(self, kind: str, *, at_work: bool) -> Process | None:
        """Kill a process of that kind, if there is one; which."""
        victims = [p for p in self.driver.processes() if getattr(p, f"is_{kind}")]
        if at_work:
            victims = [p for p in victims if p.holds_state()]
        if not victims:
            return None
        victim = self.random.choice(victims)
        return victim if victim.kill() else None

    def note(self, kind: str, victim: str) -> None:
        """Write down what was struck."""
        channel_state = holds_input(self.storage)
        kill = Kill(self.seconds, kind, victim, channel_state)
        self.outcome.kills.append(kill)
        completed = self.log.complete[-1:] or ["none"]
        number = len(self.outcome.kills)
        held = " with input left over" if channel_state else ""
        self.say(f"{kill.at:7.1f} s  {number}: {kind} {victim}, checkpoint {completed[0]}{held}")

    def expect(self, what: str, found: object, wanted: object) -> None:
        """Write down a fault if something is not as it must be."""
        if found != wanted:
            self.outcome.faults.append(f"{what}: {found} instead of {wanted}")
