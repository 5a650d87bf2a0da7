"""`make bench`: events per second of every system on every workload.

All systems run in one process on two local cores, one after the other. Each first
runs a short prefix of the workload, which warms it up and whose output is held
against plain Python; then it is measured as `benchmarks.harness` describes.
"""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from benchmarks import check, data, report
from benchmarks.harness import Result, combined, scratch, session, use_file_manager
from benchmarks.peers import STATELESS
from benchmarks.systems import Contender, contenders
from benchmarks.workloads import WORKLOADS, Workload

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import SparkSession

LATEST = Path(__file__).resolve().parent / "latest.json"
QUICK = data.DATA_ROOT.parent / "benchmark-quick.json"

SLOW = frozenset({"transformWithState", "transformWithStateInPandas"})
PREFIX = (40_000, 3)
"""Events per epoch and epochs of the run that warms up and is checked."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How much of a workload is run to measure it."""

    events_per_epoch: int
    epochs: int
    repeats: int
    warm_up_runs: int = 0
    """Runs before those that count: the JVM takes several to reach its speed."""


def efforts(contender: Contender, workload: Workload, *, quick: bool) -> list[Effort]:
    """What to measure; slow systems run a shorter part of the same stream."""
    if quick:
        return [Effort(50_000, 3, 1)]
    near_empty = [Effort(10, 26, 1)] if workload.name == "W1" else []
    if contender.system not in SLOW:
        large = Effort(1_000_000, 3, 3, warm_up_runs=1)
        return [*near_empty, Effort(200_000, 5, 3, warm_up_runs=2), large]
    small = Effort(200_000, 3, 1)
    if contender.system == "transformWithStateInPandas":
        # A million events take it up to six minutes, and nothing is read against them.
        return [*near_empty, small]
    return [*near_empty, small, Effort(1_000_000, 2, 1)]


def check_prefix(contender: Contender, workload: Workload, spark: SparkSession) -> None:
    """Run the prefix and require that its output is right."""
    events_per_epoch, epochs = PREFIX
    data_dir = data.prepare(workload, events_per_epoch, epochs)
    if contender.system in STATELESS:
        contender.run(workload, contender.backend, data_dir, events_per_epoch, spark)
        return
    with scratch() as output_dir:
        contender.run(workload, contender.backend, data_dir, events_per_epoch, spark, output_dir)
        actual = check.kept(workload, output_dir)
    wanted = check.expected(workload, data_dir, last_per_epoch=contender.system == "aggregate")
    check.require_equal(
        f"{contender.system} ({contender.backend}) on {workload.name}", actual, wanted
    )


def measure(
    contender: Contender, workload: Workload, effort: Effort, spark: SparkSession
) -> Result:
    """The rates of one system at one size of epoch, over all repeats."""
    data_dir = data.prepare(workload, effort.events_per_epoch, effort.epochs)
    runs = [
        contender.run(workload, contender.backend, data_dir, effort.events_per_epoch, spark)
        for _ in range(effort.warm_up_runs + effort.repeats)
    ]
    return combined(runs[effort.warm_up_runs :])


def results(options: argparse.Namespace, say: Console) -> Iterator[Result]:
    """Check and measure everything asked for, saying each result as it comes.

    Every system has a session of its own: Spark's state stores go on working in the
    background for a while after a query of theirs has ended.
    """
    for workload, contender in pairs(options):
        spark = session(settings_of(contender))
        use_file_manager(spark, fast=options.fast_file_manager)
        check_prefix(contender, workload, spark)
        for effort in efforts(contender, workload, quick=options.quick):
            result = measure(contender, workload, effort, spark)
            say.print(
                f"{workload.name} {contender.system} ({contender.backend}), epochs of "
                f"{effort.events_per_epoch:,}: {result.events_per_s:,.0f} events/s"
            )
            yield result
        spark.stop()


def settings_of(contender: Contender) -> dict[str, str]:
    """Settings of a session beyond those that all share.

    Spark's own stateful operators run with Spark's defaults. Holdfast runs as in the sessions that
    it makes, and so do the plans that show what it could reach at best.
    """
    if contender.system != "holdfast" and contender.system not in STATELESS:
        return {}
    return {"spark.python.unix.domain.socket.enabled": "true"}


def pairs(options: argparse.Namespace) -> list[tuple[Workload, Contender]]:
    """The workloads and systems asked for, as far as they go together."""
    return [
        (WORKLOADS[name], contender)
        for name in options.only or WORKLOADS
        for contender in contenders()
        if contender.can(WORKLOADS[name])
        and (not options.system or contender.system in options.system)
    ]


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one small epoch size, no repeats")
    parser.add_argument("--only", action="append", choices=list(WORKLOADS), help="a workload")
    parser.add_argument("--system", action="append", help="a system (may be repeated)")
    parser.add_argument("--fast-file-manager", action="store_true", help="for the checkpoints")
    parser.add_argument("--output", type=Path, help="where the results go as JSON")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> None:
    """Measure, print a table, and write the results down."""
    options = parse(arguments)
    say = Console() if sys.stdout.isatty() else Console(width=120)
    if os.getloadavg()[0] > 1:
        say.print(f"This machine is busy (load {os.getloadavg()[0]:.1f}): rates will be too low.")
    output = options.output or (QUICK if options.quick else LATEST)
    measured = report.load(output)
    for result in results(options, say):
        measured = report.merged(measured, [result])
        report.write(output, measured)
    say.print(report.table(report.with_ratios(measured)))
    say.print(f"Written to {output}.")


if __name__ == "__main__":
    main(sys.argv[1:])
