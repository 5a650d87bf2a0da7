"""Rows read are told apart from rows per operator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from holdfast.job.compiler import compile_rescaled
from holdfast.job.statistics import JobStatus
from holdfast.job.statistics_keeper import StatisticsKeeper
from tests.support.functions import Count
from tests.support.programs import Program, Run

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from holdfast import DataStream

ROWS = [("a", 1), ("b", 2), ("c", 3)]


def counted(stream: DataStream, uid: str) -> DataStream:
    return stream.key_by("k").process(Count(), "k string, n bigint").uid(uid)


def read_twice(rows: DataStream) -> list[DataStream]:
    return [counted(rows, "one"), counted(rows, "two")]


def mapped_and_read_twice(rows: DataStream) -> list[DataStream]:
    mapped = rows.map(lambda row: row, "k string, n bigint").uid("map")
    return [counted(mapped, "one"), counted(rows, "two")]


def united_with_itself(rows: DataStream) -> list[DataStream]:
    return [counted(rows.union(rows), "one")]


def in_a_row(rows: DataStream) -> list[DataStream]:
    return [counted(counted(rows, "one"), "two")]


@pytest.mark.parametrize(
    ("program_of", "records_in"),
    [
        (read_twice, {"one": 3, "two": 3}),
        (mapped_and_read_twice, {"map": 3, "one": 3, "two": 3}),
        (united_with_itself, {"one": 6}),
        (in_a_row, {"one": 3, "two": 3}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_row_is_read_once_however_many_operators_read_it(
    tmp_path: Path, program_of: Callable[[DataStream], list[DataStream]], records_in: dict[str, int]
) -> None:
    program = Program()
    for stream in program_of(program.source()):
        program.collect(stream)
    figures, epochs = run(program, tmp_path, ROWS, ROWS[:2])
    assert [epoch.events for epoch in epochs] == [3, 2]
    assert figures.events == 5
    found = {uid: operator.records_in for uid, operator in figures.operators.items()}
    assert found == {uid: rows // 3 * 5 for uid, rows in records_in.items()}


def test_the_rows_of_all_sources_are_read(tmp_path: Path) -> None:
    program = Program()
    one, two = program.source(name="one").uid("1"), program.source(name="two").uid("2")
    program.collect(counted(one.union(two), "both"))
    program.collect(counted(two, "two"))
    keeper = StatisticsKeeper(program.compile())
    started = program.start(tmp_path)
    started.push(ROWS, ROWS[:1])
    assert keeper.add(1, 10, started.reports).events == 4


def run(program: Program, directory: Path, *feeds: list[Any]) -> Any:
    keeper, started = StatisticsKeeper(program.compile()), program.start(directory)
    epochs = []
    for number, feed in enumerate(feeds, 1):
        started.push(feed)
        epochs.append(keeper.add(number, 10, started.reports))
    return keeper.snapshot("id", "name", JobStatus.RUNNING), epochs


def test_a_rescaled_job_counts_its_state_once(tmp_path: Path) -> None:
    """Fewer subtasks have the entries that more had before."""
    program = Program(parallelism=4)
    program.collect(counted(program.source(), "count"))
    plan = program.compile()
    keeper = StatisticsKeeper(plan)
    feed = [(f"k{number}", 1) for number in range(20)]
    for number, parallelism in enumerate((4, 1), 1):
        plan = compile_rescaled(program.graph, program.settings, plan, parallelism)
        keeper.replan(plan)
        started = Run(plan, tmp_path / str(parallelism))
        started.push(feed)
        assert keeper.add(number, 10, started.reports).events == len(feed)
        fresh = StatisticsKeeper(plan)
        fresh.add(1, 10, started.reports)
        operator, expected = (
            one.snapshot("id", "name", JobStatus.RUNNING).operators["count"]
            for one in (keeper, fresh)
        )
        assert operator.state_entries == expected.state_entries >= len(feed)
        assert operator.state_bytes == expected.state_bytes
        assert operator.records_in == number * len(feed)
