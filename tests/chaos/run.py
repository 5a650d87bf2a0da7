"""Command line: `make chaos ARGS="--hours 1"`, or `ARGS="--seed 7 --kills 25"`."""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from tests.chaos.growth import HEADINGS, table
from tests.chaos.monkey import Monkey
from tests.chaos.plan import Outcome, Plan
from tests.chaos.strikes import KINDS
from tests.chaos.verdict import wrong_undisturbed
from tests.support.postgres import postgres_server

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from tests.support.postgres import PostgresServer


def database(plan: Plan) -> AbstractContextManager[PostgresServer | None]:
    """A server for one run, if that has sinks."""
    return postgres_server() if plan.sinks else nullcontext()


def disturbed(plan: Plan, directory: Path, say: Callable[[str], None]) -> Outcome:
    """Run the job among strikes; faults say where it is not what it must be."""
    with database(plan) as server:
        return Monkey(plan, directory, say, server).run()


def chaos(plan: Plan, directory: Path, say: Callable[[str], None]) -> Outcome:
    """Run the job undisturbed and among strikes; both must come to the same."""
    lasting = f"{plan.kills} kills" if plan.minutes is None else f"{plan.minutes:g} minutes"
    say(f"seed {plan.seed}: {lasting}, {plan.options.data} events, {plan.backend}; {directory}")
    with database(plan) as server:
        outcome = Outcome(faults=wrong_undisturbed(plan, directory / "undisturbed", server))
        if outcome.faults:
            say("the undisturbed run is wrong already")
        else:
            outcome = Monkey(plan, directory / "disturbed", say, server).run()
    _tell(outcome, say)
    say(f"to do the same again: {plan.command}")
    return outcome


def _tell(outcome: Outcome, say: Callable[[str], None]) -> None:
    if outcome.growth:
        for line in table([HEADINGS, *(verdict.cells for verdict in outcome.growth)]):
            say(line)
    say(
        f"{len(outcome.kills)} strikes, {outcome.starts} starts, {outcome.restarts} restarts, "
        f"{outcome.restores} restores, {outcome.checkpoints} checkpoints, "
        f"{outcome.handovers} handovers, {outcome.suspended} times suspended, "
        f"{outcome.refused} times refused"
    )
    for fault in outcome.faults:
        say(f"WRONG  {fault}")


def parsed(arguments: list[str]) -> tuple[Plan, bool]:
    """The plan that a command line asks for, and whether its directory is kept in any case."""
    parser = argparse.ArgumentParser(prog="make chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    lasting = parser.add_mutually_exclusive_group()
    lasting.add_argument("--kills", type=int, default=25, help="how often something strikes")
    lasting.add_argument("--hours", type=float, help="how long, and all that can strike does")
    lasting.add_argument("--minutes", type=float, help="the same, for short trials")
    parser.add_argument("--backend", choices=["hashmap", "rocksdb"], default="hashmap")
    parser.add_argument("--cluster", action="store_true", help="on two executors")
    parser.add_argument("--sinks", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument(
        "--unaligned", action="store_true", help="slow, with checkpoints that hold input"
    )
    parser.add_argument("--database", action="store_true", help="kill the database too")
    parser.add_argument(
        "--savepoints", action="store_true", help="stop with savepoints too, and go on elsewhere"
    )
    parser.add_argument("--only", default="", help=f"what strikes, in turn: {','.join(KINDS)}")
    parser.add_argument("--without", default="", help="what does not, of all that lasts for hours")
    parser.add_argument("--keep", action="store_true", help="keep the directory in any case")
    given = parser.parse_args(arguments)
    only, without = (tuple(filter(None, kinds.split(","))) for kinds in (given.only, given.without))
    if not {*only, *without} <= {*KINDS}:
        parser.error(f"--only and --without take {','.join(KINDS)}")
    minutes = given.minutes if given.hours is None else 60 * given.hours
    if without and minutes is None:
        parser.error("--without goes with --hours or --minutes")
    try:
        plan = Plan(
            given.seed,
            given.kills,
            backend=given.backend,
            cluster=given.cluster,
            sinks=given.sinks,
            unaligned=given.unaligned,
            database=given.database and given.sinks,
            savepoints=given.savepoints,
            only=only,
            minutes=minutes,
            without=without,
        )
    except ValueError as error:
        parser.error(str(error))
    return plan, given.keep


def main(arguments: list[str]) -> int:
    """Run as told; 1 if anything was not as it must be."""
    plan, keep = parsed(arguments)
    # What was started is ended then, and what was mounted let go.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    directory = Path(tempfile.mkdtemp(prefix="chaos-"))
    outcome = chaos(plan, directory, lambda text: print(text, flush=True))
    if outcome.faults or keep:
        print(f"kept: {directory}")
    else:
        shutil.rmtree(directory)
    return 1 if outcome.faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
