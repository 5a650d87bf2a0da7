"""The public harness: any function, epoch by epoch, without Spark."""

from __future__ import annotations

import doctest
import gc
import os
import threading
from typing import TYPE_CHECKING, Any

import pytest

from holdfast import (
    BroadcastProcessFunction,
    CoMapFunction,
    EmbeddedRocksDBStateBackend,
    ErrorPolicy,
    FilterFunction,
    FlatMapFunction,
    HashMapStateBackend,
    KeyedProcessFunction,
    KeySelector,
    MapFunction,
    MapStateDescriptor,
    OutputTag,
    ProcessFunction,
    ReduceFunction,
    SinkFunction,
    TimeDomain,
    ValueStateDescriptor,
)
from holdfast.errors import (
    UserFunctionError,
)
from holdfast.testing import harness as harness_module
from holdfast.testing.harness import OperatorHarness
from tests.support.functions import AllFive, Count

if TYPE_CHECKING:
    from collections.abc import Iterator

BACKENDS = pytest.mark.parametrize(
    "backend", [HashMapStateBackend(), EmbeddedRocksDBStateBackend()], ids=["hashmap", "rocksdb"]
)
ODD = OutputTag("odd")


def whole(value: Any) -> Any:
    return value


def first(value: Any) -> Any:
    return value[0]


class Doubled(MapFunction):
    def map(self, value: int) -> int:
        return value * 2


class Repeated(FlatMapFunction):
    def flat_map(self, value: int) -> list[int]:
        return [value] * value


class Even(FilterFunction):
    def filter(self, value: int) -> bool:
        return value % 2 == 0


class Split(ProcessFunction):
    def process_element(self, value: int, ctx: Any) -> Iterator[Any]:
        yield (ODD, value) if value % 2 else value


class Longest(ReduceFunction):
    def reduce(self, value1: str, value2: str) -> str:
        return max(value1, value2, key=len)


class Kept(SinkFunction):
    def __init__(self) -> None:
        self.taken: list[Any] = []
        self.flushed = 0

    def invoke(self, value: Any, context: Any) -> None:
        assert context.timestamp() is None
        self.taken.append(value)

    def flush(self) -> None:
        self.flushed += 1


class ByParity(KeySelector):
    def get_key(self, value: int) -> int:
        return value % 2


def test_the_example_in_the_documentation_runs() -> None:
    assert doctest.testmod(harness_module).attempted > 0
    assert doctest.testmod(harness_module).failed == 0


# Every kind of function


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (Doubled(), [2, 4, 6]),
        (lambda n: n + 1, [2, 3, 4]),
        (Repeated(), [1, 2, 2, 3, 3, 3]),
        (Even(), [2]),
        (Split(), [2]),
    ],
    ids=["map", "callable", "flat_map", "filter", "process"],
)
def test_a_function_on_a_stream_without_keys(function: Any, expected: list[int]) -> None:
    with OperatorHarness(function) as harness:
        harness.push(1, 2)
        harness.push(3)
        assert harness.outputs == expected
        harness.end_epoch()
        assert harness.outputs == expected


@pytest.mark.parametrize("function", [Doubled(), Repeated(), Even()])
def test_a_function_on_a_keyed_stream(function: Any) -> None:
    with OperatorHarness(function, key=whole) as keyed, OperatorHarness(function) as plain:
        for harness in (keyed, plain):
            harness.push(1, 2, 3)
        assert keyed.outputs == plain.outputs


@BACKENDS
def test_a_reduce_function_keeps_its_results(backend: Any) -> None:
    with OperatorHarness(Longest(), key=first, backend=backend) as harness:
        harness.push("aa", "a", "bbb")
        harness.end_epoch()
        harness.push("aaa", "b")
        assert harness.outputs == ["aa", "aa", "bbb", "aaa", "bbb"]
        assert harness.state("reduced", key="a") == "aaa"


def test_a_sink_is_flushed_at_the_end_of_an_epoch_and_made_anew_for_the_next() -> None:
    given = Kept()
    with OperatorHarness(given) as harness:
        harness.push(1, 2)
        sink = harness.function
        assert (sink.taken, sink.flushed) == ([1, 2], 0)
        harness.end_epoch()
        assert sink.flushed == 1
        assert harness.function.taken == []
        assert harness.outputs == given.taken == []


@BACKENDS
def test_a_keyed_function_with_all_five_states(backend: Any) -> None:
    with OperatorHarness(AllFive(), key=first, backend=backend) as harness:
        harness.push(("a", 1), ("b", 10), ("a", 2))
        for _ in range(2):
            assert harness.state("value", "a") == 2
            assert harness.state("list", "a") == [1, 2]
            assert harness.state("map", "a") == {"1": 1, "2": 2}
            assert harness.state("sum", "a") == 3
            assert harness.state("mean", "a") == 1.5
            assert harness.state("list", "b") == [10]
            assert harness.state("list", "unknown") == []
            harness.end_epoch()


def test_a_key_selector_serves_as_key() -> None:
    with OperatorHarness(Count(), key=ByParity()) as harness:
        harness.push(1, 2, 3)
        assert harness.outputs == [(1, 1), (0, 1), (1, 2)]


# Epochs


@BACKENDS
def test_state_lives_from_epoch_to_epoch_and_a_failed_one_leaves_no_trace(backend: Any) -> None:
    with OperatorHarness(Count(), key=whole, backend=backend) as harness:
        harness.push("a", "a")
        harness.end_epoch()
        harness.push("a", "b")
        assert harness.state("count", "a") == 3
        harness.fail()
        assert harness.state("count", "a") == 2
        assert harness.state("count", "b") is None
        harness.push("a")
        assert harness.outputs == [("a", 1), ("a", 2), ("a", 3)]
        harness.end_epoch()
        assert harness.state("count", "a") == 3


def test_outputs_of_a_failed_epoch_are_gone_and_earlier_ones_stay() -> None:
    with OperatorHarness(Split()) as harness:
        harness.push(1, 2)
        harness.end_epoch()
        harness.push(3, 4)
        assert harness.outputs == [2, 4]
        assert harness.side_output(ODD) == [1, 3]
        harness.fail()
        assert harness.outputs == [2]
        assert harness.side_output(ODD) == [1]
        assert harness.take() == [2]
        harness.push(6)
        assert harness.take() == [6]
        harness.push(8)
        harness.fail()
        assert harness.outputs == []


def test_every_epoch_works_on_a_fresh_copy_of_the_function() -> None:
    class Forgetful(MapFunction):
        seen = 0

        def map(self, value: Any) -> int:
            self.seen += 1
            return self.seen

    for function in (Forgetful(), Remembering()):
        with OperatorHarness(function) as harness:
            harness.push("a", "b")
            harness.end_epoch()
            harness.push("a")
            harness.fail()
            harness.push("a")
            assert harness.outputs == [1, 2, 1]
        assert function.seen == 0


class Remembering(MapFunction):
    """Keeps in an attribute what belongs in state."""

    seen = 0

    def map(self, value: Any) -> int:
        self.seen += 1
        return self.seen


def test_a_function_that_cannot_be_copied_serves_all_epochs() -> None:
    class Locked(MapFunction):
        def __init__(self) -> None:
            self.lock = threading.Lock()

        def map(self, value: Any) -> Any:
            with self.lock:
                return value

    with OperatorHarness(Locked()) as harness:
        harness.push(1)
        harness.end_epoch()
        harness.push(2)
        assert harness.outputs == [1, 2]


LOG: list[str] = []


class Logged(KeyedProcessFunction):
    """Notes its life, and fails where it is told to."""

    def __init__(self, fails_in: str = "") -> None:
        self.fails_in = fails_in

    def open(self, ctx: Any) -> None:
        LOG.append("open")
        self.count = ctx.get_state(ValueStateDescriptor("count", int))
        if self.fails_in == "open":
            raise OSError("no connection")

    def process_element(self, value: Any, ctx: Any) -> None:
        self.count.update(1)
        if value == "bad":
            raise ValueError(value)

    def close(self) -> None:
        LOG.append("close")
        if self.fails_in == "close":
            raise OSError("cannot disconnect")


def test_a_function_is_opened_and_closed_once_in_every_epoch() -> None:
    with OperatorHarness(Logged(), key=whole) as harness:
        harness.push("a")
        harness.end_epoch()
        harness.fail()
        with pytest.raises(UserFunctionError):
            harness.push("bad")
        assert LOG == ["open", "close"] * 3 + ["open"]
    assert LOG == ["open", "close"] * 4
    harness.close()
    assert LOG == ["open", "close"] * 4


def test_a_function_that_raises_fails_the_epoch() -> None:
    with OperatorHarness(Logged(), key=whole) as harness:
        with pytest.raises(UserFunctionError, match=r"'Logged'.*ValueError: bad"):
            harness.push("a", "bad", "c")
        assert harness.state("count", "a") is None
        harness.push("a")
        harness.end_epoch()
        assert harness.state("count", "a") == 1


def test_a_function_that_cannot_be_opened_is_closed_and_leaves_nothing_open() -> None:
    with pytest.raises(UserFunctionError, match=r"in open\(\): OSError: no connection"):
        OperatorHarness(Logged("open"), key=whole)
    assert LOG == ["open", "close"]


def test_a_function_that_cannot_be_closed_fails_its_epoch() -> None:
    harness = OperatorHarness(Logged("close"), key=whole)
    harness.push("a")
    with pytest.raises(UserFunctionError, match=r"in close\(\): OSError"):
        harness.end_epoch()
    assert harness.state("count", "a") is None
    directory = harness._directory
    with pytest.raises(UserFunctionError, match=r"in close\(\)"):
        harness.close()
    assert not os.path.exists(directory)


def test_nothing_is_left_on_disk() -> None:
    with OperatorHarness(Count(), key=whole) as harness:
        harness.push("a")
        directory = harness._directory
        assert os.path.exists(directory)
    assert not os.path.exists(directory)
    forgotten = OperatorHarness(lambda n: n)
    directory = forgotten._directory
    del forgotten
    gc.collect()
    assert not os.path.exists(directory)


# Side outputs, errors, metrics, time


def test_rows_that_fail_are_skipped_or_diverted_and_leave_no_trace() -> None:
    failed = OutputTag("failed")
    for policy in (ErrorPolicy.skip(), ErrorPolicy.side_output(failed)):
        with OperatorHarness(AllFive(), key=first, on_error=policy) as harness:
            harness.push(("a", 1), ("a", -1), ("a", 2))
            assert harness.outputs == [("a", 1), ("a", 2)]
            assert harness.state("list", "a") == [1, 2]
            assert harness.skipped == 1
            harness.end_epoch()
            assert harness.skipped == 0
            rows = [(row.row, row.key) for row in harness.side_output(failed)]
            assert rows == ([] if policy.tag is None else [(("a", -1), "a")])


class Timed(ProcessFunction):
    def open(self, ctx: Any) -> None:
        group = ctx.get_metrics_group()
        self.seen = group.counter("seen")
        self.sizes = group.histogram("sizes")
        self.last = -1
        group.gauge("last", lambda: self.last)

    def process_element(self, value: int, ctx: Any) -> Iterator[int]:
        self.seen.inc()
        self.sizes.update(value)
        self.last = value
        yield ctx.timer_service().current_processing_time()


def test_metrics_are_those_of_the_epoch() -> None:
    with OperatorHarness(Timed(), parallelism=4, subtask=2) as harness:
        assert harness.metrics.gauges == {"last": {2: -1}}
        harness.push(5, 7)
        assert harness.metrics.counters == {"seen": 2}
        assert harness.metrics.gauges == {"last": {2: 7}}
        assert harness.metrics.histograms["sizes"].total == 12
        harness.end_epoch()
        assert harness.metrics.counters == {"seen": 0}


def test_time_stands_still_until_it_is_moved() -> None:
    with OperatorHarness(Timed()) as harness:
        harness.push(1)
        harness.clock.advance(2_000)
        harness.push(1)
        harness.clock.set(500)
        harness.end_epoch()
        harness.push(1)
        assert harness.outputs == [0, 2_000, 500]


def test_the_runtime_context_says_what_was_given() -> None:
    class Here(MapFunction):
        def open(self, ctx: Any) -> None:
            self.here = (
                ctx.get_task_name(),
                ctx.get_index_of_this_subtask(),
                ctx.get_number_of_parallel_subtasks(),
                ctx.get_max_number_of_parallel_subtasks(),
                ctx.get_attempt_number(),
                ctx.get_job_parameter("limit"),
                ctx.get_job_parameter("missing", "default"),
                dict(ctx.get_job_parameters()),
            )

        def map(self, value: Any) -> Any:
            return self.here

    given = {"limit": "5"}
    with OperatorHarness(Here(), parallelism=3, subtask=1, job_parameters=given) as harness:
        harness.push(0)
        assert harness.outputs == [("Here", 1, 3, 128, 0, "5", "default", given)]


# Time, and functions of two streams


class Alarm(KeyedProcessFunction):
    """Sets a timer of either domain for every element, and tells when it was called."""

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        timers = ctx.timer_service()
        timers.register_event_time_timer(value[1])
        timers.register_processing_time_timer(value[1])
        yield value[0], ctx.timestamp(), timers.current_watermark()

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        if timestamp < 0:
            raise ValueError("before 1970")
        yield ctx.get_current_key(), timestamp, ctx.time_domain()


class Merged(CoMapFunction):
    def map1(self, value: Any) -> Any:
        return "first", value

    def map2(self, value: Any) -> Any:
        return "second", value


class Ruled(BroadcastProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield value, sorted(ctx.get_broadcast_state(RULES))

    def process_broadcast_element(self, value: Any, ctx: Any) -> None:
        ctx.get_broadcast_state(RULES).put(value, 1)


RULES = MapStateDescriptor("rules", str, int)


def test_elements_are_pushed_with_an_event_time_or_without() -> None:
    with OperatorHarness(Alarm(), key=first) as harness:
        harness.push(("a", 5), ("b", 5), at=3)
        harness.push(("a", 5))
        assert [time for _, time, _ in harness.outputs] == [3, 3, None]


def test_timers_fire_when_the_harness_is_told_the_time() -> None:
    with OperatorHarness(Alarm(), key=first) as harness:
        harness.push(("a", 5), ("b", 7))
        harness.take()
        harness.advance_watermark(6)
        assert harness.take() == [("a", 5, TimeDomain.EVENT_TIME)]
        harness.set_processing_time(7)
        assert sorted(harness.take()) == [
            ("a", 5, TimeDomain.PROCESSING_TIME),
            ("b", 7, TimeDomain.PROCESSING_TIME),
        ]
        harness.end_input()
        assert harness.take() == [("b", 7, TimeDomain.EVENT_TIME)]


def test_the_watermark_goes_from_epoch_to_epoch_and_never_back() -> None:
    with OperatorHarness(Alarm(), key=first) as harness:
        harness.advance_watermark(50)
        harness.advance_watermark(40)
        harness.push(("a", 100))
        harness.end_epoch()
        harness.push(("a", 100))
        harness.fail()
        harness.push(("a", 100))
        assert [mark for _, _, mark in harness.outputs] == [50, 50]


def test_a_timer_that_raises_fails_the_epoch() -> None:
    with OperatorHarness(Alarm(), key=first) as harness:
        harness.push(("a", 5))
        harness.end_epoch()
        harness.push(("a", -5), ("b", 5))
        with pytest.raises(UserFunctionError, match="before 1970"):
            harness.advance_watermark(10)
        harness.advance_watermark(10)
        assert harness.outputs[1:] == [("a", 5, TimeDomain.EVENT_TIME)]


def test_elements_of_the_second_stream_are_pushed_apart() -> None:
    with OperatorHarness(Merged()) as harness:
        harness.push(1)
        harness.push_second(2, 3, at=5)
        assert harness.outputs == [("first", 1), ("second", 2), ("second", 3)]


@BACKENDS
def test_a_broadcast_state_is_read_whether_the_epoch_has_used_it_or_not(backend: Any) -> None:
    with OperatorHarness(Ruled(), broadcast=[RULES], backend=backend) as harness:
        assert harness.operator_state("rules") == {}
        harness.push_second("a", "b")
        assert harness.operator_state("rules") == {"a": 1, "b": 1}
        harness.end_epoch()
        assert harness.operator_state("rules") == {"a": 1, "b": 1}
        harness.push("x")
        assert harness.outputs == [("x", ["a", "b"])]
