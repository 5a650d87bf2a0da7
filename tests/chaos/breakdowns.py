"""Strikes at what a job stands on: it lives through some, and others end its driver."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from tests.chaos.driver import PATIENCE, ChaosError, wait_for
from tests.chaos.ground import flip_local_copies, held_still, hidden_file
from tests.chaos.job import REFUSED, STOP_SESSION
from tests.chaos.places import missing, newest_checkpoint
from tests.chaos.stage import is_refusal
from tests.chaos.strikes import (
    FLAKY,
    FULL_CHECKPOINTS,
    FULL_LOCAL,
    JAVA,
    MISSING_FILE,
    MISSING_METADATA,
    ROT,
)

if TYPE_CHECKING:
    from tests.chaos.ground import RestoreTarget
    from tests.chaos.processes import Process
    from tests.chaos.stage import Stage
    from tests.chaos.strikes import Strike

SHORTEST, LONGEST = 1.0, 8.0
"""Seconds for which something is out of order, if the job has noticed by then."""
UNNOTICED = 40.0
"""Seconds after which it is in order again though nobody has noticed."""


class Breakdowns:
    """What gives way below a job, one thing after the other."""

    def __init__(self, stage: Stage, ground: RestoreTarget) -> None:
        self._stage = stage
        self._ground = ground

    def live_through(self, strike: Strike) -> None:
        """Let something give way for a while; the job must get on when it is over."""
        stage = self._stage
        if self._ground.is_storage(strike.kind) and not stage.options.flaky:
            stage.driver.kill()
            stage.start_on(flaky=True)
            stage.await_progress()
        if strike.kind == ROT:
            self._let_copies_rot()
        else:
            with self._ground.giving_way(strike, stage.driver) as what:
                before = len(stage.log.failed)
                stage.note(strike.kind, what)
                stage.pass_time(SHORTEST + (LONGEST - SHORTEST) * strike.strength)
                if strike.kind in (FULL_CHECKPOINTS, FULL_LOCAL, FLAKY):
                    self._await_failure(before)
        stage.await_recovery()

    def _await_failure(self, before: int) -> None:
        """Wait until the job has met what is out of order; a slow one may take its time."""
        stage = self._stage
        with suppress(ChaosError):
            wait_for(
                lambda: stage.driver.has_ended() or len(stage.log.failed) > before,
                UNNOTICED,
                "a failure",
            )

    def _let_copies_rot(self) -> None:
        stage = self._stage

        def killed() -> Process | None:
            stage.check_alive()
            if not any(process.holds_state() for process in stage.driver.processes()):
                return None
            # No checkpoint is completed meanwhile: the damaged copies are those of the newest.
            with held_still(stage.driver):
                self._flipped = flip_local_copies(stage.directory, stage.options, stage.random)
                return stage.kill_any("worker", at_work=True)

        victim = wait_for(killed, PATIENCE, "a worker to kill")
        stage.note(ROT, f"in {self._flipped} files, and {victim}")

    def end_driver(self, strike: Strike) -> None:
        """Let something give way that ends the driver, and see that the job keeps all it needs."""
        if strike.kind in (MISSING_METADATA, MISSING_FILE):
            self._lose_file(strike)
        else:
            self._lose_session(strike)

    def _lose_file(self, strike: Strike) -> None:
        stage = self._stage
        self._kill_with_complete_checkpoint()
        with hidden_file(stage.directory, stage.options, strike.kind, stage.random) as name:
            stage.note(strike.kind, name)
            self._expect_refusal(name)
        self._expect_all_kept()

    def _kill_with_complete_checkpoint(self) -> None:
        """Kill the driver when its newest checkpoint is complete by all that tells it."""
        stage = self._stage
        while True:
            stage.driver.kill()
            newest = newest_checkpoint(stage.storage)
            if newest is not None and stage.log.complete[-1:] == [str(newest.checkpoint_id)]:
                return
            stage.start()
            stage.await_progress()

    def _expect_refusal(self, name: str) -> None:
        stage = self._stage
        before = len(stage.log.complete)
        driver = stage.start()

        def over() -> bool:
            if len(stage.log.complete) > before:
                raise ChaosError(f"a start without {name} was not refused, and the job goes on")
            return driver.has_ended()

        wait_for(over, PATIENCE, f"the end of a start without {name}")
        code, ended = driver.end(0)
        errors = ended.get("errors", [])
        if code != REFUSED or not any(map(is_refusal, errors)):
            raise ChaosError(f"a start without {name} has ended with {code}: {ended}")
        stage.outcome.refused += 1

    def _lose_session(self, strike: Strike) -> None:
        stage = self._stage
        # Before the job has begun, there is none that could be suspended.
        stage.await_progress()
        newest = newest_checkpoint(stage.storage)
        stage.note(strike.kind, str(stage.driver.session))
        if strike.kind == JAVA:
            stage.driver.kill_java()
        else:
            (stage.directory / STOP_SESSION).touch()
        code, ended = stage.driver.end(PATIENCE)
        (stage.directory / STOP_SESSION).unlink(missing_ok=True)
        stage.expect(f"{strike.kind}: how the job has ended", ended.get("status"), "SUSPENDED")
        stage.say(f"{stage.seconds:7.1f} s  ended with {code}: {ended.get('status')}")
        stage.outcome.suspended += 1
        self._expect_all_kept()
        kept = newest_checkpoint(stage.storage)
        if newest is not None and (kept is None or kept.checkpoint_id < newest.checkpoint_id):
            raise ChaosError(f"{strike.kind}: checkpoint {newest.checkpoint_id} is gone")

    def _expect_all_kept(self) -> None:
        stage = self._stage
        stage.expect("files missing from checkpoints", missing(stage.storage), [])
