"""Command line: `make chaos ARGS="--seed 7 --kills 25"`."""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tests.chaos.compare import differences, expected_state
from tests.chaos.monkey import Monkey, Outcome, Plan, undisturbed

if TYPE_CHECKING:
    from collections.abc import Callable


def chaos(plan: Plan, directory: Path, say: Callable[[str], None]) -> Outcome:
    """Run the job undisturbed and among kills; faults say where the two differ."""
    say(f"seed {plan.seed}: {plan.kills} kills, {plan.options.data} events, {plan.backend}")
    data = plan.options.data
    calm = undisturbed(plan, directory / "undisturbed")
    outcome = Outcome(faults=differences(expected_state(range(data), data), calm))
    if outcome.faults:
        say("the undisturbed run is wrong already")
    else:
        outcome = Monkey(plan, directory / "disturbed", say).run()
    say(
        f"{len(outcome.kills)} kills, {outcome.starts} starts, {outcome.restarts} restarts, "
        f"{outcome.restores} restores, {outcome.checkpoints} checkpoints"
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
    parser.add_argument("--only", choices=["driver", "worker", "executor"], help="what to kill")
    parser.add_argument("--keep", action="store_true", help="keep the directory in any case")
    given = parser.parse_args(arguments)
    plan = Plan(given.seed, given.kills, given.backend, given.cluster, given.only)
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
