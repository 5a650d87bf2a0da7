"""Strikes at a running job at seeded moments, and holds the end against what must be."""

from __future__ import annotations

from itertools import chain, pairwise
from math import inf
from typing import TYPE_CHECKING

from tests.chaos.breakdowns import Breakdowns
from tests.chaos.driver import PATIENCE, ChaosError, wait_for
from tests.chaos.ending import Ending
from tests.chaos.ground import RestoreTarget
from tests.chaos.handover import Handovers
from tests.chaos.places import checkpoints_of, lists_output, state_of
from tests.chaos.sampler import Sampler, watched
from tests.chaos.stage import Stage
from tests.chaos.stretches import PAUSES, WILD
from tests.chaos.strikes import (
    FATAL,
    GENTLE,
    HANDOVER,
    HANDOVER_WORKER,
    HANDOVERS,
    RECOVERING,
    RESTORING,
    SAVING,
)
from tests.chaos.trap import Trap
from tests.chaos.verdict import with_tables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from tests.chaos.driver import Driver
    from tests.chaos.plan import Outcome, Plan
    from tests.chaos.processes import Process
    from tests.chaos.strikes import Strike
    from tests.support.postgres import PostgresServer

SCHEMA = "disturbed"


class Monkey:
    """One run of the job among strikes."""

    def __init__(
        self,
        plan: Plan,
        directory: Path,
        say: Callable[[str], None],
        server: PostgresServer | None,
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._plan = plan
        self._directory = directory
        self._server = server
        self._ground = RestoreTarget(directory, small=plan.gives_way)
        options = self._ground.under(with_tables(plan.options, server, SCHEMA))
        self._stage = Stage(plan, directory, options, say)
        self._breakdowns = Breakdowns(self._stage, self._ground)
        self._trap = Trap(directory)
        self._handovers = Handovers(directory)
        self._ending = Ending(self._stage, self._handovers, server)
        self._wild = True
        """Whether drivers die now."""
        self._pause = 0.0
        """Seconds to let pass after a strike, at most."""
        disks = watched(directory, checkpoints_of(directory, options), state_of(directory, options))
        drivers = self._stage.drivers
        self._sampler = Sampler(directory, disks, lambda: drivers[-1] if drivers else None)

    def run(self) -> Outcome:
        """Start the job, strike, let it end, and look at what is left; never raises."""
        self._sampler.start()
        try:
            self._start()
            if self._plan.minutes is None:
                self._strike_all(self._plan.strikes)
            else:
                self._strike_for_long()
            self._ending.finish()
            self._ending.compare()
        except ChaosError as error:
            self._stage.outcome.faults.append(str(error))
            self._stage.driver.write_stacks()
        finally:
            self._sampler.stop()
            self._ending.judge(self._sampler.samples)
            for driver in self._stage.drivers:
                driver.kill_all()
            self._ground.clear()
        return self._stage.outcome

    def _strike_for_long(self) -> None:
        end = self._stage.seconds
        for stretch in self._plan.stretches:
            end += stretch.seconds
            minutes = stretch.seconds / 60
            self._stage.say(f"{self._stage.seconds:7.1f} s  {stretch.name}: {minutes:.1f} minutes")
            self._wild = stretch.name == WILD
            self._pause = PAUSES[stretch.name]
            self._strike_all(self._plan.strikes_in(stretch), end)
            while self._stage.seconds < end:
                self._stage.check_alive()
                self._stage.pass_time(0.5)

    def _strike_all(self, strikes: Iterable[Strike], end: float = inf) -> None:
        """Strike until none is left or the time is up; but a trap that is set strikes."""
        for strike, following in pairwise(chain(strikes, [None])):
            assert strike is not None
            if self._stage.seconds >= end and not self._trap.is_set:
                return
            self._strike(strike, following)
            self._stage.pass_time(self._stage.random.uniform(0.0, self._pause))

    def _start(self) -> None:
        """Start the program, on plain files or on storage that may fail."""
        flaky = not self._wild or self._stage.random.random() < 0.5
        self._stage.start_on(flaky=self._plan.gives_way and flaky)

    def _strike(self, strike: Strike, following: Strike | None) -> None:
        """Choose a moment, and strike; then start what has ended."""
        driver, cluster = self._stage.driver, self._plan.cluster
        if strike.is_point:
            self._spring_trap(strike, driver)
        else:
            self._await_moment(strike)
            if strike.kind in HANDOVERS:
                self._handovers.ask()
            self._hit(strike, driver)
        if strike.hands_over(cluster=cluster):
            self._stage.options = self._handovers.finish(driver, self._stage.options)
            if strike.kind == HANDOVER:
                self._stage.note(HANDOVER, f"by {self._handovers.savepoints[-1].name}")
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
        self._start()

    def _let_output_be_listed(self) -> None:
        """Go on until the newest checkpoint of a job that is dead has output to publish."""
        while not lists_output(self._stage.storage):
            self._start()

            def listed() -> bool:
                self._stage.check_alive()
                return lists_output(self._stage.storage)

            wait_for(listed, PATIENCE, "a checkpoint with output")
            self._stage.driver.kill()

    def _is_early(self, point: Strike) -> bool:
        """Whether a successor may die in its recovery, where it publishes for another."""
        if point.kind in SAVING:
            return False
        return point.kind in (RECOVERING, RESTORING) or self._stage.random.random() < 0.5

    def _spring_trap(self, point: Strike, driver: Driver) -> None:
        """Let a process come to a point and die there."""
        if point.kind in SAVING:
            self._stage.await_output()
        if point.kind not in (RECOVERING, RESTORING):
            self._stage.pass_time(self._stage.random.uniform(0.0, 2.0))
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
        self._stage.note(point.kind, point.uid or str(driver.session))

    def _await_moment(self, strike: Strike) -> None:
        # Mostly after some progress, so that the job gets on; else anywhere, be it within
        # the start of a driver or in the middle of a recovery. An executor that dies before
        # the first epoch has no state to lose, and Spark replaces it unnoticed.
        later = self._stage.random.random() < 0.7 or strike.kind == "executor"
        if strike.kind in HANDOVERS and (later or not self._stage.seen()):
            self._stage.await_output()
        elif later:
            self._stage.await_progress()
        if later:
            self._stage.pass_time(self._stage.random.uniform(0.0, 1.5))
        else:
            self._stage.pass_time(self._stage.random.uniform(0.0, 6.0))

    def _hit(self, strike: Strike, driver: Driver) -> None:
        kind = strike.kind
        if kind == "driver":
            self._stage.note(kind, str(driver.session))
            driver.kill()
        elif kind == "database":
            self._kill_database()
        elif kind in GENTLE:
            self._breakdowns.live_through(strike)
        elif kind in FATAL:
            self._breakdowns.end_driver(strike)
        elif kind == HANDOVER_WORKER:
            self._kill_beside_savepoint(driver)
        elif kind != HANDOVER:
            self._kill_one_of(kind)

    def _kill_one_of(self, kind: str) -> None:
        # An idle worker is replaced without anyone noticing; one at work takes its epoch along.
        at_work = kind == "worker" and self._stage.random.random() < 0.8

        def killed() -> Process | None:
            self._stage.check_alive()
            return self._stage.kill_any(kind, at_work=at_work)

        self._stage.note(kind, str(wait_for(killed, PATIENCE, f"a {kind} to kill")))

    def _kill_beside_savepoint(self, driver: Driver) -> None:
        """Kill a worker, unless the savepoint comes before one is at work."""

        def killed() -> Process | str | None:
            victim = self._stage.kill_any("worker", at_work=True)
            return victim or ("none any more" if driver.has_ended() else None)

        self._stage.note(HANDOVER_WORKER, str(wait_for(killed, PATIENCE, "a worker to kill")))

    def _kill_database(self) -> None:
        assert self._server is not None, "the plan has sinks"
        self._stage.note("database", "and all its connections")
        self._server.kill()
        self._stage.pass_time(self._stage.random.uniform(0.0, 2.0))
        self._server.start()
