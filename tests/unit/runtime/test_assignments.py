"""What a task is told: its own part, whatever the number of subtasks."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from holdfast.api.sinks import StagedRows
from holdfast.runtime.assignments import assign
from holdfast.runtime.channel_cut import entries_of, takers
from holdfast.runtime.plan import ChannelRows, EpochPlan, EpochTime
from holdfast.state.key_groups import key_groups, subtask_of
from holdfast.state.store.process import ProcessIdentity
from tests.support.functions import Count
from tests.support.programs import Program
from tests.support.task_epochs import ROWS

if TYPE_CHECKING:
    from holdfast.runtime.plan import StagePlan

EPOCH = EpochPlan("job", "1", 7, None, ProcessIdentity.current(), time=EpochTime({"count": (1, 2)}))


def stage(parallelism: int = 4) -> StagePlan:
    program = Program(parallelism=parallelism)
    counted = program.source(ROWS).key_by("k").process(Count(), "k string, n bigint").uid("count")
    program.collect(counted)
    return program.compile().stages[0]


STAGE = stage()


def left(subtask: int, parallelism: int = 4, uid: str = "count", groups: int = 128) -> ChannelRows:
    return ChannelRows(uid, 0, subtask, parallelism, groups, StagedRows(f"at {subtask}", 1, 10))


def test_a_task_is_told_of_its_own_stores_timers_and_input() -> None:
    expected = {("count", 1): "6-11", ("count", 2): "6-12", ("other", 1): "6-13"}
    held = {("count", 1): "6-11", ("count", 2): "5-12", ("other", 1): "6-13"}
    due = frozenset({("count", 2), ("other", 1)})
    rows = (left(2), left(1), left(2), left(1, uid="other"))
    packed = pickle.loads(pickle.dumps(assign(STAGE, 4, expected, held, due, rows)))
    first, second = packed.of_subtask(EPOCH, 1), packed.of_subtask(EPOCH, 2)
    assert first == replace(
        EPOCH,
        expected={("count", 1): "6-11"},
        held=frozenset({("count", 1)}),
        channel_rows=(left(1),),
    )
    assert second == replace(
        EPOCH,
        expected={("count", 2): "6-12"},
        channel_rows=(left(2), left(2)),
        time=EpochTime({"count": (1, 2)}, due=frozenset({("count", 2)})),
    )
    assert packed.of_subtask(EPOCH, 0) == packed.of_subtask(EPOCH, 3) == EPOCH


def test_an_epoch_without_time_has_no_timers() -> None:
    idle = replace(EPOCH, time=None)
    assert assign(STAGE, 4, {}, {}, (), ()).of_subtask(idle, 3) == idle


def test_what_a_task_carries_for_another_is_a_few_bytes() -> None:
    sizes = [
        len(
            pickle.dumps(
                assign(
                    STAGE, tasks, {("count", i): f"104-{i:06d}" for i in range(tasks)}, {}, (), ()
                )
            )
        )
        for tasks in (10, 1_010)
    ]
    assert (sizes[1] - sizes[0]) / 1_000 <= 24


@given(st.data(), st.integers(1, 40), st.integers(1, 40), st.integers(40, 128))
def test_input_that_is_left_over_reaches_whoever_has_its_key_groups_now(
    data: st.DataObject, before: int, now: int, groups: int
) -> None:
    plan = stage(now)
    [(channel, operator)] = entries_of(plan).values()
    operator = replace(operator, max_parallelism=groups)
    subtask = data.draw(st.integers(0, before - 1))
    found = takers(left(subtask, before, groups=groups), channel, operator)
    owners = {subtask_of(g, now, groups) for g in key_groups(subtask, before, groups)}
    assert owners <= set(found) <= set(range(now))
    assert len(found) <= len(owners) or not owners


def test_with_other_key_groups_it_may_be_for_anyone() -> None:
    [(channel, operator)] = entries_of(STAGE).values()
    assert takers(left(1, groups=64), channel, operator) == range(4)
