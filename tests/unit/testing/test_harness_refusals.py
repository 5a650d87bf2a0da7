"""What the harness refuses, as a job would."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import (
    AggregateFunction,
    AggregatingStateDescriptor,
    CoMapFunction,
    CoProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapFunction,
    MapStateDescriptor,
    ProcessFunction,
    ProcessJoinFunction,
    ReduceFunction,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from holdfast.errors import (
    ConfigurationError,
    JobGraphError,
    KeyTypeError,
    NullKeyError,
    StateAccessError,
    StateDescriptorError,
    UserFunctionError,
)
from holdfast.testing.harness import OperatorHarness
from tests.support.functions import Count


def whole(value: Any) -> Any:
    return value


class Doubled(MapFunction):
    def map(self, value: int) -> int:
        return value * 2


class Split(ProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        return [value]


class Longest(ReduceFunction):
    def reduce(self, value1: str, value2: str) -> str:
        return max(value1, value2, key=len)


@pytest.mark.parametrize(
    ("function", "key", "said"),
    [
        (Count(), None, "runs on a keyed stream; give a key"),
        (Longest(), None, "runs on a keyed stream; give a key"),
        (Split(), whole, "does not run on a keyed stream"),
        (Doubled, None, r"not its class: Doubled\(\)"),
        (5, None, "takes a function, not int"),
    ],
)
def test_a_function_that_the_stream_would_not_take_is_refused(
    function: Any, key: Any, said: str
) -> None:
    with pytest.raises(JobGraphError, match=said):
        OperatorHarness(function, key=key)


def test_a_subtask_that_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="no subtask 3; 3 of them"):
        OperatorHarness(whole, parallelism=3, subtask=3)
    with pytest.raises(ConfigurationError, match="at least 1"):
        OperatorHarness(whole, parallelism=0)


@pytest.mark.parametrize(
    ("key", "error"),
    [(None, NullKeyError), ([1], KeyTypeError), (2**64, KeyTypeError), (1 << 63, KeyTypeError)],
)
def test_a_key_that_a_job_would_refuse_is_refused(key: Any, error: type[Exception]) -> None:
    with OperatorHarness(Count(), key=lambda _: key) as harness, pytest.raises(error):
        harness.push("a")


def test_a_key_is_found_in_every_form_that_equals_it() -> None:
    with OperatorHarness(Count(), key=float) as harness:
        harness.push(-0.0, 0.0, float("nan"), -float("nan"))
        assert harness.state("count", -0.0) == harness.state("count", 0.0) == 2
        assert harness.state("count", float("nan")) == 2


def test_state_that_is_not_there_is_an_error_that_says_so() -> None:
    with (
        OperatorHarness(Doubled(), key=whole) as harness,
        pytest.raises(StateAccessError, match="'n'"),
    ):
        harness.state("n", key=1)
    with (
        OperatorHarness(Count(), key=whole) as harness,
        pytest.raises(StateDescriptorError, match=r"no state 'n' was registered; .*'count'"),
    ):
        harness.state("n", key=1)


def test_keyed_state_off_a_keyed_stream_is_refused() -> None:
    class Asks(MapFunction):
        def open(self, ctx: Any) -> None:
            ctx.get_list_state(ListStateDescriptor("n", int))

        def map(self, value: Any) -> Any:
            return value

    with pytest.raises(StateAccessError, match=r"'Asks'.*list state 'n'.*'keyed stream'"):
        OperatorHarness(Asks())


class Total(AggregateFunction):
    def create_accumulator(self) -> int:
        return 0

    def add(self, value: int, accumulator: int) -> int:
        return accumulator + value

    def get_result(self, accumulator: int) -> int:
        return accumulator

    def merge(self, acc_a: int, acc_b: int) -> int:
        return acc_a + acc_b


@pytest.mark.parametrize(
    ("ask", "descriptor"),
    [
        ("get_state", ListStateDescriptor("n", int)),
        ("get_list_state", ValueStateDescriptor("n", int)),
        ("get_map_state", ValueStateDescriptor("n", int)),
        ("get_reducing_state", MapStateDescriptor("n", str, int)),
        ("get_aggregating_state", ReducingStateDescriptor("n", max, int)),
        ("get_state", AggregatingStateDescriptor("n", Total(), int)),
        ("get_state", "n"),
    ],
)
def test_a_state_is_asked_for_by_its_own_descriptor(ask: str, descriptor: Any) -> None:
    class Asks(KeyedProcessFunction):
        def open(self, ctx: Any) -> None:
            getattr(ctx, ask)(descriptor)

        def process_element(self, value: Any, ctx: Any) -> None:
            return None

    with pytest.raises(UserFunctionError, match="is described by a"):
        OperatorHarness(Asks(), key=whole)


class Both(CoMapFunction):
    def map1(self, value: Any) -> Any:
        return value

    def map2(self, value: Any) -> Any:
        return value


class KeyedBoth(KeyedCoProcessFunction):
    def process_element1(self, value: Any, ctx: Any) -> Any:
        return [value]

    def process_element2(self, value: Any, ctx: Any) -> Any:
        return [value]


class PlainBoth(CoProcessFunction):
    def process_element1(self, value: Any, ctx: Any) -> Any:
        return [value]

    def process_element2(self, value: Any, ctx: Any) -> Any:
        return [value]


class Joined(ProcessJoinFunction):
    def process_element(self, left: Any, right: Any, ctx: Any) -> Any:
        return [left]


@pytest.mark.parametrize(
    ("function", "key", "said"),
    [
        (KeyedBoth(), None, "KeyedBoth runs on a keyed stream; give a key"),
        (PlainBoth(), whole, "PlainBoth does not run on a keyed stream"),
        (Joined(), whole, "Joined is called by a join; call its process_element"),
    ],
)
def test_a_function_of_two_streams_that_they_would_not_take_is_refused(
    function: Any, key: Any, said: str
) -> None:
    with pytest.raises(JobGraphError, match=said):
        OperatorHarness(function, key=key)


@pytest.mark.parametrize("function", [Doubled(), Split(), whole])
def test_a_function_of_one_stream_has_no_second(function: Any) -> None:
    with OperatorHarness(function) as harness, pytest.raises(JobGraphError, match="of one stream"):
        harness.push_second(1)


@pytest.mark.parametrize("key", [whole, None])
def test_a_function_that_maps_two_streams_runs_keyed_or_not(key: Any) -> None:
    with OperatorHarness(Both(), key=key) as harness:
        harness.push(1)
        harness.push_second(1)
        assert harness.outputs == [1, 1]
