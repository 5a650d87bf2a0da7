"""Kills parts of a running job at seeded moments, and holds the end against what must be."""

from __future__ import annotations

import json
import random
import time
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

from tests.chaos.compare import differences, expected_state, state_in, tally_of
from tests.chaos.driver import (
    ChaosError,
    Driver,
    completed_checkpoints,
    holds_input,
    lists_output,
    local_leftovers,
    log_lines,
    missing,
    orphans,
    wait_for,
)
from tests.chaos.job import forget_state
from tests.chaos.plan import TAIL, Kill, Outcome
from tests.chaos.sinks import create_tables, expected_rows, row_differences, staged_files, written
from tests.chaos.strikes import RECOVERING, Strike, Trap

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.chaos.job import JobOptions
    from tests.chaos.plan import Plan
    from tests.chaos.processes import Process
    from tests.integration.postgres import PostgresServer

PATIENCE = 180.0
"""Seconds within which a job must get anywhere, on a machine that has much else to do."""
SLOWEST = 40.0
"""Events in a second that a job gets through at least, be it slow and the machine busy."""
SCHEMA = "disturbed"
CALM_SCHEMA = "undisturbed"


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
        """Choose a moment, and kill."""
        driver = self._drivers[-1]
        if strike.is_point:
            self._spring_trap(strike, driver)
        else:
            self._await_moment()
            self._kill(strike.kind, driver)
        if strike.hits_driver(cluster=self._plan.cluster):
            # Its Java side, which does not die by itself at once, and what is set for the next.
            driver.kill()
            if _recovers(following):
                self._let_output_be_listed()
            if following is not None and following.is_point and self._is_early(following):
                self._trap.set(following)
            self._start(self._options)

    def _let_output_be_listed(self) -> None:
        """Go on until the newest checkpoint of a job that is dead has output to publish."""
        while not lists_output(self._directory):
            self._start(self._options)
            driver = self._drivers[-1]

            def listed(driver: Driver = driver) -> bool:
                self._check_alive(driver)
                return lists_output(self._directory)

            wait_for(listed, PATIENCE, "a checkpoint with output")
            driver.kill()

    def _is_early(self, point: Strike) -> bool:
        """Whether a successor may die in its recovery, where it publishes for another."""
        return _recovers(point) or self._random.random() < 0.5

    def _spring_trap(self, point: Strike, driver: Driver) -> None:
        """Let a process come to a point and die there."""
        if not _recovers(point):
            self._pass_time(self._random.uniform(0.0, 2.0))
        self._trap.set(point)

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

    def _await_moment(self) -> None:
        # Mostly after some progress, so that the job gets on; else anywhere, be it within
        # the start of a driver or in the middle of a recovery.
        if self._random.random() < 0.7:
            self._await_progress()
            self._pass_time(self._random.uniform(0.0, 1.5))
        else:
            self._pass_time(self._random.uniform(0.0, 6.0))

    def _kill(self, kind: str, driver: Driver) -> None:
        if kind == "driver":
            self._note(kind, str(driver.session))
            driver.kill()
            return
        if kind == "database":
            self._kill_database()
            return
        # An idle worker is replaced without anyone noticing; one at work takes its epoch along.
        at_work = kind == "worker" and self._random.random() < 0.8
        victim = wait_for(
            lambda: self._kill_one(driver, kind, at_work=at_work), PATIENCE, f"a {kind} to kill"
        )
        self._note(kind, str(victim))

    def _kill_database(self) -> None:
        assert self._server is not None, "the plan has sinks"
        self._note("database", "and all its connections")
        self._server.kill()
        self._pass_time(self._random.uniform(0.0, 2.0))
        self._server.start()

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
        left_over = holds_input(self._directory)
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
        self._expect("orphans in checkpoint storage", orphans(self._directory), [])
        self._expect("files missing from checkpoints", missing(self._directory), [])

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


def _recovers(strike: Strike | None) -> bool:
    return strike is not None and strike.kind == RECOVERING


def with_tables(options: JobOptions, server: PostgresServer | None, schema: str) -> JobOptions:
    """The same options for a job that writes to tables, which are made here, if it has sinks."""
    if server is None:
        return options
    create_tables(server, schema)
    return replace(options, database=server.url, schema=schema)


def wrong_results(directory: Path, options: JobOptions, server: PostgresServer | None) -> list[str]:
    """What is not as it must be of what a job that has finished gave out."""
    assert options.count is not None, "the job ends by itself"
    results = json.loads((directory / "results.json").read_text())
    faults: list[str] = results["faults"]
    faults += differences(expected_state(range(options.data), options.data), state_in(results))
    if results["all"] != [*tally_of(range(options.count))]:
        faults.append(f"events given out: {results['all']}, not each of {options.count} once")
    if server is not None:
        found = written(directory, server, options.schema, options.data)
        faults += row_differences(expected_rows(options.count, options.data), found)
        staged = staged_files(directory)
        faults += [f"staged and left behind: {staged}"] if staged else []
    return faults


def wrong_undisturbed(plan: Plan, directory: Path, server: PostgresServer | None) -> list[str]:
    """What is not as it must be of the same job when nobody disturbs it."""
    options = with_tables(plan.options, server, CALM_SCHEMA)
    options = replace(options, rate=None, count=options.data + TAIL)
    driver = Driver(directory, options)
    try:
        driver.wait(PATIENCE + (options.data + TAIL) / SLOWEST)
    except ChaosError as error:
        return [str(error)]
    finally:
        driver.kill_all()
    return wrong_results(directory, options, server)
