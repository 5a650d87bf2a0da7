"""Functions that several tests run; at the top of a module, so that they can be shipped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast import (
    AggregateFunction,
    AggregatingStateDescriptor,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


class Mean(AggregateFunction):
    """Mean of numbers, with a mutable accumulator."""

    def create_accumulator(self) -> list[int]:
        return [0, 0]

    def add(self, value: int, accumulator: list[int]) -> list[int]:
        accumulator[0] += value
        accumulator[1] += 1
        return accumulator

    def get_result(self, accumulator: list[int]) -> float:
        return accumulator[0] / accumulator[1]

    def merge(self, acc_a: list[int], acc_b: list[int]) -> list[int]:
        return [a + b for a, b in zip(acc_a, acc_b, strict=True)]


def plus(a: int, b: int) -> int:
    return a + b


VALUE = ValueStateDescriptor("value", int)
LIST = ListStateDescriptor("list", int)
MAP = MapStateDescriptor("map", str, int)
SUM = ReducingStateDescriptor("sum", plus, int)
MEAN = AggregatingStateDescriptor("mean", Mean(), list[int])


class Count(KeyedProcessFunction):
    """Counts the elements of every key."""

    def open(self, ctx: Any) -> None:
        self.count = ctx.get_state(ValueStateDescriptor("count", int))

    def process_element(self, value: Any, ctx: Any) -> Iterator[tuple[Any, int]]:
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        yield ctx.get_current_key(), count


class AllFive(KeyedProcessFunction):
    """Keeps numbers in all five kinds of state; fails on a negative one, having kept it."""

    def open(self, ctx: Any) -> None:
        self.value = ctx.get_state(VALUE)
        self.list = ctx.get_list_state(LIST)
        self.map = ctx.get_map_state(MAP)
        self.sum = ctx.get_reducing_state(SUM)
        self.mean = ctx.get_aggregating_state(MEAN)

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        key, number = value
        self.value.update(number)
        self.list.add(number)
        self.map.put(str(number), number)
        self.sum.add(number)
        self.mean.add(number)
        yield key, number
        if number < 0:
            raise ValueError(f"{number} is negative")
