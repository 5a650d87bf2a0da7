"""The driver's work for an epoch grows with the number of subtasks, not with its square.

Counted are the instructions of the interpreter, so that the figures are the same on any
machine and at any load.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from benchmarks.driver import Driver
from holdfast.spark.placement.executor_calls import ExecutorCalls

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def instructions(work: Callable[[], Any]) -> int:
    """How many instructions of Python a call takes."""
    count = 0

    def trace(frame: Any, event: str, _: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def test_an_epoch_and_its_checkpoint_cost_the_same_for_every_subtask(tmp_path: Path) -> None:
    counts = []
    for subtasks in (10, 20, 40):
        driver = Driver(subtasks, tmp_path / str(subtasks))
        driver.prepare()
        counts.append(instructions(driver.work))
    first, second = counts[1] - counts[0], counts[2] - counts[1]
    # Twice as many are added in the second step: four times the work would be its square.
    assert 1.8 < second / first < 2.2


def test_calls_are_put_together_in_one_go() -> None:
    def places(subtasks: int) -> int:
        calls = ExecutorCalls(None, None)  # type: ignore[arg-type]
        for subtask in range(subtasks):
            calls.record_location(subtasks, subtask, f"executor-{subtask % 4}")
        items = [(subtask, subtasks, None) for subtask in range(subtasks)]
        return instructions(lambda: calls._places(items))

    assert places(400) < 2.2 * places(200)
