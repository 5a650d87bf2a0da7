"""Kills parts of a running job at seeded moments, and holds the end against what must be."""

from __future__ import annotations

import json
import random
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from tests.chaos.compare import differences, expected_state, state_in
from tests.chaos.driver import (
    ChaosError,
    Driver,
    completed_checkpoints,
    local_leftovers,
    log_lines,
    missing,
    orphans,
    wait_for,
)
from tests.chaos.events import KEYS
from tests.chaos.job import LARGEST_EPOCH, JobOptions

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.chaos.compare import State
    from tests.chaos.processes import Process

PATIENCE = 180.0
"""Seconds within which a job must get anywhere, on a machine that has much else to do."""
TAIL = LARGEST_EPOCH + 4 * KEYS
"""Probes after which, however epochs are cut, all state was given out after all data."""
EVENTS_PER_KILL = 400
RATE = 300.0


@dataclass(frozen=True)
class Plan:
    """What one run does."""

    seed: int
    kills: int
    backend: str = "hashmap"
    cluster: bool = False
    only: str | None = None
    """What is killed; all that there is, in turn, if not given."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """What is killed, in turn."""
        if self.only is not None:
            return (self.only,)
        return ("driver", "worker", "executor") if self.cluster else ("driver", "worker")

    @property
    def options(self) -> JobOptions:
        """What the program is told, every time."""
        return JobOptions(
            data=max(self.kills, 1) * EVENTS_PER_KILL,
            rate=RATE,
            backend=self.backend,
            master="local-cluster[2,2,1024]" if self.cluster else "local[2]",
        )

    @property
    def command(self) -> str:
        """How to do the same again."""
        cluster = " --cluster" if self.cluster else ""
        cluster += "" if self.only is None else f" --only {self.only}"
        return (
            f'make chaos ARGS="--seed {self.seed} --kills {self.kills} '
            f'--backend {self.backend}{cluster}"'
        )


@dataclass(frozen=True)
class Kill:
    """One kill."""

    at: float
    """Seconds since the start."""
    kind: str
    victim: str


@dataclass
class Outcome:
    """What a run has come to; whatever is in `faults` must not be."""

    kills: list[Kill] = field(default_factory=list)
    starts: int = 0
    """Times the program was started."""
    restarts: int = 0
    """Times it went back to a checkpoint by itself."""
    restores: int = 0
    checkpoints: int = 0
    faults: list[str] = field(default_factory=list)


class Monkey:
    """One run of the job among kills."""

    def __init__(self, plan: Plan, directory: Path, say: Callable[[str], None]) -> None:
        self._plan = plan
        self._directory = directory
        self._say = say
        self._random = random.Random(plan.seed)
        self._drivers: list[Driver] = []
        self._outcome = Outcome()
        self._started = time.monotonic()

    def run(self) -> Outcome:
        """Start the job, kill, let it end, and look at what is left; never raises."""
        try:
            self._start(self._plan.options)
            for number in range(self._plan.kills):
                self._strike(self._plan.kinds[number % len(self._plan.kinds)])
            self._end()
            self._close()
        except ChaosError as error:
            self._outcome.faults.append(str(error))
        finally:
            self._count()
            for driver in self._drivers:
                driver.kill_all()
        return self._outcome

    def _start(self, options: JobOptions) -> None:
        self._drivers.append(Driver(self._directory, options))
        self._outcome.starts += 1

    def _strike(self, kind: str) -> None:
        """Choose a moment, and kill."""
        # Mostly after some progress, so that the job gets on; else anywhere, be it within
        # the start of a driver or in the middle of a recovery.
        if self._random.random() < 0.7:
            self._await_progress()
            self._pass_time(self._random.uniform(0.0, 1.5))
        else:
            self._pass_time(self._random.uniform(0.0, 6.0))
        driver = self._drivers[-1]
        if kind == "driver":
            self._note(kind, str(driver.session))
            driver.kill()
            self._start(self._plan.options)
            return
        # An idle worker is replaced without anyone noticing; one at work takes its epoch along.
        at_work = kind == "worker" and self._random.random() < 0.8
        victim = wait_for(
            lambda: self._kill_one(driver, kind, at_work=at_work), PATIENCE, f"a {kind} to kill"
        )
        self._note(kind, str(victim))

    def _kill_one(self, driver: Driver, kind: str, *, at_work: bool) -> Process | None:
        self._check_alive(driver)
        victims = [p for p in driver.processes() if getattr(p, f"is_{kind}")]
        if at_work:
            victims = [p for p in victims if p.holds_state()]
        if not victims:
            return None
        victim = self._random.choice(victims)
        return victim if victim.kill() else None

    def _await_progress(self) -> None:
        before = len(completed_checkpoints(self._directory))
        driver = self._drivers[-1]

        def progressed() -> bool:
            self._check_alive(driver)
            return len(completed_checkpoints(self._directory)) > before

        wait_for(progressed, PATIENCE, f"a checkpoint after the {before} so far")

    def _pass_time(self, seconds: float) -> None:
        # The moment is the point here: there is no condition to wait for.
        time.sleep(seconds)

    def _check_alive(self, driver: Driver) -> None:
        if driver.has_ended():
            raise ChaosError("the driver has ended by itself; its log says why")

    def _note(self, kind: str, victim: str) -> None:
        kill = Kill(time.monotonic() - self._started, kind, victim)
        self._outcome.kills.append(kill)
        completed = completed_checkpoints(self._directory)[-1:] or ["none"]
        number = len(self._outcome.kills)
        self._say(f"{kill.at:7.1f} s  kill {number}: {kind} {victim}, checkpoint {completed[0]}")

    def _end(self) -> None:
        """Let the job process all data and be cancelled; its newest checkpoint stays."""
        (self._directory / "finish").touch()
        ended = self._drivers[-1].wait(PATIENCE + self._plan.options.data / RATE)
        self._say(f"{time.monotonic() - self._started:7.1f} s  all data processed: {ended}")
        self._expect("status", ended["status"], "CANCELED")
        self._expect("orphans in checkpoint storage", orphans(self._directory), [])
        self._expect("files missing from checkpoints", missing(self._directory), [])

    def _close(self) -> None:
        """Start once more, from the checkpoint that stayed; read the state, and finish."""
        results = self._directory / "results.json"
        seen = json.loads(results.read_text())["seen"]
        results.unlink()
        (self._directory / "finish").unlink()
        before = set(local_leftovers(self._directory)) if self._plan.cluster else set()
        options = self._plan.options
        restores = self._restores()
        count = max(seen, options.data) + TAIL
        self._start(replace(options, rate=None, count=count))
        ended = self._drivers[-1].wait(PATIENCE)
        self._expect("status", ended["status"], "FINISHED")
        self._expect("restores at the last start", self._restores() > restores, True)
        data = self._plan.options.data
        found = state_in(json.loads(results.read_text()))
        self._outcome.faults += differences(expected_state(range(data), data), found)
        storage = [str(path) for path in (self._directory / "checkpoints").iterdir()]
        self._expect("files of a finished job in checkpoint storage", storage, [])
        self._look_for_leftovers(before)

    def _look_for_leftovers(self, before: set[str]) -> None:
        """Look for what outlives the job: directories that were not there `before`, processes."""
        left = sorted(set(local_leftovers(self._directory)) - before)
        self._expect("local directories left over", left, [])
        alive = [driver.processes for driver in self._drivers]
        try:
            wait_for(lambda: not any(find() for find in alive), 60, "the end of all processes")
        except ChaosError:
            left = [str(process) for find in alive for process in find()]
            self._expect("processes left over", left, [])

    def _expect(self, what: str, found: object, wanted: object) -> None:
        if found != wanted:
            self._outcome.faults.append(f"{what}: {found} instead of {wanted}")

    def _restores(self) -> int:
        return len(log_lines(self._directory, r"restored from checkpoint (\d+)"))

    def _count(self) -> None:
        outcome = self._outcome
        outcome.checkpoints = len(completed_checkpoints(self._directory))
        outcome.restores = self._restores()
        outcome.restarts = len(log_lines(self._directory, r"failed and restarts in ([\d.]+) s"))


def undisturbed(plan: Plan, directory: Path) -> State:
    """The state that the same job comes to when nobody disturbs it."""
    options = replace(plan.options, rate=None, count=plan.options.data + TAIL)
    driver = Driver(directory, options)
    try:
        driver.wait(PATIENCE)
    finally:
        driver.kill_all()
    return state_in(json.loads((directory / "results.json").read_text()))
