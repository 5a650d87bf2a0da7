"""The README shows what the benchmarks have recorded, and stays short."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from benchmarks.figure import FIGURE, RECORDED, figure

README = (Path(__file__).parents[2] / "README.md").read_text()
PROSE = " ".join(README.split())
RECORDS = json.loads(RECORDED.read_text())


def times_as_fast(events_per_epoch: int) -> tuple[int, int]:
    """Least and greatest ratio of Holdfast's throughput to `transformWithState`'s, rounded down."""
    rates = {
        (row["workload"], row["system"], row["backend"]): row["events_per_s"]
        for row in RECORDS
        if row["events_per_epoch"] == events_per_epoch
    }
    ratios = [
        rate / rates[workload, "transformWithState", "rocksdb"]
        for (workload, system, _), rate in rates.items()
        if system == "holdfast"
    ]
    return int(min(ratios)), int(max(ratios))


def test_the_figure_shows_the_recorded_throughput() -> None:
    assert FIGURE.read_text() == figure(RECORDS), "run `make figures`"


@pytest.mark.parametrize(
    ("events_per_epoch", "said"),
    [
        (200_000, "With epochs of 200,000 events, Holdfast is {} to {} times as fast"),
        (1_000_000, "With epochs of a million events, it is {} to {} times as fast"),
    ],
)
def test_the_ratios_are_those_that_were_recorded(events_per_epoch: int, said: str) -> None:
    assert said.format(*times_as_fast(events_per_epoch)) in PROSE


def test_the_promise_at_the_top_is_recorded() -> None:
    least, greatest = times_as_fast(200_000)
    assert f"**{least} to {greatest} times the throughput of `transformWithState`**" in PROSE


def test_a_job_takes_ten_lines_from_its_environment_to_its_execution() -> None:
    [job] = re.findall(r"^env = .*?^env\.execute\([^\n]*$", README, re.MULTILINE | re.DOTALL)
    assert len([line for line in job.splitlines() if line.strip()]) <= 10
