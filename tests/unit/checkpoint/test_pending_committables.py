"""Output that waits for its checkpoint, and under which id it is published."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING

import pytest

from holdfast.api.sinks import StagedRows
from holdfast.checkpoint.commit.committables import (
    PendingCommittables,
    committables,
    staged_handle,
    staged_rows,
)
from holdfast.runtime.report import Prepared, TaskReport
from holdfast.storage.handles import inline

if TYPE_CHECKING:
    from collections.abc import Iterator


def report(*texts: str, stage: int = 1, subtask: int = 0, uid: str = "sink") -> TaskReport:
    prepared = tuple(Prepared(uid, text.encode()) for text in texts)
    return TaskReport(1, stage, subtask, 0, "host", "executor", {}, {}, prepared=prepared)


@pytest.fixture
def pending_committables() -> PendingCommittables:
    """The output of three epochs."""
    pending_committables = PendingCommittables("lineage")
    for epoch in (1, 2, 3):
        pending_committables.add(epoch, [report(f"e{epoch}")])
    return pending_committables


def listed(
    pending_committables: PendingCommittables, epoch: int, checkpoint_id: int
) -> list[tuple[str, int, int]]:
    found = pending_committables.listed(epoch, checkpoint_id)
    return [(one.data.decode(), one.epoch, one.checkpoint_id) for one in found]


def test_a_checkpoint_lists_what_waits_up_to_its_epoch(
    pending_committables: PendingCommittables,
) -> None:
    assert listed(pending_committables, 2, 7) == [("e1", 1, 7), ("e2", 2, 7)]


def test_a_committable_keeps_the_id_of_the_checkpoint_that_was_completed_with_it(
    pending_committables: PendingCommittables,
) -> None:
    listed(pending_committables, 2, 7)
    assert listed(pending_committables, 3, 8) == [("e1", 1, 7), ("e2", 2, 7), ("e3", 3, 8)]
    assert listed(pending_committables, 3, 9) == [("e1", 1, 7), ("e2", 2, 7), ("e3", 3, 8)]


def test_what_a_failed_checkpoint_listed_goes_with_the_next_one(
    pending_committables: PendingCommittables,
) -> None:
    listed(pending_committables, 1, 7)
    listed(pending_committables, 2, 8)
    pending_committables.unlist(8)
    assert listed(pending_committables, 3, 9) == [("e1", 1, 7), ("e2", 2, 9), ("e3", 3, 9)]


def test_what_is_published_waits_no_more(pending_committables: PendingCommittables) -> None:
    listed(pending_committables, 2, 7)
    pending_committables.published(2)
    assert listed(pending_committables, 3, 8) == [("e3", 3, 8)]
    pending_committables.published(3)
    assert listed(pending_committables, 9, 9) == []


def test_output_is_owed_once_a_checkpoint_lists_it(
    pending_committables: PendingCommittables,
) -> None:
    assert not pending_committables.is_owed
    listed(pending_committables, 1, 7)
    assert pending_committables.is_owed
    pending_committables.unlist(7)
    assert not pending_committables.is_owed
    listed(pending_committables, 2, 8)
    pending_committables.published(2)
    assert not pending_committables.is_owed


def test_the_order_is_that_of_epochs_stages_and_subtasks() -> None:
    pending_committables = PendingCommittables()
    pending_committables.add(
        1,
        [
            report("c", stage=2, subtask=0),
            report("b", stage=1, subtask=10),
            report("a", "aa", stage=1, subtask=2),
        ],
    )
    pending_committables.add(2, [report("d", subtask=0)])
    found = pending_committables.listed(2, 1)
    assert [one.data for one in found] == [b"a", b"aa", b"b", b"c", b"d"]
    assert [one.subtask for one in found] == [2, 2, 10, 0, 0]


def test_output_that_does_not_wait_belongs_to_checkpoint_zero() -> None:
    [one] = committables(5, [report("x", subtask=3)])
    assert (one.uid, one.epoch, one.subtask, one.checkpoint_id) == ("sink", 5, 3, 0)


def test_staged_rows_are_listed_by_their_handle() -> None:
    rows = StagedRows(inline(b"abc"), 2, 3)
    pending_committables = PendingCommittables()
    task = TaskReport(1, 1, 0, 0, "", "", {}, {}, prepared=(Prepared("sink", rows=rows),))
    pending_committables.add(1, [task])
    [one] = pending_committables.listed(1, 1)
    assert one.data == b""
    assert one.rows == staged_handle(rows)
    assert staged_rows(one.rows) == rows


# Epochs go on while a checkpoint is completed in another thread


def test_what_is_published_while_an_epoch_hands_its_output_over_stays_published(
    pending_committables: PendingCommittables,
) -> None:
    def reports() -> Iterator[TaskReport]:
        listed(pending_committables, 3, 7)
        pending_committables.published(3)
        yield report("e4")

    pending_committables.add(4, reports())
    assert listed(pending_committables, 9, 8) == [("e4", 4, 8)]


def test_output_that_comes_while_other_output_is_published_is_listed_once() -> None:
    pending_committables, epochs, everything_added = (
        PendingCommittables(),
        20_000,
        threading.Event(),
    )

    def add_all() -> None:
        for epoch in range(1, epochs + 1):
            pending_committables.add(epoch, [report(str(epoch))])
        everything_added.set()

    taken: list[int] = []
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    adding = threading.Thread(target=add_all)
    try:
        adding.start()
        checkpoint_id = 0
        while True:
            last = everything_added.is_set()
            checkpoint_id += 1
            found = pending_committables.listed(epochs, checkpoint_id)
            taken += [one.epoch for one in found]
            pending_committables.published(max((one.epoch for one in found), default=0))
            if last:
                break
    finally:
        sys.setswitchinterval(interval)
        adding.join()
    assert taken == list(range(1, epochs + 1))
