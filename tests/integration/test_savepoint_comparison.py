"""What a comparison says of a savepoint and a program is what a start then does."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from holdfast import (
    AggregateFunction,
    Configuration,
    KeyedProcessFunction,
    ListStateDescriptor,
    RestartStrategies,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from holdfast.checkpoint.savepoint.comparison import ALLOWED
from holdfast.checkpoint.savepoint.state_comparison import BUILT_IN
from holdfast.errors import ConfigurationError, HoldfastError, RestoreError
from holdfast.windows import (
    CountEvictor,
    EventTimeSessionWindows,
    ProcessWindowFunction,
    TumblingEventTimeWindows,
)
from tests.support.recovery_tools import Feed, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyspark.sql import SparkSession

    from holdfast.savepoints import SavepointComparison


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
    key: Sequence[Any] = ("k",)


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
        rows = env.from_dataframe(self.feed.stream()).uid("source").key_by(*change.key)
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
]


def reason(problem: str) -> str:
    """A problem without what says whose it is, and what a comparison adds."""
    text = problem.removesuffix(ALLOWED).removesuffix(BUILT_IN)
    return re.sub(r"^operator .*?\(uid '\w+'\): ", "", text)


def test_a_start_does_what_the_comparison_said(spark: SparkSession, tmp_path: Path) -> None:
    programs = Programs(spark, tmp_path)
    client = programs.env(UNCHANGED).execute_async("before")
    wait_for(lambda: len(programs.rows) == len(programs.feed.elements), "all rows")
    path = Path(client.stop_with_savepoint(tmp_path / "savepoints"))
    each = len(programs.feed.elements) // 20
    programs.feed.fill(1)

    def compared(env: StreamExecutionEnvironment, **options: Any) -> SavepointComparison:
        found = env.compare_savepoint(path, **options)
        assert [source.verdict for source in found.sources] == ["continues"]
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


def by_name(row: Any) -> str:
    return str(row.k)


def by_number(row: Any) -> int:
    return int(row.i)


def by_both(row: Any) -> tuple[str, int]:
    return row.k, row.i


KEYS: list[tuple[Sequence[Any], str, bool]] = [
    ((by_name,), "as is", True),
    (("i",), "incompatible", False),
    (("k", "i"), "incompatible", False),
    ((by_number,), "incompatible", False),
    ((by_both,), "incompatible", False),
    # What nothing tells of is not compared, and may run or be refused.
    ((lambda row: row.k,), "not compared", True),
    ((lambda row: row.i,), "not compared", False),
]


def test_keys_that_do_not_fit_are_refused_when_rows_come_as_the_comparison_said(
    spark: SparkSession, tmp_path: Path
) -> None:
    programs = Programs(spark, tmp_path)
    client = programs.env(UNCHANGED).execute_async("before")
    wait_for(lambda: len(programs.rows) == len(programs.feed.elements), "all rows")
    path = Path(client.stop_with_savepoint(tmp_path / "savepoints"))
    each = len(programs.feed.elements) // 20
    programs.feed.fill(1)
    for key, verdict, runs in KEYS:
        env = programs.env(Change(Keeps(), key=key)).set_available_now()
        found = env.compare_savepoint(path)
        keys = found.operator("keeps").key_comparison
        assert keys is not None
        assert (keys.verdict, found.fits) == (verdict, verdict != "incompatible")
        if runs:
            env.execute("after", from_savepoint=path)
            assert {n for _, n in programs.rows} == set(range(each + 1, 2 * each + 1))
            continue
        with pytest.raises(HoldfastError, match="stored state of this operator has str keys"):
            env.execute("refused", from_savepoint=path)
        for problem in found.problems:
            assert "but the stored state of this operator has str keys" in problem


class Counted(ProcessWindowFunction):
    """A key, and how many elements its window holds."""

    def process(self, key: Any, context: Any, elements: Sequence[Any]) -> Iterator[tuple[str, int]]:
        yield key, len(elements)


class Ones(AggregateFunction):
    """How many elements there were."""

    def create_accumulator(self) -> int:
        return 0

    def add(self, value: Any, accumulator: int) -> int:
        return accumulator + 1

    def get_result(self, accumulator: int) -> int:
        return accumulator

    def merge(self, acc_a: int, acc_b: int) -> int:
        return acc_a + acc_b


def earliest(windows: Any) -> Any:
    return windows.reduce(lambda a, b: a if a.i <= b.i else b)


def counted(windows: Any) -> Any:
    return windows.process(Counted(), "k string, i bigint")


def aggregated(windows: Any) -> Any:
    return windows.aggregate(Ones(), accumulator_type=int, output_type=int)


def evicting(windows: Any) -> Any:
    return counted(windows.evictor(CountEvictor.of(1000)))


@dataclass
class Windows:
    """A program of windows, by what is made of them."""

    reduced: Callable[[Any], Any] = earliest
    listed: Callable[[Any], Any] = counted
    columns: tuple[str, ...] = ("i", "k", "i as v")
    merging: bool = False
    """Whether the reduced ones are sessions."""
    rows: dict[str, dict[str, int]] = field(default_factory=dict)

    def env(self, spark: SparkSession, feed: Feed) -> StreamExecutionEnvironment:
        env = StreamExecutionEnvironment.get_execution_environment(spark, Configuration())
        env.set_parallelism(2).set_restart_strategy(RestartStrategies.no_restart())
        strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("i")
        rows = env.from_dataframe(feed.stream().selectExpr(*self.columns)).uid("source")
        keyed = rows.assign_timestamps_and_watermarks(strategy).uid("times").key_by("k")
        tumbling = keyed.window(TumblingEventTimeWindows.of(500))
        sessions = keyed.window(EventTimeSessionWindows.with_gap(100))
        reduced = self.reduced(sessions if self.merging else tumbling)
        made = {"reduced": reduced, "listed": self.listed(tumbling)}
        for uid, stream in (made | {"sessions": earliest(sessions)}).items():
            seen = self.rows[uid] = {}
            stream.uid(uid).foreach_batch(
                lambda df, _, seen=seen: seen.update({row.k: row.i for row in df.collect()})
            )
        return env


NEW_COLUMN = ("i", "cast(null as string) as note", "k", "i as v")
OTHER_COLUMN = ("i", "k", "string(i) as v")


def test_windows_go_on_or_are_refused_as_the_comparison_said(
    spark: SparkSession, tmp_path: Path
) -> None:
    feed = Feed(spark, tmp_path / "input").add(range(40))
    client = Windows().env(spark, feed).execute_async("before")
    wait_for(lambda: client.statistics().epochs, "an epoch")
    path = client.stop_with_savepoint(str(tmp_path / "savepoints"))
    # The second file brings the watermark past the end of all windows before it.
    feed.add(range(40, 80)).add(range(1000, 1020))

    for program, verdict in (
        (Windows(), "as is"),
        (Windows(columns=NEW_COLUMN), "after migration"),
    ):
        env = program.env(spark, feed).set_available_now()
        found = env.compare_savepoint(path)
        assert found.fits, str(found)
        for uid in program.rows:
            states = {state.name: state.verdict for state in found.operator(uid).states}
            assert states.pop("window-contents") == verdict
            assert set(states) == {"timers:event"} | (
                {"merging-window-set"} if uid == "sessions" else set()
            )
            assert set(states.values()) == {"as is"}
        env.execute("after", from_savepoint=path)
        least = {f"k{k}": k for k in range(20)}
        counts = dict.fromkeys(least, 4)
        assert program.rows == {"reduced": least, "listed": counts, "sessions": least}

    for program, uids, verdict, text in (
        (Windows(reduced=counted), ["reduced"], "another kind", "is now declared as a list state"),
        (
            Windows(listed=aggregated),
            ["listed"],
            "another kind",
            "is now declared as an aggregating",
        ),
        (Windows(listed=evicting), ["listed"], "incompatible", "'window-contents' was written"),
        (Windows(merging=True), ["reduced"], "as is", "in its state do not merge, and those of"),
        (
            Windows(columns=OTHER_COLUMN),
            ["reduced", "listed", "sessions"],
            "incompatible",
            "struct.v: was int64 | None, is string | None",
        ),
    ):
        env = program.env(spark, feed).set_available_now()
        found = env.compare_savepoint(path)
        for uid in uids:
            [contents] = [s for s in found.operator(uid).states if s.name == "window-contents"]
            assert contents.verdict == verdict
        assert len(found.problems) == len(uids)
        with pytest.raises(HoldfastError) as refusal:
            env.execute("refused", from_savepoint=path)
        for problem in found.problems:
            assert text in problem
            assert reason(problem) in str(refusal.value)
