"""Functions of two connected streams: which method is called, with what state and time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from holdfast import (
    CoFlatMapFunction,
    CoMapFunction,
    CoProcessFunction,
    EmbeddedRocksDBStateBackend,
    ErrorPolicy,
    HashMapStateBackend,
    KeyedCoProcessFunction,
    OutputTag,
    ValueStateDescriptor,
)
from holdfast.errors import KeyTypeError, StateAccessError, UserFunctionError
from holdfast.testing.harness import OperatorHarness
from tests.support.programs import Program
from tests.support.timed_programs import ROWS, STAMPED, Stamps, TimedRun, timed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BACKENDS = pytest.mark.parametrize(
    "backend", [HashMapStateBackend(), EmbeddedRocksDBStateBackend()], ids=["hashmap", "rocksdb"]
)
FAILED = OutputTag("failed")
TOTAL = ValueStateDescriptor("total", int)


class Signed(CoMapFunction):
    def map1(self, value: int) -> int:
        return value

    def map2(self, value: int) -> int:
        return -value


class Repeated(CoFlatMapFunction):
    def flat_map1(self, value: int) -> list[int] | None:
        return None if value < 0 else [value] * value

    def flat_map2(self, value: int) -> Iterator[str]:
        yield str(value)


class Sides(CoProcessFunction):
    def process_element1(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield 1, value, ctx.timestamp()

    def process_element2(self, value: Any, ctx: Any) -> list[Any]:
        if value == "timer":
            ctx.timer_service().register_event_time_timer(1)
        return [(2, value, ctx.timestamp())]


class Balance(KeyedCoProcessFunction):
    """Adds what comes on the first side and takes away what comes on the second."""

    def open(self, ctx: Any) -> None:
        self.total = ctx.get_state(TOTAL)

    def process_element1(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.total.update((self.total.value() or 0) + value[1])
        ctx.timer_service().register_event_time_timer(100)
        yield ctx.get_current_key(), self.total.value()

    def process_element2(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.total.update((self.total.value() or 0) - value[1])
        yield ctx.get_current_key(), self.total.value()
        if value[1] < 0:
            raise ValueError("negative")
        ctx.timer_service().register_event_time_timer(100 + value[1])

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        yield "timer", ctx.get_current_key(), timestamp, self.total.value()


def first(value: Any) -> Any:
    return value[0]


def test_each_side_has_a_method_of_its_own() -> None:
    with OperatorHarness(Signed()) as harness:
        harness.push(1, 2)
        harness.push_second(1, 2)
        harness.push(3)
        assert harness.outputs == [1, 2, -1, -2, 3]
    with OperatorHarness(Repeated()) as harness:
        harness.push(2, -1, 1)
        harness.push_second(7)
        assert harness.outputs == [2, 2, 1, "7"]


def test_a_method_learns_the_event_time_of_its_element() -> None:
    with OperatorHarness(Sides()) as harness:
        harness.push("a", at=5)
        harness.push_second("b", at=6)
        harness.push_second("c")
        assert harness.outputs == [(1, "a", 5), (2, "b", 6), (2, "c", None)]


def test_streams_that_are_not_keyed_have_no_timers() -> None:
    with (
        OperatorHarness(Sides()) as harness,
        pytest.raises(StateAccessError, match="timers can only be set on a 'keyed stream'"),
    ):
        harness.push_second("timer")


@BACKENDS
def test_both_sides_share_the_state_and_the_timers_of_a_key(backend: Any) -> None:
    with OperatorHarness(Balance(), key=first, backend=backend) as harness:
        harness.push(("a", 5), ("b", 1))
        harness.push_second(("a", 2), ("c", 1))
        harness.end_epoch()
        harness.push(("c", 4))
        assert harness.take() == [("a", 5), ("b", 1), ("a", 3), ("c", -1), ("c", 3)]
        harness.advance_watermark(100)
        assert sorted(harness.take()) == [
            ("timer", key, 100, n) for key, n in zip("abc", [3, 1, 3], strict=True)
        ]
        harness.advance_watermark(200)
        assert harness.take() == [("timer", "c", 101, 3), ("timer", "a", 102, 3)]


def test_each_side_has_a_key_function_of_its_own() -> None:
    with OperatorHarness(Balance(), key=first, second_key=lambda value: value[2]) as harness:
        harness.push(("a", 5))
        harness.push_second(("x", 2, "a"))
        assert harness.outputs == [("a", 5), ("a", 3)]


def test_keys_of_two_types_do_not_meet() -> None:
    with OperatorHarness(Balance(), key=first, second_key=lambda v: str(v[0])) as harness:
        harness.push((1, 5))
        with pytest.raises(KeyTypeError, match="key '1' is a str, but the keys of this operator"):
            harness.push_second((1, 5))


@BACKENDS
def test_a_failing_element_of_either_side_leaves_no_trace(backend: Any) -> None:
    policy = ErrorPolicy.side_output(FAILED)
    with OperatorHarness(Balance(), key=first, backend=backend, on_error=policy) as harness:
        harness.push(("a", 5))
        harness.push_second(("a", -3), ("b", -1), ("a", 1))
        assert harness.take() == [("a", 5), ("a", 4)]
        assert [failed.row for failed in harness.side_output(FAILED)] == [("a", -3), ("b", -1)]
        assert harness.skipped == 2
        assert harness.state("total", "b") is None
        harness.end_input()
        assert harness.outputs == [("timer", "a", 100, 4), ("timer", "a", 101, 4)]


def test_a_failure_names_the_element_of_the_side_it_came_on() -> None:
    with OperatorHarness(Balance(), key=first) as harness:
        harness.push(("a", 5))
        with pytest.raises(
            UserFunctionError, match=r"ValueError: negative\n  key: 'a'\n  row: \('a"
        ):
            harness.push_second(("a", 1), ("a", -2))


# In a program


class Names(KeyedCoProcessFunction):
    """Joins orders with the newest name of their key, and learns the event time of both."""

    def open(self, ctx: Any) -> None:
        self.name = ctx.get_state(ValueStateDescriptor("name", str))

    def process_element1(self, value: Any, ctx: Any) -> Iterator[Any]:
        assert ctx.timestamp() == value.t
        yield f"{value.k}:{self.name.value()}", value.t

    def process_element2(self, value: Any, ctx: Any) -> Iterator[Any]:
        assert ctx.timestamp() is None
        self.name.update(value.name)
        yield f"new {value.name}", -1


def test_two_sources_of_different_types_meet_by_key(tmp_path: Path) -> None:
    program = Program(parallelism=3)
    orders, names = timed(program.source(ROWS)), program.source("id string, name string")
    stream = orders.connect(names).key_by("k", lambda value: value.id).process(Names(), ROWS)
    found = program.collect(stream.uid("join").process(Stamps(), STAMPED))
    run = TimedRun(program, tmp_path)
    run.push([], [("a", "Anna"), ("b", "Bert"), ("c", "Cleo")])
    assert sorted(found) == [(f"new {name}", -1, None) for name in ("Anna", "Bert", "Cleo")]
    found.clear()
    run.push([("a", 1), ("b", 2), ("c", 3), ("d", 4)], [])
    assert sorted(found) == [
        ("a:Anna", 1, 1),
        ("b:Bert", 2, 2),
        ("c:Cleo", 3, 3),
        ("d:None", 4, 4),
    ]


def test_a_stream_that_is_connected_with_itself_reaches_both_methods(tmp_path: Path) -> None:
    program = Program()
    rows = program.source(ROWS)
    found = program.collect(rows.connect(rows).process(Sides()).map(first))
    TimedRun(program, tmp_path).push([("a", 1), ("b", 2)])
    assert sorted(found) == [1, 1, 2, 2]
