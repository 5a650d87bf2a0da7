"""Kills parts of a running job at seeded moments, and holds the end against what must be."""

from __future__ import annotations

import random
import time
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

from holdfast.checkpoint.endings import STOPPED
from tests.chaos.driver import (
    PATIENCE,
    SLOWEST,
    ChaosError,
    Driver,
    completed_checkpoints,
    holds_input,
    lists_output,
    local_leftovers,
    log_lines,
    missing,
    orphans,
    storage_of,
    wait_for,
)
from tests.chaos.handover import Handovers
from tests.chaos.job import events_given_out, forget_state
from tests.chaos.plan import TAIL, Kill, Outcome
from tests.chaos.strikes import (
    HANDOVER,
    HANDOVER_WORKER,
    HANDOVERS,
    RECOVERING,
    RESTORING,
    SAVING,
    Trap,
)
from tests.chaos.verdict import with_tables, wrong_results

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.chaos.job import JobOptions
    from tests.chaos.plan import Plan
    from tests.chaos.processes import Process
    from tests.chaos.strikes import Strike
    from tests.integration.postgres import PostgresServer

SCHEMA = "disturbed"


class Monkey:
    """One run of the job among kills."""

    def __init__(
        self,
        plan: Plan,
        directory: Path,
        say: Callable[[str], None],
        server: PostgresServer | None,
    ) -> None:
        self._plan = plan
        self._directory = directory
        self._say = say
        self._server = server
        self._options = with_tables(plan.options, server, SCHEMA)
        self._random = random.Random(plan.seed)
        self._trap = Trap(directory)
        self._drivers: list[Driver] = []
        self._handovers = Handovers(directory)
        self._outcome = Outcome()
        self._started = time.monotonic()

    def run(self) -> Outcome:
        """Start the job, kill, let it end, and look at what is left; never raises."""
        try:
            self._start(self._options)
            for strike, following in pairwise([*self._plan.strikes, None]):
                assert strike is not None
                self._strike(strike, following)
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

    def _strike(self, strike: Strike, following: Strike | None) -> None:
        """Choose a moment, and kill; then start what has ended."""
        driver, cluster = self._drivers[-1], self._plan.cluster
        if strike.is_point:
            self._spring_trap(strike, driver)
        else:
            self._await_moment(strike)
            if strike.kind in HANDOVERS:
                self._handovers.ask()
            self._kill(strike.kind, driver)
        if strike.hands_over(cluster=cluster):
            self._options = self._handovers.finish(driver, self._options)
            if strike.kind == HANDOVER:
                self._note(HANDOVER, f"by {self._handovers.savepoints[-1].name}")
        elif strike.hits_driver(cluster=cluster):
            # Its Java side, which does not die by itself at once, and what is set for the next.
            driver.kill()
            self._handovers.break_off(strike)
            if following is not None and following.kind == RECOVERING:
                self._let_output_be_listed()
        else:
            return
        if following is not None and following.is_point and self._is_early(following):
            self._trap.set(following)
        self._start(self._options)

    def _let_output_be_listed(self) -> None:
        """Go on until the newest checkpoint of a job that is dead has output to publish."""
        while not lists_output(self._storage):
            self._start(self._options)
            driver = self._drivers[-1]

            def listed(driver: Driver = driver) -> bool:
                self._check_alive(driver)
                return lists_output(self._storage)

            wait_for(listed, PATIENCE, "a checkpoint with output")
            driver.kill()

    def _is_early(self, point: Strike) -> bool:
        """Whether a successor may die in its recovery, where it publishes for another."""
        if point.kind in SAVING:
            return False
        return point.kind in (RECOVERING, RESTORING) or self._random.random() < 0.5

    def _spring_trap(self, point: Strike, driver: Driver) -> None:
        """Let a process come to a point and die there."""
        if point.kind in SAVING:
            self._await_output()
        if point.kind not in (RECOVERING, RESTORING):
            self._pass_time(self._random.uniform(0.0, 2.0))
        self._trap.set(point)
        if point.kind in SAVING:
            self._handovers.ask()

        def struck() -> bool:
            ended = driver.has_ended()
            if self._trap.has_struck():
                return True
            if ended:
                raise ChaosError("the driver has ended by itself; its log says why")
            return False

        wait_for(struck, PATIENCE, f"anyone at {point}")
        if point.hits_driver(cluster=self._plan.cluster):
            wait_for(driver.has_ended, PATIENCE, f"the end of a driver at {point}")
        self._note(point.kind, point.uid or str(driver.session))

    def _await_moment(self, strike: Strike) -> None:
        # Mostly after some progress, so that the job gets on; else anywhere, be it within
        # the start of a driver or in the middle of a recovery.
        later = self._random.random() < 0.7
        if strike.kind in HANDOVERS and (later or not self._seen()):
            self._await_output()
        elif later:
            self._await_progress()
        if later:
            self._pass_time(self._random.uniform(0.0, 1.5))
        else:
            self._pass_time(self._random.uniform(0.0, 6.0))

    def _kill(self, kind: str, driver: Driver) -> None:
        if kind == "driver":
            self._note(kind, str(driver.session))
            driver.kill()
        elif kind == "database":
            self._kill_database()
        elif kind == HANDOVER_WORKER:
            self._kill_beside_savepoint(driver)
        elif kind != HANDOVER:
            self._kill_one_of(kind, driver)

    def _kill_one_of(self, kind: str, driver: Driver) -> None:
        # An idle worker is replaced without anyone noticing; one at work takes its epoch along.
        at_work = kind == "worker" and self._random.random() < 0.8

        def killed() -> Process | None:
            self._check_alive(driver)
            return self._kill_any(driver, kind, at_work=at_work)

        self._note(kind, str(wait_for(killed, PATIENCE, f"a {kind} to kill")))

    def _kill_beside_savepoint(self, driver: Driver) -> None:
        """Kill a worker, unless the savepoint comes before one is at work."""

        def killed() -> Process | str | None:
            victim = self._kill_any(driver, "worker", at_work=True)
            return victim or ("none any more" if driver.has_ended() else None)

        self._note(HANDOVER_WORKER, str(wait_for(killed, PATIENCE, "a worker to kill")))

    def _kill_database(self) -> None:
        assert self._server is not None, "the plan has sinks"
        self._note("database", "and all its connections")
        self._server.kill()
        self._pass_time(self._random.uniform(0.0, 2.0))
        self._server.start()

    def _kill_any(self, driver: Driver, kind: str, *, at_work: bool) -> Process | None:
        victims = [p for p in driver.processes() if getattr(p, f"is_{kind}")]
        if at_work:
            victims = [p for p in victims if p.holds_state()]
        if not victims:
            return None
        victim = self._random.choice(victims)
        return victim if victim.kill() else None

    def _await_progress(self) -> None:
        self._await_more(lambda: len(completed_checkpoints(self._directory)), "a checkpoint")

    def _await_output(self) -> None:
        """Wait for output, which comes from the last operator: all of them have state then."""
        self._await_more(self._seen, "output")

    def _await_more(self, measure: Callable[[], int], what: str) -> None:
        driver, before = self._drivers[-1], measure()

        def progressed() -> bool:
            self._check_alive(driver)
            return measure() > before

        wait_for(progressed, PATIENCE, f"{what} after the {before} so far")

    def _seen(self) -> int:
        """Events that the job has given out."""
        return events_given_out(self._directory / "results.json")

    def _pass_time(self, seconds: float) -> None:
        # The moment is the point here: there is no condition to wait for.
        time.sleep(seconds)

    def _check_alive(self, driver: Driver) -> None:
        if driver.has_ended():
            raise ChaosError("the driver has ended by itself; its log says why")

    def _note(self, kind: str, victim: str) -> None:
        left_over = holds_input(self._storage)
        kill = Kill(time.monotonic() - self._started, kind, victim, left_over)
        self._outcome.kills.append(kill)
        completed = completed_checkpoints(self._directory)[-1:] or ["none"]
        number = len(self._outcome.kills)
        held = " with input left over" if left_over else ""
        self._say(
            f"{kill.at:7.1f} s  kill {number}: {kind} {victim}, checkpoint {completed[0]}{held}"
        )

    def _end(self) -> None:
        """Let the job process all data and be cancelled; its newest checkpoint stays."""
        (self._directory / "finish").touch()
        ended = self._drivers[-1].wait(PATIENCE + self._options.data / SLOWEST)
        self._say(f"{time.monotonic() - self._started:7.1f} s  all data processed: {ended}")
        self._expect("status", ended["status"], "CANCELED")
        self._expect("orphans in checkpoint storage", orphans(self._storage), [])
        self._expect("files missing from checkpoints", missing(self._storage), [])

    def _close(self) -> None:
        """Start once more, from the checkpoint that stayed; read the state, and finish."""
        results = self._directory / "results.json"
        seen = forget_state(results)["seen"]
        (self._directory / "finish").unlink()
        before = set(local_leftovers(self._directory)) if self._plan.cluster else set()
        restores = self._restores()
        count = max(seen, self._options.data) + TAIL
        last = replace(self._options, rate=None, count=count)
        self._start(last)
        ended = self._drivers[-1].wait(PATIENCE + TAIL / SLOWEST)
        self._expect("status", ended["status"], "FINISHED")
        self._expect("restores at the last start", self._restores() > restores, True)
        self._outcome.faults += wrong_results(self._directory, last, self._server)
        # Jobs that were stopped with a savepoint have left a note, and nothing else.
        storage = [
            str(path)
            for path in (self._directory / "checkpoints").rglob("*")
            if path.name != STOPPED and not (path / STOPPED).exists()
        ]
        self._expect("files of a finished job in checkpoint storage", storage, [])
        self._outcome.faults += self._handovers.wrong()
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

    @property
    def _storage(self) -> Path:
        """The checkpoint storage of the job that runs now."""
        return storage_of(self._directory, self._options)

    def _restores(self) -> int:
        return len(log_lines(self._directory, r"restored from checkpoint (\d+)"))

    def _count(self) -> None:
        outcome = self._outcome
        outcome.checkpoints = len(completed_checkpoints(self._directory))
        outcome.restores = self._restores()
        outcome.handovers = len(self._handovers.savepoints)
        outcome.restarts = len(log_lines(self._directory, r"failed and restarts in ([\d.]+) s"))
