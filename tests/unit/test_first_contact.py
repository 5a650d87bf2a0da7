"""The mistakes that new users make first, and the messages that help them."""

from __future__ import annotations

import copy
import inspect
import re
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import holdfast
from holdfast import (
    AggregatingStateDescriptor,
    EmbeddedRocksDBStateBackend,
    FilterFunction,
    FlatMapFunction,
    HashMapStateBackend,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapFunction,
    MapStateDescriptor,
    ProcessFunction,
    ReducingStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
    WatermarkStrategy,
    functions,
    windows,
)
from holdfast.api.functions import KeyedStateStore, ProcessContext, TimerService
from holdfast.api.state import State
from holdfast.api.windows.functions import WindowContext
from holdfast.api.windows.triggers import TriggerContext
from holdfast.errors import (
    JobGraphError,
    KeyTypeError,
    OutputTypeError,
    StateDescriptorError,
    UserFunctionError,
)
from holdfast.testing import OperatorHarness
from tests.support.functions import Count, Mean
from tests.support.programs import Program

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from holdfast import DataStream
    from holdfast.testing import HarnessSnapshot

BACKENDS = pytest.mark.parametrize(
    "backend", [HashMapStateBackend(), EmbeddedRocksDBStateBackend()], ids=lambda b: b.name
)
ROWS = [("ann", 1), ("bob", 2)]


@pytest.fixture
def rows(program: Program) -> DataStream:
    return program.source("k string, n bigint")


def message_of(program: Program, stream: DataStream, tmp_path: Path, error: type) -> str:
    """What the job says when it runs over two rows."""
    program.collect(stream)
    with pytest.raises(error) as caught:
        program.start(tmp_path).push(ROWS)
    return str(caught.value)


# Functions


class Returns(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        return value.k, 1


class Yields(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield value.k


class FlatMapReturns(FlatMapFunction):
    def flat_map(self, value: Any) -> Any:
        return value.k, 1


@pytest.mark.parametrize("function", [Returns(), FlatMapReturns()], ids=["process", "flat_map"])
def test_a_returned_tuple_is_explained(
    program: Program, rows: DataStream, tmp_path: Path, function: Any
) -> None:
    keyed, counts = rows.key_by("k"), "k string, n bigint"
    stream = (
        keyed.process(function, counts)
        if isinstance(function, KeyedProcessFunction)
        else keyed.flat_map(function, counts)
    )
    text = message_of(program, stream, tmp_path, OutputTypeError)
    assert "`return a, b` outputs a, then b. To output one tuple, use `yield a, b`" in text


def test_a_yielded_value_of_the_wrong_type_gets_no_advice_on_return(
    program: Program, rows: DataStream, tmp_path: Path
) -> None:
    stream = rows.key_by("k").process(Yields(), "k string, n bigint")
    assert "uses return" not in message_of(program, stream, tmp_path, OutputTypeError)


def several(value: Any) -> Iterator[Any]:
    yield value


class MapYields(MapFunction):
    def map(self, value: Any) -> Iterator[Any]:
        yield value


class FilterYields(FilterFunction):
    def filter(self, value: Any) -> Iterator[Any]:  # type: ignore[override]
        yield True


@pytest.mark.parametrize("function", [several, MapYields()], ids=["callable", "MapFunction"])
def test_yield_in_a_map_is_refused(rows: DataStream, function: Any) -> None:
    with pytest.raises(JobGraphError, match=r"uses yield.*use return, or call flat_map"):
        rows.map(function)


def test_yield_in_a_filter_or_a_reduce_is_refused(rows: DataStream) -> None:
    with pytest.raises(JobGraphError, match=r"FilterYields uses yield.*return True or False"):
        rows.filter(FilterYields())
    with pytest.raises(JobGraphError, match=r"reduce: several uses yield.*use return"):
        rows.key_by("k").reduce(several)  # type: ignore[arg-type]


def test_async_functions_are_refused(rows: DataStream) -> None:
    async def later(value: Any) -> Any:
        return value

    class Later(ProcessFunction):
        async def process_element(self, value: Any, ctx: Any) -> Any:
            yield value

    with pytest.raises(JobGraphError, match=r"map: .*later uses async def.*use def"):
        rows.map(later)
    with pytest.raises(JobGraphError, match="process: Later uses async def"):
        rows.process(Later())


def test_a_keyed_function_on_a_stream_without_keys_is_refused(rows: DataStream) -> None:
    with pytest.raises(JobGraphError, match=r"Yields is a KeyedProcessFunction.*key_by directly"):
        rows.process(Yields())  # type: ignore[arg-type]


def test_a_missing_event_time_is_explained(
    program: Program, rows: DataStream, tmp_path: Path
) -> None:
    class SetTimer(KeyedProcessFunction):
        def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
            ctx.timer_service().register_event_time_timer(ctx.timestamp() + 1)
            yield value

    class Broken(KeyedProcessFunction):
        def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
            yield value.n + None

    stream = rows.key_by("k").process(SetTimer(), "k string, n bigint")
    text = message_of(program, stream, tmp_path, UserFunctionError)
    assert "hint: timestamp() is None" in text
    assert "assign_timestamps_and_watermarks() on the stream, before key_by" in text
    other = Program()
    stream = other.source("k string, n bigint").key_by("k").process(Broken(), "k string, n bigint")
    assert "hint" not in message_of(other, stream, tmp_path / "other", UserFunctionError)


def test_an_event_time_timer_without_watermarks_warns(
    program: Program, rows: DataStream, tmp_path: Path
) -> None:
    class SetTimer(KeyedProcessFunction):
        def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
            ctx.timer_service().register_event_time_timer(5)
            yield value

    program.collect(rows.key_by("k").process(SetTimer(), "k string, n bigint").uid("set"))
    run = program.start(tmp_path)
    run.push(ROWS)
    [warning] = {text for report in run.reports for text in report.warnings}
    assert warning.startswith("operator 'KeyedProcess' (uid 'set') sets timers in event time")
    assert "call assign_timestamps_and_watermarks()" in warning


# Methods


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("window", "this stream is not keyed. Call key_by() directly before window()"),
        ("reduce", "this stream is not keyed. Call key_by() directly before reduce()"),
        ("select", "a stream is not a DataFrame. Instead, call it on the DataFrame before"),
        ("withColumn", "call it on the DataFrame before from_dataframe, or use map()"),
        ("groupBy", "Instead, call key_by(), then reduce(), window() or process()"),
        ("writeStream", "Instead, call sink_to()"),
        ("withWatermark", "Instead, call assign_timestamps_and_watermarks()"),
        ("keyBy", "did you mean 'key_by'?"),
        ("flatmap", "did you mean 'flat_map'?"),
    ],
)
def test_a_method_that_streams_do_not_have_says_what_to_use(
    rows: DataStream, name: str, advice: str
) -> None:
    with pytest.raises(AttributeError) as caught:
        getattr(rows, name)
    assert advice in str(caught.value)
    assert str(caught.value).startswith(f"'DataStream' object has no attribute {name!r}")


def test_a_stream_that_is_no_longer_keyed_says_so(rows: DataStream) -> None:
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("n")
    stamped = rows.key_by("k").assign_timestamps_and_watermarks(strategy)
    with pytest.raises(AttributeError) as caught:
        stamped.window  # type: ignore[attr-defined]  # noqa: B018
    text = str(caught.value)
    assert "this stream is not keyed. Call key_by() directly before window()" in text
    assert "assign_timestamps_and_watermarks() return a stream without keys" in text


def test_a_name_like_no_other_gets_no_advice(rows: DataStream) -> None:
    assert not hasattr(rows, "zzz")
    assert not hasattr(rows, "_private")
    with pytest.raises(AttributeError, match=r"no attribute 'zzz'$"):
        rows.zzz  # type: ignore[attr-defined]  # noqa: B018


# Keys

FAR_WEST = timezone(timedelta(hours=-10))


@pytest.mark.parametrize("typed", [True, False], ids=["typed", "untyped"])
@pytest.mark.parametrize(
    ("key", "advice"),
    [
        (lambda row: [row.k], "list cannot be a key; call tuple() on it"),
        (lambda row: {row.k}, "set cannot be a key; use bool, int"),
        (lambda row: np.int64(row.n), "int64 cannot be a key; call .item() on the NumPy value"),
        (lambda row: (row.k, np.int32(1)), "call .item() on the NumPy value"),
        (lambda row: "\ud800", "half of a surrogate pair"),
        (lambda row: datetime.max.replace(tzinfo=FAR_WEST), "after the year 9999 in UTC"),
        (lambda row: row.k if row.n == 1 else row.n, "the keys of this operator are"),
    ],
    ids=["list", "set", "NumPy", "NumPy in a tuple", "surrogate", "datetime", "mixed"],
)
def test_a_key_that_cannot_be_one_names_operator_and_row(
    tmp_path: Path, key: Any, advice: str, typed: bool
) -> None:
    program = Program(parallelism=1)
    rows = program.source("k string, n bigint")
    if not typed:
        rows = rows.map(lambda row: row).name("untyped")
    text = message_of(program, rows.key_by(key).process(Yields()), tmp_path, KeyTypeError)
    assert advice in text
    assert "operator '" in text or text.startswith("key_by after a source")
    assert "row: Event(k=" in text


def test_mixed_keys_show_the_row_that_has_the_other_type(tmp_path: Path) -> None:
    program = Program(parallelism=1)
    rows = program.source("k string, n bigint")
    stream = rows.key_by(lambda row: row.k if row.n == 1 else row.n).process(Yields())
    text = message_of(program, stream, tmp_path, KeyTypeError)
    assert "key 2 is an int, but the keys of this operator are str" in text
    assert "row: Event(k='bob', n=2)" in text


# State of an earlier program


class Lists(KeyedProcessFunction):
    """Declares as a list what `Count` has stored as a value."""

    def open(self, ctx: Any) -> None:
        self.counts = ctx.get_list_state(ListStateDescriptor("count", int))

    def process_element(self, value: Any, ctx: Any) -> None:
        self.counts.add(1)


class CountsLate(KeyedProcessFunction):
    """Registers its state with the first element."""

    def open(self, ctx: Any) -> None:
        self.ctx = ctx

    def process_element(self, value: Any, ctx: Any) -> None:
        self.ctx.get_state(ValueStateDescriptor("count", int)).update(1)


def snapshot_of_a_count(backend: Any) -> HarnessSnapshot:
    with OperatorHarness(Count(), key=lambda row: row[0], backend=backend) as harness:
        harness.push(("ann", 1))
        return harness.snapshot()


@BACKENDS
@pytest.mark.parametrize("function", [Count(), CountsLate()], ids=["open", "first element"])
def test_keys_of_another_type_than_the_restored_ones_are_explained(
    backend: Any, function: Any
) -> None:
    stored = snapshot_of_a_count(backend)
    with (
        OperatorHarness(
            function, key=lambda row: row[1], backend=backend, restore_from=stored
        ) as harness,
        pytest.raises(KeyTypeError) as caught,
    ):
        harness.push(("ann", 1))
    text = str(caught.value)
    assert "is an int, but the stored state of this operator has str keys" in text
    assert "let all keys be str as before, or give the operator another uid" in text


@BACKENDS
def test_a_state_that_is_stored_with_another_kind_is_explained(backend: Any) -> None:
    stored = snapshot_of_a_count(backend)
    with pytest.raises(StateDescriptorError) as caught:
        OperatorHarness(Lists(), key=lambda row: row[0], backend=backend, restore_from=stored)
    text = str(caught.value)
    assert "state 'count' is stored as a value state, and is now declared as a list state" in text
    assert "declare it as a value state, or use another name, under which it starts empty" in text


# Names that states and contexts do not have

HOUR = StateTtlConfig("1 h")
STATES = {
    "value": ValueStateDescriptor("s", int),
    "value with default": ValueStateDescriptor("s", int, default=1),
    "mutable value": ValueStateDescriptor("s", dict[str, int]),
    "list": ListStateDescriptor("s", int),
    "map": MapStateDescriptor("s", str, int),
    "reducing": ReducingStateDescriptor("s", lambda a, b: a + b, int),
    "aggregating": AggregatingStateDescriptor("s", Mean(), tuple[int, int]),
}


class Registers(KeyedProcessFunction):
    """Registers one state, and calls `use` with it and both contexts."""

    def __init__(self, descriptor: Any, use: Any, *, timed: bool = False) -> None:
        self.descriptor, self.use, self.timed = descriptor, use, timed

    def open(self, ctx: Any) -> None:
        if self.timed:
            self.descriptor.enable_time_to_live(HOUR)
        kind = self.descriptor.kind
        self.state = getattr(ctx, "get_state" if kind == "value" else f"get_{kind}_state")(
            self.descriptor
        )
        self.runtime = ctx

    def process_element(self, value: Any, ctx: Any) -> None:
        self.use(self.state, ctx, self.runtime)


def said_by(use: Any, kind: str = "value", *, timed: bool = False) -> str:
    function = Registers(copy.deepcopy(STATES[kind]), use, timed=timed)
    with (
        OperatorHarness(function, key=lambda e: e) as harness,
        pytest.raises(UserFunctionError) as caught,
    ):
        harness.push("a")
    return str(caught.value)


INTERNAL = re.compile(
    r"Table|Ttl|Defaulted|ReducingValue|AggregatingValue|Subtask(Context|Timers)|ElementContext"
)


@pytest.mark.parametrize("timed", [False, True], ids=["plain", "ttl"])
@pytest.mark.parametrize(
    ("kind", "use", "name", "advice"),
    [
        ("value", lambda s: s.get(), "ValueState", "call value()"),
        ("value", lambda s: s.add(1), "ValueState", "call update(value)"),
        ("value with default", lambda s: s.get(), "ValueState", "call value()"),
        ("mutable value", lambda s: s.updated({}), "ValueState", "did you mean 'update'?"),
        ("list", lambda s: s.append(1), "ListState", "call add(value)"),
        ("list", lambda s: s.addAll([1]), "ListState", "did you mean 'add_all'?"),
        ("map", lambda s: s.set("a", 1), "MapState", "call put(key, value)"),
        ("map", lambda s: s.isEmpty(), "MapState", "did you mean 'is_empty'?"),
        ("reducing", lambda s: s.value(), "ReducingState", "call get()"),
        ("aggregating", lambda s: s.update(1), "AggregatingState", "call add(value)"),
    ],
)
def test_a_name_that_a_state_does_not_have_says_what_to_use(
    kind: str, use: Any, name: str, advice: str, timed: bool
) -> None:
    text = said_by(lambda state, ctx, runtime: use(state), kind, timed=timed)
    assert f"AttributeError: {name!r} object has no attribute" in text
    assert f"hint: {advice}\n" in text
    assert not INTERNAL.search(text)


def test_a_state_called_with_the_wrong_arguments_has_its_public_name() -> None:
    text = said_by(lambda state, ctx, runtime: state.update())
    assert "TypeError: ValueState.update() missing 1 required" in text
    assert not INTERNAL.search(text)


@pytest.mark.parametrize(
    ("use", "said"),
    [
        (lambda ctx, runtime: ctx.get_state(1), "'Context' object has no attribute 'get_state'"),
        (lambda ctx, runtime: ctx.get_state(1), "hint: call it in open(self, ctx)"),
        (lambda ctx, runtime: ctx.getState(1), "hint: call it in open(self, ctx)"),
        (lambda ctx, runtime: ctx.timerService(), "hint: did you mean 'timer_service'?"),
        (lambda ctx, runtime: ctx.current_watermark(), "hint: call timer_service().current_wat"),
        (lambda ctx, runtime: ctx.output(1, 2), "hint: use yield"),
        (lambda ctx, runtime: ctx.timer_service().register(5), "'TimerService' object"),
        (lambda ctx, runtime: runtime.get_value_state(1), "'RuntimeContext' object"),
        (lambda ctx, runtime: runtime.timer_service(), "hint: call it on the context that process"),
    ],
)
def test_a_name_that_a_context_does_not_have_says_what_to_use(use: Any, said: str) -> None:
    text = said_by(lambda state, ctx, runtime: use(ctx, runtime))
    assert said in text
    assert not INTERNAL.search(text)


def test_other_missing_names_get_no_advice() -> None:
    assert "\n  hint: " not in said_by(lambda state, ctx, runtime: "text".decode())  # type: ignore[attr-defined]
    assert "\n  hint: " not in said_by(lambda state, ctx, runtime: state.zzzz())
    assert "\n  hint: " not in said_by(lambda state, ctx, runtime: state._zzzz)


def test_every_state_and_context_has_a_public_name() -> None:
    public = {*vars(holdfast)["__all__"], *functions.__all__, *windows.__all__, "Context"}
    bases = (State, KeyedStateStore, ProcessContext, TimerService, WindowContext, TriggerContext)
    waiting: list[type] = list(bases)
    while waiting:
        cls = waiting.pop()
        waiting += cls.__subclasses__()
        if cls.__module__.startswith("holdfast.") and not inspect.isabstract(cls):
            assert cls.__name__ in public, cls
