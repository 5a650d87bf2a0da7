"""Running user functions: what they may return, and what happens when they raise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from holdfast import (
    EmbeddedRocksDBStateBackend,
    ErrorPolicy,
    FailedRow,
    FilterFunction,
    FlatMapFunction,
    HashMapStateBackend,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapFunction,
    MapStateDescriptor,
    OutputTag,
    ProcessFunction,
    SinkFunction,
    ValueStateDescriptor,
)
from holdfast.errors import StateAccessError, StateValueError, UserFunctionError
from holdfast.runtime.operators.element import state_spec
from holdfast.testing.harness import OperatorHarness
from holdfast.types.stream_type import StreamType
from tests.support.functions import AllFive

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FAILED = OutputTag("failed")


def whole(value: Any) -> Any:
    return value


def first(value: Any) -> Any:
    return value[0]


class FlatMap(FlatMapFunction):
    """Returns what a function makes of an element."""

    def __init__(self, make: Callable[[Any], Any]) -> None:
        self.make = make

    def flat_map(self, value: Any) -> Any:
        return self.make(value)


class Process(ProcessFunction):
    """The same, as a process function."""

    def __init__(self, make: Callable[[Any], Any]) -> None:
        self.make = make

    def process_element(self, value: Any, ctx: Any) -> Any:
        return self.make(value)


# What a function may return


@pytest.mark.parametrize("function", [FlatMap, Process], ids=["flat_map", "process"])
@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda n: None, []),
        (lambda n: [], []),
        (lambda n: [n, n], [1, 1, 2, 2]),
        (lambda n: (n,), [1, 2]),
        (lambda n: {n: "value"}, [1, 2]),
        (lambda n: (i for i in range(n)), [0, 0, 1]),
        (lambda n: map(str, [n]), ["1", "2"]),
        (lambda n: None if n == 1 else [n], [2]),
    ],
    ids=["None", "empty", "list", "tuple", "dict", "generator", "iterator", "sometimes None"],
)
def test_any_iterable_or_nothing_may_be_returned(
    function: Any, make: Any, expected: list[Any]
) -> None:
    with OperatorHarness(function(make)) as harness:
        harness.push(1, 2)
        assert harness.outputs == expected


def test_what_is_yielded_before_a_return_counts() -> None:
    class Yields(FlatMapFunction):
        def flat_map(self, value: int) -> Iterator[int]:
            if value < 0:
                return
            yield value
            yield value + 1

    with OperatorHarness(Yields()) as harness:
        harness.push(-1, 5)
        assert harness.outputs == [5, 6]


def test_what_is_not_iterable_is_an_error_of_the_function() -> None:
    with (
        OperatorHarness(FlatMap(lambda n: n)) as harness,
        pytest.raises(UserFunctionError, match="'int' object is not iterable"),
    ):
        harness.push(5)


def test_a_filter_goes_by_truth() -> None:
    class Truthy(FilterFunction):
        def filter(self, value: Any) -> Any:
            return value

    with OperatorHarness(Truthy()) as harness:
        harness.push(0, 1, "", "a", None, [], [0])
        assert harness.outputs == [1, "a", [0]]


def test_a_map_gives_out_none_as_it_is() -> None:
    with OperatorHarness(lambda n: None) as harness:
        harness.push(1, 2)
        assert harness.outputs == [None, None]


def test_a_generator_reads_state_of_its_own_element() -> None:
    class Twice(KeyedProcessFunction):
        def open(self, ctx: Any) -> None:
            self.seen = ctx.get_state(ValueStateDescriptor("seen", int, default=0))

        def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
            for _ in range(2):
                self.seen.update(self.seen.value() + 1)
                yield ctx.get_current_key(), self.seen.value()

    with OperatorHarness(Twice(), key=whole) as harness:
        harness.push("a", "b", "a")
        assert harness.outputs == [
            ("a", 1), ("a", 2), ("b", 1), ("b", 2), ("a", 3), ("a", 4),
        ]  # fmt: skip


# Errors


class Divide(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield "before", value
        yield self.divided(value)

    def divided(self, value: Any) -> float:
        return 1 / float(value[1])


def test_an_exception_carries_operator_subtask_key_row_and_traceback() -> None:
    with OperatorHarness(Divide(), key=first, parallelism=4, subtask=2) as harness:
        with pytest.raises(UserFunctionError) as caught:
            harness.push(("a", 1), ("b", 0), ("c", 2))
        assert isinstance(caught.value.__cause__, ZeroDivisionError)
    lines = str(caught.value).splitlines()
    assert lines[:4] == [
        "operator 'Divide' (uid 'harness'), subtask 3/4: ZeroDivisionError: float division by zero",
        "  key: 'b'",
        "  row: ('b', 0)",
        "Traceback (most recent call last):",
    ]
    assert "test_operators.py" in lines[4]
    assert "process_element" in lines[4]
    assert "return 1 / float(value[1])" in "\n".join(lines)
    assert lines[-1] == "ZeroDivisionError: float division by zero"


@pytest.mark.parametrize("function", [lambda n: 1 // n, FlatMap(lambda n: [1 // n])])
def test_an_exception_off_a_keyed_stream_has_no_key(function: Any) -> None:
    with (
        OperatorHarness(function) as harness,
        pytest.raises(UserFunctionError, match=r"key: <no key>\n  row: 0"),
    ):
        harness.push(1, 0)


class Swallow(SinkFunction):
    def __init__(self, fails_in: str) -> None:
        self.fails_in = fails_in

    def invoke(self, value: Any, context: Any) -> None:
        if self.fails_in == "invoke":
            raise OSError("disk full")

    def flush(self) -> None:
        if self.fails_in == "flush":
            raise OSError("disk full")


def test_a_sink_that_raises_is_named() -> None:
    with (
        OperatorHarness(Swallow("invoke")) as harness,
        pytest.raises(UserFunctionError, match=r"'Swallow'.*OSError: disk full\n.*\n  row: 5"),
    ):
        harness.push(5)
    with OperatorHarness(Swallow("flush")) as harness:
        harness.push(5)
        with pytest.raises(UserFunctionError, match=r"'Swallow'.*, in flush\(\): OSError"):
            harness.end_epoch()


def test_a_long_row_is_cut_in_the_message() -> None:
    with OperatorHarness(lambda text: int(text)) as harness:
        with pytest.raises(UserFunctionError) as caught:
            harness.push("x" * 10_000)
        row = next(line for line in str(caught.value).splitlines() if "row:" in line)
        assert len(row) < 600
        assert row.endswith("... (10002 characters)")


def test_the_end_of_an_iterator_is_an_error_like_others() -> None:
    class Stops(MapFunction):
        def map(self, value: Any) -> Any:
            return next(iter([]))

    with OperatorHarness(Stops()) as harness, pytest.raises(UserFunctionError, match="StopIter"):
        harness.push(1)


def test_an_interrupt_is_not_an_error_of_the_function() -> None:
    def interrupted(value: Any) -> Any:
        raise KeyboardInterrupt

    with (
        OperatorHarness(interrupted, on_error=ErrorPolicy.skip()) as harness,
        pytest.raises(KeyboardInterrupt),
    ):
        harness.push(1)


def test_wrong_use_of_state_says_where_it_happened() -> None:
    class Wrong(KeyedProcessFunction):
        def open(self, ctx: Any) -> None:
            self.n = ctx.get_state(ValueStateDescriptor("n", int))

        def process_element(self, value: Any, ctx: Any) -> None:
            self.n.update(value)

    for policy in (ErrorPolicy.fail(), ErrorPolicy.skip()):
        with OperatorHarness(Wrong(), key=str, on_error=policy) as harness:
            with pytest.raises(StateValueError) as caught:
                harness.push(1, "text")
            text = str(caught.value)
            assert text.startswith("operator 'Wrong' (uid 'harness'), subtask 1/1: ")
            assert text.endswith("  key: 'text'\n  row: 'text'")


def test_a_located_error_that_user_code_raises_itself_is_left_alone() -> None:
    def fails(value: Any) -> Any:
        raise UserFunctionError("said by the user")

    with OperatorHarness(fails) as harness:
        with pytest.raises(UserFunctionError, match=r"^said by the user$") as caught:
            harness.push(1)
        assert caught.value.__cause__ is None


def test_there_is_no_key_outside_of_elements() -> None:
    class Early(KeyedProcessFunction):
        def open(self, ctx: Any) -> None:
            ctx.get_state(ValueStateDescriptor("n", int)).value()

        def process_element(self, value: Any, ctx: Any) -> None:
            return None

    with pytest.raises(StateAccessError, match=r"in open\(\): state 'n' was used with no key set"):
        OperatorHarness(Early(), key=whole)

    class Late(Early):
        def open(self, ctx: Any) -> None:
            self.n = ctx.get_state(ValueStateDescriptor("n", int))

        def close(self) -> None:
            self.n.update(1)

    harness = OperatorHarness(Late(), key=whole)
    harness.push("a")
    with pytest.raises(StateAccessError, match=r"in close\(\): state 'n'"):
        harness.end_epoch()
    with pytest.raises(StateAccessError, match=r"in close\(\)"):
        harness.close()


# Error policies


@pytest.mark.parametrize(
    "backend", [HashMapStateBackend(), EmbeddedRocksDBStateBackend()], ids=["hashmap", "rocksdb"]
)
def test_a_row_that_fails_changes_no_state_of_any_kind(backend: Any) -> None:
    harness = OperatorHarness(
        AllFive(), key=first, backend=backend, on_error=ErrorPolicy.side_output(FAILED)
    )
    with harness:
        harness.push(("new", -1), ("a", 1), ("a", -2))
        harness.end_epoch()
        harness.push(("a", -3), ("a", 2), ("a", -4), ("new", -5))
        for _ in range(2):
            assert harness.state("value", "a") == 2
            assert harness.state("list", "a") == [1, 2]
            assert harness.state("map", "a") == {"1": 1, "2": 2}
            assert harness.state("sum", "a") == 3
            assert harness.state("mean", "a") == 1.5
            assert harness.state("value", "new") is None
            assert harness.state("list", "new") == []
            assert harness.state("map", "new") == {}
            assert harness.state("sum", "new") is None
            harness.end_epoch()
        assert harness.outputs == [("a", 1), ("a", 2)]
        assert [row.row[1] for row in harness.side_output(FAILED)] == [-1, -2, -3, -4, -5]


class Mutilate(KeyedProcessFunction):
    """Uses state in the way an element says, and fails if it says so."""

    def open(self, ctx: Any) -> None:
        self.value = ctx.get_state(ValueStateDescriptor("value", list[int]))
        self.default = ctx.get_state(ValueStateDescriptor("default", int, default=7))
        self.list = ctx.get_list_state(ListStateDescriptor("list", int))
        self.map = ctx.get_map_state(MapStateDescriptor("map", str, int))

    def process_element(self, value: Any, ctx: Any) -> None:
        _, use, fails = value
        {
            "fill": self.fill,
            "clear": self.clear,
            "replace": self.replace,
            "read": self.read,
            "remove": lambda: self.map.remove("x"),
            "remove all": self.remove_all,
        }[use]()
        if fails:
            raise ValueError(use)

    def fill(self) -> None:
        self.value.update([*(self.value.value() or []), 1])
        self.default.update(self.default.value() + 1)
        self.list.add_all([1, 2])
        self.map.put_all({"x": 1, "y": 2})

    def clear(self) -> None:
        for state in (self.value, self.default, self.list, self.map):
            state.clear()

    def replace(self) -> None:
        self.value.update([9])
        self.default.update(9)
        self.list.update([9])
        self.map.clear()
        self.map.put("z", 9)

    def read(self) -> None:
        self.value.value()
        self.default.value()
        self.list.get()
        dict(self.map.items())

    def remove_all(self) -> None:
        for own in list(self.map.keys()):
            self.map.remove(own)


@pytest.mark.parametrize("before", ["an earlier epoch", "the same epoch", "the same batch", ""])
@pytest.mark.parametrize("use", ["fill", "clear", "replace", "read", "remove", "remove all"])
def test_whatever_a_failing_row_did_is_undone(use: str, before: str) -> None:
    with OperatorHarness(Mutilate(), key=first, on_error=ErrorPolicy.skip()) as harness:
        filled = [("a", "fill", False)]
        if before in ("an earlier epoch", "the same epoch"):
            harness.push(*filled)
        if before == "an earlier epoch":
            harness.end_epoch()
        bad = [("a", use, True)] * 2
        harness.push(*(filled + bad if before == "the same batch" else bad))
        for _ in range(2):
            was = bool(before)
            assert harness.state("value", "a") == ([1] if was else None)
            assert harness.state("default", "a") == (8 if was else 7)
            assert harness.state("list", "a") == ([1, 2] if was else [])
            assert harness.state("map", "a") == ({"x": 1, "y": 2} if was else {})
            harness.end_epoch()


def test_state_that_a_failing_row_registers_is_undone_too() -> None:
    class Lazy(KeyedProcessFunction):
        def open(self, ctx: Any) -> None:
            self.ctx = ctx

        def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
            number = self.ctx.get_state(ValueStateDescriptor("value", int))
            numbers = self.ctx.get_list_state(ListStateDescriptor("list", int))
            entries = self.ctx.get_map_state(MapStateDescriptor("map", str, int))
            number.update((number.value() or 0) + 1)
            numbers.add(1)
            entries.put("x", 1)
            if value[1] < 0:
                raise ValueError
            yield number.value(), numbers.get(), dict(entries.items())

    with OperatorHarness(Lazy(), key=first, on_error=ErrorPolicy.skip()) as harness:
        harness.push(("a", -1), ("a", 1))
        assert harness.outputs == [(1, [1], {"x": 1})]


def test_a_diverted_row_says_what_happened_to_it() -> None:
    policy = ErrorPolicy.side_output(FAILED)
    with OperatorHarness(Divide(), key=first, on_error=policy) as harness:
        harness.push(("a", 0), ("b", 2))
        assert harness.outputs == [("before", ("b", 2)), 0.5]
        [failed] = harness.side_output(FAILED)
        assert isinstance(failed, FailedRow)
        assert failed.row == ("a", 0)
        assert failed.key == "a"
        assert failed.error == "ZeroDivisionError: float division by zero"
        assert failed.traceback.startswith("Traceback (most recent call last):\n")
        assert "process_element" in failed.traceback
        assert "holdfast/runtime" not in failed.traceback
    with OperatorHarness(lambda n: 1 // n, on_error=policy) as harness:
        harness.push(0)
        assert harness.side_output(FAILED)[0].key is None


def test_every_kind_of_function_keeps_to_the_policy() -> None:
    class Positive(FilterFunction):
        def filter(self, value: int) -> bool:
            return 1 // value > 0

    functions = [lambda n: 1 // n, FlatMap(lambda n: [1 // n]), Positive(), Swallow("invoke")]
    for function in functions:
        with OperatorHarness(function, on_error=ErrorPolicy.skip()) as harness:
            harness.push(1, 0)
            assert harness.skipped == (2 if isinstance(function, Swallow) else 1)
            assert len(harness.outputs) == (0 if isinstance(function, Swallow) else 1)


# State of reductions


@dataclass
class Record:
    k: str


@pytest.mark.parametrize(
    ("declared", "spec"),
    [
        (Any, None),
        (int, pa.int64()),
        (Record, Record),
        (
            "k string, n bigint",
            pa.struct([pa.field("k", pa.string()), pa.field("n", pa.int64())]),
        ),
    ],
)
def test_reduced_elements_are_kept_under_the_type_of_their_stream(declared: Any, spec: Any) -> None:
    assert state_spec(StreamType.of(declared)) == spec
