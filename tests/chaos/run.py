"""Command line: `make chaos ARGS="--seed 7 --kills 25"`."""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from tests.chaos.monkey import Monkey
from tests.chaos.plan import Outcome, Plan
from tests.chaos.strikes import KINDS
from tests.chaos.verdict import wrong_undisturbed
from tests.integration.postgres import postgres_server

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from tests.integration.postgres import PostgresServer


def database(plan: Plan) -> AbstractContextManager[PostgresServer | None]:
    """A server for one run, if that has sinks."""
    return postgres_server() if plan.sinks else nullcontext()


def disturbed(plan: Plan, directory: Path, say: Callable[[str], None]) -> Outcome:
    """Run the job among kills; faults say where it is not what it must be."""
    with database(plan) as server:
        return Monkey(plan, directory, say, server).run()


def chaos(plan: Plan, directory: Path, say: Callable[[str], None]) -> Outcome:
    """Run the job undisturbed and among kills; both must come to the same."""
    say(f"seed {plan.seed}: {plan.kills} kills, {plan.options.data} events, {plan.backend}")
    with database(plan) as server:
        outcome = Outcome(faults=wrong_undisturbed(plan, directory / "undisturbed", server))
        if outcome.faults:
            say("the undisturbed run is wrong already")
        else:
            outcome = Monkey(plan, directory / "disturbed", say, server).run()
    say(
        f"{len(outcome.kills)} kills, {outcome.starts} starts, {outcome.restarts} restarts, "
        f"{outcome.restores} restores, {outcome.checkpoints} checkpoints, "
        f"{outcome.handovers} handovers"
    )
    for fault in outcome.faults:
        say(f"WRONG  {fault}")
    if outcome.faults:
        say(f"kept: {directory}; to do the same again: {plan.command}")
    return outcome


def main(arguments: list[str]) -> int:
    """Run as told; 1 if anything was not as it must be."""
    parser = argparse.ArgumentParser(prog="make chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    parser.add_argument("--kills", type=int, default=25)
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
    parser.add_argument("--only", default="", help=f"what to kill, in turn: {','.join(KINDS)}")
    parser.add_argument("--keep", action="store_true", help="keep the directory in any case")
    given = parser.parse_args(arguments)
    only = tuple(filter(None, given.only.split(",")))
    if not {*only} <= {*KINDS}:
        parser.error(f"--only takes {','.join(KINDS)}")
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
    )
    directory = Path(tempfile.mkdtemp(prefix="chaos-"))
    outcome = chaos(plan, directory, lambda text: print(text, flush=True))
    if outcome.faults:
        return 1
    if given.keep:
        print(f"kept: {directory}")
    else:
        shutil.rmtree(directory)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
