"""What type checkers infer for streams. `make check` checks this file; nothing runs it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, assert_type

from holdfast import (
    ConnectedStreams,
    DataStream,
    KeyedProcessFunction,
    KeyedStream,
    MapFunction,
    OutputTag,
    RuntimeContext,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
)
from holdfast.windows import TumblingEventTimeWindows, WindowedStream

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass
class Click:
    url: str
    at: int


class Url(MapFunction[Click, str]):
    def map(self, value: Click) -> str:
        return value.url


LATE = OutputTag("late", int)


class Count(KeyedProcessFunction[str, Click, tuple[str, int]]):
    def process_element(
        self, value: Click, ctx: KeyedProcessFunction.Context
    ) -> Iterator[tuple[str, int] | tuple[OutputTag, int]]:
        yield value.url, 1
        yield LATE, 1


def sources_give_streams_of_their_elements(env: StreamExecutionEnvironment) -> None:
    assert_type(env.from_collection([1, 2]), DataStream[int])
    assert_type(env.from_collection([("a", 1)], "url string, n int"), DataStream[Any])


def operators_give_streams_of_their_results(clicks: DataStream[Click], untyped: DataStream) -> None:
    assert_type(clicks.map(Url()), DataStream[str])
    assert_type(clicks.map(lambda click: click.at), DataStream[int])
    assert_type(clicks.map(lambda click: click.at, int), DataStream[int])
    assert_type(clicks.map(lambda click: click.at, "bigint"), DataStream[Any])
    assert_type(clicks.flat_map(lambda click: [click.url]), DataStream[str])
    assert_type(clicks.filter(lambda click: click.at > 0), DataStream[Click])
    assert_type(clicks.get_side_output(LATE), DataStream[int])
    assert_type(untyped.map(str), DataStream[str])


def collected_elements_have_the_type_of_the_stream(clicks: DataStream[Click]) -> None:
    assert_type(clicks.execute_and_collect("job", limit=2), list[Click])
    assert_type(clicks.execute_and_collect("job", 2), list[Click])
    assert_type([click.at for click in clicks.execute_and_collect()], list[int])
    with clicks.execute_and_collect() as collected:
        assert_type(next(iter(collected)), Click)


def keyed_streams_know_their_keys(clicks: DataStream[Click]) -> None:
    assert_type(clicks.key_by("url"), KeyedStream[Any, Click])
    by_url = clicks.key_by(lambda click: click.url)
    assert_type(by_url, KeyedStream[str, Click])
    assert_type(by_url.process(Count()), DataStream[tuple[str, int]])
    assert_type(by_url.max("at"), DataStream[Click])
    assert_type(by_url.connect(by_url), ConnectedStreams[Click, Click])


def builders_return_themselves(env: StreamExecutionEnvironment, clicks: DataStream[Click]) -> None:
    assert_type(env.set_parallelism(2).enable_checkpointing("10 s"), StreamExecutionEnvironment)
    assert_type(clicks.uid("clicks").name("clicks").rebalance(), DataStream[Click])
    windowed = clicks.key_by(lambda click: click.url).window(TumblingEventTimeWindows.of("1 h"))
    assert_type(windowed.allowed_lateness("5 s"), WindowedStream[str, Click])


class Double(MapFunction):
    """Functions may leave their type parameters out."""

    def map(self, value: int) -> int:
        return 2 * value


class Total(KeyedProcessFunction):
    def open(self, ctx: RuntimeContext) -> None:
        self.count = ctx.get_state(ValueStateDescriptor("count", int))

    def process_element(self, value: int, ctx: KeyedProcessFunction.Context) -> Iterator[int]:
        self.count.update((self.count.value() or 0) + value)
        yield value
