"""Timers and broadcast state as functions see them, over every backend: Flink's own rules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from holdfast import (
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    MapStateDescriptor,
    ValueStateDescriptor,
)
from holdfast.api.time import MAX_WATERMARK, MIN_WATERMARK
from holdfast.errors import StateAccessError, StateDescriptorError
from holdfast.testing.harness import OperatorHarness

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.testing.snapshots import HarnessSnapshot

KEYS = [f"key-{i}" for i in range(12)]
LAST = ValueStateDescriptor("last", int)
RULES = MapStateDescriptor("rules", str, int)
FIRST_TIME, LAST_TIME = -(2**63), 2**63 - 1


def first(value: Any) -> Any:
    return value[0]


class Timed:
    """Sets and deletes timers as elements say: (key, "event 5", "processing 7", "-event 5")."""

    last: Any

    def act(self, orders: Any, ctx: Any) -> None:
        timers = ctx.timer_service()
        for order in orders:
            domain, time = order.split()
            use = "delete" if domain.startswith("-") else "register"
            getattr(timers, f"{use}_{domain.lstrip('-')}_time_timer")(int(time))

    def report(self, timestamp: int, ctx: Any) -> tuple[Any, ...]:
        return ctx.get_current_key(), timestamp, ctx.time_domain().value.split()[0]


class OneInput(Timed, KeyedProcessFunction):
    """When a timer fires, does what was said for its time, once."""

    def __init__(self, **then: list[str]) -> None:
        self.then = {int(name.removeprefix("at_")): orders for name, orders in then.items()}

    def open(self, ctx: Any) -> None:
        self.last = ctx.get_state(LAST)

    def process_element(self, value: Any, ctx: Any) -> None:
        self.act(value[1:], ctx)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        self.act(self.then.pop(timestamp, []), ctx)
        self.last.update(timestamp)
        yield self.report(timestamp, ctx)


class TwoInputs(Timed, KeyedCoProcessFunction):
    def process_element1(self, value: Any, ctx: Any) -> None:
        self.act(value[1:], ctx)

    def process_element2(self, value: Any, ctx: Any) -> None:
        self.act(value[1:], ctx)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        yield self.report(timestamp, ctx)


class WithRules(Timed, KeyedBroadcastProcessFunction):
    """Changes rules as control elements say, and reads them everywhere else."""

    def open(self, ctx: Any) -> None:
        self.last = ctx.get_state(LAST)

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.last.update(1)
        self.act(value[1:], ctx)
        yield value[0], dict(ctx.get_broadcast_state(RULES).items())

    def process_broadcast_element(self, value: Any, ctx: Any) -> None:
        rules = ctx.get_broadcast_state(RULES)
        match value:
            case "clear":
                rules.clear()
            case "keyed":
                self.last.value()
            case "timer":
                ctx.timer_service().register_event_time_timer(1)
            case "unknown":
                ctx.get_broadcast_state(MapStateDescriptor("unknown", str, int))
            case "reset":
                ctx.apply_to_keyed_state(LAST, lambda key, state: state.clear())
            case (key, None):
                rules.remove(key)
            case (key, rule):
                rules.put(key, rule)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        rules = ctx.get_broadcast_state(RULES)
        yield *self.report(timestamp, ctx), dict(rules.items()), hasattr(rules, "put")


def one(backend: Any, function: Any = None, **more: Any) -> OperatorHarness:
    return OperatorHarness(function or OneInput(), key=first, backend=backend, **more)


def ruled(backend: Any, **more: Any) -> OperatorHarness:
    return OperatorHarness(WithRules(), key=first, broadcast=[RULES], backend=backend, **more)


# Identity: key, time and domain


def test_duplicates_collapse(backend: Any) -> None:
    with one(backend) as job:
        job.push(("a", "event 5", "event 5", "processing 5"), ("b", "event 5"))
        job.end_epoch()
        job.push(("a", "event 5", "processing 5"))
        job.end_epoch()
        job.set_processing_time(5)
        job.advance_watermark(5)
        assert sorted(job.outputs) == [("a", 5, "event"), ("a", 5, "processing"), ("b", 5, "event")]


def test_deleting_an_unknown_timer_does_nothing(backend: Any) -> None:
    with one(backend) as job:
        job.push(("a", "-event 5", "-processing 5"), ("a", "event 6", "-event 7", "-processing 6"))
        job.push(("b", "-event 6"))
        job.end_epoch()
        job.end_input()
        assert job.outputs == [("a", 6, "event")]


@pytest.mark.parametrize("epochs", [True, False])
def test_a_deleted_timer_does_not_fire_and_may_be_set_again(backend: Any, epochs: bool) -> None:
    with one(backend) as job:
        for orders in (
            ["event 5", "event 6", "processing 5", "processing 6"],
            ["-event 5", "-processing 6"],
            ["-event 6", "event 6"],
        ):
            job.push(("a", *orders))
            if epochs:
                job.end_epoch()
        job.advance_watermark(9)
        job.set_processing_time(9)
        assert job.outputs == [("a", 6, "event"), ("a", 5, "processing")]


def test_a_timer_that_has_fired_is_gone_and_may_be_set_again(backend: Any) -> None:
    with one(backend) as job:
        job.push(("a", "event 5"))
        job.advance_watermark(5)
        job.advance_watermark(6)
        job.end_epoch()
        job.advance_watermark(7)
        assert job.take() == [("a", 5, "event")]
        job.push(("a", "event 5"))
        job.advance_watermark(7)
        assert job.take() == [("a", 5, "event")]


# Event time


def test_event_timers_fire_when_the_watermark_has_reached_them_in_order_with_their_key(
    backend: Any,
) -> None:
    with one(backend) as job:
        for i, key in enumerate(KEYS):
            job.push((key, f"event {i * 7 % 12}", f"event {100 + i}"))
        job.advance_watermark(-1)
        assert job.take() == []
        job.advance_watermark(4)
        job.end_epoch()
        job.advance_watermark(11)
        assert job.take() == [(KEYS[t * 7 % 12], t, "event") for t in range(12)]
        assert [job.state("last", key) for key in KEYS] == [i * 7 % 12 for i in range(12)]


def test_one_set_in_the_past_fires_at_the_next_watermark(backend: Any) -> None:
    with one(backend) as job:
        job.advance_watermark(100)
        job.push(("a", "event 5", "event 100", "event 101"))
        assert job.take() == []
        job.advance_watermark(100)
        assert job.take() == [("a", 5, "event"), ("a", 100, "event")]


def test_timers_set_in_a_callback_that_are_due_fire_in_the_same_pass(backend: Any) -> None:
    function = OneInput(at_10=["event 15", "event 5", "event 30", "event 31"], at_5=["event 20"])
    with one(backend, function) as job:
        job.push(("a", "event 10", "event 20"))
        job.advance_watermark(30)
        assert [time for _, time, _ in job.take()] == [10, 5, 15, 20, 30]
        job.end_epoch()
        job.advance_watermark(31)
        assert job.take() == [("a", 31, "event")]


def test_timers_deleted_in_a_callback_do_not_fire(backend: Any) -> None:
    function = OneInput(at_10=["-event 15", "-event 40", "-processing 5"])
    with one(backend, function) as job:
        job.push(("a", "event 10", "event 15", "event 20", "event 40", "processing 5"))
        job.push(("b", "event 15"))
        job.advance_watermark(50)
        job.set_processing_time(50)
        assert job.take() == [("a", 10, "event"), ("b", 15, "event"), ("a", 20, "event")]


def test_a_callback_may_set_a_timer_of_the_other_domain(backend: Any) -> None:
    function = OneInput(at_10=["processing 3"], at_3=["event 7"])
    with one(backend, function) as job:
        job.push(("a", "event 10"))
        job.advance_watermark(10)
        job.set_processing_time(3)
        job.advance_watermark(10)
        assert job.take() == [("a", 10, "event"), ("a", 3, "processing"), ("a", 7, "event")]


def test_the_watermark_never_goes_back_and_is_not_state(backend: Any) -> None:
    class Watch(KeyedProcessFunction):
        def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
            ctx.timer_service().register_event_time_timer(value[1])
            yield ctx.timer_service().current_watermark()

    with one(backend, Watch()) as job:
        job.push(("a", 1000))
        job.advance_watermark(50)
        job.push(("a", 1000))
        job.advance_watermark(20)
        job.push(("a", 1000))
        job.end_epoch()
        job.push(("a", 1000))
        assert job.outputs == [MIN_WATERMARK, 50, 50, 50]
        snapshot = job.snapshot()
    with one(backend, Watch(), restore_from=snapshot) as job:
        job.push(("a", 1000))
        assert job.outputs == [MIN_WATERMARK]


def test_a_bounded_stream_ends_with_the_last_watermark(backend: Any) -> None:
    with one(backend) as job:
        job.push(("a", f"event {FIRST_TIME}", f"event {LAST_TIME}", "event 0"))
        job.end_input()
        assert [time for _, time, _ in job.outputs] == [FIRST_TIME, 0, MAX_WATERMARK]


# Processing time


def test_processing_timers_fire_when_the_clock_has_reached_them_in_order(backend: Any) -> None:
    with one(backend) as job:
        job.push(("a", "processing 7", "processing 5"), ("b", "processing 6"))
        job.set_processing_time(4)
        assert job.take() == []
        job.set_processing_time(6)
        job.end_epoch()
        job.set_processing_time(7)
        assert job.take() == [(k, t, "processing") for k, t in (("a", 5), ("b", 6), ("a", 7))]
        job.advance_watermark(100)
        assert job.take() == []


def test_restored_overdue_timers_fire_at_once(backend: Any) -> None:
    with one(backend) as job:
        job.push(("a", "processing 5", "processing 60"))
        snapshot = job.snapshot()
    with one(backend, restore_from=snapshot) as job:
        job.set_processing_time(50)
        assert job.outputs == [("a", 5, "processing")]


def test_a_function_may_round_times_so_that_timers_coalesce(backend: Any) -> None:
    class Rounded(OneInput):
        def process_element(self, value: Any, ctx: Any) -> None:
            ctx.timer_service().register_processing_time_timer(value[1] // 1000 * 1000)

    with one(backend, Rounded()) as job:
        job.push(*[("a", 5000 + i) for i in range(10)])
        job.set_processing_time(9000)
        assert job.outputs == [("a", 5000, "processing")]


# Kept, and spread over subtasks


def test_timers_of_a_failed_epoch_never_were_and_those_that_fired_in_it_fire_again(
    backend: Any,
) -> None:
    with one(backend) as job:
        job.push(("a", "event 5", "processing 5"))
        job.end_epoch()
        job.push(("b", "event 5"), ("a", "-processing 5"))
        job.advance_watermark(5)
        assert len(job.outputs) == 2
        job.fail()
        assert job.outputs == []
        job.advance_watermark(5)
        job.set_processing_time(5)
        assert job.outputs == [("a", 5, "event"), ("a", 5, "processing")]


@pytest.mark.parametrize(("old", "new"), [(1, 1), (1, 4), (4, 1), (3, 2), (2, 3)])
def test_timers_are_kept_per_key_group(backend: Any, old: int, new: int) -> None:
    snapshots: list[HarnessSnapshot] = []
    for subtask in range(old):
        with one(backend, parallelism=old, subtask=subtask) as job:
            mine = [(i, key) for i, key in enumerate(KEYS) if job.owns(key)]
            job.push(*[(key, f"event {i}", f"processing {i}", "event 99") for i, key in mine])
            job.push(*[(key, "-event 99") for i, key in mine if i % 2])
            snapshots.append(job.snapshot())
    fired: list[Any] = []
    for subtask in range(new):
        with one(backend, parallelism=new, subtask=subtask, restore_from=snapshots) as job:
            job.advance_watermark(1000)
            times = [time for _, time, _ in job.outputs]
            assert times == sorted(times)
            job.set_processing_time(1000)
            assert all(job.owns(key) for key, *_ in job.outputs)
            fired += job.outputs
    expected = [
        (key, i, domain) for i, key in enumerate(KEYS) for domain in ("event", "processing")
    ]
    expected += [(key, 99, "event") for key in KEYS[::2]]
    assert sorted(fired) == sorted(expected)


def test_timers_of_two_inputs_are_of_one_kind(backend: Any) -> None:
    with one(backend, TwoInputs()) as job:
        job.push(("a", "event 5"))
        job.push_second(("a", "event 5", "event 6"), ("b", "processing 1"))
        job.end_epoch()
        job.push_second(("a", "-event 6"))
        job.advance_watermark(9)
        job.set_processing_time(9)
        assert job.outputs == [("a", 5, "event"), ("b", 1, "processing")]


# Broadcast state


def test_the_broadcast_side_writes_and_data_and_timers_read(backend: Any) -> None:
    with ruled(backend) as job:
        job.push_second(("x", 1), ("y", 2))
        job.push(("a", "event 5"))
        job.end_epoch()
        job.push_second(("x", None), ("z", 3))
        job.advance_watermark(5)
        job.push(("b",))
        job.push_second("clear")
        job.push(("c",))
        assert job.outputs == [
            ("a", {"x": 1, "y": 2}),
            ("a", 5, "event", {"y": 2, "z": 3}, False),
            ("b", {"y": 2, "z": 3}),
            ("c", {}),
        ]


@pytest.mark.parametrize(
    ("element", "error", "said"),
    [
        ("keyed", StateAccessError, "state 'last' was used with no key set"),
        ("timer", StateAccessError, "timers can only be set and deleted while a key is set"),
        ("unknown", StateDescriptorError, "The requested state does not exist"),
    ],
)
def test_the_broadcast_side_has_no_key_no_timers_and_no_other_states(
    backend: Any, element: str, error: type[Exception], said: str
) -> None:
    with ruled(backend) as job:
        job.push_second(("x", 1))
        job.push(("a",))
        job.end_epoch()
        with pytest.raises(error, match=said):
            job.push_second(element)
        job.push(("a",))
        assert job.outputs == [("a", {"x": 1})] * 2


def test_the_broadcast_side_reaches_the_keyed_state_of_all_local_keys(backend: Any) -> None:
    with ruled(backend) as job:
        job.push(*[(key,) for key in KEYS])
        job.end_epoch()
        job.push_second("reset")
        assert [job.state("last", key) for key in KEYS] == [None] * len(KEYS)


@pytest.mark.parametrize(("old", "new"), [(1, 1), (2, 2), (1, 4), (4, 1), (3, 2), (2, 5)])
def test_every_new_subtask_reads_one_of_the_old_copies(backend: Any, old: int, new: int) -> None:
    """Copies that differ, as they never should, show which one it was: number i modulo n."""
    snapshots = []
    for subtask in range(old):
        with ruled(backend, parallelism=old, subtask=subtask) as job:
            job.push_second(("shared", 7), (f"copy {subtask}", subtask))
            snapshots.append(job.snapshot())
    for subtask in range(new):
        with ruled(backend, parallelism=new, subtask=subtask, restore_from=snapshots) as job:
            copy = subtask % old
            assert job.operator_state("rules") == {"shared": 7, f"copy {copy}": copy}
            job.push_second(("more", 1))
            job.end_epoch()
            job.push(("a",))
            assert job.outputs == [("a", {"shared": 7, f"copy {copy}": copy, "more": 1})]
