"""Whether what a job has given out is what it must be, disturbed or not."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

from tests.chaos.compare import differences, expected_state, state_in, tally_of
from tests.chaos.driver import PATIENCE, SLOWEST, ChaosError, Driver
from tests.chaos.plan import with_tail
from tests.chaos.sinks import create_tables, expected_rows, row_differences, staged_files, written

if TYPE_CHECKING:
    from pathlib import Path

    from tests.chaos.job import JobOptions
    from tests.chaos.plan import Plan
    from tests.support.postgres import PostgresServer

CALM_SCHEMA = "undisturbed"
EPOCHS_OF_CALM = 50
"""About so many epochs process all data of the job that nobody disturbs, if there is much."""


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
    largest = max(options.largest_epoch, options.data // EPOCHS_OF_CALM)
    count = with_tail(options.data, largest)
    options = replace(options, rate=None, count=count, largest_epoch=largest)
    driver = Driver(directory, options)
    try:
        driver.wait(PATIENCE + count / SLOWEST)
    except ChaosError as error:
        driver.write_stacks()
        return [str(error)]
    finally:
        driver.kill_all()
    return wrong_results(directory, options, server)
