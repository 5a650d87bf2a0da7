"""A store that has not changed since the last complete checkpoint is not copied again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from holdfast import (
    EmbeddedRocksDBStateBackend,
    HashMapStateBackend,
    KeyedProcessFunction,
    MapFunction,
    SavepointFormatType,
    StateTtlConfig,
    ValueStateDescriptor,
)
from holdfast.checkpoint.files.completed import load, used_ids, verify_handles
from holdfast.checkpoint.files.metadata import paths_of
from holdfast.checkpoint.pending import CheckpointBase
from holdfast.checkpoint.savepoint.requests import CheckpointRequest, SavepointRequest
from holdfast.errors import CheckpointError
from holdfast.functions import ListCheckpointed
from holdfast.job.model import EpochResult
from holdfast.job.statistics import EpochStatistics
from holdfast.runtime.assignments import assign
from tests.support.programs import Program
from tests.support.task_epochs import ROWS, Tasks
from tests.unit.checkpoint.test_checkpointer import Bench, make

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from holdfast.checkpoint.files.metadata import CheckpointMetadata, StoreSnapshot
    from holdfast.job.model import EpochOrder
    from holdfast.runtime.report import TaskReport

__all__ = ["make"]

BOTH = pytest.mark.parametrize("backend", [HashMapStateBackend(), EmbeddedRocksDBStateBackend()])


class Quiet(Bench):
    """A bench whose epochs have rows for some subtasks, and which is told what is held."""

    rows: tuple[int, ...] = (0, 1)

    def run(self, order: EpochOrder) -> EpochResult:
        self.batch += 1
        offsets = self.query_dir / "offsets"
        offsets.mkdir(parents=True, exist_ok=True)
        (offsets / str(self.batch)).write_text(f"v1\n{{}}\n{self.batch * 10}")
        number = None if order.checkpoint is None else order.checkpoint.id
        told = assign(self.tasks.stage, 2, self.tasks.expected, order.held, (), ())
        reports = []
        for subtask in range(2):
            plan = told.of_subtask(self.tasks.task().__dict__["_epoch"], subtask)
            self.tasks.epoch -= 1
            rows = [("a", 1)] if subtask in self.rows else []
            report = self.tasks.run(
                *rows,
                subtask=subtask,
                checkpoint=number,
                held=plan.held,
                kept_snapshots=order.kept_snapshots,
            )
            reports.append(report)
            self.tasks.epoch -= 1
        self.tasks.epoch += 1
        self.reports: list[TaskReport] = reports
        return EpochResult(EpochStatistics(self.tasks.epoch, 2, self.epoch_ms), reports)

    def checkpoint(self, *rows: int) -> CheckpointMetadata:
        """A checkpoint after an epoch with rows for these subtasks."""
        self.rows = rows
        order = self.epoch()
        assert order.checkpoint is not None
        assert self.failures == []
        return load(self.files, order.checkpoint.id)

    def stores(self, metadata: CheckpointMetadata) -> list[StoreSnapshot]:
        [operator] = metadata.operators
        return operator.subtasks


@pytest.fixture
def quiet(tmp_path: Path) -> Callable[..., Quiet]:
    return lambda **settings: Quiet(tmp_path, **settings)


@BOTH
def test_a_store_without_rows_is_neither_opened_nor_uploaded(
    quiet: Callable[..., Quiet], backend: Any
) -> None:
    bench = quiet(backend=backend)
    first = bench.stores(bench.checkpoint(0, 1))
    second = bench.stores(bench.checkpoint(0))
    assert bench.reports[1].unchanged == {"count": first[1].version}
    assert bench.reports[1].stores == {}
    assert (second[1].version, second[1].files) == (first[1].version, first[1].files)
    assert (second[1].uploaded_size, second[1].full_size) == (0, first[1].full_size)
    assert second[0].version != first[0].version
    assert second[0].uploaded_size > 0


@BOTH
def test_its_files_stay_for_as_long_as_a_checkpoint_uses_them(
    quiet: Callable[..., Quiet], backend: Any
) -> None:
    bench = quiet(backend=backend)
    first = bench.stores(bench.checkpoint(0, 1))
    for _ in range(3):
        newest = bench.checkpoint(0)
        verify_handles(newest, bench.files)
        for handle in bench.stores(newest)[1].files.values():
            bench.files.read_bytes(handle)
    assert bench.complete == [4]
    assert bench.stores(newest)[1].files == first[1].files
    changed = bench.checkpoint(1)
    assert bench.stores(changed)[1].version != first[1].version
    assert {f"shared/{name}" for name in bench.files.entries("shared")} == paths_of(changed)


def test_a_job_without_any_input_uploads_nothing(quiet: Callable[..., Quiet]) -> None:
    bench = quiet()
    first = bench.checkpoint(0, 1)
    before = bench.files.entries("shared")
    second = bench.checkpoint()
    assert bench.files.entries("shared") == before
    assert [one.files for one in bench.stores(second)] == [one.files for one in bench.stores(first)]
    figures = bench.checkpointer.statistics.snapshot().latest_completed
    assert figures is not None
    assert (figures.checkpointed_size, figures.num_acknowledged_subtasks) == (0, 2)
    assert figures.state_size == sum(one.full_size for one in bench.stores(first))
    assert second.operators[0].states == first.operators[0].states
    assert second.operators[0].key == first.operators[0].key == "str"


def test_what_a_failed_checkpoint_had_does_not_count(quiet: Callable[..., Quiet]) -> None:
    bench = quiet(tolerable_failures=5)
    bench.checkpoint(0, 1)
    bench.calls.fail(2, CheckpointError("no room"))
    bench.rows = (0, 1)
    bench.epoch()
    assert bench.complete == [1]
    third = bench.checkpoint()
    assert [one.version.partition("-")[0] for one in bench.stores(third)] == ["3", "3"]
    assert all(one.uploaded_size for one in bench.stores(third))


def test_what_an_epoch_in_between_has_changed_is_uploaded(quiet: Callable[..., Quiet]) -> None:
    bench = quiet()
    first = bench.stores(bench.checkpoint(0, 1))
    bench.rows = (1,)
    bench.epoch(due=False)
    second = bench.stores(bench.checkpoint())
    assert second[0].files == first[0].files
    assert second[1].uploaded_size > 0


@pytest.mark.parametrize("is_savepoint", [True, False])
def test_a_savepoint_is_told_of_nothing_that_is_held(
    quiet: Callable[..., Quiet], tmp_path: Path, is_savepoint: bool
) -> None:
    """A checkpoint that is requested alone is like any other."""
    bench = quiet()
    bench.checkpoint(0, 1)
    bench.clock.advance(1_000)
    request = CheckpointRequest("a checkpoint")
    if is_savepoint:
        form = SavepointFormatType.CANONICAL
        request = SavepointRequest.at(tmp_path / "savepoints", "0123456789", form)
    order = bench.checkpointer.next_epoch(idle=True, request=request)
    assert order is not None
    assert order.checkpoint is not None
    assert bool(order.held) is not is_savepoint


def test_in_another_job_attempt_nothing_is_held(quiet: Callable[..., Quiet]) -> None:
    bench = quiet()
    first = bench.checkpoint(0, 1)
    bench.checkpointer.end_attempt()
    base = bench.checkpointer.tracker.base
    assert base is not None
    job = base.job
    other = type(job)("job", "Job", None, "1-2")
    bench.checkpointer.begin_attempt(CheckpointBase(other, first, frozenset(), bench.capture))
    assert bench.order().held == {}


def test_a_local_backup_stays_where_the_store_stays(quiet: Callable[..., Quiet]) -> None:
    bench = quiet(local_backup=True)
    bench.checkpoint(0, 1)
    first = dict(bench.checkpointer.tracker.local_snapshots.copies)
    for _ in range(3):
        bench.checkpoint(0)
    newest = bench.checkpointer.tracker.local_snapshots.copies
    assert newest["count", 1] == first["count", 1]
    assert newest["count", 0] != first["count", 0]
    assert len(bench.snapshots()) == 3
    bench.checkpoint(0, 1)
    bench.checkpoint(0, 1)
    assert first["count", 1] not in {str(path.parent) for path in bench.snapshots()}


def test_a_base_that_does_not_hold_what_is_said_to_be_unchanged_fails_the_checkpoint(
    quiet: Callable[..., Quiet], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = quiet(tolerable_failures=1)
    bench.checkpoint(0, 1)
    order = bench.order()
    monkeypatch.setattr(CheckpointBase, "stores", lambda _: {})
    bench.rows = ()
    bench.taken(order)
    figures = bench.checkpointer.statistics.snapshot().latest_failed
    assert figures is not None
    assert "the store has not changed since version '1-" in (figures.failure_message or "")
    assert bench.complete == [1]


def test_ids_are_not_used_again_of_checkpoints_that_left_only_shared_files(
    quiet: Callable[..., Quiet],
) -> None:
    bench = quiet()
    bench.checkpoint(0, 1)
    bench.files.write_bytes("shared/7-abc", b"of a driver that died in its upload")
    assert used_ids(bench.files) == {1, 7}


# What makes a store one that has changed


class Reads(KeyedProcessFunction):
    """Reads what it has of a key; writes, sets a timer, or does nothing more, as it is told."""

    def __init__(self, ttl: StateTtlConfig | None = None) -> None:
        self.ttl = ttl

    def open(self, ctx: Any) -> None:
        self.last = ctx.get_state(ValueStateDescriptor("last", int, ttl=self.ttl))

    def process_element(self, value: Any, ctx: Any) -> Any:
        seen = self.last.value()
        if value[1] > 0:
            self.last.update(value[1])
        elif value[1] < 0:
            ctx.timer_service().register_processing_time_timer(-value[1] * 1_000_000)
        yield value[0], seen


class Remembers(MapFunction, ListCheckpointed):
    """Keeps the last number it has seen as operator state."""

    last = 0

    def map(self, value: Any) -> Any:
        self.last = value[1]
        return value

    def snapshot_state(self, checkpoint_id: int, timestamp: int) -> list[int]:
        return [self.last]

    def restore_state(self, state: list[int]) -> None:
        self.last = state[0] if state else 0


class Written:
    """One subtask: its versions, epoch after epoch, of which all are held."""

    def __init__(self, directory: Path, function: Any, backend: Any = None) -> None:
        program = Program(parallelism=1, backend=backend)
        source = program.source(ROWS)
        if isinstance(function, MapFunction):
            stream = source.rebalance().map(function, ROWS)
        else:
            stream = source.key_by("k").process(function, ROWS)
        program.collect(stream.uid("it"))
        self.tasks = Tasks(program, directory)

    def stays(self, *rows: Any, checkpoint: int | None = 1) -> bool:
        """Whether an epoch with these rows leaves the store as it is."""
        before = dict(self.tasks.expected)
        held = frozenset(before)
        report = self.tasks.run(*rows, checkpoint=checkpoint, held=held)
        stays = self.tasks.expected == before
        if checkpoint is not None:
            assert ("it" in report.unchanged) == stays
            store = report.stores.get("it")
            assert store is None or (store.snapshot is None) == stays
        return stays


@BOTH
def test_what_is_written_changes_a_store_and_what_is_read_does_not(
    tmp_path: Path, backend: Any
) -> None:
    one = Written(tmp_path, Reads(), backend)
    assert not one.stays(("a", 1))
    assert one.stays(("a", 0), ("b", 0))
    assert one.stays(("a", 0), checkpoint=None)
    assert one.stays()
    assert not one.stays(("a", 2), checkpoint=None)
    assert not one.stays(("a", 2))


def test_a_key_of_a_first_type_changes_a_store(tmp_path: Path) -> None:
    one = Written(tmp_path, Reads())
    assert not one.stays(("a", 0))
    assert one.stays(("a", 0))


def test_timers_change_a_store(tmp_path: Path) -> None:
    one = Written(tmp_path, Reads())
    one.stays(("a", 1))
    assert not one.stays(("a", -5))
    assert one.stays()
    assert one.stays(("a", 0))


def test_a_store_with_timers_that_stays_still_says_when_they_are_due(tmp_path: Path) -> None:
    one = Written(tmp_path, Reads())
    one.stays(("a", -5))
    report = one.tasks.run(("a", 0), checkpoint=1, held=frozenset({("it", 0)}))
    assert report.unchanged
    assert report.stores["it"].next_processing_timer == 5_000_000


def test_a_sweep_that_goes_on_changes_a_store_and_one_that_is_not_due_does_not(
    tmp_path: Path,
) -> None:
    one = Written(tmp_path, Reads(StateTtlConfig.new_builder(1_000).build()))
    one.stays(("a", 1))
    assert one.stays(("b", 0))
    one.tasks.clock.advance(1_000)
    assert not one.stays(("b", 0))
    assert one.stays()


def test_operator_state_that_is_set_to_what_it_is_changes_nothing(tmp_path: Path) -> None:
    one = Written(tmp_path, Remembers())
    assert not one.stays(("a", 7))
    assert one.stays(("a", 7))
    assert one.stays()
    assert not one.stays(("a", 8))


def test_what_is_not_held_is_snapshot_whether_it_has_changed_or_not(tmp_path: Path) -> None:
    one = Written(tmp_path, Reads())
    one.stays(("a", 1))
    report = one.tasks.run(("a", 0), checkpoint=2)
    assert report.stores["it"].snapshot is not None
    assert report.unchanged == {}
