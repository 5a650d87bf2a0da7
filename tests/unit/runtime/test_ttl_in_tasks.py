"""States with a time to live in the tasks of a job: their time, and what is reported."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from holdfast import (
    EmbeddedRocksDBStateBackend,
    HashMapStateBackend,
    JobStatus,
    KeyedProcessFunction,
    StateTtlConfig,
    ValueStateDescriptor,
)
from holdfast.errors import StateDescriptorError
from holdfast.job.statistics_keeper import StatisticsKeeper
from holdfast.runtime.report import STORE
from holdfast.state.snapshots import open_snapshot
from tests.support.programs import Program
from tests.support.task_epochs import ROWS, Tasks
from tests.support.timed_programs import ROWS as TIMED_ROWS
from tests.support.timed_programs import TimedRun, timed

if TYPE_CHECKING:
    from holdfast.runtime.report import TaskReport

TTL = 100
INCREMENTAL = EmbeddedRocksDBStateBackend(enable_incremental_checkpointing=True)


class Last(KeyedProcessFunction):
    """Keeps the last number of every key."""

    def __init__(self, config: StateTtlConfig) -> None:
        self.config = config

    def open(self, ctx: Any) -> None:
        self.last = ctx.get_state(ValueStateDescriptor("last", int, ttl=self.config))

    def process_element(self, value: Any, ctx: Any) -> Any:
        yield value[0], self.last.value()
        self.last.update(value[1])


def tasks(directory: Path, config: StateTtlConfig, backend: Any = None) -> Tasks:
    program = Program(backend=backend)
    program.collect(program.source(ROWS).key_by("k").process(Last(config), ROWS).uid("last"))
    return Tasks(program, directory)


def entries_in(report: TaskReport, backend: Any) -> int:
    """Entries of states in a snapshot."""
    taken = report.stores["last"].snapshot
    assert taken is not None
    with open_snapshot(backend, Path(taken.directory) / STORE) as snapshot:
        return sum(1 for key, _ in snapshot.scan(b"") if key[:2] != b"\0\0")


def test_a_task_sweeps_by_its_clock_and_reports_it(tmp_path: Path) -> None:
    job = tasks(tmp_path, StateTtlConfig.new_builder(TTL).build())
    assert job.run(("a", 1), ("b", 2)).stores["last"].expired_removed == 0
    job.clock.advance(TTL)
    report = job.run(("c", 3))
    assert report.stores["last"].expired_removed == 2


def test_statistics_add_up_what_was_swept(tmp_path: Path) -> None:
    program = Program()
    last = Last(StateTtlConfig.new_builder(TTL).build())
    program.collect(program.source(ROWS).key_by("k").process(last, ROWS).uid("last"))
    job = Tasks(program, tmp_path)
    keeper = StatisticsKeeper(program.compile())
    for epoch in range(3):
        keeper.add(epoch, 1, [job.run((f"k{epoch}", 1))])
        job.clock.advance(TTL)
    operators = keeper.snapshot("job", "job", JobStatus.RUNNING).operators
    assert operators["last"].expired_removed == 2


@pytest.mark.parametrize(
    ("backend", "left"),
    [(HashMapStateBackend(), 1), (EmbeddedRocksDBStateBackend(), 1), (INCREMENTAL, 3)],
    ids=["hashmap", "rocksdb", "incremental"],
)
def test_full_snapshots_are_without_what_has_expired(
    tmp_path: Path, backend: Any, left: int
) -> None:
    builder = StateTtlConfig.new_builder(TTL).cleanup_full_snapshot()
    job = tasks(tmp_path, builder.disable_cleanup_in_background().build(), backend)
    job.run(("a", 1), ("b", 2))
    job.clock.advance(TTL)
    report = job.run(("c", 3), checkpoint=1)
    assert entries_in(report, backend) == left


def test_cleanup_for_every_record_counts_the_records_of_the_task(tmp_path: Path) -> None:
    builder = StateTtlConfig.new_builder(TTL).cleanup_incrementally(1, True)
    job = tasks(tmp_path, builder.build())
    job.run(*((f"k{number}", 1) for number in range(20)))
    job.clock.advance(TTL)
    # Three records, and two accesses of each.
    assert job.run(*(("other", 1) for _ in range(3))).stores["last"].expired_removed == 9


def test_in_event_time_a_task_goes_by_its_watermark(tmp_path: Path) -> None:
    program = Program(parallelism=1)
    last = Last(StateTtlConfig.new_builder(TTL).use_event_time().build())
    stream = timed(program.source(TIMED_ROWS)).key_by("k").process(last, "k string, n bigint")
    found = program.collect(stream.uid("last"))
    run = TimedRun(program, tmp_path)

    def read(*rows: tuple[str, int]) -> Any:
        del found[:]
        run.push(list(rows))
        run.clock.advance(1_000_000)
        return [tuple(row) for row in found]

    assert read(("a", 1000), ("b", 1050)) == [("a", None), ("b", None)]
    assert read(("c", 1100)) == [("c", None)]
    # The watermark is at 1099 by now: nothing is so old that it has expired.
    assert read(("a", 1101), ("c", 1101)) == [("a", 1000), ("c", 1100)]
    # At 1100.
    assert read(("b", 1300)) == [("b", 1050)]
    assert run.reports[-1].stores["last"].expired_removed == 0
    # At 1299: "a" and "c" go.
    assert read(("d", 1300)) == [("d", None)]
    assert run.reports[-1].stores["last"].expired_removed == 2
    assert read(("a", 1310), ("b", 1310)) == [("a", None), ("b", 1300)]


def test_event_time_needs_an_input_that_has_some(tmp_path: Path) -> None:
    job = tasks(tmp_path, StateTtlConfig.new_builder(TTL).use_event_time().build())
    with pytest.raises(StateDescriptorError, match="assign_timestamps_and_watermarks") as error:
        job.run(("a", 1))
    assert "'last'" in str(error.value)
