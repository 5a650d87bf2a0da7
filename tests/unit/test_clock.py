"""Two clocks: one for people and timers, one for everything that is measured."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

import holdfast
from holdfast.clock import Moment, SystemClock
from holdfast.testing.clock import ManualClock

if TYPE_CHECKING:
    import pytest

SOURCES = Path(holdfast.__file__).parent
BY_THE_WALL_CLOCK = {
    "clock.py": "reads it",
    "testing/clock.py": "stands in for it",
    "testing/harness.py": "labels a checkpoint",
    "runtime/context.py": "what functions ask for as processing time",
    "runtime/operator_task.py": "timers in processing time",
    "spark/epoch_runner.py": "timers in processing time",
    "runtime/channel_cut.py": "a time that tasks on all machines share, looked at once",
    "state/ttl/states.py": "time to live in processing time",
    "state_processor/max_parallelism.py": "labels a savepoint",
    "checkpoint/statistics.py": "labels checkpoints",
    "checkpoint/checkpointer.py": "labels checkpoints and savepoints",
    "checkpoint/service.py": "labels the end of a job",
    "checkpoint/completion.py": "labels checkpoints",
    "checkpoint/restore/restorer.py": "labels restores",
    "spark/supervisor.py": "labels the start, the failures and the end of a job",
    "control/jobs.py": "says for how long a job has run",
    "registry/announcement.py": "labels the start and the end of a job",
    "job/progress.py": "says how long ago something was",
}
"""Modules that may ask for the time of day, and for what; all others measure."""


def test_only_labels_and_timers_go_by_the_wall_clock() -> None:
    found = set()
    for path in SOURCES.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and node.attr in ("now_ms", "wall_ms", "time_ns"):
                found.add(str(path.relative_to(SOURCES)))
    assert found <= set(BY_THE_WALL_CLOCK)


def test_time_passes_on_both_hands_and_setting_the_clock_moves_one() -> None:
    clock = ManualClock(1_000)
    clock.advance(5)
    assert Moment.of(clock) == Moment(1_005, 5)
    clock.set(10)
    assert Moment.of(clock) == Moment(10, 5)
    clock.advance("1 s")
    assert Moment.of(clock) == Moment(1_010, 1_005)


def test_the_clock_that_measures_is_not_the_one_that_is_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = SystemClock()
    before = clock.monotonic_ms()
    monkeypatch.setattr("time.time_ns", lambda: 0)
    assert clock.now_ms() == 0
    assert before <= clock.monotonic_ms() < before + 60_000
