"""The end of a run: the job finishes, and what it has come to is held against what must be."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from holdfast.checkpoint.files.endings import FINISHED, STOPPED
from holdfast.checkpoint.files.layout import USED
from tests.chaos.driver import PATIENCE, SLOWEST, ChaosError, wait_for
from tests.chaos.growth import verdicts
from tests.chaos.places import checkpoints_of, local_leftovers, missing, orphans
from tests.chaos.plan import with_tail
from tests.chaos.results import forget_state
from tests.chaos.sampler import TOLERANCES
from tests.chaos.verdict import wrong_results

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.chaos.growth import Sample
    from tests.chaos.handover import Handovers
    from tests.chaos.stage import Stage
    from tests.support.postgres import PostgresServer


class Ending:
    """What is done when nothing strikes any more."""

    def __init__(self, stage: Stage, handovers: Handovers, server: PostgresServer | None) -> None:
        self._stage = stage
        self._handovers = handovers
        self._server = server

    def finish(self) -> None:
        """Let the job process all data and be cancelled; its newest checkpoint stays."""
        stage = self._stage
        (stage.directory / "finish").touch()
        ended = stage.driver.wait(PATIENCE + stage.options.data / SLOWEST)
        stage.say(f"{stage.seconds:7.1f} s  all data processed: {ended}")
        stage.expect("status", ended["status"], "CANCELED")
        stage.expect("orphans in checkpoint storage", orphans(stage.storage), [])
        stage.expect("files missing from checkpoints", missing(stage.storage), [])

    def compare(self) -> None:
        """Start once more, from the checkpoint that stayed; read the state, and finish."""
        stage = self._stage
        seen = forget_state(stage.directory / "results.json")["seen"]
        (stage.directory / "finish").unlink()
        before = self._leftovers() if stage.plan.cluster else set()
        restores = len(stage.log.restored)
        count = with_tail(max(seen, stage.options.data), stage.options.largest_epoch)
        stage.options = replace(stage.options, rate=None, count=count)
        ended = stage.start().wait(PATIENCE + (count - seen) / SLOWEST)
        stage.expect("status", ended["status"], "FINISHED")
        stage.expect("restores at the last start", len(stage.log.restored) > restores, True)
        stage.outcome.faults += wrong_results(stage.directory, stage.options, self._server)
        # Jobs that have finished, or were stopped with a savepoint, leave a note and their last id.
        notes = (FINISHED, STOPPED)
        storage = [
            str(path)
            for path in checkpoints_of(stage.directory, stage.options).rglob("*")
            if path.name not in notes
            and USED not in (path.name, path.parent.name)
            and not any((path / note).exists() for note in notes)
        ]
        stage.expect("files of a finished job in checkpoint storage", storage, [])
        stage.outcome.faults += self._handovers.wrong()
        self._look_for_leftovers(before)

    def _leftovers(self) -> set[str]:
        return {*local_leftovers(self._stage.directory, self._stage.options)}

    def _look_for_leftovers(self, before: set[str]) -> None:
        """Look for what outlives the job: directories that were not there `before`, processes."""
        self._stage.expect("local directories left over", sorted(self._leftovers() - before), [])
        alive = [driver.processes for driver in self._stage.drivers]
        try:
            wait_for(lambda: not any(find() for find in alive), 60, "the end of all processes")
        except ChaosError:
            left = [str(process) for find in alive for process in find()]
            self._stage.expect("processes left over", left, [])

    def judge(self, samples: Sequence[Sample]) -> None:
        """Count what has happened, and see whether anything has grown."""
        outcome, log = self._stage.outcome, self._stage.log
        outcome.checkpoints = len(log.complete)
        outcome.restores = len(log.restored)
        outcome.handovers = len(self._handovers.savepoints)
        outcome.restarts = len(log.restarts)
        outcome.growth = verdicts(samples, TOLERANCES)
        outcome.faults += [f"grows: {' | '.join(one.cells)}" for one in outcome.growth if one.grows]
