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

STREAMS = """
from collections.abc import Iterator
from dataclasses import dataclass
from holdfast import (
    DataStream, KeyedProcessFunction, MapFunction, OutputTag,
    StreamExecutionEnvironment,
)

@dataclass
class Click:
    url: str
    at: int

class Url(MapFunction[Click, str]):
    def map(self, value: Click) -> str:
        return value.url

LATE = OutputTag("late", int)

class Count(KeyedProcessFunction[str, Click, tuple[str, int]]):
    def process_element(
        self, value: Click, ctx: KeyedProcessFunction.Context
    ) -> Iterator[tuple[str, int] | tuple[OutputTag, int]]:
        yield value.url, 1
        yield LATE, 1

def build(env: StreamExecutionEnvironment, clicks: DataStream[Click], any: DataStream) -> None:
    env.from_collection([1, 2])                         # DataStream[int]
    env.from_collection([("a", 1)], "url string, n int")    # DataStream[Any]
    clicks.map(Url())                                   # DataStream[str]
    clicks.map(lambda click: click.at)                  # DataStream[int]
    clicks.map(lambda click: click.at, int)             # DataStream[int]
    clicks.map(lambda click: click.at, "bigint")        # DataStream[Any]
    clicks.flat_map(lambda click: [click.url])          # DataStream[str]
    clicks.filter(lambda click: click.at > 0)           # DataStream[Click]
    clicks.uid("clicks").rebalance()                    # DataStream[Click]
    clicks.key_by("url")                                # KeyedStream[Any, Click]
    clicks.key_by(lambda click: click.url)              # KeyedStream[str, Click]
    clicks.key_by("url").process(Count())               # DataStream[tuple[str, int]]
    clicks.get_side_output(LATE)                        # DataStream[int]
    clicks.key_by("url").max("at").name("latest")       # DataStream[Click]
    clicks.key_by("url").count_window(5).allowed_lateness(5)  # WindowedStream[Any, Click]
    any.map(str)                                        # DataStream[str]
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
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", file.name]
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


def test_streams_carry_the_types_of_their_elements(directory: Path) -> None:
    check_revealed(STREAMS, directory)


def test_functions_without_type_parameters_are_accepted(directory: Path) -> None:
    assert "Success" in mypy(UNTYPED, directory)
