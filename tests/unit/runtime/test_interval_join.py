"""The interval join: which elements make pairs, which come too late, and what is kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from holdfast import (
    ErrorPolicy,
    OutputTag,
    ProcessJoinFunction,
    ValueStateDescriptor,
)
from holdfast.api.time import MAX_WATERMARK, MIN_WATERMARK
from holdfast.errors import EventTimeError, UserFunctionError
from holdfast.runtime.exchange import SUBTASK, ExchangeWriter, appended
from holdfast.runtime.operator_task import TaskIdentity
from holdfast.runtime.operators import interval_join
from holdfast.runtime.plan import TIME
from holdfast.state.backend import KeyedStateBackend
from holdfast.state.store.opening import open_store
from holdfast.state.table import CurrentKey
from holdfast.testing.clock import ManualClock
from holdfast.types.columns.batches import BatchWriter
from holdfast.types.stream_type import StreamType
from tests.support.interval_joins import ELEMENTS, Element, Join, Pair, Pairs
from tests.support.workers import EpochTask

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from holdfast.config.backends import StateBackend

FAILED = OutputTag("failed")


def a(t: int, n: int) -> Element:
    return Element("a", t, n)


# Pairs


def test_both_bounds_are_included(backend: StateBackend, tmp_path: Path) -> None:
    join = Join(-10, 20, backend=backend)
    run = join.start(tmp_path)
    run.push([a(100, 0)], [a(t, t) for t in (89, 90, 100, 120, 121)])
    assert sorted(join.taken()) == [(0, 90), (0, 100), (0, 120)]


def test_a_bound_may_be_left_out(tmp_path: Path) -> None:
    join = Join(-10, 20, exclusive=(True, True))
    join.start(tmp_path).push([a(100, 0)], [a(t, t) for t in (90, 91, 119, 120)])
    assert sorted(join.taken()) == [(0, 91), (0, 119)]


@pytest.mark.parametrize(("lower", "upper"), [(5, 10), (-10, -5), (0, 0)])
def test_an_interval_may_lie_beside_the_element(lower: int, upper: int, tmp_path: Path) -> None:
    join = Join(lower, upper)
    run = join.start(tmp_path)
    run.push([a(100, 0)], [])
    run.push([], [a(100 + d, d) for d in range(-20, 20)])
    run.push([a(100, 1)], [])
    partners = range(lower, upper + 1)
    assert sorted(join.taken()) == [(n, d) for n in (0, 1) for d in partners]


def test_keys_do_not_meet(backend: StateBackend, tmp_path: Path) -> None:
    join = Join(-5, 5, backend=backend)
    run = join.start(tmp_path)
    run.push([Element("a", 1, 1), Element("b", 1, 2)], [])
    run.push([], [Element("b", 1, 3), Element("c", 1, 4)])
    assert join.taken() == [(2, 3)]


def test_partners_come_in_the_order_of_their_times_then_of_arrival(
    backend: StateBackend, tmp_path: Path
) -> None:
    join = Join(-1000, 1000, backend=backend)
    run = join.start(tmp_path)
    # Times of both signs, and of one and of several bytes.
    run.push([], [a(300, 1)])
    run.push([], [a(-300, 2)])
    run.push([], [a(7, 3)])
    run.push([], [a(7, 4)])
    run.push([], [a(-1, 5)])
    run.push([a(0, 0)], [])
    assert [right for _, right in join.taken()] == [2, 5, 3, 4, 1]


def test_many_elements_of_one_time_are_all_kept(backend: StateBackend, tmp_path: Path) -> None:
    join = Join(0, 10, backend=backend)
    run = join.start(tmp_path)
    for numbers in (range(1), range(1, 20), range(20, 51), range(51, 70)):
        run.push_until(0, [a(5, n) for n in numbers])
    run.push_until(14, [], [a(6, 99)])
    assert sorted(join.taken()) == [(n, 99) for n in range(70)]
    # All elements of one time share a timer.
    assert run.kept() == 70 + 1
    run.push_until(15)
    assert run.kept() == 0


def test_equal_elements_make_a_pair_each(tmp_path: Path) -> None:
    join = Join(0, 0)
    join.start(tmp_path).push([a(1, 1), a(1, 1)], [a(1, 2), a(1, 2), a(1, 2)])
    assert join.taken() == [(1, 2)] * 6


def test_the_event_time_of_a_pair_is_the_later_one(tmp_path: Path) -> None:
    join = Join(-10, 10)
    run = join.start(tmp_path)
    run.push([a(100, 0)], [a(95, 1), a(105, 2)])
    assert sorted(join.pairs) == [
        Pair("a", 0, 1, 100, 95, 100, 100),
        Pair("a", 0, 2, 100, 105, 105, 105),
    ]


class Repeats(ProcessJoinFunction):
    """Gives out as many elements as the right one's number says."""

    def process_element(self, left: Any, right: Any, ctx: Any) -> Any:
        rows = [(left.k, left.n, right.n, 0, 0, 0)] * right.n
        return rows or None


def test_a_pair_gives_out_any_number_of_elements_at_its_time(tmp_path: Path) -> None:
    join = Join(0, 10, function=Repeats())
    run = join.start(tmp_path)
    run.push([], [a(1, 2), a(2, 0), a(3, 3)])
    run.push([a(0, 0), a(1, 1)], [])
    assert [(p.left, p.right, p.stamped) for p in join.pairs] == [
        *[(0, 2, 1)] * 2,
        *[(0, 3, 3)] * 3,
        *[(1, 2, 1)] * 2,
        *[(1, 3, 3)] * 3,
    ]


def test_elements_of_one_epoch_may_come_in_any_order(backend: StateBackend, tmp_path: Path) -> None:
    join = Join(-5, 5, backend=backend, parallelism=1)
    run = join.start(tmp_path)
    turns = [(0, 4), (1, 3), (0, 1), (1, 9), (1, 1), (0, 3), (0, 8), (1, 4), (0, 1), (1, 3)]
    for half in (turns[:5], turns[5:]):
        run.push_in_turn(*[(side, a(t, t)) for side, t in half])
    lefts, rights = ([t for side, t in turns if side == one] for one in (0, 1))
    pairs = [(left, right) for left in lefts for right in rights if abs(left - right) <= 5]
    assert sorted(join.taken()) == sorted(pairs)


# Types


@dataclass
class Note:
    """A mutable element."""

    k: str
    t: int
    n: int
    tags: list[str]


class Scribbles(ProcessJoinFunction):
    """Changes the elements it is handed."""

    def process_element(self, left: Any, right: Any, ctx: Any) -> Iterator[Any]:
        yield left.k, len(left.tags), len(right.tags), 0, 0, 0
        left.tags.append("seen")
        right.tags.append("seen")


def test_what_a_function_does_to_an_element_is_not_seen_in_later_pairs(
    backend: StateBackend, tmp_path: Path
) -> None:
    join = Join(0, 10, backend=backend, function=Scribbles(), types=(Note, Note))
    run = join.start(tmp_path)
    run.push([Note("a", 1, 1, [])], [])
    run.push([], [Note("a", 2, 2, [])])
    run.push([], [Note("a", 3, 3, [])])
    run.push([Note("a", 3, 4, [])], [])
    run.push([], [Note("a", 13, 5, [])])
    assert join.taken() == [(0, 0)] * 4


@pytest.mark.parametrize("spec", [ELEMENTS, Element, Note])
def test_nothing_is_pickled_of_streams_that_have_a_type(spec: Any, tmp_path: Path) -> None:
    join = Join(0, 10, types=(spec, spec))
    run = join.start(tmp_path)
    rest = () if spec is not Note else (["x"],)
    make = Note if spec is Note else (lambda *fields: Element(*fields))
    run.push([make("a", 1, 1, *rest)], [])
    run.push([], [make("a", 1, 2, *rest)])
    assert join.taken() == [(1, 2)]
    assert [warning for report in run.reports for warning in report.warnings] == []


def test_streams_without_a_type_are_joined_too(tmp_path: Path) -> None:
    join = Join(0, 10, types=(Any, Any))
    run = join.start(tmp_path)
    run.push([a(1, 1)], [])
    run.push([], [a(1, 2)])
    assert join.taken() == [(1, 2)]


def test_the_two_sides_may_be_of_different_types(backend: StateBackend, tmp_path: Path) -> None:
    join = Join(0, 10, backend=backend, types=(ELEMENTS, Note))
    run = join.start(tmp_path)
    run.push([a(1, 1)], [])
    run.push([], [Note("a", 1, 2, [])])
    assert join.taken() == [(1, 2)]


# Late elements


def test_an_element_before_the_watermark_is_dropped_and_counted(tmp_path: Path) -> None:
    join = Join(-10, 10)
    run = join.start(tmp_path)
    run.push_until(100, [a(100, 0)])
    run.push_until(100, [a(99, 1)], [a(99, 2), a(98, 3), a(100, 4)])
    assert join.taken() == [(0, 4)]
    assert run.late_dropped() == 3


def test_late_elements_go_to_their_side_outputs(tmp_path: Path) -> None:
    join = Join(-10, 10, late=True)
    run = join.start(tmp_path)
    run.push_until(100, [a(100, 0)])
    run.push_until(100, [a(99, 1), a(101, 5)], [a(99, 2), a(98, 3), a(100, 4)])
    assert sorted(join.taken()) == [(0, 4), (5, 4)]
    assert join.late_left == [a(99, 1)]
    assert sorted(join.late_right) == [a(98, 3), a(99, 2)]
    assert run.late_dropped() == 0


def test_an_element_without_event_time_is_refused(tmp_path: Path) -> None:
    run = Join(0, 10).start(tmp_path)
    stage, plan = run.plan.stages[0], run.epoch_plan()
    channel = stage.reads.channels[0]
    rows = appended(BatchWriter(channel.type).batch([a(1, 7)]), TIME, pa.nulls(1, pa.int64()))
    batch = ExchangeWriter(stage.reads).pack(channel, rows, pa.array([0], pa.int32()))
    task = EpochTask(stage, plan, TaskIdentity(0, 0, 1), ManualClock())
    with pytest.raises(EventTimeError, match="assign_timestamps_and_watermarks") as caught:
        list(task.run(iter([batch.drop_columns([SUBTASK])])))
    assert "uid 'join'" in str(caught.value)
    assert "n=7" in str(caught.value)


# What is kept


@pytest.mark.parametrize(
    ("lower", "upper", "left_until", "right_until"),
    [
        (-10, 20, 120, 110),
        (5, 20, 120, 100),
        (-20, -5, 100, 120),
        (0, 0, 100, 100),
    ],
)
def test_an_element_is_kept_until_no_partner_can_come(
    lower: int, upper: int, left_until: int, right_until: int, backend: StateBackend, tmp_path: Path
) -> None:
    for side, until in enumerate((left_until, right_until)):
        join = Join(lower, upper, backend=backend)
        run = join.start(tmp_path / str(side))
        element = [a(100, 0)]
        run.push_until(until - 1, *((element, []) if side == 0 else ([], element)))
        # The element, and its timer.
        assert run.kept() == 2
        run.push_until(until)
        assert run.kept() == 0


def test_an_element_at_the_end_of_time_is_kept_until_the_end(tmp_path: Path) -> None:
    join = Join(-10, 10)
    run = join.start(tmp_path)
    run.push_until(0, [a(MAX_WATERMARK, 0)], [a(MAX_WATERMARK - 10, 1), a(MAX_WATERMARK - 11, 2)])
    assert join.taken() == [(0, 1)]
    run.push_until(MAX_WATERMARK - 1)
    assert run.kept() > 0
    run.finish()
    assert run.kept() == 0


def test_an_element_at_the_beginning_of_time_is_joined(tmp_path: Path) -> None:
    join = Join(-10, 10)
    run = join.start(tmp_path)
    run.push([a(MIN_WATERMARK, 0)], [a(MIN_WATERMARK, 1), a(MIN_WATERMARK + 11, 2)])
    assert join.taken() == [(0, 1)]


def test_elements_are_removed_where_no_rows_come(backend: StateBackend, tmp_path: Path) -> None:
    join = Join(0, 10, backend=backend, parallelism=3)
    run = join.start(tmp_path)
    run.push_until(0, [Element(f"k{i}", i, i) for i in range(100)])
    assert run.kept() == 200
    run.push_until(59)
    assert run.kept() == 100
    run.finish()
    assert run.kept() == 0
    assert join.taken() == []


def test_a_failed_epoch_leaves_nothing_behind(backend: StateBackend, tmp_path: Path) -> None:
    join = Join(0, 10, backend=backend, function=Fussy())
    run = join.start(tmp_path)
    run.push_until(0, [a(1, 1)])
    with pytest.raises(UserFunctionError, match="no thirteen"):
        run.push_until(5, [a(2, 2)], [a(3, 13)])
    run.push_until(5, [], [a(4, 4)])
    assert join.taken() == [(1, 4)]


# A changed interval


@pytest.mark.parametrize(("before", "after"), [(10, 50), (50, 10), (0, 30), (30, -30)])
def test_an_interval_may_change_between_two_runs(
    before: int, after: int, backend: StateBackend, tmp_path: Path
) -> None:
    first = Join(-40, before, backend=backend).start(tmp_path)
    first.push_until(0, [a(100, 1), a(101, 2)])
    join = Join(-40, after, backend=backend)
    run = join.start(tmp_path)
    run.expected, run.epoch = first.expected, first.epoch
    last = 100 + after
    run.push_until(last - 1)
    run.push_until(last - 1, [], [a(last, 3)] if last >= run.watermark else [])
    assert join.taken() == [(1, 3), (2, 3)]
    run.push_until(101 + max(before, after, 0) + 40)
    assert run.kept() == 0


# User code


class Fussy(Pairs):
    """Counts the pairs of every key, and fails on one of them."""

    def open(self, ctx: Any) -> None:
        self.count = ctx.get_state(ValueStateDescriptor("count", int))

    def process_element(self, left: Any, right: Any, ctx: Any) -> Iterator[Any]:
        self.count.update((self.count.value() or 0) + 1)
        yield from super().process_element(left, right, ctx)
        if (left.n, right.n) == (2, 13):
            raise ValueError("no thirteen")


def test_an_error_says_where_it_happened(tmp_path: Path) -> None:
    run = Join(0, 10, function=Fussy()).start(tmp_path)
    run.push([a(1, 1), a(1, 2)], [])
    with pytest.raises(UserFunctionError) as caught:
        run.push([], [a(2, 3), a(3, 13)])
    message = str(caught.value)
    assert "operator 'pairs' (uid 'join')" in message
    assert "key: 'a'" in message
    assert "n=13" in message
    assert "ValueError: no thirteen" in message


@pytest.mark.parametrize("policy", ["skip", "side output"])
def test_the_error_policy_takes_back_all_that_a_failing_element_has_done(
    policy: str, backend: StateBackend, tmp_path: Path
) -> None:
    join = Join(0, 10, backend=backend, function=Fussy())
    failed: list[Any] = []
    if policy == "skip":
        join.stream.on_error(ErrorPolicy.skip())
    else:
        join.stream.on_error(ErrorPolicy.side_output(FAILED))
        failed = join.program.collect(join.stream.get_side_output(FAILED))
    run = join.start(tmp_path)
    run.push_until(0, [a(1, 1), a(2, 2)], [a(1, 3)])
    run.push_until(0, [], [a(5, 13), a(6, 4), a(5, 5), a(7, 7)])
    run.push_until(0, [a(0, 6)])
    assert sorted((p.left, p.right, p.stamped) for p in join.pairs) == [
        (1, 3, 1), (1, 4, 6), (1, 5, 5), (1, 7, 7),
        (2, 4, 6), (2, 5, 5), (2, 7, 7),
        (6, 3, 1), (6, 4, 6), (6, 5, 5), (6, 7, 7),
    ]  # fmt: skip
    assert len(failed) == (policy == "side output")
    run.push_until(100)
    # What is left is the count that the function keeps.
    assert run.kept() == 1


def test_an_element_that_failed_is_no_partner_of_later_ones_in_its_epoch(
    backend: StateBackend, tmp_path: Path
) -> None:
    join = Join(0, 10, backend=backend, function=Fussy(), parallelism=1)
    join.stream.on_error(ErrorPolicy.skip())
    run = join.start(tmp_path)
    lefts = [(0, a(n, n)) for n in (1, 2, 3)]
    run.push_in_turn((1, a(4, 4)), *lefts[:2], (1, a(5, 13)), lefts[2], (1, a(6, 6)))
    assert sorted((p.left, p.right, p.stamped) for p in join.pairs) == [
        (1, 4, 4), (1, 6, 6), (2, 4, 4), (2, 6, 6), (3, 4, 4), (3, 6, 6),
    ]  # fmt: skip


# Memory


def test_a_buffer_gives_no_element_that_was_removed_after_a_look(
    backend: StateBackend, tmp_path: Path
) -> None:
    current = CurrentKey()
    store = open_store(backend, tmp_path / "store", None)
    state = KeyedStateBackend(store, max_parallelism=128, epoch=1, current=current)
    buffer = interval_join.JoinBuffer("buffer", StreamType.of(int), state, current)
    current.key = "a"
    for time, number in ((1, 10), (2, 20), (2, 21), (3, 30)):
        buffer.add(time, number)
    assert list(buffer.between(1, 2)) == [(1, 10), (2, 20), (2, 21)]
    buffer.remove(2)
    assert list(buffer.between(1, 3)) == [(1, 10), (3, 30)]
    state.abort()


def test_what_is_held_in_memory_may_be_forgotten_at_any_time(
    backend: StateBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interval_join, "PLACES_LIMIT", 3)
    join = Join(-3, 3, backend=backend)
    run = join.start(tmp_path)
    for start in range(0, 40, 4):
        run.push_until(
            start - 4,
            [a(t, t) for t in range(start, start + 4)],
            [a(t, t) for t in range(start, start + 4)],
        )
    assert sorted(join.taken()) == [
        (left, right) for left in range(40) for right in range(40) if abs(left - right) <= 3
    ]
    run.finish()
    assert run.kept() == 0
