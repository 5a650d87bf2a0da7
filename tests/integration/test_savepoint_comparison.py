"""What a comparison says of a savepoint and a program is what a start then does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from holdfast import (
    Configuration,
    KeyedProcessFunction,
    ListStateDescriptor,
    RestartStrategies,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
)
from holdfast.errors import ConfigurationError, HoldfastError, RestoreError
from holdfast.spark.savepoint_comparison import ALLOWED
from tests.integration.recovery_tools import Feed, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from holdfast import SavepointComparison


@dataclass
class Account:
    """What the savepoint holds of every key."""

    rows: int
    total: int


@dataclass
class Wider:
    """The same with more, and less."""

    rows: int
    note: str = "none"


@dataclass
class Narrower:
    """The same with another type."""

    rows: str
    total: int


@dataclass
class Keeps(KeyedProcessFunction):
    """Counts rows in an account of a given type; its states are told."""

    account: type = Account
    other: Any = None

    def open(self, ctx: Any) -> None:
        self.state = ctx.get_state(ValueStateDescriptor("account", self.account))
        if isinstance(self.other, ListStateDescriptor):
            ctx.get_list_state(self.other)

    def process_element(self, value: Any, ctx: Any) -> Iterator[tuple[str, int]]:
        known = self.state.value()
        rows = 1 if known is None else known.rows + 1
        self.state.update(self.account(rows, "new" if self.account is Wider else 0))
        yield ctx.get_current_key(), rows


@dataclass
class Change:
    """A program, by how it differs from the one that took the savepoint."""

    function: Keeps
    uid: str = "keeps"
    parallelism: int = 2
    max_parallelism: int | None = None
    added: bool = False
    """Whether there is a second operator."""


class Programs:
    """Programs over one input."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self.spark = spark
        self.feed = Feed(spark, directory / "input").fill(1)
        self.rows: list[tuple[str, int]] = []

    def env(self, change: Change) -> StreamExecutionEnvironment:
        env = StreamExecutionEnvironment.get_execution_environment(self.spark, Configuration())
        env.set_parallelism(change.parallelism)
        env.set_restart_strategy(RestartStrategies.no_restart())
        if change.max_parallelism is not None:
            env.set_max_parallelism(change.max_parallelism)
        self.rows.clear()
        rows = env.from_dataframe(self.feed.stream()).uid("source").key_by("k")
        kept = rows.process(change.function, "k string, n bigint").uid(change.uid)
        kept.foreach_batch(lambda df, _: self.rows.extend(map(tuple, df.collect())))
        if change.added:
            rows.process(Keeps(), "k string, n bigint").uid("added").print()
        return env


UNCHANGED = Change(Keeps())
RUN = [
    Change(Keeps(other=ListStateDescriptor("new", int)), parallelism=3, added=True),
    Change(Keeps(Wider)),
]
REFUSED: list[tuple[Change, type[Exception], str]] = [
    (Change(Keeps(), uid="renamed"), RestoreError, "no operator for that of"),
    (Change(Keeps(), max_parallelism=64), RestoreError, "max parallelism mismatch"),
    (Change(Keeps(), parallelism=200), ConfigurationError, "parallelism 200 is above"),
    (Change(Keeps(Narrower)), HoldfastError, "Narrower.rows: was int, is str"),
    (
        Change(Keeps(other=ListStateDescriptor("account", int))),
        HoldfastError,
        "cannot be a list state too",
    ),
]


def reason(problem: str) -> str:
    """A problem without what says whose and whether it can be allowed."""
    text = problem.removesuffix(ALLOWED)
    return text.partition("(uid 'keeps'): ")[2] or text


def test_a_start_does_what_the_comparison_said(spark: SparkSession, tmp_path: Path) -> None:
    programs = Programs(spark, tmp_path)
    client = programs.env(UNCHANGED).execute_async("before")
    wait_for(lambda: len(programs.rows) == len(programs.feed.elements), "all rows")
    path = client.stop_with_savepoint(str(tmp_path / "savepoints"))
    each = len(programs.feed.elements) // 20
    programs.feed.fill(1)

    def compared(env: StreamExecutionEnvironment, **options: Any) -> SavepointComparison:
        found = env.compare_savepoint(path, **options)
        assert [source.verdict for source in found.sources] == ["goes on"]
        return found

    def runs(change: Change, least: int, **options: Any) -> None:
        env = programs.env(change).set_available_now()
        found = compared(env, **options)
        assert found.fits, str(found)
        # The comparison has left the program as it was: all of it is still to be run.
        env.execute("after", from_savepoint=path, **options)
        assert {n for _, n in programs.rows} == set(range(least, 2 * each + 1))

    for change in RUN:
        runs(change, each + 1)
    added, migrated = (compared(programs.env(change)) for change in RUN)
    assert added.operator("keeps").parallelism == (2, 3)
    assert [state.verdict for state in added.operator("keeps").states] == [
        "as is",
        "new, starts empty",
    ]
    assert added.operator("added").verdict == "new, starts empty"
    assert [state.verdict for state in migrated.operator("keeps").states] == ["after migration"]

    for change, kind, text in REFUSED:
        env = programs.env(change).set_available_now()
        found = compared(env)
        assert not found.fits
        [problem] = found.problems
        assert text in problem
        with pytest.raises(kind) as refusal:
            env.execute("refused", from_savepoint=path)
        assert reason(problem) in str(refusal.value)

    renamed, *_ = REFUSED
    env = programs.env(renamed[0]).set_available_now()
    assert compared(env, allow_non_restored_state=True).fits
    env.execute("allowed", from_savepoint=path, allow_non_restored_state=True)
    assert {n for _, n in programs.rows} == set(range(1, each + 1))
