"""What type checkers learn from the public API."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast

STATES = """
from holdfast import (
    AggregateFunction, AggregatingStateDescriptor, ListStateDescriptor, MapStateDescriptor,
    ReducingStateDescriptor, RuntimeContext, ValueStateDescriptor,
)

class Mean(AggregateFunction[int, list[int], float]):
    def create_accumulator(self) -> list[int]:
        return [0, 0]
    def add(self, value: int, accumulator: list[int]) -> list[int]:
        return accumulator
    def get_result(self, accumulator: list[int]) -> float:
        return accumulator[0] / accumulator[1]
    def merge(self, acc_a: list[int], acc_b: list[int]) -> list[int]:
        return acc_a

def open(ctx: RuntimeContext) -> None:
    ctx.get_state(ValueStateDescriptor("a", int))               # ValueState[int]
    ctx.get_state(ValueStateDescriptor("a", list[str]))         # ValueState[list[str]]
    ctx.get_state(ValueStateDescriptor("a", "bigint"))          # ValueState[Any]
    ctx.get_state(ValueStateDescriptor("a"))                    # ValueState[Any]
    ctx.get_state(ValueStateDescriptor("a", int)).value()       # int | None
    ctx.get_list_state(ListStateDescriptor("a", str))           # ListState[str]
    ctx.get_map_state(MapStateDescriptor("a", str, float))      # MapState[str, float]
    ctx.get_reducing_state(ReducingStateDescriptor("a", min, int))        # ReducingState[int]
    ctx.get_aggregating_state(AggregatingStateDescriptor("", Mean())) # AggregatingState[int, float]
"""

UNTYPED = """
from collections.abc import Iterator
from holdfast import KeyedProcessFunction, MapFunction, RuntimeContext, ValueStateDescriptor

class Double(MapFunction):
    def map(self, value: int) -> int:
        return 2 * value

class Count(KeyedProcessFunction):
    def open(self, ctx: RuntimeContext) -> None:
        self.count = ctx.get_state(ValueStateDescriptor("count", int))
    def process_element(self, value: int, ctx: KeyedProcessFunction.Context) -> Iterator[int]:
        self.count.update((self.count.value() or 0) + 1)
        yield value
"""


pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all tests, so that mypy reads the package once."""
    return tmp_path_factory.mktemp("typing")


def mypy(program: str, directory: Path) -> str:
    """What `mypy --strict` says about a program, seen from outside the project."""
    file = directory / "program.py"
    file.write_text(program)
    command = [sys.executable, "-m", "mypy", "--strict", file.name]
    source = str(Path(holdfast.__file__).parents[1])
    result = subprocess.run(
        command,
        cwd=directory,
        env=os.environ | {"MYPYPATH": source},
        capture_output=True,
        text=True,
    )
    return result.stdout + result.stderr


def check_revealed(program: str, directory: Path) -> None:
    """Compare the type of every line that has a comment with what the comment says."""
    expected = re.findall(r"^ *\S.*\S +# (.*)$", program, re.M)
    revealed = re.sub(r"^( *)(\S.*\S) +# .*$", r"\1reveal_type(\2)", program, flags=re.M)
    output = mypy(revealed, directory)
    types = re.findall(r'Revealed type is "(.*)"', output)
    assert [re.sub(r"[\w.]+\.(?=\w)", "", found) for found in types] == expected, output
    assert "error:" not in output


def test_descriptors_carry_their_types_into_states(directory: Path) -> None:
    check_revealed(STATES, directory)


def test_functions_without_type_parameters_are_accepted(directory: Path) -> None:
    assert "Success" in mypy(UNTYPED, directory)
