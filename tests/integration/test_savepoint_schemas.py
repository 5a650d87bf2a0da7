"""Programs whose types change between a savepoint and the start from it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from holdfast import (
    HoldfastError,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    RestartStrategies,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
)
from holdfast.errors import StateMigrationError
from tests.support.recovery_jobs import BACKENDS, HASHMAP, ROCKSDB, TIMEOUT
from tests.support.recovery_tools import Feed, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from holdfast import JobClient


@dataclass
class Line:
    """As it was first."""

    number: int
    note: str


@dataclass
class Account:
    """As it was first."""

    owner: str
    lines: list[Line]
    limit: int


class Visit(NamedTuple):
    """As it was first."""

    place: str
    at: int


@dataclass
class NewLine:
    """Its fields in another order, one gone, one new."""

    tags: list[str] = field(default_factory=list)
    number: int = 0


@dataclass
class NewAccount:
    """Renamed, a field gone, one wider, one new; and lines of another type."""

    lines: list[NewLine]
    limit: int | None
    owner: str
    currency: str = "EUR"


class NewVisit(NamedTuple):
    """A field before the others, and one gone."""

    at: int
    weight: float = 1.0


@dataclass
class OtherOwner:
    """No type that accounts could be read as."""

    owner: int
    opened: str


class Keep(KeyedProcessFunction):
    """Keeps a state of each kind, under the types that it is given."""

    def __init__(self, account: Any, line: Any, visit: Any) -> None:
        self.types = account, line, visit

    def open(self, ctx: Any) -> None:
        account, _, visit = self.types
        self.account = ctx.get_state(ValueStateDescriptor("account", account))
        self.visits = ctx.get_list_state(ListStateDescriptor("visits", visit))
        self.by_number = ctx.get_map_state(MapStateDescriptor("by_number", int, self.types[1]))

    def process_element(self, value: Any, ctx: Any) -> Iterator[tuple[str, int, str]]:
        _, line, visit = self.types
        if line is Line:
            account = self.account.value() or Account(value.k, [], 10)
            account.lines.append(Line(value.i, "old"))
            self.account.update(account)
            self.visits.add(visit(value.k, value.i))
            self.by_number.put(value.i, Line(value.i, "old"))
        else:
            account = self.account.value() or NewAccount([], None, value.k)
            account.lines.append(NewLine(["new"], value.i))
            self.account.update(account)
            self.visits.add(visit(value.i, 2.0))
            self.by_number.put(value.i, NewLine(["new"], value.i))
        held = account, self.visits.get(), dict(sorted(self.by_number.items()))
        yield value.k, value.i, repr(held)


class Program:
    """The job, over one input."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self.spark = spark
        self.directory = directory
        self.feed = Feed(spark, directory / "input")
        self.rows: list[Any] = []

    def start(
        self, function: Keep, backend: str, parallelism: int, from_savepoint: str | None = None
    ) -> JobClient:
        env = StreamExecutionEnvironment.get_execution_environment(self.spark)
        env.set_parallelism(parallelism).set_state_backend(BACKENDS[backend])
        env.set_restart_strategy(RestartStrategies.no_restart())
        events = env.from_dataframe(self.feed.stream()).uid("events")
        kept = events.key_by("k").process(function, "k string, i bigint, held string").uid("keep")
        kept.foreach_batch(lambda df, _: self.rows.extend(map(tuple, df.collect())))
        return env.execute_async("schemas", from_savepoint=from_savepoint)

    def stop(self, client: JobClient) -> str:
        wait_for(lambda: len(self.rows) >= len(self.feed.elements), "all input to be processed")
        return client.stop_with_savepoint(str(self.directory / "savepoints"))

    def last(self) -> dict[str, str]:
        return {k: held for k, _, held in sorted(self.rows, key=lambda row: row[1])}


def new_held(elements: list[int], old: int) -> str:
    """What the new program holds of a key's elements, the first of which the old one saw."""
    lines = [NewLine([] if n < old else ["new"], i) for n, i in enumerate(elements)]
    account = NewAccount(lines, 10, f"k{elements[0] % 20}")
    visits = [NewVisit(i, 1.0 if n < old else 2.0) for n, i in enumerate(elements)]
    return repr((account, visits, {line.number: line for line in lines}))


def digest(directory: str) -> str:
    """Of all files in a directory."""
    found = hashlib.sha256()
    for file in sorted(path for path in Path(directory).rglob("*") if path.is_file()):
        found.update(str(file).encode() + file.read_bytes())
    return found.hexdigest()


@pytest.mark.parametrize(
    ("before", "after"),
    [(HASHMAP, ROCKSDB), pytest.param(ROCKSDB, HASHMAP, marks=pytest.mark.slow)],
)
def test_state_is_read_as_the_program_declares_it_now_over_and_over(
    spark: SparkSession, tmp_path: Path, before: str, after: str
) -> None:
    program = Program(spark, tmp_path)
    program.feed.fill(2)
    path = program.stop(program.start(Keep(Account, Line, Visit), before, 2))
    written = digest(path)
    # A type that does not fit is refused, field by field; and the savepoint is as it was.
    failed = program.start(Keep(OtherOwner, NewLine, NewVisit), after, 3, path)
    program.feed.fill(1)
    with pytest.raises(HoldfastError, match=r"OtherOwner\.owner: was str, is int") as refusal:
        failed.result(TIMEOUT)
    assert "opened: is new and has no default" in str(refusal.value)
    causes = [refusal.value.__cause__, getattr(refusal.value.__cause__, "__cause__", None)]
    assert any(isinstance(cause, StateMigrationError) for cause in causes)
    assert digest(path) == written
    path = program.stop(program.start(Keep(NewAccount, NewLine, NewVisit), after, 3, path))
    by_key = {f"k{k}": [i for i in program.feed.elements if i % 20 == k] for k in range(20)}
    assert program.last() == {k: new_held(mine, 4) for k, mine in by_key.items()}
    # Old and new values lie side by side now; both go on into the next savepoint.
    program.feed.fill(1)
    program.stop(program.start(Keep(NewAccount, NewLine, NewVisit), before, 1, path))
    by_key = {f"k{k}": [i for i in program.feed.elements if i % 20 == k] for k in range(20)}
    assert program.last() == {k: new_held(mine, 4) for k, mine in by_key.items()}
