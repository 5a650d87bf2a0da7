"""A task whose epoch ends in a checkpoint: what it leaves behind, for which stores."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from holdfast import (
    CheckpointedFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    ProcessFunction,
    ValueStateDescriptor,
)
from holdfast.errors import StateError
from holdfast.runtime.report import OPERATOR_STATE, STORE
from holdfast.state.operator.redistribution import OperatorStateSnapshot
from holdfast.state.snapshots import open_snapshot
from holdfast.state.store.directories import snapshot_directory
from tests.support.functions import Count
from tests.support.programs import Program
from tests.support.task_epochs import ROWS, Tasks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.runtime.report import SnapshotReport, TaskReport

COUNTS = "k string, count bigint"


class Numbers(ProcessFunction, CheckpointedFunction):
    """Keeps the numbers it has seen, in operator state."""

    def initialize_state(self, ctx: Any) -> None:
        store = ctx.get_operator_state_store()
        self.numbers = store.get_list_state(ListStateDescriptor("numbers", int))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.numbers.add(value.n)
        yield value

    def snapshot_state(self, ctx: Any) -> None:
        return None


class Lazy(KeyedProcessFunction):
    """Opens its state for some elements only."""

    def open(self, ctx: Any) -> None:
        self.ctx = ctx

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        if value.n:
            self.ctx.get_state(ValueStateDescriptor("n", int)).update(value.n)
        yield value.k, value.n


def counting(directory: Path, backend: Any = None, function: Any = None) -> Tasks:
    program = Program(backend=backend)
    stream = program.source(ROWS).key_by("k").process(function or Count(), COUNTS)
    program.collect(stream.uid("count"))
    return Tasks(program, directory)


def keeping(directory: Path, backend: Any = None) -> Tasks:
    program = Program(backend=backend)
    program.collect(program.source(ROWS).rebalance().process(Numbers(), ROWS).uid("numbers"))
    return Tasks(program, directory)


def snapshot_of(report: TaskReport, uid: str) -> SnapshotReport:
    snapshot = report.stores[uid].snapshot
    assert snapshot is not None
    return snapshot


def numbers_in(report: TaskReport) -> list[bytes]:
    path = Path(snapshot_of(report, "numbers").directory) / OPERATOR_STATE
    [state] = OperatorStateSnapshot.decode(path.read_bytes()).states
    return state.elements


def test_an_epoch_without_a_checkpoint_leaves_no_snapshot(tmp_path: Path) -> None:
    report = counting(tmp_path).run(("a", 1))
    assert report.stores["count"].snapshot is None
    assert not list(tmp_path.rglob("*.snapshots"))


def test_a_snapshot_holds_the_store_as_the_epoch_left_it(tmp_path: Path, backend: Any) -> None:
    tasks = counting(tmp_path, backend)
    tasks.run(("a", 1))
    report = tasks.run(("a", 1), ("b", 1), checkpoint=7)
    taken = snapshot_of(report, "count")
    assert [(state["name"], state["kind"]) for state in taken.states] == [("count", "value")]
    assert taken.key == "str"
    assert taken.sync_ms >= 0
    tasks.run(("c", 1))
    with open_snapshot(backend, Path(taken.directory) / STORE) as snapshot:
        assert snapshot.version == report.stores["count"].version == "2-2"
        assert len(list(snapshot.scan(b"\x00\x01"))) == 2
    assert not (Path(taken.directory) / OPERATOR_STATE).exists()


def test_a_snapshot_lies_under_its_checkpoint_operator_subtask_and_attempt(tmp_path: Path) -> None:
    tasks = counting(tmp_path)
    tasks.attempt = 40
    taken = snapshot_of(tasks.run(("a", 1), subtask=1, checkpoint=7), "count")
    root = snapshot_directory(str(tmp_path), "job", "1", 7)
    assert Path(taken.directory) == root / "count" / "1-41"
    assert Path(taken.directory).stat().st_mode & 0o077 == 0


def test_a_store_that_no_row_reached_is_in_the_checkpoint_and_moves_on(
    tmp_path: Path, backend: Any
) -> None:
    tasks = counting(tmp_path, backend)
    tasks.run(("a", 1))
    report = tasks.run(checkpoint=3)
    assert report.stores["count"].version == "2-2"
    with open_snapshot(backend, Path(snapshot_of(report, "count").directory) / STORE) as snapshot:
        assert snapshot.version == "2-2"
        assert len(list(snapshot.scan(b"\x00\x01"))) == 1
    assert snapshot_of(report, "count").key == "str"
    assert [state["name"] for state in snapshot_of(report, "count").states] == ["count"]
    assert report.operators["count"].records_in == 0


def test_a_store_whose_function_left_it_alone_is_in_the_checkpoint(tmp_path: Path) -> None:
    tasks = counting(tmp_path, function=Lazy())
    tasks.run(("a", 5))
    report = tasks.run(("a", 0), checkpoint=1)
    assert [state["name"] for state in snapshot_of(report, "count").states] == ["n"]


def test_without_a_checkpoint_an_idle_store_stays_where_it_is(tmp_path: Path) -> None:
    tasks = counting(tmp_path)
    tasks.run(("a", 1))
    assert tasks.run().stores == {}
    assert tasks.expected == {("count", 0): "1-1"}


def test_a_subtask_that_never_had_state_has_no_snapshot(tmp_path: Path) -> None:
    tasks = counting(tmp_path)
    tasks.run(("a", 1))
    assert tasks.run(subtask=1, checkpoint=3).stores == {}


def test_two_attempts_of_one_subtask_do_not_share_a_snapshot(tmp_path: Path) -> None:
    tasks = counting(tmp_path)
    first = snapshot_of(tasks.run(("a", 1), checkpoint=3), "count")
    tasks.epoch -= 1
    second = snapshot_of(tasks.run(("a", 1), checkpoint=3), "count")
    assert first.directory != second.directory
    assert Path(first.directory).exists()


def test_operator_state_is_snapshot_beside_the_store(tmp_path: Path, backend: Any) -> None:
    tasks = keeping(tmp_path, backend)
    tasks.run(("a", 1))
    report = tasks.run(("a", 2), checkpoint=4)
    assert len(numbers_in(report)) == 2
    assert snapshot_of(report, "numbers").key is None


def test_an_operator_with_state_works_without_rows(tmp_path: Path) -> None:
    tasks = keeping(tmp_path)
    report = tasks.run(checkpoint=1)
    assert numbers_in(report) == []
    assert report.stores["numbers"].version == "1-1"


def test_a_task_beyond_the_parallelism_of_its_operator_has_no_part_in_it(tmp_path: Path) -> None:
    tasks = keeping(tmp_path)
    report = tasks.run(subtask=2, checkpoint=1, completed=(1,))
    assert report.stores == {}
    assert report.operators == {}


def test_operator_state_that_the_program_no_longer_has_stays_in_the_snapshot(
    tmp_path: Path,
) -> None:
    tasks = keeping(tmp_path)
    tasks.run(("a", 1))
    program = Program()
    same = program.source(ROWS).rebalance().map(lambda row: row, ROWS).uid("numbers")
    program.collect(same)
    later = Tasks(program, tmp_path)
    later.expected, later.epoch = tasks.expected, tasks.epoch
    report = later.run(("a", 2), checkpoint=2)
    assert len(numbers_in(report)) == 1


def test_a_snapshot_that_cannot_be_made_names_the_operator(tmp_path: Path) -> None:
    tasks = counting(tmp_path)
    tasks.attempt = 4
    target = snapshot_directory(str(tmp_path), "job", "1", 3) / "count" / "0-5" / STORE
    target.mkdir(parents=True)
    with pytest.raises(StateError, match=r"\(uid 'count'\), subtask 1/2, .*exists already"):
        tasks.run(("a", 1), checkpoint=3)


def test_a_store_at_another_version_is_refused_though_it_is_idle(tmp_path: Path) -> None:
    tasks = counting(tmp_path)
    tasks.run(("a", 1))
    tasks.expected = {("count", 0): "9-9"}
    with pytest.raises(StateError, match="9-9"):
        tasks.run(checkpoint=2)
