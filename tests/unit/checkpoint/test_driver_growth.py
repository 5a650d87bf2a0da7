"""What the driver holds follows the checkpoints that are there, not those that ever were."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.accumulators import Accumulator, _accumulatorRegistry

from holdfast import EmbeddedRocksDBStateBackend, HashMapStateBackend
from holdfast.api.sinks import StagedRows
from holdfast.checkpoint.commit.service import CommitService
from holdfast.checkpoint.files.completed import load
from holdfast.checkpoint.files.metadata import handles_of
from holdfast.errors import CheckpointError
from holdfast.job.model import EpochResult, JobIdentity
from holdfast.job.statistics import EpochStatistics
from holdfast.job.statistics_keeper import StatisticsKeeper
from holdfast.runtime.report import Prepared, TaskReport
from holdfast.spark.epoch_runner import EpochRunner
from holdfast.storage.handles import InlineHandle, inline
from tests.support.driver_memory import grown, held
from tests.support.programs import Program
from tests.support.task_epochs import ROWS
from tests.unit.checkpoint.test_checkpointer import Bench, make

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["make"]

HISTORY = 12
"""Checkpoints after which the statistics' history is full."""


def sizes(bench: Bench) -> dict[str, int]:
    return held(bench.checkpointer, bench.commits)


def life(bench: Bench) -> None:
    """Some checkpoints that complete, one that fails in its upload and one in its epoch."""
    bench.epoch(due=False)
    bench.epoch()
    bench.epoch()
    number = bench.checkpointer.tracker.coordinator.next_id
    bench.calls.fail(number, CheckpointError("no room"))
    bench.epoch()
    bench.checkpointer.epoch_failed(bench.order())
    bench.epoch()
    bench.order(due=False)


@pytest.mark.parametrize("backend", [HashMapStateBackend(), EmbeddedRocksDBStateBackend()])
def test_nothing_on_the_driver_grows_with_the_checkpoints_of_a_job(
    make: Callable[..., Bench], backend: Any
) -> None:
    settings = {"incremental": True, "tolerable_failures": 1}
    settings |= {"published_known": HISTORY, "sample": HISTORY}
    bench = make(backend=backend, **settings)
    for _ in range(HISTORY // 3):
        life(bench)
    before = sizes(bench)
    for _ in range(5):
        life(bench)
    assert bench.failures == []
    assert grown(before, sizes(bench)) == {}


def test_state_within_the_metadata_is_bounded_in_sum(make: Callable[..., Bench]) -> None:
    most = 600
    bench = make(backend=EmbeddedRocksDBStateBackend(), inline_below=10_000, most_inline=most)
    bench.epoch()
    handles = [handle for _, handle in handles_of(load(bench.files, 1))]
    inlined = [handle.size for handle in handles if isinstance(handle, InlineHandle)]
    assert len(inlined) < len(handles)
    assert 0 < sum(inlined) <= most


def test_rows_within_the_metadata_are_bounded_in_sum(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    publisher = bench.commits._publisher
    assert publisher.most_staged == 2 * 2
    commits = CommitService(
        publisher, bench.files, exactly_once=True, inline_below=10_000, most_inline=4 * 1_000
    )
    assert commits.staging()._inline_below == 1_000
    waiting = Prepared("sink", rows=StagedRows(inline(b"x" * 2_400), 1, 2_400))
    in_file = Prepared("sink", rows=StagedRows("elsewhere", 1, 9_000))
    report = TaskReport(1, 1, 0, 7, "", "", {}, {}, prepared=(waiting, in_file))
    commits.epoch_completed(EpochResult(EpochStatistics(1, 1, 1), [report]))
    assert commits.staging()._inline_below == 400
    commits.epoch_completed(EpochResult(EpochStatistics(2, 1, 1), [report]))
    assert commits.staging()._inline_below == 0
    commits.begin(JobIdentity("job", "Job", None, "2"))
    assert commits.staging()._inline_below == 1_000


def test_a_checkpoint_that_turned_up_is_built_upon_and_goes_in_its_turn(
    make: Callable[..., Bench],
) -> None:
    bench = make(backend=EmbeddedRocksDBStateBackend(), incremental=True)
    bench.epoch()
    turned_up = load(bench.files, 1)
    bench.checkpointer.close()
    # Another driver has completed it after this one has looked for complete checkpoints.
    bench.checkpointer = bench.make(completed=[], next_id=4)
    bench.begin(turned_up, frozenset({("count", 0), ("count", 1)}))
    bench.epoch()
    assert bench.failures == []
    assert bench.complete == [4]
    for store in load(bench.files, 4).operators[0].subtasks:
        assert store.uploaded_size < store.full_size


def test_pyspark_keeps_no_reports_of_a_job_attempt_that_has_ended(tmp_path: Path) -> None:
    program = Program()
    program.collect(program.source(ROWS).uid("events"))
    plan = program.compile()
    made: list[Accumulator[Any]] = []

    def accumulator(value: Any, param: Any) -> Accumulator[Any]:
        made.append(Accumulator(-1 - len(made), value, param))
        return made[-1]

    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(accumulator=accumulator))
    pinning: Any = None
    job = JobIdentity("job", "Job", str(tmp_path))
    runner = EpochRunner(spark, plan, job, StatisticsKeeper(plan), pinning)
    (reports,) = made
    reports.add([TaskReport(1, 0, 0, 0, "host", "executor", {}, {})])
    runner.close()
    assert reports.aid not in _accumulatorRegistry
    assert reports.value == []
